"""Cases of operators on Python numbers, and of the primitives for views and control flow."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch

from support.operator_cases.case import Case, Cases, boo, case, f16, f64, i32, i64, t

INF = math.inf


def pairs(*numbers: tuple[Any, Any]) -> Cases:
    """Cases of two numbers."""
    return lambda: (case(a, b) for a, b in numbers)


_COMMON = ((3, 4), (-7, 2), (2.5, 1.5), (3, 0.5), (-0.5, 4), (0, 5), (1 << 40, 3))


def compared() -> Iterable[Case]:
    """Cases of a comparison."""
    yield from pairs(*_COMMON, (2, 2), (2.0, 2))()
    yield from pairs((True, False), (True, True))()


def quotients(divide: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Cases]:
    """Return the oracle of a division of integers, and its cases."""
    return divide, pairs((7, 2), (-7, 2), (7, -2), (-7, -2), (6, 3), (-6, 3), (0, 4), (1 << 50, 7))


def floor_with_floats(a: Any, b: Any) -> Any:
    """Divide as Python does; by zero as ExecuTorch says."""
    return math.copysign(INF, a) if b == 0 else a // b


def single(*numbers: Any) -> Cases:
    """Cases of one number."""
    return lambda: (case(number) for number in numbers)


NUMBERS: dict[str, tuple[Callable[..., Any], Cases]] = {
    "executorch_prim::add.Scalar": (operator.add, pairs(*_COMMON)),
    "executorch_prim::sub.Scalar": (operator.sub, pairs(*_COMMON)),
    "executorch_prim::mul.Scalar": (operator.mul, pairs(*_COMMON)),
    "executorch_prim::truediv.Scalar": (
        lambda a, b: a / b if b else math.copysign(INF, a),
        pairs(*_COMMON, (1.0, 0.0), (-1, 0)),
    ),
    "executorch_prim::floordiv.Scalar": (
        floor_with_floats,
        pairs(
            *((7, 2), (-7, 2), (7, -2), (-7, -2), (6, -3), (7.5, 2), (-7.5, 2), (7.5, -2)),
            *((1.0, 0.1), (-6.0, 3.0), (5.0, 0.0), (-5.0, 0.0)),
        ),
    ),
    "executorch_prim::floordiv.int": quotients(operator.floordiv),
    "executorch_prim::mod.Scalar": quotients(operator.mod),
    "executorch_prim::mod.int": quotients(operator.mod),
    "executorch_prim::eq.Scalar": (operator.eq, compared),
    "executorch_prim::gt.Scalar": (operator.gt, compared),
    "executorch_prim::lt.Scalar": (operator.lt, compared),
    "executorch_prim::ge.Scalar": (operator.ge, compared),
    "executorch_prim::le.Scalar": (operator.le, compared),
    "executorch_prim::neg.Scalar": (operator.neg, single(3, -3, 2.5, 0, -0.5)),
    "executorch_prim::sym_float.Scalar": (float, single(3, -3, 2.5, True)),
    "executorch_prim::sym_int.Scalar": (int, single(3, -3, 2.7, -2.7, True)),
    "executorch_prim::sym_max.Scalar": (max, pairs((3, 4), (-3, -4), (5, 5))),
    "executorch_prim::sym_min.Scalar": (min, pairs((3, 4), (-3, -4), (5, 5))),
    "executorch_prim::sym_not.Scalar": (operator.not_, single(True, False, 1 == 1)),
    "executorch_prim::sym_ite.Scalar": (
        lambda condition, a, b: a if condition else b,
        lambda: (case(True, 3, 4), case(False, 3, 4.5), case(True, False, True)),
    ),
    "executorch_prim::ceil.Scalar": (math.ceil, single(2.1, -2.1, 2.0, -0.5)),
    "executorch_prim::round.Scalar": (round, single(2.5, 3.5, -2.5, 0.5, 2.4, -3.6)),
    "executorch_prim::trunc.Scalar": (math.trunc, single(2.9, -2.9, 2.0, -0.5)),
    "aten::sym_size.int": (
        lambda x, dim: x.shape[dim],
        lambda: (case(t(2, 3), 0), case(t(2, 3, 4, 5, lay="l"), -1), case(t(0, 3, d=i64), 0)),
    ),
    "aten::sym_numel": (
        lambda x: math.prod(x.shape),
        lambda: (case(t(2, 3)), case(t()), case(t(0, 3, d=i64)), case(t(3, 4, lay="r"))),
    ),
    "aten::_local_scalar_dense": (
        lambda x: x.tolist() if x.dim() == 0 else x.reshape(-1).tolist()[0],
        lambda: (
            case(t()),
            case(t(1, d=i64)),
            case(t(1, 1, d=boo)),
            case(t(d=f64)),
            case(t(d=i32)),
            case(torch.tensor(1.5, dtype=f16)),
        ),
    ),
}
"""Operators that give a number: what Python says it is, and the cases."""

VIEWS: dict[str, Cases] = {
    "executorch_prim::et_view.default": lambda: (
        case(t(2, 3, 4), [6, 4]),
        case(t(2, 3, d=i64), [-1]),
        case(t(6, d=f16), [2, 1, 3]),
        case(t(0, 3), [3, 0]),
        case(t(), [1]),
    ),
    "executorch_prim::et_copy_index.tensor": lambda: (
        case(t(4, 2, 3), t(2, 3), 0),
        case(t(4, 2, 3, d=i64), t(2, 3, d=i64), 3),
        case(t(5, d=f16), t(d=f16), 2),
        case(t(3, 0), t(0), 1),
    ),
}
