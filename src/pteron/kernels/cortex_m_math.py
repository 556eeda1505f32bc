"""The fixed-point arithmetic of CMSIS-NN, on whole tensors.

Facts: ``arm_nnsupportfunctions.h`` of CMSIS-NN (double rounding, the default). A real factor is
``multiplier * 2**shift / 2**31``. Values are int64 tensors that hold what 32-bit registers would.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

Int = int | Tensor

_INT32_MAX = (1 << 31) - 1
_INT32_MIN = -(1 << 31)

FLOAT32_EXACT = 1 << 24
"""Sums of integers below this are exact in float32, in whatever order they are added."""


def doubling_high_multiply(a: Int, b: Int) -> Int:
    """Return the high half of 2ab, rounded (``VQRDMULH`` without its one saturating case)."""
    return (a * b + (1 << 30)) >> 31


def divide_by_power_of_two(value: Tensor, exponent: Int) -> Tensor:
    """Divide by ``2**exponent``; a remainder of one half goes away from zero."""
    if isinstance(exponent, int):
        if exponent == 0:
            return value
        return (value + (1 << (exponent - 1)) - (value < 0).to(torch.int64)) >> exponent
    half = (torch.ones_like(exponent) << exponent) >> 1
    return (value + half - ((value < 0) & (exponent > 0)).to(torch.int64)) >> exponent


def requantize(value: Tensor, multiplier: Int, shift: Int) -> Tensor:
    """Multiply by a fixed-point factor, rounding twice as CMSIS-NN does.

    ``multiplier`` and ``shift`` are numbers, or int64 tensors that broadcast against ``value``.
    """
    value = value.to(torch.int64)
    if isinstance(shift, int):
        left: Int = max(shift, 0)
        right: Int = max(-shift, 0)
        grows = shift > 0
    else:
        left, right = shift.clamp(min=0), shift.neg().clamp(min=0)
        grows = True
    if grows:
        value = (value << left).to(torch.int32).to(torch.int64)
    product = doubling_high_multiply(value, multiplier)
    assert isinstance(product, Tensor)
    return divide_by_power_of_two(product, right)


def to_int8(value: Tensor, offset: int, low: int = -128, high: int = 127) -> Tensor:
    """Add the output's offset, apply the activation's limits and narrow."""
    return (value + offset).clamp_(low, high).to(torch.int8)


# exp(x) for x <= 0 and 1 / (1 + x) for 0 <= x <= 1 (gemmlowp's fixed-point functions)


def _saturating(a: int, b: int) -> int:
    """Multiply as ``doubling_high_multiply``, saturating."""
    if a == b == _INT32_MIN:
        return _INT32_MAX
    return (a * b + (1 << 30)) >> 31


def _halve(value: int, exponent: int) -> int:
    """Divide one number by a power of two; one half goes away from zero."""
    return (value + (1 << (exponent - 1)) - (value < 0)) >> exponent


_EXP_FACTORS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
"""exp(-2**k) for k = -2 .. 4, in Q0.31."""


def _exp_on_negative(value: int) -> int:
    """Return exp(value) in Q0.31; ``value`` is at most 0, in Q5.26."""
    if value == 0:
        return _INT32_MAX
    quarter = (value & ((1 << 24) - 1)) - (1 << 24)
    remainder = quarter - value
    x = (quarter << 5) + (1 << 28)
    x2 = _saturating(x, x)
    x3 = _saturating(x2, x)
    x4 = _halve(_saturating(x2, x2), 2)
    poly = _halve(_saturating(x4 + x3, 715827883) + x2, 1)
    result = 1895147668 + _saturating(1895147668, x + poly)
    for bit, factor in enumerate(_EXP_FACTORS):
        if remainder & (1 << (24 + bit)):
            result = _saturating(result, factor)
    return result


@lru_cache(maxsize=64)
def exp_table(multiplier: int, shift: int, diff_min: int, device: torch.device) -> Tensor:
    """Return exp of the 256 possible distances from a row's maximum, in Q0.31.

    Entry ``d`` belongs to the value ``d`` steps below the maximum; those further away than
    ``-diff_min`` steps are 0.
    """
    entries = [
        _exp_on_negative(_saturating(-distance << shift, multiplier))
        if -distance >= diff_min
        else 0
        for distance in range(256)
    ]
    return torch.tensor(entries, dtype=torch.int64, device=device)


def _multiply_by_power_of_two(value: Tensor, exponent: int) -> Tensor:
    limit = (1 << (31 - exponent)) - 1
    result = torch.where(value > limit, _INT32_MAX, value << exponent)
    return torch.where(value < -limit, _INT32_MIN, result)


def one_over_one_plus(value: Tensor) -> Tensor:
    """Return 1 / (1 + value) in Q0.31; ``value`` is in [0, 1), in Q0.31."""

    def product(a: Int, b: Int) -> Tensor:
        result = doubling_high_multiply(a, b)
        assert isinstance(result, Tensor)
        return result

    half_denominator = (value + _INT32_MAX + 1) >> 1
    x = 1515870810 + product(half_denominator, -1010580540)
    for _ in range(3):
        correction = (1 << 29) - product(half_denominator, x)
        x = x + _multiply_by_power_of_two(product(x, correction), 2)
    return _multiply_by_power_of_two(x, 1)


def softmax(source: Tensor, multiplier: int, shift: int, diff_min: int) -> Tensor:
    """Return the int8 softmax over the last dimension of int8 values (``arm_softmax_s8``)."""
    table = exp_table(multiplier, shift, diff_min, source.device)
    values = source.to(torch.int64)
    distances = values.amax(dim=-1, keepdim=True) - values
    exps = table[distances]
    total = divide_by_power_of_two(exps, 12).sum(dim=-1, keepdim=True)
    headroom = 31 - torch.floor(torch.log2(total.to(torch.float64))).to(torch.int64)
    scale = one_over_one_plus((total << headroom) - (1 << 31))
    product = doubling_high_multiply(scale, exps)
    assert isinstance(product, Tensor)
    result = divide_by_power_of_two(product, 35 - headroom)
    inside = -distances >= diff_min
    return torch.where(inside, result - 128, -128).clamp_(-128, 127).to(torch.int8)
