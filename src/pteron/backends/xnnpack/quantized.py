"""Arithmetic on 8-bit values, as XNNPACK does it.

A value quantized with one scale and zero point is held as float32 whole numbers, its elements less
the zero point. Float32 holds whole numbers up to 2^24 exactly, so that sums and products of them
come out as XNNPACK's integers do; results are scaled, rounded half to even and clamped.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import torch

from pteron.backends.xnnpack.graph import (
    Datatype,
    Graph,
    Node,
    NodeKind,
    PerToken,
    Slope,
    Value,
)
from pteron.backends.xnnpack.planner import FLOATS, LATTICE, Operand, Planner, lowers

QMIN, QMAX = -128, 127

_MAKES_NANS = frozenset(
    {NodeKind.DIV, NodeKind.LOG, NodeKind.RECIPROCAL_SQUARE_ROOT, NodeKind.SQUARE_ROOT}
)


def float32(number: float) -> float:
    """Round to the nearest float32, as XNNPACK's own arithmetic on scales does."""
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded


def as_float(number: float, value: Value) -> float:
    """Round a scale as XNNPACK does for changes from or to a float value: in float16, to that."""
    dtype = torch.float16 if value.datatype is Datatype.FP16 else torch.float32
    return torch.tensor(float32(number), dtype=torch.float32, device="cpu").to(dtype).item()


def stored_range(value: Value) -> tuple[int, int]:
    """Return the least and the greatest element as it is stored."""
    return (QMIN, QMAX) if value.datatype is Datatype.QINT8 else (0, 255)


def bounds(value: Value, low: float = -inf, high: float = inf) -> tuple[float, float]:
    """Return the least and the greatest whole number of a value, within a range of real ones."""
    affine = value.affine
    least, most = stored_range(value)
    ends = []
    for end in (low, high):
        stored = min(max(end / affine.scale + affine.zero_point, least), most)
        ends.append(float(round(float32(stored)) - affine.zero_point))
    return ends[0], ends[1]


def node_bounds(planner: Planner, node: Node) -> tuple[float, float]:
    """Return the range of whole numbers that a node's output may have."""
    return bounds(planner.value(node.outputs[0]), node.output_min, node.output_max)


def settle(planner: Planner, tensor: Operand, node: Node) -> None:
    """Record the rounding of scaled numbers to whole ones inside their range, in place."""
    planner.tape.call(torch.clamp_, tensor, *node_bounds(planner, node))
    planner.tape.call(torch.round_, tensor)


def settle_half_up(planner: Planner, tensor: Operand, node: Node) -> None:
    """Record what :func:`settle` does, for numbers to which 0.5 was added."""
    planner.tape.call(torch.floor_, tensor)
    planner.tape.call(torch.clamp_, tensor, *node_bounds(planner, node))


def read(planner: Planner, value: Value, stored: Operand) -> None:
    """Record how an 8-bit input, with the value's dimensions, becomes whole numbers."""
    into = planner.out(value.id)
    planner.tape.call(torch.sub, stored, float(value.affine.zero_point), out=into)


def write(planner: Planner, value: Value, target: Operand, whole: Operand) -> None:
    """Record how whole numbers become an 8-bit output."""
    planner.tape.call(store, whole, value.affine.zero_point, target)


def store(whole: torch.Tensor, zero_point: int, target: torch.Tensor) -> None:
    """Write whole numbers as elements."""
    target.copy_(whole + zero_point)


# -- datatypes ------------------------------------------------------------------------------------


@lowers(NodeKind.CONVERT)
def lower_convert(planner: Planner, node: Node) -> None:
    """Record a change of datatype."""
    before, after = planner.value(node.inputs[0]), planner.value(node.outputs[0])
    kinds = before.datatype, after.datatype
    if kinds[0] in FLOATS and kinds[1] in (Datatype.QDINT8, Datatype.QPINT8):
        lower_quantize_rows(planner, node)
    elif kinds[0] in FLOATS and kinds[1] in FLOATS:
        source, into = planner.source_and_target(node)
        planner.tape.call(torch.Tensor.copy_, into, source)
    elif kinds[0] in FLOATS and kinds[1] in LATTICE:
        source, into = planner.source_and_target(node)
        scale = as_float(1.0 / after.affine.scale, before)
        if before.datatype is not Datatype.FP32:
            planner.tape.call(torch.Tensor.copy_, into, source)  # products of halves are rounded
            source = into
        planner.tape.call(torch.mul, source, scale, out=into)
        settle(planner, into, node)
    elif kinds[0] in LATTICE and kinds[1] in FLOATS:
        source, into = planner.source_and_target(node)
        planner.tape.call(torch.mul, source, as_float(before.affine.scale, after), out=into)
    elif kinds[0] is kinds[1]:
        lower_requantize(planner, node)
    else:
        source, into = planner.source_and_target(node)
        record_other_steps(planner, node.inputs[0], node.outputs[0], source, into)


