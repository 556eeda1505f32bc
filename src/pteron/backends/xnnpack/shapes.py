"""The shape of what a node computes, from the shapes that it is given.

XNNPACK works out shapes itself each time its inputs change, and so does this: the shapes that a
file gives for inner values are upper bounds that are not relied on. Four-dimensional images are
(batch, height, width, channels).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TypeAlias

from pteron.backends.xnnpack.graph import (
    BINARY,
    CONCATENATES,
    FLAG_KEEP_DIMS,
    FLAG_TRANSPOSE_A,
    FLAG_TRANSPOSE_WEIGHTS,
    MAX_RANK,
    Concatenate,
    Convolution,
    Node,
    NodeKind,
    Pad,
    Pooling,
    Reshape,
    Resize,
    Slice,
    Transpose,
)

Shape: TypeAlias = tuple[int, ...]


class ShapeError(ValueError):
    """Say why a node cannot work on the shapes that it is given."""


def infer_shapes(node: Node, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    """Return the shape of each of a node's outputs, or raise ShapeError."""
    if node.kind in BINARY:
        return (broadcast(shapes[0], shapes[1]),)
    if node.kind in CONCATENATES:
        return (_concatenate(node, shapes),)
    infer = _RULES.get(node.kind)
    return infer(node, shapes) if infer is not None else (shapes[0],)


def broadcast(a: Shape, b: Shape) -> Shape:
    """Return the shape of two operands side by side, aligned at the last dimension."""
    rank = max(len(a), len(b))
    left, right = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    for x, y in zip(left, right, strict=True):
        if x != y and 1 not in (x, y):
            raise ShapeError(f"shapes {_text(a)} and {_text(b)} do not go together")
    return tuple(y if x == 1 else x for x, y in zip(left, right, strict=True))


def _text(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))})"


def _image(shape: Shape) -> tuple[int, int, int, int]:
    if len(shape) != 4:
        raise ShapeError(f"an image has 4 dimensions, got {_text(shape)}")
    return shape[0], shape[1], shape[2], shape[3]


def _window(size: int, before: int, after: int, kernel: int, stride: int, dilation: int) -> int:
    """Return how many places a window has along one dimension."""
    if min(kernel, stride, dilation) < 1:
        raise ShapeError(f"kernel {kernel}, stride {stride} and dilation {dilation} begin at 1")
    room = size + before + after - dilation * (kernel - 1) - 1
    if room < 0:
        raise ShapeError(
            f"a window of {dilation * (kernel - 1) + 1} does not fit {size} elements with padding "
            f"{before} and {after}"
        )
    return room // stride + 1


