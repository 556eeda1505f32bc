"""The CUDA delegate's payload: which shared object runs, and which weights it needs.

Three generations are in circulation (``backends/cuda/cuda_weight_collector.py`` and
``backends/aoti/aoti_backend.py`` of ExecuTorch write the first two; ``aoti_delegate_handle.h``
documents the last two):

1. *named*: begins with ``ETCUDAFQN3``; the shared object's key, then one entry per constant with
   the key of its bytes and its place in them;
2. *keyed*: two keys, one a line: the shared object's, and that of one flat blob of all weights;
3. *legacy*: empty; both keys are made from the method's name.

Nothing here loads or runs anything, and torch is not imported.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import TYPE_CHECKING, Any

from pteron import limits
from pteron.errors import (
    DelegateInvalidCompatibilityError,
    InvalidExternalDataError,
    InvalidProgramError,
    NotFoundError,
    PteronError,
)
from pteron.format.schema import DeviceType, ScalarType

if TYPE_CHECKING:
    from pteron.program.data_map import NamedDataMap

MAGIC = b"ETCUDAFQN3"
MAGIC_FAMILY = b"ETCUDAFQN"
MAX_KEY_PAYLOAD_BYTES = 2 * limits.MAX_NAME_BYTES + 1

_U32 = struct.Struct("<I")
_ENTRY = struct.Struct("<QiiqI")


class Generation(Enum):
    """How a payload names its data."""

    NAMED = "named weights"
    KEYED = "two keys"
    LEGACY = "method name"


@dataclass(frozen=True, slots=True)
class WeightEntry:
    """One constant: a strided tensor over the bytes that ``storage_key`` names."""

    fqn: str
    storage_key: str
    storage_nbytes: int
    scalar_type: ScalarType
    device_type: DeviceType
    """Where the compiled code expects it; a constant may stay on the host."""
    storage_offset: int
    """In elements."""
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def required_bytes(self) -> int:
        """Bytes of storage that the tensor reaches into."""
        if not all(self.sizes):
            return 0
        last = self.storage_offset + sum(
            stride * (size - 1) for size, stride in zip(self.sizes, self.strides, strict=True)
        )
        return (last + 1) * self.scalar_type.itemsize


@dataclass(frozen=True, slots=True)
class DelegatePayload:
    """What a payload says."""

    generation: Generation
    shared_object_key: str
    weights_key: str | None
    """The flat blob of all weights; None where every weight has its own key."""
    entries: tuple[WeightEntry, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key that the payload names, each once: code first."""
        keys = [self.shared_object_key]
        if self.weights_key is not None:
            keys.append(self.weights_key)
        return tuple(dict.fromkeys([*keys, *(entry.storage_key for entry in self.entries)]))

    @property
    def weight_bytes(self) -> int:
        """Bytes of named weights, each key counted once (a flat blob's are in its data)."""
        return sum({e.storage_key: e.storage_nbytes for e in self.entries}.values())


def parse_payload(processed: memoryview, *, method_name: str, where: str) -> DelegatePayload:
    """Return what a payload says; ``where`` names the delegate in errors.

    Raises DelegateInvalidCompatibilityError for a generation that is not known here, and
    InvalidProgramError, with all violations, for one that is damaged.
    """
    if processed.nbytes == 0:
        prefix = f"{method_name}_" if method_name else ""
        return DelegatePayload(
            Generation.LEGACY, f"{prefix}so_blob", f"{prefix}weights_blob", entries=()
        )
    head = bytes(processed[: len(MAGIC)])
    if head == MAGIC:
        return _Cursor(processed, where).named()
    if head.startswith(MAGIC_FAMILY):
        raise DelegateInvalidCompatibilityError(
            f"{where}: the payload begins with {head!r}; pteron reads {MAGIC!r}",
            hint="a newer pteron may read it, or export again with a matching ExecuTorch",
        )
    return _keyed(processed, where)


