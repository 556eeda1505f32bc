"""Calls made ready for the very tensors of one instruction, where that saves work on a GPU.

torch's out variants of these operators compute a new tensor and copy it. On CUDA there are others
underneath that write in place; what they need of constant inputs is computed once, at load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pteron.kernels.registry import OperatorRegistry

_aten = torch.ops.aten

Call = Callable[[], object]

_FLOATS = (torch.float32, torch.float64)


def batch_norm(
    inputs: Sequence[Any], constant: Sequence[bool], outs: Sequence[Tensor]
) -> Call | None:
    """Return ``input * scale + shift`` for running statistics that are constant.

    The scale and shift are those of torch's own kernel for the host.
    """
    x, weight, bias, mean, var, _, eps = inputs
    out = outs[0]
    if out.device.type != "cuda" or x.dtype not in _FLOATS or x.dim() < 2 or not x.numel():
        return None
    for value, fixed in zip(inputs[1:5], constant[1:5], strict=True):
        if value is not None and not (fixed and value.dtype is x.dtype):
            return None
    scale = torch.rsqrt(var + eps)
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale
    if bias is not None:
        shift = shift + bias
    shape = (-1, *[1] * (x.dim() - 2))
    scale, shift = scale.view(shape), shift.view(shape)
    return lambda: torch.addcmul(shift, x, scale, out=out)


def convolution(
    inputs: Sequence[Any], constant: Sequence[bool], outs: Sequence[Tensor]
) -> Call | None:
    """Return cuDNN's two-dimensional convolution, or torch's depthwise one, writing in place."""
    x, weight, bias, stride, padding, dilation, transposed, _, groups = inputs
    (out,) = outs
    if out.device.type != "cuda" or x.dim() != 4 or transposed or not out.numel():
        return None
    if not (x.is_contiguous() and weight.is_contiguous() and out.is_contiguous()):
        return None
    if groups > 1 and groups == x.size(1):
        if x.dtype is not torch.float32:
            return None
        depthwise = _aten._conv_depthwise2d.out._op
        kernel_size = list(weight.shape[2:])
        return _tried(
            lambda: depthwise(x, weight, kernel_size, bias, stride, padding, dilation, out=out)
        )
    cudnn = torch.backends.cudnn
    if not cudnn.is_acceptable(x):  # type: ignore[no-untyped-call]
        return None
    convolve = _aten.cudnn_convolution.out._op
    column = None if bias is None else bias.view(1, -1, 1, 1)

    def call() -> None:
        flags = (cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32)
        convolve(x, weight, padding, stride, dilation, groups, *flags, out=out)
        if column is not None:
            out.add_(column)

    return _tried(call)


def _tried(call: Call) -> Call | None:
    """Return a call that torch of this version and this GPU can do, else None."""
    try:
        call()
    except (RuntimeError, TypeError):
        return None
    return call


def register(registry: OperatorRegistry) -> None:
    """Add what is here to the kernels that are registered."""
    for name, prepare in (
        ("aten::_native_batch_norm_legit_no_training.out", batch_norm),
        ("aten::convolution.out", convolution),
    ):
        kernel = registry.find(name)
        assert kernel is not None
        registry.register(replace(kernel, prepare=prepare))
