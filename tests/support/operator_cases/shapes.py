"""Cases of operators that make, move, copy and convert elements."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from support.operator_cases.case import (
    ALL,
    FLOATS,
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
    i32,
    i64,
    spread,
    t,
    u8,
)


def copies() -> Iterable[Case]:
    """Cases over all dtypes and layouts."""
    for x in spread((*ALL, c64), least=10):
        yield case(x)


def conversions() -> Iterable[Case]:
    """Cases of a copy to another dtype."""
    for a, b, lay in (
        (f32, f16, "c"),
        (f32, i32, "l"),
        (i64, f32, "r"),
        (f64, bf16, "s"),
        (boo, f32, "c"),
        (f16, boo, "c"),
        (u8, i64, "e"),
        (c64, f32, "c"),
        (f32, c64, "c"),
    ):
        shape = (2, 3, 4, 5) if lay == "l" else (2, 3)
        yield case(t(*shape, d=a, lay=lay), dtype=b)
    yield case(t(0, 2), dtype=f64)
    yield case(t(), dtype=i64)
    yield case(torch.tensor([1.9, -1.9, 200.7]), dtype=i32)


def ordered(base: Cases, *orders: list[int]) -> Cases:
    """The cases of ``base`` with a dim order of None, and one tensor with each of ``orders``."""

    def cases() -> Iterable[Case]:
        yield from base()
        for order in orders:
            yield case(t(2, 3, 4, 5), False, order)
            yield case(t(2, 3, 4, 5, lay="l"), False, order)

    return cases


def sized(*extra: object, dtypes: Iterable[torch.dtype] = (f32, f16, i64, boo)) -> Cases:
    """Cases of a size, of a tensor that is told nothing else but ``extra``."""
    kinds = list(dtypes)
    sizes = ([2, 3], [], [0, 2], [4], [1, 2, 3, 4])

    def cases() -> Iterable[Case]:
        for number, size in enumerate(sizes):
            yield case(size, *extra, dtype=kinds[number % len(kinds)])

    return cases


def filled() -> Iterable[Case]:
    """Cases of a tensor and the number that its copy is filled with."""
    for number, x in enumerate(spread(ALL, least=10)):
        yield case(x, (1, 2.5, True)[number % 3] if x.dtype is not boo else True)


MAKING: dict[str, Cases] = {
    "aten::empty.out": sized(),
    "aten::zeros.out": sized(),
    "aten::ones.out": sized(),
    "aten::rand.out": sized(dtypes=FLOATS),
    "aten::randn.out": sized(dtypes=FLOATS),
    "aten::full.out": lambda: (
        case([2, 3], 1.5, dtype=f32),
        case([2, 3], 7, dtype=i64),
        case([], True, dtype=boo),
        case([0, 2], 1, dtype=f16),
        case([3], float("-inf"), dtype=bf16),
    ),
    "aten::full_like.out": filled,
    "aten::fill.Scalar_out": filled,
    "aten::fill.Tensor_out": lambda: (
        case(one.args[0], torch.tensor(one.args[1])) for one in filled()
    ),
    "aten::scalar_tensor.out": lambda: (
        case(1.5, dtype=f32),
        case(3, dtype=i64),
        case(True, dtype=boo),
        case(2, dtype=f16),
    ),
    "aten::arange.out": lambda: (
        case(5, dtype=i64),
        case(2.5, dtype=f32),
        case(0, dtype=i64),
        case(4, dtype=f64),
    ),
    "aten::arange.start_out": lambda: (
        case(1, 9, 2, dtype=i64),
        case(0.0, 1.0, 0.1, dtype=f32),
        case(5, -1, -2, dtype=i32),
        case(3, 3, 1, dtype=f32),
        case(0, 4, dtype=f16),
    ),
    "dim_order_ops::_empty_dim_order.out": lambda: (
        case([2, 3], dtype=f32),
        case([2, 3], [0, 1], dtype=i64),
        case([0], None, dtype=f16),
    ),
    "aten::tril.out": lambda: (
        case(t(3, 4)),
        case(t(3, 4, d=i64), 1),
        case(t(2, 3, 3, d=boo), -1),
        case(t(4, 3, lay="r", d=f16), 0),
        case(t(0, 3)),
        case(t(2, 3, 4, 5, lay="l"), 2),
    ),
}

COPYING: dict[str, Cases] = {
    "aten::alias_copy.out": copies,
    "aten::clone.out": copies,
    "aten::detach_copy.out": copies,
    "aten::lift_fresh_copy.out": copies,
    "aten::_to_copy.out": conversions,
    "dim_order_ops::_to_dim_order_copy.out": ordered(conversions, [0, 1, 2, 3], [0, 2, 3, 1]),
    "dim_order_ops::_clone_dim_order.out": ordered(copies, [0, 1, 2, 3], [0, 2, 3, 1]),
    "et_copy::_h2d_copy.out": copies,
    "et_copy::_d2h_copy.out": copies,
    "aten::copy.out": lambda: (
        case(t(2, 3), t(2, 3)),
        case(t(2, 3, d=i64), t(3)),
        case(t(2, 3, 4, 5, lay="l"), t(4, 1, d=f64)),
        case(t(3, d=f16), t(d=i32)),
        case(t(0, 3), t(3)),
    ),
    "aten::copy_": lambda: (
        case(t(2, 3), t(2, 3)),
        case(t(2, 3, d=i64), t(3)),
        case(t(2, 3, 4, 5, lay="l"), t(4, 1, d=f64)),
        case(t(3, d=f16), t(d=i32)),
        case(t(0, 3), t(3)),
        case(t(2, 3), t(2, 3, d=c64)),
    ),
    "aten::expand_copy.out": lambda: (
        case(t(3, 1), [3, 4]),
        case(t(3, d=i64), [2, -1]),
        case(t(), [2, 2]),
        case(t(1, 3, 1, 1, d=f16), [2, 3, 4, 5]),
        case(t(0, 1), [0, 3]),
        case(t(3, 1, lay="r", d=boo), [2, 3, 2], True),
    ),
    "aten::repeat.out": lambda: (
        case(t(2, 3), [2, 1]),
        case(t(3, d=i64), [2, 2]),
        case(t(), [3]),
        case(t(2, 3, 2, 2, lay="l", d=f16), [1, 2, 1, 3]),
        case(t(2, 3), [0, 1]),
        case(t(2, 0), [2, 2]),
        case(t(3, 4, lay="r", d=boo), [1, 2, 2]),
        case(t(2), [1]),
        case(t(), []),
    ),
    "aten::constant_pad_nd.out": lambda: (
        case(t(2, 3), [1, 2]),
        case(t(2, 3, d=i64), [1, 0, 0, 2], 7),
        case(t(2, 3, 4, 5, lay="l"), [1, 1, 2, 2], 0.5),
        case(t(4, 5), [-1, 1, 0, -2], 1),
        case(t(3, 4, d=f16, lay="r"), [0, 0], 1),
        case(t(0, 2), [1, 1], 2.0),
        case(t(3, d=boo), [1, 1], True),
        case(t(2, 3), [], 1),
        case(t(2, 4), [-2, -2], 1),
    ),
    "aten::select_scatter.out": lambda: (
        case(t(2, 3), t(3), 0, 1),
        case(t(2, 3, d=i64), t(2, d=i64), -1, -1),
        case(t(2, 3, 4, 5, lay="l"), t(2, 4, 5), 1, 0),
        case(t(4, 3, lay="r", d=f16), t(3, d=f32), 0, 2),
    ),
    "aten::slice_scatter.out": lambda: (
        case(t(4, 3), t(2, 3), 0, 1, 3, 1),
        case(t(4, 6, d=i64), t(4, 3, d=i64), 1, 0, None, 2),
        case(t(2, 3, 4, 5, lay="l"), t(2, 1, 4, 5), 1, -1, 9223372036854775807, 1),
        case(t(4, 3, lay="r"), t(0, 3), 0, 3, 1, 1),
        case(t(4, 3, d=f16), t(4, 3), 0, None, None, 1),
    ),
}

VIEWING: dict[str, Cases] = {
    "aten::permute_copy.out": lambda: (
        case(t(2, 3, 4), [2, 0, 1]),
        case(t(2, 3, d=i64), [-1, 0]),
        case(t(2, 3, 4, 5, lay="l", d=f16), [0, 2, 3, 1]),
        case(t(), []),
        case(t(0, 3, d=boo), [1, 0]),
        case(t(2, 4, lay="s"), [1, 0]),
    ),
    "aten::transpose_copy.int_out": lambda: (
        case(t(2, 3, 4), 0, 2),
        case(t(2, 3, d=i64, lay="r"), -1, 0),
        case(t(2, 3, 4, 5, lay="l"), 1, 3),
        case(t(), 0, -1),
        case(t(0, 3, d=bf16), 1, 0),
    ),
    "aten::t_copy.out": lambda: (
        case(t(2, 3)),
        case(t(3, d=i64)),
        case(t()),
        case(t(2, 3, lay="r", d=f16)),
        case(t(0, 3)),
    ),
    "aten::unsqueeze_copy.out": lambda: (
        case(t(2, 3), 0),
        case(t(2, 3, d=i64), -1),
        case(t(), 0),
        case(t(3, 4, lay="r"), 1),
        case(t(0, 2, d=boo), 1),
    ),
    "aten::squeeze_copy.dim_out": lambda: (
        case(t(1, 3), 0),
        case(t(2, 1, 3, d=i64), -2),
        case(t(2, 3), 1),
        case(t(2, 3, 1, 1, lay="l"), 3),
        case(t(), 0),
    ),
    "aten::squeeze_copy.dims_out": lambda: (
        case(t(1, 3, 1), [0, 2]),
        case(t(2, 1, 3, d=f16), [-2, 0]),
        case(t(2, 3), []),
        case(t(1, 1, 0), [1]),
    ),
    "aten::view_copy.out": lambda: (
        case(t(2, 3, 4), [6, 4]),
        case(t(2, 3, d=i64), [-1]),
        case(t(2, 3, 4, 5, lay="l"), [2, 60]),
        case(t(), [1, 1]),
        case(t(0, 3), [3, 0]),
        case(t(4, 3, lay="r", d=bf16), [2, 6]),
        case(t(1), []),
    ),
    "aten::select_copy.int_out": lambda: (
        case(t(2, 3), 0, 1),
        case(t(2, 3, d=i64), -1, -1),
        case(t(2, 3, 4, 5, lay="l", d=f16), 1, 2),
        case(t(3, d=boo), 0, 0),
        case(t(2, 0), 0, 1),
    ),
    "aten::slice_copy.Tensor_out": lambda: (
        case(t(5, 3), 0, 1, 4, 2),
        case(t(5, 3, d=i64), 1, -2, None, 1),
        case(t(2, 3, 4, 5, lay="l"), 3, 0, 9223372036854775807, 3),
        case(t(5, 3), 0, 4, 2, 1),
        case(t(5, 3, lay="r"), 0, -100, 100, 1),
        case(t(5, d=f16), 0, None, None, 1),
        case(t(0, 3), 0, 0, 2, 1),
    ),
    "aten::narrow_copy.out": lambda: (
        case(t(5, 3), 0, 1, 3),
        case(t(5, 3, d=i64), -1, 2, 1),
        case(t(2, 3, 4, 5, lay="l", d=f16), 1, 0, 2),
        case(t(3), 0, 3, 0),
        case(t(4, 3), 0, -2, 2),
    ),
    "aten::diagonal_copy.out": lambda: (
        case(t(3, 4)),
        case(t(3, 4, d=i64), 1),
        case(t(2, 3, 4), -1, 1, 2),
        case(t(2, 3, 4, 5, lay="l", d=f16), 0, -1, 0),
        case(t(3, 3), 5),
    ),
    "aten::unfold_copy.out": lambda: (
        case(t(2, 8), 1, 3, 2),
        case(t(7, d=i64), 0, 2, 1),
        case(t(2, 3, 4, 5, lay="l"), -1, 5, 1),
        case(t(4, 3, lay="r", d=f16), 0, 2, 2),
    ),
    "aten::as_strided_copy.out": lambda: (
        case(t(12), [3, 2], [4, 1]),
        case(t(3, 4, d=i64), [2, 2], [1, 2], 3),
        case(t(6), [4, 3], [1, 1], 0),
        case(t(6, d=f16), [], [], 5),
        case(t(6), [0, 2], [1, 1], None),
        case(t(5), [3], [0], 2),
    ),
    "aten::view_as_real_copy.out": lambda: (
        case(t(2, 3, d=c64)),
        case(t(d=c64)),
        case(t(0, 2, d=c64)),
        case(t(2, 3, d=torch.complex128, lay="r")),
    ),
    "aten::split_copy.Tensor_out": lambda: (
        case(t(5, 3), 2),
        case(t(4, 6, d=i64), 3, 1),
        case(t(2, 3, 4, 5, lay="l", d=f16), 1, 1),
        case(t(4, 3, lay="r"), 9, -1),
    ),
    "aten::split_with_sizes_copy.out": lambda: (
        case(t(5, 3), [2, 3]),
        case(t(4, 6, d=i64), [1, 0, 5], 1),
        case(t(2, 3, 4, 5, lay="l", d=f16), [1, 2], -3),
        case(t(4, 3, lay="r"), [3], 1),
    ),
    "aten::unbind_copy.int_out": lambda: (
        case(t(3, 2)),
        case(t(2, 3, d=i64), 1),
        case(t(2, 3, 4, 5, lay="l", d=f16), -1),
        case(t(2, d=boo), 0),
    ),
    "aten::flip.out": lambda: (
        case(t(2, 3), [0]),
        case(t(2, 3, d=i64), [-1, 0]),
        case(t(2, 3, 4, 5, lay="l", d=f16), [2, 3]),
        case(t(0, 3, d=boo), [0]),
        case(t(2, 3, lay="r"), []),
        case(t(d=i8), []),
    ),
    "aten::roll.out": lambda: (
        case(t(2, 3), [1], [0]),
        case(t(2, 3, d=i64), [4], []),
        case(t(2, 3, 4, 5, lay="l", d=f16), [1, -2], [1, 3]),
        case(t(3, 4, lay="r"), [-1], [-1]),
        case(t(0, 2), [1], [0]),
    ),
    "aten::cat.out": lambda: (
        case([t(2, 3), t(4, 3)]),
        case([t(2, 3, d=i64), t(2, 1, d=f32)], 1),
        case([t(2, 3, 4, 5, lay="l"), t(2, 1, 4, 5, lay="l")], 1),
        case([t(2, 3, 4, 5, lay="l"), t(2, 3, 4, 5)], 1),
        case([t(2, 3), t(0), t(0, 3)], 0),
        case([t(2, 3, lay="r", d=f16)], -1),
        case([t(2, d=boo), t(1, d=boo)]),
    ),
    "aten::stack.out": lambda: (
        case([t(2, 3), t(2, 3)]),
        case([t(2, d=i64), t(2, d=f32)], 1),
        case([t(), t(), t()], 0),
        case([t(3, 4, lay="r", d=f16), t(3, 4, d=f16)], -1),
        case([t(0, 2), t(0, 2)], 1),
    ),
    "aten::pixel_shuffle.out": lambda: (
        case(t(1, 4, 2, 3), 2),
        case(t(2, 9, 2, 2, d=i64, lay="l"), 3),
        case(t(4, 2, 2, d=f16), 2),
        case(t(0, 4, 2, 2), 2),
    ),
    "aten::pixel_unshuffle.out": lambda: (
        case(t(1, 1, 4, 6), 2),
        case(t(2, 2, 3, 3, d=i64, lay="l"), 3),
        case(t(1, 4, 4, d=f16), 2),
        case(t(0, 1, 4, 4), 2),
    ),
}

SHAPES: dict[str, Cases] = {**MAKING, **COPYING, **VIEWING}
