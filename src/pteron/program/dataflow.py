"""Which values an instruction reads and writes, and which planned tensors hold state.

A program names operators, not their schemas, so this follows what ExecuTorch's emitter writes
(``exir/emit/_emitter.py``): a call's values are the schema's arguments and then its returns; an
out variant's returns repeat its out tensors; an in-place operator's return repeats its first
argument; a primitive operator's result is its last value.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pteron.format.schema import (
    DelegateCall,
    ExecutionPlan,
    FreeCall,
    Instruction,
    IntList,
    JumpFalseCall,
    KernelCall,
    MoveCall,
    OptionalTensorList,
    Tensor,
    TensorList,
)

ET_VIEW = "executorch_prim::et_view.default"
ET_COPY_INDEX = "executorch_prim::et_copy_index.tensor"
_RESULT_LAST = frozenset({"aten::sym_size.int", "aten::sym_numel", "aten::_local_scalar_dense"})
_OVERWRITES = frozenset({"aten::copy_"})


@dataclass(frozen=True, slots=True)
class Access:
    """The value indices that one instruction reads, writes whole, and changes in place.

    Lists are expanded to their elements. ``updates`` are read and written; ``overwrites`` are
    updates of which nothing of the old value survives (``aten::copy_``).
    """

    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    updates: tuple[int, ...] = ()
    overwrites: bool = False
    aliases: bool = False
    """Whether the written value shares the memory of the first value read (``et_view``)."""


def expand(plan: ExecutionPlan, index: int) -> Iterator[int]:
    """Yield a value's index, or the indices of its elements if it is a list of values."""
    value = plan.values[index]
    if isinstance(value, (TensorList, OptionalTensorList, IntList)):
        yield from (item for item in value.items if item >= 0)
    else:
        yield index


