"""Which value each byte of a planned buffer was last written through."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from pteron import limits
from pteron.errors import OutOfResourcesError


class ByteOwners:
    """Keeps the written bytes of one buffer as sorted spans that do not touch, with their owners.

    An owner is a value's index. A span is ``begin`` to ``end``, without ``end``.
    """

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._owners: list[int] = []
        self._budget = limits.MAX_ARGUMENTS_PER_METHOD

    def is_owned(self, begin: int, end: int, owner: int) -> bool:
        """Return whether a span was last written as a whole, through ``owner``."""
        at = bisect_right(self._ends, begin)
        return (
            at < len(self._owners)
            and self._owners[at] == owner
            and self._begins[at] <= begin
            and end <= self._ends[at]
        )

    def read(self, begin: int, end: int) -> tuple[tuple[int, ...], bool]:
        """Return the owners of a span's bytes, each once, and whether all of it was written."""
        low, high = bisect_right(self._ends, begin), bisect_left(self._begins, end)
        self._spend(high - low)
        covered = sum(
            min(self._ends[at], end) - max(self._begins[at], begin) for at in range(low, high)
        )
        return tuple(dict.fromkeys(self._owners[low:high])), covered == end - begin

    def write(self, begin: int, end: int, owner: int) -> None:
        """Give a span to ``owner``."""
        begins, ends, owners = self._begins, self._ends, self._owners
        low, high = bisect_right(ends, begin), bisect_left(begins, end)
        if high - low == 1 and begins[low] == begin and ends[low] == end:
            owners[low] = owner
            return
        self._spend(high - low + ((len(owners) - low) >> 8))  # what follows is moved
        new_begins, new_ends, new_owners = [begin], [end], [owner]
        if low < high:
            if begins[low] < begin:
                new_begins.insert(0, begins[low])
                new_ends.insert(0, begin)
                new_owners.insert(0, owners[low])
            if ends[high - 1] > end:
                new_begins.append(end)
                new_ends.append(ends[high - 1])
                new_owners.append(owners[high - 1])
        begins[low:high], ends[low:high], owners[low:high] = new_begins, new_ends, new_owners

    def _spend(self, count: int) -> None:
        """Keep a file from asking for more steps than its own arguments account for."""
        self._budget -= count
        if self._budget < 0:
            raise OutOfResourcesError(
                "its values lie over each other in more ways than "
                f"{limits.MAX_ARGUMENTS_PER_METHOD}, the most that are followed"
            )
