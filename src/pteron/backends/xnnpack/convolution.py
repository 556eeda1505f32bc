"""Convolutions. Images are (n, c, h, w) over memory that runs along channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pteron.backends.xnnpack import elementwise, linear, quantized
from pteron.backends.xnnpack.graph import (
    Convolution,
    Datatype,
    Node,
    NodeKind,
    Value,
)
from pteron.backends.xnnpack.planner import LATTICE, NCHW, NHWC, Operand, Planner, lowers

_ROW_QUANTIZED = frozenset({Datatype.QDINT8, Datatype.QPINT8})


@lowers(NodeKind.CONV_2D, NodeKind.DEPTHWISE_CONV_2D, NodeKind.CONV_TRANSPOSE_2D)
def lower_convolution(planner: Planner, node: Node) -> None:
    """Record a convolution, and the clamp behind it."""
    node = elementwise.fuse_clamp(planner, node)
    kind = planner.value(node.inputs[0]).datatype
    if kind in LATTICE:
        _whole(planner, node)
    elif kind in _ROW_QUANTIZED:
        _rows(planner, node)
    else:
        _float(planner, node)


def torch_order(filters: torch.Tensor, node: Node) -> torch.Tensor:
    """Return filters in torch's order of dimensions.

    Theirs is (out, kh, kw, in of a group); depthwise (1, kh, kw, out).
    """
    options = node.options
    assert isinstance(options, Convolution)
    if node.kind is NodeKind.DEPTHWISE_CONV_2D:
        return filters.permute(3, 0, 1, 2)
    if node.kind is NodeKind.CONV_2D:
        return filters.permute(0, 3, 1, 2)
    grouped = filters.view(options.groups, options.group_output_channels, *filters.shape[1:])
    return grouped.permute(0, 4, 1, 2, 3).flatten(0, 1)  # (in, out of a group, kh, kw)


def _filters(
    planner: Planner, node: Node, recipe: str, make: Callable[[Value], torch.Tensor]
) -> torch.Tensor:
    """Return filters ready for :func:`convolve`."""
    value = planner.value(node.inputs[1])
    if not value.is_constant:
        planner.refuse(f"{node}: filters that are no constant")
    return planner.constants.prepared(
        (recipe, node.kind, node.options),
        (value,),
        lambda: torch_order(make(value), node).contiguous(memory_format=torch.channels_last),
    )


def convolve(
    planner: Planner, node: Node, image: Operand, filters: torch.Tensor, bias: Operand | None
) -> Operand:
    """Record the convolution itself and return its result."""
    options = node.options
    assert isinstance(options, Convolution)
    top, right, bottom, left = options.padding
    tape = planner.tape
    if node.kind is NodeKind.CONV_TRANSPOSE_2D:
        if (top, left) != (bottom, right):
            planner.refuse(f"{node}: padding on one side only")
        return tape.value(
            torch.conv_transpose2d,
            *(image, filters, bias, options.stride, (top, left)),
            *(options.adjustment, options.groups, options.dilation),
        )
    both = (min(top, bottom), min(left, right))
    extra = [left - both[1], right - both[1], top - both[0], bottom - both[0]]
    if any(extra):
        image = tape.value(torch.constant_pad_nd, image, extra)
    return tape.value(
        torch.conv2d, image, filters, bias, options.stride, both, options.dilation, options.groups
    )


def _float(planner: Planner, node: Node) -> None:
    (target,) = node.outputs
    constants = planner.constants
    filters = _filters(planner, node, "float", lambda value: constants.plain(value).float())
    image = planner.x(node.inputs[0], NCHW)
    if planner.float_type(node.inputs[0]) is not torch.float32:
        image = (
            planner.tape.method(image, "float")
            if not isinstance(image, torch.Tensor)
            else (planner.tape.value(torch.Tensor.float, image))
        )
    bias = linear.float_bias(planner, node)
    result = convolve(planner, node, image, filters, bias)
    elementwise.clamp(planner, node, result)
    _hold(planner, target, result)


def _hold(planner: Planner, target: int, result: Operand) -> None:
    """Hold a float32 result as what the output is."""
    dtype = planner.float_type(target)
    if dtype is not torch.float32:
        result = planner.tape.value(torch.Tensor.to, result, dtype)
    planner.result(target, result, NHWC)


def _whole(planner: Planner, node: Node) -> None:
    """Record a convolution of 8-bit values: sums of whole numbers, scaled and rounded."""
    filters = _filters(planner, node, "whole", planner.constants.whole)
    image = planner.x(node.inputs[0], NCHW)
    result = convolve(planner, node, image, filters, linear.whole_bias(planner, node))
    scales = linear.output_scales(planner, node)
    planner.tape.call(torch.Tensor.mul_, result, scales.view(1, -1, 1, 1))
    quantized.settle(planner, result, node)
    planner.result(node.outputs[0], result, NHWC)


def _rows(planner: Planner, node: Node) -> None:
    """Record a convolution of images quantized at run time, one by one."""
    constants = planner.constants

    def scaled(value: Value) -> torch.Tensor:
        scales = constants.scales(value)
        shape = [1] * len(value.dims)
        shape[3 if node.kind is NodeKind.DEPTHWISE_CONV_2D else 0] = scales.numel()
        return constants.whole(value) * scales.view(shape)

    filters = _filters(planner, node, "scaled", scaled)
    image = planner.x(node.inputs[0], NCHW)
    step: Any = planner.find(node.inputs[0]).scale
    result = convolve(planner, node, image, filters, None)
    step = step.view(-1, 1, 1, 1)
    bias = linear.float_bias(planner, node)
    if bias is None:
        planner.tape.call(torch.Tensor.mul_, result, step)
    else:
        assert isinstance(bias, torch.Tensor)
        planner.tape.call(torch.addcmul, bias.view(1, -1, 1, 1), result, step, out=result)
    elementwise.clamp(planner, node, result)
    _hold(planner, node.outputs[0], result)
