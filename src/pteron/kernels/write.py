"""Put a result into a slot.

A slot is a tensor with storage of fixed size. Its shape is right if the file says that it is
static; if it is dynamic, the executor empties it first (``resize_(0)``) and the kernel gives it its
shape. A result that does not fit the storage is refused by torch ("storage that is not resizable").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_resize_ = torch.Tensor.resize_
_copy_ = torch.Tensor.copy_
_is_contiguous = torch.Tensor.is_contiguous
_torch_empty = torch.empty


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


def contiguous_outs(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """Return an out variant that writes through a copy into out tensors that are not contiguous.

    Some of torch's write as if they were, past the end of the tensor even (``tril``), or give the
    out tensor other strides than its slot has.
    """

    def kernel(*args: Any, **options: Any) -> Any:
        outs = [options[name] for name in names]
        if all(map(_is_contiguous, outs)):
            return function(*args, **options)
        fresh = [_torch_empty(out.shape, dtype=out.dtype, device=out.device) for out in outs]
        function(*args, **{**options, **dict(zip(names, fresh, strict=True))})
        write_list(outs, fresh)
        return None

    return kernel
