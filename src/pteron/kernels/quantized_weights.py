"""The ``quantized_decomposed`` operators on packed or integer weights.

Embedding tables of 8, 4 and 2 bits, and products of a float tensor with an int8 matrix. Scales and
zero points are one per row, or one per group of columns of each row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pteron.errors import InvalidArgumentError
from pteron.kernels.quantized import TORCH_DTYPES, functional_kernel, plain_kernel
from pteron.kernels.registry import OperatorRegistry

Unpack = Callable[[Tensor], Tensor]
"""Turns rows of packed bytes into rows of float32 integers."""


def unpack_byte(rows: Tensor) -> Tensor:
    """Return the values of int8 or uint8 rows."""
    return rows.to(torch.float32)


def unpack_4bit(rows: Tensor) -> Tensor:
    """Return the values -8..7 of rows that hold two in a byte, the first in the high half."""
    pairs = torch.stack((rows >> 4, rows & 0x0F), dim=-1)
    return pairs.flatten(-2).to(torch.float32).sub_(8)


def unpack_2bit(rows: Tensor) -> Tensor:
    """Return the values -2..1 of rows that hold four in a byte, the first in the lowest bits."""
    quads = torch.stack((rows & 3, (rows >> 2) & 3, (rows >> 4) & 3, rows >> 6), dim=-1)
    return quads.flatten(-2).to(torch.float32).sub_(2)


def dequantize_rows(values: Tensor, scales: Tensor, zero_points: Tensor | None) -> Tensor:
    """Return float32 rows: ``values`` is (n, columns), ``scales`` (n) or (n, groups)."""
    groups = scales.shape[1] if scales.dim() == 2 else 1
    if values.shape[-1] % groups:
        raise InvalidArgumentError(f"{groups} groups do not divide {values.shape[-1]} columns")
    grouped = values.reshape(values.shape[0], groups, -1)
    if zero_points is not None:
        grouped = grouped - zero_points.to(torch.float32).reshape(-1, groups, 1)
    return (grouped * scales.to(torch.float32).reshape(-1, groups, 1)).flatten(1)


def _embed(
    weight: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    indices: Tensor,
    dtype: torch.dtype,
    unpack: Unpack,
) -> Tensor:
    """Return the dequantized rows ``indices`` of a table; only these rows are dequantized."""
    flat = indices.reshape(-1)
    rows = dequantize_rows(
        unpack(weight.index_select(0, flat)),
        scales.index_select(0, flat),
        None if zero_points is None else zero_points.index_select(0, flat),
    )
    return rows.to(dtype).reshape(*indices.shape, -1)


def embedding(unpack: Unpack) -> Callable[..., Tensor]:
    """Return an embedding kernel: the result has ``dtype``, or the type of the scales."""

    def kernel(
        weight: Tensor,
        scales: Tensor,
        zero_points: Tensor | None,
        quant_min: int,
        quant_max: int,
        indices: Tensor,
        dtype: int | None = None,
    ) -> Tensor:
        result = scales.dtype if dtype is None else TORCH_DTYPES[dtype]
        return _embed(weight, scales, zero_points, indices, result, unpack)

    return kernel


def mixed_mm(source: Tensor, weight: Tensor, scales: Tensor, zero_points: Tensor | None) -> Tensor:
    """Multiply (m, k) floats by a (k, n) int8 matrix with one scale per row."""
    matrix = dequantize_rows(weight.to(torch.float32), scales, zero_points)
    return torch.mm(source.to(torch.float32), matrix).to(source.dtype)


def mixed_linear(
    source: Tensor,
    weight: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    dtype: int | None = None,
) -> Tensor:
    """Multiply (m, k) floats by an (n, k) int8 matrix, transposed; scales are per row or group."""
    matrix = dequantize_rows(weight.to(torch.float32), scales, zero_points)
    product = torch.mm(source.to(torch.float32), matrix.t())
    return product.to(source.dtype if dtype is None else TORCH_DTYPES[dtype])


_WIDTHS: tuple[tuple[str, Unpack], ...] = (
    ("byte", unpack_byte),
    ("4bit", unpack_4bit),
    ("2bit", unpack_2bit),
)


def register(registry: OperatorRegistry) -> None:
    """Add the operators of this module."""
    for width, unpack in _WIDTHS:
        name, kernel = f"quantized_decomposed::embedding_{width}", embedding(unpack)
        registry.register(functional_kernel(f"{name}.out", kernel, 6))
        registry.register(functional_kernel(f"{name}.dtype_out", kernel, 7))
        registry.register(plain_kernel(name, kernel, 6))
        registry.register(plain_kernel(f"{name}.dtype", kernel, 7))
    for name, product, positional in (("mixed_mm", mixed_mm, 4), ("mixed_linear", mixed_linear, 5)):
        registry.register(
            functional_kernel(f"quantized_decomposed::{name}.out", product, positional)
        )
        registry.register(plain_kernel(f"quantized_decomposed::{name}", product, positional))
