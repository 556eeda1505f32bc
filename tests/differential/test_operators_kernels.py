"""Every operator of ExecuTorch's registry: pteron's kernel, on slots, against eager torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pteron.kernels import Style, default_registry
from support.operator_cases import CASES, NUMBERS, VIEWS
from support.operator_check import Slot, difference, expected, full_args, run_kernel, signature
from support.operator_programs import UNDEFINED


def flat(results: list[Any]) -> list[Tensor]:
    """Return results with lists opened."""
    return [t for r in results for t in (r if isinstance(r, list) else [r])]


def slots_like(results: list[Any]) -> tuple[list[Any], list[Slot]]:
    """Return out arguments for these results, and their slots."""
    slots = [Slot(t) for t in flat(results)]
    tensors = iter(slot.tensor for slot in slots)
    return [
        [next(tensors) for _ in r] if isinstance(r, list) else next(tensors) for r in results
    ], slots


def check(name: str, number: int, case: Any, *, dynamic: bool) -> list[str]:
    kernel = default_registry().find(name)
    assert kernel is not None
    state = torch.get_rng_state()
    wanted, inputs_after = expected(name, case)
    args = [a.clone() if isinstance(a, Tensor) else a for a in full_args(name, case)]
    if kernel.style is Style.INPLACE:
        args[0] = (slot := Slot(args[0])).tensor.copy_(args[0])
        outs, slots = [], [slot]
    else:
        outs, slots = slots_like(wanted)
    if dynamic:
        for slot in slots:
            slot.tensor.resize_(0)
    torch.set_rng_state(state)
    run_kernel(kernel, args, outs)
    found = []
    for index, (slot, want) in enumerate(zip(slots, flat(wanted), strict=True)):
        found += slot.problems()
        if not dynamic and slot.tensor.stride() != slot.strides:
            found.append(f"result {index} lies otherwise: {slot.tensor.stride()}")
        if name in UNDEFINED:
            want = slot.tensor if slot.tensor.shape == want.shape else want
        problem = difference(slot.tensor, want, exact=True)
        if problem is not None:
            found.append(f"result {index} {problem}")
    for position in signature(name).written:
        if kernel.style is not Style.INPLACE:
            problem = difference(args[position], inputs_after[position])
            found += [f"input {position} {problem}"] if problem else []
    shown = [tuple(a.shape) if isinstance(a, Tensor) else a for a in case.args]
    return [f"case {number} {shown}: {problem}" for problem in found]


def test_the_cases_cover_the_registry(wheel_operators: frozenset[str]) -> None:
    assert {*CASES, *NUMBERS, *VIEWS} == wheel_operators


@pytest.mark.parametrize("name", CASES)
def test_there_are_at_least_three_cases(name: str) -> None:
    assert len(list(CASES[name]())) >= 3


@pytest.mark.parametrize("name", CASES)
def test_kernel_agrees_with_eager(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    found = []
    for number, case in enumerate(CASES[name]()):
        if name != "aten::copy_" and name != "aten::index_put_":
            found += check(name, number, case, dynamic=True)
        capfd.readouterr()  # the oracle may warn
        found += check(name, number, case, dynamic=False)
    assert not found, "\n".join(found)
