"""The values that are used as they are found: state, and silent views of other values."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pteron.format.schema import DelegateCall, ExecutionPlan, JumpFalseCall, MoveCall, Tensor
from pteron.program.byte_owners import ByteOwners
from pteron.program.effects import Access, expand_all


@dataclass(frozen=True, slots=True)
class Unwritten:
    """The values that are used as they are found, by why that is right."""

    state: tuple[int, ...]
    """Tensors that keep their value from call to call."""
    aliases: tuple[int, ...]
    """Planned tensors that lie over another value's bytes and read what was written there:
    exporters drop a view of planned memory without an instruction."""


def find_unwritten(
    plan: ExecutionPlan, steps: Sequence[Access], repeats: Mapping[int, int]
) -> Unwritten:
    """Return the state of a method, and its silent views.

    State is a tensor, neither constant nor input, that has an initial value or a name in the file,
    or whose first use is not a write: it is read (or returned) before anything was written to it,
    or changed in place, or overwritten by ``aten::copy_`` and not read again (the write-back of a
    buffer that functionalisation leaves at the end of a method). It may lack a place in the plan
    (``MemoryPlanningPass(alloc_mutable_buffers=False)``); if it has an initial value then, it looks
    like a constant, and is one unless an operator is known to change it in place. The memory of
    state is never used for anything else; a value that was not written but shares its bytes with
    one that was is a silent view. Values of ``repeats`` are neither: they stand for another.
    """
    inputs = set(plan.inputs)
    outputs = {repeats.get(index, index) for index in expand_all(plan, plan.outputs)}
    tensors = {
        index: value
        for index, value in enumerate(plan.values)
        if isinstance(value, Tensor) and index not in inputs and index not in repeats
    }
    constants = {index for index, value in tensors.items() if value.is_constant}
    candidates = tensors.keys() - constants
    declared = {
        index
        for index in candidates
        if tensors[index].has_initial_value or tensors[index].fully_qualified_name
    }
    straight = not any(
        isinstance(instruction, (JumpFalseCall, MoveCall)) for instruction in plan.instructions
    )
    state: set[int] = set()
    written: set[int] = set()
    maybe_written: set[int] = set()
    """What a delegate or unknown operator is given before anything sets it: perhaps a result."""
    set_at: dict[int, int] = dict.fromkeys(inputs, -1)
    used_at: dict[int, int] = {}
    overwritten: set[int] = set()
    read_after_overwrite: set[int] = set()
    viewed: dict[int, int] = {}
    for number, (instruction, step) in enumerate(zip(plan.instructions, steps, strict=True)):
        for index in (*step.reads, *step.updates):
            used_at.setdefault(index, number)
        for index in (*step.writes, *step.updates):
            set_at.setdefault(index, number)
        if step.aliases and step.reads:
            viewed[step.writes[0]] = viewed.get(step.reads[0], step.reads[0])
        reads = [repeats.get(i, i) for i in step.reads] if repeats else step.reads
        if isinstance(instruction, DelegateCall):
            found = _delegate_state(plan, reads, candidates, written | inputs)
            state |= found
            maybe_written.update(i for i in reads if i not in written and i not in found)
            for index in reads:
                set_at.setdefault(index, number)
            written.update(reads)
            continue
        if overwritten:
            read_after_overwrite.update(overwritten.intersection(reads))
        state.update(i for i in reads if i in candidates and i not in written)
        for index in step.updates:
            index = repeats.get(index, index)
            if step.guessed and index not in written:
                maybe_written.add(index)  # a result, or state
            elif index in candidates and index not in written:
                (overwritten if step.overwrites else state).add(index)
            elif not step.assumed and viewed.get(index, index) in constants:
                state.add(viewed.get(index, index))
        written.update(step.writes, step.updates)
    if not straight:
        state |= overwritten  # it may not run, and then the old value is read
    state |= overwritten - read_after_overwrite - outputs
    state |= {index for index in outputs if index in candidates and index not in written}
    others = (written | inputs) - state - declared
    if straight:
        end = len(plan.instructions)
        undeclared = state - declared
        # What nothing ever writes through the value itself is no state, wherever it is read first.
        times = {index: used_at.get(index, end) for index in undeclared if index in written}
        aliases = _found_written(plan, times, {i: set_at.get(i, end) for i in others})
        aliases |= _overlapping(plan, undeclared - written, others)
    else:
        aliases = _overlapping(plan, state - declared, others - maybe_written)
    return Unwritten(tuple(sorted((state - aliases) | declared)), tuple(sorted(aliases)))


def _found_written(
    plan: ExecutionPlan, used_at: Mapping[int, int], set_at: Mapping[int, int]
) -> set[int]:
    """Return the values of which some planned bytes were written before they were used.

    Both mappings are from values to times; what is written at the time of a use comes after it.
    """
    if not used_at:
        return set()
    events = [(time, 0, index) for index, time in used_at.items()]
    events += [(time, 1, index) for index, time in set_at.items()]
    owners: dict[int, ByteOwners] = {}
    found = set()
    for _, is_write, index in sorted(events):
        value = plan.values[index]
        place = value.allocation_info if isinstance(value, Tensor) else None
        if place is None or not value.nbytes:  # type: ignore[union-attr]
            continue
        begin = place.memory_offset
        end = begin + value.nbytes  # type: ignore[union-attr]
        buffer = owners.setdefault(place.memory_id, ByteOwners())
        if is_write:
            buffer.write(begin, end, index)
        elif buffer.read(begin, end)[0]:
            found.add(index)
    return found


def _overlapping(plan: ExecutionPlan, values: set[int], others: set[int]) -> set[int]:
    """Return those of ``values`` whose planned bytes one of ``others`` has too."""
    if not values:
        return set()
    spans: dict[int, list[tuple[int, int]]] = {}
    for index in others:
        value = plan.values[index]
        if isinstance(value, Tensor) and value.allocation_info is not None and value.nbytes:
            place = value.allocation_info
            spans.setdefault(place.memory_id, []).append(
                (place.memory_offset, place.memory_offset + value.nbytes)
            )
    merged = {buffer: _merged(found) for buffer, found in spans.items()}
    overlapping = set()
    for index in values:
        value = plan.values[index]
        assert isinstance(value, Tensor)
        slot = value.allocation_info
        if slot is None or slot.memory_id not in merged:
            continue
        begins, ends = merged[slot.memory_id]
        at = bisect_right(begins, slot.memory_offset + value.nbytes - 1) - 1
        if value.nbytes and at >= 0 and ends[at] > slot.memory_offset:
            overlapping.add(index)
    return overlapping


def _merged(spans: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Return the begins and ends of the union of spans, sorted and apart."""
    begins: list[int] = []
    ends: list[int] = []
    for begin, end in sorted(spans):
        if ends and begin <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            begins.append(begin)
            ends.append(end)
    return begins, ends


