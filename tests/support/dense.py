"""How a dense tensor lies in memory."""

from __future__ import annotations

from torch import Tensor


def dim_order(tensor: Tensor) -> list[int]:
    """Return the dimensions of a dense tensor, outermost in memory first."""
    if tensor.is_contiguous():
        return list(range(tensor.dim()))
    return sorted(range(tensor.dim()), key=lambda d: -tensor.stride(d))


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor fills its memory, so that a dim order says all about its strides."""
    return tensor.permute(dim_order(tensor)).is_contiguous()
