"""Where the bytes of a file come from, and who keeps them alive."""

from __future__ import annotations

import errno
import io
import mmap
import os
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, TypeAlias, cast

from pteron.errors import (
    AccessFailedError,
    InvalidArgumentError,
    InvalidStateError,
    InvalidTypeError,
    ProgramIsADirectoryError,
    ProgramNotFoundError,
    ProgramPermissionError,
)

SourceData: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO
"""What a caller may hand over as a file."""


MAX_COPIED_BYTES = 4 << 20
"""A file up to this size is read when it is opened; a larger one is mapped. Reading 4 MiB takes
about a millisecond, and what is read no longer depends on the file."""


class _Stamp:
    """Owns a descriptor of a mapped file, and knows its size and time when it was opened."""

    __slots__ = ("_descriptor", "_known")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = os.dup(descriptor)
        self._known = self._now()

    def _now(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    def has_changed(self) -> bool:
        return self._now() != self._known

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):
            os.close(self._descriptor)


class ByteSource:
    """Owns the bytes of one file: a read-only map, or bytes in memory.

    Slices of ``view`` keep the bytes alive by themselves: after :meth:`close` a map is given back
    to the system as soon as the last slice of it is gone.
    """

    __slots__ = ("_map", "_stamp", "_view", "name", "path", "size")

    def __init__(
        self,
        data: bytes | memoryview | mmap.mmap,
        *,
        name: str,
        path: Path | None = None,
        stamp: _Stamp | None = None,
    ) -> None:
        self._stamp = stamp
        self._map = data if isinstance(data, mmap.mmap) else None
        self._view: memoryview | None = memoryview(data).toreadonly()
        self.name = name
        self.path = path
        """Where the file can be opened again; None for bytes and file objects."""
        self.size = self._view.nbytes

    @property
    def view(self) -> memoryview:
        """All bytes, read-only, one byte an item."""
        if self._view is None:
            raise InvalidStateError(f"{self.name} is closed")
        return self._view

    @property
    def is_mapped(self) -> bool:
        """Whether the bytes are a map of a file and cost no private memory."""
        return self._map is not None

    def check_unchanged(self) -> None:
        """Raise InvalidStateError if a mapped file was written to since it was opened.

        Replacing the file under its name, or deleting it, does not touch what is mapped.
        """
        if self._stamp is not None and self._stamp.has_changed():
            raise InvalidStateError(
                f"{self.name} was written to while it was open: what is in memory is no longer "
                "what was checked",
                hint="write a new file and rename it over the old one, or open the program with "
                'copy="file"',
            )

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._view is None

    def close(self) -> None:
        """Let go of the bytes; slices that are still in use stay valid."""
        if self._view is None:
            return
        self._view = None
        if self._map is not None:
            with suppress(BufferError):  # a slice is in use: the map goes when the slice goes
                self._map.close()
            self._map = None

    def __enter__(self) -> ByteSource:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.size} bytes"
        return f"ByteSource({self.name!r}, {state})"


def open_source(data: SourceData, *, copy: bool = False) -> ByteSource:
    """Open a path, bytes, a bytearray, a memoryview, or a binary file object.

    A file larger than :data:`MAX_COPIED_BYTES` is mapped, a smaller one read; ``copy`` reads it
    whatever its size. Memory that its owner could change (bytearray, a writable memoryview) is
    copied. A file object that stands at the start of a regular file is taken as that file; any
    other is read to its end.
    """
    if isinstance(data, bytes):
        return ByteSource(data, name="<bytes>")
    if isinstance(data, bytearray):
        return ByteSource(bytes(data), name="<bytearray>")
    if isinstance(data, memoryview):
        return ByteSource(_own_view(data), name="<memoryview>")
    if isinstance(data, (str, os.PathLike)):
        return _open_path(data, copy=copy)
    if hasattr(data, "read"):
        return _open_file_object(data, copy=copy)
    raise InvalidTypeError(
        "expected a path, bytes, bytearray, memoryview or a file object opened for binary reading, "
        f"got {'None' if data is None else type(data).__name__}"
    )


def _own_view(data: memoryview) -> bytes | memoryview:
    if not data.readonly or not data.c_contiguous:
        return data.tobytes()
    return data if data.format == "B" and data.ndim == 1 else data.cast("B")


def _open_path(path: str | os.PathLike[str], *, copy: bool) -> ByteSource:
    name = os.fspath(path)
    if not isinstance(name, str):
        raise InvalidTypeError(f"a path is a str, got {type(name).__name__} {name!r}")
    try:
        # Not Path.open: one system call, and O_NONBLOCK keeps a named pipe from hanging us.
        descriptor = os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _BINARY)
    except (OSError, ValueError) as error:
        raise _access_error(name, error) from None
    try:
        source = _map_descriptor(descriptor, name, copy=copy)
        source.path = Path(name).absolute()
        return source
    finally:
        os.close(descriptor)


