"""Nodes that multiply matrices."""

from __future__ import annotations

from math import prod

import torch

from pteron.backends.xnnpack import elementwise, integers, quantized
from pteron.backends.xnnpack.graph import (
    FLAG_TRANSPOSE_A,
    FLAG_TRANSPOSE_WEIGHTS,
    Datatype,
    Node,
    NodeKind,
    Value,
)
from pteron.backends.xnnpack.integers import Packed
from pteron.backends.xnnpack.planner import LATTICE, Operand, Planner, lowers
from pteron.backends.xnnpack.weights import (
    Reordered,
    Stored,
    channel_scales,
    reordered_weights,
    times_blocks,
    weights_of,
)

_ROW_QUANTIZED = frozenset({Datatype.QDINT8, Datatype.QPINT8})


@lowers(NodeKind.FULLY_CONNECTED)
def lower_fully_connected(planner: Planner, node: Node) -> None:
    """Record ``x @ weights + bias``."""
    lower_product(planner, elementwise.fuse_clamp(planner, node))


def lower_product(planner: Planner, node: Node) -> None:
    """Record a fully connected node, or a pointwise convolution, which is one."""
    kind = planner.value(node.inputs[0]).datatype
    if kind in LATTICE:
        _whole(planner, node)
    elif kind in _ROW_QUANTIZED:
        _rows(planner, node)
    else:
        _float(planner, node)


def matrix_of(planner: Planner, number: int) -> Operand:
    """Return an input as a float32 matrix: rows of its last dimension."""
    shape = planner.find(number).shape
    flat = (prod(shape[:-1]), shape[-1])
    matrix = planner.reshaped(planner.x(number), flat)
    if planner.float_type(number) is torch.float32:
        return matrix
    wide = planner.scratch(flat)
    planner.tape.call(torch.Tensor.copy_, wide, matrix)
    return wide


class Product:
    """Records one product, and holds it as a node's output when what follows is recorded too.

    ``result`` is a float32 matrix on which to work in place.
    """

    def __init__(
        self,
        planner: Planner,
        node: Node,
        matrix: Operand,
        weights: Operand | Stored | Packed | Reordered,
        bias: Operand | None = None,
    ) -> None:
        self._planner = planner
        (self._number,) = node.outputs
        self._shape = planner.shapes[self._number]
        flat = (prod(self._shape[:-1]), self._shape[-1])
        self._target: Operand | None = None
        self.result: Operand
        if isinstance(weights, Packed):
            assert bias is None or isinstance(bias, torch.Tensor)
            self.result = integers.record_product(planner, node, matrix, weights, bias)
            return
        if isinstance(weights, Reordered):
            self.result = planner.tape.value(
                torch.ops.mkldnn._linear_pointwise.default,
                *(matrix, weights.weights, bias, "none", [], ""),
            )
            return
        self._target = planner.out(self._number)
        view = planner.dense_view(self._target, flat)
        if planner.float_type(self._number) is not torch.float32 or view is None:
            view = planner.scratch(flat)
        self.result = view
        if isinstance(weights, Stored):
            self._multiply_pieces(matrix, weights, bias)
        else:
            self._multiply(matrix, weights, bias, view)

    def _multiply(
        self, matrix: Operand, weights: Operand, bias: Operand | None, into: Operand
    ) -> None:
        tape = self._planner.tape
        if bias is None:
            tape.call(torch.mm, matrix, weights, out=into)
        else:
            tape.call(torch.addmm, bias, matrix, weights, out=into)

    def _multiply_pieces(self, matrix: Operand, weights: Stored, bias: Operand | None) -> None:
        planner = self._planner
        inner, _ = weights.shape
        pieces = weights.pieces()
        room = planner.scratch((pieces[0][1], inner))
        for begin, end in pieces:
            wide = room[: end - begin]
            planner.tape.call(torch.Tensor.copy_, wide, weights.numbers[begin:end])
            if weights.blocks is not None:
                planner.tape.call(times_blocks, wide, weights.blocks[begin:end])
            into = planner.narrowed(self.result, 1, begin, end - begin)
            part = None if bias is None else planner.narrowed(bias, 0, begin, end - begin)
            self._multiply(matrix, wide.t(), part, into)

    def hold(self) -> None:
        """Hold the result as the node's output."""
        planner = self._planner
        shaped = planner.reshaped(self.result, self._shape)
        if self._target is None:
            dtype = planner.float_type(self._number)
            if dtype is not torch.float32:
                shaped = planner.tape.value(torch.Tensor.to, shaped, dtype)
            planner.result(self._number, shaped)
        elif not planner.shares_memory(self._target, self.result):
            planner.tape.call(torch.Tensor.copy_, self._target, shaped)


