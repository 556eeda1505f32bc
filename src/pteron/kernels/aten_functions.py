"""ATen operators whose own out variant costs a copy, warns, or trusts its arguments too far."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from pteron.errors import InvalidArgumentError
from pteron.kernels.promotion import INTEGERS
from pteron.kernels.write import fit, write

_F: Any = torch._C._VariableFunctions
_NN: Any = torch._C._nn
_aten: Any = torch.ops.aten
_index = _aten.index.Tensor_out._op
_index_put_ = _aten.index_put_.default._op  # its binding in torch refuses None among the indices
_bool, _uint8 = torch.bool, torch.uint8
_WRAPPING = frozenset({torch.int32, torch.int64})


# Filling and copying.


def full(size: Sequence[int], fill_value: Any, *, out: Tensor) -> Tensor:
    """Fill ``out``, of shape ``size``."""
    return fit(out, size).fill_(fill_value)


def zeros(size: Sequence[int], *, out: Tensor) -> Tensor:
    """Fill ``out``, of shape ``size``, with zeros."""
    return fit(out, size).zero_()


def ones(size: Sequence[int], *, out: Tensor) -> Tensor:
    """Fill ``out``, of shape ``size``, with ones."""
    return fit(out, size).fill_(1)


def empty(size: Sequence[int], *, out: Tensor, **_ignored: Any) -> Tensor:
    """Give ``out`` the shape ``size``; its elements are whatever they were."""
    return fit(out, size)


def fill(self: Tensor, value: Any, *, out: Tensor, **_ignored: Any) -> Tensor:
    """Fill ``out``, of the shape of ``self``."""
    return fit(out, self.shape).fill_(value)


def scalar_tensor(s: Any, *, out: Tensor) -> Tensor:
    """Write a number into ``out``."""
    return fit(out, ()).fill_(s)


def copy(self: Tensor, src: Tensor, non_blocking: bool = False, *, out: Tensor) -> Tensor:
    """Copy ``src``, broadcast to the shape of ``self``."""
    return write(out, src.expand(self.shape))


def copy_(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy ``src`` into ``self``; a real tensor takes the real part of a complex one."""
    if src.is_complex() and not self.is_complex():
        src = torch.real(src)
    return self.copy_(src)


def to_copy(self: Tensor, *, out: Tensor, **_ignored: Any) -> Tensor:
    """Copy into the dtype, device and layout of ``out``."""
    return write(out, self)


def repeat(self: Tensor, repeats: Sequence[int], *, out: Tensor) -> Tensor:
    """Write ``self`` into every tile of ``out``."""
    leading = len(repeats) - self.dim()
    if leading < 0 or min(repeats, default=0) < 0:
        raise InvalidArgumentError(
            f"repeat of a tensor of shape {tuple(self.shape)} by {list(repeats)}; "
            "expected a count of zero or more for each dimension"
        )
    sizes = (1,) * leading + tuple(self.shape)
    fit(out, [r * n for r, n in zip(repeats, sizes, strict=True)])
    if out.numel() == 0:
        return out
    tiles = [n for pair in zip(repeats, sizes, strict=True) for n in pair]
    tile = [n for size in sizes for n in (1, size)]
    out.view(tiles).copy_(self.reshape(tile))
    return out


