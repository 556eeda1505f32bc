"""Cases of dynamic shapes and resizing. See also ``contracts/test_dynamic_shapes.py``."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from pteron import Method, Runtime
from pteron.errors import InvalidArgumentError, NotSupportedError
from support import plain_programs
from support.programs import Files, Kept, export, kept


def loaded(kept: Kept) -> Method:
    return Runtime.get().load_program(kept.pte).load_method()


class Halves(nn.Module):
    """Its height is twice another number, which the file does not say."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 2, x.shape[1]).sum(1)


class Rows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2).softmax(-1).cumsum(0)


class CeilPool(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2, 2, ceil_mode=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(x)


@kept
def halves() -> Files:
    half = torch.export.Dim("half", min=4, max=8)
    return export(Halves(), (torch.ones(12, 3),), dynamic_shapes=({0: 2 * half},))


@kept
def rows() -> Files:
    dims = {0: torch.export.Dim("rows", min=1, max=5), 1: torch.export.Dim("columns", min=1, max=3)}
    return export(Rows(), (torch.ones(4, 2),), dynamic_shapes=(dims,))


@kept
def ceil_pool() -> Files:
    return export(CeilPool(), (torch.ones(1, 2, 23, 23),))


@pytest.mark.parametrize("shape", [(2, 6), (5, 2), (3, 4)])
def test_case_27_each_dimension_has_its_own_bound(shape: tuple[int, ...]) -> None:
    method = loaded(plain_programs.doubled_upto())
    text = f"takes float32[<=4, <=3], got float32{list(shape)}"
    with pytest.raises(NotSupportedError, match=re.escape(text)):
        method.execute([torch.ones(shape)])


@pytest.mark.parametrize("shape", [(1, 1), (0, 3)])
def test_case_27_lower_bounds_are_not_in_the_file(shape: tuple[int, ...]) -> None:
    method = loaded(plain_programs.doubled_upto())
    torch.testing.assert_close(method.execute([torch.ones(shape)]), [torch.ones(shape) * 2])


def test_case_28_what_is_no_multiple_fails_where_it_matters() -> None:
    method = loaded(halves())
    for height in (9, 11):
        with pytest.raises(InvalidArgumentError) as caught:
            method.execute([torch.ones(height, 3)])
        text = str(caught.value)
        assert "method 'forward', instruction" in text
        assert f"float32[{height}, 3]" in text
    with pytest.raises(NotSupportedError, match=r"float32\[<=16, <=3\]"):
        method.execute([torch.ones(18, 3)])
    for height in (8, 16, 10):
        x = torch.rand(height, 3)
        torch.testing.assert_close(method.execute([x]), [Halves()(x)])


def test_case_30_beyond_the_bound_says_bound_and_shape() -> None:
    with pytest.raises(NotSupportedError) as caught:
        loaded(rows()).execute([torch.ones(6, 3)])
    text = str(caught.value)
    assert "takes float32[<=5, <=3], got float32[6, 3]" in text
    assert "hint: the program limits dimension 0 to 5; export it again with a larger bound" in text


@pytest.mark.parametrize("shape", [(3, 2), (6,), (1, 2, 3)])
def test_case_31_a_static_shape_is_exact(shape: tuple[int, ...]) -> None:
    text = f"takes float32[2, 3], got float32{list(shape)}"
    with pytest.raises(NotSupportedError, match=re.escape(text)):
        loaded(plain_programs.doubled()).execute([torch.ones(shape)])


def test_case_34_below_the_bound_in_any_order() -> None:
    method = loaded(rows())
    sizes = [(5, 3), (1, 1), (3, 2)]
    for size in (*sizes, *reversed(sizes)):
        x = torch.randn(size)
        torch.testing.assert_close(method.execute([x]), [Rows()(x)])


def test_case_35_max_pool_that_rounds_up() -> None:
    x = torch.randn(1, 2, 23, 23)
    (output,) = loaded(ceil_pool()).execute([x])
    assert output.shape == (1, 2, 12, 12)
    torch.testing.assert_close(output, CeilPool()(x))
