"""Find planned values that lie over each other while both are in use.

Only straight-line methods are looked at: with jumps, the order in the file says little about the
order at run time (and exporters let the branches of a cond share memory; see DESIGN, S4).

A value is in use from the first instruction that names it to the last; inputs from before the
first, outputs and state to the end. Exporters let values share bytes on purpose in these ways, and
none of them is reported:

* ``et_view``, operators without effect (``_cat_nop``, ``_slice_copy_nop``), in-place operators: the
  result lies in the memory of an argument;
* a view of planned memory that the emitter left out: a value that is read but never written, at
  the place of another one; a view of state;
* an instruction that writes its result over an argument that nobody reads afterwards;
* a delegate whose output lies exactly where one of its inputs is.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pteron import limits
from pteron.errors import OutOfResourcesError
from pteron.format.schema import (
    DelegateCall,
    ExecutionPlan,
    FreeCall,
    JumpFalseCall,
    KernelCall,
    MoveCall,
    OptionalTensorList,
    Tensor,
    TensorList,
)
from pteron.program.dataflow import ET_VIEW, accesses, unwritten_values

_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two values over the same bytes, and the instructions between which each is in use.

    Instruction -1 stands for the time before the first; their number, for the time after the last.
    """

    buffer: int
    first_value: int
    first_lifetime: tuple[int, int]
    second_value: int
    second_lifetime: tuple[int, int]


@dataclass(slots=True, eq=False)
class _Slot:
    """A range of bytes of a buffer, for the time that one value or a group of aliases uses it."""

    begin: int
    end: int
    first: int
    last: int
    written: bool
    """Whether the first use gives it its value (or it is an input, or state)."""
    value: int

    def nests_with(self, other: _Slot) -> bool:
        """Return whether one of the two lies inside the other."""
        return (self.begin <= other.begin and other.end <= self.end) or (
            other.begin <= self.begin and self.end <= other.end
        )


def find_overlaps(plan: ExecutionPlan) -> Iterator[Overlap]:
    """Yield the pairs of values of a plan that share bytes while both are in use.

    The plan's indices and sizes must have been checked.
    """
    if any(isinstance(step, (JumpFalseCall, MoveCall)) for step in plan.instructions):
        return
    uses = _Uses(plan)
    by_buffer: dict[int, list[_Slot]] = {}
    for buffer, slot in uses.slots():
        by_buffer.setdefault(buffer, []).append(slot)
    for buffer, slots in sorted(by_buffer.items()):
        for earlier, later in _sweep(slots):
            yield Overlap(
                buffer,
                earlier.value,
                (earlier.first, earlier.last),
                later.value,
                (later.first, later.last),
            )


