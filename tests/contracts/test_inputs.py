"""DESIGN, I1 to I3: what a method takes, and how it refuses the rest."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pteron import Method, Runtime
from pteron.errors import (
    InvalidArgumentError,
    InvalidStateError,
    InvalidTypeError,
    NotSupportedError,
    PteronError,
)
from support import plain_programs as programs
from support.programs import Kept


def loaded(kept: Kept, name: str = "forward") -> Method:
    return Runtime.get().load_program(kept.pte).load_method(name)


def base(*shape: int) -> torch.Tensor:
    """Return numbers that all differ, so that a wrong order shows."""
    count = int(np.prod(shape))
    return (torch.arange(count, dtype=torch.float32) + 1).view(shape)


# ---- I1: any strides, read by values -------------------------------------------------------------

STRIDED: dict[str, Callable[[], torch.Tensor]] = {
    "contiguous": lambda: base(2, 3),
    "transposed": lambda: base(3, 2).t(),
    "every second column": lambda: base(2, 6)[:, ::2],
    "second half": lambda: base(4, 3)[2:],
    "expanded": lambda: base(3).expand(2, 3),
    "expanded from one": lambda: torch.tensor(5.0).expand(2, 3),
    "overlapping": lambda: base(4).as_strided((2, 3), (1, 1)),
    "flipped": lambda: base(2, 3).flip(1),
    "lazily negated": lambda: torch._neg_view(base(2, 3)),
    "conjugate's imaginary part": lambda: torch.complex(base(2, 3), base(2, 3)).conj().imag,
    "real part": lambda: torch.complex(base(2, 3), base(2, 3)).real,
    "requires grad": lambda: base(2, 3).requires_grad_(),
    "result with a graph": lambda: base(2, 3).requires_grad_() * 2,
    "parameter": lambda: torch.nn.Parameter(base(2, 3)),
    "of another storage": lambda: base(12)[3:9].view(2, 3),
}


@pytest.mark.parametrize("kind", STRIDED)
@pytest.mark.parametrize("make", [programs.doubled, programs.doubled_unplanned])
def test_any_strided_tensor_is_read_by_its_values(make: Callable[[], Kept], kind: str) -> None:
    given = STRIDED[kind]()
    (output,) = loaded(make()).execute([given])
    assert output.is_contiguous()
    torch.testing.assert_close(output, given.detach().clone() * 2)


@pytest.mark.parametrize("make", [programs.doubled_image, programs.doubled_image_unplanned])
def test_memory_formats_are_read_by_their_values(make: Callable[[], Kept]) -> None:
    x = base(1, 3, 2, 2)
    method = loaded(make())
    for given in (x, x.to(memory_format=torch.channels_last), x.permute(0, 1, 3, 2)):
        torch.testing.assert_close(method.execute([given]), [given * 2], check_stride=False)


@pytest.mark.parametrize("make", [programs.doubled, programs.doubled_unplanned])
def test_a_tensor_made_under_inference_mode_is_taken(make: Callable[[], Kept]) -> None:
    with torch.inference_mode():
        x = base(2, 3)
    torch.testing.assert_close(loaded(make()).execute([x])[0], base(2, 3) * 2)


def test_size_one_dimensions_may_have_any_stride() -> None:
    x = base(12).as_strided((1, 3, 2, 2), (7, 1, 3, 6))
    (output,) = loaded(programs.doubled_image()).execute([x])
    torch.testing.assert_close(output, x * 2, check_stride=False)


def test_no_elements_and_no_dimensions() -> None:
    (empty,) = loaded(programs.doubled_nothing()).execute([torch.ones(0, 3)])
    assert empty.shape == (0, 3)
    (number,) = loaded(programs.doubled_number()).execute([torch.tensor(21.0)])
    assert number.shape == ()
    assert number.item() == 42


ARRAYS: dict[str, Callable[[], Any]] = {
    "plain": lambda: np.arange(6, dtype=np.float32).reshape(2, 3),
    "read-only": lambda: (
        np.frombuffer(np.arange(6, dtype=np.float32)).view(np.float32).reshape(2, 3)
    ),
    "column order": lambda: np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "backwards": lambda: np.arange(6, dtype=np.float32).reshape(2, 3)[::-1, ::-1],
    "broadcast": lambda: np.broadcast_to(np.arange(3, dtype=np.float32), (2, 3)),
}


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("make", [programs.doubled, programs.doubled_unplanned])
def test_numpy_arrays_are_taken(make: Callable[[], Kept], kind: str) -> None:
    array = ARRAYS[kind]()
    (output,) = loaded(make()).execute([array])
    np.testing.assert_array_equal(output.numpy(), array * 2)


def test_a_numpy_number_is_a_tensor_without_dimensions() -> None:
    (output,) = loaded(programs.doubled_number()).execute([np.float32(4)])
    assert output.item() == 8


def test_one_tensor_stands_for_a_list_of_it() -> None:
    torch.testing.assert_close(loaded(programs.doubled()).execute(base(2, 3)), [base(2, 3) * 2])


def test_a_bound_input_is_not_changed() -> None:
    x = base(2, 3)
    loaded(programs.doubled_unplanned()).execute([x])
    torch.testing.assert_close(x, base(2, 3))


def test_an_input_that_the_model_changes() -> None:
    """A planned one is a copy. One that is bound is the caller's own, and changes as in eager."""
    x, y = base(3), torch.full((3,), 5.0)
    expected = [base(3) + 1, (base(3) + 1) * 5]
    torch.testing.assert_close(loaded(programs.changed()).execute([x, y]), expected)
    torch.testing.assert_close(x, base(3))
    torch.testing.assert_close(loaded(programs.changed_unplanned()).execute([x, y]), expected)
    torch.testing.assert_close(x, base(3) + 1)