def lower_requantize(planner: Planner, node: Node) -> None:
    """Record a change of scale: by 256ths, rounded half up (``xnn_qs8_vcvt``)."""
    before, after = planner.value(node.inputs[0]), planner.value(node.outputs[0])
    multiplier = round(256.0 * float32(before.affine.scale / after.affine.scale))
    source, into = planner.source_and_target(node)
    planner.tape.call(torch.mul, source, multiplier / 256, out=into)
    planner.tape.call(torch.Tensor.add_, into, 0.5)
    settle_half_up(planner, into, node)


def has_other_steps(planner: Planner, source: int, target: int) -> bool:
    """Whether 8-bit values are counted in other steps, or from another zero point, at an output."""
    before, after = planner.value(source), planner.value(target)
    return after.datatype in LATTICE and (
        before.datatype is not after.datatype or before.quantization != after.quantization
    )


def record_other_steps(
    planner: Planner,
    source: int,
    target: int,
    numbers: Operand,
    into: Operand,
    low: float = -inf,
    high: float = inf,
) -> None:
    """Record how numbers in a value's steps become those of another value, within a range.

    ``into`` has the shape of ``numbers`` and may be ``numbers``.
    """
    after, tape = planner.value(target), planner.tape
    tape.call(torch.mul, numbers, planner.value(source).affine.scale, out=into)
    tape.call(torch.Tensor.mul_, into, float32(1.0 / after.affine.scale))
    tape.call(round_stored, into, after.affine.zero_point)
    tape.call(torch.clamp_, into, *bounds(after, low, high))


def split_mixed_rows(graph: Graph) -> Graph:
    """Quantize a value twice that pointwise convolutions and other ones read.

    The first kind takes a scale for each pixel, as a fully connected node (XNNPACK makes one of
    it), the second a scale for each image. (The wheel gives the second the scales of pixels.)
    """
    kinds: dict[int, set[bool]] = {}
    for node in graph.nodes:
        kinds.setdefault(node.inputs[0] if node.inputs else -1, set()).add(node.is_pointwise)
    mixed = [
        value
        for value in graph.values
        if value.datatype in (Datatype.QDINT8, Datatype.QPINT8) and len(kinds.get(value.id, ())) > 1
    ]
    if not mixed:
        return graph
    free = max(graph.by_id) + 1
    images = {value.id: replace(value, id=free + i) for i, value in enumerate(mixed)}
    nodes: list[Node] = []
    for node in graph.nodes:
        source = node.inputs[0] if node.inputs else -1
        if source in images and not node.is_pointwise:
            nodes.append(replace(node, inputs=(images[source].id, *node.inputs[1:])))
            continue
        nodes.append(node)
        if node.kind is NodeKind.CONVERT and node.outputs[0] in images:
            nodes.append(replace(node, outputs=(images[node.outputs[0]].id,)))
    values = (*graph.values, *images.values())
    by_id = {value.id: value for value in values}
    return replace(graph, nodes=tuple(nodes), values=values, by_id=by_id)


def lower_quantize_rows(planner: Planner, node: Node) -> None:
    """Record a quantization with a scale and zero point for each row (qdint8)."""
    (source,), (target,) = node.inputs, node.outputs
    quantization = planner.value(target).quantization
    assert isinstance(quantization, PerToken)
    shape = planner.shapes[target]
    dims = quantization.num_nonbatch_dims
    if any(reader.is_pointwise for reader in planner.consumers(target)):
        dims = 1  # as of a fully connected node
    inner = shape[len(shape) - dims :]
    rows = math.prod(shape[: len(shape) - len(inner)])
    whole = planner.out(target)
    assert isinstance(whole, torch.Tensor)
    flat = (rows, math.prod(inner))
    step, zero = (
        torch.empty((rows, 1), dtype=torch.float32, device=planner.device) for _ in range(2)
    )
    x = planner.reshaped(planner.x(source), flat)
    planner.tape.call(quantize_rows, x, whole.view(flat), step, zero)
    held = planner.held[target]
    held.scale, held.zero = step, zero


def quantize_rows(
    x: torch.Tensor, whole: torch.Tensor, step: torch.Tensor, zero: torch.Tensor
) -> None:
    """Quantize each row by its own range; write whole numbers, less the row's zero point.

    Writes also what one step of a row is, and the zero point.

    ``xnn_qd8_asymmetric_quantization_params``: the range is widened to hold 0, and the zero point
    is chosen at the end of the range where rounding costs less.
    """
    x = x.float()
    low, high = torch.amin(x, 1, True).clamp_(max=0), torch.amax(x, 1, True).clamp_(min=0)
    scale = torch.reciprocal(high - low).mul_(QMAX - QMIN)
    scale.nan_to_num_(nan=1.0, posinf=1.0)  # a row of zeros
    low.mul_(scale)
    high.mul_(scale)
    torch.where((low + QMIN) + (high + QMAX) > 0, QMIN - low, QMAX - high, out=zero)
    zero.clamp_(QMIN, QMAX).round_()
    torch.mul(x, scale, out=whole).round_().add_(zero).clamp_(QMIN, QMAX).sub_(zero)
    torch.reciprocal(scale, out=step)


