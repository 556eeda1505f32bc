"""Write a flatbuffer from a tree of tables.

The counterpart of :mod:`pteron.format.flatbuffer`: parents come before children, so that every
offset is positive, and equal vtables are shared.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from pteron.format.flatbuffer import OFFSET

_BYTES: Final = {"?": 1, "b": 1, "B": 1, "h": 2, "i": 4, "I": 4, "f": 4, "q": 8, "Q": 8, "d": 8}
_MAX_ALIGNMENT: Final = 16


@dataclass(frozen=True, slots=True)
class Scalars:
    """A vector of numbers; ``kind`` is a letter of :mod:`struct`."""

    kind: str
    items: Sequence[int | float | bool]


@dataclass(frozen=True, slots=True)
class Table:
    """A table: for each field its id, its kind (as in a TableSpec) and its value.

    A field that is to have its default is left out.
    """

    fields: Sequence[tuple[int, str, Target | int | float | bool]]


Target: TypeAlias = "Table | Scalars | str | bytes | Sequence[Table]"
"""What an offset leads to."""


def write_flatbuffer(root: Table, identifier: bytes, *, size_prefixed: bool = False) -> bytes:
    """Return a finished buffer; ``size_prefixed`` puts its length in front."""
    return _Writer(root, identifier, size_prefixed=size_prefixed).finish()


class _Writer:
    """Owns the bytes written so far, and what is still to be placed."""

    def __init__(self, root: Table, identifier: bytes, *, size_prefixed: bool) -> None:
        self._start = 4 if size_prefixed else 0
        self._data = bytearray(self._start + 4) + identifier
        self._vtables: dict[bytes, int] = {}
        self._pending: deque[tuple[int, Target]] = deque([(self._start, root)])

    def finish(self) -> bytes:
        while self._pending:
            where, target = self._pending.popleft()
            place = self._place(target)
            struct.pack_into("<I", self._data, where, place - where)
        self._pad(_MAX_ALIGNMENT)
        if self._start:
            struct.pack_into("<I", self._data, 0, len(self._data) - self._start)
        return bytes(self._data)

    def _pad(self, alignment: int, ahead: int = 0) -> None:
        """Fill up so that what begins ``ahead`` bytes further on is aligned."""
        self._data += bytes(-(len(self._data) + ahead) % alignment)

    def _place(self, target: Target) -> int:
        if isinstance(target, Table):
            return self._table(target)
        if isinstance(target, str):
            return self._bytes(target.encode(), end=b"\0")
        if isinstance(target, (bytes, bytearray, memoryview)):
            return self._bytes(bytes(target))
        if isinstance(target, Scalars):
            return self._scalars(target)
        return self._tables(target)

    def _bytes(self, data: bytes, end: bytes = b"") -> int:
        self._pad(4)
        place = len(self._data)
        self._data += struct.pack("<I", len(data)) + data + end
        return place

    def _scalars(self, vector: Scalars) -> int:
        self._pad(max(4, _BYTES[vector.kind]), ahead=4)
        place = len(self._data)
        count = len(vector.items)
        self._data += struct.pack(f"<I{count}{vector.kind}", count, *vector.items)
        return place

    def _tables(self, items: Sequence[Table]) -> int:
        self._pad(4)
        place = len(self._data)
        self._data += struct.pack("<I", len(items)) + bytes(4 * len(items))
        self._pending.extend((place + 4 + 4 * at, item) for at, item in enumerate(items))
        return place

    def _table(self, table: Table) -> int:
        """Place a table, its widest fields first."""
        rows = sorted(table.fields, key=lambda row: -_BYTES.get(row[1], 4))
        widest = max((_BYTES.get(kind, 4) for _, kind, _ in rows), default=4)
        size, places = 4, {}
        if widest == 8:
            size = 8
        for number, kind, _ in rows:
            places[number] = size
            size += _BYTES.get(kind, 4)
        slots = [places.get(number, 0) for number in range(max(places, default=-1) + 1)]
        vtable = struct.pack(f"<{2 + len(slots)}H", 4 + 2 * len(slots), size, *slots)
        at = self._vtables.get(vtable)
        if at is None:
            self._pad(2)
            at = self._vtables[vtable] = len(self._data)
            self._data += vtable
        self._pad(max(4, widest))
        place = len(self._data)
        self._data += struct.pack("<i", place - at) + bytes(size - 4)
        for number, kind, value in rows:
            here = place + places[number]
            if kind == OFFSET:
                self._pending.append((here, value))  # type: ignore[arg-type]
            else:
                struct.pack_into(f"<{kind}", self._data, here, value)
        return place
