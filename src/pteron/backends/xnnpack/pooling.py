"""Nodes that look at an image through a window, or make it larger or smaller."""

from __future__ import annotations

import torch

from pteron.backends.xnnpack import elementwise, quantized
from pteron.backends.xnnpack.graph import (
    FLAG_ALIGN_CORNERS,
    FLAG_KEEP_DIMS,
    Node,
    NodeKind,
    Pooling,
    Resize,
)
from pteron.backends.xnnpack.planner import LATTICE, NCHW, NHWC, Operand, Planner, lowers

_nn = torch._C._nn


@lowers(NodeKind.MAX_POOLING_2D)
def lower_max_pooling(planner: Planner, node: Node) -> None:
    """Record the greatest element in each window."""
    options, (source,), (target,) = node.options, node.inputs, node.outputs
    assert isinstance(options, Pooling)
    image, padding = padded(planner, node, float("-inf"))
    call = torch.max_pool2d
    result = planner.tape.value(
        call, image, options.kernel, options.stride, padding, options.dilation
    )
    if planner.value(target).datatype not in LATTICE:
        elementwise.clamp(planner, node, result)
    elif quantized.has_other_steps(planner, source, target):
        limits = node.output_min, node.output_max
        quantized.record_other_steps(planner, source, target, result, result, *limits)
    elif node.clamps:
        planner.tape.call(torch.clamp_, result, *quantized.node_bounds(planner, node))
    planner.result(target, result, NHWC)


@lowers(NodeKind.AVG_POOLING_2D)
def lower_average_pooling(planner: Planner, node: Node) -> None:
    """Record the mean of each window; what is padding does not count."""
    options = node.options
    assert isinstance(options, Pooling)
    (target,) = node.outputs
    top, _, _, left = options.padding  # the same on the other side
    into = planner.out_in(target, NCHW)
    planner.tape.call(
        _nn.avg_pool2d,
        planner.x(node.inputs[0], NCHW),
        options.kernel,
        options.stride,
        (top, left),
        False,
        False,
        out=into,
    )
    elementwise.clamp(planner, node, into)


def padded(planner: Planner, node: Node, number: float) -> tuple[Operand, tuple[int, int]]:
    """Return a node's image as (n, c, h, w), and the padding that its kernel has to add.

    Kernels pad both sides alike. What goes beyond that is put around the image before.
    """
    assert isinstance(node.options, Pooling)
    top, right, bottom, left = node.options.padding
    image = planner.x(node.inputs[0], NCHW)
    both = (min(top, bottom), min(left, right))
    kernel = node.options.kernel
    fits = both[0] * 2 <= kernel[0] and both[1] * 2 <= kernel[1]
    if not fits:
        both = (0, 0)
    extra = [left - both[1], right - both[1], top - both[0], bottom - both[0]]
    if any(extra):
        image = planner.tape.value(torch.constant_pad_nd, image, extra, number)
        # It lives as long as the tape's function; one line later it is not needed.
    return image, both


@lowers(NodeKind.ARG_MAX_POOLING_2D)
def lower_arg_max_pooling(planner: Planner, node: Node) -> None:
    """Record the greatest element in each window, and where in the window it is."""
    assert isinstance(node.options, Pooling)
    (source,), (values, places) = node.inputs, node.outputs
    n, h, w, c = planner.shapes[source]
    kh, kw = node.options.kernel
    windows = (n, h // kh, kh, w // kw, kw, c)
    image = planner.reshaped(planner.x(source), windows)
    image = planner.permuted(image, (0, 1, 3, 5, 2, 4))
    planner.tape.call(arg_max, image, planner.out(values), planner.out(places))


def arg_max(windows: torch.Tensor, values: torch.Tensor, places: torch.Tensor) -> None:
    """Write the greatest element of the last two dimensions, and its number among them."""
    greatest, indices = windows.flatten(-2).max(-1)
    values.copy_(greatest)
    places.copy_(indices)


@lowers(NodeKind.GLOBAL_AVG_POOLING_2D)
def lower_global_average_pooling(planner: Planner, node: Node) -> None:
    """Record the mean of each channel."""
    (source,), (target,) = node.inputs, node.outputs
    keep = bool(node.flags & FLAG_KEEP_DIMS)
    into = planner.out(target)
    image = planner.x(source, NCHW)
    axes = [2, 3]
    if keep:
        into_view = planner.permuted(into, NCHW)
    else:
        into_view = into
    if planner.value(target).datatype in LATTICE:
        planner.tape.call(torch.sum, image, axes, keep, out=into_view)
        before, after = planner.value(source).affine, planner.value(target).affine
        _, height, width, _ = planner.shapes[source]
        planner.tape.call(torch.Tensor.mul_, into, before.scale / after.scale / (height * width))
        planner.tape.call(quantized.round_stored, into, after.zero_point)
        planner.tape.call(torch.clamp_, into, *quantized.node_bounds(planner, node))
        return
    planner.tape.call(torch.mean, image, axes, keep, out=into_view)
    if node.clamps:
        planner.tape.call(torch.clamp_, into, node.output_min, node.output_max)


@lowers(NodeKind.STATIC_RESIZE_BILINEAR_2D)
def lower_resize(planner: Planner, node: Node) -> None:
    """Record a bilinear change of size."""
    assert isinstance(node.options, Resize)
    (source,), (target,) = node.inputs, node.outputs
    into = planner.out_in(target, NCHW)
    align = bool(node.flags & FLAG_ALIGN_CORNERS)
    image = planner.x(source, NCHW)
    planner.tape.call(_nn.upsample_bilinear2d, image, node.options.size, align, out=into)
    if planner.value(target).datatype in LATTICE:
        before, after = planner.value(source).affine, planner.value(target).affine
        if before.scale != after.scale:
            planner.tape.call(torch.Tensor.mul_, into, before.scale / after.scale)
        planner.tape.call(torch.Tensor.add_, into, 0.5)
        quantized.settle_half_up(planner, into, node)
