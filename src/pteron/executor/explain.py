"""What a failed instruction worked on, and which inputs its operands came from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pteron.executor.hints import describe
from pteron.executor.signature import ValueInfo
from pteron.format.schema import DelegateCall, ExecutionPlan, JumpFalseCall, KernelCall, Tensor
from pteron.program.memory_plan import MemoryPlan

_SHOWN_ORIGINS = 4
_MAX_ITEMS = 1 << 22
"""A larger tensor is not searched for its least and largest value."""


def operand_lines(
    memory_plan: MemoryPlan, values: Sequence[Any], number: int, inputs: Sequence[ValueInfo]
) -> list[str]:
    """Describe the tensors that an instruction was called with, one a line."""
    plan = memory_plan.plan
    instruction = plan.instructions[number]
    if not isinstance(instruction, (KernelCall, DelegateCall)):
        return []
    origins = _origins(memory_plan, number, inputs)
    own = {info.index: info for info in inputs}
    lines = []
    for index in dict.fromkeys(instruction.args):
        value = values[index]
        if not isinstance(value, torch.Tensor):
            continue
        what = f"{own[index].label}: {describe(value)}" if index in own else describe(value)
        line = f"%{index} is {what}, strides {list(value.stride())}"
        limits = value_range(value)
        if limits is not None:
            low, high = limits
            line += f", values {low} to {high}" if low != high else f", value {low}"
        if index not in own and origins.get(index):
            line += f", computed from {_joined(origins[index])}"
        lines.append(line)
    return lines


def out_of_range(plan: ExecutionPlan, values: Sequence[Any], number: int) -> str | None:
    """Say which indices an embedding got and which it allows; None for anything else."""
    instruction = plan.instructions[number]
    if not isinstance(instruction, KernelCall):
        return None
    name = plan.operators[instruction.op_index].name
    if name != "aten::embedding" or len(instruction.args) < 2:
        return None
    weight, indices = (values[index] for index in instruction.args[:2])
    if not isinstance(weight, torch.Tensor) or not isinstance(indices, torch.Tensor):
        return None
    limits = value_range(indices)
    if limits is None or not weight.dim():
        return None
    low, high = limits
    got = f"{low}" if low == high else f"{low} to {high}"
    return f"index out of range: allowed are 0 to {weight.shape[0] - 1}, got {got}"


def value_range(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Return the least and largest of whole numbers; None for others, and where it cannot tell."""
    kinds = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    if tensor.dtype not in kinds or not 0 < tensor.numel() <= _MAX_ITEMS:
        return None
    try:
        return int(tensor.min()), int(tensor.max())
    except RuntimeError:  # a device that failed answers nothing any more
        return None


def _joined(origins: Sequence[str]) -> str:
    shown = list(origins[:_SHOWN_ORIGINS])
    if len(origins) > _SHOWN_ORIGINS:
        shown.append(f"{len(origins) - _SHOWN_ORIGINS} more")
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _origins(
    memory_plan: MemoryPlan, number: int, inputs: Sequence[ValueInfo]
) -> dict[int, list[str]]:
    """Return the inputs and state that each value was computed from, before an instruction.

    A method that jumps may have run any of its instructions, in any order.
    """
    plan, steps = memory_plan.plan, memory_plan.graph.accesses
    labels = {info.index: info.label for info in inputs}
    labels |= {index: _state_label(plan, index) for index in memory_plan.state}
    order = {label: place for place, label in enumerate(labels.values())}
    found: dict[int, frozenset[str]] = {
        index: frozenset((label,)) for index, label in labels.items()
    }
    jumps = any(isinstance(one, JumpFalseCall) for one in plan.instructions)
    grown = True
    while grown:
        grown = False
        for step in steps if jumps else steps[:number]:
            sources = frozenset().union(
                *(found.get(index, frozenset()) for index in (*step.reads, *step.updates))
            )
            for index in (*step.writes, *step.updates):
                keep = jumps or index in step.updates or index in labels
                both = sources | found.get(index, frozenset()) if keep else sources
                grown = grown or (jumps and both != found.get(index, frozenset()))
                found[index] = both
    return {index: sorted(names, key=order.__getitem__) for index, names in found.items()}


def _state_label(plan: ExecutionPlan, index: int) -> str:
    value = plan.values[index]
    name = value.fully_qualified_name if isinstance(value, Tensor) else None
    return f"state {name or f'value_{index}'!r}"
