"""What a case of an operator is, and tensors to make cases from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

f16, bf16, f32, f64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
u8, i8, i16, i32, i64 = torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64
boo, c64, c128 = torch.bool, torch.complex64, torch.complex128


@dataclass(frozen=True, slots=True)
class Case:
    """The inputs of one call, in the order of the schema; what is left out has its default.

    ``dtype`` is the result's, for operators that are not told it by their inputs. ``bounds`` are
    upper bounds of the shapes of the results, where the shape depends on values.
    """

    args: tuple[Any, ...]
    dtype: torch.dtype | None = None
    bounds: tuple[tuple[int, ...], ...] | None = None


Cases = Callable[[], Iterable[Case]]
"""Makes the cases of an operator afresh; tensors are drawn from torch's generator."""


def case(
    *args: Any, dtype: torch.dtype | None = None, bounds: tuple[tuple[int, ...], ...] | None = None
) -> Case:
    """Return a case of these arguments."""
    return Case(args, dtype, bounds)


def t(
    *shape: int, d: torch.dtype = f32, lay: str = "c", lo: float = -3.0, hi: float = 3.0
) -> Tensor:
    """Draw a tensor. ``lay`` says how it lies in memory.

    ``c``: contiguous; ``l``: channels last; ``r``: dimensions in reverse order; ``s``: every second
    element of a wider tensor; ``e``: one row, expanded along the first dimension.
    """
    if lay == "r":
        return t(*reversed(shape), d=d, lo=lo, hi=hi).permute(list(reversed(range(len(shape)))))
    if lay == "s":
        return t(*shape[:-1], shape[-1] * 2, d=d, lo=lo, hi=hi)[..., ::2]
    if lay == "e":
        return t(1, *shape[1:], d=d, lo=lo, hi=hi).expand(*shape)
    if d is boo:
        drawn = torch.rand(shape) > 0.5
    elif d.is_complex:
        drawn = torch.complex(torch.randn(shape), torch.randn(shape)).to(d)
    elif d.is_floating_point:
        drawn = torch.empty(shape, dtype=f64).uniform_(lo, hi).to(d)
    else:
        low = max(int(lo), 0) if d is u8 else int(lo)
        drawn = torch.randint(low, int(hi) + 1, shape).to(d)
    if lay == "l":
        drawn = drawn.contiguous(memory_format=torch.channels_last)
    return drawn


def ids(*values: Any) -> Tensor:
    """Return an int64 tensor."""
    return torch.tensor(values[0] if len(values) == 1 else values, dtype=i64)


LAYOUTS: tuple[tuple[tuple[int, ...], str], ...] = (
    ((2, 3, 4), "c"),
    ((2, 3, 4, 5), "l"),
    ((3, 4), "r"),
    ((2, 3), "s"),
    ((0, 3), "c"),
    ((), "c"),
    ((3, 2), "e"),
)


def spread(
    dtypes: Iterable[torch.dtype], *, lo: float = -3.0, hi: float = 3.0, least: int = 7
) -> list[Tensor]:
    """Draw tensors that pair each dtype with a layout, going round both lists."""
    kinds = list(dtypes)
    count = max(len(kinds), least)
    drawn = []
    for number in range(count):
        shape, lay = LAYOUTS[number % len(LAYOUTS)]
        drawn.append(t(*shape, d=kinds[number % len(kinds)], lay=lay, lo=lo, hi=hi))
    return drawn


FLOATS = (f32, f64, f16, bf16)
INTS = (i64, i32, u8, i8, i16)
REALS = (*FLOATS, *INTS)
ALL = (*REALS, boo)
