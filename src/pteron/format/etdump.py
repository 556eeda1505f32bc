"""Read and write ETDump files (``etdump_schema_flatcc.fbs``): what a traced run did, and when.

A file is a size-prefixed flatbuffer with the identifier "ED00". Tensor data are not in it: a
tensor names an offset in a separate debug file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pteron import limits
from pteron.errors import InvalidArgumentError, PteronError
from pteron.format.flatbuffer import (
    BOOL,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    OFFSET,
    UINT32,
    UINT64,
    Field,
    Flatbuffer,
    TableSpec,
    fields,
)
from pteron.format.flatbuffer_writer import Scalars, Table, write_flatbuffer
from pteron.format.source import ByteSource

IDENTIFIER: Final = b"ED00"
VERSION: Final = 0
UNSET: Final = -1
"""An instruction, chain or delegate identifier that is not given."""
NO_DATA: Final = -1
"""The offset of a tensor whose bytes are not in the debug file."""

TENSOR, TENSOR_LIST, INT, BOOL_, FLOAT, DOUBLE = 5, 6, 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class TracedTensor:
    """A tensor as an instruction left it; its bytes are at ``offset`` of the debug file."""

    scalar_type: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class ProfileEvent:
    """Something that took time, in nanoseconds."""

    name: str
    start: int
    end: int
    chain: int = UNSET
    instruction: int = 0
    delegate_debug_id: int | str | None = None
    delegate_metadata: bytes = b""


@dataclass(frozen=True, slots=True)
class DebugEvent:
    """A value that an instruction wrote, or that the method returned (``output``)."""

    value: TracedTensor | tuple[TracedTensor, ...] | bool | int | float
    chain: int = 0
    instruction: int = 0
    output: bool = False
    delegate_debug_id: int | str | None = None


@dataclass(slots=True)
class RunData:
    """One block of events: loading ("Default") or one execution ("Execute")."""

    name: str
    events: list[ProfileEvent | DebugEvent] = field(default_factory=list)
    bundled_input: int = UNSET


@dataclass(frozen=True, slots=True)
class ETDump:
    """All blocks of a file."""

    runs: Sequence[RunData]
    version: int = VERSION


# -- writing -----------------------------------------------------------------------------------


def write_etdump(dump: ETDump) -> bytes:
    """Return the bytes of a file."""
    runs = [_run(run) for run in dump.runs]
    root = Table([(0, UINT32, dump.version), (1, OFFSET, runs)])
    return write_flatbuffer(root, IDENTIFIER, size_prefixed=True)


def _run(run: RunData) -> Table:
    events = [
        Table([(0, OFFSET, _profile_event(event))])
        if isinstance(event, ProfileEvent)
        else Table([(2, OFFSET, _debug_event(event))])
        for event in run.events
    ]
    return Table([(0, OFFSET, run.name), (1, INT32, run.bundled_input), (3, OFFSET, events)])


def _delegate_id(identifier: int | str | None, first: int) -> list[tuple[int, str, Any]]:
    if identifier is None:
        return []
    if isinstance(identifier, str):
        return [(first + 1, OFFSET, identifier)]
    return [(first, INT32, identifier)]


def _profile_event(event: ProfileEvent) -> Table:
    rows: list[tuple[int, str, Any]] = [
        (0, OFFSET, event.name),
        (1, INT32, event.chain),
        (2, INT32, event.instruction),
        *_delegate_id(event.delegate_debug_id, 3),
        (6, UINT64, event.start),
        (7, UINT64, event.end),
    ]
    if event.delegate_metadata:
        rows.append((5, OFFSET, event.delegate_metadata))
    return Table(rows)


def _debug_event(event: DebugEvent) -> Table:
    rows: list[tuple[int, str, Any]] = [
        (0, UINT64, event.chain & (1 << 64) - 1),
        (1, INT32, event.instruction),
        (2, OFFSET, _value(event)),
        *_delegate_id(event.delegate_debug_id, 3),
    ]
    return Table(rows)


def _value(event: DebugEvent) -> Table:
    rows: list[tuple[int, str, Any]]
    value = event.value
    if isinstance(value, TracedTensor):
        rows = [(0, INT8, TENSOR), (1, OFFSET, _tensor(value))]
    elif isinstance(value, tuple):
        items = [_tensor(item) for item in value]
        rows = [(0, INT8, TENSOR_LIST), (2, OFFSET, Table([(0, OFFSET, items)]))]
    elif isinstance(value, bool):
        rows = [(0, INT8, BOOL_), (6, OFFSET, Table([(0, BOOL, value)]))]
    elif isinstance(value, int):
        rows = [(0, INT8, INT), (3, OFFSET, Table([(0, INT64, value)]))]
    else:
        rows = [(0, INT8, DOUBLE), (5, OFFSET, Table([(0, FLOAT64, value)]))]
    if event.output:
        rows.append((7, OFFSET, Table([(0, BOOL, True)])))
    return Table(rows)


def _tensor(tensor: TracedTensor) -> Table:
    return Table(
        [
            (0, INT8, tensor.scalar_type),
            (1, OFFSET, Scalars("q", tensor.sizes)),
            (2, OFFSET, Scalars("q", tensor.strides)),
            (3, INT64, tensor.offset),
        ]
    )


# -- reading -----------------------------------------------------------------------------------

_DUMP = TableSpec("ETDump", fields(version=UINT32, run_data=OFFSET))
_RUN = TableSpec(
    "RunData",
    (
        Field(0, OFFSET),
        Field(1, INT32, UNSET),
        Field(2, OFFSET),
        Field(3, OFFSET),
    ),
)
_EVENT = TableSpec("Event", fields(profile=OFFSET, allocation=OFFSET, debug=OFFSET))
_PROFILE = TableSpec(
    "ProfileEvent",
    (
        Field(0, OFFSET),
        Field(1, INT32),
        Field(2, INT32, UNSET),
        Field(3, INT32, UNSET),
        Field(4, OFFSET),
        Field(5, OFFSET),
        Field(6, UINT64),
        Field(7, UINT64),
    ),
)
_DEBUG = TableSpec(
    "DebugEvent",
    (
        Field(0, UINT64),
        Field(1, INT32, UNSET),
        Field(2, OFFSET),
        Field(3, INT32, UNSET),
        Field(4, OFFSET),
    ),
)
_VALUE = TableSpec(
    "Value",
    fields(
        val=INT8,
        tensor=OFFSET,
        tensor_list=OFFSET,
        int_value=OFFSET,
        float_value=OFFSET,
        double_value=OFFSET,
        bool_value=OFFSET,
        output=OFFSET,
    ),
)
_TENSOR = TableSpec("Tensor", fields(scalar_type=INT8, sizes=OFFSET, strides=OFFSET, offset=INT64))
_LIST = TableSpec("TensorList", fields(tensors=OFFSET))
_INT = TableSpec("Int", fields(val=INT64))
_BOOL = TableSpec("Bool", fields(val=BOOL))
_FLOAT = TableSpec("Float", fields(val=FLOAT32))
_DOUBLE = TableSpec("Double", fields(val=FLOAT64))
_SCALARS = {INT: _INT, BOOL_: _BOOL, FLOAT: _FLOAT, DOUBLE: _DOUBLE}


def read_etdump(source: ByteSource) -> ETDump:
    """Read a file, with or without the size in front; everything is checked against its end.

    Allocation events are passed over.
    """
    view = source.view
    start = 4 if bytes(view[8:12]) == IDENTIFIER else 0
    if bytes(view[start + 4 : start + 8]) != IDENTIFIER:
        raise InvalidArgumentError(
            f"{source.name}: not an ETDump: bytes 8 to 12 are {bytes(view[8:12])!r}, expected "
            f"{IDENTIFIER!r}"
        )
    buffer = Flatbuffer(view[start:], error=InvalidArgumentError, what="ETDump", start=start)
    try:
        return _Reader(buffer).dump()
    except PteronError as error:
        error.add_context(f"in {source.name}")
        raise


class _Reader:
    """Views a buffer and decodes its tables."""

    def __init__(self, buffer: Flatbuffer) -> None:
        self._buffer = buffer
        specs = (_DUMP, _RUN, _EVENT, _PROFILE, _DEBUG, _VALUE, _TENSOR, _LIST)
        self._decode = {spec.name: buffer.decoder(spec) for spec in (*specs, *_SCALARS.values())}

    def _offsets(self, spec: TableSpec, position: int) -> Iterator[Any]:
        """Yield a table's fields: numbers as they are, offsets as absolute positions or 0."""
        row = iter(self._decode[spec.name](position))
        for one in spec.fields:
            value = next(row)
            if one.kind == OFFSET:
                at = next(row)
                yield position + at + value if value else 0
            else:
                yield value

    def dump(self) -> ETDump:
        version, runs = self._offsets(_DUMP, self._buffer.root())
        positions = self._buffer.tables(runs, "the runs", limits.MAX_TABLES)
        return ETDump([self._run(position) for position in positions], version)

    def _run(self, position: int) -> RunData:
        name, bundled, _, events = self._offsets(_RUN, position)
        run = RunData(self._buffer.string(name), bundled_input=bundled)
        for event in self._buffer.tables(events, "the events", limits.MAX_TABLES):
            profile, _, debug = self._offsets(_EVENT, event)
            if profile:
                run.events.append(self._profile(profile))
            elif debug:
                run.events.append(self._debug(debug))
        return run

    def _identifier(self, number: int, text: int) -> int | str | None:
        if text:
            return self._buffer.string(text)
        return None if number == UNSET else number

    def _profile(self, position: int) -> ProfileEvent:
        name, chain, instruction, number, text, metadata, start, end = self._offsets(
            _PROFILE, position
        )
        return ProfileEvent(
            self._buffer.string(name),
            start,
            end,
            chain,
            instruction,
            self._identifier(number, text),
            bytes(self._buffer.data(metadata, "delegate metadata")),
        )

    def _debug(self, position: int) -> DebugEvent:
        chain, instruction, value, number, text = self._offsets(_DEBUG, position)
        if not value:
            self._buffer.fail("a debug event without a value", position)
        kind, tensor, tensors, *scalars, output = self._offsets(_VALUE, value)
        found: Any
        if kind == TENSOR and tensor:
            found = self._tensor(tensor)
        elif kind == TENSOR_LIST and tensors:
            (items,) = self._offsets(_LIST, tensors)
            found = tuple(
                self._tensor(item)
                for item in self._buffer.tables(items, "a tensor list", limits.MAX_TABLES)
            )
        elif kind in _SCALARS:
            at = scalars[{INT: 0, FLOAT: 1, DOUBLE: 2, BOOL_: 3}[kind]]
            (found,) = self._offsets(_SCALARS[kind], at) if at else (0,)
        else:
            self._buffer.fail(f"a debug event with a value of kind {kind}", value)
        return DebugEvent(
            found,
            UNSET if chain == (1 << 64) - 1 else chain,
            instruction,
            bool(output),
            self._identifier(number, text),
        )

    def _tensor(self, position: int) -> TracedTensor:
        scalar_type, sizes, strides, offset = self._offsets(_TENSOR, position)
        return TracedTensor(
            scalar_type,
            self._buffer.scalars(sizes, INT64, "a tensor's sizes"),
            self._buffer.scalars(strides, INT64, "a tensor's strides"),
            offset,
        )
