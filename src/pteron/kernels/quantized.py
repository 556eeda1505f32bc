"""The ``quantized_decomposed`` operators that turn floats into integers and back.

The arithmetic is the one of ExecuTorch's ``kernels/quantized/cpu``: the scale is rounded to
float32, its reciprocal is taken in float32, products are rounded to the nearest even integer before
the zero point is added. Operators that ExecuTorch has no kernel for follow eager PyTorch
(``torch.ao.quantization.fx._decomposed``). Floats out of range saturate, as in eager PyTorch.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pteron.errors import InvalidArgumentError
from pteron.format.schema import ScalarType
from pteron.kernels.registry import Kernel, OperatorRegistry, Style

TORCH_DTYPES: dict[int, torch.dtype] = {
    int(code): getattr(torch, code.torch_name)
    for code in ScalarType
    if hasattr(torch, code.torch_name)
}
"""Element types by the number that a file gives them."""

_Pair = tuple[Tensor, Tensor]


def out_kernel(name: str, function: Callable[..., Any], positional: int) -> Kernel:
    """Return a pure kernel whose function takes its ``out`` tensor as the keyword ``out``.

    It takes tensors of any strides, as those of the next two functions do.
    """
    return Kernel(name, Style.OUT, function, positional, out_names=("out",), dense=(), pure=True)


def functional_kernel(
    name: str, function: Callable[..., Any], positional: int, *outs: str
) -> Kernel:
    """Return a kernel whose results are written into the out tensors ``outs`` (``out`` if none)."""
    return Kernel(
        name,
        Style.FUNCTIONAL,
        function,
        positional,
        out_names=outs or ("out",),
        dense=(),
        pure=True,
    )


def plain_kernel(name: str, function: Callable[..., Any], positional: int) -> Kernel:
    """Return a kernel for an operator that has no out tensors in the file.

    An exporter that found no out variant leaves the functional operator in: its instruction names
    the inputs and then the value that takes the result.
    """
    return replace(functional_kernel(name, function, positional), returns=0)


@lru_cache(maxsize=4096)
def float32(value: float) -> float:
    """Return the float32 that is nearest to ``value``."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


@lru_cache(maxsize=4096)
def _reciprocal(scale: float) -> float:
    """Return 1 / scale as float32 arithmetic gives it."""
    rounded = float32(scale)
    return float32(1.0 / rounded) if rounded else math.copysign(math.inf, rounded)


def _fit(out: Tensor, like: Tensor) -> None:
    """Give ``out`` the shape of ``like``."""
    if out.shape != like.shape:
        out.resize_(like.shape)


