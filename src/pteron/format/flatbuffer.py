"""A checked reader of flatbuffers, without generated code.

The layout of a flatbuffer (https://flatbuffers.dev/internals): a table begins with the signed
distance back to its vtable; the vtable holds its own size, the table's size, and for each field
the distance from the table's start (0: the field is absent). Offsets to strings, vectors and
sub-tables are unsigned and count from where the offset itself is.

A table's kind is a :class:`TableSpec`; a :class:`Flatbuffer` makes a decoder of it, a function from
a position to the tuple of the table's fields. One vtable is checked and compiled to a
``struct.Struct`` once, so that a table costs one ``unpack_from``. Nothing is read that is not
checked against the end of the buffer: ``unpack_from`` refuses what goes past it, and offsets are
unsigned, so that nothing points before it.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NoReturn

from pteron.errors import OutOfResourcesError, PteronError
from pteron.limits import MAX_NAME_BYTES, MAX_TABLES

BOOL: Final = "?"
INT8: Final = "b"
UINT8: Final = "B"
INT16: Final = "h"
INT32: Final = "i"
UINT32: Final = "I"
INT64: Final = "q"
UINT64: Final = "Q"
FLOAT32: Final = "f"
FLOAT64: Final = "d"
OFFSET: Final = "O"
"""An offset to a string, a vector or a table: gives two items, see :class:`TableSpec`."""

Decoder = Callable[[int], "tuple[Any, ...]"]

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_ITEM_BYTES = {
    BOOL: 1,
    INT8: 1,
    UINT8: 1,
    INT16: 2,
    INT32: 4,
    UINT32: 4,
    FLOAT32: 4,
    INT64: 8,
    UINT64: 8,
    FLOAT64: 8,
}
_FIELD_BYTES = {**_ITEM_BYTES, OFFSET: 4}
_NATIVE = sys.byteorder == "little"
_SHORT = 64
"""Vectors up to this many items are read by a compiled struct, longer ones through a cast."""


@dataclass(frozen=True, slots=True, order=True)
class Field:
    """One field of a table: its id (``program.fbs`` counts them from 0; a union takes two)."""

    id: int
    kind: str
    default: Any = 0


@dataclass(frozen=True, slots=True, eq=False)
class TableSpec:
    """What a reader wants to know of a table.

    A decoder gives the fields in this order. A scalar gives one item. An offset gives two, ``raw``
    and ``at``: the target is at ``position + at + raw``, and ``raw`` is 0 if the field is absent.
    """

    name: str
    fields: tuple[Field, ...]


_DEFAULTS: dict[str, Any] = {BOOL: False, FLOAT32: 0.0, FLOAT64: 0.0}


def fields(**kinds: str) -> tuple[Field, ...]:
    """List fields with consecutive ids and the default 0, the only one that our schemas use."""
    return tuple(
        Field(number, kind, _DEFAULTS.get(kind, 0)) for number, kind in enumerate(kinds.values())
    )


class Flatbuffer:
    """Views the bytes of one flatbuffer; the owner of ``view`` outlives it.

    ``start`` is the offset of ``view`` in the file, added to every offset in a message. ``error``
    is the class that reports damage.
    """

    __slots__ = (
        "_budget",
        "_size",
        "_strings",
        "_structs",
        "error",
        "start",
        "view",
        "what",
    )

    def __init__(
        self, view: memoryview, *, error: type[PteronError], what: str, start: int = 0
    ) -> None:
        self.view = view
        self.error = error
        self.what = what
        self.start = start
        self._size = view.nbytes
        self._strings: dict[int, str] = {}
        self._structs: dict[tuple[str, int], struct.Struct] = {}
        # Exporters write each entry once. A crafted file can point at one entry from many places;
        # what is read may be a few times the file, not more.
        self._budget = min(MAX_TABLES, self._size // 2 + (1 << 14))

    # -- errors ---------------------------------------------------------------------------------

    def fail(self, message: str, position: int) -> NoReturn:
        """Raise this buffer's error with the offset in the file."""
        raise self.error(f"{message} (at offset {self.start + position:#x} of the file)")

    def fail_bounds(self, what: str, position: int) -> NoReturn:
        """Report something that begins or ends outside the buffer."""
        self.fail(
            f"{what} goes past the end of the {self.what}, which ends at offset "
            f"{self.start + self._size:#x}; the file is damaged or cut short",
            position,
        )

    def charge(self, count: int, position: int) -> None:
        """Count entries read, and refuse a buffer that is read many times over."""
        self._budget -= count
        if self._budget < 0:
            raise OutOfResourcesError(
                f"the {self.what} of {self._size} bytes unrolls to more entries than a file of "
                f"this size can hold: its tables share entries (at offset "
                f"{self.start + position:#x} of the file)"
            )

    # -- tables ---------------------------------------------------------------------------------

    def root(self) -> int:
        """Return the position of the root table."""
        try:
            (position,) = _U32.unpack_from(self.view, 0)
        except struct.error:
            self.fail_bounds("the root offset", 0)
        if not 8 <= position <= self._size - 4:
            self.fail(
                f"the root table is said to be at offset {self.start + position:#x}; allowed are "
                f"{self.start + 8:#x} to {self.start + self._size - 4:#x}",
                0,
            )
        return int(position)

    def decoder(self, spec: TableSpec) -> Decoder:
        """Return a function that reads one table of this kind at a position."""
        layouts: dict[int, tuple[Callable[..., Any], tuple[Any, ...], Callable[[Any], Any]]] = {}
        view = self.view
        unpack_distance = _I32.unpack_from

        def decode(position: int) -> tuple[Any, ...]:
            try:
                vtable = position - unpack_distance(view, position)[0]
                if vtable not in layouts:
                    layouts[vtable] = self._layout(spec, vtable, position)
                unpack, constants, pick = layouts[vtable]
                return pick(unpack(view, position) + constants)  # type: ignore[no-any-return]
            except struct.error:
                self.fail_bounds(f"a {spec.name} table", position)

        return decode

    def _layout(
        self, spec: TableSpec, vtable: int, position: int
    ) -> tuple[Callable[..., Any], tuple[Any, ...], Callable[[Any], Any]]:
        """Check one vtable and compile it: an unpacker, constants to append, and an order.

        The table's size in the vtable is not used: the Python builder, which executorch exports
        with, shares a vtable between tables of different sizes.
        """
        if vtable < 0:
            self.fail(f"the vtable of a {spec.name} table lies before the start", position)
        try:
            (vtable_bytes,) = _U16.unpack_from(self.view, vtable)
            if vtable_bytes < 4 or vtable_bytes % 2:
                self.fail(
                    f"the vtable of a {spec.name} table gives its size as {vtable_bytes}; allowed "
                    "are even numbers from 4",
                    vtable,
                )
            slots = struct.unpack_from(f"<{vtable_bytes // 2 - 2}H", self.view, vtable + 4)
        except struct.error:
            self.fail_bounds(f"the vtable of a {spec.name} table", vtable)
        present = sorted(
            (slots[field.id], field)
            for field in spec.fields
            if field.id < len(slots) and slots[field.id]
        )
        code, end = "<", 0
        for at, field in present:
            if at < max(4, end):
                self.fail(
                    f"field {field.id} of a {spec.name} table is said to be at byte {at} of the "
                    "table, where another field is",
                    vtable + 4 + 2 * field.id,
                )
            code += f"{at - end}x{UINT32 if field.kind == OFFSET else field.kind}"
            end = at + _FIELD_BYTES[field.kind]
        read_at = {field.id: (index, at) for index, (at, field) in enumerate(present)}
        constants: list[Any] = []
        order: list[int] = []

        def constant(value: Any) -> int:
            constants.append(value)
            return len(present) + len(constants) - 1

        for field in spec.fields:
            found = read_at.get(field.id)
            order.append(found[0] if found else constant(field.default))
            if field.kind == OFFSET:
                order.append(constant(found[1] if found else 0))
        if len(order) == 1:  # itemgetter would give the bare item
            (only,) = order
            return struct.Struct(code).unpack_from, tuple(constants), lambda row: (row[only],)
        return struct.Struct(code).unpack_from, tuple(constants), itemgetter(*order)

    # -- strings and vectors; position 0 stands for "absent" --------------------------------------

    def length(self, position: int, what: str) -> int:
        """Read the item count that a vector or string begins with."""
        try:
            return int(_U32.unpack_from(self.view, position)[0])
        except struct.error:
            self.fail_bounds(f"the length of {what}", position)

    def string(self, position: int) -> str:
        """Read a UTF-8 string; "" if absent."""
        if not position:
            return ""
        known = self._strings.get(position)
        if known is None:
            known = self._strings[position] = self._new_string(position)
        return known

    def _new_string(self, position: int) -> str:
        data = self.data(position, "a string")
        self.charge(data.nbytes >> 3, position)
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            self.fail(f"a string is not UTF-8: {error.reason}", position + 4 + error.start)

    def name(self, position: int, what: str) -> str:
        """Read a string that names something."""
        if position and self.length(position, what) > MAX_NAME_BYTES:
            self.fail(
                f"{what} has {self.length(position, what)} bytes; allowed are {MAX_NAME_BYTES}",
                position,
            )
        return self.string(position)

    def data(self, position: int, what: str) -> memoryview:
        """Return the bytes of a byte vector, as a view; empty if absent."""
        if not position:
            return self.view[:0]
        end = position + 4 + self.length(position, what)
        if end > self._size:
            self.fail_bounds(f"{what} of {end - position - 4} bytes", position)
        return self.view[position + 4 : end]

    def scalars(self, position: int, kind: str, what: str) -> tuple[Any, ...]:
        """Read a vector of numbers; empty if absent."""
        if not position:
            return ()
        view = self.view
        try:
            (count,) = _U32.unpack_from(view, position)
            if count <= _SHORT:
                unpack = self._structs.get((kind, count))
                if unpack is None:
                    unpack = self._structs[kind, count] = struct.Struct(f"<{count}{kind}")
                return unpack.unpack_from(view, position + 4)
        except struct.error:
            self.fail_bounds(what, position)
        end = position + 4 + count * _ITEM_BYTES[kind]
        if end > self._size:
            self.fail_bounds(f"{what} of {count} items", position)
        self.charge(count * _ITEM_BYTES[kind] >> 3, position)
        if _NATIVE:
            return tuple(view[position + 4 : end].cast(kind))  # type: ignore[call-overload]
        return struct.unpack_from(f"<{count}{kind}", view, position + 4)

    def tables(self, position: int, what: str, limit: int) -> list[int]:
        """Read a vector of table offsets and return the positions; empty if absent."""
        if not position:
            return []
        count = self.length(position, what)
        if count > limit:
            raise OutOfResourcesError(
                f"{what}: {count} entries; allowed are {limit} (at offset "
                f"{self.start + position:#x} of the file)"
            )
        self.charge(count, position)
        first = position + 4
        if first + 4 * count > self._size:
            self.fail_bounds(f"{what} of {count} entries", position)
        places = range(first, first + 4 * count, 4)
        offsets = self._offsets(first, count)
        return [at + offset for at, offset in zip(places, offsets, strict=True)]

    def _offsets(self, first: int, count: int) -> memoryview | tuple[int, ...]:
        """Return ``count`` unsigned 32-bit numbers that begin at ``first``, already checked."""
        if _NATIVE:
            return self.view[first : first + 4 * count].cast("I")
        return struct.unpack_from(f"<{count}I", self.view, first)
