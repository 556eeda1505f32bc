"""The shapes of results that may be larger than the arguments they are computed from.

A function takes a call's arguments with the sizes of each tensor in its place, and returns the
sizes of each result (the formulas of ``torch.nn.Conv2d`` and so on).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Sizes = Sequence[int]
ResultSizes = Callable[..., Sequence[tuple[int, ...]]]


def _each(values: Sizes, count: int) -> Sizes:
    """Return one value for each spatial dimension."""
    return values if len(values) == count else [values[0]] * count


def convolution(
    x: Sizes,
    weight: Sizes,
    bias: Sizes | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> Sequence[tuple[int, ...]]:
    """Return the sizes of a convolution's result."""
    kernel = weight[2:]
    count = len(kernel)
    steps = zip(
        x[-count:],
        kernel,
        _each(stride, count),
        _each(padding, count),
        _each(dilation, count),
        _each(output_padding, count),
        strict=True,
    )
    if transposed:
        spatial = [(n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, k, s, p, d, o in steps]
    else:
        spatial = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in steps]
    channels = weight[1] * groups if transposed else weight[0]
    return [(*x[: len(x) - count - 1], channels, *spatial)]


def adaptive_pool(x: Sizes, output_size: Sizes) -> Sequence[tuple[int, ...]]:
    """Return the sizes of an adaptive pool's result."""
    return [(*x[: len(x) - len(output_size)], *output_size)]


def cdist(x1: Sizes, x2: Sizes, *_: Any) -> Sequence[tuple[int, ...]]:
    """Return the sizes of the distances between the rows of two batches of matrices."""
    batch = [1] * max(len(x1) - 2, len(x2) - 2)
    for sizes in (x1, x2):
        for at, size in enumerate(reversed(sizes[:-2]), 1):
            batch[-at] = max(batch[-at], size)
    return [(*batch, x1[-2], x2[-2])]


def pdist(x: Sizes, *_: Any) -> Sequence[tuple[int, ...]]:
    """Return the size of the distances between each two rows of a matrix."""
    return [(x[0] * (x[0] - 1) // 2,)]


def grid_sampler(x: Sizes, grid: Sizes, *_: Any) -> Sequence[tuple[int, ...]]:
    """Return the sizes of a sampled image."""
    return [(x[0], x[1], *grid[1:-1])]


RESULT_SIZES: dict[str, ResultSizes] = {
    "_adaptive_avg_pool2d.out": adaptive_pool,
    "_cdist_forward.out": cdist,
    "_pdist_forward.out": pdist,
    "convolution.out": convolution,
    "grid_sampler_2d.out": grid_sampler,
}
"""By name of the ATen operator, without its namespace."""

BOUNDED: frozenset[str] = frozenset(
    f"{name}.out"
    for name in (
        *("flip", "isinf", "native_group_norm", "native_layer_norm"),
        *("pixel_shuffle", "pixel_unshuffle", "prod", "roll"),
    )
) | {"mean.dtype_out", "var_mean.correction_out"}
"""Operators of which no result has more elements than an argument."""
