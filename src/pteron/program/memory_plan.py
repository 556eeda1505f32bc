"""A method's memory plan: its buffers, the device of each, the slots in them, and their lifetimes.

Nothing is allocated here. Buffer numbers are the file's (``memory_id``); number 0 is reserved.
"""

from __future__ import annotations

from functools import cached_property

from pteron.format.schema import HOST, Device, ExecutionPlan, Tensor
from pteron.program.graph import UNUSED, Graph
from pteron.program.slots import Lifetime, PlannedBuffer, PlannedSlot


class MemoryPlan:
    """Views one execution plan: its buffers and slots."""

    def __init__(self, plan: ExecutionPlan, graph: Graph | None = None) -> None:
        """Take a plan, and its graph if there is one that knows the kernels."""
        self.plan = plan
        self.graph = Graph(plan) if graph is None else graph
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

    @property
    def state(self) -> tuple[int, ...]:
        """The tensors that keep their value from call to call, planned or not."""
        return self.graph.state

    @cached_property
    def state_buffers(self) -> frozenset[int]:
        """The buffers that hold at least one state tensor."""
        slots = self.slots
        return frozenset(slots[index].buffer for index in self.state if index in slots)

    @cached_property
    def used_buffers(self) -> frozenset[int]:
        """The buffers with a tensor that an instruction, an input or an output names."""
        first = self.graph.first
        return frozenset(s.buffer for index, s in self.slots.items() if first[index] != UNUSED)

    @cached_property
    def dedicated_state_buffers(self) -> frozenset[int]:
        """The buffers that hold state and nothing else that is used."""
        first, state = self.graph.first, set(self.state)
        others = {
            slot.buffer
            for index, slot in self.slots.items()
            if index not in state and first[index] != UNUSED
        }
        return self.state_buffers - others

    @cached_property
    def lifetimes(self) -> dict[int, Lifetime]:
        """The lifetime of each planned tensor value, in instruction numbers.

        Inputs live from -1, outputs and state to the last instruction, and a value at least as long
        as something reads its bytes. A value that nothing names has the last instruction only. In a
        method with jumps the numbers follow the file's order, not the order of execution.
        """
        graph = self.graph
        end = max(graph.end - 1, 0)
        first, last, state = graph.first, graph.last_needed, set(self.state)
        lives = {}
        for index in self.slots:
            if index in state:
                lives[index] = Lifetime(-1, end)
            elif first[index] == UNUSED:
                lives[index] = Lifetime(end, end)
            else:
                lives[index] = Lifetime(min(first[index], end), min(last[index], end))
        return lives
