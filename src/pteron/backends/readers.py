"""Backend ids to readers of their blobs.

Readers of other packages are entry points of the group ``pteron.blob_readers``, named by the id.
One that fails is logged once and is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pteron.backends.blob_reader import (
    BlobReader,
    CallShape,
    DelegateBlob,
    NativeCode,
)
from pteron.backends.registry import BUILT_IN
from pteron.errors import DelegateInvalidCompatibilityError, InvalidTypeError, PteronError
from pteron.plugins import FAILURES, report_broken, summary
from pteron.program.data_map import NamedDataMap

GROUP = "pteron.blob_readers"

_readers: dict[str, BlobReader] = {}
"""What was found, by id."""


def find_violations(
    blob: DelegateBlob, named_data: NamedDataMap, *, is_complete: bool
) -> list[str]:
    """Return what its backend's reader finds wrong with a delegate, one line each."""
    reader = reader_of(blob.backend_id)
    try:
        with _named(reader, "violations"):
            return list(reader.violations(blob, named_data, is_complete=is_complete))
    except PteronError as error:
        return [error.message]


def describe_code(blob: DelegateBlob, named_data: NamedDataMap) -> NativeCode | None:
    """Return what its backend's reader says of the machine code of a delegate."""
    reader = reader_of(blob.backend_id)
    with _named(reader, "native_code"):
        return reader.native_code(blob, named_data)


def call_shape(blob: DelegateBlob) -> CallShape | None:
    """Return what its backend's reader says of the calls of a delegate."""
    reader = reader_of(blob.backend_id)
    with _named(reader, "call_shape"):
        return reader.call_shape(blob)


def keys_of(blob: DelegateBlob) -> list[str]:
    """Return the named data that its backend's reader knows a delegate to need."""
    reader = reader_of(blob.backend_id)
    with _named(reader, "keys"):
        return list(reader.keys(blob))


@contextmanager
def _named(reader: BlobReader, method: str) -> Iterator[None]:
    """Turn what a reader raises and did not mean to into a PteronError that names its method.

    A blob that its reader stumbles over is refused like one that the reader refuses.
    """
    try:
        yield
    except PteronError:
        raise
    except FAILURES as error:
        kind = type(reader)
        raise DelegateInvalidCompatibilityError(
            f"{kind.__module__}.{kind.__qualname__}.{method} raised {summary(error)}"
        ) from error


def reader_of(backend_id: str) -> BlobReader:
    """Return the reader of a backend's blobs; one that knows nothing if there is none."""
    reader = _readers.get(backend_id)
    if reader is None:
        reader = _readers[backend_id] = _find(backend_id)
    return reader


def _find(backend_id: str) -> BlobReader:
    for entry_point in entry_points(group=GROUP):
        if entry_point.name == backend_id:
            reader = _from_package(entry_point)
            if reader is not None:
                return reader
    built_in = BUILT_IN.get(backend_id)
    if built_in is None:
        return BlobReader()
    module, _, name = built_in.reader.partition(":")
    return _instance(getattr(import_module(module), name))


def _from_package(entry_point: EntryPoint) -> BlobReader | None:
    try:
        return _instance(entry_point.load())
    except FAILURES as error:
        report_broken(entry_point, error)
        return None


def _instance(found: Any) -> BlobReader:
    reader = found() if isinstance(found, type) else found
    if not isinstance(reader, BlobReader):
        raise InvalidTypeError(f"{found!r} is not a pteron.backends.blob_reader.BlobReader")
    return reader
