"""ATen operators that only rearrange their input: ``..._copy`` and their like.

Each is given as a function that returns a view; copying the view into the slot is cheaper than
torch's own out variants, which make a tensor first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from pteron.errors import InvalidArgumentError
from pteron.kernels.write import write, write_list

_F: Any = torch._C._VariableFunctions
_narrow = torch.narrow
_slice = torch.ops.aten.slice.Tensor._op


def alias(self: Tensor, *_layout: Any, **_options: Any) -> Tensor:
    """Return the tensor itself, whatever layout was asked for."""
    return self


def expand(self: Tensor, size: list[int], implicit: bool = False) -> Tensor:
    """Return ``self`` expanded; ``implicit`` says who asked and changes nothing."""
    return self.expand(size)


def slice_(
    self: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """Return a slice of dimension ``dim``; bounds count and are clamped as Python's do."""
    if step == 1 and self.dim() > 0:
        first, last, _ = slice(start, end).indices(self.size(dim))
        return _narrow(self, dim, first, max(last - first, 0))
    result: Tensor = _slice(self, dim, start, end, step)
    return result


def as_strided(
    self: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> Tensor:
    """Return a view of the elements of ``self``, counted from its first, within its own memory."""
    first = storage_offset or 0
    if min(size, default=1) > 0:
        last = first + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride(), strict=True))
        if min(stride, default=0) < 0 or first < 0 or last >= extent or self.numel() == 0:
            raise InvalidArgumentError(
                f"as_strided to size {list(size)}, stride {list(stride)}, offset {first} leaves "
                f"the tensor of shape {tuple(self.shape)}, stride {self.stride()}"
            )
    return self.as_strided(size, stride, self.storage_offset() + first)


def view_as_complex(self: Tensor) -> Tensor:
    """Return pairs of numbers as complex ones: a view, or a copy where strides cannot express it.

    torch asks for pairs side by side, at even distances.
    """
    strides = self.stride()
    *outer, inner = strides or (1,)
    if inner != 1 or self.storage_offset() % 2 or any(step % 2 for step in outer):
        self = self.clone(memory_format=torch.contiguous_format)
    return torch.view_as_complex(self)


def view_dtype(self: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bytes of each row as another type: a view, or a copy if rows are not dense."""
    try:
        return self.view(dtype)
    except RuntimeError:
        return self.clone(memory_format=torch.contiguous_format).view(dtype)


VIEWS: dict[str, Callable[..., Tensor]] = {
    "alias_copy.out": alias,
    "as_strided_copy.out": as_strided,
    "clone.out": alias,
    "detach_copy.out": alias,
    "diagonal_copy.out": torch.diagonal,
    "expand_copy.out": expand,
    "lift_fresh_copy.out": alias,
    "narrow_copy.out": torch.narrow,
    "permute_copy.out": torch.permute,
    "select_copy.int_out": torch.select,
    "slice_copy.Tensor_out": slice_,
    "squeeze_copy.dim_out": torch.squeeze,
    "squeeze_copy.dims_out": torch.squeeze,
    "squeeze_copy.out": torch.squeeze,
    "t_copy.out": torch.t,
    "transpose_copy.int_out": torch.transpose,
    "unfold_copy.out": torch.Tensor.unfold,
    "unsqueeze_copy.out": torch.unsqueeze,
    "view_as_complex_copy.out": view_as_complex,
    "view_as_real_copy.out": torch.view_as_real,
    "view_copy.dtype_out": view_dtype,
    "view_copy.out": torch.reshape,
    "_reshape_alias_copy.out": lambda self, size, stride: torch.reshape(self, size),
    "_unsafe_view.out": torch.reshape,
    "reshape.out": torch.reshape,
}

VIEW_LISTS: dict[str, Callable[..., Sequence[Tensor]]] = {
    "split_copy.Tensor_out": _F.split,
    "split_with_sizes_copy.out": _F.split_with_sizes,
    "unbind_copy.int_out": torch.unbind,
    "unsafe_split.Tensor_out": _F.split,
    "unsafe_split_with_sizes.out": _F.split_with_sizes,
}


def copy_of(view: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the out variant of ``view``."""

    @wraps(view, assigned=("__name__",), updated=())
    def kernel(self: Tensor, *args: Any, out: Tensor, **kwargs: Any) -> Tensor:
        return write(out, view(self, *args, **kwargs))

    return kernel


def copies_of(views: Callable[..., Sequence[Tensor]]) -> Callable[..., None]:
    """Return the out variant, with a list of out tensors, of ``views``."""

    @wraps(views, assigned=("__name__",), updated=())
    def kernel(self: Tensor, *args: Any, out: Sequence[Tensor]) -> None:
        write_list(out, views(self, *args))

    return kernel
