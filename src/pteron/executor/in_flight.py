"""What has to wait for copies to a device that may still be under way.

Such a copy returns before its source is read: host arenas of a device method are pinned (DESIGN,
P9). Until the device is waited for, nothing may write over the source. A copy to the host waits by
itself, and most methods end with one; where none comes in time, a wait is added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from pteron.executor.evalue import ValueTable
from pteron.executor.nodes import Node
from pteron.format.schema import DelegateCall, JumpFalseCall
from pteron.kernels.registry import Style
from pteron.program.primitives import D2H, H2D

Span = tuple[int, int]
"""First address, and the one behind the last."""

ANYWHERE: Span = (0, 1 << 64)


@dataclass(slots=True)
class Waits:
    """The devices to wait for: before and after an instruction, and when the method has run."""

    before: dict[int, tuple[torch.device, ...]] = field(default_factory=dict)
    after: dict[int, tuple[torch.device, ...]] = field(default_factory=dict)
    at_end: tuple[torch.device, ...] = ()


def copied_device(table: ValueTable, node: Node, name: str) -> torch.device | None:
    """Return the accelerator that an instruction copies to (H2D) or from (D2H), if it is a copy."""
    kernel, args = node.kernel, node.args
    if kernel is None or kernel.style is not Style.DEVICE_COPY or kernel.name != name:
        return None
    source, target = table.devices[args[0]], table.devices[args[-1]]
    place, other = (source, target) if name == D2H else (target, source)
    return place if place is not None and place.type != "cpu" and place != other else None


def find_waits(table: ValueTable, nodes: Sequence[Node]) -> Waits:
    """Return the waits of a method whose values are bound; ``nodes`` are the steps that run."""
    copies = {
        node.number: place
        for node in nodes
        if (place := copied_device(table, node, H2D)) is not None
    }
    if not copies:
        return Waits()
    if any(isinstance(node.instruction, JumpFalseCall) for node in nodes):
        # What follows is known only when the method runs: wait for each copy.
        return Waits(after={n: (place,) for n, place in copies.items()})
    return _Search(table, nodes, copies).waits()


class _Search:
    """Goes through a method without jumps, with the sources that devices may be reading."""

    def __init__(
        self, table: ValueTable, nodes: Sequence[Node], copies: dict[int, torch.device]
    ) -> None:
        self._table = table
        self._nodes = nodes
        self._copies = copies
        self._sources: dict[torch.device, list[Span]] = {}
        self._moving = {
            index for node in nodes if node.access.aliases for index in node.access.writes
        }
        """Views that are made in each run."""

    def waits(self) -> Waits:
        before: dict[int, tuple[torch.device, ...]] = {}
        for node in self._nodes:
            number = node.number
            from_device = copied_device(self._table, node, D2H)
            readers = self._readers(self._written(node))
            waiting = tuple(device for device in readers if device != from_device)
            for device in waiting:
                del self._sources[device]
            if waiting:
                before[number] = waiting
            if from_device is not None:  # waits by itself, or with the one that follows
                self._sources.pop(from_device, None)
            if number in self._copies:
                spans = self._sources.setdefault(self._copies[number], [])
                spans += self._host_spans(node.access.reads[:1])
        return Waits(before=before, at_end=tuple(d for d, spans in self._sources.items() if spans))

    def _readers(self, written: Iterable[Span]) -> list[torch.device]:
        places = list(written)
        return [
            device
            for device, spans in self._sources.items()
            if any(b < end and begin < e for b, e in places for begin, end in spans)
        ]

    def _written(self, node: Node) -> Iterator[Span]:
        yield from self._host_spans((*node.access.writes, *node.access.updates))
        if isinstance(node.instruction, DelegateCall):
            yield from self._host_spans(node.access.reads)

    def _host_spans(self, indices: Iterable[int]) -> Iterator[Span]:
        """Yield where tensors lie in host memory; anywhere, if that may change."""
        table = self._table
        for index in indices:
            device = table.devices[index]
            if device is None or device.type != "cpu" or index in table.constants:
                continue
            if table.is_planned(index) and index not in self._moving:
                begin = table.values[index].data_ptr()
                yield begin, begin + table.values[index].nbytes
            else:
                yield ANYWHERE
