"""Runs one program in pteron and in the executorch wheel, and compares what they return."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
import torch

import pteron

needs_wheel = pytest.mark.skipif(
    find_spec("executorch") is None, reason="the executorch wheel is not installed"
)


@cache
def wheel() -> Any:
    """Return the wheel's runtime."""
    from executorch.runtime import Runtime

    return Runtime.get()


def run_here(program: bytes, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return pteron's outputs."""
    with pteron.Runtime.get().load_program(program) as loaded:
        return [out.clone() for out in loaded.load_method("forward").execute(list(inputs))]


def run_there(program: bytes, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the wheel's outputs."""
    method = wheel().load_program(program).load_method("forward")
    return [out.clone() for out in method.execute([tensor.clone() for tensor in inputs])]


def compare(
    here: Sequence[torch.Tensor],
    there: Sequence[torch.Tensor],
    *,
    rtol: float = 1e-4,
    atol: float | None = None,
    step: float | None = None,
) -> None:
    """Assert that outputs agree: within a step of the output's scale if ``step`` is given.

    Without ``atol``, it is ``rtol`` of the largest element: an element near zero is the difference
    of larger ones.
    """
    assert len(here) == len(there)
    for ours, theirs in zip(here, there, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        if step is not None:
            worst = (ours.double() - theirs.double()).abs().max().item() if ours.numel() else 0.0
            assert worst <= step * 1.0001, f"{worst / step:.2f} steps apart"
            continue
        largest = theirs.double().abs().nan_to_num(0, 0, 0).max().item() if ours.numel() else 0.0
        room = rtol * largest if atol is None else atol
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=max(room, 1e-7), equal_nan=True)


def agree(
    program: bytes,
    inputs: Sequence[torch.Tensor],
    *,
    rtol: float = 1e-4,
    atol: float | None = None,
    step: float | None = None,
) -> list[torch.Tensor]:
    """Assert that pteron and the wheel agree on one program, and return pteron's outputs."""
    here = run_here(program, inputs)
    compare(here, run_there(program, inputs), rtol=rtol, atol=atol, step=step)
    return here
