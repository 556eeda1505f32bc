"""Files of the stand-in's older loader: those that the names stood for when it was called."""

from __future__ import annotations

import io
import mmap
import os
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pteron.compat import bindings
from pteron.compat import portable_lib as lib
from pteron.compat.runtime import Runtime
from pteron.format.source import ByteSource, open_source
from support.portable_fixtures import PORTABLE, stored

DIGITS = Path(__file__).parents[2] / "demo" / "digits.pte"
TWO = PORTABLE / "two_methods" / "program.pte"
EXTERNAL = PORTABLE / "external_weights"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[ByteSource]:
    """Return what the stand-in opens from now on."""
    sources: list[ByteSource] = []

    def opening(file: Any) -> ByteSource:
        sources.append(open_source(file))
        return sources[-1]

    monkeypatch.setattr(bindings, "open_source", opening)
    return sources


def removed(path: Path) -> None:
    path.unlink()


def replaced(path: Path) -> None:
    shutil.copy(TWO, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


@pytest.mark.skipif(os.name == "nt", reason="an open file can be neither removed nor replaced")
@pytest.mark.parametrize("change", [removed, replaced])
def test_a_file_is_the_one_that_was_loaded(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = Path(shutil.copy(DIGITS, tmp_path / "a.pte"))
    module = lib._load_for_executorch(str(path))
    change(path)
    assert module.method_names() == ["forward"]
    sizes = module.method_meta("forward").input_tensor_meta(0).sizes()
    assert len(module.forward([torch.zeros(sizes)])) == 1


def test_a_relative_path_is_that_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(DIGITS, tmp_path / "a.pte")
    monkeypatch.chdir(tmp_path)
    module = lib._load_for_executorch("a.pte")
    monkeypatch.chdir(Path(__file__).parent)
    assert module.method_names() == ["forward"]


@pytest.mark.skipif(os.name == "nt", reason="an open file cannot be removed")
def test_a_data_file_is_the_one_that_was_loaded(tmp_path: Path) -> None:
    data = Path(shutil.copy(EXTERNAL / "weights.ptd", tmp_path))
    module = lib._load_for_executorch(str(EXTERNAL / "program.pte"), str(data))
    data.unlink()
    facts = stored("external_weights")
    inputs, expected = facts.get("calls", facts)["forward"][0]
    torch.testing.assert_close(module.forward(list(inputs)), list(expected), rtol=1e-4, atol=1e-4)


def test_nothing_is_read_before_it_is_asked_for(opened: list[ByteSource]) -> None:
    module = lib._load_for_executorch_from_buffer(b"no program")
    assert [source.closed for source in opened] == [False]
    for _ in range(2):  # the second time as the first
        with pytest.raises(RuntimeError, match="error: 0x23"):
            module.method_names()


def test_a_program_that_is_none_leaves_no_file_open(
    opened: list[ByteSource], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.pte"
    bad.write_bytes(b"no program" * 10)
    with pytest.raises(RuntimeError, match="0x:23"):
        lib._load_program(str(bad))
    with pytest.raises(RuntimeError, match=r"Failed to open .*no\.ptd, error: 0x22"):
        lib._load_for_executorch(str(DIGITS), str(tmp_path / "no.ptd"))
    assert [source.closed for source in opened] == [True, True]


def test_a_module_that_is_dropped_leaves_no_file_open(
    opened: list[ByteSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pteron.format.source.MAX_COPIED_BYTES", 0)
    module = lib._load_for_executorch(str(DIGITS))
    (source,) = opened
    assert isinstance(source._map, mmap.mmap)
    mapped = weakref.ref(source._map)
    opened.clear()
    del module, source
    assert mapped() is None


@pytest.mark.parametrize("given", [None, 3, io.StringIO("x.pte")])
def test_what_is_no_file_is_a_type_error(given: Any) -> None:
    for load in (lib._load_program, lib._load_for_executorch, Runtime.get().load_program):
        with pytest.raises(TypeError):
            load(given)


def test_text_is_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DIGITS.parent)
    with pytest.raises(TypeError, match="has to give bytes, got str"):
        Runtime.get().load_program(io.StringIO("digits.pte"))  # type: ignore[arg-type]
    for load in (
        lib._load_program_from_buffer,
        lib._load_for_executorch_from_buffer,
        lib._load_bundled_program_from_buffer,
    ):
        with pytest.raises(TypeError, match="a buffer is the bytes of a program, got str"):
            load("digits.pte")  # type: ignore[operator]


def test_a_trace_that_cannot_be_written_is_a_runtime_error(tmp_path: Path) -> None:
    module = lib._load_for_executorch(str(DIGITS), enable_etdump=True, debug_buffer_size=64)
    sizes = module.method_meta("forward").input_tensor_meta(0).sizes()
    module.forward([torch.zeros(sizes)])
    nowhere, there = tmp_path / "no" / "run", tmp_path / "run"
    for paths in ((nowhere, there), (there, nowhere)):
        with pytest.raises(RuntimeError, match=r"Failed to open file .*run: ") as caught:
            module.write_etdump_result_to_file(*map(str, paths))
        assert isinstance(caught.value.__cause__, FileNotFoundError)
