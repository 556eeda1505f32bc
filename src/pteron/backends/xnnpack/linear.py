"""Nodes that multiply matrices."""

from __future__ import annotations

from math import prod

import torch

from pteron.backends.xnnpack import elementwise, quantized
from pteron.backends.xnnpack.graph import (
    FLAG_TRANSPOSE_A,
    FLAG_TRANSPOSE_WEIGHTS,
    Datatype,
    Node,
    NodeKind,
    Value,
)
from pteron.backends.xnnpack.planner import LATTICE, Operand, Planner, lowers

_ROW_QUANTIZED = frozenset({Datatype.QDINT8, Datatype.QPINT8})


@lowers(NodeKind.FULLY_CONNECTED)
def lower_fully_connected(planner: Planner, node: Node) -> None:
    """Record ``x @ weights + bias``."""
    node = elementwise.fuse_clamp(planner, node)
    weights = planner.value(node.inputs[1])
    kind = planner.value(node.inputs[0]).datatype
    if kind in LATTICE:
        _fully_connected_whole(planner, node)
    elif kind in _ROW_QUANTIZED:
        _fully_connected_rows(planner, node)
    elif weights.datatype.is_float:
        _fully_connected_float(planner, node)
    else:
        _fully_connected_widened(planner, node)


def _matrix_in(planner: Planner, number: int, *, exact: bool) -> Operand:
    """Return an input as a matrix; in float32 if ``exact``."""
    shape = planner.find(number).shape
    matrix = planner.reshaped(planner.x(number), (prod(shape[:-1]), shape[-1]))
    if exact and planner.float_type(number) is not torch.float32:
        wide = planner.scratch((prod(shape[:-1]), shape[-1]))
        planner.tape.call(torch.Tensor.copy_, wide, matrix)
        return wide
    return matrix


def _matrix_out(planner: Planner, number: int) -> tuple[Operand, Operand]:
    """Return where a node's output goes, as it is and as a float32 matrix to compute into."""
    into, shape = planner.out(number), planner.shapes[number]
    flat = (prod(shape[:-1]), shape[-1])
    if planner.float_type(number) is not torch.float32:
        return into, planner.scratch(flat)
    if isinstance(into, torch.Tensor) and not into.is_contiguous():
        return into, planner.scratch(flat)
    if isinstance(into, torch.Tensor):
        return into, into.view(flat)
    return into, planner.reshaped(into, flat)


def _store(planner: Planner, node: Node, into: Operand, matrix: Operand) -> None:
    """Record a copy of the result to where it has to go, if it was computed elsewhere."""
    shape = planner.shapes[node.outputs[0]]
    if isinstance(into, torch.Tensor) and isinstance(matrix, torch.Tensor):
        if into.data_ptr() != matrix.data_ptr():
            planner.tape.call(torch.Tensor.copy_, into, matrix.view(shape))
    elif isinstance(matrix, torch.Tensor):
        planner.tape.call(torch.Tensor.copy_, into, matrix.view(shape))


def _in_by_out(planner: Planner, node: Node) -> Operand:
    """Return float weights as an (in, out) matrix in float32."""
    number = node.inputs[1]
    value = planner.value(number)
    matrix: Operand
    if value.is_constant and value.datatype is not Datatype.FP32:
        constants = planner.constants
        matrix = constants.prepared("float32", (value,), lambda: constants.plain(value).float())
    else:
        matrix = _matrix_in(planner, number, exact=True)
    return matrix if node.flags & FLAG_TRANSPOSE_WEIGHTS else planner.permuted(matrix, (1, 0))


def float_bias(planner: Planner, node: Node) -> Operand | None:
    """Return a float bias in float32."""
    if len(node.inputs) < 3:
        return None
    value = planner.value(node.inputs[2])
    if value.is_constant and value.datatype is not Datatype.FP32:
        constants = planner.constants
        return constants.prepared("float32", (value,), lambda: constants.plain(value).float())
    return planner.x(node.inputs[2])


def _multiply(
    planner: Planner, matrix: Operand, weights: Operand, bias: Operand | None, into: Operand
) -> None:
    if bias is None:
        planner.tape.call(torch.mm, matrix, weights, out=into)
    else:
        planner.tape.call(torch.addmm, bias, matrix, weights, out=into)


def _fully_connected_float(planner: Planner, node: Node) -> None:
    """Record a product in float32, whatever floats it is between."""
    matrix = _matrix_in(planner, node.inputs[0], exact=True)
    weights, bias = _in_by_out(planner, node), float_bias(planner, node)
    into, result = _matrix_out(planner, node.outputs[0])
    _multiply(planner, matrix, weights, bias, result)
    elementwise.clamp(planner, node, result)
    _store(planner, node, into, result)


