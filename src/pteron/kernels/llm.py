"""The operators of ExecuTorch's language-model library (``extension/llm/custom_ops``).

Attention over a cache that is written in place, cache updates, the Hadamard transform of SpinQuant,
the gated delta rule of linear attention, and a few small ones. Tensors are (batch, sequence, heads,
head size) unless a comment says otherwise.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pteron.errors import InvalidArgumentError
from pteron.kernels.quantized import functional_kernel, plain_kernel
from pteron.kernels.registry import Kernel, OperatorRegistry, Style

# Attention


def _causal_mask(queries: int, keys: int, start_pos: int, device: torch.device) -> Tensor | None:
    """Return which keys each query may see: all up to its own position. None if it is every one."""
    if queries == 1:
        return None
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril_(start_pos)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    start_pos: int,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    """Attend; all tensors are (batch, heads, sequence, head size), keys as many as are seen."""
    queries, keys = query.shape[2], key.shape[2]
    mask = attn_mask
    causal_from_zero = is_causal and start_pos == 0 and queries == keys
    if is_causal and not causal_from_zero:
        mask = _causal_mask(queries, keys, start_pos, query.device)
    elif mask is not None and mask.dtype is not torch.bool:
        mask = mask.to(query.dtype)
    return scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=causal_from_zero and queries > 1,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _seen(
    name: str,
    cached: int,
    start_pos: int,
    queries: int,
    attn_mask: Tensor | None,
    is_causal: bool,
) -> int:
    """Return how many of the cached positions take part, checking what the call asks for."""
    if attn_mask is not None and is_causal:
        raise InvalidArgumentError(f"{name}: attn_mask and is_causal exclude each other")
    if attn_mask is not None:
        if attn_mask.dim() != 2 or attn_mask.shape != (queries, cached):
            raise InvalidArgumentError(
                f"{name}: attn_mask has shape {tuple(attn_mask.shape)}; with {queries} queries and "
                f"{cached} keys it has to be ({queries}, {cached})"
            )
        return cached
    end = start_pos + queries
    if start_pos < 0 or end > cached:
        raise InvalidArgumentError(
            f"{name}: positions {start_pos} to {end} do not fit a cache of {cached}"
        )
    return end


def custom_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    start_pos: int,
    attn_mask: Tensor | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attend from positions ``start_pos`` on to what a cache holds up to there.

    With a mask of shape (queries, cache length) all of the cache takes part.
    """
    keys = _seen(
        "llama::custom_sdpa", key.shape[1], start_pos, query.shape[1], attn_mask, is_causal
    )
    result = _attend(
        query.transpose(1, 2),
        key[:, :keys].transpose(1, 2),
        value[:, :keys].transpose(1, 2),
        start_pos,
        attn_mask,
        is_causal,
        scale,
    )
    return result.transpose(1, 2)


