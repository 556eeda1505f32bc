"""Shapes that change from call to call: bounded, in any order, and outputs that nothing plans."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

from pteron import Method, Runtime
from pteron.errors import InvalidArgumentError, NotSupportedError
from support import plain_programs as programs
from support.outputs import assert_same
from support.programs import Files, Kept, export, kept


def loaded(kept: Kept) -> Method:
    return Runtime.get().load_program(kept.pte).load_method()


class Mixed(nn.Module):
    """Convolution, matrix product, concatenation, mean and a view, on any batch and width."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11)
            self.conv = nn.Conv1d(2, 3, 3, padding=1)
            self.layer = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = self.layer(self.conv(x).transpose(1, 2))
        z = torch.cat([y, y * 2], 1)
        return z.mean(-1), z.flatten(1), y.sum((0, 1))


class FromSize(nn.Module):
    """Makes numbers and a tensor out of the shape of its input."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        rows = x.shape[0]
        return torch.arange(rows) * rows + x.sum(1).long(), rows * 2 + 1


class Chosen(nn.Module):
    """The shape of the result depends on the values."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = torch.nonzero(x > 0)
        return found, found.sum(0)


@kept
def mixed() -> Files:
    dims = {0: torch.export.Dim("batch", min=1, max=4), 2: torch.export.Dim("width", min=2, max=9)}
    return export(Mixed(), (torch.randn(3, 2, 5),), dynamic_shapes=(dims,))


@kept
def mixed_unplanned() -> Files:
    dims = {0: torch.export.Dim("batch", min=1, max=4), 2: torch.export.Dim("width", min=2, max=9)}
    return export(
        Mixed(),
        (torch.randn(3, 2, 5),),
        dynamic_shapes=(dims,),
        memory_planning_pass=programs.unplanned(),
    )


@kept
def from_size() -> Files:
    rows = torch.export.Dim("rows", min=1, max=8)
    return export(FromSize(), (torch.ones(3, 2),), dynamic_shapes=({0: rows},))


@kept
def chosen() -> Files:
    return export(Chosen(), (torch.ones(3, 2),))


@pytest.mark.parametrize("make", [mixed, mixed_unplanned])
def test_every_size_in_any_order(make: Callable[[], Kept]) -> None:
    """Issue 22411: largest first, smallest first, and back."""
    method, eager = loaded(make()), Mixed()
    sizes = [(4, 9), (1, 2), (2, 5), (4, 9), (3, 2), (1, 9), (1, 2)]
    for batch, width in (*sizes, *reversed(sizes)):
        x = torch.randn(batch, 2, width)
        with torch.no_grad():
            torch.testing.assert_close(tuple(method.execute([x])), eager(x))


def test_outputs_of_different_sizes_are_independent() -> None:
    method = loaded(programs.doubled_upto())
    small, large = torch.rand(2, 2), torch.rand(4, 3)
    (one,) = method.execute([small])
    (two,) = method.execute([large])
    torch.testing.assert_close((one, two), (small * 2, large * 2))


@pytest.mark.parametrize("shape", [(2, 6), (5, 2), (3, 4), (6,), (1, 2, 3), (4, 4), (12, 1)])
def test_each_dimension_is_held_to_its_bound(shape: tuple[int, ...]) -> None:
    """Issue 20546: too many rows are refused even where the elements would fit."""
    method = loaded(programs.doubled_upto())
    wanted = "input 0 takes float32[<=4, <=3]"
    with pytest.raises(NotSupportedError, match=re.escape(wanted)) as caught:
        method.execute([torch.ones(shape)])
    assert f"got float32{list(shape)}" in str(caught.value)
    torch.testing.assert_close(method.execute([torch.ones(4, 3)]), [torch.full((4, 3), 2.0)])


def test_sizes_below_the_bound_run() -> None:
    """A file holds no lower bound (issue 20066)."""
    method = loaded(programs.doubled_upto())
    for shape in ((1, 1), (0, 3), (2, 0), (4, 3), (0, 0)):
        torch.testing.assert_close(method.execute([torch.ones(shape)]), [torch.ones(shape) * 2])


@pytest.mark.parametrize("borrow", [False, True])
def test_shapes_without_any_bound(borrow: bool) -> None:
    """Nothing is planned: memory comes and goes with each call."""
    method = loaded(programs.doubled_without_bounds())
    kept_outputs = []
    for shape in ((4, 3), (70, 9), (1, 2), (0, 5), (1, 100)):
        x = torch.rand(shape)
        (output,) = method.execute([x], borrow_outputs=borrow)
        torch.testing.assert_close(output, x * 2)
        kept_outputs.append((output.clone(), output))
        assert method.values[2].untyped_storage().nbytes() == 0  # freed by the program
    if not borrow:
        for before, after in kept_outputs:
            torch.testing.assert_close(before, after)


def test_numbers_that_come_from_a_shape() -> None:
    method = loaded(from_size())
    for rows in (8, 1, 3, 8, 2):
        x = torch.rand(rows, 2) * 9
        assert_same(method.execute([x]), FromSize()(x))


def test_shapes_that_come_from_values() -> None:
    method = loaded(chosen())
    for x in (torch.ones(3, 2), -torch.ones(3, 2), torch.eye(3)[:, :2]):
        assert_same(method.execute([x]), Chosen()(x))


class Grouped(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x.view(-1, 4) + 1, x.shape[0] * 2


@kept
def grouped() -> Files:
    quarter = torch.export.Dim("quarter", min=1, max=4)
    return export(Grouped(), (torch.ones(8),), dynamic_shapes=({0: 4 * quarter},))


def test_a_size_that_does_not_divide_is_refused_and_the_method_runs_on() -> None:
    """Issue 9130: six elements are not rows of four."""
    method = loaded(grouped())
    with pytest.raises(InvalidArgumentError, match="method 'forward', instruction"):
        method.execute([torch.ones(6)])
    for count in (16, 4):
        assert_same(method.execute([torch.ones(count)]), Grouped()(torch.ones(count)))
