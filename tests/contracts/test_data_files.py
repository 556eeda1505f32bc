"""DESIGN, I6: weights in data files, one or several."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pteron import Module, Program, Runtime
from pteron.errors import InvalidExternalDataError, InvalidProgramError, NotFoundError
from support.programs import Files, export, kept

X = torch.arange(3.0).view(1, 3)


class Adapted(nn.Module):
    """A base and an adapter, as two files hold them."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.base, self.adapter = nn.Linear(3, 3), nn.Linear(3, 3)
        with torch.no_grad():
            self.adapter.weight.mul_(scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.adapter(x)


def by_part(node: Any) -> str | None:
    """Name the file of a parameter."""
    return "adapter" if "adapter" in node.name else "base"


@kept
def adapted() -> Files:
    return export(Adapted(), (X,), external_constants=by_part)


@kept
def adapted_twice() -> Files:
    """The same program with another adapter."""
    return export(Adapted(2.0), (X,), external_constants=by_part)


class Wider(Adapted):
    """Weights with the same names in other sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.adapter = nn.Linear(4, 3), nn.Linear(4, 3)


@kept
def wider() -> Files:
    return export(Wider(), (torch.ones(1, 4),), external_constants=by_part)


def files(kept_program: Any) -> dict[str, Path]:
    return {path.stem: path for path in kept_program().data}


def opened(*paths: Any) -> Program:
    return Runtime.get().load_program(adapted().pte, data_path=list(paths))


def test_several_files_are_taken_in_any_order() -> None:
    """Issue 14158: base and adapter."""
    parts = files(adapted)
    assert set(parts) == {"base", "adapter"}
    expected = [Adapted()(X).detach()]
    for paths in ([parts["base"], parts["adapter"]], [parts["adapter"], parts["base"]]):
        torch.testing.assert_close(opened(*paths).load_method().execute([X]), expected)
    paths = (str(parts["base"]), parts["adapter"].read_bytes())
    torch.testing.assert_close(opened(*paths).load_method().execute([X]), expected)


def test_one_file_may_be_swapped_for_another() -> None:
    program = opened(files(adapted)["base"], files(adapted_twice)["adapter"])
    torch.testing.assert_close(program.load_method().execute([X]), [Adapted(2.0)(X).detach()])


def test_a_missing_key_is_named() -> None:
    """Issue 21982: without the file, opening works, and loading names what is missing."""
    for paths, key in (([], "base."), ([files(adapted)["base"]], "adapter.")):
        program = opened(*paths)
        assert program.metadata("forward").num_inputs() == 1
        with pytest.raises(NotFoundError) as caught:
            program.load_method()
        text = str(caught.value)
        assert re.search(rf"'{key}(weight|bias)'", text), text
        assert "while loading method 'forward'" in text
        for path in paths:
            assert path.name in text
        assert caught.value.code == 0x20


def test_a_key_with_different_bytes_in_two_files_is_an_error() -> None:
    parts = (*files(adapted).values(), files(adapted_twice)["adapter"])
    with pytest.raises(InvalidExternalDataError) as caught:
        opened(*parts)
    text = str(caught.value)
    assert "'adapter.weight'" in text
    assert text.count("adapter.ptd") == 2
    assert caught.value.code == 0x24


def test_a_key_with_the_same_bytes_in_two_files_is_none() -> None:
    program = opened(*files(adapted).values(), files(adapted)["base"])
    torch.testing.assert_close(program.load_method().execute([X]), [Adapted()(X).detach()])


def test_weights_of_another_size_are_refused() -> None:
    program = opened(*files(wider).values())
    with pytest.raises(InvalidExternalDataError) as caught:
        program.load_method()
    text = str(caught.value)
    assert "float32 [3, 4]" in text
    assert "the program wants float32 [3, 3]" in text
    assert "hint: give the data file that was exported with this program" in text


@pytest.mark.parametrize("size", [0, 10, 64, -16])
def test_a_truncated_file_is_refused(size: int, tmp_path: Path) -> None:
    base = files(adapted)["base"]
    short = tmp_path / "short.ptd"
    short.write_bytes(base.read_bytes()[:size])
    with pytest.raises(InvalidExternalDataError, match=re.escape("short.ptd")):
        opened(short, files(adapted)["adapter"])


def test_a_program_is_no_data_file_and_the_reverse() -> None:
    with pytest.raises(InvalidExternalDataError, match="it is an ExecuTorch program"):
        opened(adapted().pte)
    with pytest.raises(InvalidProgramError, match="it is a data file"):
        Runtime.get().load_program(files(adapted)["base"])


def test_a_module_takes_data_files_too() -> None:
    module = Module(adapted().pte, list(files(adapted).values()))
    torch.testing.assert_close(module(X), Adapted()(X).detach())
