"""Weights of products: float32 matrices, or smaller numbers that are widened when they are used.

A matrix of 8-bit weights in float32 is four times as much memory. Large ones stay as the file has
them, and a piece at a time becomes float32 in a buffer that the processor's cache holds, which
takes no more than a tenth longer (``bench/xnnpack_kernels.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from pteron.backends.xnnpack.graph import (
    FLAG_TRANSPOSE_WEIGHTS,
    Datatype,
    Node,
    PerBlock,
    PerTensor,
    Value,
)
from pteron.backends.xnnpack.planner import Planner

WIDE_BYTES = 1 << 20
"""Weights that take more than this in float32 are widened when they are used."""

PIECE_BYTES = 3 << 20
"""What a piece takes in float32: it stays in the cache from its making to its use."""

REORDER_NUMEL, REORDER_ROWS = 1 << 19, 4
"""From these sizes on oneDNN's kernel is the faster one for float32 weights
(``bench/xnnpack_kernels.py``: 0.7 of BLAS's time at 768 by 3072, 0.6 at a vocabulary's size)."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An (out, in) matrix of small numbers, to be multiplied by ``blocks``, one for each block."""

    numbers: torch.Tensor
    blocks: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the product's other operand: (in, out)."""
        return self.numbers.shape[1], self.numbers.shape[0]

    def pieces(self) -> list[tuple[int, int]]:
        """Return where each piece begins and ends, in output channels."""
        inner, outer = self.shape
        size = max(32, PIECE_BYTES // (4 * inner))
        count = -(-outer // size)
        size = -(-outer // count)
        return [(begin, min(begin + size, outer)) for begin in range(0, outer, size)]


@dataclass(frozen=True, slots=True)
class Reordered:
    """An (out, in) float32 matrix in the order in which oneDNN's kernel reads it."""

    weights: torch.Tensor


def reordered_weights(planner: Planner, node: Node) -> Reordered | None:
    """Return a node's float32 weights for oneDNN; None where its kernel is not the faster one."""
    value = planner.value(node.inputs[1])
    if (
        not planner.uses_onednn
        or value.datatype is not Datatype.FP32
        or not value.is_constant
        or value.numel < REORDER_NUMEL
    ):
        return None
    rows = prod(planner.shapes[node.inputs[0]][:-1])
    if rows < REORDER_ROWS:
        return None
    constants = planner.constants
    transposed = bool(node.flags & FLAG_TRANSPOSE_WEIGHTS)

    def reorder() -> Reordered:
        # For products of about that many rows; others come out right, too.
        matrix = _as_matrix(constants.raw(value))
        matrix = matrix.t().contiguous() if transposed else matrix
        return Reordered(torch.ops.mkldnn._reorder_linear_weight(matrix, rows))

    return constants.prepared(("reordered", transposed), (value,), reorder)


def weights_of(planner: Planner, node: Node) -> Stored | torch.Tensor:
    """Return a node's constant weights: numbers to widen, or an (in, out) matrix in float32.

    Scales of blocks are in it, or go with it; those of channels are :func:`channel_scales`.
    Pointwise filters are weights, too.
    """
    value = planner.value(node.inputs[1])
    if not value.is_constant:
        planner.refuse(f"{node}: weights of that type that are no constant")
    transposed = bool(node.flags & FLAG_TRANSPOSE_WEIGHTS)
    if not transposed and _is_wide(planner, value):
        return Stored(_small(planner, value), _blocks(planner, value))
    constants = planner.constants
    matrix = constants.prepared("weights", (value,), lambda: _widened(planner, value))
    return matrix if transposed else matrix.t()


def channel_scales(planner: Planner, node: Node) -> torch.Tensor | None:
    """Return the scale of each output channel, or one for all; None if blocks have their own."""
    value = planner.value(node.inputs[1])
    if isinstance(value.quantization, PerBlock) or value.quantization is None:
        return None
    return planner.constants.prepared("scales", (value,), lambda: planner.constants.scales(value))


def _is_wide(planner: Planner, value: Value) -> bool:
    quantization = value.quantization
    shifted = isinstance(quantization, PerTensor) and quantization.zero_point != 0
    return planner.device.type == "cpu" and not shifted and 4 * value.numel > WIDE_BYTES


def _as_matrix(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.view(numbers.shape[0], numbers.shape[-1])


def _small(planner: Planner, value: Value) -> torch.Tensor:
    """Return weights in the smallest type that torch converts: 4 bits take 8."""
    constants = planner.constants
    if value.datatype.bits != 4:
        return _as_matrix(constants.raw(value))
    return constants.prepared("8 bits", (value,), lambda: constants.whole(value).to(torch.int8))


def _blocks(planner: Planner, value: Value) -> torch.Tensor | None:
    if not isinstance(value.quantization, PerBlock):
        return None
    return planner.constants.prepared("scales", (value,), lambda: planner.constants.scales(value))


def _widened(planner: Planner, value: Value) -> torch.Tensor:
    """Return weights as an (out, in) matrix in float32."""
    if value.datatype in (Datatype.FP32, Datatype.FP16, Datatype.BF16):
        return _as_matrix(planner.constants.plain(value)).float()
    matrix = _as_matrix(planner.constants.whole(value))
    blocks = _blocks(planner, value)
    return matrix if blocks is None else times_blocks(matrix, blocks)


def times_blocks(matrix: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Multiply each block of a row by its number, in place."""
    matrix.view(*blocks.shape, -1).mul_(blocks.unsqueeze(-1))
    return matrix
