"""Convolutions. Images are (n, c, h, w) over memory that runs along channels."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pteron.backends.xnnpack import elementwise, linear, quantized
from pteron.backends.xnnpack.graph import Convolution, Datatype, Node, NodeKind
from pteron.backends.xnnpack.planner import LATTICE, NCHW, NHWC, Operand, Planner, lowers


@lowers(NodeKind.CONV_2D, NodeKind.DEPTHWISE_CONV_2D, NodeKind.CONV_TRANSPOSE_2D)
def lower_convolution(planner: Planner, node: Node) -> None:
    """Record a convolution, and the clamp behind it."""
    node = elementwise.fuse_clamp(planner, node)
    kind = planner.value(node.inputs[0]).datatype
    if node.is_pointwise:
        linear.lower_product(planner, node)
    elif kind in LATTICE:
        _whole(planner, node)
    elif kind in (Datatype.QDINT8, Datatype.QPINT8):
        _rows(planner, node)
    else:
        _float(planner, node)


def _float(planner: Planner, node: Node) -> None:
    constants, value = planner.constants, planner.value(node.inputs[1])
    bias = linear.float_bias(planner, node)
    convolution = Filters(planner, node, "float", lambda: constants.plain(value).float())
    result = convolution.apply(bias)
    elementwise.clamp(planner, node, result)
    _hold(planner, node.outputs[0], result)


def _whole(planner: Planner, node: Node) -> None:
    """Record a convolution of 8-bit values: sums of whole numbers, scaled and rounded."""
    constants, value = planner.constants, planner.value(node.inputs[1])
    bias, scales = linear.whole_bias(planner, node), linear.output_scales(planner, node)
    convolution = Filters(planner, node, "whole", lambda: constants.whole(value))
    result = convolution.apply(bias)
    planner.tape.call(torch.Tensor.mul_, result, scales.view(1, -1, 1, 1))
    quantized.settle(planner, result, node)
    planner.result(node.outputs[0], result, NHWC)


def _rows(planner: Planner, node: Node) -> None:
    """Record a convolution of images quantized at run time, one by one."""
    constants, value = planner.constants, planner.value(node.inputs[1])

    def scaled() -> torch.Tensor:
        scales = constants.scales(value)
        shape = [1] * len(value.dims)
        shape[3 if node.kind is NodeKind.DEPTHWISE_CONV_2D else 0] = scales.numel()
        return constants.whole(value) * scales.view(shape)

    result = Filters(planner, node, "scaled", scaled).apply(None)
    step = planner.find(node.inputs[0]).scale
    assert isinstance(step, torch.Tensor)
    step = step.view(-1, 1, 1, 1)
    bias = linear.float_bias(planner, node)
    if bias is None:
        planner.tape.call(torch.Tensor.mul_, result, step)
    else:
        assert isinstance(bias, torch.Tensor)
        planner.tape.call(torch.addcmul, bias.view(1, -1, 1, 1), result, step, out=result)
    elementwise.clamp(planner, node, result)
    _hold(planner, node.outputs[0], result)


def _hold(planner: Planner, target: int, result: Operand) -> None:
    """Hold a float32 result as what the output is."""
    dtype = planner.float_type(target)
    if dtype is not torch.float32:
        result = planner.tape.value(torch.Tensor.to, result, dtype)
    planner.result(target, result, NHWC)


class Filters:
    """A convolution's filters, in float32, as the kernel that will run wants them.

    ``make`` gives them in the file's order of dimensions, (out, kh, kw, in of a group), or
    (1, kh, kw, out) if depthwise; ``recipe`` tells apart what is made of the same constant.
    """

    def __init__(
        self, planner: Planner, node: Node, recipe: str, make: Callable[[], torch.Tensor]
    ) -> None:
        assert isinstance(node.options, Convolution)
        self._planner = planner
        self._node = node
        self._options = options = node.options
        top, right, bottom, left = options.padding
        self._padding = (min(top, bottom), min(left, right))
        vertical, horizontal = self._padding
        self._extra = [left - horizontal, right - horizontal, top - vertical, bottom - vertical]
        self._packs = planner.uses_onednn and node.kind is not NodeKind.CONV_TRANSPOSE_2D
        image = self._image_shape() if self._packs else None
        self._filters = planner.constants.prepared(
            (recipe, node.kind, options, self._packs),
            (planner.value(node.inputs[1]),),
            lambda: self._prepare(make(), image),
        )

    def _image_shape(self) -> tuple[int, ...]:
        """Return (n, c, h, w) of what the kernel sees, after padding that it does not do."""
        n, h, w, c = self._planner.shapes[self._node.inputs[0]]
        left, right, top, bottom = self._extra
        return n, c, h + top + bottom, w + left + right

    def _prepare(self, filters: torch.Tensor, image: tuple[int, ...] | None) -> torch.Tensor:
        options, kind = self._options, self._node.kind
        if kind is NodeKind.DEPTHWISE_CONV_2D:
            filters = filters.permute(3, 0, 1, 2)
        elif kind is NodeKind.CONV_2D:
            filters = filters.permute(0, 3, 1, 2)
        else:
            shape = (options.groups, options.group_output_channels, *filters.shape[1:])
            filters = filters.view(shape).permute(0, 4, 1, 2, 3).flatten(0, 1)
        dense = filters.contiguous(memory_format=torch.channels_last)
        if image is None:
            return dense
        # For images of about that size; others come out right, too.
        pack: Callable[..., torch.Tensor] = torch._C._nn.mkldnn_reorder_conv2d_weight
        geometry = (self._padding, options.stride, options.dilation, options.groups)
        return pack(dense.contiguous().to_mkldnn(), *geometry, image)

    def apply(self, bias: Operand | None) -> Operand:
        """Record the convolution of the node's input; (n, c, h, w) is the result."""
        planner, options, tape = self._planner, self._options, self._planner.tape
        image = planner.x(self._node.inputs[0], NCHW)
        if planner.float_type(self._node.inputs[0]) is not torch.float32:
            image = tape.value(torch.Tensor.float, image)
        if any(self._extra):
            image = tape.value(torch.constant_pad_nd, image, self._extra)
        if self._packs:
            # Not with the kernel's own clamp, which makes a number of NaN.
            return tape.value(
                torch.ops.mkldnn._convolution_pointwise.default,
                *(image, self._filters, bias, self._padding, options.stride),
                *(options.dilation, options.groups, "none", [], ""),
            )
        transposed = self._node.kind is NodeKind.CONV_TRANSPOSE_2D
        return tape.value(
            torch._convolution,
            *(image, self._filters, bias, options.stride, self._padding, options.dilation),
            *(transposed, options.adjustment if transposed else (0, 0), options.groups),
            *(False, False, True, False),  # the last: no rounding to TF32 on CUDA
        )