def _keyed(processed: memoryview, where: str) -> DelegatePayload:
    if processed.nbytes > MAX_KEY_PAYLOAD_BYTES:
        raise InvalidProgramError(
            f"{where}: a payload of {processed.nbytes:,} bytes is no pair of keys "
            f"(at most {MAX_KEY_PAYLOAD_BYTES:,} bytes) and does not begin with {MAGIC!r}"
        )
    try:
        code, newline, weights = bytes(processed).decode("utf-8").partition("\n")
    except UnicodeDecodeError as error:
        raise InvalidProgramError(
            f"{where}: the payload is neither {MAGIC!r} nor keys in UTF-8 "
            f"(byte {error.start} is {processed[error.start]:#04x})"
        ) from error
    weights = weights.removesuffix("\n")
    if not newline or not code or not weights or "\n" in weights:
        raise InvalidProgramError(
            f"{where}: the payload has to name two keys, one a line; "
            f"found {bytes(processed[:80])!r}"
        )
    return DelegatePayload(Generation.KEYED, code, weights, entries=())


class _Cursor:
    """Reads a structured payload; a field that does not fit raises with its offset."""

    def __init__(self, data: memoryview, where: str) -> None:
        self.data = data
        self.where = where
        self.offset = len(MAGIC)

    def fail(self, text: str) -> InvalidProgramError:
        return InvalidProgramError(f"{self.where}: payload at offset {self.offset:#x}: {text}")

    def take(self, nbytes: int, what: str) -> memoryview:
        left = self.data.nbytes - self.offset
        if nbytes > left:
            raise self.fail(f"{what} takes {nbytes:,} bytes, {left:,} are left")
        self.offset += nbytes
        return self.data[self.offset - nbytes : self.offset]

    def unpack(self, layout: struct.Struct, what: str) -> tuple[Any, ...]:
        return layout.unpack(self.take(layout.size, what))

    def string(self, what: str) -> str:
        (length,) = self.unpack(_U32, f"the length of {what}")
        if length > limits.MAX_NAME_BYTES:
            raise self.fail(f"{what} of {length:,} bytes (at most {limits.MAX_NAME_BYTES:,})")
        raw = bytes(self.take(length, what))
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not UTF-8: {raw[:40]!r}") from error
        if "\0" in text:
            raise self.fail(f"{what} holds a NUL: {raw[:40]!r}")
        return text

    def named(self) -> DelegatePayload:
        key = self.string("the shared object's key")
        (count,) = self.unpack(_U32, "the number of weights")
        if count > limits.MAX_NAMED_DATA:
            raise self.fail(f"{count:,} weights (at most {limits.MAX_NAMED_DATA:,})")
        violations: list[str] = []
        entries = tuple(self.entry(index, violations) for index in range(count))
        if self.offset != self.data.nbytes:
            violations.append(
                f"{self.data.nbytes - self.offset:,} bytes follow the last weight "
                f"at offset {self.offset:#x}"
            )
        violations.extend(_duplicates(entries))
        if not key:
            violations.append("the shared object's key is empty")
        if violations:
            raise InvalidProgramError(
                f"{self.where}: the payload is damaged: {violations[0]}"
                + (f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""),
                violations=tuple(
                    f"{self.where}: {v}" for v in violations[: limits.MAX_VIOLATIONS_REPORTED]
                ),
            )
        return DelegatePayload(Generation.NAMED, key, None, entries)

    def entry(self, index: int, violations: list[str]) -> WeightEntry:
        fqn = self.string(f"weight {index}'s name")
        key = self.string(f"weight {index}'s key")
        nbytes, dtype, device, offset, rank = self.unpack(_ENTRY, f"weight {index}'s layout")
        if rank > limits.MAX_TENSOR_RANK:
            raise self.fail(
                f"weight {index} ({fqn!r}) has {rank:,} dimensions "
                f"(at most {limits.MAX_TENSOR_RANK})"
            )
        shape = struct.Struct(f"<{rank}q")
        sizes = self.unpack(shape, f"weight {index}'s sizes")
        strides = self.unpack(shape, f"weight {index}'s strides")
        problems = tuple(_layout_problems(nbytes, dtype, device, offset, sizes, strides))
        if problems:
            violations.extend(f"weight {index} ({fqn!r}): {problem}" for problem in problems)
            return WeightEntry(fqn, key, 0, ScalarType.BYTE, DeviceType.CPU, 0, (0,), (1,))
        entry = WeightEntry(
            fqn, key, nbytes, ScalarType(dtype), DeviceType(device), offset, sizes, strides
        )
        if entry.required_bytes > nbytes:
            violations.append(
                f"weight {index} ({fqn!r}): sizes {list(sizes)}, strides {list(strides)} and "
                f"offset {offset} reach {entry.required_bytes:,} bytes into a storage of "
                f"{nbytes:,}"
            )
        return entry


