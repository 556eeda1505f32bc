"""The executorch wheel beside pteron, in one process, on what the wheel runs rightly."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pteron import Runtime
from support import plain_programs, state_programs
from support.outputs import assert_same
from support.programs import Kept

wheel = pytest.importorskip("executorch.runtime", reason="the executorch wheel is not installed")


@pytest.fixture(autouse=True)
def _silence() -> None:
    """Let executorch print what it likes."""


ONES = torch.ones(4)
Calls = list[tuple[str, tuple[Any, ...]]]
PROGRAMS: dict[str, tuple[Callable[[], Kept], Calls]] = {
    "doubled": (plain_programs.doubled, [("forward", (torch.randn(2, 3),))] * 2),
    "both": (plain_programs.both, [("forward", (torch.randn(2, 3), torch.randn(2, 3)))]),
    "numbers": (plain_programs.numbers, [("forward", (torch.ones(3), 0.5, 4, True, None, None))]),
    "constants": (plain_programs.numbers, [("size", ()), ("scale", ()), ("shape", ())]),
    "lookup": (plain_programs.lookup, [("forward", (torch.tensor([3, 1, 2]),))]),
    "aliases": (plain_programs.twice, [("forward", (torch.randn(3),))]),
    "empty": (plain_programs.doubled_nothing, [("forward", (torch.ones(0, 3),))]),
    "dynamic": (
        plain_programs.doubled_upto,
        [("forward", (torch.randn(shape),)) for shape in ((4, 3), (2, 2), (3, 3))],
    ),
    "counter": (state_programs.counter, [("forward", (ONES,))] * 3),
    "counter from seven": (state_programs.counter_from_seven, [("forward", (ONES,))] * 3),
    "shared state": (
        state_programs.shared_by_plan,
        [("forward", (ONES,)), ("get", ()), ("set_state", (ONES * 4,)), ("forward", (ONES,))],
    ),
    "cache": (
        state_programs.prefill_decode,
        [
            ("prefill", (torch.randn(4, 2), torch.arange(4))),
            ("decode", (torch.randn(1, 2), torch.tensor([4]))),
        ],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_both_runtimes_agree(name: str) -> None:
    make, calls = PROGRAMS[name]
    data = make().bytes()  # which the wheel does not keep alive
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = wheel.Runtime.get().load_program(data)
        ours = Runtime.get().load_program(data)
        loaded = {method: theirs.load_method(method) for method in dict(calls)}
    for method, inputs in calls:
        expected = loaded[method].execute(inputs)
        outputs = ours.load_method(method).execute(inputs)
        assert_same(outputs, expected)


def test_case_79_two_runtimes_in_one_process_have_registries_of_their_own() -> None:
    theirs = set(wheel.Runtime.get().operator_registry.operator_names)
    ours = Runtime.get().operator_registry
    assert len(theirs) > 200
    assert [name for name in sorted(theirs) if ours.find(name) is None] == []
    ours.register_kernel("nobody::op.out", lambda a: a)
    try:
        assert set(wheel.Runtime.get().operator_registry.operator_names) == theirs
    finally:
        ours.unregister("nobody::op.out")
