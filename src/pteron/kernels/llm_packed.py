"""Operators on weights that torchao packed for its low-bit kernels.

A blob is a header of 16 int32 (magic, kind, bits, has zeros, has bias, nr, kr, sr, ...) and, for
each ``nr`` rows of the weight and each group of columns, the values, the rows' scales, their sums
and their zero points, and after the last group the rows' biases. Facts: torchao's
``csrc/cpu/torch_free_kernels/weight_packing/weight_packing.h``, the ``universal`` layout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from pteron.errors import InvalidArgumentError, NotSupportedError
from pteron.kernels.quantized import functional_kernel
from pteron.kernels.registry import OperatorRegistry

_HEADER_BYTES = 64
_MAGIC = 6712
_UNIVERSAL = 1
_CHUNKS = (32, 64, 128)
"""Values that the layout packs at a time (rows times columns)."""


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """An (n, k) weight: integers, scales and zero points by group, biases."""

    values: Tensor
    scales: Tensor
    zeros: Tensor | None
    bias: Tensor | None

    def dequantize(self) -> Tensor:
        """Return the float32 weight."""
        n, groups = self.scales.shape
        values = self.values.to(torch.float32).reshape(n, groups, -1)
        if self.zeros is not None:
            values = values - self.zeros.to(torch.float32).unsqueeze(-1)
        return (values * self.scales.unsqueeze(-1)).reshape(n, -1)


def unpack(blob: Tensor, n: int, k: int, group_size: int, bits: int) -> PackedWeight:
    """Read a packed (n, k) weight of 4 or 8 bits from its bytes, checking that they are enough."""
    has_zeros, has_bias, nr, kr, sr = _read_header(blob, bits)
    if n < 1 or group_size < 1 or k % group_size or group_size % kr:
        raise InvalidArgumentError(
            f"packed weight: groups of {group_size} columns do not fit {k} columns packed by {kr}"
        )
    blocks, groups, chunks = -(-n // nr), k // group_size, group_size // kr
    value_bytes = chunks * nr * kr * bits // 8
    group_bytes = value_bytes + 4 * nr * (3 if has_zeros else 2)
    block_bytes = groups * group_bytes + (4 * nr if has_bias else 0)
    available = blob.numel() - _HEADER_BYTES
    if available < blocks * block_bytes:
        raise InvalidArgumentError(
            f"packed weight: ({n}, {k}) of {bits} bits needs {blocks * block_bytes} bytes after "
            f"the header, the blob has {available}"
        )
    body = blob[_HEADER_BYTES : _HEADER_BYTES + blocks * block_bytes].reshape(blocks, block_bytes)
    grouped = body[:, : groups * group_bytes].reshape(blocks, groups, group_bytes)

    def rows(start: int, dtype: torch.dtype) -> Tensor:
        """Return one 4-byte number for each row and group, as (n, groups)."""
        numbers = grouped[:, :, start : start + 4 * nr].contiguous().view(dtype)
        return numbers.permute(0, 2, 1).reshape(-1, groups)[:n]

    values = _unpack_values(grouped[:, :, :value_bytes], bits, chunks, nr, kr, sr)
    bias = None
    if has_bias:
        tail = body[:, groups * group_bytes :].contiguous()
        bias = tail.view(torch.float32).reshape(-1)[:n]
    return PackedWeight(
        values=values.reshape(-1, k)[:n],
        scales=rows(value_bytes, torch.float32),
        zeros=rows(value_bytes + 8 * nr, torch.int32) if has_zeros else None,
        bias=bias,
    )


def _read_header(blob: Tensor, bits: int) -> tuple[bool, bool, int, int, int]:
    if blob.numel() < _HEADER_BYTES:
        raise InvalidArgumentError(
            f"packed weight: {blob.numel()} bytes are less than a header of {_HEADER_BYTES}"
        )
    magic, kind, stored_bits, has_zeros, has_bias, nr, kr, sr, *_ = (
        blob[:_HEADER_BYTES].clone().view(torch.int32).tolist()
    )
    if magic != _MAGIC:
        raise InvalidArgumentError(f"packed weight: magic number {magic}, expected {_MAGIC}")
    if kind != _UNIVERSAL:
        raise NotSupportedError(
            f"packed weight: layout {kind} is for one kind of processor",
            hint="pack the weights with target='universal'",
        )
    if stored_bits != bits:
        raise InvalidArgumentError(
            f"packed weight: the blob holds {stored_bits}-bit values, the operator takes {bits}"
        )
    if min(nr, kr, sr) < 1 or nr * kr not in _CHUNKS or kr % sr:
        raise InvalidArgumentError(f"packed weight: tiles of {nr} x {kr} in {sr} parts")
    return bool(has_zeros), bool(has_bias), nr, kr, sr


def _unpack_values(packed: Tensor, bits: int, chunks: int, nr: int, kr: int, sr: int) -> Tensor:
    """Return (blocks, nr, groups, columns of a group) integers of (blocks, groups, bytes)."""
    blocks, groups, _ = packed.shape
    if bits == 8:
        values = packed.contiguous().view(torch.int8)
    else:
        sixteens = packed.reshape(blocks, groups, -1, 16)
        halves = torch.stack((sixteens & 0x0F, sixteens >> 4), dim=-2)
        values = halves.to(torch.int8) - 8
    tiles = values.reshape(blocks, groups, chunks, sr, nr, kr // sr)
    return tiles.permute(0, 4, 1, 2, 3, 5).reshape(blocks * nr, groups * chunks * kr)


# Operators


def linear_8bit_act(
    activations: Tensor, packed: Tensor, group_size: int, n: int, k: int, *, bits: int
) -> Tensor:
    """Multiply by a packed weight; each row of activations is rounded to int8 first."""
    weight = unpack(packed, n, k, group_size, bits)
    rows = activations.to(torch.float32)
    low, high = torch.aminmax(rows, dim=-1, keepdim=True)
    scale = (high - low) / 255
    zero = -128 - torch.round(low / scale)
    quantized = torch.round(rows / (scale + 1e-16) + zero).clamp(-128, 127)
    result = torch.matmul((quantized - zero) * scale, weight.dequantize().t())
    return result if weight.bias is None else result + weight.bias


def _route(
    scores: Tensor, expert_bias: Tensor, count: int, score_func: str, route_scale: float
) -> tuple[Tensor, Tensor]:
    """Return the experts of each token and their weights, both (tokens, count)."""
    if score_func == "sigmoid":
        scores = torch.sigmoid(scores)
        ranked = scores + expert_bias if expert_bias.numel() else scores
        experts = ranked.topk(count, dim=-1).indices
        weights = scores.gather(1, experts)
        least = torch.finfo(torch.float32).tiny
        return experts, weights * (route_scale / weights.sum(-1, keepdim=True).clamp(min=least))
    if score_func == "softmax":
        best = scores.topk(count, dim=-1)
        return best.indices, torch.softmax(best.values, dim=-1)
    raise InvalidArgumentError(
        f"llama::quantized_moe_ffn: score_func {score_func!r} is neither sigmoid nor softmax"
    )


def quantized_moe_ffn(
    x: Tensor,
    gate_weight: Tensor,
    expert_bias: Tensor,
    packed_w13: Tensor,
    packed_w2: Tensor,
    num_activated_experts: int,
    num_experts: int,
    hidden_dim: int,
    dim: int,
    group_size: int,
    weight_nbit: int,
    score_func: str,
    route_scale: float,
) -> Tensor:
    """Run a mixture of SwiGLU experts with packed weights over (tokens, dim) float32 values."""
    experts, weights = _route(
        x @ gate_weight.t(), expert_bias, num_activated_experts, score_func, route_scale
    )
    result = torch.zeros_like(x)
    for expert in torch.unique(experts).tolist():
        tokens, place = (experts == expert).nonzero(as_tuple=True)
        up = unpack(packed_w13[expert], 2 * hidden_dim, dim, group_size, weight_nbit)
        down = unpack(packed_w2[expert], dim, hidden_dim, group_size, weight_nbit)
        gate, value = (x[tokens] @ up.dequantize().t()).chunk(2, dim=-1)
        hidden = functional.silu(gate) * value
        part = hidden @ down.dequantize().t()
        result.index_add_(0, tokens, part * weights[tokens, place].unsqueeze(-1))
    return result


def register(registry: OperatorRegistry) -> None:
    """Add the operators of this module."""
    moe = functional_kernel("llama::quantized_moe_ffn.out", quantized_moe_ffn, 13)
    registry.register(replace(moe, data_dependent=True))
    for bits in (4, 8):
        name = f"torchao::_linear_8bit_act_{bits}bit_weight.out"
        linear = functional_kernel(name, partial(linear_8bit_act, bits=bits), 5)
        registry.register(replace(linear, data_dependent=True))