def sdpa_with_kv_cache(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    start_pos: int,
    seq_len: int,
    attn_mask: Tensor | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Write keys and values into their caches at ``start_pos``, then attend to the caches."""
    _store("llama::sdpa_with_kv_cache", key, key_cache, start_pos)
    _store("llama::sdpa_with_kv_cache", value, value_cache, start_pos)
    return custom_sdpa(
        query, key_cache, value_cache, start_pos, attn_mask, dropout, is_causal, scale
    )


def custom_quantized_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    start_pos: int,
    attn_mask: Tensor | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    q_zero_points: Tensor | None = None,
    q_scales: Tensor | None = None,
    k_zero_points: Tensor | None = None,
    k_scales: Tensor | None = None,
    v_zero_points: Tensor | None = None,
    v_scales: Tensor | None = None,
    is_seq_at_dim_2: bool = False,
) -> Tensor:
    """Attend with int8 queries, keys and values that have a scale and zero point per token.

    The result is float32, as the queries are laid out.
    """
    at = 2 if is_seq_at_dim_2 else 1
    keys = _seen(
        "llama::custom_quantized_sdpa",
        key.shape[at],
        start_pos,
        query.shape[at],
        attn_mask,
        is_causal,
    )

    def heads_first(x: Tensor, zeros: Tensor | None, scales: Tensor | None, length: int) -> Tensor:
        x = x.narrow(at, 0, length)
        if zeros is not None and scales is not None:
            floats = x.to(torch.float32).sub_(zeros.narrow(at, 0, length))
            x = floats.mul_(scales.narrow(at, 0, length))
        return x if is_seq_at_dim_2 else x.transpose(1, 2)

    result = _attend(
        heads_first(query, q_zero_points, q_scales, query.shape[at]),
        heads_first(key, k_zero_points, k_scales, keys),
        heads_first(value, v_zero_points, v_scales, keys),
        start_pos,
        attn_mask,
        is_causal,
        scale,
    )
    return result if is_seq_at_dim_2 else result.transpose(1, 2)


# Caches


def _store(name: str, value: Tensor, cache: Tensor, start_pos: int) -> None:
    end = start_pos + value.shape[1]
    if start_pos < 0 or end > cache.shape[1]:
        raise InvalidArgumentError(
            f"{name}: positions {start_pos} to {end} do not fit a cache of {cache.shape[1]}"
        )
    if value.shape[0] != cache.shape[0] or value.shape[2:] != cache.shape[2:]:
        raise InvalidArgumentError(
            f"{name}: values of shape {tuple(value.shape)} do not fit a cache of shape "
            f"{tuple(cache.shape)}"
        )
    cache.narrow(1, start_pos, value.shape[1]).copy_(value)


def update_cache(value: Tensor, cache: Tensor, start_pos: int, *, out: Tensor) -> None:
    """Write values into a cache from position ``start_pos`` on; ``out`` means nothing."""
    _store("llama::update_cache", value, cache, start_pos)


def update_cache_with_indices(
    value: Tensor, cache: Tensor, start_pos: int, indices: Tensor, *, out: Tensor
) -> None:
    """Write each token's values at its own position; ``out`` means nothing."""
    places = indices.reshape(*indices.shape, 1, 1).expand(value.shape)
    cache.scatter_(1, places, value)


def update_cross_attn_cache(value: Tensor, cache: Tensor) -> Tensor:
    """Write values to the start of a (batch, heads, sequence, head size) cache, and return it."""
    cache.narrow(2, 0, value.shape[2]).copy_(value)
    return cache


# The Hadamard transform

_WILLIAMSON = ("+------", "++----+", "+-+--+-", "+--++--")
"""First rows of four circulant matrices of order 7 that make a Hadamard matrix of order 28."""


@lru_cache(maxsize=8)
def hadamard_28(device: torch.device | None = None) -> Tensor:
    """Return the Hadamard matrix of order 28 that ExecuTorch uses (Williamson's construction)."""
    a, b, c, d = (
        torch.stack([torch.roll(row, shift) for shift in range(7)])
        for row in (
            torch.tensor(
                [1.0 if sign == "+" else -1.0 for sign in signs], dtype=torch.float32, device="cpu"
            )
            for signs in _WILLIAMSON
        )
    )
    rows = ((a, b, c, d), (-b, a, -d, c), (-c, d, a, -b), (-d, -c, b, a))
    return torch.cat([torch.cat(row, dim=1) for row in rows]).to(device or "cpu")


def fast_hadamard_transform(mat: Tensor) -> Tensor:
    """Multiply the last dimension, 2**n or 28 * 2**n long, by a Hadamard matrix over sqrt(2**n)."""
    size = mat.shape[-1] if mat.dim() else 0
    if mat.numel() == 0 or size == 0:
        return mat
    leading = 28 if size % 28 == 0 else 1
    power = size // leading
    if power & (power - 1):
        raise InvalidArgumentError(
            f"llama::fast_hadamard_transform takes 2**n or 28 * 2**n columns, not {size}"
        )
    values = mat.to(torch.float32).reshape(-1, leading, power)
    half = 1
    while half < power:
        pairs = values.reshape(-1, leading, power // (2 * half), 2, half)
        first, second = pairs.unbind(3)
        values = torch.stack((first + second, first - second), dim=3)
        half *= 2
    values = values.reshape(-1, leading, power)
    if leading > 1:
        values = torch.matmul(hadamard_28(values.device), values)
    return (values / math.sqrt(power)).reshape(mat.shape).to(mat.dtype)


# Linear attention


def gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    beta: Tensor,
    initial_state: Tensor,
) -> tuple[Tensor, Tensor]:
    """Run the gated delta rule over a sequence; return the outputs and the last state.

    All tensors are (batch, heads, sequence, ...); ``decay`` has one factor per channel or one per
    token; the state is (batch, heads, key size, value size). Several query heads may share a state.
    """
    batch, heads, length, width = key.shape
    queries = query.reshape(batch, heads, query.shape[1] // heads, length, width)
    factors = decay.unsqueeze(-1) if decay.dim() == 3 else decay
    state = initial_state.clone()
    outputs = []
    for t in range(length):
        state = state * factors[:, :, t].unsqueeze(-1)
        k = key[:, :, t].unsqueeze(-1)
        predicted = (state * k).sum(dim=2)
        delta = (value[:, :, t] - predicted) * beta[:, :, t].unsqueeze(-1)
        state = state + k * delta.unsqueeze(2)
        outputs.append(torch.matmul(queries[:, :, :, t], state))
    if not outputs:
        return query.new_empty((*query.shape[:3], value.shape[3])), state
    result = torch.stack(outputs, dim=3)
    return result.reshape(*query.shape[:3], value.shape[3]), state


# Small ones


def tile_crop(source: Tensor, tile_size: int) -> Tensor:
    """Cut a (channels, height, width) image into square tiles, row by row."""
    channels, height, width = source.shape
    if tile_size < 1 or height % tile_size or width % tile_size:
        raise InvalidArgumentError(
            f"preprocess::tile_crop: tiles of {tile_size} do not divide {height} x {width}"
        )
    tiles = source.reshape(channels, height // tile_size, tile_size, width // tile_size, tile_size)
    return tiles.permute(1, 3, 0, 2, 4).reshape(-1, channels, tile_size, tile_size)


def _same(source: Tensor) -> Tensor:
    return source


def _alias(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x, y


def _writes(name: str, function: object, positional: int, *mutated: int) -> Kernel:
    """Return an OUT kernel that changes inputs, at positions ``mutated``, in place of its out."""
    assert callable(function)
    return Kernel(
        name,
        Style.OUT,
        function,
        positional,
        out_names=("out",),
        also_mutates=mutated,
        leaves_outs=True,
        dense=(),
    )


def register(registry: OperatorRegistry) -> None:
    """Add the operators of this module."""
    states = ("out", "final_state_out")
    for kernel in (
        functional_kernel("llama::custom_sdpa.out", custom_sdpa, 8),
        functional_kernel("llama::custom_quantized_sdpa.out", custom_quantized_sdpa, 15),
        Kernel(
            "llama::sdpa_with_kv_cache.out",
            Style.FUNCTIONAL,
            sdpa_with_kv_cache,
            11,
            out_names=("out",),
            also_mutates=(3, 4),
            dense=(),
        ),
        _writes("llama::update_cache.out", update_cache, 3, 1),
        _writes("llama::update_cache_with_indices.out", update_cache_with_indices, 4, 1),
        functional_kernel("llama::fast_hadamard_transform.out", fast_hadamard_transform, 1),
        functional_kernel("llama::gated_delta_rule.out", gated_delta_rule, 6, *states),
        functional_kernel("llama::channelwise_gated_delta_rule.out", gated_delta_rule, 6, *states),
        functional_kernel("llama::fallback.out", _same, 1),
        functional_kernel("preprocess::tile_crop.out", tile_crop, 2),
        plain_kernel("executorch::alias", _alias, 2),
        Kernel(
            "executorch::update_cross_attn_cache",
            Style.FUNCTIONAL,
            update_cross_attn_cache,
            2,
            out_names=("out",),
            returns=0,
            also_mutates=(1,),
            dense=(),
        ),
    ):
        registry.register(kernel)