def constant_pad_nd(self: Tensor, pad: Sequence[int], value: Any = 0, *, out: Tensor) -> Tensor:
    """Fill ``out`` and copy ``self``, cropped where a pad is negative, into its middle."""
    shape = list(self.shape)
    if len(pad) % 2 or len(pad) > 2 * len(shape):
        raise InvalidArgumentError(
            f"constant_pad_nd of a {len(shape)}-dimensional tensor by {list(pad)}; "
            "expected a pair of numbers for each of its last dimensions"
        )
    edges = [(len(shape) - 1 - i // 2, pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    for dim, before, after in edges:
        shape[dim] += before + after
        if shape[dim] < 0:
            raise InvalidArgumentError(
                f"constant_pad_nd of shape {tuple(self.shape)} by {list(pad)} leaves dimension "
                f"{dim} with size {shape[dim]}"
            )
    inner = fit(out, shape).fill_(value)
    for dim, before, after in edges:
        inner = _cut(inner, dim, max(before, 0), max(after, 0))
        self = _cut(self, dim, max(-before, 0), max(-after, 0))
    inner.copy_(self)
    return out


def _cut(tensor: Tensor, dim: int, before: int, after: int) -> Tensor:
    if before == 0 and after == 0:
        return tensor
    start = min(before, tensor.size(dim))
    return tensor.narrow(dim, start, max(tensor.size(dim) - start - after, 0))


def select_scatter(self: Tensor, src: Tensor, dim: int, index: int, *, out: Tensor) -> Tensor:
    """Copy ``self``, then ``src`` into entry ``index`` of dimension ``dim``."""
    write(out, self)
    _copy_exactly("select_scatter", out.select(dim, index), src)
    return out


def slice_scatter(
    self: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
    *,
    out: Tensor,
) -> Tensor:
    """Copy ``self``, then ``src`` into a slice of dimension ``dim``."""
    write(out, self)
    _copy_exactly("slice_scatter", _aten.slice.Tensor._op(out, dim, start, end, step), src)
    return out


def _copy_exactly(name: str, target: Tensor, src: Tensor) -> None:
    if target.shape != src.shape:
        raise InvalidArgumentError(
            f"{name} of a source of shape {tuple(src.shape)} into a place of shape "
            f"{tuple(target.shape)}"
        )
    target.copy_(src)


# Masks and indices. torch warns of masks that are bytes; ExecuTorch takes them.


def masks_as_bool(indices: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Return an index list with its byte masks as bool."""
    for index in indices:
        if index is not None and index.dtype is _uint8:
            return [i.bool() if i is not None and i.dtype is _uint8 else i for i in indices]
    return indices


def index(self: Tensor, indices: Sequence[Tensor | None], *, out: Tensor) -> Tensor:
    """Gather with a list of index tensors and masks."""
    result: Tensor = _index(self, masks_as_bool(indices), out=out)
    return result


def index_put(
    self: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
    *,
    out: Tensor,
) -> Tensor:
    """Copy ``self``, then scatter ``values`` into the copy."""
    write(out, self)
    return index_put_(out, indices, values, accumulate)


def index_put_(
    self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """Scatter ``values`` into ``self``."""
    result: Tensor = _index_put_(self, masks_as_bool(indices), values, accumulate)
    return result


def where(condition: Tensor, self: Tensor, other: Tensor, *, out: Tensor) -> Tensor:
    """Choose between two tensors by a mask."""
    if condition.dtype is _uint8:
        condition = condition.bool()
    result: Tensor = _F.where(condition, self, other, out=out)
    return result


def masked_fill(self: Tensor, mask: Tensor, value: Any, *, out: Tensor) -> Tensor:
    """Copy ``self``, broadcast with ``mask``, and overwrite where the mask holds."""
    return _broadcast_copy(self, mask, out).masked_fill_(mask, value)


def masked_scatter(self: Tensor, mask: Tensor, source: Tensor, *, out: Tensor) -> Tensor:
    """Copy ``self``, broadcast with ``mask``; the mask's places take elements of ``source``."""
    return _broadcast_copy(self, mask, out).masked_scatter_(mask, source)


def _broadcast_copy(self: Tensor, mask: Tensor, out: Tensor) -> Tensor:
    if mask.shape != self.shape:
        self, _ = _F.broadcast_tensors((self, mask))
    return write(out, self)


def embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    out: Tensor,
) -> Tensor:
    """Gather rows of ``weight``; the other arguments matter to gradients only."""
    if weight.dim() != 2:
        raise InvalidArgumentError(
            f"embedding from a weight of shape {tuple(weight.shape)}; expected two dimensions"
        )
    fit(out, (*indices.shape, weight.size(1)))
    if out.is_contiguous() and out.dtype is weight.dtype and out.numel():
        _F.index_select(weight, 0, indices.reshape(-1), out=out.view(-1, weight.size(1)))
        return out
    return write(out, _F.embedding(weight, indices))


# Arithmetic.


def relu(self: Tensor, *, out: Tensor) -> Tensor:
    """Replace what is below zero by zero; NaN stays."""
    result: Tensor = _F.clamp_min(self, 0, out=out)
    return result


def gelu(self: Tensor, *, approximate: str = "none", out: Tensor) -> Tensor:
    """Apply GELU; torch writes wrongly into a result that lies neither densely nor as the input."""
    if out.is_contiguous() or out.stride() == self.stride() or out.shape != self.shape:
        result: Tensor = _NN.gelu(self, approximate=approximate, out=out)
        return result
    return write(out, _NN.gelu(self, approximate=approximate))


def isnan(self: Tensor, *, out: Tensor) -> Tensor:
    """Tell which elements are NaN."""
    result: Tensor = _F.ne(self, self, out=out)
    return result


def rsub(self: Tensor, other: Any, *, alpha: Any = 1, out: Tensor) -> Tensor:
    """Return ``other - alpha * self``."""
    result: Tensor = _F.sub(other, self, alpha=alpha, out=out)
    return result


def div_mode(self: Tensor, other: Any, *, rounding_mode: str | None, out: Tensor) -> Tensor:
    """Divide and round.

    Integers give floats if nothing rounds, or if the divisor is a float number. The smallest int32
    or int64 divided by -1 with truncation ends the process in torch (the quotient does not fit):
    such divisors are taken out, and the number is negated instead.
    """
    if rounding_mode == "trunc" and out.dtype in _WRAPPING:
        negated = other == -1
        if isinstance(other, Tensor):
            quotient = _F.div(self, other.masked_fill(negated, 1), rounding_mode="trunc")
            return write(out, torch.where(negated, -quotient, quotient))
        if negated:
            return write(out, -self)
    if self.dtype in INTEGERS and type(other) is not int:
        if type(other) is float or (rounding_mode is None and other.dtype in INTEGERS):
            self = self.to(torch.float32)
    elif self.dtype in INTEGERS and rounding_mode is None:
        self = self.to(torch.float32)
    result: Tensor = _F.div(self, other, rounding_mode=rounding_mode, out=out)
    return result


def var(
    self: Tensor,
    dim: Sequence[int] | None = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    out: Tensor,
) -> Tensor:
    """Return the variance over ``dim``, with Bessel's correction if ``unbiased``."""
    return var_correction(self, dim, correction=int(unbiased), keepdim=keepdim, out=out)


def var_correction(
    self: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
    out: Tensor,
) -> Tensor:
    """Return the variance over ``dim``, divided by the count less ``correction`` (default 1)."""
    correction = 1 if correction is None else correction
    count = _count(self, dim)
    if count > correction:
        result: Tensor = _F.var(self, dim, correction=correction, keepdim=keepdim, out=out)
        return result
    return write(out, _var_without_freedom(self, dim, count, keepdim))


def var_mean(
    self: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> Sequence[Tensor]:
    """Return variance and mean over ``dim``."""
    correction = 1 if correction is None else correction
    count = _count(self, dim)
    if count > correction:
        both: Sequence[Tensor] = _F.var_mean(self, dim, correction=correction, keepdim=keepdim)
        return both
    variance = _var_without_freedom(self, dim, count, keepdim)
    return variance, _F.mean(self, dim, keepdim)


def _count(self: Tensor, dim: Sequence[int] | None) -> int:
    """Return how many elements are reduced to one, 0 if there are none at all."""
    if not dim or self.numel() == 0 or self.dim() == 0:
        return self.numel()
    return prod(self.size(d) for d in dim)


def _var_without_freedom(
    self: Tensor, dim: Sequence[int] | None, count: int, keepdim: bool
) -> Tensor:
    """Divide the sum of squares by zero, as torch does, which warns of it."""
    if count == 0:
        squares: Tensor = _F.sum(self, dim, keepdim) * torch.nan
    else:
        squares = _F.var(self, dim, correction=0, keepdim=keepdim) * count
    return squares / 0.0
