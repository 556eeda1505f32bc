"""Put a result into a slot.

A slot is a tensor with storage of fixed size. Its shape is right if the file says that it is
static; if it is dynamic, the executor empties it first (``resize_(0)``) and the kernel gives it its
shape. A result that does not fit the storage is refused by torch ("storage that is not resizable").
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_resize_ = torch.Tensor.resize_
_copy_ = torch.Tensor.copy_


def fit(out: Tensor, shape: Sequence[int]) -> Tensor:
    """Give ``out`` the shape ``shape`` if it has another one, and return it."""
    if out.shape != shape:
        _resize_(out, shape)
    return out


def write(out: Tensor, result: Tensor) -> Tensor:
    """Copy ``result`` into ``out``, which takes its shape but keeps its own dtype and device.

    Of a complex result, a real ``out`` takes the real part.
    """
    if out.shape != result.shape:
        _resize_(out, result.shape)
    if result.is_complex() and not out.is_complex():
        result = torch.real(result)
    return _copy_(out, result)


def write_list(outs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    """Copy each of ``results`` into its slot."""
    if len(outs) != len(results):
        raise ValueError(
            f"the operator gives {len(results)} tensors, the program takes {len(outs)}"
        )
    for out, result in zip(outs, results, strict=True):
        write(out, result)
