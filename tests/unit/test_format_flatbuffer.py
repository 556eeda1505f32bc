"""The flatbuffer reader on buffers written by hand: bounds, vtables, vectors, strings."""

from __future__ import annotations

import re
import struct

import pytest

from pteron.errors import InvalidProgramError, OutOfResourcesError
from pteron.format.flatbuffer import (
    BOOL,
    FLOAT64,
    INT32,
    OFFSET,
    UINT8,
    UINT64,
    Flatbuffer,
    TableSpec,
    fields,
)

SPEC = TableSpec("Thing", fields(number=INT32, name=OFFSET, flag=BOOL, real=FLOAT64))


def buffer(data: bytes, start: int = 0) -> Flatbuffer:
    return Flatbuffer(memoryview(data), error=InvalidProgramError, what="buffer", start=start)


def table(*slots: int, body: bytes) -> bytes:
    """Return root offset, identifier, a vtable with ``slots``, and a table at offset 32."""
    vtable = struct.pack(f"<{2 + len(slots)}H", 4 + 2 * len(slots), 4 + len(body), *slots)
    return struct.pack("<I4s", 32, b"ABCD") + vtable.ljust(24, b"\0") + struct.pack("<i", 24) + body


def with_vtable_size(size: int) -> bytes:
    data = table(4, body=bytes(4))
    return data[:8] + struct.pack("<H", size) + data[10:]


def test_fields_are_read_in_the_order_of_the_spec_wherever_they_lie() -> None:
    data = table(12, 4, 8, 16, body=struct.pack("<I?xxxid", 24, True, -7, 0.25))
    assert buffer(data).decoder(SPEC)(32) == (-7, 24, 4, True, 0.25)


def test_absent_fields_have_defaults_and_no_offset() -> None:
    assert buffer(table(4, body=struct.pack("<i", 5))).decoder(SPEC)(32) == (5, 0, 0, False, 0.0)
    assert buffer(table(body=b"")).decoder(SPEC)(32) == (0, 0, 0, False, 0.0)


def test_fields_that_the_spec_does_not_know_are_skipped() -> None:
    data = table(0, 0, 0, 0, 4, 8, body=bytes(8))
    assert buffer(data).decoder(SPEC)(32) == (0, 0, 0, False, 0.0)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (table(4, body=b"\0\0"), "a Thing table goes past the end of the buffer, which ends at"),
        (table(2, body=bytes(8)), "field 0 of a Thing table is said to be at byte 2"),
        (
            table(4, 6, body=bytes(8)),
            "field 1 of a Thing table is said to be at byte 6 of the table",
        ),
        (table(60000, body=bytes(8)), "a Thing table goes past the end"),
        (with_vtable_size(3), "gives its size as 3; allowed are even numbers from 4"),
        (with_vtable_size(2), "gives its size as 2; allowed are even numbers from 4"),
        (with_vtable_size(0xFFFE), "vtable of a Thing table goes past"),
        (table(body=b"")[:32] + struct.pack("<i", 33), "vtable of a Thing table lies before the"),
        (table(body=b"")[:32] + struct.pack("<i", -9999), "vtable of a Thing table goes past"),
        (table(body=b"")[:32] + struct.pack("<i", -(2**31)), "vtable of a Thing table goes past"),
    ],
)
def test_damaged_tables_are_refused_with_their_offset(data: bytes, text: str) -> None:
    with pytest.raises(InvalidProgramError, match=text) as caught:
        buffer(data, start=0x1000).decoder(SPEC)(32)
    assert re.search(r"\(at offset 0x[1-9a-f][0-9a-f]{3,} of the file\)$", str(caught.value))


def test_a_damaged_vtable_is_not_remembered_as_good() -> None:
    decode = buffer(table(2, body=bytes(8))).decoder(SPEC)
    for _ in range(2):
        with pytest.raises(InvalidProgramError):
            decode(32)


@pytest.mark.parametrize("root", [0, 7, 33, 2**32 - 1])
def test_a_root_outside_the_buffer_is_refused(root: int) -> None:
    data = struct.pack("<I4s", root, b"ABCD") + bytes(28)
    with pytest.raises(InvalidProgramError, match="allowed are 0x8 to 0x20"):
        buffer(data).root()


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1000])
def test_vectors_of_any_length_are_read(count: int) -> None:
    numbers = tuple((number * 2**40) for number in range(count))
    data = b"skip" + struct.pack(f"<I{count}Q", count, *numbers)
    assert buffer(data).scalars(4, UINT64, "numbers") == numbers
    for cut in (1, 8 * count // 2, 8 * count + 1):
        if 0 < cut <= 8 * count + 4:
            with pytest.raises(InvalidProgramError, match="goes past the end"):
                buffer(data[:-cut]).scalars(4, UINT64, "numbers")


def test_position_zero_means_absent() -> None:
    empty = buffer(b"\xff" * 16)
    assert empty.scalars(0, UINT64, "x") == ()
    assert empty.string(0) == ""
    assert bytes(empty.data(0, "x")) == b""
    assert empty.tables(0, "x", 5) == []


def test_a_vector_of_tables_gives_positions_and_has_a_limit() -> None:
    data = b"skip" + struct.pack("<I3I", 3, 100, 100, 8)
    assert buffer(data).tables(4, "things", 3) == [108, 112, 24]
    with pytest.raises(OutOfResourcesError, match="things: 3 entries; allowed are 2") as caught:
        buffer(data).tables(4, "things", 2)
    assert caught.value.code == 0x25
    with pytest.raises(InvalidProgramError, match="things of 3 entries goes past the end"):
        buffer(data[:-1]).tables(4, "things", 3)


def test_a_length_that_lies_costs_nothing() -> None:
    data = b"skip" + struct.pack("<I", 2**32 - 1) + bytes(64)
    for read in (
        lambda b: b.scalars(4, UINT8, "x"),
        lambda b: b.data(4, "x"),
        lambda b: b.string(4),
        lambda b: b.tables(4, "x", 2**32),
    ):
        with pytest.raises((InvalidProgramError, OutOfResourcesError)):
            read(buffer(data))


def test_strings_are_utf8_and_names_are_short() -> None:
    text = "naïve"
    data = b"skip" + struct.pack("<I", len(text.encode())) + text.encode() + b"\0"
    assert buffer(data).string(4) == text
    with pytest.raises(InvalidProgramError, match=r"a string is not UTF-8: .* \(at offset 0xa"):
        buffer(data.replace("ï".encode(), b"\xff\xff")).string(4)
    long = b"skip" + struct.pack("<I", 65_537) + b"a" * 65_537
    assert len(buffer(long).string(4)) == 65_537
    with pytest.raises(InvalidProgramError, match="the key has 65537 bytes; allowed are 65536"):
        buffer(long).name(4, "the key")
