"""Kernels of one's own, for the process or for one program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from pteron import Runtime, register_kernel
from pteron.errors import InvalidArgumentError, OperatorMissingError
from pteron.kernels import default_registry
from support import device_programs, plain_programs
from support.device_programs import pair
from support.programs import Files, Kept, edited, export, kept


def opened(kept: Kept, **facts: Any) -> Any:
    return Runtime.get().load_program(kept.pte, **facts)


def renamed(name: str) -> Callable[[Any], None]:
    """Return an edit that makes a program call ``name`` instead of ``aten::add.out``."""

    def edit(program: Any) -> None:
        (operator,) = program.execution_plan[0].operators
        operator.name, _, operator.overload = name.partition(".")

    return edit


@kept
def own_operator() -> Files:
    """``my::mix.out(a, b, alpha, *, out)``."""
    return edited(export(device_programs.Sum(), pair()), renamed("my::mix.out"))


@pytest.fixture
def clean() -> Iterator[None]:
    """Forget ``my::mix.out`` after a test."""
    yield
    default_registry().unregister("my::mix.out")


def test_a_kernel_may_return_its_result(clean: None) -> None:
    a, b = pair()
    with pytest.raises(OperatorMissingError, match=r"my::mix\.out"):
        opened(own_operator()).load_method()
    register_kernel("my::mix.out", lambda a, b, alpha: a * 2 - b * alpha)
    torch.testing.assert_close(opened(own_operator()).load_method().execute([a, b]), [a * 2 - b])


def test_a_kernel_may_fill_its_slot(clean: None) -> None:
    @register_kernel("my::mix.out")
    def mix(a: torch.Tensor, b: torch.Tensor, alpha: int, *, out: torch.Tensor) -> None:
        torch.add(a, b, alpha=-alpha, out=out)

    a, b = pair()
    torch.testing.assert_close(opened(own_operator()).load_method().execute([a, b]), [a - b])
    assert mix(a, b, 1, out=torch.empty(4)) is None  # the decorator gives the function back
    assert "my::mix.out" in Runtime.get().operator_registry.operator_names


def test_a_program_may_have_kernels_of_its_own() -> None:
    a, b = pair()
    kernels = {"aten::add.out": lambda a, b, alpha: a * b}
    own = opened(device_programs.host_sum(), kernels=kernels).load_method()
    other = opened(device_programs.host_sum()).load_method()
    torch.testing.assert_close(own.execute([a, b]), [a * b])
    torch.testing.assert_close(other.execute([a, b]), [a + b])


def test_a_result_of_another_shape_is_refused() -> None:
    kernels = {"aten::add.out": lambda a, b, alpha: (a + b)[:2]}
    method = opened(device_programs.host_sum(), kernels=kernels).load_method()
    text = r"the result has shape \(2,\), the program plans \(4,\)"
    with pytest.raises(InvalidArgumentError, match=text):
        method.execute(pair())


@pytest.mark.parametrize(
    ("name", "function", "text"),
    [
        (
            "mix",
            lambda a: a,
            "operator name 'mix' has no namespace; expected one like 'my::op.out'",
        ),
        ("my::mix.out", lambda *args: args, "the kernel for my::mix.out takes \\*args"),
        ("my::mix.out", print, "the kernel for my::mix.out takes \\*args|has no signature"),
    ],
)
def test_a_kernel_that_cannot_be_bound_is_refused(
    name: str, function: Callable[..., Any], text: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        register_kernel(name, function)


def test_a_kernel_with_other_arguments_is_refused_at_load() -> None:
    program = opened(device_programs.host_sum(), kernels={"aten::add.out": lambda a, b: a + b})
    with pytest.raises(Exception, match=r"aten::add.out takes 4 values, the instruction names 5"):
        program.load_method()


def test_the_registry_lists_what_executorch_has() -> None:
    names = Runtime.get().operator_registry.operator_names
    for name in ("aten::add.out", "et_copy::_h2d_copy.out", "executorch_prim::et_view.default"):
        assert name in names


def test_a_kernel_sees_the_values_of_a_call() -> None:
    seen: list[tuple[Any, ...]] = []

    def spy(weight: Any, indices: Any, padding: Any, scale: Any, sparse: Any) -> torch.Tensor:
        seen.append((indices.tolist(), padding, scale, sparse))
        return weight[indices]

    method = opened(plain_programs.lookup(), kernels={"aten::embedding.out": spy}).load_method()
    method.execute([torch.tensor([3, 2, 1])])
    assert seen == [([3, 2, 1], -1, False, False)]
