"""Read a ``.pte`` file: extended header, flatbuffer, segments.

    offset 0   root offset of the flatbuffer
           4   "ET12"
           8   extended header, if there is one: "eh00", its length, the size of the flatbuffer
               with this header, where the segments begin, how many bytes they have
              flatbuffer (``program.fbs``), then the segments

Files of older kinds have no extended header, or one of 24 bytes without the last number; then the
constants are inside the flatbuffer, or the segments reach to the end of the file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NoReturn

from pteron.errors import InvalidProgramError, PteronError
from pteron.format.flatbuffer import Flatbuffer
from pteron.format.foreign import HEAD_BYTES, recognise
from pteron.format.program_tables import read_program
from pteron.format.schema import BackendDelegate, DataLocation, Program
from pteron.format.source import ByteSource
from pteron.limits import MAX_FILE_BYTES

IDENTIFIER: Final = b"ET12"
HEADER_MAGIC: Final = b"eh00"
HEADER_OFFSET: Final = 8
HEADER_MIN_BYTES: Final = 24
HEADER_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class ExtendedHeader:
    """The extended header. ``segment_data_size`` is 0 in the older, 24-byte form."""

    length: int
    program_size: int
    segment_base_offset: int
    segment_data_size: int


@dataclass(frozen=True, slots=True, eq=False)
class PteFile:
    """A program and the file it was read from. Views ``source``, which outlives it.

    ``start`` is the offset of the program in the source: 0, but for a bundled program.
    """

    source: ByteSource
    header: ExtendedHeader | None
    program: Program
    flatbuffer_size: int
    start: int = 0
    size: int = 0

    @property
    def segment_base_offset(self) -> int:
        """Where the segments begin, from the start of the program; 0 if there are none."""
        return self.header.segment_base_offset if self.header is not None else 0

    def segment(self, index: int) -> memoryview:
        """Return the bytes of one segment, as a view."""
        problem = self.segment_problem(index)
        if problem is not None:
            raise InvalidProgramError(f"{self.source.name}: {problem}")
        segment = self.program.segments[index]
        begin = self.start + self.segment_base_offset + segment.offset
        return self.source.view[begin : begin + segment.size]

    def delegate_data(self, delegate: BackendDelegate) -> memoryview:
        """Return a delegate's blob, as a view."""
        reference = delegate.processed
        if reference.location is DataLocation.SEGMENT:
            return self.segment(reference.index)
        return self.program.backend_delegate_data[reference.index]

    def segment_problem(self, index: int) -> str | None:
        """Say why a segment cannot be read, or return None."""
        segments = self.program.segments
        if not 0 <= index < len(segments):
            return f"segment {index} does not exist; the file has {len(segments)}"
        segment = segments[index]
        if segment.size == 0:
            return None
        if self.segment_base_offset == 0:
            return (
                f"segment {index} has {segment.size} bytes, but no extended header says where "
                "segments begin"
            )
        room = self.size - self.segment_base_offset
        if segment.offset + segment.size > room:
            return (
                f"segment {index} (offset {segment.offset} + {segment.size} bytes, from "
                f"{self.start + self.segment_base_offset:#x}) goes past the end of the file, "
                f"which has {room} bytes there"
            )
        return None


def read_pte(source: ByteSource, *, start: int = 0, size: int | None = None) -> PteFile:
    """Read the tables of a program; bytes behind the flatbuffer are not touched.

    ``start`` and ``size`` narrow the file to a program that lies inside another one.
    """
    view = source.view[start:] if size is None else source.view[start : start + size]
    _check_identifier(source.name, view)
    header = read_extended_header(source.name, view)
    flatbuffer_size = header.program_size if header is not None else view.nbytes
    buffer = Flatbuffer(
        view[:flatbuffer_size], error=InvalidProgramError, what="program's flatbuffer", start=start
    )
    try:
        program = read_program(buffer)
    except PteronError as error:
        error.add_context(f"in {source.name}")
        raise
    return PteFile(source, header, program, flatbuffer_size, start, view.nbytes)


def read_extended_header(name: str, view: memoryview) -> ExtendedHeader | None:
    """Read and check the extended header; None if the file has none."""
    head = bytes(view[HEADER_OFFSET : HEADER_OFFSET + HEADER_BYTES])
    if head[:4] != HEADER_MAGIC:
        return None

    def fail(message: str, hint: str | None = None) -> NoReturn:
        raise InvalidProgramError(f"{name}: {message} (extended header, offset 0x8)", hint=hint)

    if len(head) < HEADER_MIN_BYTES:
        fail(f"it is cut short: it ends after {_bytes(view.nbytes)}, inside its header")
    length, program_size, base, data_size = struct.unpack_from("<IQQQ", head.ljust(32, b"\0"), 4)
    if length < HEADER_MIN_BYTES:
        fail(f"the header's length is {length}; allowed are {HEADER_MIN_BYTES} and more")
    if length < HEADER_BYTES:
        data_size = 0
    elif len(head) < HEADER_BYTES:
        fail(f"it is cut short: it ends after {_bytes(view.nbytes)}, inside its header")
    if program_size > view.nbytes:
        _fail_cut_short(name, program_size, "of program", view.nbytes)
    if program_size < HEADER_OFFSET + length:
        fail(
            f"the program has {_bytes(program_size)}, fewer than its header of "
            f"{_bytes(HEADER_OFFSET + length)}"
        )
    if base and not program_size <= base:
        fail(f"segments are said to begin at {base}, inside the flatbuffer of {program_size} bytes")
    if base + data_size > view.nbytes:
        what = f"in all (segments of {_bytes(data_size)} from offset {base:#x})"
        _fail_cut_short(name, base + data_size, what, view.nbytes)
    return ExtendedHeader(length, program_size, base, data_size)


def _fail_cut_short(name: str, announced: int, what: str, size: int) -> NoReturn:
    found = "cut short" if announced <= MAX_FILE_BYTES else "damaged"
    raise InvalidProgramError(
        f"{name} is {found}: its header announces {_bytes(announced)} {what}; the file has "
        f"{_bytes(size)}",
        hint="fetch or write it again",
    )


def _check_identifier(name: str, view: memoryview) -> None:
    head = bytes(view[:HEAD_BYTES])
    if head[4:8] == IDENTIFIER:
        return
    foreign = recognise(head, view.nbytes)
    if foreign is not None:
        raise InvalidProgramError(
            f"{name} is not an ExecuTorch program; it is {foreign.what}", hint=foreign.hint
        )
    if not head:
        raise InvalidProgramError(f"{name} is empty", hint="fetch or write it again")
    if len(head) < 8:
        raise InvalidProgramError(
            f"{name} is cut short: it has {_bytes(len(head))}, and a program has at least 8",
            hint="fetch or write it again",
        )
    if head[4:6] == IDENTIFIER[:2]:
        raise InvalidProgramError(
            f"{name} is of version {_shown(head[4:8])}; this reader knows {_shown(IDENTIFIER)}",
            hint="export the model again with executorch 1.0 or newer",
        )
    raise InvalidProgramError(
        f"{name} is not an ExecuTorch program: bytes 4 to 8 are {head[4:8]!r}, not {IDENTIFIER!r}"
    )


def _bytes(number: int) -> str:
    return f"{number:,} byte{'' if number == 1 else 's'}"


def _shown(identifier: bytes) -> str:
    return identifier.decode("ascii", "backslashreplace")
