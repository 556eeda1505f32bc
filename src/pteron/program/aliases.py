"""Values that read, by their place alone, what was written to another one, and to which.

Exporters drop a view of planned memory without leaving an instruction: the view's value has the
same place as what it is a view of, and nothing writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pteron.format.schema import DelegateCall, ExecutionPlan, JumpFalseCall, KernelCall, MoveCall
from pteron.program.dataflow import Access

if TYPE_CHECKING:
    from pteron.program.memory_plan import PlannedSlot

_MAX_PAIRS = 5_000_000
"""Comparisons of places that are made at most; longer methods keep their aliases unresolved."""


def resolve_aliases(
    plan: ExecutionPlan,
    steps: Sequence[Access],
    slots: Mapping[int, PlannedSlot],
    aliases: tuple[int, ...],
) -> dict[int, int]:
    """Return for each alias the value whose memory it reads, where that is beyond doubt.

    It is for an alias that only kernels read, in a method that runs straight through, if the last
    value written to its bytes before its first use has just its bytes, was written once, and
    nothing else is written there until the alias's last use.
    """
    if len(aliases) * len(slots) > _MAX_PAIRS or any(
        isinstance(i, (JumpFalseCall, MoveCall)) for i in plan.instructions
    ):
        return {}
    writes: dict[int, list[int]] = {index: [-1] for index in plan.inputs}
    reads: dict[int, list[int]] = {}
    fixed: set[int] = set(plan.outputs)
    for number, (instruction, step) in enumerate(zip(plan.instructions, steps, strict=True)):
        delegate = isinstance(instruction, DelegateCall)
        if delegate or not isinstance(instruction, KernelCall) or _copies_places(plan, instruction):
            fixed.update((*step.reads, *step.writes, *step.updates))
        fixed.update(step.updates)
        for index in (*step.writes, *step.updates, *(step.reads if delegate else ())):
            writes.setdefault(index, []).append(number)
        for index in (*step.reads, *step.updates):
            reads.setdefault(index, []).append(number)
    by_buffer: dict[int, list[int]] = {}
    for index in writes:
        if index in slots:
            by_buffer.setdefault(slots[index].buffer, []).append(index)
    found = {}
    for alias in aliases:
        if alias in fixed or alias not in reads:
            continue
        source = _source(slots, writes, by_buffer.get(slots[alias].buffer, []), alias, reads[alias])
        if source is not None:
            found[alias] = source
    return found


def _copies_places(plan: ExecutionPlan, call: KernelCall) -> bool:
    return plan.operators[call.op_index].name.startswith("et_copy::")


def _source(
    slots: Mapping[int, PlannedSlot],
    writes: Mapping[int, list[int]],
    candidates: list[int],
    alias: int,
    reads: list[int],
) -> int | None:
    first, last, place = reads[0], reads[-1], slots[alias]
    best, best_write = None, -2
    for index in candidates:
        slot = slots[index]
        if slot.offset >= place.end or place.offset >= slot.end:
            continue
        before = [number for number in writes[index] if number < first]
        if any(first <= number <= last for number in writes[index]):
            return None
        if before and before[-1] > best_write:
            best, best_write = index, before[-1]
    if best is None or len(writes[best]) != 1:
        return None
    slot = slots[best]
    return best if (slot.offset, slot.nbytes) == (place.offset, place.nbytes) else None
