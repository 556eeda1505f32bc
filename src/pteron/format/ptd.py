"""Read a ``.ptd`` data file: header, flatbuffer (``flat_tensor.fbs``), segments.

offset 0   root offset of the flatbuffer
       4   "FT01"
       8   header: "FH01", its length (40), offset and size of the flatbuffer, where the
           segments begin, how many bytes they have
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from pteron import limits
from pteron.errors import InvalidExternalDataError, PteronError
from pteron.format.flatbuffer import (
    INT8,
    INT32,
    OFFSET,
    UINT8,
    UINT32,
    UINT64,
    Flatbuffer,
    TableSpec,
    fields,
)
from pteron.format.foreign import HEAD_BYTES, recognise
from pteron.format.schema import (
    DataSegment,
    FlatTensor,
    FlatTensorNamedData,
    ScalarType,
    TensorLayout,
)
from pteron.format.source import ByteSource

IDENTIFIER: Final = b"FT01"
HEADER_MAGIC: Final = b"FH01"
HEADER_OFFSET: Final = 8
HEADER_BYTES: Final = 40

_FLAT_TENSOR = TableSpec("FlatTensor", fields(version=UINT32, segments=OFFSET, named_data=OFFSET))
_SEGMENT = TableSpec("DataSegment", fields(offset=UINT64, size=UINT64))
_NAMED_DATA = TableSpec("NamedData", fields(key=OFFSET, segment_index=UINT32, tensor_layout=OFFSET))
_LAYOUT = TableSpec("TensorLayout", fields(scalar_type=INT8, sizes=OFFSET, dim_order=OFFSET))


@dataclass(frozen=True, slots=True)
class FlatTensorHeader:
    """The header of a data file."""

    length: int
    flatbuffer_offset: int
    flatbuffer_size: int
    segment_base_offset: int
    segment_data_size: int


@dataclass(frozen=True, slots=True, eq=False)
class PtdFile:
    """A data file. Views ``source``, which outlives it."""

    source: ByteSource
    header: FlatTensorHeader
    flat_tensor: FlatTensor

    def segment(self, index: int) -> memoryview:
        """Return the bytes of one segment, as a view."""
        problem = self.segment_problem(index)
        if problem is not None:
            raise InvalidExternalDataError(f"{self.source.name}: {problem}")
        segment = self.flat_tensor.segments[index]
        begin = self.header.segment_base_offset + segment.offset
        return self.source.view[begin : begin + segment.size]

    def segment_problem(self, index: int) -> str | None:
        """Say why a segment cannot be read, or return None."""
        segments = self.flat_tensor.segments
        if not 0 <= index < len(segments):
            return f"segment {index} does not exist; the file has {len(segments)}"
        segment = segments[index]
        if segment.offset + segment.size > self.header.segment_data_size:
            return (
                f"segment {index} (offset {segment.offset} + {segment.size} bytes) goes past the "
                f"end of the segments, which have {self.header.segment_data_size} bytes from "
                f"offset {self.header.segment_base_offset:#x}"
            )
        return None


def read_ptd(source: ByteSource) -> PtdFile:
    """Read the tables of a data file; the segments are not touched."""
    view = source.view
    header = _read_header(source.name, view)
    buffer = Flatbuffer(
        view[: header.flatbuffer_offset + header.flatbuffer_size],
        error=InvalidExternalDataError,
        what="data file's flatbuffer",
    )
    try:
        flat_tensor = _read_flat_tensor(buffer)
    except PteronError as error:
        error.add_context(f"in {source.name}")
        raise
    return PtdFile(source, header, flat_tensor)


def _read_header(name: str, view: memoryview) -> FlatTensorHeader:
    def fail(message: str) -> NoReturn:
        raise InvalidExternalDataError(f"{name}: {message}")

    cut = "fetch or write it again"
    head = bytes(view[: HEADER_OFFSET + HEADER_BYTES])
    if head[4:8] != IDENTIFIER:
        if not head:
            raise InvalidExternalDataError(f"{name} is empty", hint="fetch or write it again")
        foreign = recognise(bytes(view[:HEAD_BYTES]), view.nbytes)
        if foreign is not None:
            usable = foreign.is_program or foreign.is_wrapped
            raise InvalidExternalDataError(
                f"{name} is not a data file (.ptd); it is {foreign.what}",
                hint=foreign.hint if usable else "give the .ptd file that belongs to the program",
            )
        fail(f"not a data file: bytes 4 to 8 are {head[4:8]!r}, expected {IDENTIFIER!r}")
    if head[8:12] != HEADER_MAGIC:
        fail(f"the header is missing: bytes 8 to 12 are {head[8:12]!r}, expected {HEADER_MAGIC!r}")
    if len(head) < HEADER_OFFSET + HEADER_BYTES:
        raise InvalidExternalDataError(
            f"{name} is cut short: it ends after {view.nbytes:,} bytes, inside its header", hint=cut
        )
    header = FlatTensorHeader(*struct.unpack_from("<IQQQQ", head, HEADER_OFFSET + 4))
    if header.length < HEADER_BYTES:
        fail(f"the header's length is {header.length}; allowed are {HEADER_BYTES} and more")
    for what, begin, size in (
        ("the flatbuffer", header.flatbuffer_offset, header.flatbuffer_size),
        ("the segments", header.segment_base_offset, header.segment_data_size),
    ):
        if begin + size > view.nbytes:
            found = "cut short" if begin + size <= limits.MAX_FILE_BYTES else "damaged"
            raise InvalidExternalDataError(
                f"{name} is {found}: its header announces {begin + size:,} bytes up to the end of "
                f"{what}; the file has {view.nbytes:,} bytes",
                hint=cut,
            )
    return header


def _read_flat_tensor(buffer: Flatbuffer) -> FlatTensor:
    pos = buffer.root()
    version, segments, segments_at, named, named_at = buffer.decoder(_FLAT_TENSOR)(pos)
    decode_segment = buffer.decoder(_SEGMENT)
    segment_positions = buffer.tables(
        segments and pos + segments_at + segments, "the segments", limits.MAX_SEGMENTS
    )
    named_positions = buffer.tables(
        named and pos + named_at + named, "named_data", limits.MAX_NAMED_DATA
    )
    read = _NamedDataReader(buffer)
    return FlatTensor(
        version=version,
        segments=tuple(DataSegment(*decode_segment(at)) for at in segment_positions),
        named_data=tuple(read(number, at) for number, at in enumerate(named_positions)),
    )


class _NamedDataReader:
    """Decodes the NamedData tables of one buffer."""

    def __init__(self, buffer: Flatbuffer) -> None:
        self._buffer = buffer
        self._decode = buffer.decoder(_NAMED_DATA)
        self._decode_layout = buffer.decoder(_LAYOUT)

    def __call__(self, number: int, pos: int) -> FlatTensorNamedData:
        try:
            return self._read(*self._decode(pos), pos=pos)
        except PteronError as error:
            error.add_context(f"in entry {number} of named_data")
            raise

    def _read(
        self, key: int, key_at: int, segment: int, layout: int, layout_at: int, *, pos: int
    ) -> FlatTensorNamedData:
        return FlatTensorNamedData(
            self._buffer.name(key and pos + key_at + key, "a key"),
            segment,
            self._layout(pos + layout_at + layout) if layout else None,
        )

    def _layout(self, pos: int) -> TensorLayout:
        number, sizes, sizes_at, order, order_at = self._decode_layout(pos)
        scalar_type: Any = ScalarType._value2member_map_.get(number)
        if scalar_type is None:
            self._buffer.fail(f"element type {number} is not known", pos)
        scalars = self._buffer.scalars
        return TensorLayout(
            scalar_type,
            scalars(sizes and pos + sizes_at + sizes, INT32, "sizes"),
            scalars(order and pos + order_at + order, UINT8, "a dim_order"),
        )