# -- quantized weights ----------------------------------------------------------------------------


def scaled_weights(planner: Planner, value: Value, *, transposed: bool) -> torch.Tensor:
    """Return quantized weights times their scales: (in, out), in float32.

    The matrix in memory is (out, in), as the file has it.
    """

    def make() -> torch.Tensor:
        whole, scales = planner.constants.whole(value), planner.constants.scales(value)
        if scales.dim() == 2:  # one a block
            blocks = whole.view(*scales.shape, -1)
            return (blocks * scales.unsqueeze(-1)).view(whole.shape)
        axis = 1 if transposed else 0
        shape = [1, 1]
        shape[axis] = scales.numel()
        return whole * scales.view(shape)

    matrix = planner.constants.prepared(("scaled", transposed), (value,), make)
    return matrix if transposed else matrix.t()


def _constant_weights(planner: Planner, node: Node) -> Value:
    value = planner.value(node.inputs[1])
    if not value.is_constant:
        planner.refuse(f"{node}: quantized weights that are no constant")
    return value


def _fully_connected_rows(planner: Planner, node: Node) -> None:
    """Record a product of values quantized at run time, row by row, with quantized weights."""
    (source, _, *bias_ids), (target,) = node.inputs, node.outputs
    transposed = bool(node.flags & FLAG_TRANSPOSE_WEIGHTS)
    weights = scaled_weights(planner, _constant_weights(planner, node), transposed=transposed)
    step = planner.find(source).scale
    matrix = _matrix_in(planner, source, exact=True)
    into, result = _matrix_out(planner, target)
    planner.tape.call(torch.mm, matrix, weights, out=result)
    if bias_ids:
        bias = float_bias(planner, node)
        planner.tape.call(torch.addcmul, bias, result, step, out=result)
    else:
        planner.tape.call(torch.Tensor.mul_, result, step)
    elementwise.clamp(planner, node, result)
    _store(planner, node, into, result)


def _fully_connected_widened(planner: Planner, node: Node) -> None:
    """Record a product of floats with weights that are stored as 8 or 4 bits."""
    transposed = bool(node.flags & FLAG_TRANSPOSE_WEIGHTS)
    weights = scaled_weights(planner, _constant_weights(planner, node), transposed=transposed)
    matrix, bias = _matrix_in(planner, node.inputs[0], exact=True), float_bias(planner, node)
    into, result = _matrix_out(planner, node.outputs[0])
    _multiply(planner, matrix, weights, bias, result)
    elementwise.clamp(planner, node, result)
    _store(planner, node, into, result)


def _fully_connected_whole(planner: Planner, node: Node) -> None:
    """Record a product of 8-bit values: sums of whole numbers, scaled and rounded."""
    value = _constant_weights(planner, node)
    constants = planner.constants
    weights = constants.prepared("whole", (value,), lambda: constants.whole(value))
    if not node.flags & FLAG_TRANSPOSE_WEIGHTS:
        weights = weights.t()
    bias = whole_bias(planner, node)
    matrix = _matrix_in(planner, node.inputs[0], exact=False)
    into, result = _matrix_out(planner, node.outputs[0])
    _multiply(planner, matrix, weights, bias, result)
    planner.tape.call(torch.Tensor.mul_, result, output_scales(planner, node))
    quantized.settle(planner, result, node)
    _store(planner, node, into, result)


def whole_bias(planner: Planner, node: Node) -> torch.Tensor | None:
    """Return a bias of 32-bit integers in float32; its scale is input scale by weight scale."""
    if len(node.inputs) < 3:
        return None
    value = planner.value(node.inputs[2])
    if not value.is_constant:
        planner.refuse(f"{node}: a quantized bias that is no constant")
    constants = planner.constants
    return constants.prepared("whole", (value,), lambda: constants.whole(value).flatten())


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
    if not all(planner.value(number).datatype.is_float for number in (a, b, target)):
        planner.refuse(f"{node}: a product of quantized matrices")
    operands = []
    flags = (FLAG_TRANSPOSE_A, FLAG_TRANSPOSE_WEIGHTS)
    for number, flag in zip((a, b), flags, strict=True):
        rank = len(planner.find(number).shape)
        swapped = (*range(rank - 2), rank - 1, rank - 2)
        operands.append(planner.x(number, swapped if node.flags & flag else None))
    planner.tape.call(torch.matmul, *operands, out=planner.out(target))


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
