"""Seeded damage to five small programs: in bytes, in words, and in what the tables say.

    for mutation in mutations("ModuleIndex", "word"):
        open_and_verify(mutation.data)

A mutation is known by its program, its kind and its number: ``mutation("ModuleIndex", "word", 17)``
makes the same bytes again.
"""

from __future__ import annotations

import copy
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pteron.format.pte import PteFile, read_pte
from pteron.format.source import open_source
from pteron.program.verify import Verified, verify_program
from support.plans import deserialize_pte_binary, ex, serialize_pte_binary, write_example

FOLDER = Path(__file__).parents[1] / "malformed" / "programs"
EXAMPLE = "example"
PROGRAMS = (
    "ModuleAddMul",  # two constants
    "ModuleIndex",  # lists of every sort, an operator with an optional list
    "ModuleSharedState",  # three methods, one state
    "ModuleDynamicCatUnallocatedIO",  # dynamic shapes, memory from the caller
    EXAMPLE,  # all the rest: see support.plans
)
COUNTS = {"byte": 160, "word": 160, "table": 80}
"""Mutations of each kind of each program: 2,000 in all."""

NUMBERS = (
    *(-1, -2, 0, 1, 2, 3, 7, 8, 16, 17, 77, 127, -128, 255, 999, 4096, 65535, 65536),
    *(2**31 - 1, -(2**31), 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63), 2**64 - 1),
)
WORDS = (0, 1, 4, 8, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFC, 0x00010000, 0xFFFF0000)


@dataclass(frozen=True)
class Mutation:
    """A damaged file."""

    program: str
    kind: str
    number: int
    data: bytes

    def __str__(self) -> str:
        return f"mutation({self.program!r}, {self.kind!r}, {self.number})"


def open_and_verify(data: bytes) -> tuple[PteFile, Verified]:
    """Do with a file what every use of it begins with."""
    pte = read_pte(open_source(data))
    return pte, verify_program(pte)


@cache
def original(program: str) -> bytes:
    """Return the undamaged file."""
    return write_example() if program == EXAMPLE else (FOLDER / f"{program}.pte").read_bytes()


def mutations(program: str, kind: str) -> Iterator[Mutation]:
    """Yield every mutation of one kind of one program."""
    for number in range(COUNTS[kind]):
        yield mutation(program, kind, number)


def mutation(program: str, kind: str, number: int) -> Mutation:
    """Return one mutation; the same arguments always give the same bytes."""
    draw = random.Random(f"{program} {kind} {number}")
    data = _KINDS[kind](original(program), draw)
    return Mutation(program, kind, number, data)


def _bytes(data: bytes, draw: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 5, 20))):
        how = draw.randrange(4)
        at = draw.randrange(len(out))
        if how == 0:
            out[at] ^= 1 << draw.randrange(8)
        elif how == 1:
            out[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        elif how == 2:
            del out[at : at + draw.choice((1, 2, 4, 16))]
        else:
            out[at:at] = draw.randbytes(draw.choice((1, 2, 4, 16)))
    return bytes(out[: draw.randrange(len(out))] if draw.random() < 0.1 else out)


def _words(data: bytes, draw: random.Random) -> bytes:
    out = bytearray(data)
    # The tables of these files are all in the first 4,000 bytes; behind them are constants.
    for _ in range(draw.choice((1, 1, 1, 2, 8))):
        at = 4 * draw.randrange(min(len(out), 4000) // 4)
        (old,) = struct.unpack_from("<I", out, at)
        near = (old + draw.choice((-64, -8, -4, -1, 1, 4, 8, 64, 4096))) % 2**32
        other = struct.unpack_from("<I", out, 4 * draw.randrange(len(out) // 4))[0]
        struct.pack_into("<I", out, at, draw.choice((draw.choice(WORDS), near, other)))
    return bytes(out)


def _tables(data: bytes, draw: random.Random) -> bytes:
    """Change what the tables say; executorch's serializer writes a sound flatbuffer of that."""
    whole = _deserialized(data)
    while True:
        edited = copy.deepcopy(whole)
        for _ in range(draw.choice((1, 1, 2, 4))):
            _edit(edited.program, draw)
        try:
            return bytes(
                serialize_pte_binary(edited, extract_delegate_segments=draw.random() < 0.5)
            )
        except (ValueError, TypeError, AttributeError, IndexError, AssertionError, struct.error):
            continue  # the serializer refused a number out of the field's range: draw again


_deserialized = cache(deserialize_pte_binary)


def _edit(root: Any, draw: random.Random) -> None:
    """Change one place, drawn evenly from all fields and list entries below ``root``."""
    places = list(_places(root))
    owner, key, value = draw.choice(places)
    new: Any
    if isinstance(value, bool):
        new = not value
    elif isinstance(value, int):
        new = draw.choice((*NUMBERS, value + 1, value - 1, draw.randrange(20)))
    elif isinstance(value, list):
        new = _edit_list(value, draw)
    elif isinstance(value, str):
        new = draw.choice(("", "a", value + value, "forward", "aten::add", "x" * 70000, None))
    elif isinstance(value, (bytes, float)):
        new = b"" if isinstance(value, bytes) else draw.choice((0.0, float("inf"), float("nan")))
    elif isinstance(value, _UNION_MEMBERS):
        new = copy.deepcopy(draw.choice([v for _, _, v in places if isinstance(v, _UNION_MEMBERS)]))
    else:
        new = None
    if isinstance(owner, list):
        owner[key] = new
    else:
        setattr(owner, key, new)


_UNION_MEMBERS = (
    *(ex.Null, ex.Int, ex.Bool, ex.Double, ex.Tensor, ex.String, ex.IntList, ex.DoubleList),
    *(ex.BoolList, ex.TensorList, ex.OptionalTensorList, ex.KernelCall, ex.DelegateCall),
    *(ex.MoveCall, ex.JumpFalseCall, ex.FreeCall),
)


def _edit_list(value: list[Any], draw: random.Random) -> list[Any]:
    new = list(value)
    how = draw.randrange(4)
    if how == 0 or not new:
        return []
    at = draw.randrange(len(new))
    if how == 1:
        del new[at]
    elif how == 2:
        new[at:at] = [copy.deepcopy(new[at])] * draw.choice((1, 2, 20))
    else:
        draw.shuffle(new)
    return new


def _places(table: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield every field and list entry below a table: its owner, its name or number, its value."""
    if is_dataclass(table):
        entries: list[tuple[Any, Any]] = [(f.name, getattr(table, f.name)) for f in fields(table)]
    else:
        entries = list(enumerate(table))
    for key, value in entries:
        yield table, key, value
        if is_dataclass(value) or isinstance(value, list):
            yield from _places(value)


_KINDS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "byte": _bytes,
    "word": _words,
    "table": _tables,
}
