"""The ``cortex_m`` operators: int8 networks for microcontrollers, run bit-exactly on any device.

ExecuTorch's Cortex-M kernels call CMSIS-NN; these compute the same integers. Activations of the
plain operators are NCHW tensors (that lie in memory as NHWC), those of the ``_nhwc`` operators are
NHWC tensors. Weights are OHWI, and 1HWO for depthwise convolutions. Offsets are added to values:
an source offset is a negated zero point. Scratch arguments are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pteron.errors import InvalidArgumentError
from pteron.kernels import cortex_m_math as fixed
from pteron.kernels.quantized import (
    dequantize_per_tensor,
    functional_kernel,
    out_kernel,
    quantize_per_tensor,
)
from pteron.kernels.registry import Kernel, OperatorRegistry

_ADD_LEFT_SHIFT = 20
"""Bits by which the inputs of an addition are raised before they are rescaled."""


def _work_dtype(terms: int, device: torch.device) -> torch.dtype:
    """Return the float type in which a sum of ``terms`` products of int8 values is exact."""
    small = terms * 255 * 255 < fixed.FLOAT32_EXACT
    return torch.float32 if small and device.type == "cpu" else torch.float64


def _per_channel(values: Tensor) -> Tensor:
    return values.to(torch.int64).reshape(1, -1, 1, 1)


def _finish_convolution(
    sums: Tensor,
    bias: Tensor | None,
    multipliers: Tensor,
    shifts: Tensor,
    output_offset: int,
    low: int,
    high: int,
) -> Tensor:
    """Turn exact sums (N, C, H, W) into int8 values with one factor per channel."""
    total = sums.to(torch.int64)
    if bias is not None:
        total += _per_channel(bias)
    scaled = fixed.requantize(total, _per_channel(multipliers), _per_channel(shifts))
    return fixed.to_int8(scaled, output_offset, low, high)


def quantized_conv2d(
    source: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    input_offset: int,
    output_offset: int,
    multipliers: Tensor,
    shifts: Tensor,
    low: int,
    high: int,
    scratch: Tensor,
) -> Tensor:
    """Convolve (``arm_convolve_wrapper_s8``)."""
    dtype = _work_dtype(weight[0].numel(), source.device)
    sums = functional.conv2d(
        source.to(dtype).add_(input_offset),
        weight.permute(0, 3, 1, 2).to(dtype),
        None,
        tuple(stride),
        tuple(padding),
        tuple(dilation),
        source.shape[1] // weight.shape[3],
    )
    return _finish_convolution(sums, bias, multipliers, shifts, output_offset, low, high)


def quantized_depthwise_conv2d(
    source: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    depth_multiplier: int,
    input_offset: int,
    output_offset: int,
    multipliers: Tensor,
    shifts: Tensor,
    low: int,
    high: int,
    scratch: Tensor,
) -> Tensor:
    """Convolve each channel on its own (``arm_depthwise_conv_wrapper_s8``)."""
    dtype = _work_dtype(weight.shape[1] * weight.shape[2], source.device)
    sums = functional.conv2d(
        source.to(dtype).add_(input_offset),
        weight.permute(3, 0, 1, 2).to(dtype),
        None,
        tuple(stride),
        tuple(padding),
        tuple(dilation),
        source.shape[1],
    )
    return _finish_convolution(sums, bias, multipliers, shifts, output_offset, low, high)


def quantized_transpose_conv2d(
    source: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    input_offset: int,
    output_offset: int,
    multipliers: Tensor,
    shifts: Tensor,
    low: int,
    high: int,
    scratch: Tensor,
    output_scratch: Tensor,
) -> Tensor:
    """Convolve backwards (``arm_transpose_conv_wrapper_s8``)."""
    dtype = _work_dtype(weight[0].numel(), source.device)
    sums = functional.conv_transpose2d(
        source.to(dtype).add_(input_offset),
        weight.permute(3, 0, 1, 2).to(dtype),
        None,
        tuple(stride),
        tuple(padding),
        tuple(output_padding),
        source.shape[1] // weight.shape[3],
        tuple(dilation),
    )
    return _finish_convolution(sums, bias, multipliers, shifts, output_offset, low, high)


def quantized_linear(
    source: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    kernel_sum: Tensor | None,
    input_offset: int,
    filter_offset: int,
    output_offset: int,
    multipliers: Sequence[int],
    shifts: Sequence[int],
    high: int,
    low: int,
) -> Tensor:
    """Apply a fully connected layer (``arm_fully_connected_s8``).

    A file for a core with vector instructions gives ``kernel_sum``, which holds the bias and the
    input offset's share of every sum; any other file gives ``bias``.
    """
    dtype = _work_dtype(weights.shape[1], source.device)
    vectors = source.reshape(-1, source.shape[-1]).to(dtype)
    matrix = weights.to(dtype).t()
    if kernel_sum is not None:
        sums = torch.mm(vectors, matrix).to(torch.int64) + kernel_sum
        if filter_offset:
            sums += vectors.sum(dim=-1, keepdim=True).to(torch.int64) * filter_offset
    else:
        sums = torch.mm(vectors + input_offset, matrix + filter_offset).to(torch.int64)
        if bias is not None:
            sums += bias
    scaled = fixed.requantize(sums, int(multipliers[0]), int(shifts[0]))
    result = fixed.to_int8(scaled, output_offset, low, high)
    return result.reshape(*source.shape[:-1], weights.shape[0])


def quantized_batch_matmul(
    lhs: Tensor,
    lhs_offset: int,
    rhs_transposed: Tensor,
    rhs_offset: int,
    output_offset: int,
    multiplier: int,
    shift: int,
    scratch: Tensor,
) -> Tensor:
    """Multiply batches of matrices, the second transposed (``arm_batch_matmul_s8``)."""
    dtype = _work_dtype(lhs.shape[-1], lhs.device)
    left = lhs.to(dtype).add_(lhs_offset)
    right = rhs_transposed.to(dtype).add_(rhs_offset)
    sums = torch.bmm(left, right.transpose(1, 2))
    return fixed.to_int8(fixed.requantize(sums, multiplier, shift), output_offset)


def quantized_add(
    self: Tensor,
    self_zero_point: int,
    self_multiplier: int,
    self_shift: int,
    other: Tensor,
    other_zero_point: int,
    other_multiplier: int,
    other_shift: int,
    output_zero_point: int,
    output_multiplier: int,
    output_shift: int,
    low: int = -128,
    high: int = 127,
) -> Tensor:
    """Add (``arm_elementwise_add_s8``); one side may hold one value per channel."""
    a = (self.to(torch.int64) - self_zero_point) << _ADD_LEFT_SHIFT
    b = (other.to(torch.int64) - other_zero_point) << _ADD_LEFT_SHIFT
    total = fixed.requantize(a, self_multiplier, self_shift) + fixed.requantize(
        b, other_multiplier, other_shift
    )
    scaled = fixed.requantize(total, output_multiplier, output_shift)
    return fixed.to_int8(scaled, output_zero_point, low, high)


def quantized_mul(
    self: Tensor,
    self_zero_point: int,
    other: Tensor,
    other_zero_point: int,
    output_zero_point: int,
    output_multiplier: int,
    output_shift: int,
) -> Tensor:
    """Multiply (``arm_elementwise_mul_s8``); one side may hold one value per channel."""
    product = (self.to(torch.int64) - self_zero_point) * (other.to(torch.int64) - other_zero_point)
    scaled = fixed.requantize(product, output_multiplier, output_shift)
    return fixed.to_int8(scaled, output_zero_point)


def quantized_div(
    self: Tensor,
    self_zero_point: int,
    other: Tensor,
    other_zero_point: int,
    output_zero_point: int,
    output_scale: float,
) -> Tensor:
    """Divide in float32; a half rounds away from zero and a zero divisor gives zero."""
    numerator = (self.to(torch.int32) - self_zero_point).to(torch.float32)
    denominator = (other.to(torch.int32) - other_zero_point).to(torch.float32)
    quotient = torch.where(denominator != 0, numerator / denominator, 0.0) * output_scale
    whole = quotient.trunc()
    rounded = whole + ((quotient - whole).abs() >= 0.5) * quotient.sign()
    limits = torch.iinfo(self.dtype)
    return (rounded + output_zero_point).clamp_(limits.min, limits.max).to(self.dtype)


def quantized_activation(source: Tensor, lut: Tensor) -> Tensor:
    """Look every value up in a table of 256 int8 results, the first for -128."""
    return lut[source.to(torch.int64) + 128]


def softmax(
    source: Tensor,
    dim: int,
    input_zero_point: int,
    output_zero_point: int,
    input_multiplier: int,
    input_shift: int,
    diff_min: int,
) -> Tensor:
    """Return probabilities in steps of 1/256 above -128, over the last dimension."""
    if dim not in (-1, source.dim() - 1) or output_zero_point != -128:
        raise InvalidArgumentError(
            f"cortex_m::softmax runs over the last dimension with an output zero point of -128; "
            f"the file asks for dimension {dim} of {source.dim()} and {output_zero_point}"
        )
    return fixed.softmax(source, input_multiplier, input_shift, diff_min)


def _pair(values: Sequence[int]) -> tuple[int, int]:
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


def quantized_avg_pool2d(
    source: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    zero_point: int,
    multiplier: int,
    shift: int,
    scratch: Tensor,
) -> Tensor:
    """Average each window, padding left out; a half goes away from zero (``arm_avgpool_s8``)."""

    def window_sums(values: Tensor) -> Tensor:
        sums = functional.avg_pool2d(
            values,
            _pair(kernel_size),
            _pair(stride),
            _pair(padding),
            ceil_mode=ceil_mode,
            divisor_override=1,
        )
        return sums.to(torch.int32)

    totals = window_sums(source.to(torch.float32))
    counts = window_sums(torch.ones_like(source[:1, :1], dtype=torch.float32))
    halves = counts // 2
    nudged = totals + torch.where(totals > 0, halves, -halves)
    return torch.div(nudged, counts, rounding_mode="trunc").to(torch.int8)


def quantized_max_pool2d(
    source: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    input_zero_point: int,
    output_zero_point: int,
    low: int,
    high: int,
) -> Tensor:
    """Take the largest value of each window (``arm_max_pool_s8``)."""
    result = functional.max_pool2d(
        source.to(torch.float32),
        _pair(kernel_size),
        _pair(stride),
        _pair(padding),
        _pair(dilation),
        ceil_mode=ceil_mode,
    )
    return result.clamp_(low, high).to(torch.int8)


def pad(source: Tensor, pre_pad: Sequence[int], post_pad: Sequence[int], value: int) -> Tensor:
    """Pad; the four amounts are in the order in which the tensor's dimensions lie in memory."""
    nhwc_in_memory = source.dim() == 4 and source.is_contiguous(memory_format=torch.channels_last)
    order = (0, 3, 1, 2) if nhwc_in_memory else (0, 1, 2, 3)
    amounts: list[int] = []
    for dim in reversed(range(4 - source.dim(), 4)):
        amounts += [pre_pad[order[dim]], post_pad[order[dim]]]
    return functional.pad(source, amounts, value=value)