def _layout_problems(
    nbytes: int, dtype: int, device: int, offset: int, sizes: tuple[int, ...], strides: Any
) -> Iterator[str]:
    if nbytes > limits.MAX_TENSOR_BYTES:
        yield f"a storage of {nbytes:,} bytes (at most {limits.MAX_TENSOR_BYTES:,})"
    if dtype not in ScalarType.__members__.values():
        yield f"scalar type {dtype} is unknown"
    if device not in DeviceType.__members__.values():
        yield f"device type {device} is neither the host's (0) nor CUDA's (1)"
    if offset < 0:
        yield f"a negative storage offset, {offset}"
    if any(size < 0 for size in sizes) or any(stride < 0 for stride in strides):
        yield f"negative sizes {list(sizes)} or strides {list(strides)}"
    elif prod(sizes) > limits.MAX_TENSOR_BYTES:
        yield f"sizes {list(sizes)} are more than {limits.MAX_TENSOR_BYTES:,} elements"


def _duplicates(entries: tuple[WeightEntry, ...]) -> Iterator[str]:
    seen: set[str] = set()
    nbytes: dict[str, WeightEntry] = {}
    for entry in entries:
        if entry.fqn in seen:
            yield f"weight {entry.fqn!r} is named twice"
        seen.add(entry.fqn)
        first = nbytes.setdefault(entry.storage_key, entry)
        if (first.storage_nbytes, first.device_type) != (entry.storage_nbytes, entry.device_type):
            yield f"key {entry.storage_key!r} is given two sizes or two places"


def check_data(payload: DelegatePayload, named_data: NamedDataMap, *, where: str) -> None:
    """Check that every named weight is there with the bytes that the payload promises.

    Raises NotFoundError with the missing keys, or InvalidExternalDataError with the keys whose
    size is wrong. Whether a flat blob of weights is needed and how large it has to be, only the
    shared object knows.
    """
    missing = [key for key in payload.keys if key not in named_data and key != payload.weights_key]
    if missing:
        shown = ", ".join(repr(key) for key in missing[:8]) + (", ..." if len(missing) > 8 else "")
        raise NotFoundError(
            f"{where}: {len(missing)} of {len(payload.keys)} keys are neither in the program nor "
            f"in its data files: {shown}",
            hint="give the .ptd file that was exported with the program as data_path",
        )
    wrong = []
    for entry in payload.entries:
        data = named_data.get(entry.storage_key)
        if data.data.nbytes != entry.storage_nbytes:
            wrong.append(
                f"{entry.storage_key!r} has {data.data.nbytes:,} bytes in {data.origin}, "
                f"the program expects {entry.storage_nbytes:,}"
            )
    if wrong:
        raise InvalidExternalDataError(
            f"{where}: {wrong[0]}" + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""),
            hint="the data file belongs to another export of the model",
        )


def find_problems(
    processed: memoryview, named_data: NamedDataMap | None, *, method_name: str, where: str
) -> tuple[str, ...]:
    """Return what is wrong with a delegate, one line each, for ``verify``.

    Without ``named_data`` only the payload itself is read.
    """
    try:
        payload = parse_payload(processed, method_name=method_name, where=where)
        if named_data is not None:
            check_data(payload, named_data, where=where)
    except InvalidProgramError as error:
        return error.violations
    except PteronError as error:
        return (error.message,)
    return ()