def float_bias(planner: Planner, node: Node) -> Operand | None:
    """Return a bias as real numbers in float32."""
    if len(node.inputs) < 3:
        return None
    value = planner.value(node.inputs[2])
    if not value.is_constant:
        bias = planner.reshaped(planner.x(value.id), (value.numel,))
        if value.datatype is not Datatype.FP32:
            bias = planner.tape.value(torch.Tensor.float, bias)
        return bias
    constants = planner.constants
    if value.datatype is Datatype.FP32:
        return constants.plain(value).view(-1)
    return constants.prepared("reals", (value,), lambda: real_bias(planner, value).float())


def real_bias(planner: Planner, value: Value) -> torch.Tensor:
    """Return a constant bias as real numbers in float64, whatever it is stored as."""
    constants = planner.constants
    if value.quantization is None:
        return constants.plain(value).double().flatten()
    return constants.raw(value).to(planner.device).double().flatten() * constants.scales(value)


def _float(planner: Planner, node: Node) -> None:
    """Record a product in float32, whatever floats it is between."""
    reordered = reordered_weights(planner, node)
    if reordered is not None:
        matrix, bias = matrix_of(planner, node.inputs[0]), float_bias(planner, node)
        product = Product(planner, node, matrix, reordered, bias)
        elementwise.clamp(planner, node, product.result)
        product.hold()
        return
    value = planner.value(node.inputs[1])
    weights: Operand | Stored
    if value.datatype is Datatype.FP32 or not value.is_constant:
        weights = matrix_of(planner, node.inputs[1])
        if not node.flags & FLAG_TRANSPOSE_WEIGHTS:
            weights = planner.permuted(weights, (1, 0))
    else:
        weights = weights_of(planner, node)
    bias, scales = float_bias(planner, node), channel_scales(planner, node)
    matrix = matrix_of(planner, node.inputs[0])
    if scales is None:
        product = Product(planner, node, matrix, weights, bias)
    else:
        product = Product(planner, node, matrix, weights)
        planner.tape.call(torch.Tensor.mul_, product.result, scales)
        if bias is not None:
            planner.tape.call(torch.Tensor.add_, product.result, bias)
    elementwise.clamp(planner, node, product.result)
    product.hold()


def _rows(planner: Planner, node: Node) -> None:
    """Record a product of values quantized at run time, row by row, with quantized weights."""
    step, scales = row_steps(planner, node.inputs[0]), channel_scales(planner, node)
    matrix = matrix_of(planner, node.inputs[0])
    product = Product(planner, node, matrix, _integer_weights(planner, node))
    if scales is not None:
        planner.tape.call(torch.Tensor.mul_, product.result, scales)
    bias = float_bias(planner, node)
    if bias is None:
        planner.tape.call(torch.Tensor.mul_, product.result, step)
    else:
        planner.tape.call(torch.addcmul, bias, product.result, step, out=product.result)
    elementwise.clamp(planner, node, product.result)
    product.hold()