@pytest.mark.parametrize("make", [programs.both, programs.both_unplanned])
def test_one_tensor_may_be_given_twice(make: Callable[[], Kept]) -> None:
    x = base(2, 3)
    method = loaded(make())
    torch.testing.assert_close(method.execute([x, x]), [x - x])
    torch.testing.assert_close(method.execute([x, x.flip(0)]), [x - x.flip(0)])


@pytest.mark.parametrize("make", [programs.both, programs.both_unplanned])
def test_a_borrowed_output_may_be_the_next_input(make: Callable[[], Kept]) -> None:
    x, y = base(2, 3), base(2, 3) * 5
    method = loaded(make())
    (z,) = method.execute([x, y], borrow_outputs=True)
    (z,) = method.execute([y, z], borrow_outputs=True)
    torch.testing.assert_close(z, y - (x - y))
    (z,) = method.execute([z, z])
    torch.testing.assert_close(z, torch.zeros(2, 3))


@pytest.mark.parametrize("position", [0, 1])
def test_a_borrowed_output_that_lies_where_an_input_goes(position: int) -> None:
    method = loaded(programs.reused())
    plan = method._table.memory_plan
    (out,), (first, _) = plan.plan.outputs, plan.plan.inputs
    assert plan.slots[out] == replace(plan.slots[first], value=out)
    x, y = base(2, 3) / 10, base(2, 3) / 5
    (z,) = method.execute([x, y], borrow_outputs=True)
    expected = z.clone()
    inputs = [x, x]
    inputs[position] = z
    eager = [x, x]
    eager[position] = expected
    torch.testing.assert_close(method.execute(inputs), [eager[0].sin() + eager[1]])


def test_inputs_stay_until_others_are_given() -> None:
    method = loaded(programs.doubled_unplanned())
    method.set_inputs([base(2, 3)])
    for _ in range(2):
        method.run()
        torch.testing.assert_close(method.get_outputs(), [base(2, 3) * 2])