def _convolution(node: Node, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    options = node.options
    assert isinstance(options, Convolution)
    n, h, w, c = _image(shapes[0])
    top, right, bottom, left = options.padding
    if min(options.groups, options.group_input_channels, options.group_output_channels) < 1:
        raise ShapeError("groups and channels begin at 1")
    if c != options.groups * options.group_input_channels:
        raise ShapeError(
            f"{c} input channels for {options.groups} groups of {options.group_input_channels}"
        )
    channels = options.groups * options.group_output_channels
    kernel = (*options.kernel, options.group_input_channels)
    wanted = (1, *options.kernel, channels)
    if node.kind is not NodeKind.DEPTHWISE_CONV_2D:
        wanted = (channels, *kernel)
    elif options.group_input_channels != 1:
        raise ShapeError("a depthwise convolution has one input channel in a group")
    if shapes[1] != wanted:
        raise ShapeError(f"the filter has shape {_text(shapes[1])}, expected {_text(wanted)}")
    if len(shapes) > 2 and prod(shapes[2]) != channels:
        raise ShapeError(f"the bias has shape {_text(shapes[2])} for {channels} channels")
    (sh, sw), (dh, dw), (kh, kw) = options.stride, options.dilation, options.kernel
    if node.kind is NodeKind.CONV_TRANSPOSE_2D:
        if min(sh, sw, dh, dw, kh, kw) < 1 or min(h, w) < 1:
            raise ShapeError("kernel, stride, dilation and image begin at 1")
        oh = sh * (h - 1) + options.adjustment[0] + dh * (kh - 1) + 1 - top - bottom
        ow = sw * (w - 1) + options.adjustment[1] + dw * (kw - 1) + 1 - left - right
        if min(oh, ow) < 1:
            raise ShapeError(f"the output would have size {oh} x {ow}")
    else:
        oh = _window(h, top, bottom, kh, sh, dh)
        ow = _window(w, left, right, kw, sw, dw)
    return ((n, oh, ow, channels),)


def _pooling(node: Node, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    options = node.options
    assert isinstance(options, Pooling)
    n, h, w, c = _image(shapes[0])
    top, right, bottom, left = options.padding
    kernel, stride = options.kernel, options.stride
    # Average pooling has no dilation: exporters write 0.
    dilation = options.dilation if node.kind is NodeKind.MAX_POOLING_2D else (1, 1)
    if top + bottom >= 2 * max(1, dilation[0] * (kernel[0] - 1) + 1) or (
        left + right >= 2 * max(1, dilation[1] * (kernel[1] - 1) + 1)
    ):
        raise ShapeError(f"padding {_text(options.padding)} is larger than the window")
    oh = _window(h, top, bottom, kernel[0], stride[0], dilation[0])
    ow = _window(w, left, right, kernel[1], stride[1], dilation[1])
    return ((n, oh, ow, c),)


def _arg_max_pooling(node: Node, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    options = node.options
    assert isinstance(options, Pooling)
    n, h, w, c = _image(shapes[0])
    kh, kw = options.kernel
    if any(options.padding) or min(kh, kw) < 1 or h % kh or w % kw:
        raise ShapeError(
            f"windows of {kh} x {kw} with padding {_text(options.padding)} do not cover an image "
            f"of {h} x {w} evenly"
        )
    return ((n, h // kh, w // kw, c),) * 2


def _global_pooling(node: Node, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    n, h, w, c = _image(shapes[0])
    if h * w == 0:
        raise ShapeError("the mean of nothing")
    return ((n, 1, 1, c) if node.flags & FLAG_KEEP_DIMS else (n, c),)


def _fully_connected(node: Node, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    source, weights = shapes[0], shapes[1]
    if not source or len(weights) != 2:
        raise ShapeError(f"an input {_text(source)} and a filter {_text(weights)}")
    out, inner = weights[::-1] if node.flags & FLAG_TRANSPOSE_WEIGHTS else weights
    if source[-1] != inner:
        raise ShapeError(f"an input {_text(source)} for {inner} input channels")
    if len(shapes) > 2 and prod(shapes[2]) != out:
        raise ShapeError(f"the bias has shape {_text(shapes[2])} for {out} channels")
    return ((*source[:-1], out),)


def _matrix_multiply(node: Node, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    a, b = shapes
    if min(len(a), len(b)) < 2:
        raise ShapeError(f"matrices of shapes {_text(a)} and {_text(b)}")
    if node.flags & FLAG_TRANSPOSE_A:
        a = (*a[:-2], a[-1], a[-2])
    if node.flags & FLAG_TRANSPOSE_WEIGHTS:
        b = (*b[:-2], b[-1], b[-2])
    if a[-1] != b[-2]:
        raise ShapeError(f"matrices of shapes {_text(a)} and {_text(b)} cannot be multiplied")
    return ((*broadcast(a[:-2], b[:-2]), a[-2], b[-1]),)


def _attention(node: Node, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    query, key, value = shapes[:3]
    if min(map(len, shapes[:3])) < 3 or query[-1] != key[-1] or key[-2] != value[-2]:
        raise ShapeError(
            f"query {_text(query)}, key {_text(key)} and value {_text(value)} do not go together"
        )
    return ((*query[:-1], value[-1]),)


def _reshape(node: Node, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    assert isinstance(node.options, Reshape)
    wanted, count = node.options.new_shape, prod(shapes[0])
    if wanted.count(0) == 1:
        known = prod(size for size in wanted if size)
        if known and count % known == 0:
            wanted = tuple(size or count // known for size in wanted)
    if len(wanted) > MAX_RANK or prod(wanted) != count:
        raise ShapeError(f"{_text(shapes[0])} cannot become {_text(node.options.new_shape)}")
    return (wanted,)


def _transpose(node: Node, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    assert isinstance(node.options, Transpose)
    perm, source = node.options.perm, shapes[0]
    if sorted(perm) != list(range(len(source))):
        raise ShapeError(f"{_text(perm)} is no permutation of {len(source)} dimensions")
    return (tuple(source[axis] for axis in perm),)


def _slice(node: Node, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    options, source = node.options, shapes[0]
    assert isinstance(options, Slice)
    if not len(options.offsets) == len(options.sizes) == len(source):
        raise ShapeError(f"a slice at {_text(options.offsets)} of {_text(source)}")
    result = []
    for offset, size, extent in zip(options.offsets, options.sizes, source, strict=True):
        if offset > extent:
            raise ShapeError(f"a slice at {_text(options.offsets)} is not inside {_text(source)}")
        whole = offset + size == 0
        result.append(extent if whole else min(size, extent - offset))
    return (tuple(result),)


def _pad(node: Node, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    options, source = node.options, shapes[0]
    assert isinstance(options, Pad)
    if not len(options.before) == len(options.after) == len(source):
        raise ShapeError(f"paddings {_text(options.before)} of {_text(source)}")
    return (tuple(map(sum, zip(options.before, source, options.after, strict=True))),)


def _resize(node: Node, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    assert isinstance(node.options, Resize)
    n, h, w, c = _image(shapes[0])
    if min(h, w, *node.options.size) < 1:
        raise ShapeError(f"an image of {h} x {w} to {_text(node.options.size)}")
    return ((n, *node.options.size, c),)


def _concatenate(node: Node, shapes: Sequence[Shape]) -> Shape:
    assert isinstance(node.options, Concatenate)
    axis, first = node.options.axis, shapes[0]
    if axis >= len(first):
        raise ShapeError(f"{_text(first)} has no dimension {axis}")
    for shape in shapes[1:]:
        if len(shape) != len(first) or any(
            x != y for i, (x, y) in enumerate(zip(first, shape, strict=True)) if i != axis
        ):
            raise ShapeError(
                f"shapes {_text(first)} and {_text(shape)} differ beside dimension {axis}"
            )
    return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])


def _softmax(node: Node, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    if not shapes[0]:
        raise ShapeError("a softmax runs along the last dimension; a scalar has none")
    return (shapes[0],)


_RULES: dict[NodeKind, Callable[[Node, Sequence[Shape]], tuple[Shape, ...]]] = {
    NodeKind.CONV_2D: _convolution,
    NodeKind.DEPTHWISE_CONV_2D: _convolution,
    NodeKind.CONV_TRANSPOSE_2D: _convolution,
    NodeKind.AVG_POOLING_2D: _pooling,
    NodeKind.MAX_POOLING_2D: _pooling,
    NodeKind.ARG_MAX_POOLING_2D: _arg_max_pooling,
    NodeKind.GLOBAL_AVG_POOLING_2D: _global_pooling,
    NodeKind.FULLY_CONNECTED: _fully_connected,
    NodeKind.BATCH_MATRIX_MULTIPLY: _matrix_multiply,
    NodeKind.SCALED_DOT_PRODUCT_ATTENTION: _attention,
    NodeKind.STATIC_RESHAPE: _reshape,
    NodeKind.STATIC_TRANSPOSE: _transpose,
    NodeKind.STATIC_SLICE: _slice,
    NodeKind.STATIC_CONSTANT_PAD: _pad,
    NodeKind.STATIC_RESIZE_BILINEAR_2D: _resize,
    NodeKind.SOFTMAX: _softmax,
}