def row_steps(planner: Planner, number: int) -> torch.Tensor:
    """Return what one step is in each row of a matrix that was quantized at run time."""
    step = planner.find(number).scale
    assert step is not None
    if not integers.has_wide_rows(planner, number):
        return step
    each = planner.scratch((step.numel(), prod(planner.shapes[number][:-1]) // step.numel()))
    planner.tape.call(torch.Tensor.copy_, each, step)
    return each.view(-1, 1)


def _whole(planner: Planner, node: Node) -> None:
    """Record a product of 8-bit values: sums of whole numbers, scaled and rounded."""
    matrix, bias = matrix_of(planner, node.inputs[0]), whole_bias(planner, node)
    product = Product(planner, node, matrix, _integer_weights(planner, node), bias)
    planner.tape.call(torch.Tensor.mul_, product.result, output_scales(planner, node))
    quantized.settle(planner, product.result, node)
    product.hold()


def _integer_weights(planner: Planner, node: Node) -> Operand | Stored | Packed:
    """Return weights as the kernel wants them that is the fastest for whole numbers."""
    rows = prod(planner.shapes[node.inputs[0]][:-1])
    packed = integers.packed_weights(planner, node, rows)
    return weights_of(planner, node) if packed is None else packed


def whole_bias(planner: Planner, node: Node) -> torch.Tensor | None:
    """Return a bias in steps of what it is added to: input scale by weight scale.

    The bias of a layer that is called once is stored in those steps. Calls with inputs or weights
    of other scales may share it; so may float layers.
    """
    if len(node.inputs) < 3:
        return None
    source, weights, bias = (planner.value(number) for number in node.inputs)
    constants, steps = planner.constants, source.affine.scale
    return constants.prepared(
        ("whole bias", steps), (bias, weights), lambda: _in_steps(planner, bias, weights, steps)
    )


SAME_STEPS = 2.0**-18
"""Scales that differ by less than this are products that were rounded differently."""


def _in_steps(planner: Planner, bias: Value, weights: Value, steps: float) -> torch.Tensor:
    constants = planner.constants
    wanted = constants.scales(weights).double() * steps
    if bias.quantization is not None:
        own = constants.scales(bias).double()
        if bool(((own - wanted).abs() <= wanted * SAME_STEPS).all()):
            return constants.whole(bias).flatten()
    return (real_bias(planner, bias) / wanted).float()


def output_scales(planner: Planner, node: Node) -> torch.Tensor:
    """Return what turns sums into steps of the output, one number or one a channel."""
    source, weights = planner.value(node.inputs[0]).affine, planner.value(node.inputs[1])
    scale = planner.value(node.outputs[0]).affine.scale
    return planner.constants.scales(weights) * source.scale / scale


# -- other products -------------------------------------------------------------------------------


@lowers(NodeKind.BATCH_MATRIX_MULTIPLY)
def lower_matrix_multiply(planner: Planner, node: Node) -> None:
    """Record a product of matrices, batch by batch."""
    (a, b), (target,) = node.inputs, node.outputs
    operands = []
    flags = (FLAG_TRANSPOSE_A, FLAG_TRANSPOSE_WEIGHTS)
    for number, flag in zip((a, b), flags, strict=True):
        rank = len(planner.find(number).shape)
        swapped = (*range(rank - 2), rank - 1, rank - 2)
        operand = planner.x(number, swapped if node.flags & flag else None)
        if planner.float_type(number) is not planner.float_type(target):
            operand = planner.tape.value(torch.Tensor.to, operand, planner.float_type(target))
        operands.append(operand)
    into = planner.out(target)
    planner.tape.call(torch.matmul, *operands, out=into)
    if planner.value(target).datatype in LATTICE:
        x, y, z = (planner.value(number).affine.scale for number in (a, b, target))
        planner.tape.call(torch.Tensor.mul_, into, quantized.float32(quantized.float32(x * y) / z))
        quantized.settle(planner, into, node)


@lowers(NodeKind.SCALED_DOT_PRODUCT_ATTENTION)
def lower_attention(planner: Planner, node: Node) -> None:
    """Record attention, its scale one number for each channel of the query."""
    operands = [planner.x(number) for number in node.inputs]
    planner.tape.call(attention, *operands, planner.out(node.outputs[0]))


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: torch.Tensor,
    mask: torch.Tensor,
    into: torch.Tensor,
) -> None:
    """Write ``softmax(query * scale @ key.T + mask) @ value``."""
    logits = torch.matmul(query * scale, key.transpose(-1, -2)).add_(mask)
    torch.matmul(torch.softmax(logits, -1), value, out=into)