_BINARY = getattr(os, "O_BINARY", 0)


def _map_descriptor(descriptor: int, name: str, *, copy: bool) -> ByteSource:
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise _access_error(name, IsADirectoryError(errno.EISDIR, ""))
    if not stat.S_ISREG(status.st_mode):
        raise AccessFailedError(
            f"{name} is not a regular file",
            hint="read it first and hand over the bytes",
            filename=name,
        )
    if status.st_size == 0:  # an empty file cannot be mapped
        return ByteSource(b"", name=name)
    if copy or status.st_size <= MAX_COPIED_BYTES:
        return ByteSource(_read(descriptor, status.st_size, name), name=name)
    try:
        # A private map: should anybody write to a constant after all, the process gets pages of
        # its own. A read-only map would end it.
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
        return ByteSource(mapped, name=name, stamp=_Stamp(descriptor))
    except (OSError, ValueError) as error:
        raise AccessFailedError(
            f"{name} ({status.st_size} bytes) cannot be mapped: {error}"
        ) from None


def _read(descriptor: int, size: int, name: str) -> memoryview:
    """Return the bytes of a file, in memory of their own."""
    data = bytearray(size)
    view, at = memoryview(data), 0
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        while at < size:
            piece = os.read(descriptor, min(size - at, 1 << 24))
            if not piece:
                raise AccessFailedError(
                    f"{name} became shorter while it was read: {at} of {size} bytes", filename=name
                )
            view[at : at + len(piece)] = piece
            at += len(piece)
    except OSError as error:
        raise _access_error(name, error) from None
    return view


def _access_error(name: str, error: OSError | ValueError) -> AccessFailedError:
    code = error.errno if isinstance(error, OSError) else None
    kind, reason, hint = AccessFailedError, "cannot be read", None
    if isinstance(error, FileNotFoundError):
        kind, reason, hint = ProgramNotFoundError, "does not exist", _nearby(name)
    elif isinstance(error, IsADirectoryError) or Path(name).is_dir():  # Windows denies permission
        kind, reason, hint = ProgramIsADirectoryError, "is a folder; expected a file", _inside(name)
    elif isinstance(error, PermissionError):
        kind, reason = ProgramPermissionError, "cannot be read: permission denied"
    else:
        reason = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    shown = name if name.strip() and kind is not AccessFailedError else repr(name)
    return kind(f"{shown} {reason}", hint=hint, filename=name, errno=code)


def _nearby(name: str) -> str | None:
    """Say what may be wrong with a missing path: its nearest folder, or a file of a like name."""
    if not name.strip():
        return "the path is empty"
    if "://" in name[:12]:
        return "it is a web address; download the file first"
    if name == "-":
        return "programs are not read from stdin; give a file"
    first, *others = Path(name).absolute().parents
    if first.is_dir():
        return _alike(Path(name), first)
    known = next((folder for folder in others if folder.is_dir()), None)
    return f"of its folders, {known} exists" if known is not None else None


def _alike(path: Path, folder: Path) -> str | None:
    """Name the file in a folder whose name is most like one that does not exist."""
    from difflib import get_close_matches  # only for an error

    for suffix in (".pte", ".ptd"):
        if path.name and path.with_name(path.name + suffix).is_file():
            return f"did you mean {path.with_name(path.name + suffix)}?"
    with suppress(OSError):
        near = get_close_matches(path.name, [one.name for one in folder.iterdir()], n=1, cutoff=0.8)
        if near:
            return f"did you mean {path.with_name(near[0])}?"
    return None


def _inside(name: str) -> str | None:
    with suppress(OSError):
        found = sorted(entry.name for entry in Path(name).glob("*.pte"))
        if found:
            more = ", ..." if len(found) > 3 else ""
            return f"it holds {', '.join(found[:3])}{more}"
    return None


def _open_file_object(file: BinaryIO, *, copy: bool) -> ByteSource:
    name = getattr(file, "name", None)
    name = name if isinstance(name, str) else f"<{type(file).__name__}>"
    raw = getattr(file, "raw", file)
    if isinstance(raw, io.FileIO):  # not a decompressing reader, which has a fileno() too
        with suppress(OSError, ValueError, AccessFailedError):
            if file.tell() == 0:
                return _map_descriptor(raw.fileno(), name, copy=copy)
    try:
        data = cast(object, file.read())
    except (OSError, ValueError) as error:
        raise AccessFailedError(f"{name} cannot be read: {error}") from error
    if isinstance(data, (bytes, bytearray)):
        return ByteSource(bytes(data), name=name)
    if isinstance(data, str):
        raise InvalidTypeError(f"{name} is open as text", hint="open it with mode 'rb'")
    raise InvalidArgumentError(f"{name} returned {type(data).__name__} from read(), not bytes")