def _expand_all(plan: ExecutionPlan, args: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(item for arg in args for item in expand(plan, arg))


def operator_name(plan: ExecutionPlan, call: KernelCall) -> str:
    """Return the full name of the operator that a call runs."""
    return plan.operators[call.op_index].full_name


def _kernel_access(plan: ExecutionPlan, call: KernelCall) -> Access:
    name, args = operator_name(plan, call), call.args
    if not args:
        return Access()
    if name == ET_VIEW:
        return Access(reads=_expand_all(plan, args[:-1]), writes=(args[-1],), aliases=True)
    if name == ET_COPY_INDEX:
        return Access(reads=_expand_all(plan, args[1:]), updates=(args[0],))
    if name.startswith("executorch_prim::") or name in _RESULT_LAST:
        return Access(reads=_expand_all(plan, args[:-1]), writes=(args[-1],))
    base = plan.operators[call.op_index].name
    if base.endswith("_") and not base.endswith("__"):
        overwrites = name in _OVERWRITES
        reads = _expand_all(plan, args[1:-1] if len(args) > 1 else ())
        return Access(reads=reads, updates=(args[0],), overwrites=overwrites)
    written = tuple(expand(plan, args[-1]))
    first_out = _first_out(plan, args, written)
    reads = _expand_all(plan, args[:first_out])
    updates = tuple(item for item in written if item in reads)
    writes = tuple(item for item in written if item not in reads)
    return Access(reads=reads, writes=writes, updates=updates)


def _first_out(plan: ExecutionPlan, args: tuple[int, ...], written: tuple[int, ...]) -> int:
    """Return the position at which an out variant's out tensors begin."""
    wanted = set(written)
    position = len(args) - 1
    if position > 0 and set(expand(plan, args[position - 1])) == wanted:
        return position - 1
    while position > 0 and wanted and args[position - 1] in wanted:
        wanted.discard(args[position - 1])
        position -= 1
    return position


def access(plan: ExecutionPlan, instruction: Instruction) -> Access:
    """Return what an instruction reads and writes.

    A delegate's values are all given as reads: where its inputs end is known to its backend only.
    """
    if isinstance(instruction, KernelCall):
        return _kernel_access(plan, instruction)
    if isinstance(instruction, DelegateCall):
        return Access(reads=_expand_all(plan, instruction.args))
    if isinstance(instruction, MoveCall):
        return Access(reads=(instruction.move_from,), writes=(instruction.move_to,))
    if isinstance(instruction, JumpFalseCall):
        return Access(reads=(instruction.cond_value_index,))
    if isinstance(instruction, FreeCall):
        return Access(reads=(instruction.value_index,))
    raise AssertionError(instruction)


def accesses(plan: ExecutionPlan) -> tuple[Access, ...]:
    """Return what each instruction reads and writes; ask ``MemoryPlan.steps``, which keeps it."""
    return tuple(access(plan, instruction) for instruction in plan.instructions)


@dataclass(frozen=True, slots=True)
class Unwritten:
    """The values that are used as they are found, by why that is right."""

    state: tuple[int, ...]
    """Tensors that keep their value from call to call."""
    aliases: tuple[int, ...]
    """Planned tensors that lie over another value's bytes and read what was written there:
    exporters drop a view of planned memory without an instruction."""


def unwritten_values(plan: ExecutionPlan, steps: Sequence[Access]) -> Unwritten:
    """Return the state of a method, and its aliases by address.

    State is a tensor, neither constant nor input, that has an initial value or a name in the file,
    or whose first use is not a write: it is read (or returned) before anything was written to it,
    or changed in place, or overwritten by ``aten::copy_`` and not read again (the write-back of a
    buffer that functionalisation leaves at the end of a method). It may lack a place in the plan
    (``MemoryPlanningPass(alloc_mutable_buffers=False)``); if it has an initial value then, it looks
    like a constant, and is one unless an instruction changes it in place. The memory of state is
    never used for anything else; a value that was not written but shares its bytes with one that
    was is an alias.
    """
    inputs = set(plan.inputs)
    outputs = {item for index in plan.outputs for item in expand(plan, index)}
    candidates = {
        index
        for index, value in enumerate(plan.values)
        if isinstance(value, Tensor) and not value.is_constant and index not in inputs
    }
    constants = {
        index
        for index, value in enumerate(plan.values)
        if isinstance(value, Tensor) and value.is_constant and index not in inputs
    }
    declared = {
        index
        for index in candidates
        if (value := plan.values[index]).has_initial_value or value.fully_qualified_name  # type: ignore[union-attr]
    }
    state: set[int] = set()
    written: set[int] = set()
    overwritten: set[int] = set()
    read_after_overwrite: set[int] = set()
    for instruction, step in zip(plan.instructions, steps, strict=True):
        if isinstance(instruction, DelegateCall):
            state |= _delegate_state(plan, instruction, candidates, written | inputs)
            written.update(instruction.args)
            continue
        read_after_overwrite.update(overwritten.intersection(step.reads))
        state.update(i for i in step.reads if i in candidates and i not in written)
        for index in step.updates:
            if index in candidates and index not in written:
                (overwritten if step.overwrites else state).add(index)
            elif index in constants:
                state.add(index)
        written.update(step.writes, step.updates)
    state |= overwritten - read_after_overwrite - outputs
    state |= {index for index in outputs if index in candidates and index not in written}
    aliases = _overlapping(plan, state - declared, (written | inputs) - state - declared)
    return Unwritten(tuple(sorted((state - aliases) | declared)), tuple(sorted(aliases)))


def _overlapping(plan: ExecutionPlan, values: set[int], others: set[int]) -> set[int]:
    """Return those of ``values`` whose planned bytes one of ``others`` has too."""
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
    plan: ExecutionPlan, call: DelegateCall, candidates: set[int], known: set[int]
) -> set[int]:
    """Return arguments that nothing wrote but that must be inputs: one that is known follows."""
    last_input = -1
    for position, index in enumerate(call.args):
        value = plan.values[index]
        if index in known or not isinstance(value, Tensor) or value.is_constant:
            last_input = position
    return {
        index for index in call.args[: last_input + 1] if index in candidates and index not in known
    }


def first_unwritten(plan: ExecutionPlan, steps: Sequence[Access]) -> dict[int, int]:
    """Return for each delegate from which argument of its first call on values have no content.

    A value has one if it is an input of the method or a constant, has an initial value, or was
    written by an earlier instruction. It can only be an input of the call.
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


def written_values(plan: ExecutionPlan, steps: Sequence[Access]) -> set[int]:
    """Return every value that some instruction may change."""
    changed: set[int] = set()
    for instruction, step in zip(plan.instructions, steps, strict=True):
        changed.update(step.writes, step.updates)
        if isinstance(instruction, DelegateCall):
            changed.update(step.reads)
    return changed
