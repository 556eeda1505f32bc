"""What of a method's memory is still what its caller left or was promised.

A planned input or output lies in memory that other values use at other times, of the same method
and of methods that share its scratch. What was overwritten is refused, never used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pteron.errors import InvalidStateError
from pteron.executor.evalue import ValueTable
from pteron.memory.program_memory import MethodMemory

_Range = tuple[int, int]


class MemoryUse:
    """Knows whether the inputs and outputs of one method are intact. Views its memory."""

    def __init__(self, table: ValueTable, memory: MethodMemory) -> None:
        plan, graph = table.plan, table.memory_plan.graph
        slots = table.memory_plan.slots
        self._table = table
        self._memory = memory
        self._inputs = [i for i in plan.inputs if i in slots and table.is_planned(i)]
        self._outputs = [i for i in graph.outputs if i in slots and table.is_planned(i)]
        self._survive = set(self._inputs) <= graph.surviving_inputs
        self._apart = not any(
            slots[i].buffer == slots[o].buffer
            and slots[i].offset < slots[o].end
            and slots[o].offset < slots[i].end
            for i in self._inputs
            for o in self._outputs
        )
        self._ranges: list[_Range] = [
            (arena.memory.data_ptr(), arena.memory.data_ptr() + arena.nbytes)
            for arena in memory.allocator.arenas.values()
            if arena.nbytes
        ]
        self._inputs_at = self._outputs_at = 0
        self._used_up = False

    # -- what a caller gives ----------------------------------------------------------------------

    def protect(self, inputs: Sequence[Any], *, lent: bool) -> Sequence[Any]:
        """Return inputs with copies of those that lie in memory which the call may write.

        ``lent`` says that the method has handed out views of its memory.
        """
        ranges = self._ranges + self._unplanned() if lent else self._ranges
        if not ranges:
            return inputs
        found = list(inputs)
        for position, given in enumerate(found):
            address = _address(given)
            if address is not None and any(begin <= address < end for begin, end in ranges):
                found[position] = _copy(given)
        return found

    def _unplanned(self) -> list[_Range]:
        """Return where tensors without a place in the plan lie now."""
        table = self._table
        found = []
        for index in {*table.memory_plan.graph.outputs, *table.state}:
            if table.is_tensor(index) and not table.is_planned(index):
                storage = table.values[index].untyped_storage()
                if storage.nbytes():
                    found.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
        return found

    def take_inputs(self, method: str) -> None:
        """Note that inputs are about to be written.

        Raises:
            InvalidStateError: A method that shares the memory is running.

        """
        intact = self._outputs_at == self._memory.lock.writes and self._apart
        self._inputs_at = self._memory.lock.write(method)
        self._used_up = False
        if intact:
            self._outputs_at = self._inputs_at

    # -- runs -------------------------------------------------------------------------------------

    def begin_run(self, method: str) -> None:
        """Check that the inputs are intact, and note that the memory is about to be written."""
        turn = self._memory.lock
        if self._inputs and turn.running is None:
            if self._inputs_at != turn.writes:
                raise InvalidStateError(
                    f"method {method!r}: its inputs have been overwritten by method "
                    f"{turn.written_by!r}, whose memory it shares",
                    hint="give the inputs again, or use execute(inputs)",
                )
            if self._used_up:
                raise InvalidStateError(
                    f"method {method!r}: the last run has overwritten its inputs",
                    hint="give the inputs again, or use execute(inputs)",
                )
        turn.write(method)
        self._used_up = not self._survive

    def end_run(self) -> None:
        """Note that inputs and outputs are those of the run that has just ended."""
        self._inputs_at = self._outputs_at = self._memory.lock.writes

    def check_outputs(self, method: str) -> None:
        """Raise InvalidStateError if the outputs of the last run were overwritten."""
        turn = self._memory.lock
        if self._outputs and self._outputs_at != turn.writes:
            raise InvalidStateError(
                f"method {method!r}: its outputs have been overwritten by method "
                f"{turn.written_by!r}",
                hint="take the outputs before the next call, or use execute(inputs)",
            )


def _address(given: Any) -> int | None:
    """Return where the first element of an input lies, if it is an array or a tensor."""
    if isinstance(given, torch.Tensor):
        return given.data_ptr() if given.layout is torch.strided and not _is_fake(given) else None
    interface = getattr(given, "__array_interface__", None)
    if isinstance(interface, dict) and interface.get("data"):
        return int(interface["data"][0])
    return None


def _is_fake(given: torch.Tensor) -> bool:
    return type(given) is not torch.Tensor and not isinstance(given, torch.nn.Parameter)


def _copy(given: Any) -> Any:
    return given.clone() if isinstance(given, torch.Tensor) else given.copy()
