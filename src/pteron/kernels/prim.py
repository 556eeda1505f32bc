"""Operators on Python numbers, and the two primitives that control flow and views need.

They follow Python (as the graph that was exported did) where ExecuTorch's C++ rounds differently:
``floordiv.int`` and ``mod`` of negative numbers truncate there, and dividing by zero ends the
process.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pteron.errors import InvalidArgumentError
from pteron.kernels.registry import Kernel, OperatorRegistry, Style
from pteron.program.primitives import ET_COPY_INDEX, ET_VIEW

Number = int | float | bool


def _divided(name: str, divide: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return ``divide`` with a refusal of zero that says which numbers met."""

    def kernel(a: Number, b: Number) -> Any:
        try:
            return divide(a, b)
        except ZeroDivisionError:
            raise InvalidArgumentError(f"{name} of {a!r} by {b!r}: division by zero") from None

    return kernel


def floordiv(a: Number, b: Number) -> Number:
    """Divide and round down; a float divided by zero is an infinity, as in ExecuTorch."""
    if b == 0 and (isinstance(a, float) or isinstance(b, float)):
        return math.copysign(math.inf, a)
    return a // b


def truediv(a: Number, b: Number) -> float:
    """Divide as IEEE 754 does: by zero gives an infinity or NaN."""
    if b != 0:
        return a / b
    if a == 0 or math.isnan(a):
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def local_scalar_dense(self: Tensor) -> Number:
    """Return the first element as a Python number."""
    if self.numel() == 1:
        return self.item()
    if self.numel() == 0:
        raise InvalidArgumentError("aten::_local_scalar_dense of a tensor with no elements")
    return self.reshape(-1)[0].item()


def check(self: Tensor, message: str = "") -> None:
    """Refuse to go on if ``self`` is zero; torch would stop a CUDA device for good."""
    if not bool(self):
        raise InvalidArgumentError(f"the program asserts: {message or 'a value is not zero'}")


def check_number(self: Number, message: str) -> None:
    """Refuse to go on if a number is zero."""
    if not self:
        raise InvalidArgumentError(f"the program asserts: {message}")


def constrain(size: Number, *, min: int | None = None, max: int | None = None) -> None:  # noqa: A002
    """Say nothing: a range is a promise to the exporter."""


def sym_ite(condition: bool, if_true: Number, if_false: Number) -> Number:
    """Return one of two numbers."""
    return if_true if condition else if_false


def et_view(self: Tensor, size: list[int]) -> Tensor:
    """Return ``self`` in another shape: a view, or a copy where strides cannot express it."""
    return torch.reshape(self, size)


def et_copy_index(copy_to: Tensor, copy_from: Tensor, index: int) -> None:
    """Grow ``copy_to`` along dimension 0 to ``index + 1`` and copy into the last entry."""
    if index < 0 or copy_to.dim() != copy_from.dim() + 1:
        raise InvalidArgumentError(
            f"et_copy_index into a tensor of shape {tuple(copy_to.shape)} from one of shape "
            f"{tuple(copy_from.shape)} at {index}; expected one dimension less and index >= 0"
        )
    inner = copy_from.shape
    if copy_to.shape[0] != index + 1 or copy_to.shape[1:] != inner:
        copy_to.resize_((index + 1, *inner))
    copy_to[index].copy_(copy_from)


VALUES: dict[str, tuple[Callable[..., Any], int]] = {
    "aten::sym_size.int": (torch.Tensor.size, 2),
    "aten::sym_stride.int": (torch.Tensor.stride, 2),
    "aten::sym_numel": (torch.Tensor.numel, 1),
    "aten::sym_storage_offset": (lambda self: 0, 1),
    "aten::_local_scalar_dense": (local_scalar_dense, 1),
    "aten::item": (local_scalar_dense, 1),
    "executorch_prim::add.Scalar": (operator.add, 2),
    "executorch_prim::sub.Scalar": (operator.sub, 2),
    "executorch_prim::mul.Scalar": (operator.mul, 2),
    "executorch_prim::floordiv.Scalar": (_divided("floordiv", floordiv), 2),
    "executorch_prim::floordiv.int": (_divided("floordiv", operator.floordiv), 2),
    "executorch_prim::truediv.Scalar": (truediv, 2),
    "executorch_prim::mod.Scalar": (_divided("mod", operator.mod), 2),
    "executorch_prim::mod.int": (_divided("mod", operator.mod), 2),
    "executorch_prim::eq.Scalar": (operator.eq, 2),
    "executorch_prim::gt.Scalar": (operator.gt, 2),
    "executorch_prim::lt.Scalar": (operator.lt, 2),
    "executorch_prim::ge.Scalar": (operator.ge, 2),
    "executorch_prim::le.Scalar": (operator.le, 2),
    "executorch_prim::neg.Scalar": (operator.neg, 1),
    "executorch_prim::sym_float.Scalar": (float, 1),
    "executorch_prim::sym_int.Scalar": (int, 1),
    "executorch_prim::sym_max.Scalar": (max, 2),
    "executorch_prim::sym_min.Scalar": (min, 2),
    "executorch_prim::sym_not.Scalar": (operator.not_, 1),
    "executorch_prim::sym_ite.Scalar": (sym_ite, 3),
    "executorch_prim::ceil.Scalar": (math.ceil, 1),
    "executorch_prim::round.Scalar": (round, 1),
    "executorch_prim::trunc.Scalar": (math.trunc, 1),
}

CHECKS: dict[str, tuple[Callable[..., None], int, tuple[str, ...]]] = {
    "aten::_assert_async": (check, 1, ()),
    "aten::_assert_async.msg": (check, 2, ()),
    "aten::_assert_scalar": (check_number, 2, ()),
    "aten::sym_constrain_range": (constrain, 1, ("min", "max")),
    "aten::sym_constrain_range_for_size": (constrain, 1, ("min", "max")),
}

_DEPEND_ON_STRIDES = frozenset({"aten::sym_stride.int"})
_READS_VALUES = frozenset({"aten::_local_scalar_dense", "aten::item"})


def register(registry: OperatorRegistry) -> None:
    """Add the operators of this file."""
    for name, (function, positional) in VALUES.items():
        registry.register(
            Kernel(
                name,
                Style.VALUE,
                function,
                positional,
                data_dependent=name in _READS_VALUES,
                dense=(0,) if name in _DEPEND_ON_STRIDES else (),
                pure=True,
            )
        )
    for name, (check_function, positional, keywords) in CHECKS.items():
        registry.register(
            Kernel(
                name,
                Style.INPLACE,
                check_function,
                positional,
                keywords=keywords,
                returns=0,
                data_dependent=True,
                dense=(),
            )
        )
    registry.register(Kernel(ET_VIEW, Style.VIEW, et_view, 2, dense=(), pure=True))
    registry.register(
        Kernel(
            ET_COPY_INDEX,
            Style.INPLACE,
            et_copy_index,
            3,
            returns=0,
            mutates=0,
            dense=(0,),
        )
    )
