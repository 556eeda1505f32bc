"""Cases of operators that work element by element."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import torch

from support.operator_cases.case import (
    ALL,
    FLOATS,
    INTS,
    REALS,
    Case,
    Cases,
    bf16,
    boo,
    c64,
    case,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    spread,
    t,
    u8,
)

INF, NAN = float("inf"), float("nan")


def unary(
    dtypes: Iterable[torch.dtype], *, lo: float = -3.0, hi: float = 3.0, special: bool = True
) -> Cases:
    """Cases over dtypes and layouts, and one of infinities, NaN and signed zeros."""

    def cases() -> Iterable[Case]:
        for x in spread(dtypes, lo=lo, hi=hi):
            yield case(x)
        if special:
            yield case(torch.tensor([0.0, -0.0, INF, -INF, NAN, 0.5, 1.5, -2.5]))

    return cases


def binary(dtypes: Iterable[torch.dtype], *, lo: float = -3.0, hi: float = 3.0) -> Cases:
    """Cases of equal and of mixed dtypes, broadcasts, layouts, empty tensors and 0-dim ones."""
    kinds = list(dtypes)

    def cases() -> Iterable[Case]:
        def draw(*shape: int, d: torch.dtype, lay: str = "c") -> torch.Tensor:
            return t(*shape, d=d, lay=lay, lo=lo, hi=hi)

        for number, d in enumerate(kinds):
            shape, lay = ((2, 3, 4), "c") if number % 2 else ((2, 3, 4, 5), "l")
            yield case(draw(*shape, d=d, lay=lay), draw(*shape, d=d, lay=lay))
        first, last = kinds[0], kinds[-1]
        for a, b in pairwise(kinds):
            yield case(draw(3, 1, d=a), draw(1, 4, d=b))
        yield case(draw(2, 3, 4, d=first), draw(d=last))
        yield case(draw(d=first), draw(3, 4, d=first, lay="r"))
        yield case(draw(0, 3, d=first), draw(1, 3, d=first))
        yield case(draw(3, 4, d=first, lay="s"), draw(3, 4, d=first, lay="e"))
        yield case(draw(1, 3, 4, 2, d=first, lay="l"), draw(3, 1, 1, d=first))

    return cases


def scalar(
    dtypes: Iterable[torch.dtype],
    numbers: Iterable[float],
    *,
    lo: float = -3.0,
    hi: float = 3.0,
) -> Cases:
    """Cases of a tensor and a number: each number with each dtype."""
    kinds, values = list(dtypes), list(numbers)

    def cases() -> Iterable[Case]:
        for number, x in enumerate(spread(kinds, lo=lo, hi=hi, least=len(kinds) * len(values))):
            yield case(x, values[number // len(kinds) % len(values)])

    return cases


def alphas() -> Iterable[Case]:
    """Cases of ``alpha``."""
    yield case(t(2, 3), t(2, 3), 2)
    yield case(t(2, 3), t(3), 0.5)
    yield case(t(2, 3, d=i32), t(2, 3, d=i64), -3)


def joined(*parts: Cases) -> Cases:
    """Cases of all parts."""
    return lambda: (one for part in parts for one in part())


def scalar_alphas() -> Iterable[Case]:
    """Cases of a number and ``alpha``."""
    yield case(t(2, 3), 1.5, 2)
    yield case(t(2, 3, d=i32, lay="r"), 4, 3)
    yield case(t(2, 3, d=i64), 2.5, 2)


def modes(second: Cases) -> Cases:
    """Cases of a division with each rounding mode."""

    def cases() -> Iterable[Case]:
        for one in second():
            for mode in (None, "trunc", "floor"):
                yield case(*one.args, mode)

    return cases


def nonzero_pairs() -> Iterable[Case]:
    """Pairs with a divisor that is not zero; integers of both signs."""
    seven = torch.tensor([-7, 7, -7, 7, 0, 6], dtype=i64)
    three = torch.tensor([2, -2, -3, 3, 5, -6], dtype=i64)
    for a in (i64, i32, i16, i8, f32, f64, f16, bf16):
        yield case(seven.to(a), three.to(a))
    yield case(seven.to(u8).abs(), three.abs().to(u8))
    yield case(seven.to(i32), three.to(f32))
    yield case(seven.to(f16), three.to(i64))
    yield case(seven.reshape(2, 3).t(), three[:2])
    yield case(t(0, 3), t(3, lo=1))
    yield case(t(2, 3, 4, 5, lay="l"), t(3, 1, 1, lo=1))
    yield case(torch.tensor([1.0, -1.0, 0.0, INF, NAN]), torch.tensor([0.0, 0.0, 0.0, 2.0, 1.0]))
    yield case(t(), t(3, lo=1))


def floats_by_zero() -> Iterable[Case]:
    """A float division by zero."""
    yield case(torch.tensor([1.0, -1.0, 0.0, NAN]), 0)
    yield case(torch.tensor([1.0, -1.0, 0.0, NAN]), 0.0)


_FLOAT_RESULT = (f32, f64, f16, bf16, i64, i32, u8, boo)

UNARY: dict[str, Cases] = {
    **{
        f"aten::{name}.out": unary(_FLOAT_RESULT)
        for name in (
            *("asinh", "atan", "cos", "cosh", "erf", "exp", "expm1", "reciprocal"),
            *("sigmoid", "sin", "sinh", "tan", "tanh"),
        )
    },
    **{f"aten::{name}.out": unary(_FLOAT_RESULT, lo=-1, hi=1) for name in ("acos", "asin")},
    "aten::atanh.out": unary(_FLOAT_RESULT, lo=-0.9, hi=0.9),
    "aten::acosh.out": unary(_FLOAT_RESULT, lo=1, hi=4),
    **{
        f"aten::{name}.out": unary(_FLOAT_RESULT, lo=0, hi=5)
        for name in ("log", "log10", "log1p", "log2", "rsqrt", "sqrt")
    },
    "aten::logit.out": joined(
        unary(_FLOAT_RESULT, lo=0, hi=1),
        scalar((f32, f64, f16), (0.1, 1e-6), lo=-0.5, hi=1.5),
    ),
    "aten::abs.out": unary(REALS),
    **{f"aten::{name}.out": unary(REALS) for name in ("ceil", "floor", "round", "trunc")},
    "aten::neg.out": unary(REALS),
    "aten::relu.out": unary(REALS),
    "aten::sign.out": unary(ALL),
    "aten::isinf.out": unary(ALL),
    "aten::isnan.out": unary(ALL),
    "aten::logical_not.out": unary(ALL),
    "aten::bitwise_not.out": unary((*INTS, boo), special=False),
    "aten::_conj_physical.out": unary((f32, c64, f64), special=False),
    "aten::gelu.out": joined(
        unary(FLOATS),
        lambda: (case(x, mode) for x in spread(FLOATS) for mode in ("none", "tanh")),
    ),
    "aten::glu.out": lambda: (
        case(t(*shape, d=d, lay=lay), dim)
        for d, shape, lay, dim in (
            (f32, (2, 4), "c", -1),
            (f32, (4, 3, 2), "r", 0),
            (f64, (2, 6, 3, 2), "l", 1),
            (f16, (2, 4), "s", 1),
            (bf16, (0, 4), "c", 1),
        )
    ),
    "aten::elu.out": joined(
        unary(FLOATS),
        lambda: (
            case(t(3, 4, lay="r"), 0.5, 1.5, 2.0),
            case(t(2, 3, d=f64), True, 2, 1),
            case(t(3), True, -INF, INF),
        ),
    ),
    "aten::leaky_relu.out": joined(unary(FLOATS), scalar(FLOATS, (0.2, 2, 0.0))),
    "aten::hardtanh.out": joined(
        unary((*FLOATS, i64, i32, i8, i16)),
        lambda: (
            case(t(2, 3), 0, 6),
            case(t(2, 3, 4, 5, lay="l", d=f16), -0.5, 0.5),
            case(t(4, d=i32, hi=9), 0, 6),
        ),
    ),
}

BINARY: dict[str, Cases] = {
    "aten::add.out": joined(binary((*FLOATS, *INTS, boo)), alphas),
    "aten::sub.out": joined(binary((*FLOATS, *INTS)), alphas),
    "aten::mul.out": binary((*FLOATS, *INTS, boo)),
    "aten::add.Scalar_out": joined(scalar(ALL, (2, 1.5, True)), scalar_alphas),
    "aten::sub.Scalar_out": joined(scalar(REALS, (2, 1.5)), scalar_alphas),
    "aten::rsub.Scalar_out": joined(scalar(REALS, (2, 1.5)), scalar_alphas),
    "aten::mul.Scalar_out": scalar(ALL, (2, 1.5, False)),
    "aten::div.out": nonzero_pairs,
    "aten::div.Scalar_out": joined(scalar(ALL, (2, 1.5, -3)), floats_by_zero),
    "aten::div.out_mode": modes(nonzero_pairs),
    "aten::div.Scalar_mode_out": modes(joined(scalar(REALS, (2, 1.5, -3)), floats_by_zero)),
    "aten::floor_divide.out": nonzero_pairs,
    "aten::fmod.Tensor_out": nonzero_pairs,
    "aten::remainder.Tensor_out": nonzero_pairs,
    "aten::fmod.Scalar_out": scalar(REALS, (2, -2, 1.5), lo=-7, hi=7),
    "aten::remainder.Scalar_out": scalar(REALS, (2, -2, 1.5, -3), lo=-7, hi=7),
    "aten::atan2.out": binary((f32, f64, f16, bf16, i64, i32)),
    "aten::maximum.out": binary(ALL),
    "aten::minimum.out": binary(ALL),
    **{f"aten::{name}.Tensor_out": binary(ALL) for name in ("eq", "ge", "gt", "le", "lt", "ne")},
    **{
        f"aten::{name}.Scalar_out": joined(
            scalar(ALL, (1, 0.5, True)), lambda: (case(torch.tensor([NAN, INF, 1.0]), INF),)
        )
        for name in ("eq", "ge", "gt", "le", "lt", "ne")
    },
    **{f"aten::logical_{name}.out": binary(ALL) for name in ("and", "or", "xor")},
    **{f"aten::bitwise_{name}.Tensor_out": binary((*INTS, boo)) for name in ("and", "or", "xor")},
    **{
        f"aten::bitwise_{name}.Scalar_out": scalar((*INTS, boo), (3, True, -2))
        for name in ("and", "or", "xor")
    },
    **{
        f"aten::bitwise_{name}_shift.Tensor_out": binary(INTS, lo=0, hi=6)
        for name in ("left", "right")
    },
    **{
        f"aten::bitwise_{name}_shift.Tensor_Scalar_out": scalar(INTS, (1, 3, 0))
        for name in ("left", "right")
    },
    "aten::pow.Tensor_Tensor_out": joined(
        binary((*FLOATS, i64, i32), lo=0, hi=3),
        lambda: (case(torch.tensor([0.0, -8.0, 2.0, NAN]), torch.tensor([0.0, 1 / 3, -1.0, 0.0])),),
    ),
    "aten::pow.Tensor_Scalar_out": scalar((*FLOATS, *INTS), (2, 3, 0)),
    "aten::pow.Scalar_out": lambda: (
        case(base, t(*shape, d=d, lay=lay, lo=0))
        for base, shape, d, lay in (
            (2, (2, 3), f32, "c"),
            (2.5, (3, 4), f16, "r"),
            (2, (5,), i64, "c"),
            (1.5, (2, 2), i32, "c"),
            (0, (), f32, "c"),
            (1, (2, 0), f64, "c"),
        )
    ),
    "aten::clamp.out": joined(
        lambda: (case(x, -1, 2) for x in spread((*FLOATS, i64, i32, i8, i16))),
        lambda: (
            case(t(5, d=i32), -0.5, 1.5),
            case(t(5), None, 1),
            case(t(5), 0, None),
            case(torch.tensor([NAN, INF, -INF]), -1.0, 1.0),
            case(t(2, 2, d=u8), 1, None),
            case(t(4), 2, 1),
        ),
    ),
    "aten::clamp.Tensor_out": lambda: (
        case(t(2, 3), t(3, lo=-2, hi=0), t(2, 1, lo=0)),
        case(t(2, 3, d=i64), t(3, d=i32), None),
        case(t(2, 3, 4, 5, lay="l"), None, t()),
        case(t(4, d=f16), t(4, d=f16), t(4, d=f32)),
        case(t(0, 3), t(3), t(3)),
        case(torch.tensor([NAN, 1.0]), torch.tensor([0.0, NAN]), torch.tensor([2.0, 2.0])),
    ),
    "aten::where.self_out": lambda: (
        case(t(2, 3, d=boo), t(2, 3), t(2, 3)),
        case(t(2, 1, d=boo), t(3, d=i64), t(2, 3, d=f32)),
        case(t(2, 3, 4, 5, d=boo, lay="l"), t(2, 3, 4, 5, lay="l"), t()),
        case(t(3, 4, d=boo, lay="r"), t(3, 4, d=bf16), t(1, 4, d=bf16)),
        case(t(0, d=boo), t(0), t(0)),
        case(t(2, 2, d=u8, hi=1), t(2, 2), t(2, 2)),
        case(t(d=boo), t(d=i8), t(d=i32)),
    ),
    "aten::masked_fill.Scalar_out": lambda: (
        case(t(2, 3), t(2, 3, d=boo), -INF),
        case(t(2, 3, 4, d=i64), t(3, 1, d=boo), 7),
        case(t(2, 3, 4, 5, d=f16, lay="l"), t(4, 5, d=boo), 0.5),
        case(t(3, 4, d=boo, lay="r"), t(3, 4, d=boo), True),
        case(t(3), t(2, 3, d=boo), 1),
        case(t(0, 2), t(2, d=boo), 1.0),
        case(t(), t(d=boo), 3),
    ),
    "aten::masked_scatter.out": lambda: (
        case(t(2, 3), t(2, 3, d=boo), t(6)),
        case(t(2, 3, d=i32), t(3, d=boo), t(2, 3, d=i32)),
        case(t(3, 4, lay="r", d=f64), t(3, 4, d=boo), t(20, d=f64)),
        case(t(0, 2), t(2, d=boo), t(1)),
    ),
}

POINTWISE: dict[str, Cases] = {**UNARY, **BINARY}
