"""Cases of memory plans that overlap, of their sizes, and of outputs that alias."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pteron import Runtime
from support import plain_programs
from support.programs import PROGRAM, Files, edited, export, kept


class TwoConds(nn.Module):
    """The very program of issue 21490."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p = x.sum() > 0
        a = torch.cond(p, lambda v: v + 1, lambda v: v - 1, (x,))
        b = torch.cond(p, lambda v: v * 10, lambda v: v * 20, (a,))
        return a * 1, b * 1, a + b


@kept
def two_conds() -> Files:
    return export(TwoConds(), (torch.ones(3),))


def no_outputs(program: Any) -> None:
    program.execution_plan[0].outputs = []


def only_a_number(program: Any) -> None:
    """Return an int that is no tensor's."""
    from executorch.exir import schema

    plan = program.execution_plan[0]
    plan.values.append(schema.EValue(schema.Int(42)))
    plan.outputs = [len(plan.values) - 1]


@kept
def doubled_for_nothing() -> Files:
    return edited({PROGRAM: plain_programs.doubled().bytes()}, no_outputs)


@kept
def doubled_for_a_number() -> Files:
    return edited({PROGRAM: plain_programs.doubled().bytes()}, only_a_number)


def test_case_38_two_conds_in_a_row() -> None:
    method = Runtime.get().load_program(two_conds().pte).load_method()
    for x in (torch.ones(3), -torch.ones(3), torch.tensor([3.0, -1.0, 0.5])):
        torch.testing.assert_close(tuple(method.execute([x])), TwoConds()(x))
    a, b, _ = method.execute([torch.ones(3)])
    assert (a.tolist(), b.tolist()) == ([2.0] * 3, [20.0] * 3)


def test_case_51_methods_whose_outputs_are_no_tensors() -> None:
    runtime, x = Runtime.get(), torch.ones(2, 3)
    assert runtime.load_program(doubled_for_nothing().pte).load_method().execute([x]) == []
    assert runtime.load_program(doubled_for_a_number().pte).load_method().execute([x]) == [42]


def test_case_52_planned_and_allocated_bytes_are_told() -> None:
    program = Runtime.get().load_program(two_conds().pte)
    (line,) = program.load_method().memory
    planned = program.metadata("forward").memory_planned_buffer_size(0)
    assert (line.planned_bytes, line.allocated_bytes, line.device) == (planned, planned, "cpu")


@pytest.mark.parametrize("make", [plain_programs.twice, plain_programs.twice_unplanned])
def test_case_54_outputs_that_share_memory_in_the_model(make: Any) -> None:
    x = torch.arange(3.0)
    method = Runtime.get().load_program(make().pte).load_method()
    first = method.execute([x])
    first[0].fill_(-1)
    torch.testing.assert_close(first[1:], [x + 1, x[1:] + 1, x])
    method.execute([x * 100])
    torch.testing.assert_close(first[1:], [x + 1, x[1:] + 1, x])


def test_case_f3_identity_without_planned_inputs_and_outputs() -> None:
    x = torch.arange(6.0).view(2, 3)
    method = Runtime.get().load_program(plain_programs.same_unplanned().pte).load_method()
    torch.testing.assert_close(method.execute([x]), [x])
