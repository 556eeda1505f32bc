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
from pteron.format.program_tables import read_program
from pteron.format.schema import BackendDelegate, DataLocation, Program
from pteron.format.source import ByteSource

IDENTIFIER: Final = b"ET12"
HEADER_MAGIC: Final = b"eh00"
HEADER_OFFSET: Final = 8
HEADER_MIN_BYTES: Final = 24
HEADER_BYTES: Final = 32

_FOREIGN: Final[tuple[tuple[int, bytes, str], ...]] = (
    (4, b"BP08", "it is a bundled program (.bpte): open it as one"),
    (4, b"FT01", "it is a data file (.ptd): give it as data_path beside its program"),
    (4, b"ED00", "it is an ETDump: open it with pteron.devtools"),
    (4, b"ED01", "it is an ETDump: open it with pteron.devtools"),
    (0, b"PK\x03\x04", "it is a zip archive (.pt, .pt2, .npz): export it with executorch first"),
    (0, b"\x7fELF", "it is a compiled library, not a program"),
    (0, b"version https://git-lfs", "it is a Git LFS pointer: run `git lfs pull`"),
)


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
        fail(f"the file ends after {view.nbytes} bytes, inside its extended header")
    length, program_size, base, data_size = struct.unpack_from("<IQQQ", head.ljust(32, b"\0"), 4)
    if length < HEADER_MIN_BYTES:
        fail(f"the header's length is {length}; allowed are {HEADER_MIN_BYTES} and more")
    if length < HEADER_BYTES:
        data_size = 0
    elif len(head) < HEADER_BYTES:
        fail(f"the file ends after {view.nbytes} bytes, inside its extended header")
    cut = "the file is cut short: fetch or write it again"
    if not HEADER_OFFSET + length <= program_size <= view.nbytes:
        fail(
            f"the flatbuffer is said to have {program_size} bytes; the file has {view.nbytes}, "
            f"the header alone {HEADER_OFFSET + length}",
            cut if program_size > view.nbytes else None,
        )
    if base and not program_size <= base:
        fail(f"segments are said to begin at {base}, inside the flatbuffer of {program_size} bytes")
    if base + data_size > view.nbytes:
        fail(
            f"{base + data_size} bytes are promised (segments from {base}, {data_size} bytes); "
            f"the file has {view.nbytes}",
            cut,
        )
    return ExtendedHeader(length, program_size, base, data_size)


def _check_identifier(name: str, view: memoryview) -> None:
    head = bytes(view[:32])
    if head[4:8] == IDENTIFIER:
        return
    for at, magic, hint in _FOREIGN:
        if head[at:].startswith(magic):
            raise InvalidProgramError(f"{name} is not an ExecuTorch program", hint=hint)
    if len(head) < 8:
        raise InvalidProgramError(
            f"{name} has {len(head)} bytes; a program has at least 8",
            hint="the file is empty or cut short" if len(head) else "the file is empty",
        )
    if head[4:6] == IDENTIFIER[:2]:
        raise InvalidProgramError(
            f"{name} is of version {_shown(head[4:8])}; this reader knows {_shown(IDENTIFIER)}",
            hint="export the model again with executorch 1.0 or newer",
        )
    raise InvalidProgramError(
        f"{name} is not an ExecuTorch program: bytes 4 to 8 are {head[4:8]!r}, not {IDENTIFIER!r}"
    )


def _shown(identifier: bytes) -> str:
    return identifier.decode("ascii", "backslashreplace")
