"""Cases of numbers that differ from eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pteron import Runtime
from support.programs import Files, Kept, export, kept


def ran(kept: Kept, *inputs: Any) -> list[Any]:
    return Runtime.get().load_program(kept.pte).load_method().execute(inputs)


class SigmoidOfBool(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x)


class EluOfTrue(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.elu(x, True, 1.0, float("inf"))


class FloatConstants(nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + 0.1, x * 1e300, n + (2**53 + 1)


class Remainders(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.remainder(a, b), torch.remainder(a, -2), torch.fmod(a, b), a // b


@kept
def sigmoid_of_bool() -> Files:
    return export(SigmoidOfBool(), (torch.ones(3, dtype=torch.bool),))


@kept
def elu_of_true() -> Files:
    return export(EluOfTrue(), (torch.ones(3),))


@kept
def float_constants() -> Files:
    return export(
        FloatConstants(), (torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.int64))
    )


@kept
def remainders() -> Files:
    return export(Remainders(), (torch.tensor([7, 7, 7, 7]), torch.tensor([2, 2, 2, 2])))


def test_case_22_sigmoid_of_bool() -> None:
    x = torch.tensor([True, False, True])
    torch.testing.assert_close(ran(sigmoid_of_bool(), x), [torch.sigmoid(x)])


def test_case_23_elu_with_a_bool_alpha() -> None:
    x = torch.randn(3)
    torch.testing.assert_close(ran(elu_of_true(), x), [EluOfTrue()(x)])


def test_cases_25_and_f12_float64_constants_are_those_of_the_file() -> None:
    """The exporter rounds them to float32: the file is wrong, and is run as it is."""
    x, n = torch.rand(3, dtype=torch.float64) + 1, torch.tensor([0, 1, -5])
    tenth, huge, exact = ran(float_constants(), x, n)
    rounded = float(torch.tensor(0.1, dtype=torch.float32))
    assert rounded != 0.1
    torch.testing.assert_close(tenth, x + rounded, rtol=0, atol=0)
    assert bool(huge.isinf().all())
    torch.testing.assert_close(exact, n + (2**53 + 1))


def test_case_f5_integer_remainders_have_the_sign_of_the_divisor() -> None:
    a, b = torch.tensor([-7, 7, -7, 7]), torch.tensor([2, -2, -2, 2])
    outputs = ran(remainders(), a, b)
    torch.testing.assert_close(tuple(outputs), Remainders()(a, b))
    assert outputs[0].tolist() == [1, -1, -1, 1]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0])
def test_special_values_pass_through(value: float) -> None:
    x = torch.full((3,), value)
    torch.testing.assert_close(ran(elu_of_true(), x), [EluOfTrue()(x)], equal_nan=True)
