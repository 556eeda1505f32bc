"""Nodes that move elements: views where memory allows it, copies where it does not."""

from __future__ import annotations

from math import prod

import torch

from pteron.backends.xnnpack import quantized
from pteron.backends.xnnpack.graph import (
    CONCATENATES,
    Concatenate,
    Node,
    NodeKind,
    Pad,
    Reshape,
    Slice,
    Transpose,
)
from pteron.backends.xnnpack.planner import LATTICE, Operand, Perm, Planner, compose, lowers


def hold_moved(
    planner: Planner, target: int, source: int, base: Operand, perm: Perm | None = None
) -> None:
    """Hold an output where the input is, or record it in its own steps if those are others.

    ``base.permute(perm)`` is the input seen with the output's dimensions.
    """
    if not quantized.has_other_steps(planner, source, target):
        planner.alias(target, source, base, perm)
        return
    moved = base if perm is None else planner.permuted(base, perm)
    quantized.record_other_steps(planner, source, target, moved, planner.out(target))


@lowers(NodeKind.COPY)
def lower_copy(planner: Planner, node: Node) -> None:
    """Hold the output where the input is: nobody writes over what is still needed."""
    (source,), (target,) = node.inputs, node.outputs
    held = planner.find(source)
    hold_moved(planner, target, source, held.base, held.perm)


@lowers(NodeKind.STATIC_TRANSPOSE)
def lower_transpose(planner: Planner, node: Node) -> None:
    """Note that the dimensions have another order from here on."""
    assert isinstance(node.options, Transpose)
    (source,), (target,) = node.inputs, node.outputs
    held = planner.find(source)
    perm = compose(held.perm, node.options.perm)
    if isinstance(held.base, torch.Tensor) and perm is not None:
        hold_moved(planner, target, source, held.base.permute(perm))
    else:
        hold_moved(planner, target, source, held.base, perm)


@lowers(NodeKind.STATIC_RESHAPE)
def lower_reshape(planner: Planner, node: Node) -> None:
    """Record a view, or a copy if the elements are not in the order of the new shape."""
    assert isinstance(node.options, Reshape)
    (source,), (target,) = node.inputs, node.outputs
    shape = planner.shapes[target]
    base = planner.x(source)
    if isinstance(base, torch.Tensor):
        try:
            moved = base.view(shape)
        except RuntimeError:
            into = planner.out(target)
            assert isinstance(into, torch.Tensor)
            planner.tape.call(torch.Tensor.copy_, into.view(base.shape), base)
            if quantized.has_other_steps(planner, source, target):
                quantized.record_other_steps(planner, source, target, into, into)
        else:
            hold_moved(planner, target, source, moved)
    else:
        hold_moved(planner, target, source, planner.tape.method(base, "reshape", list(shape)))


@lowers(NodeKind.STATIC_SLICE)
def lower_slice(planner: Planner, node: Node) -> None:
    """Record a view of a part."""
    assert isinstance(node.options, Slice)
    (source,), (target,) = node.inputs, node.outputs
    held = planner.find(source)
    base, perm = held.base, held.perm
    shape = planner.shapes[target]
    for axis, (offset, size) in enumerate(zip(node.options.offsets, shape, strict=True)):
        if size == held.shape[axis]:
            continue
        place = axis if perm is None else perm[axis]
        if isinstance(base, torch.Tensor):
            base = base.narrow(place, offset, size)
        else:
            base = planner.tape.method(base, "narrow", place, offset, size)
    hold_moved(planner, target, source, base, perm)


@lowers(*CONCATENATES)
def lower_concatenate(planner: Planner, node: Node) -> None:
    """Record tensors put side by side."""
    assert isinstance(node.options, Concatenate)
    (target,) = node.outputs
    frame = planner.frame(*node.inputs)
    parts = [_part(planner, number, target, frame) for number in node.inputs]
    axis = node.options.axis if frame is None else frame.index(node.options.axis)
    planner.tape.call(torch.cat, parts, axis, out=planner.out_in(target, frame))


def _part(planner: Planner, source: int, target: int, frame: Perm | None) -> Operand:
    """Return one operand of a concatenation in the steps of the result."""
    operand = planner.x(source, frame)
    if not quantized.has_other_steps(planner, source, target):
        return operand
    shape = planner.shapes[source]
    if frame is not None:
        shape = tuple(shape[axis] for axis in frame)
    into = planner.scratch(shape)
    quantized.record_other_steps(planner, source, target, operand, into)
    return into


@lowers(NodeKind.STATIC_CONSTANT_PAD)
def lower_pad(planner: Planner, node: Node) -> None:
    """Record a copy into the middle of a tensor filled with one number."""
    assert isinstance(node.options, Pad)
    (source,), (target,) = node.inputs, node.outputs
    number = node.options.value
    value = planner.value(target)
    if value.datatype in LATTICE:
        least, most = quantized.stored_range(value)
        stored = min(max(number / value.affine.scale + value.affine.zero_point, least), most)
        number = float(round(stored) - value.affine.zero_point)
    into = planner.out(target)
    inner: Operand = into
    for axis, (offset, size) in enumerate(
        zip(node.options.before, planner.shapes[source], strict=True)
    ):
        if size != planner.shapes[target][axis]:
            if isinstance(inner, torch.Tensor):
                inner = inner.narrow(axis, offset, size)
            else:
                inner = planner.tape.method(inner, "narrow", axis, offset, size)
    planner.tape.call(torch.Tensor.fill_, into, number)
    if not prod(planner.shapes[source]):
        return
    if quantized.has_other_steps(planner, source, target):
        quantized.record_other_steps(planner, source, target, planner.x(source), inner)
    else:
        planner.tape.call(torch.Tensor.copy_, inner, planner.x(source))