def transpose(source: Tensor, perm: Sequence[int]) -> Tensor:
    """Permute the dimensions."""
    return source.permute(tuple(perm))


def nhwc(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the operator for NHWC tensors that belongs to one for NCHW tensors."""

    def kernel(source: Tensor, *args: Any) -> Tensor:
        return function(source.permute(0, 3, 1, 2), *args).permute(0, 2, 3, 1)

    return kernel


_TWO_LAYOUTS: tuple[tuple[str, Callable[..., Tensor], int], ...] = (
    ("quantized_conv2d", quantized_conv2d, 13),
    ("quantized_depthwise_conv2d", quantized_depthwise_conv2d, 14),
    ("quantized_transpose_conv2d", quantized_transpose_conv2d, 15),
    ("quantized_avg_pool2d", quantized_avg_pool2d, 9),
    ("quantized_max_pool2d", quantized_max_pool2d, 10),
)

_ONE_LAYOUT: tuple[tuple[str, Callable[..., Tensor], int], ...] = (
    ("quantized_linear", quantized_linear, 11),
    ("quantized_batch_matmul", quantized_batch_matmul, 8),
    ("quantized_add", quantized_add, 13),
    ("quantized_mul", quantized_mul, 7),
    ("quantized_div", quantized_div, 6),
    ("quantized_activation", quantized_activation, 2),
    ("softmax", softmax, 7),
    ("minimum", torch.minimum, 2),
    ("maximum", torch.maximum, 2),
    ("pad", pad, 4),
    ("transpose", transpose, 2),
)


def register(registry: OperatorRegistry) -> None:
    """Add the operators of this module."""
    registry.register(out_kernel("cortex_m::quantize_per_tensor.out", quantize_per_tensor, 6))
    registry.register(out_kernel("cortex_m::dequantize_per_tensor.out", dequantize_per_tensor, 6))
    for name, function, positional in _ONE_LAYOUT:
        registry.register(_dense(f"cortex_m::{name}.out", function, positional))
    for name, function, positional in _TWO_LAYOUTS:
        registry.register(_dense(f"cortex_m::{name}.out", function, positional))
        registry.register(_dense(f"cortex_m::{name}_nhwc.out", nhwc(function), positional))


def _dense(name: str, function: Callable[..., Any], positional: int) -> Kernel:
    """Return a kernel that tells the layout of an image by its strides."""
    return replace(functional_kernel(name, function, positional), dense=None)
