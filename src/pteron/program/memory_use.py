"""How many bytes of a planned buffer are in use, instruction by instruction."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pteron.program.memory_plan import MemoryPlan


def bytes_in_use(memory: MemoryPlan, buffer: int) -> list[int]:
    """Return the bytes in use before the first instruction, then during each instruction.

    A byte counts once, however many values lie over it: views share memory, and an instruction may
    write its result over an argument.
    """
    begins: dict[int, list[tuple[int, int]]] = {}
    ends: dict[int, list[tuple[int, int]]] = {}
    for index, slot in memory.slots.items():
        if slot.buffer == buffer and slot.nbytes:
            life = memory.lifetimes[index]
            begins.setdefault(life.first, []).append((slot.offset, slot.end))
            ends.setdefault(life.last, []).append((slot.offset, slot.end))
    cover = _Cover(sorted({edge for spans in begins.values() for span in spans for edge in span}))
    use = []
    for time in range(-1, max(len(memory.plan.instructions), 1)):
        for span in begins.get(time, ()):
            cover.change(*span, by=1)
        use.append(cover.covered)
        for span in ends.get(time, ()):
            cover.change(*span, by=-1)
    return use


class _Cover:
    """Counts the bytes under at least one span: a segment tree over the spans' edges."""

    def __init__(self, edges: Sequence[int]) -> None:
        self._position = {edge: number for number, edge in enumerate(edges)}
        self._leaves = max(len(edges) - 1, 1)
        lengths = [b - a for a, b in pairwise(edges)] or [0]
        self._length = [0] * self._leaves + lengths
        for node in range(self._leaves - 1, 0, -1):
            self._length[node] = self._length[2 * node] + self._length[2 * node + 1]
        self._spans = [0] * (2 * self._leaves)
        self._covered = [0] * (2 * self._leaves)

    @property
    def covered(self) -> int:
        """The bytes under at least one span."""
        return self._covered[1]

    def change(self, begin: int, end: int, *, by: int) -> None:
        """Add a span, or take one away."""
        first = left = self._position[begin] + self._leaves
        right = self._position[end] + self._leaves
        last = right - 1
        while left < right:
            if left & 1:
                self._add(left, by)
                left += 1
            if right & 1:
                right -= 1
                self._add(right, by)
            left //= 2
            right //= 2
        for node in (first // 2, last // 2):
            while node:
                self._pull(node)
                node //= 2

    def _add(self, node: int, by: int) -> None:
        self._spans[node] += by
        self._pull(node)

    def _pull(self, node: int) -> None:
        if self._spans[node]:
            self._covered[node] = self._length[node]
        elif node < self._leaves:
            self._covered[node] = self._covered[2 * node] + self._covered[2 * node + 1]
        else:
            self._covered[node] = 0
