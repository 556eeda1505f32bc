"""The ``torchao`` operators that an exporter leaves in a program, as functions.

They have no out variants: a file holds their functional names. The arithmetic is the one of
torchao's ``quantization/quant_primitives.py`` and of ExecuTorch's ``extension/llm/export``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pteron.errors import InvalidArgumentError
from pteron.format.schema import ScalarType
from pteron.kernels.quantized import TORCH_DTYPES, functional_kernel, plain_kernel
from pteron.kernels.registry import OperatorRegistry

_FLOAT = int(ScalarType.FLOAT)
_BFLOAT16 = int(ScalarType.BFLOAT16)
_FLOAT8 = int(ScalarType.FLOAT8E4M3FN)

_FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of the eight non-negative E2M1 codes."""


def _blocks(source: Tensor, block_size: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the shape that splits a tensor into blocks, and the same with blocks reduced to 1."""
    if len(block_size) != source.dim():
        raise InvalidArgumentError(
            f"block_size {list(block_size)} has {len(block_size)} entries for a tensor of rank "
            f"{source.dim()}"
        )
    split: list[int] = []
    reduced: list[int] = []
    for size, block in zip(source.shape, block_size, strict=True):
        if block > 1 and block != size:
            if size % block:
                raise InvalidArgumentError(f"blocks of {block} do not divide a size of {size}")
            split += [size // block, block]
            reduced += [size // block, 1]
        else:
            split.append(size)
            reduced.append(size if block == 1 else 1)
    return split, reduced


def _limits(dtype: int, low: float | None, high: float | None) -> tuple[float, float]:
    """Return the limits of the quantized values: those given, or those of their type."""
    target = TORCH_DTYPES[dtype]
    info = torch.finfo(target) if target.is_floating_point else torch.iinfo(target)
    return (info.min if low is None else low), (info.max if high is None else high)


def quantize_affine(
    source: Tensor,
    block_size: Sequence[int],
    scale: Tensor,
    zero_point: Tensor | None,
    output_dtype: int,
    quant_min: float | None = None,
    quant_max: float | None = None,
) -> Tensor:
    """Quantize with one scale and zero point per block."""
    low, high = _limits(output_dtype, quant_min, quant_max)
    split, reduced = _blocks(source, block_size)
    quantized = torch.round(source.reshape(split) * (1.0 / scale.reshape(reduced)))
    if zero_point is not None and zero_point.numel():
        quantized = quantized + zero_point.reshape(reduced)
    return quantized.clamp(low, high).reshape(source.shape).to(TORCH_DTYPES[output_dtype])


def dequantize_affine(
    source: Tensor,
    block_size: Sequence[int],
    scale: Tensor,
    zero_point: Tensor | None,
    input_dtype: int,
    quant_min: float | None = None,
    quant_max: float | None = None,
    output_dtype: int = _FLOAT,
) -> Tensor:
    """Bring integers with one scale and zero point per block back to floats."""
    dtype = TORCH_DTYPES[output_dtype]
    split, reduced = _blocks(source, block_size)
    values = source.reshape(split).to(dtype)
    if zero_point is not None and zero_point.numel():
        values = values - zero_point.reshape(reduced).to(dtype)
    return (values * scale.reshape(reduced)).reshape(source.shape).to(dtype)


def _scale_and_zero(
    low: Tensor, high: Tensor, mapping: str, quant_min: float, quant_max: float, eps: float
) -> tuple[Tensor, Tensor]:
    low, high = low.clamp(max=0), high.clamp(min=0)
    if mapping == "ASYMMETRIC":
        scale = ((high - low) / float(quant_max - quant_min)).clamp(min=eps)
        zero_point = (quant_min - torch.round(low / scale)).clamp(quant_min, quant_max)
        return scale, zero_point
    if mapping == "SYMMETRIC":
        scale = torch.maximum(-low, high) / (float(quant_max - quant_min) / 2)
    elif mapping == "SYMMETRIC_NO_CLIPPING_ERR":
        scale = torch.maximum(low / float(quant_min), high / float(quant_max))
    else:
        raise InvalidArgumentError(
            f"mapping_type {mapping!r} is none of SYMMETRIC, SYMMETRIC_NO_CLIPPING_ERR, ASYMMETRIC"
        )
    return scale.clamp(min=eps), torch.full_like(scale, int((quant_max + quant_min + 1) / 2))


def choose_qparams_affine(
    source: Tensor,
    mapping_type: str,
    block_size: Sequence[int],
    target_dtype: int,
    quant_min: float | None = None,
    quant_max: float | None = None,
    eps: float | None = None,
    scale_dtype: int | None = None,
    zero_point_dtype: int | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    """Choose a scale and a zero point for each block."""
    lowest, highest = _limits(target_dtype, quant_min, quant_max)
    split, _ = _blocks(source, block_size)
    dims: list[int] = []
    position = 0
    for size, block in zip(source.shape, block_size, strict=True):
        if block > 1 and block != size:
            position += 1
        if block != 1:
            dims.append(position)
        position += 1
    blocks = source.reshape(split)
    least = torch.finfo(source.dtype).smallest_normal if eps is None else eps
    scale, zero_point = _scale_and_zero(
        torch.amin(blocks, dim=dims),
        torch.amax(blocks, dim=dims),
        mapping_type,
        lowest,
        highest,
        least,
    )
    if keepdim:
        shape = [size // block for size, block in zip(source.shape, block_size, strict=True)]
        scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
    scale = scale.to(source.dtype if scale_dtype is None else TORCH_DTYPES[scale_dtype])
    if zero_point_dtype is not None:
        zero_point = zero_point.to(TORCH_DTYPES[zero_point_dtype])
    elif mapping_type == "ASYMMETRIC":
        zero_point = zero_point.to(torch.int32)
    return scale, zero_point


def _expand_scale(scale: Tensor, shape: torch.Size) -> Tensor:
    """Repeat a block scale until it broadcasts to ``shape``."""
    if scale.numel() == 1 or all(a in (b, 1) for a, b in zip(scale.shape, shape, strict=True)):
        return scale
    for dim, (have, want) in enumerate(zip(scale.shape, shape, strict=True)):
        if want % have:
            raise InvalidArgumentError(f"{have} scales do not divide a size of {want}")
        scale = scale.repeat_interleave(want // have, dim=dim)
    return scale


def quantize_affine_float8(tensor: Tensor, scale: Tensor, float8_dtype: int = _FLOAT8) -> Tensor:
    """Divide by the scale and cast to float8, saturating."""
    dtype = TORCH_DTYPES[float8_dtype]
    limit = torch.finfo(dtype).max
    scaled = tensor.to(torch.float32) / _expand_scale(scale, tensor.shape)
    return scaled.clamp(-limit, limit).to(dtype)


def dequantize_affine_float8(tensor: Tensor, scale: Tensor, output_dtype: int = _FLOAT) -> Tensor:
    """Multiply float8 values by their scale."""
    values = tensor.to(torch.float32) * _expand_scale(scale, tensor.shape)
    return values.to(TORCH_DTYPES[output_dtype])


def dequantize_int4_tensor(
    qdata: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    group_size: int,
    output_dtype: int = _BFLOAT16,
) -> Tensor:
    """Unpack (n, k/2) bytes, low half first, with scales and zero points of shape (groups, n)."""
    packed = qdata.contiguous().view(torch.uint8)
    values = torch.stack((packed & 0x0F, packed >> 4), dim=-1).to(torch.float32)
    grouped = values.reshape(packed.shape[0], -1, group_size)
    zeros = zero_point.t().to(torch.float32).unsqueeze(-1)
    factors = scale.t().to(torch.float32).unsqueeze(-1)
    return ((grouped - zeros) * factors).flatten(1).to(TORCH_DTYPES[output_dtype])


def dequantize_mx(
    qdata: Tensor, scale: Tensor, elem_dtype: int, block_size: int, output_dtype: int = _FLOAT
) -> Tensor:
    """Multiply blocks of float8 values by their power-of-two scales."""
    blocks = qdata.to(torch.float32).reshape(qdata.shape[0], -1, block_size)
    factors = scale.to(torch.float32).reshape(qdata.shape[0], -1, 1)
    return (blocks * factors).flatten(1).to(TORCH_DTYPES[output_dtype])


@lru_cache(maxsize=8)
def _fp4_table(device: torch.device) -> Tensor:
    return torch.tensor(
        [*_FP4_VALUES, *(-value for value in _FP4_VALUES)], dtype=torch.float32, device=device
    )


def dequantize_nvfp4(
    qdata: Tensor,
    scale: Tensor,
    per_tensor_scale: Tensor,
    block_size: int,
    output_dtype: int = _FLOAT,
) -> Tensor:
    """Unpack E2M1 values, low half of a byte first, with float8 block scales and one more scale."""
    packed = qdata.contiguous().view(torch.uint8)
    table = _fp4_table(packed.device)
    codes = torch.stack((packed & 0x0F, packed >> 4), dim=-1).flatten(1)
    blocks = table[codes.to(torch.int64)].reshape(packed.shape[0], -1, block_size)
    factors = (
        scale.contiguous()
        .view(torch.float8_e4m3fn)
        .to(torch.float32)
        .reshape(packed.shape[0], -1, 1)
    )
    values = blocks * (per_tensor_scale * factors)
    return values.flatten(1).to(TORCH_DTYPES[output_dtype])


_OPERATORS: tuple[tuple[str, Callable[..., Any], int], ...] = (
    ("quantize_affine", quantize_affine, 7),
    ("dequantize_affine", dequantize_affine, 8),
    ("quantize_affine_float8_non_decomposed", quantize_affine_float8, 3),
    ("dequantize_affine_float8_non_decomposed", dequantize_affine_float8, 3),
    ("dequantize_int4_tensor", dequantize_int4_tensor, 5),
    ("dequantize_mx", dequantize_mx, 5),
    ("dequantize_nvfp4", dequantize_nvfp4, 5),
)


def register(registry: OperatorRegistry) -> None:
    """Add the operators of this module."""
    for name, function, positional in _OPERATORS:
        registry.register(plain_kernel(f"torchao::{name}", function, positional))
        registry.register(functional_kernel(f"torchao::{name}.out", function, positional))
    registry.register(plain_kernel("torchao::choose_qparams_affine", choose_qparams_affine, 10))
    registry.register(
        functional_kernel(
            "torchao::choose_qparams_affine.out",
            choose_qparams_affine,
            10,
            "scale_out",
            "zero_point_out",
        )
    )
