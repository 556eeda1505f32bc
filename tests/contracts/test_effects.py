"""The table of effects, which needs no torch, covers what kernels state."""

from __future__ import annotations

import pytest

from pteron.format.schema import (
    AllocationDetails,
    Chain,
    EValue,
    ExecutionPlan,
    KernelCall,
    Operator,
    ScalarType,
    Tensor,
    TensorList,
)
from pteron.kernels import default_registry, kernel_from_function
from pteron.kernels.prim import CHECKS, VALUES
from pteron.kernels.registry import Kernel, Style
from pteron.program.effects import Access, access, call_access
from pteron.program.primitives import D2H, ET_COPY_INDEX, ET_VIEW, H2D, PRIMITIVES, argument_count


def call_of(kernel: Kernel) -> tuple[ExecutionPlan, tuple[int, ...]]:
    """Return a plan with one call of a kernel, as the emitter writes it: results repeat outs."""
    values: list[EValue] = []

    def tensor() -> int:
        place = AllocationDetails(1, 64 * len(values))
        values.append(Tensor(ScalarType.FLOAT, (4,), (0,), allocation_info=place))
        return len(values) - 1

    inputs = [tensor() for _ in range(kernel.num_inputs)]
    outs = [tensor() for _ in kernel.out_names]
    returned: list[int] = []
    if kernel.style in (Style.VALUE, Style.VIEW):
        returned = [tensor()]
    elif kernel.returns and outs:
        returned = outs[:1]
        if len(outs) > 1:
            values.append(TensorList(tuple(outs)))
            returned = [len(values) - 1]
    elif kernel.returns:
        returned = [tensor() for _ in range(kernel.returns)]
    args = (*inputs, *outs, *returned)
    base, _, overload = kernel.name.partition(".")
    chain = Chain((), (), (KernelCall(0, args),))
    operators = (Operator(base, overload),)
    plan = ExecutionPlan(
        "forward", None, tuple(values), (), (), (chain,), operators, (), (0, 1 << 20), ()
    )
    return plan, args


def touched(kernel: Kernel) -> tuple[Access, Access]:
    plan, args = call_of(kernel)
    return call_access(plan, args, kernel.effects), access(plan, plan.instructions[0])


def test_the_table_covers_every_kernel() -> None:
    registry = default_registry()
    names = sorted(registry.operator_names)
    assert len(names) > 1000
    wrong = []
    for name in names:
        kernel = registry.find(name)
        assert kernel is not None
        stated, guessed = touched(kernel)
        missed = {*stated.writes, *stated.updates} - {*guessed.writes, *guessed.updates}
        if missed:
            wrong.append(f"{name}: changes {missed}, the table says {guessed}")
        unread = {*stated.reads, *stated.updates} - {*guessed.reads, *guessed.updates}
        if unread - {value for value, _ in guessed.repeats}:
            wrong.append(f"{name}: needs {unread}, the table says {guessed}")
    assert wrong == []


def test_an_operator_that_nobody_knows_may_change_all_that_it_is_given() -> None:
    kernel = kernel_from_function("my::op.out", lambda a, b, *, out: None, outs=["out"])
    stated, guessed = touched(kernel)
    assert stated.updates == guessed.updates == (0, 1)
    assert stated.writes == guessed.writes == (2,)
    assert stated.assumed
    assert guessed.assumed


@pytest.mark.parametrize(
    ("facts", "updates", "assumed"),
    [
        ({}, (0, 1), True),
        ({"mutates": ()}, (), False),
        ({"mutates": (1,)}, (1,), False),
        ({"mutates": 0}, (0,), False),
    ],
)
def test_what_a_kernel_states_counts(
    facts: dict[str, object], updates: tuple[int, ...], assumed: bool
) -> None:
    kernel = kernel_from_function("my::op", lambda a, b: None, **facts)  # type: ignore[arg-type]
    assert kernel.effects.updates == updates
    assert kernel.effects.assumed is assumed
    assert kernel.dense is None
    assert not kernel.pure


def test_the_primitives_have_a_callable_each() -> None:
    assert {*VALUES, *CHECKS, ET_VIEW, ET_COPY_INDEX, H2D, D2H} == set(PRIMITIVES)
    registry = default_registry()
    for name in PRIMITIVES:
        kernel = registry.find(name)
        assert kernel is not None
        assert kernel.num_args == argument_count(name)
