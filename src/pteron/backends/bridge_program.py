"""Write a program that calls one delegate and does nothing else.

Field numbers are those of ExecuTorch's ``schema/program.fbs`` (the order of the fields; a union
takes two). The blob and the named data lie in segments behind the flatbuffer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from pteron.errors import NotSupportedError
from pteron.format.schema import (
    Bool,
    CompileSpec,
    Double,
    EValue,
    Int,
    Null,
    String,
    Tensor,
    TensorShapeDynamism,
)

METHOD: Final = "forward"
_ALIGNMENT: Final = 64
_HEADER: Final = struct.Struct("<4sIQQQ")
_IDENTIFIER: Final = b"ET12"
_SEGMENT: Final = 1
_DELEGATE_CALL: Final = 2
_NULL, _INT, _BOOL, _DOUBLE, _TENSOR, _STRING = range(1, 7)


@dataclass(frozen=True, slots=True)
class DelegateProgram:
    """What the program is made of. ``inputs`` and ``outputs`` are positions in ``args``."""

    backend_id: str
    compile_specs: tuple[CompileSpec, ...]
    processed: memoryview
    named_data: Mapping[str, memoryview]
    args: tuple[EValue, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def write_program(program: DelegateProgram) -> bytes:
    """Return the bytes of a ``.pte`` file with one method, ``forward``."""
    blobs = [program.processed, *program.named_data.values(), memoryview(bytes(_ALIGNMENT))]
    offsets, end = _lay_out([blob.nbytes for blob in blobs])
    segments = list(zip(offsets, (blob.nbytes for blob in blobs), strict=True))
    body = _Writer().finish(program, segments)
    head = len(body) + _HEADER.size
    base = -(-head // _ALIGNMENT) * _ALIGNMENT
    root = struct.unpack_from("<I", body)[0] + _HEADER.size
    pieces: list[bytes | memoryview] = [
        struct.pack("<I", root),
        _IDENTIFIER,
        _HEADER.pack(b"eh00", _HEADER.size, head, base, end),
        memoryview(body)[8:],
        bytes(base - head),
    ]
    at = 0
    for offset, blob in zip(offsets, blobs, strict=True):
        pieces += [bytes(offset - at), blob]
        at = offset + blob.nbytes
    return b"".join(pieces)


def _lay_out(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return aligned offsets for blocks of these sizes, and where the last one ends."""
    offsets: list[int] = []
    at = end = 0
    for size in sizes:
        offsets.append(at)
        end = at + size
        at = -(-end // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


class _Writer:
    """Writes the flatbuffer with the ``flatbuffers`` package, which comes with executorch."""

    def __init__(self) -> None:
        self._builder: Any = import_module("flatbuffers").Builder(1024)

    def finish(self, program: DelegateProgram, segments: Sequence[tuple[int, int]]) -> bytes:
        """Return the flatbuffer of a whole program."""
        plan = self._plan(program)
        named = [
            self._table([(0, "string", key), (1, "Uint32", number)])
            for number, key in enumerate(program.named_data, 1)
        ]
        places = [self._table([(0, "Uint64", at), (1, "Uint64", size)]) for at, size in segments]
        first = self._scalars([0], "Uint64")  # a program without a constant segment is refused
        constants = self._table([(0, "Uint32", len(segments) - 1), (1, "offset", first)])
        root = self._table(
            [
                (1, "offset", self._offsets([plan])),
                (2, "offset", self._offsets([])),
                (3, "offset", self._offsets([])),
                (4, "offset", self._offsets(places)),
                (5, "offset", constants),
                (7, "offset", self._offsets(named)),
            ]
        )
        self._builder.Finish(root, file_identifier=_IDENTIFIER)
        return bytes(self._builder.Output())

    def _plan(self, program: DelegateProgram) -> int:
        planned, size = self._plan_memory(program)
        values = [
            self._value(value, planned.get(position)) for position, value in enumerate(program.args)
        ]
        specs = [
            self._table([(0, "string", spec.key), (1, "bytes", spec.value)])
            for spec in program.compile_specs
        ]
        processed = self._table([(0, "Int8", _SEGMENT), (1, "Uint32", 0)])
        delegate = self._table(
            [
                (0, "string", program.backend_id),
                (1, "offset", processed),
                (2, "offset", self._offsets(specs)),
            ]
        )
        everything = self._scalars(range(len(program.args)), "Int32")
        call = self._table([(0, "Int32", 0), (1, "offset", everything)])
        instruction = self._table([(0, "Uint8", _DELEGATE_CALL), (1, "offset", call)])
        chain = self._table([(2, "offset", self._offsets([instruction]))])
        meta = self._table([(0, "string", ""), (1, "string", "")])
        return self._table(
            [
                (0, "string", METHOD),
                (1, "offset", meta),
                (2, "offset", self._offsets(values)),
                (3, "offset", self._scalars(program.inputs, "Int32")),
                (4, "offset", self._scalars(program.outputs, "Int32")),
                (5, "offset", self._offsets([chain])),
                (6, "offset", self._offsets([])),
                (7, "offset", self._offsets([delegate])),
                (8, "offset", self._scalars([0, size], "Int64")),
            ]
        )

    def _plan_memory(self, program: DelegateProgram) -> tuple[dict[int, int], int]:
        """Give each output a place in one buffer; inputs alone stay where the caller has them."""
        positions = [p for p in program.outputs if isinstance(program.args[p], Tensor)]
        sizes = [max(program.args[p].nbytes, 1) for p in positions]  # type: ignore[union-attr]
        offsets, end = _lay_out(sizes)
        return dict(zip(positions, offsets, strict=True)), end

    def _value(self, value: EValue, place: int | None) -> int:
        if isinstance(value, Tensor):
            kind, table = _TENSOR, self._tensor(value, place)
        elif isinstance(value, Null):
            kind, table = _NULL, self._table([])
        elif isinstance(value, Int):
            kind, table = _INT, self._table([(0, "Int64", value.int_val)])
        elif isinstance(value, Bool):
            kind, table = _BOOL, self._table([(0, "Bool", value.bool_val)])
        elif isinstance(value, Double):
            kind, table = _DOUBLE, self._table([(0, "Float64", value.double_val)])
        elif isinstance(value, String):
            kind, table = _STRING, self._table([(0, "string", value.string_val)])
        else:
            raise NotSupportedError(
                f"a delegate takes a {type(value).__name__}; only tensors, numbers, strings and "
                "None can be handed to executorch"
            )
        return self._table([(0, "Uint8", kind), (1, "offset", table)])

    def _tensor(self, tensor: Tensor, place: int | None) -> int:
        allocation = 0
        if place is not None:
            low, high = place & 0xFFFFFFFF, place >> 32
            allocation = self._table([(0, "Uint32", 1), (1, "Uint32", low), (2, "Uint32", high)])
        dynamic = tensor.shape_dynamism is not TensorShapeDynamism.STATIC
        fields: list[tuple[int, str, Any]] = [
            (0, "Int8", int(tensor.scalar_type)),
            (2, "offset", self._scalars(tensor.sizes, "Int32")),
            (3, "offset", self._scalars(plain_dim_order(tensor), "Uint8")),
            (8, "Int8", int(TensorShapeDynamism.DYNAMIC_BOUND) if dynamic else 0),
        ]
        if allocation:
            fields.append((6, "offset", allocation))
        return self._table(fields)

    # -- flatbuffers ---------------------------------------------------------------------------

    def _table(self, fields: Sequence[tuple[int, str, Any]]) -> int:
        """Write a table of (field number, kind, value)."""
        ready: list[tuple[int, str, Any]] = []
        for number, kind, value in fields:
            if kind == "string":
                kind, value = "offset", self._builder.CreateString(value)
            elif kind == "bytes":
                kind, value = "offset", self._builder.CreateByteVector(bytes(value))
            ready.append((number, kind, value))
        self._builder.StartObject(max((number for number, _, _ in ready), default=-1) + 1)
        for number, kind, value in ready:
            if kind == "offset":
                self._builder.PrependUOffsetTRelativeSlot(number, value, 0)
            else:
                slot: Callable[..., None] = getattr(self._builder, f"Prepend{kind}Slot")
                slot(number, value, 0)
        return int(self._builder.EndObject())

    def _offsets(self, items: Sequence[int]) -> int:
        self._builder.StartVector(4, len(items), 4)
        for item in reversed(items):
            self._builder.PrependUOffsetTRelative(item)
        return int(self._builder.EndVector())

    def _scalars(self, items: Sequence[int], kind: str) -> int:
        width = {"Uint8": 1, "Int32": 4, "Int64": 8, "Uint64": 8}[kind]
        self._builder.StartVector(width, len(items), width)
        prepend: Callable[[int], None] = getattr(self._builder, f"Prepend{kind}")
        for item in reversed(items):
            prepend(item)
        return int(self._builder.EndVector())


def plain_dim_order(tensor: Tensor) -> tuple[int, ...]:
    """Return a tensor's dim order, the usual one where dimensions of size 1 leave a choice.

    executorch's Python runtime looks at strides: it knows contiguous and channels-last tensors.
    """
    usual = tuple(range(len(tensor.sizes)))
    moved = [dim for dim in tensor.dim_order if tensor.sizes[dim] != 1]
    return usual if moved == sorted(moved) else tensor.dim_order
