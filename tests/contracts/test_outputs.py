"""DESIGN, I4: outputs are the caller's own, unless the caller asks to borrow them."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

from pteron import Method, Runtime
from support import plain_programs as programs
from support import state_programs
from support.programs import Kept

X = torch.arange(6.0).view(2, 3)


def loaded(kept: Kept) -> Method:
    return Runtime.get().load_program(kept.pte).load_method()


BOTH_PLANS = pytest.mark.parametrize("make", [programs.doubled, programs.doubled_unplanned])


@BOTH_PLANS
def test_outputs_are_the_callers_own(make: Callable[[], Kept]) -> None:
    method = loaded(make())
    (first,) = method.execute([X])
    (second,) = method.execute([X + 1])
    torch.testing.assert_close((first, second), (X * 2, X * 2 + 2))
    first.zero_()
    torch.testing.assert_close(second, X * 2 + 2)
    torch.testing.assert_close(method.execute([X]), [X * 2])


@BOTH_PLANS
def test_outputs_are_ordinary_tensors(make: Callable[[], Kept]) -> None:
    """Autograd takes them, and they can be changed, resized and saved."""
    (output,) = loaded(make()).execute([X])
    assert type(output) is torch.Tensor
    assert not output.is_inference()
    assert not output.requires_grad
    weight = torch.ones(2, 3, requires_grad=True)
    (output * weight).sum().backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, output)
    assert output.add_(1).resize_(4, 3).shape == (4, 3)


@BOTH_PLANS
def test_borrowed_outputs_are_the_methods_memory(make: Callable[[], Kept]) -> None:
    method = loaded(make())
    (one,) = method.execute([X], borrow_outputs=True)
    torch.testing.assert_close(one, X * 2)
    assert one.data_ptr() == method.values[method._table.plan.outputs[0]].data_ptr()
    (two,) = method.execute([X + 1], borrow_outputs=True)
    assert two.data_ptr() == one.data_ptr()
    torch.testing.assert_close(one, X * 2 + 2)
    assert not one.is_inference()


def test_a_borrowed_output_cannot_outgrow_its_slot() -> None:
    method = loaded(programs.doubled())
    (one,) = method.execute([X], borrow_outputs=True)
    with pytest.raises(RuntimeError, match="not resizable"):
        one.resize_(1000)


@BOTH_PLANS
def test_outputs_can_be_read_again(make: Callable[[], Kept]) -> None:
    method = loaded(make())
    (one,) = method.execute([X])
    (again,) = method.get_outputs()
    torch.testing.assert_close(again, X * 2)
    one.zero_()
    torch.testing.assert_close(again, X * 2)


@pytest.mark.parametrize("make", [programs.twice, programs.twice_unplanned])
def test_outputs_that_alias_in_the_program_do_not_alias(make: Callable[[], Kept]) -> None:
    """Issue 20257: one tensor twice, a view of it, and an input that passes through."""
    x = torch.arange(3.0)
    method = loaded(make())
    outputs = method.execute([x])
    expected = (x + 1, x + 1, x[1:] + 1, x.clone())
    torch.testing.assert_close(tuple(outputs), expected)
    for changed in range(4):
        outputs = method.execute([x])
        outputs[changed].fill_(99)
        for other in range(4):
            if other != changed:
                torch.testing.assert_close(outputs[other], expected[other])
        torch.testing.assert_close(x, torch.arange(3.0))
        torch.testing.assert_close(tuple(method.execute([x])), expected)


@pytest.mark.parametrize("make", [programs.same, programs.same_unplanned])
def test_an_input_that_is_the_output_is_returned_as_a_copy(make: Callable[[], Kept]) -> None:
    """Found on 1.5.1 (F3): without planned inputs and outputs it returned zeros."""
    x = X.clone()
    (output,) = loaded(make()).execute([x])
    torch.testing.assert_close(output, X)
    output.zero_()
    torch.testing.assert_close(x, X)


@BOTH_PLANS
def test_outputs_outlive_their_method(make: Callable[[], Kept]) -> None:
    """Issue 13590."""
    program = Runtime.get().load_program(make().pte)
    method = program.load_method()
    (own,) = method.execute([X])
    (borrowed,) = method.execute([X], borrow_outputs=True)
    program.close()
    del method, program
    gc.collect()
    torch.testing.assert_close(own, X * 2)
    torch.testing.assert_close(borrowed, X * 2)


def test_state_that_is_an_output_is_a_copy() -> None:
    program = Runtime.get().load_program(state_programs.shared_by_plan().pte)
    (state,) = program.load_method("get").execute([])
    state.zero_()
    torch.testing.assert_close(program.load_method("get").execute([]), [torch.full((4,), 3.0)])


def test_a_constant_that_is_an_output_is_a_copy() -> None:
    method = loaded(constant())
    for _ in range(2):
        (output,) = method.execute([])
        torch.testing.assert_close(output, torch.arange(3.0))
        output.fill_(7)


class Constant(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(3.0))

    def forward(self) -> torch.Tensor:
        return self.table


@programs.kept
def constant() -> programs.Files:
    return programs.export(Constant(), ())
