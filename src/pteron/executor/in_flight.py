"""What has to wait for copies to a device that may still be under way.

Such a copy returns before its source is read: host arenas of a device method are pinned (DESIGN,
P9). Until the device is waited for, nothing may write over the source. A copy to the host waits by
itself, and most methods end with one; where none comes in time, a wait is added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field

import torch

from pteron.executor.evalue import ValueTable
from pteron.format.schema import DelegateCall, JumpFalseCall, KernelCall
from pteron.program.dataflow import Access, operator_name

H2D = "et_copy::_h2d_copy.out"
D2H = "et_copy::_d2h_copy.out"

Span = tuple[int, int]
"""First address, and the one behind the last."""

ANYWHERE: Span = (0, 1 << 64)


@dataclass(slots=True)
class Waits:
    """The devices to wait for: before and after an instruction, and when the method has run."""

    before: dict[int, tuple[torch.device, ...]] = field(default_factory=dict)
    after: dict[int, tuple[torch.device, ...]] = field(default_factory=dict)
    at_end: tuple[torch.device, ...] = ()


def copied_device(table: ValueTable, number: int, name: str) -> torch.device | None:
    """Return the accelerator that an instruction copies to (H2D) or from (D2H), if it is a copy."""
    call = table.plan.instructions[number] if 0 <= number < len(table.plan.instructions) else None
    if not isinstance(call, KernelCall) or operator_name(table.plan, call) != name:
        return None
    source, target = table.devices[call.args[0]], table.devices[call.args[-1]]
    place, other = (source, target) if name == D2H else (target, source)
    return place if place is not None and place.type != "cpu" and place != other else None


def find_waits(table: ValueTable, steps: Set[int]) -> Waits:
    """Return the waits of a method whose values are bound. ``steps`` are what runs of its plan."""
    copies = {n: place for n in steps if (place := copied_device(table, n, H2D)) is not None}
    if not copies:
        return Waits()
    if any(isinstance(i, JumpFalseCall) for i in table.plan.instructions):
        # What follows is known only when the method runs: wait at once.
        last = {n: place for n, place in copies.items() if copies.get(n + 1) != place}
        return Waits(after={n: (place,) for n, place in last.items()})
    return _Search(table, steps, copies).waits()


class _Search:
    """Goes through a method without jumps, with the sources that devices may be reading."""

    def __init__(self, table: ValueTable, steps: Set[int], copies: dict[int, torch.device]) -> None:
        self._table = table
        self._steps = sorted(steps)
        self._copies = copies
        self._sources: dict[torch.device, list[Span]] = {}
        self._access = {n: table.memory_plan.steps[n] for n in self._steps}
        self._views = {
            index for step in self._access.values() if step.aliases for index in step.writes
        }

    def waits(self) -> Waits:
        before: dict[int, tuple[torch.device, ...]] = {}
        for number in self._steps:
            from_device = copied_device(self._table, number, D2H)
            readers = self._readers(self._written(number))
            waiting = tuple(device for device in readers if device != from_device)
            for device in waiting:
                del self._sources[device]
            if waiting:
                before[number] = waiting
            if from_device is not None:  # waits by itself, or with the one that follows
                self._sources.pop(from_device, None)
            if number in self._copies:
                source = self._access[number].reads[:1]
                spans = self._sources.setdefault(self._copies[number], [])
                spans += self._host_spans(source)
        return Waits(before=before, at_end=tuple(d for d, spans in self._sources.items() if spans))

    def _readers(self, written: Iterable[Span]) -> list[torch.device]:
        places = list(written)
        return [
            device
            for device, spans in self._sources.items()
            if any(b < end and begin < e for b, e in places for begin, end in spans)
        ]

    def _written(self, number: int) -> Iterator[Span]:
        step: Access = self._access[number]
        yield from self._host_spans((*step.writes, *step.updates))
        if isinstance(self._table.plan.instructions[number], DelegateCall):
            yield from self._host_spans(step.reads)

    def _host_spans(self, indices: Iterable[int]) -> Iterator[Span]:
        """Yield where tensors lie in host memory; anywhere, if that may change."""
        table = self._table
        for index in indices:
            device = table.devices[index]
            if device is None or device.type != "cpu" or index in table.constants:
                continue
            if table.is_planned(index) and index not in self._views:
                begin = table.values[index].data_ptr()
                yield begin, begin + table.values[index].nbytes
            else:
                yield ANYWHERE