class _Uses:
    """When each value of a straight-line plan is in use, and which values are aliases."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self.plan = plan
        self.end = len(plan.instructions)
        self.first = [_NEVER] * len(plan.values)
        self.last = [-2] * len(plan.values)
        self.written = bytearray(len(plan.values))
        self._lists = {
            index: [item for item in value.items if item >= 0]
            for index, value in enumerate(plan.values)
            if isinstance(value, (TensorList, OptionalTensorList))
        }
        self._parents: dict[int, int] = {}
        self._mark_uses()
        self._mark_written()
        self._mark_ends()
        self._join_aliases()

    def _expand(self, indices: Iterable[int]) -> Iterator[int]:
        for index in indices:
            if index in self._lists:
                yield from self._lists[index]
            else:
                yield index

    def _mark_uses(self) -> None:
        first, last = self.first, self.last
        all_args = [
            (step.value_index,) if isinstance(step, FreeCall) else step.args  # type: ignore[union-attr]
            for step in self.plan.instructions
        ]
        for number, args in enumerate(all_args):
            for index in args:
                last[index] = number
        for number in range(len(all_args) - 1, -1, -1):
            for index in all_args[number]:
                first[index] = number
        for index, items in self._lists.items():
            if last[index] >= 0:
                for item in items:
                    first[item] = min(first[item], first[index])
                    last[item] = max(last[item], last[index])

    def _mark_written(self) -> None:
        first, written, lists = self.first, self.written, self._lists
        for number, step in enumerate(self.plan.instructions):
            if isinstance(step, FreeCall) or not step.args:  # type: ignore[union-attr]
                continue
            args: tuple[int, ...] = step.args  # type: ignore[union-attr]
            out = args[-1]
            if out in lists:
                for index in lists[out]:
                    written[index] = written[index] or first[index] == number
            elif first[out] == number and out not in args[:-2]:
                written[out] = True

    def _mark_ends(self) -> None:
        plan, first, last, end = self.plan, self.first, self.last, self.end
        for index in plan.inputs:
            first[index], last[index] = -1, max(last[index], -1)
            self.written[index] = True
        for index in self._expand(plan.outputs):
            first[index], last[index] = min(first[index], end), end
        known: dict[tuple[int, int], int] = {}
        for index in self._state():
            first[index], last[index] = -1, end
            self.written[index] = True
            value = plan.values[index]
            place = value.allocation_info if isinstance(value, Tensor) else None
            if place is not None:  # a view of state is state too, with the same name
                base = known.setdefault((place.memory_id, place.memory_offset), index)
                self._join_if_nested(base, index)

    def _state(self) -> tuple[int, ...]:
        """Return the values that live from call to call."""
        inputs = set(self.plan.inputs)
        in_place = {
            number for number, op in enumerate(self.plan.operators) if op.name.endswith("_")
        }
        changed = {
            step.args[-1]
            for step in self.plan.instructions
            if isinstance(step, KernelCall) and step.op_index in in_place and step.args
        }
        suspect = any(
            index not in inputs
            and value.allocation_info is not None
            and (
                not self.written[index]
                or index in changed
                or value.data_buffer_idx
                or value.fully_qualified_name
            )
            for index, value in enumerate(self.plan.values)
            if isinstance(value, Tensor) and self.last[index] >= 0
        )
        return (
            unwritten_values(self.plan, accesses(self.plan)).state if suspect else ()
        )  # asking costs more than looking

    def _join_aliases(self) -> None:
        operators = self.plan.operators
        views = {
            number
            for number, op in enumerate(operators)
            if op.full_name == ET_VIEW or op.name.endswith("_") or "_nop" in op.name
        }
        for number, step in enumerate(self.plan.instructions):
            if isinstance(step, KernelCall):
                if step.op_index in views and len(step.args) > 1:
                    for index in self._expand(step.args[:1]):
                        self._join_if_nested(index, step.args[-1])
            elif isinstance(step, DelegateCall):
                self._join_delegate(number, step)

    def _join_delegate(self, number: int, step: DelegateCall) -> None:
        known: dict[tuple[int, int], int] = {}
        args = set(self._expand(step.args))
        for index in sorted(args, key=lambda index: self.first[index]):
            value = self.plan.values[index]
            if not isinstance(value, Tensor) or value.allocation_info is None:
                continue
            place = (value.allocation_info.memory_id, value.allocation_info.memory_offset)
            if self.first[index] < number:
                known[place] = index
            elif place in known:
                self._join_if_nested(known[place], index)

    def _join_if_nested(self, a: int, b: int) -> None:
        found = [self._slot_of(index) for index in (a, b)]
        if found[0] is None or found[1] is None or a == b:
            return
        (buffer, slot), (other_buffer, other) = found[0], found[1]
        if buffer == other_buffer and slot.nests_with(other):
            root_a, root_b = self._root(a), self._root(b)
            if root_a != root_b:
                self._parents[root_b] = root_a

    def _root(self, index: int) -> int:
        parents = self._parents
        while index in parents:
            parent = parents[index]
            parents[index] = parents.get(parent, parent)  # keeps the way short
            index = parent
        return index

    def _slot_of(self, index: int) -> tuple[int, _Slot] | None:
        value = self.plan.values[index]
        if not isinstance(value, Tensor) or value.allocation_info is None:
            return None
        place = value.allocation_info
        begin = place.memory_offset
        return place.memory_id, _Slot(
            begin,
            begin + value.nbytes,
            self.first[index],
            self.last[index],
            bool(self.written[index]),
            index,
        )

    def slots(self) -> Iterator[tuple[int, _Slot]]:
        """Yield buffer and slot of each value in use; a group of aliases is one slot."""
        groups: dict[int, list[tuple[int, _Slot]]] = {}
        grouped = {*self._parents, *self._parents.values()}
        for index in range(len(self.plan.values)):
            if self.first[index] == _NEVER:
                continue
            found = self._slot_of(index)
            if found is None or found[1].begin == found[1].end:
                continue
            if index in grouped:
                groups.setdefault(self._root(index), []).append(found)
            else:
                yield found
        for members in groups.values():
            slots = [slot for _, slot in members]
            yield (
                members[0][0],
                _Slot(
                    min(slot.begin for slot in slots),
                    max(slot.end for slot in slots),
                    min(slot.first for slot in slots),
                    max(slot.last for slot in slots),
                    any(slot.written for slot in slots),
                    min(slots, key=lambda slot: slot.first).value,
                ),
            )


class _InUse:
    """The slots in use at one moment, sorted by place. They share no byte with each other."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._slots: list[_Slot] = []

    def add(self, slot: _Slot) -> None:
        """Add a slot that touches no other."""
        if len(self._slots) >= limits.MAX_VALUES_IN_USE:
            raise OutOfResourcesError(
                f"more than {limits.MAX_VALUES_IN_USE} planned values are in use at instruction "
                f"{slot.first}"
            )
        at = bisect_left(self._begins, slot.begin)
        self._begins.insert(at, slot.begin)
        self._slots.insert(at, slot)

    def remove(self, slot: _Slot) -> None:
        """Remove a slot, if it is still there."""
        at = bisect_left(self._begins, slot.begin)
        if at < len(self._slots) and self._slots[at] is slot:
            del self._begins[at]
            del self._slots[at]

    def touching(self, slot: _Slot) -> list[_Slot]:
        """Return the slots that share a byte with ``slot``."""
        first = bisect_left(self._begins, slot.begin)
        end = bisect_left(self._begins, slot.end, first)
        if first and self._slots[first - 1].end > slot.begin:
            first -= 1
        return self._slots[first:end]


def _sweep(slots: list[_Slot]) -> Iterator[tuple[_Slot, _Slot]]:
    """Go through time, and yield the slots that collide with one that is in use."""
    in_use = _InUse()
    ends: list[tuple[int, int, _Slot]] = []
    for order, slot in enumerate(sorted(slots, key=lambda slot: (slot.first, slot.written))):
        while ends and ends[0][0] < slot.first:
            in_use.remove(heapq.heappop(ends)[2])
        collided = False
        for other in in_use.touching(slot):
            if other.last == slot.first and slot.nests_with(other):
                in_use.remove(other)  # the last reader writes its result here
            elif not slot.written and slot.nests_with(other):
                in_use.remove(other)  # a view of the other: in use as long as one of them is
                slot.begin, slot.end = min(slot.begin, other.begin), max(slot.end, other.end)
                slot.last = max(slot.last, other.last)
            else:
                collided = True
                yield other, slot
        if not collided:
            in_use.add(slot)
            heapq.heappush(ends, (slot.last, order, slot))
