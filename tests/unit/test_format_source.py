"""What may be a file, and who keeps its bytes alive (DESIGN, I5)."""

from __future__ import annotations

import gc
import gzip
import io
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pteron.errors import (
    AccessFailedError,
    InvalidStateError,
    InvalidTypeError,
    ProgramIsADirectoryError,
    ProgramNotFoundError,
    ProgramPermissionError,
    PteronError,
)
from pteron.format import source as source_module
from pteron.format.source import open_source

DATA = bytes(range(256)) * 40


@pytest.fixture
def mapped_from_the_first_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Map every file: small ones are read otherwise."""
    monkeypatch.setattr(source_module, "MAX_COPIED_BYTES", 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "ünïcode.pte"
    file.write_bytes(DATA)
    return file


KINDS: dict[str, Callable[[Path], Any]] = {
    "str": str,
    "Path": lambda path: path,
    "bytes": lambda _: DATA,
    "bytearray": lambda _: bytearray(DATA),
    "memoryview": lambda _: memoryview(DATA),
    "writable memoryview": lambda _: memoryview(bytearray(DATA)),
    "typed memoryview": lambda _: memoryview(DATA).cast("I"),
    "strided memoryview": lambda _: memoryview(bytes(b for byte in DATA for b in (byte, 0)))[::2],
    "BytesIO": lambda _: io.BytesIO(DATA),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_bytes(kind: str, path: Path) -> None:
    source = open_source(KINDS[kind](path))
    assert bytes(source.view) == DATA
    assert source.size == len(DATA)
    assert source.view.readonly
    assert source.view.format == "B"
    assert not source.is_mapped  # it is small


@pytest.mark.usefixtures("mapped_from_the_first_byte")
def test_an_open_file_is_mapped(path: Path) -> None:
    with path.open("rb") as file:
        source = open_source(file)
    assert source.is_mapped
    assert source.name == str(path)
    assert bytes(source.view) == DATA


def test_a_file_that_was_read_from_gives_the_rest(path: Path) -> None:
    with path.open("rb") as file:
        file.read(100)
        source = open_source(file)
    assert bytes(source.view) == DATA[100:]


def test_a_decompressing_file_is_read_and_not_mapped(tmp_path: Path) -> None:
    packed = tmp_path / "m.pte.gz"
    packed.write_bytes(gzip.compress(DATA))
    with gzip.open(packed) as file:
        assert bytes(open_source(file).view) == DATA  # type: ignore[arg-type]


def test_a_change_of_the_callers_memory_is_not_seen() -> None:
    for make in (bytearray, lambda data: memoryview(bytearray(data))):
        memory = make(DATA)
        source = open_source(memory)
        memory[0] = 77
        assert source.view[0] == DATA[0]


def test_slices_outlive_the_source(path: Path) -> None:
    source = open_source(path)
    part = source.view[256:512]
    source.close()
    source.close()
    assert source.closed
    del source
    gc.collect()
    assert bytes(part) == DATA[256:512]


@pytest.mark.usefixtures("mapped_from_the_first_byte")
def test_close_gives_the_map_back(path: Path) -> None:
    with open_source(path) as source:
        mapped = weakref.ref(source.view.obj)
        assert mapped() is not None
    gc.collect()
    assert mapped() is None
    with pytest.raises(InvalidStateError, match=r"ünïcode\.pte is closed"):
        _ = source.view


def test_an_empty_file_is_a_source(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    source = open_source(tmp_path / "empty")
    assert source.size == 0
    assert bytes(source.view) == b""


def test_a_missing_file_is_named_with_the_folder_that_exists(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "such" / "m.pte"
    with pytest.raises(ProgramNotFoundError) as caught:
        open_source(missing)
    assert isinstance(caught.value, FileNotFoundError)
    assert caught.value.code == 0x22
    assert str(caught.value) == f"{missing} does not exist\nhint: of its folders, {tmp_path} exists"


def test_a_folder_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "a.pte").touch()
    with pytest.raises(ProgramIsADirectoryError, match="is a folder") as caught:
        open_source(tmp_path)
    assert isinstance(caught.value, IsADirectoryError)
    assert caught.value.hint == "it holds a.pte"


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_an_unreadable_file_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)  # a test may run as root, who may read everything
    with pytest.raises(ProgramPermissionError, match=r"ünïcode\.pte cannot be read: permission"):
        open_source(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(AccessFailedError, match="not a regular file"):
        open_source(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (3, InvalidTypeError, "expected a path, .* got int"),
        (None, InvalidTypeError, "expected a path, .* got None"),
        (io.StringIO("text"), InvalidTypeError, "is open as text"),
        ("a\0b", AccessFailedError, "cannot be read: embedded null byte"),
    ],
)
def test_what_is_no_file_is_refused(data: Any, error: type[PteronError], text: str) -> None:
    with pytest.raises(error, match=text):
        open_source(data)


# -- files that change -----------------------------------------------------------------------------


def test_a_small_file_and_a_copied_one_do_not_depend_on_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = open_source(path)
    monkeypatch.setattr(source_module, "MAX_COPIED_BYTES", 0)
    copied = open_source(path, copy=True)
    path.write_bytes(b"short")
    for source in (small, copied):
        source.check_unchanged()
        assert bytes(source.view) == DATA


@pytest.mark.usefixtures("mapped_from_the_first_byte")
@pytest.mark.parametrize("what", ["truncated", "rewritten"])
def test_a_mapped_file_that_was_written_to_is_refused(path: Path, what: str) -> None:
    source = open_source(path)
    source.check_unchanged()
    with path.open("r+b") as file:
        file.truncate(5) if what == "truncated" else file.write(b"other")
        os.utime(path, ns=(0, 1))
    with pytest.raises(InvalidStateError, match="was written to while it was open") as caught:
        source.check_unchanged()
    assert 'copy="file"' in str(caught.value)


@pytest.mark.usefixtures("mapped_from_the_first_byte")
def test_a_mapped_file_may_be_replaced_and_deleted(path: Path, tmp_path: Path) -> None:
    source = open_source(path)
    other = tmp_path / "other"
    other.write_bytes(b"other")
    other.replace(path)
    path.unlink()
    source.check_unchanged()
    assert bytes(source.view) == DATA