# -- elements -------------------------------------------------------------------------------------


def lower_clamp(planner: Planner, node: Node) -> None:
    """Record a clamp of 8-bit values."""
    (before,), (after,) = node.inputs, node.outputs
    source, into = planner.source_and_target(node)
    if has_other_steps(planner, before, after):
        limits = node.output_min, node.output_max
        record_other_steps(planner, before, after, source, into, *limits)
        return
    planner.tape.call(torch.clamp, source, *node_bounds(planner, node), out=into)


def lower_unary(
    planner: Planner, node: Node, function: Callable[..., Any], extra: tuple[float, ...]
) -> None:
    """Record a function of real numbers, between two changes of scale."""
    before, after = planner.value(node.inputs[0]), planner.value(node.outputs[0])
    source, into = planner.source_and_target(node)
    if node.kind is NodeKind.LEAKY_RELU and isinstance(node.options, Slope):
        positive = float32(before.affine.scale / after.affine.scale)
        scales = (positive, float32(positive * node.options.value))
        planner.tape.call(_leaky, source, *(round(256 * s) / 256 for s in scales), into)
        settle_half_up(planner, into, node)
        return
    tape = planner.tape
    tape.call(torch.mul, source, before.affine.scale, out=into)
    tape.call(function, into, *extra, out=into)
    settle_reals(planner, into, node)


def settle_reals(planner: Planner, into: Operand, node: Node) -> None:
    """Record how real numbers become steps of a node's output.

    XNNPACK adds the zero point before it rounds, and stores 0 for what is not a number.
    """
    after, tape = planner.value(node.outputs[0]), planner.tape
    tape.call(torch.Tensor.mul_, into, float32(1.0 / after.affine.scale))
    tape.call(round_stored, into, after.affine.zero_point)
    if node.kind in _MAKES_NANS:
        tape.call(torch.nan_to_num_, into, float(-after.affine.zero_point), inf, -inf)
    tape.call(torch.clamp_, into, *node_bounds(planner, node))


def _leaky(source: torch.Tensor, positive: float, negative: float, into: torch.Tensor) -> None:
    below = torch.clamp(source, max=0).mul_(negative)
    torch.clamp(source, min=0, out=into).mul_(positive)
    into.add_(below).add_(0.5)


def round_stored(numbers: torch.Tensor, zero_point: int) -> None:
    """Round numbers as they are with the zero point added: it decides which way a half goes."""
    numbers.add_(zero_point).round_().sub_(zero_point)


def lower_binary(planner: Planner, node: Node, function: Callable[..., Any]) -> None:
    """Record an operation on two 8-bit values."""
    a, b, into = planner.two_sources_and_target(node)
    x, y = (planner.value(number).affine for number in node.inputs)
    z, tape = planner.value(node.outputs[0]).affine, planner.tape
    if node.kind in (NodeKind.ADD, NodeKind.SUBTRACT):
        first, second = add_multipliers(x.scale / z.scale, y.scale / z.scale)
        if node.kind is NodeKind.SUBTRACT:
            second = -second
        tape.call(_add, a, first, b, second, into)
        settle_half_up(planner, into, node)
    elif node.kind is NodeKind.MULTIPLY:
        tape.call(torch.mul, a, b, out=into)
        tape.call(torch.Tensor.mul_, into, float32(float32(x.scale * y.scale) / z.scale))
        settle(planner, into, node)
    else:
        tape.call(_of_reals, function, a, x.scale, b, y.scale, into)
        settle_reals(planner, into, node)


def add_multipliers(first: float, second: float) -> tuple[float, float]:
    """Return two scales as multiples of one power of two, as XNNPACK's addition takes them.

    The larger becomes a whole number of 21 bits (``xnn_init_qs8_add_minmax_scalar_params``).
    """
    first, second = float32(first), float32(second)
    shift = 20 - (math.frexp(max(first, second))[1] - 1)
    return round(first * 2.0**shift) / 2.0**shift, round(second * 2.0**shift) / 2.0**shift


_HALF = torch.tensor(0.5, dtype=torch.float32, device="cpu")


def _add(a: torch.Tensor, first: float, b: torch.Tensor, second: float, into: torch.Tensor) -> None:
    """Write ``a * first + b * second + 0.5`` into a tensor that may be ``a`` or ``b``."""
    if into.data_ptr() == b.data_ptr():
        a, first, b, second = b, second, a, first
    torch.add(_HALF, a, alpha=first, out=into)
    into.add_(b, alpha=second)


def _of_reals(
    function: Callable[..., Any],
    a: torch.Tensor,
    first: float,
    b: torch.Tensor,
    second: float,
    into: torch.Tensor,
) -> None:
    torch.Tensor.copy_(into, function(a * first, b * second))
