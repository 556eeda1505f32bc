"""Nodes that work on elements: unary and binary ones, softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import torch

from pteron.backends.xnnpack import quantized
from pteron.backends.xnnpack.graph import Node, NodeKind, Slope
from pteron.backends.xnnpack.planner import LATTICE, Operand, Planner, lowers

_nn = torch._C._nn

UNARY: dict[NodeKind, Callable[..., Any]] = {
    NodeKind.ABS: torch.abs,
    NodeKind.CEILING: torch.ceil,
    NodeKind.COS: torch.cos,
    NodeKind.EXP: torch.exp,
    NodeKind.FLOOR: torch.floor,
    NodeKind.GELU: _nn.gelu,
    NodeKind.HARDSWISH: _nn.hardswish,
    NodeKind.LOG: torch.log,
    NodeKind.NEGATE: torch.neg,
    NodeKind.RECIPROCAL_SQUARE_ROOT: torch.rsqrt,
    NodeKind.SIGMOID: torch.sigmoid,
    NodeKind.SIN: torch.sin,
    NodeKind.SQUARE: torch.square,
    NodeKind.SQUARE_ROOT: torch.sqrt,
    NodeKind.TANH: torch.tanh,
}
BINARY: dict[NodeKind, Callable[..., Any]] = {
    NodeKind.ADD: torch.add,
    NodeKind.SUBTRACT: torch.sub,
    NodeKind.MULTIPLY: torch.mul,
    NodeKind.DIV: torch.div,
    NodeKind.MINIMUM: torch.minimum,
    NodeKind.MAXIMUM: torch.maximum,
}


@lowers(*UNARY, NodeKind.ELU, NodeKind.LEAKY_RELU)
def lower_unary(planner: Planner, node: Node) -> None:
    """Record a function of each element."""
    function = UNARY.get(node.kind, _nn.elu)
    extra: tuple[float, ...] = ()
    if isinstance(node.options, Slope):
        function = _nn.elu if node.kind is NodeKind.ELU else _nn.leaky_relu
        extra = (node.options.value,)
    if planner.value(node.outputs[0]).datatype in LATTICE:
        quantized.lower_unary(planner, node, function, extra)
        return
    source, into = planner.source_and_target(node)
    planner.tape.call(function, source, *extra, out=into)


@lowers(*BINARY)
def lower_binary(planner: Planner, node: Node) -> None:
    """Record an operation on two operands, with broadcasting, and the clamp behind it."""
    node = fuse_clamp(planner, node)
    if planner.value(node.outputs[0]).datatype in LATTICE:
        quantized.lower_binary(planner, node, BINARY[node.kind])
        return
    a, b, into = planner.two_sources_and_target(node)
    planner.tape.call(BINARY[node.kind], a, b, out=into)
    clamp(planner, node, into)


def fuse_clamp(planner: Planner, node: Node) -> Node:
    """Return a node that does also what a clamp does that alone reads its output."""
    follower = planner.only_consumer(node.outputs[0])
    if follower is None or follower[1].kind is not NodeKind.CLAMP:
        return node
    index, then = follower
    before, after = planner.value(node.outputs[0]), planner.value(then.outputs[0])
    if before.datatype != after.datatype or before.quantization != after.quantization:
        return node
    planner.absorb(index)
    low, high = (
        min(max(bound, then.output_min), then.output_max)
        for bound in (node.output_min, node.output_max)
    )
    return replace(node, outputs=then.outputs, output_min=low, output_max=high)


def clamp(planner: Planner, node: Node, tensor: Operand) -> None:
    """Record the clamp on a node's float output, in place."""
    low = None if node.output_min == -inf else node.output_min
    high = None if node.output_max == inf else node.output_max
    if low == 0 and high is None:
        planner.tape.call(torch.relu_, tensor)
    elif low is not None or high is not None:
        planner.tape.call(torch.clamp_, tensor, low, high)


@lowers(NodeKind.CLAMP)
def lower_clamp(planner: Planner, node: Node) -> None:
    """Record a clamp that no earlier node took over."""
    if planner.value(node.outputs[0]).datatype in LATTICE:
        quantized.lower_clamp(planner, node)
        return
    source, into = planner.source_and_target(node)
    planner.tape.call(torch.clamp, source, node.output_min, node.output_max, out=into)


@lowers(NodeKind.PRELU)
def lower_prelu(planner: Planner, node: Node) -> None:
    """Record ``x < 0 ? x * slope : x``."""
    if planner.value(node.outputs[0]).datatype in LATTICE:
        quantized.lower_binary(planner, node, _prelu)
        return
    x, slope, into = planner.two_sources_and_target(node)
    planner.tape.call(prelu, x, slope, into)


def _prelu(x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """Return ``x``, its negative elements times ``slope``."""
    return torch.where(x < 0, x * slope, x)


def prelu(x: torch.Tensor, slope: torch.Tensor, into: torch.Tensor) -> None:
    """Write ``x``, its negative elements times ``slope``, into a tensor that may be ``x``."""
    negative = torch.clamp(x, max=0)
    torch.clamp(x, min=0, out=into)
    into.addcmul_(negative, slope)


@lowers(NodeKind.SOFTMAX)
def lower_softmax(planner: Planner, node: Node) -> None:
    """Record a softmax along the last dimension."""
    (source,), (target,) = node.inputs, node.outputs
    into = planner.out(target)
    planner.tape.call(torch.softmax, planner.x(source), -1, out=into)
