"""What to do about an input that does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import torch

from pteron.executor.signature import ValueInfo


def describe(tensor: torch.Tensor) -> str:
    """Return element type, shape and, unless it is the CPU, device: ``float32[2, 3] on cuda:0``."""
    place = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}{place}"


def short(given: Any) -> str:
    """Return type and value of what was given, or the type alone where the value is long."""
    if isinstance(given, torch.Tensor):
        return describe(given)
    if given is None:
        return "None"
    text = repr(given)
    kind = type(given).__name__
    return f"{kind} {text}" if len(text) <= 40 else kind


def dtype_hint(given: Any, info: ValueInfo) -> str:
    """Say how to convert what was given, in the words of its own library."""
    wanted = info.dtype_name
    if isinstance(given, torch.Tensor):
        return f"convert it with .to(torch.{wanted})"
    if not hasattr(given, "astype"):
        return f"convert it to {wanted}"
    if wanted == "bool" or wanted in _NUMPY:
        return f"convert it with .astype(numpy.{'bool_' if wanted == 'bool' else wanted})"
    return f"numpy lacks {wanted}: convert it with torch.from_numpy(x).to(torch.{wanted})"


_NUMPY = frozenset(
    "uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64 complex64 "
    "complex128".split()
)


def shape_hint(given: Any, shape: Sequence[int], info: ValueInfo) -> str | None:
    """Say how to bring what was given to the shape of an input; None if the shape fits."""
    wanted = info.shape or ()
    if _fits(shape, info):
        return None
    is_torch = isinstance(given, torch.Tensor)
    ranks = f"{_dimensions(len(wanted))} needed, got {len(shape)}"
    if _fits((1, *shape), info):
        return f"{ranks}: add the batch dimension with " + (
            "x.unsqueeze(0)" if is_torch else "x[None]"
        )
    order = _channels_order(shape, info)
    if order is not None:
        turn = f"x.{'permute' if is_torch else 'transpose'}({', '.join(map(str, order))})"
        if len(order) == len(wanted):
            return f"the channels come first: {turn}"
        batch = ".unsqueeze(0)" if is_torch else "[None]"
        return f"the channels come first, and the batch dimension is missing: {turn}{batch}"
    if len(shape) != len(wanted):
        return ranks
    if info.is_dynamic:
        over = [
            at for at, (got, bound) in enumerate(zip(shape, wanted, strict=True)) if got > bound
        ]
        bounds = ", ".join(f"dimension {at} to {wanted[at]}" for at in over)
        return f"the program limits {bounds}; export it again with a larger bound"
    return "the program takes this shape alone; export it again with dynamic shapes for others"


def _fits(shape: Sequence[int], info: ValueInfo) -> bool:
    wanted = info.shape or ()
    if len(shape) != len(wanted):
        return False
    if info.is_dynamic:
        return all(got <= bound for got, bound in zip(shape, wanted, strict=True))
    return tuple(shape) == tuple(wanted)


def _dimensions(number: int) -> str:
    return f"{number} dimension{' is' if number == 1 else 's are'}"


def _channels_order(shape: Sequence[int], info: ValueInfo) -> tuple[int, ...] | None:
    """Return the order of dimensions that makes a picture with its channels last fit."""
    rank = len(shape)
    for order in permutations(range(rank)):
        if order not in ((0, 3, 1, 2), (2, 0, 1)):
            continue
        turned = [shape[at] for at in order]
        if _fits(turned, info) or (rank == 3 and _fits((1, *turned), info)):
            return order
    return None
