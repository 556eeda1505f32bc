"""Jumps and moves: ``cond``, ``map`` and ``scan`` give what eager torch gives (DESIGN, S4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pteron import Method, Runtime, limits
from pteron.errors import OutOfResourcesError
from pteron.format.schema import MoveCall, Tensor
from support.programs import Files, Kept, edited, export, kept

X = torch.tensor([[1.0, -2.0, 3.0]])


class CondsInARow(nn.Module):
    """Issue 21490: the plan of the second overlaps what the first gave."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p = x.sum() > 0
        a = torch.cond(p, lambda v: v + 1, lambda v: v - 1, (x,))
        b = torch.cond(p, lambda v: v * 10, lambda v: v * 20, (a,))
        c = torch.cond(b.sum() > 100, lambda v, w: v - w, lambda v, w: v + w, (a, b))
        return a * 1, b * 1, a + b, c * 1


class NestedCond(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def inner(v: torch.Tensor) -> torch.Tensor:
            return torch.cond(v.max() > 2, lambda w: w * 3, lambda w: w * 5, (v,))

        def outer(v: torch.Tensor) -> torch.Tensor:
            return inner(v + 1) - inner(v - 1)

        a = torch.cond(x.sum() > 0, outer, lambda v: v.exp(), (x,))
        b = torch.cond(a.sum() > 0, lambda v: v * 2, outer, (a,))
        return a + 1, b + a


class CondOfTwo(nn.Module):
    """Two results, one of them a constant of the branch, and a weight in each."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def left(v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.one(v), torch.full((2,), 4.0) + v.sum()

        def right(v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.two(v) * 2, torch.zeros(2) - v.sum()

        y, z = torch.cond(x.sum() > 0, left, right, (x,))
        return y + x, z


class MapRows(nn.Module):
    def forward(self, rows: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops.map import map as torch_map

        return torch_map(lambda row, by: (row * by).sin() + row, rows, scale) * 2


class ScanRows(nn.Module):
    def forward(self, steps: torch.Tensor, start: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from torch._higher_order_ops.scan import scan

        def step(carry: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            carry = carry * 0.5 + x
            return carry, carry * carry

        last, seen = scan(step, start, steps)
        return last, seen, seen.sum(0) + last


class CondWithState(nn.Module):
    """A branch reads what the method keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x)
        return torch.cond(x.sum() > 0, lambda v, s: v + s, lambda v, s: v - s, (x, self.seen * 1))


class CondOfAny(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = torch.cond(x.sum() > 0, lambda v: v.cumsum(0), lambda v: v.exp(), (x,))
        return torch.cond(a.sum() > 1, lambda v: v + 1, lambda v: v - 1, (a,)) + a


@kept
def conds_in_a_row() -> Files:
    return export(CondsInARow(), (X,))


@kept
def nested_cond() -> Files:
    return export(NestedCond(), (X,))


@kept
def cond_of_two() -> Files:
    return export(CondOfTwo(), (X,))


@kept
def map_rows() -> Files:
    return export(MapRows(), (torch.ones(5, 3), torch.ones(3)))


@kept
def scan_rows() -> Files:
    return export(ScanRows(), (torch.ones(5, 3), torch.ones(3)))


@kept
def cond_with_state() -> Files:
    return export(CondWithState(), (X,))


@kept
def cond_of_any() -> Files:
    rows = torch.export.Dim("rows", min=1, max=6)
    return export(CondOfAny(), (torch.ones(3, 2),), dynamic_shapes=({0: rows},))


def endless(program: Any) -> None:
    """Make a jump go to itself for ever."""
    from executorch.exir import schema

    plan = program.execution_plan[0]
    plan.values.append(schema.EValue(schema.Bool(False)))
    for number, instruction in enumerate(plan.chains[0].instructions):
        jump = instruction.instr_args
        if isinstance(jump, schema.JumpFalseCall):
            jump.cond_value_index = len(plan.values) - 1
            jump.destination_instruction = number


@kept
def endless_map() -> Files:
    return edited(export(MapRows(), (torch.ones(5, 3), torch.ones(3))), endless)


def loaded(kept: Kept) -> Method:
    return Runtime.get().load_program(kept.pte).load_method()


def positive_and_negative() -> list[torch.Tensor]:
    x = torch.rand(1, 3) * 4
    return [x, -x, x * 0.1, x - x.sum(), x * 9]


@pytest.mark.parametrize(
    ("make", "model"),
    [(conds_in_a_row, CondsInARow), (nested_cond, NestedCond), (cond_of_two, CondOfTwo)],
)
def test_conds_agree_with_eager(make: Callable[[], Kept], model: type[nn.Module]) -> None:
    method, eager = loaded(make()), model()
    for x in positive_and_negative():
        with torch.no_grad():
            torch.testing.assert_close(tuple(method.execute([x])), eager(x))


def test_the_plan_of_two_conds_does_overlap() -> None:
    """What the test above proves is a copy: all branches leave their result in one place."""
    plan = Runtime.get().load_program(conds_in_a_row().pte)._plan("forward")
    places = set()
    moves = [i for i in plan.instructions if isinstance(i, MoveCall)]
    for move in moves:
        value = plan.values[move.move_from]
        assert isinstance(value, Tensor)
        places.add(value.allocation_info)
    assert len({move.move_to for move in moves}) == 3
    assert len(places) == 1


def test_a_cond_with_state_and_a_cond_of_any_size() -> None:
    method, eager = loaded(cond_with_state()), CondWithState()
    for x in positive_and_negative():
        torch.testing.assert_close(method.execute([x]), [eager(x)])
    method = loaded(cond_of_any())
    for rows in (6, 1, 3, 6, 2):
        for x in (torch.rand(rows, 2), -torch.rand(rows, 2)):
            torch.testing.assert_close(method.execute([x]), [CondOfAny()(x)])


def test_map_and_scan_agree_with_eager() -> None:
    mapped, scanned = loaded(map_rows()), loaded(scan_rows())
    for _ in range(3):
        rows, vector = torch.randn(5, 3), torch.randn(3)
        expected = (rows * vector).sin() + rows
        torch.testing.assert_close(mapped.execute([rows, vector]), [expected * 2])
        carry, seen = vector, []
        for row in rows:
            carry = carry * 0.5 + row
            seen.append(carry * carry)
        stacked = torch.stack(seen)
        torch.testing.assert_close(
            scanned.execute([rows, vector]), [carry, stacked, stacked.sum(0) + carry]
        )


def test_a_loop_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JUMP_BUDGET", 2_000)
    method = loaded(endless_map())
    with pytest.raises(OutOfResourcesError) as caught:
        method.execute([torch.ones(5, 3), torch.ones(3)])
    text = str(caught.value)
    assert "took more than 2,000 jumps and was stopped" in text
    assert "method 'forward', instruction 8 failed:" in text
    assert ">  8: jump to 8 if not" in text
    assert caught.value.code == 0x25