def _delegate_state(
    plan: ExecutionPlan, args: Sequence[int], candidates: set[int], known: set[int]
) -> set[int]:
    """Return arguments that nothing wrote but that must be inputs: one that is known follows."""
    last_input = -1
    for position, index in enumerate(args):
        value = plan.values[index]
        if index in known or not isinstance(value, Tensor) or value.is_constant:
            last_input = position
    return {index for index in args[: last_input + 1] if index in candidates and index not in known}


def first_unwritten(plan: ExecutionPlan, steps: Sequence[Access]) -> dict[int, int]:
    """Return for each delegate the position of the first argument that nothing has set.

    It is that of the delegate's first call. An argument is set if it is an input of the method, a
    constant, has an initial value, or was written by an earlier instruction.
    """
    known = set(plan.inputs)
    positions: dict[int, int] = {}
    for instruction, step in zip(plan.instructions, steps, strict=True):
        if not isinstance(instruction, DelegateCall):
            known.update(step.writes, step.updates)
            continue
        first = 0
        for position, index in enumerate(instruction.args):
            value = plan.values[index]
            given = not isinstance(value, Tensor) or value.is_constant or value.has_initial_value
            if given or index in known:
                first = position + 1
        positions.setdefault(instruction.delegate_index, first)
        known.update(instruction.args)
    return positions