def test_a_method_does_not_run_before_it_has_inputs() -> None:
    for make in (programs.doubled, programs.doubled_unplanned):
        method = loaded(make())
        with pytest.raises(InvalidArgumentError, match="has not been given its inputs"):
            method.run()
        with pytest.raises(InvalidStateError, match="has not run yet"):
            method.get_outputs()
        method.set_inputs([base(2, 3)])
        with pytest.raises(InvalidStateError, match="has not run yet"):
            method.get_outputs()
        method.run()
        torch.testing.assert_close(method.get_outputs(), [base(2, 3) * 2])


# ---- I2: what is refused -------------------------------------------------------------------------


class Refusal:
    """An input that does not fit, and what the error has to say."""

    def __init__(self, given: Any, kind: type[PteronError], *words: str) -> None:
        self.given, self.kind, self.words = given, kind, words


EXPECTED = "input 0 takes float32[2, 3]"
REFUSED: dict[str, Refusal] = {
    "float64": Refusal(base(2, 3).double(), InvalidArgumentError, EXPECTED, "got float64[2, 3]"),
    "int32": Refusal(base(2, 3).int(), InvalidArgumentError, "got int32[2, 3]"),
    "dtype hint": Refusal(base(2, 3).half(), InvalidArgumentError, "hint: ", ".to(torch.float32)"),
    "rank": Refusal(base(6), NotSupportedError, EXPECTED, "got float32[6]"),
    "more dimensions": Refusal(base(1, 2, 3), NotSupportedError, EXPECTED, "float32[1, 2, 3]"),
    "swapped": Refusal(base(3, 2), NotSupportedError, EXPECTED, "float32[3, 2]"),
    "smaller": Refusal(base(2, 2), NotSupportedError, EXPECTED, "float32[2, 2]"),
    "empty": Refusal(base(0, 3), NotSupportedError, EXPECTED, "float32[0, 3]"),
    "list": Refusal([[1.0] * 3] * 2, InvalidTypeError, EXPECTED, "got list"),
    "number": Refusal(1.0, InvalidTypeError, EXPECTED, "got float 1.0"),
    "none": Refusal(None, InvalidTypeError, EXPECTED, "got None"),
    "array of float64": Refusal(
        np.ones((2, 3)), InvalidArgumentError, EXPECTED, "got float64", "astype(numpy.float32)"
    ),
    "array of objects": Refusal(np.array([None]), InvalidTypeError, EXPECTED, "object"),
    "meta": Refusal(base(2, 3).to("meta"), InvalidArgumentError, "on meta"),
    "sparse": Refusal(base(2, 3).to_sparse(), InvalidArgumentError, "input 0"),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("make", [programs.doubled, programs.doubled_unplanned])
def test_what_does_not_fit_is_refused_by_name(make: Callable[[], Kept], kind: str) -> None:
    method, refusal = loaded(make()), REFUSED[kind]
    torch.testing.assert_close(method.execute([base(2, 3)]), [base(2, 3) * 2])
    with pytest.raises(refusal.kind) as caught:
        method.execute([refusal.given])
    text = str(caught.value)
    for word in ("method 'forward'", *refusal.words):
        assert word in text
    torch.testing.assert_close(method.execute([base(2, 3)]), [base(2, 3) * 2])


def test_errors_of_inputs_are_the_python_errors_that_one_expects() -> None:
    method = loaded(programs.doubled())
    for given, kind, code in (
        (base(2, 3).double(), ValueError, 0x12),
        (base(6), ValueError, 0x10),
        (None, TypeError, 0x13),
    ):
        with pytest.raises(kind) as caught:
            method.execute([given])
        assert isinstance(caught.value, PteronError)
        assert caught.value.code == code


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_inputs_is_refused(count: int) -> None:
    method = loaded(programs.both())
    text = f"method 'forward' takes 2 inputs (input_0, input_1), got {count}"
    with pytest.raises(InvalidArgumentError, match=re.escape(text)):
        method.execute([base(2, 3)] * count)
    torch.testing.assert_close(method.execute([base(2, 3)] * 2), [torch.zeros(2, 3)])


@pytest.mark.parametrize("given", [5, None, {1}, "ab"])
def test_inputs_that_are_no_sequence_are_refused(given: Any) -> None:
    method = loaded(programs.both())
    with pytest.raises(
        InvalidTypeError, match="method 'forward' takes its inputs as a list, tuple or dict"
    ):
        method.execute(given)


def test_the_second_input_is_named() -> None:
    method = loaded(programs.both())
    with pytest.raises(InvalidArgumentError, match=r"input 1 takes float32\[2, 3\]"):
        method.execute([base(2, 3), base(2, 3).long()])


# ---- I3: values that are no tensors --------------------------------------------------------------


def test_numbers_and_the_rest_are_python_values() -> None:
    method = loaded(programs.numbers())
    outputs = method.execute(programs.NUMBERS)
    torch.testing.assert_close(outputs[0], torch.ones(3) * 0.5)
    assert outputs[1:] == [0.5, 4, True, None]
    assert [type(value) for value in outputs[1:]] == [float, int, bool, type(None)]


def test_constant_methods_give_python_values() -> None:
    program = Runtime.get().load_program(programs.numbers().pte)
    names = program.method_names - {"forward"}
    results = {name: program.load_method(name).execute([]) for name in names}
    assert results == {
        "name": ["digits"],
        "size": [28],
        "scale": [0.25],
        "shape": [1, 28],
        "on": [True],
    }


@pytest.mark.parametrize(
    ("position", "given", "kind", "text"),
    [
        (1, 0.7, InvalidArgumentError, "input 1 was exported as the constant 0.5, got 0.7"),
        (1, "0.5", InvalidTypeError, "input 1 has to be a float, got str '0.5'"),
        (1, True, InvalidTypeError, "input 1 has to be a float, got bool True"),
        (1, torch.tensor(0.5), InvalidTypeError, "input 1 has to be a float, got float32[]"),
        (2, 5, InvalidArgumentError, "input 2 was exported as the constant 4, got 5"),
        (2, 4.0, InvalidTypeError, "input 2 has to be an int, got float 4.0"),
        (2, True, InvalidTypeError, "input 2 has to be an int, got bool True"),
        (3, False, InvalidArgumentError, "input 3 was exported as the constant True, got False"),
        (3, 1, InvalidTypeError, "input 3 has to be a bool, got int 1"),
        (4, 1, InvalidTypeError, "input 4 has to be None, got int 1"),
        (4, torch.ones(1), InvalidTypeError, "input 4 has to be None"),
    ],
)
def test_values_other_than_the_exported_are_refused(
    position: int, given: Any, kind: type[PteronError], text: str
) -> None:
    method = loaded(programs.numbers())
    inputs: list[Any] = list(programs.NUMBERS)
    inputs[position] = given
    with pytest.raises(kind, match=re.escape(text)):
        method.execute(inputs)
    method.execute(programs.NUMBERS)


def test_an_int_stands_for_an_equal_float() -> None:
    """Issue 19529: ``0.5`` has no int, so this goes through a program whose float is 2.0."""
    method = loaded(times_two())
    torch.testing.assert_close(method.execute([torch.ones(3), 2]), [torch.full((3,), 2.0)])


def test_a_float_that_went_through_float32_is_the_constant() -> None:
    """ExecuTorch allows 1e-4 and 1e-5 of the constant."""
    method = loaded(times_two())
    for near in (2 + 1e-6, 2 - 1e-4):
        torch.testing.assert_close(method.execute([torch.ones(3), near]), [torch.full((3,), 2.0)])
    for far in (2.001, float("nan"), float("inf"), 10**400):
        with pytest.raises(InvalidArgumentError, match="exported as the constant"):
            method.execute([torch.ones(3), far])


class Times(torch.nn.Module):
    def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        return x * scale


@programs.kept
def times_two() -> programs.Files:
    return programs.export(Times(), (torch.ones(3), 2.0))
