"""A method's memory plan: its buffers, the device of each, the slots in them, and their lifetimes.

Nothing is allocated here. Buffer numbers are the file's (``memory_id``); number 0 is reserved.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pteron.format.schema import HOST, Device, ExecutionPlan, Tensor
from pteron.program.aliases import resolve_aliases
from pteron.program.dataflow import Access, Unwritten, accesses, unwritten_values
from pteron.program.memory_use import bytes_in_use


@dataclass(frozen=True, slots=True)
class PlannedBuffer:
    """One memory-planned buffer of one method."""

    index: int
    nbytes: int
    device: Device


@dataclass(frozen=True, slots=True)
class PlannedSlot:
    """The place of one tensor value: bytes ``offset`` to ``offset + nbytes`` of a buffer."""

    value: int
    buffer: int
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        """The first byte behind the slot."""
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The instructions between which a value is in use, both included; -1 is before the first."""

    first: int
    last: int


class MemoryPlan:
    """Views one execution plan: its buffers and slots."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self.plan = plan
        devices = {entry.buffer_idx: entry.device for entry in plan.non_const_buffer_device}
        self.buffers = tuple(
            PlannedBuffer(index, nbytes, devices.get(index, HOST))
            for index, nbytes in enumerate(plan.non_const_buffer_sizes)
            if index > 0
        )
        """All planned buffers, in file order, without the reserved entry 0."""

    def __repr__(self) -> str:
        buffers = ", ".join(
            f"buffer {buffer.index}: {buffer.nbytes:,} bytes on {buffer.device}"
            for buffer in self.buffers
        )
        return f"<pteron.MemoryPlan of method {self.plan.name!r}: {buffers or 'no buffers'}>"

    def buffer(self, index: int) -> PlannedBuffer:
        """Return the buffer that ``memory_id`` ``index`` names."""
        return self.buffers[index - 1]

    @property
    def is_host_only(self) -> bool:
        """Whether every buffer is tagged for the host."""
        return all(buffer.device.is_host for buffer in self.buffers)

    def total_bytes(self, device: Device | None = None) -> int:
        """Return the planned bytes, of one device or of all."""
        return sum(b.nbytes for b in self.buffers if device is None or b.device == device)

    @cached_property
    def slots(self) -> dict[int, PlannedSlot]:
        """The slot of each planned tensor value."""
        return {
            index: PlannedSlot(
                index,
                value.allocation_info.memory_id,
                value.allocation_info.memory_offset,
                value.nbytes,
            )
            for index, value in enumerate(self.plan.values)
            if isinstance(value, Tensor) and value.allocation_info is not None
        }

    @cached_property
    def steps(self) -> tuple[Access, ...]:
        """What each instruction reads and writes."""
        return accesses(self.plan)

    @cached_property
    def _unwritten(self) -> Unwritten:
        return unwritten_values(self.plan, self.steps)

    @property
    def state(self) -> tuple[int, ...]:
        """The tensors that keep their value from call to call, planned or not."""
        return self._unwritten.state

    @property
    def aliases(self) -> tuple[int, ...]:
        """The tensors that read, by their place alone, what was written to another value."""
        return self._unwritten.aliases

    @cached_property
    def alias_sources(self) -> dict[int, int]:
        """The value that each alias reads, where that is beyond doubt."""
        return resolve_aliases(self.plan, self.steps, self.slots, self.aliases)

    @cached_property
    def aliases_of(self) -> dict[int, tuple[int, ...]]:
        """The aliases that read each value, where that is beyond doubt."""
        found: dict[int, tuple[int, ...]] = {}
        for alias, source in self.alias_sources.items():
            found[source] = (*found.get(source, ()), alias)
        return found

    @cached_property
    def aliased_spans(self) -> dict[int, list[tuple[int, int]]]:
        """The bytes that the other aliases read, as (begin, end) by buffer."""
        spans: dict[int, list[tuple[int, int]]] = {}
        for index in self.aliases:
            if index not in self.alias_sources:
                slot = self.slots[index]
                spans.setdefault(slot.buffer, []).append((slot.offset, slot.end))
        return spans

    def is_aliased(self, value: int) -> bool:
        """Whether some alias may read a planned tensor, which then has to stay in its slot.

        Aliases of which the source is known do not count: they can go where it goes.
        """
        slot = self.slots.get(value)
        return slot is not None and any(
            begin < slot.end and slot.offset < end
            for begin, end in self.aliased_spans.get(slot.buffer, ())
        )

    @cached_property
    def state_buffers(self) -> frozenset[int]:
        """The buffers that hold at least one of them."""
        slots = self.slots
        return frozenset(slots[index].buffer for index in self.state if index in slots)

    @cached_property
    def dedicated_state_buffers(self) -> frozenset[int]:
        """The buffers that hold state and nothing else."""
        others = {slot.buffer for index, slot in self.slots.items() if index not in self.state}
        return self.state_buffers - others

    @cached_property
    def lifetimes(self) -> dict[int, Lifetime]:
        """The lifetime of each planned tensor value, in instruction numbers.

        Inputs live from -1, outputs and state to the last instruction. In a method with jumps the
        numbers follow the file's order, not the order of execution.
        """
        plan, slots = self.plan, self.slots
        end = max(len(plan.instructions) - 1, 0)
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            for index in (*step.reads, *step.writes, *step.updates):
                first.setdefault(index, number)
                last[index] = number
        for index in (*plan.inputs, *self.state):
            first[index] = -1
            last.setdefault(index, end)
        for index in (*plan.outputs, *self.state):
            first.setdefault(index, end)
            last[index] = end
        return {index: Lifetime(first.get(index, end), last.get(index, end)) for index in slots}

    def peak_bytes(self, buffer: int) -> int:
        """Return the largest number of bytes of a buffer that are in use at one instruction."""
        return max(bytes_in_use(self, buffer))
