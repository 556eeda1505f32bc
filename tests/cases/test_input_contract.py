"""Cases of the input contract: dtypes, numbers, tensors without dimensions or elements."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pteron import Method, PteronError, Runtime
from pteron.errors import InvalidArgumentError, InvalidTypeError
from support import plain_programs
from support.programs import Files, Kept, export, kept


def loaded(kept: Kept) -> Method:
    return Runtime.get().load_program(kept.pte).load_method()


class Times(nn.Module):
    def forward(self, x: torch.Tensor, a: Any) -> torch.Tensor:
        return x if a is None else x * a


class UpTo(nn.Module):
    """Its int is dynamic: the file stores None for it."""

    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        return x[:n] * n


class HalfOperators(nn.Module):
    """The operators of issues 7748 and 13587."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(8)
            self.conv = nn.Conv1d(4, 4, 3, padding=1).to(dtype)
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        index = torch.tensor([1, 0])
        return (
            F.layer_norm(x, (6,)),
            x.softmax(-1),
            x / 3,
            x / (x.abs() + 1),
            x[index],
            self.conv(x),
            torch.bmm(x, x.transpose(1, 2)),
            x <= 0.5,
            x.max(1)[0],
            x.min(2)[0],
            torch.zeros(2, 4, 6, dtype=self.dtype).scatter_add(1, index.view(2, 1, 1), x),
            F.group_norm(x, 2),
        )


def half_input(dtype: torch.dtype) -> torch.Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        return torch.randn(2, 4, 6).to(dtype)


@kept
def times_half() -> Files:
    return export(Times(), (torch.ones(3), 0.5))


@kept
def times_four() -> Files:
    return export(Times(), (torch.ones(3), 4))


@kept
def times_true() -> Files:
    return export(Times(), (torch.ones(3), True))


@kept
def times_none() -> Files:
    return export(Times(), (torch.ones(3), None))


@kept
def up_to() -> Files:
    shapes = ({0: torch.export.Dim.AUTO}, torch.export.Dim.DYNAMIC)
    return export(UpTo(), (torch.ones(6), 3), dynamic_shapes=shapes)


@kept
def half_operators() -> Files:
    return export(HalfOperators(torch.float16), (half_input(torch.float16),))


@kept
def bfloat_operators() -> Files:
    return export(HalfOperators(torch.bfloat16), (half_input(torch.bfloat16),))


@pytest.mark.parametrize(
    ("make", "right", "wrong"),
    [
        (times_half, [0.5], [(0.7, InvalidArgumentError), (1, InvalidArgumentError)]),
        (times_four, [4], [(5, InvalidArgumentError), (4.0, InvalidTypeError)]),
        (times_true, [True], [(False, InvalidArgumentError), (1, InvalidTypeError)]),
        (times_none, [None], [(1.0, InvalidTypeError), (torch.ones(3), InvalidTypeError)]),
    ],
)
def test_case_14_numbers_are_the_exported_ones(
    make: Callable[[], Kept], right: list[Any], wrong: list[tuple[Any, type[PteronError]]]
) -> None:
    method, x = loaded(make()), torch.arange(3.0)
    for given in right:
        torch.testing.assert_close(method.execute([x, given]), [Times()(x, given)])
    for given, kind in wrong:
        with pytest.raises(kind, match="input 1 "):
            method.execute([x, given])
    torch.testing.assert_close(method.execute([x, right[0]]), [Times()(x, right[0])])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([torch.ones(2, 3).double()], "got float64[2, 3]"),
        ([torch.ones(2, 3).long()], "got int64[2, 3]"),
        ([np.ones((2, 3))], "got float64[2, 3]"),
        ([[[1.0] * 3] * 2], "got list"),
        ([None], "got None"),
        ([], "takes 1 input (input_0), got 0"),
        ([torch.ones(2, 3)] * 2, "takes 1 input (input_0), got 2"),
    ],
)
def test_case_15_a_wrong_input_is_told_in_words(given: list[Any], words: str) -> None:
    method = loaded(plain_programs.doubled())
    with pytest.raises(PteronError) as caught:
        method.execute(given)
    text = str(caught.value)
    assert words in text
    if "takes 1" not in words:
        assert "input 0 takes float32[2, 3]" in text


@pytest.mark.parametrize(
    ("make", "dtype"), [(half_operators, torch.float16), (bfloat_operators, torch.bfloat16)]
)
def test_cases_16_17_18_half_and_bfloat16(make: Callable[[], Kept], dtype: torch.dtype) -> None:
    method, x = loaded(make()), half_input(dtype)
    with torch.no_grad():
        expected = HalfOperators(dtype)(x)
    outputs = method.execute([x])
    assert len(outputs) == len(expected) == 12
    for number, (output, wanted) in enumerate(zip(outputs, expected, strict=True)):
        torch.testing.assert_close(
            output, wanted, check_stride=False, msg=lambda text, n=number: f"result {n}: {text}"
        )


def test_case_24_token_ids_of_another_width_are_refused() -> None:
    method = loaded(plain_programs.lookup())
    ids = torch.tensor([3, 1, 0])
    expected = [plain_programs.Lookup()(ids).detach()]
    for wrong, words in (
        (ids.int(), "input 0 takes int64[3], got int32[3]"),
        (torch.tensor([0, 4, 1]), "index out of range"),
        (torch.tensor([0, -1, 1]), "index out of range"),
    ):
        with pytest.raises(InvalidArgumentError, match=re.escape(words)):
            method.execute([wrong])
        torch.testing.assert_close(method.execute([ids]), expected)


def test_case_f7_a_parameter_is_a_tensor() -> None:
    x = nn.Parameter(torch.ones(2, 3))
    method = loaded(plain_programs.doubled())
    torch.testing.assert_close(method.execute([x]), [torch.full((2, 3), 2.0)])


def test_case_f6_a_lazily_negated_input() -> None:
    method = loaded(plain_programs.doubled())
    x = torch._neg_view(torch.ones(2, 3))
    torch.testing.assert_close(method.execute([x]), [torch.full((2, 3), -2.0)])


def test_case_f14_a_dynamic_int_takes_any_int() -> None:
    method = loaded(up_to())
    x = torch.arange(6.0)
    for n in (3, 2, 1, 3):
        torch.testing.assert_close(method.execute([x, n]), [UpTo()(x, n)])
    with pytest.raises(InvalidArgumentError, match="a result outgrows the memory that"):
        method.execute([x, 5])  # the exporter planned for three
    torch.testing.assert_close(method.execute([x, 3]), [UpTo()(x, 3)])
