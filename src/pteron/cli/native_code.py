"""Machine code that a file carries: where it is, what it is for, and its digest (DESIGN, V3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypedDict

from pteron.backends.blob_reader import DelegateBlob, delegate_blob
from pteron.backends.machine_code import recognise
from pteron.errors import PteronError
from pteron.format.ptd import PtdFile
from pteron.format.pte import PteFile
from pteron.format.schema import BackendDelegate, DataLocation
from pteron.program.data_map import NamedDataMap


class NativeCode(TypedDict):
    """One piece of machine code.

    ``details`` are further facts that the reader of its backend gives; ``problem`` says why it
    could not be described.
    """

    place: str
    file: str
    kind: str
    machine: str | None
    size_bytes: int
    sha256: str | None
    used_by: list[str]
    details: dict[str, str | int | list[str]]
    problem: str | None


def find_native_code(
    pte: PteFile, data_map: NamedDataMap, ptds: Sequence[PtdFile] = ()
) -> list[NativeCode]:
    """Return all machine code of a program and its data files, each once."""
    found = {code["place"]: code for code in _in_named_data(pte, ptds)}
    for plan in pte.program.execution_plan:
        for number, delegate in enumerate(plan.delegates):
            blob = delegate_blob(pte, plan, number)
            code = _described(pte, blob, delegate, data_map)
            if code is not None:
                known = found.get(code["place"])
                code["used_by"] = [*(known["used_by"] if known else ()), _user(blob)]
                found[code["place"]] = code
    return list(found.values())


def native_code_of_data(ptd: PtdFile) -> list[NativeCode]:
    """Return all machine code of a data file."""
    return list(_of_data(ptd))


def _in_named_data(pte: PteFile, ptds: Sequence[PtdFile]) -> Iterator[NativeCode]:
    for entry in pte.program.named_data:
        code = _sniff(pte.segment(entry.segment_index), _data_place(entry.key), pte.source.name)
        if code is not None:
            yield code
    for ptd in ptds:
        yield from _of_data(ptd)


def _of_data(ptd: PtdFile) -> Iterator[NativeCode]:
    for entry in ptd.flat_tensor.named_data:
        code = _sniff(ptd.segment(entry.segment_index), _data_place(entry.key), ptd.source.name)
        if code is not None:
            yield code


def _data_place(key: str) -> str:
    return f"named data {key!r}"


def _blob_place(delegate: BackendDelegate) -> str:
    where = "segment" if delegate.processed.location is DataLocation.SEGMENT else "inline blob"
    return f"{where} {delegate.processed.index} ({delegate.id})"


def _sniff(blob: memoryview, place: str, file: str) -> NativeCode | None:
    """Describe machine code by its first bytes; None if there is none."""
    found = recognise(blob)
    if found is None:
        return None
    from hashlib import sha256

    return NativeCode(
        place=place,
        file=file,
        kind=found[0],
        machine=found[1],
        size_bytes=blob.nbytes,
        sha256=sha256(blob).hexdigest(),
        used_by=[],
        details={},
        problem=None,
    )


def _described(
    pte: PteFile, blob: DelegateBlob, delegate: BackendDelegate, data_map: NamedDataMap
) -> NativeCode | None:
    """Describe the machine code of a delegate as its backend's reader does, or by its bytes."""
    from pteron.backends.readers import describe_code  # it looks at the installed packages

    place, file = _blob_place(delegate), pte.source.name
    try:
        code = describe_code(blob, data_map)
        if code is not None and code.key is not None:
            place, file = _data_place(code.key), data_map.get(code.key).origin
    except PteronError as error:
        return NativeCode(
            place=_user(blob),
            file=pte.source.name,
            kind="not readable",
            machine=None,
            size_bytes=0,
            sha256=None,
            used_by=[],
            details={},
            problem=error.message,
        )
    if code is None:
        return _sniff(blob.data, place, file)
    return NativeCode(
        place=place,
        file=file,
        kind=code.kind,
        machine=code.machine,
        size_bytes=code.size_bytes,
        sha256=code.sha256,
        used_by=[],
        details=dict(code.details),
        problem=None,
    )


def _user(blob: DelegateBlob) -> str:
    return f"delegate {blob.delegate_index} ({blob.backend_id}) of method {blob.method_name}"
