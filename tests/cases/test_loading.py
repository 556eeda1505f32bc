"""Cases of loading: data files, large files, kinds of path, and who keeps the bytes."""

from __future__ import annotations

import gc
import io
import os
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pteron import Program, PteronError, Runtime
from pteron.errors import (
    AccessFailedError,
    InvalidExternalDataError,
    InvalidProgramError,
    InvalidTypeError,
    NotFoundError,
)
from support import plain_programs
from support.programs import Files, export, kept

X = torch.arange(3.0).view(1, 3)


class Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(12)
            self.layer = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


@kept
def line_outside() -> Files:
    return export(Line(), (X,), external_constants=True)


@kept
def line_inside() -> Files:
    return export(Line(), (X,))


def assert_right(program: Program) -> None:
    torch.testing.assert_close(program.load_method().execute([X]), [Line()(X).detach()])


def opened(source: Any = None, **facts: Any) -> Program:
    return Runtime.get().load_program(source or line_outside().pte, **facts)


# ---- data files ----------------------------------------------------------------------------------


def test_cases_70_and_72_weights_in_a_data_file() -> None:
    (data,) = line_outside().data
    for path in (data, str(data), [data], data.read_bytes()):
        assert_right(opened(data_path=path))


def test_case_70_without_the_data_file_the_missing_key_is_named() -> None:
    program = opened()
    with pytest.raises(NotFoundError, match=r"'layer\.(weight|bias)'"):
        program.load_method()


@pytest.mark.parametrize("kind", ["empty", "truncated", "a program", "noise"])
def test_case_70_a_wrong_data_file_is_refused(kind: str) -> None:
    good = line_outside().data[0].read_bytes()
    data = {
        "empty": b"",
        "truncated": good[: len(good) // 2],
        "a program": line_outside().bytes(),
        "noise": b"\x5a" * 500,
    }[kind]
    with pytest.raises(InvalidExternalDataError):
        opened(data_path=data)


def test_case_70_a_data_file_is_no_program() -> None:
    with pytest.raises(InvalidProgramError, match="it is a data file"):
        opened(line_outside().data[0])


# ---- large files ---------------------------------------------------------------------------------


def far_away(data: bytes, path: Path, distance: int) -> None:
    """Write a program whose segments begin ``distance`` bytes into a file that is mostly a hole."""
    base, size = struct.unpack_from("<QQ", data, 24)  # extended header: segments' base, their size
    header = bytearray(data[:base])
    struct.pack_into("<Q", header, 24, distance)
    with path.open("wb") as file:
        file.write(header)
        file.seek(distance)
        file.write(data[base : base + size])


def test_cases_73_and_74_a_file_of_more_than_two_gigabytes_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "large.pte"
    far_away(line_inside().bytes(), path, 2_200_000_000 // 128 * 128)
    assert path.stat().st_size > 2_147_479_552  # what one read() gives at most
    limits = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (min(65_536, limits[1]), limits[1]))
    try:
        assert_right(opened(path))
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, limits)


# ---- kinds of path -------------------------------------------------------------------------------


def test_case_76_a_path_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    missing = tmp_path / "missing.pte"
    for path, kind in ((missing, FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(kind) as caught:
            opened(path)
        assert isinstance(caught.value, AccessFailedError)
        assert caught.value.code == 0x22
        assert str(path) in str(caught.value)
        with pytest.raises(kind):
            opened(data_path=path)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read every file")
def test_case_76_a_path_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "private.pte"
    path.write_bytes(line_inside().bytes())
    path.chmod(0)
    with pytest.raises(PermissionError, match=r"private\.pte") as caught:
        opened(path)
    assert isinstance(caught.value, AccessFailedError)


def test_case_76_a_name_in_any_script(tmp_path: Path) -> None:
    path = tmp_path / "modèle 模型 🙂.pte"
    path.write_bytes(line_inside().bytes())
    assert_right(opened(path))


SOURCES: dict[str, Callable[[Path], Any]] = {
    "str": str,
    "Path": lambda path: path,
    "bytes": Path.read_bytes,
    "bytearray": lambda path: bytearray(path.read_bytes()),
    "memoryview": lambda path: memoryview(path.read_bytes()),
    "BytesIO": lambda path: io.BytesIO(path.read_bytes()),
    "file": lambda path: path.open("rb"),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_case_77_every_kind_of_source(kind: str) -> None:
    source = SOURCES[kind](line_inside().pte)
    assert_right(opened(source))
    if isinstance(source, io.IOBase):
        source.close()


@pytest.mark.parametrize("source", [5, None, ["x.pte"], io.StringIO("text")])
def test_case_77_what_is_no_source_is_refused(source: Any) -> None:
    with pytest.raises(InvalidTypeError):
        Runtime.get().load_program(source)


# ---- who keeps the bytes -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bytes", "bytearray", "BytesIO", "memoryview"])
def test_cases_49_78_and_f1_the_runtime_keeps_the_bytes(kind: str) -> None:
    source = SOURCES[kind](line_inside().pte)
    method = opened(source).load_method()
    del source
    gc.collect()
    noise = [bytearray(b"\xdd" * 4096) for _ in range(200)]
    torch.testing.assert_close(method.execute([X]), [Line()(X).detach()])
    del noise


def test_case_53_outputs_outlive_method_and_program() -> None:
    program = opened(plain_programs.doubled().pte)
    method = program.load_method()
    (output,) = method.execute([torch.ones(2, 3)])
    program.close()
    del method, program
    gc.collect()
    noise = [torch.full((2, 3), 9.0) for _ in range(100)]
    torch.testing.assert_close(output, torch.full((2, 3), 2.0))
    del noise


def test_errors_of_loading_are_pteron_errors() -> None:
    for source in (b"", b"ET12", b"\0" * 100, line_inside().bytes()[:-10]):
        with pytest.raises(PteronError):
            Runtime.get().load_program(source)