def _quantize(
    source: Tensor,
    inverse: float | Tensor,
    zero_point: int | Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Tensor:
    """Return the quantized integers, still as floats and ready to be cast to ``dtype``."""
    if source.dtype is torch.float64:
        scaled = (source * inverse).to(torch.float32)
    else:
        scaled = source.to(torch.float32) * inverse
    scaled.round_().add_(zero_point)
    if dtype is torch.int32 or dtype is torch.int64:  # float32 cannot hold their limits
        scaled = scaled.to(torch.float64)
    return scaled.clamp_(quant_min, quant_max)


def _dequantize(
    source: Tensor, scale: float | Tensor, zero_point: int | Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Return ``(source - zero_point) * scale``, computed in float32."""
    if zero_point is None:
        values = source.to(torch.float32)
    elif source.dtype is torch.int32:  # float32 cannot hold every int32
        values = (source - zero_point).to(torch.int32).to(torch.float32)
    else:
        values = source.to(torch.float32).sub_(zero_point)
    return values.mul_(scale).to(dtype)


def _along(axis: int, values: Tensor, source: Tensor) -> Tensor:
    """Return one value per channel in the shape that broadcasts along ``axis`` of ``source``."""
    shape = [1] * source.dim()
    shape[axis] = values.numel()
    if values.numel() != source.shape[axis]:
        raise InvalidArgumentError(
            f"{values.numel()} quantization parameters for {source.shape[axis]} channels "
            f"(dimension {axis} of a tensor of shape {tuple(source.shape)})"
        )
    return values.reshape(shape)


def _result_dtype(out_dtype: int | None) -> torch.dtype:
    return torch.float32 if out_dtype is None else TORCH_DTYPES[out_dtype]


# Per tensor


def quantize_per_tensor(
    source: Tensor,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: int,
    *,
    out: Tensor,
) -> None:
    """Quantize with one scale and zero point."""
    target = TORCH_DTYPES[dtype]
    quantized = _quantize(source, _reciprocal(scale), zero_point, quant_min, quant_max, target)
    _fit(out, source)
    out.copy_(quantized)


def dequantize_per_tensor(
    source: Tensor,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: int,
    out_dtype: int | None = None,
    *,
    out: Tensor,
) -> None:
    """Bring integers with one scale and zero point back to floats."""
    _fit(out, source)
    if out.dtype is torch.float32 and source.dtype is not torch.int32:
        out.copy_(source)
        if zero_point:
            out.sub_(zero_point)
        out.mul_(scale)
    else:
        out.copy_(_dequantize(source, float32(scale), zero_point, out.dtype))


def quantize_per_tensor_tensor(
    source: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: int,
    *,
    out: Tensor,
) -> None:
    """Quantize with a scale and a zero point that are tensors of one element."""
    inverse = _one(scale).to(torch.float32).reciprocal()
    quantized = _quantize(
        source, inverse, _one(zero_point), quant_min, quant_max, TORCH_DTYPES[dtype]
    )
    _fit(out, source)
    out.copy_(quantized)


def dequantize_per_tensor_tensor(
    source: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: int,
    out_dtype: int | None = None,
    *,
    out: Tensor,
) -> None:
    """Bring integers back to floats; scale and zero point are tensors of one element."""
    _fit(out, source)
    out.copy_(_dequantize(source, _one(scale).to(torch.float32), _one(zero_point), out.dtype))


def _one(parameter: Tensor) -> Tensor:
    if parameter.numel() != 1:
        raise InvalidArgumentError(
            f"a per-tensor quantization parameter has {parameter.numel()} elements; it needs 1"
        )
    return parameter.reshape(())


def _quantize_per_tensor_plain(
    source: Tensor, scale: Any, zero_point: Any, quant_min: Any, quant_max: Any, dtype: int
) -> Tensor:
    """Quantize per tensor; parameters and limits are numbers or tensors of one element."""
    target = TORCH_DTYPES[dtype]
    if isinstance(scale, Tensor):
        inverse: float | Tensor = _one(scale).to(torch.float32).reciprocal()
        zero_point = _one(zero_point)
    else:
        inverse = _reciprocal(scale)
    return _quantize(source, inverse, zero_point, quant_min, quant_max, target).to(target)


def _dequantize_per_tensor_plain(
    source: Tensor,
    scale: Any,
    zero_point: Any,
    quant_min: Any,
    quant_max: Any,
    dtype: int,
    out_dtype: int | None = None,
) -> Tensor:
    """Dequantize per tensor; parameters are numbers or tensors of one element."""
    if isinstance(scale, Tensor):
        scale, zero_point = _one(scale).to(torch.float32), _one(zero_point)
    else:
        scale = float32(scale)
    return _dequantize(source, scale, zero_point, _result_dtype(out_dtype))


# Per channel, per token, per group


def quantize_per_channel(
    source: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: int,
) -> Tensor:
    """Quantize with one scale and zero point for each index of ``axis``."""
    target = TORCH_DTYPES[dtype]
    inverse = _along(axis, scales.to(torch.float32).reciprocal(), source)
    zeros = _along(axis, zero_points, source)
    return _quantize(source, inverse, zeros, quant_min, quant_max, target).to(target)


def dequantize_per_channel(
    source: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: int,
    out_dtype: int | None = None,
) -> Tensor:
    """Bring integers with one scale and zero point for each index of ``axis`` back to floats."""
    zeros = None if zero_points is None else _along(axis, zero_points, source)
    factors = _along(axis, scales.to(torch.float32), source)
    return _dequantize(source, factors, zeros, _result_dtype(out_dtype))


def quantize_per_token(
    source: Tensor, scales: Tensor, zero_points: Tensor, quant_min: int, quant_max: int, dtype: int
) -> Tensor:
    """Quantize with one scale and zero point for each vector along the last dimension."""
    tokens = source.reshape(-1, source.shape[-1])
    return quantize_per_channel(
        tokens, scales, zero_points, 0, quant_min, quant_max, dtype
    ).reshape(source.shape)


def dequantize_per_token(
    source: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: int,
    output_dtype: int,
) -> Tensor:
    """Bring integers with one scale and zero point per last-dimension vector back to floats."""
    tokens = source.reshape(-1, source.shape[-1])
    return dequantize_per_channel(
        tokens, scales, zero_points, 0, quant_min, quant_max, dtype, output_dtype
    ).reshape(source.shape)


def _group_size(source: Tensor, scales: Tensor, group_size: int) -> int:
    columns = source.shape[-1]
    if group_size > columns and scales.shape[-1] == 1:
        return columns
    if group_size < 2 or columns % group_size:
        raise InvalidArgumentError(f"groups of {group_size} do not divide {columns} columns")
    return group_size


def quantize_per_channel_group(
    source: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: int,
    group_size: int = 128,
) -> Tensor:
    """Quantize groups of columns; the zero point is added before rounding, as eager does."""
    groups = source.reshape(-1, _group_size(source, scales, group_size))
    scaled = groups.mul(1.0 / scales.reshape(-1, 1)).add(zero_points.reshape(-1, 1)).round()
    return scaled.clamp_(quant_min, quant_max).to(TORCH_DTYPES[dtype]).reshape(source.shape)


def dequantize_per_channel_group(
    source: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    quant_min: int,
    quant_max: int,
    dtype: int,
    group_size: int = 128,
    output_dtype: int = int(ScalarType.FLOAT),
) -> Tensor:
    """Bring groups of columns back to floats."""
    groups = source.reshape(-1, _group_size(source, scales, group_size))
    if zero_points is not None:
        groups = groups.sub(zero_points.reshape(-1, 1))
    return groups.mul(scales.reshape(-1, 1)).reshape(source.shape).to(TORCH_DTYPES[output_dtype])


def fake_quant_per_channel(
    source: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """Quantize and dequantize, channel by channel, without leaving float32."""
    factors = _along(axis, scales.to(torch.float32), source)
    zeros = _along(axis, zero_points.to(torch.int32), source)
    quantized = torch.round(source * (1.0 / factors)) + zeros
    return (quantized.clamp_(quant_min, quant_max) - zeros) * factors


def convert_element_type(source: Tensor, dtype: int) -> Tensor:
    """Cast, in a way that compilers are not to fuse."""
    return source.to(TORCH_DTYPES[dtype])


# Choosing parameters


def _affine_parameters(low: Tensor, high: Tensor, quant_min: int, quant_max: int) -> _Pair:
    """Return scales (float64) and zero points (int64) for float32 minima and maxima."""
    low = low.clamp(max=0.0)
    high = high.clamp(min=0.0)
    steps = quant_max - quant_min
    scale = (high.double() - low.double()) / steps
    rounded = scale.float()
    scale = torch.where((rounded == 0) | rounded.reciprocal().isinf(), 0.1, scale)

    least = float32(6.1e-5)  # kernels/quantized/cpu/op_choose_qparams.cpp
    small = scale < least
    amplifier = least / scale.float()
    low_raised = torch.where(high == 0, -least * steps, low * amplifier)
    high_raised = torch.where(low == 0, least * steps, high * amplifier)
    low = torch.where(small & (low != 0), low_raised, low)
    high = torch.where(small & ((low == 0) | (high != 0)), high_raised, high)
    scale = torch.where(small, least, scale)

    below, above = low.double() / scale, high.double() / scale
    from_low = quant_min - below
    from_high = quant_max - above
    low_is_nearer = (abs(quant_min) - below.abs()) < (abs(quant_max) - above.abs())
    start = torch.where(low_is_nearer, from_low, from_high)
    zero_point = start.clamp(quant_min, quant_max).float().round()
    return scale, zero_point.to(torch.int64)


def choose_qparams(source: Tensor, quant_min: int, quant_max: int, eps: float, dtype: int) -> _Pair:
    """Choose scale and zero point for the range of the whole tensor."""
    low, high = torch.aminmax(source.to(torch.float32))
    scale, zero_point = _affine_parameters(low, high, quant_min, quant_max)
    return scale.reshape(1), zero_point.reshape(1)


def choose_qparams_per_token_asymmetric(source: Tensor, dtype: int) -> _Pair:
    """Choose int8 scale and zero point for each vector along the last dimension."""
    low, high = torch.aminmax(source.to(torch.float32), dim=-1, keepdim=True)
    return _affine_parameters(low, high, -128, 127)


def choose_qparams_symmetric(
    source: Tensor, quant_min: int, quant_max: int, eps: float, dtype: int
) -> _Pair:
    """Choose a scale for a range that is symmetric about zero, as eager does."""
    low, high = torch.aminmax(source)
    reach = torch.maximum(low.clamp(max=0).neg(), high.clamp(min=0))
    scale = (reach / (float(quant_max - quant_min) / 2)).clamp(min=eps)
    unsigned = TORCH_DTYPES[dtype] is torch.uint8
    return scale.reshape(1).double(), torch.full(
        (1,), 128 if unsigned else 0, dtype=torch.int64, device=source.device
    )


def choose_qparams_per_token(source: Tensor, dtype: int) -> _Pair:
    """Choose a symmetric int8 scale for each vector along the last dimension, as eager does."""
    scales = source.abs().amax(dim=-1, keepdim=True)
    if scales.dtype is torch.float16:
        scales = scales.float()
    scales = scales.clamp(min=1e-5).div(127)
    return scales, torch.zeros_like(scales)


# Arithmetic


def quantized_add(
    a: Tensor,
    a_scale: float,
    a_zero_point: int,
    a_quant_min: int,
    a_quant_max: int,
    b: Tensor,
    b_scale: float,
    b_zero_point: int,
    b_quant_min: int,
    b_quant_max: int,
    out_scale: float,
    out_zero_point: int,
    out_quant_min: int,
    out_quant_max: int,
) -> Tensor:
    """Add two quantized tensors: dequantize, add in float32, quantize."""
    total = _dequantize(a, float32(a_scale), a_zero_point, torch.float32)
    total += _dequantize(b, float32(b_scale), b_zero_point, torch.float32)
    return _quantize(
        total, _reciprocal(out_scale), out_zero_point, out_quant_min, out_quant_max, a.dtype
    ).to(a.dtype)


_QD = "quantized_decomposed::"

_PARAMETERS = ("scale_out", "zero_point_out")


def register(registry: OperatorRegistry) -> None:
    """Add the operators of this module."""
    for kernel in (
        out_kernel(f"{_QD}quantize_per_tensor.out", quantize_per_tensor, 6),
        out_kernel(f"{_QD}quantize_per_tensor.Tensor_out", quantize_per_tensor_tensor, 6),
        out_kernel(f"{_QD}dequantize_per_tensor.out", dequantize_per_tensor, 7),
        out_kernel(f"{_QD}dequantize_per_tensor.Tensor_out", dequantize_per_tensor_tensor, 7),
        functional_kernel(f"{_QD}choose_qparams.Tensor_out", choose_qparams, 5, *_PARAMETERS),
        functional_kernel(
            f"{_QD}choose_qparams_per_token_asymmetric.out",
            choose_qparams_per_token_asymmetric,
            2,
            *_PARAMETERS,
        ),
    ):
        registry.register(kernel)
    for name, function, positional in _SINGLE_RESULT:
        registry.register(functional_kernel(f"{_QD}{name}.out", function, positional))
        registry.register(plain_kernel(f"{_QD}{name}", function, positional))
    for name, function, positional in _PLAIN_ONLY:
        registry.register(plain_kernel(f"{_QD}{name}", function, positional))


_SINGLE_RESULT: tuple[tuple[str, Callable[..., Any], int], ...] = (
    ("quantize_per_channel", quantize_per_channel, 7),
    ("dequantize_per_channel", dequantize_per_channel, 8),
    ("quantize_per_token", quantize_per_token, 6),
    ("dequantize_per_token", dequantize_per_token, 7),
    ("quantize_per_channel_group", quantize_per_channel_group, 7),
    ("dequantize_per_channel_group", dequantize_per_channel_group, 8),
    ("fake_quant_per_channel", fake_quant_per_channel, 6),
    ("add", quantized_add, 14),
)

_PLAIN_ONLY: tuple[tuple[str, Callable[..., Any], int], ...] = (
    ("quantize_per_tensor", _quantize_per_tensor_plain, 6),
    ("quantize_per_tensor.tensor", _quantize_per_tensor_plain, 6),
    ("quantize_per_tensor.tensor2", _quantize_per_tensor_plain, 6),
    ("dequantize_per_tensor", _dequantize_per_tensor_plain, 7),
    ("dequantize_per_tensor.tensor", _dequantize_per_tensor_plain, 7),
    ("dequantize_per_tensor.tensor2", _dequantize_per_tensor_plain, 7),
    ("choose_qparams.tensor", choose_qparams, 5),
    ("choose_qparams_symmetric.tensor", choose_qparams_symmetric, 5),
    ("choose_qparams_per_token", choose_qparams_per_token, 2),
    ("choose_qparams_per_token_asymmetric", choose_qparams_per_token_asymmetric, 2),
    ("_choose_qparams_per_token_asymmetric_impl", choose_qparams_per_token_asymmetric, 2),
    ("convert_element_type.no_fuse", convert_element_type, 2),
)
