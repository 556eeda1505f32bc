"""``pteron memory`` and the chart behind it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from pteron.devtools.memory_view import ASCII, draw_memory_plan
from pteron.format.pte import read_pte
from pteron.format.source import open_source
from pteron.program.memory_plan import MemoryPlan
from pteron.program.memory_use import bytes_in_use
from support.commands import DIGITS, MODULES, ROOT, cli

PROGRAMS = [ROOT / DIGITS, *sorted((ROOT / MODULES).glob("*.pte"))]


def plans_of(path: Path) -> list[MemoryPlan]:
    return [MemoryPlan(plan) for plan in read_pte(open_source(path)).program.execution_plan]


def count_bytes(memory: MemoryPlan, buffer: int, time: int) -> int:
    """Count the bytes that are in use at one instruction, one by one."""
    used: set[int] = set()
    for index, slot in memory.slots.items():
        life = memory.lifetimes[index]
        if slot.buffer == buffer and life.first <= time <= life.last:
            used.update(range(slot.offset, slot.end))
    return len(used)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_bytes_in_use_are_the_bytes_under_live_slots(path: Path) -> None:
    for memory in plans_of(path):
        for buffer in memory.buffers:
            use = bytes_in_use(memory, buffer.index)
            assert use == [
                count_bytes(memory, buffer.index, time) for time in range(-1, len(use) - 1)
            ]
            assert max(use) <= buffer.nbytes


def test_shared_bytes_count_once() -> None:
    """Random slots that lie over each other in every way."""
    (memory,) = plans_of(ROOT / DIGITS)
    generator = random.Random(0)
    slots = memory.slots
    for index, slot in slots.items():
        begin = generator.randrange(100)
        slots[index] = type(slot)(index, 1, begin, generator.randrange(120))
    use = bytes_in_use(memory, 1)
    assert use == [count_bytes(memory, 1, time) for time in range(-1, len(use) - 1)]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_chart_keeps_to_the_width_where_it_can(width: int) -> None:
    (memory,) = plans_of(ROOT / DIGITS)
    bars = [
        line.split()[-1]
        for line in draw_memory_plan(memory, width=width).splitlines()
        if line.startswith("  %")
    ]
    assert len({len(bar) for bar in bars}) == 1
    longest = max(len(line) for line in draw_memory_plan(memory, width=width).splitlines()[1:])
    assert longest <= max(width, 51 + 10)


def test_a_long_method_is_squeezed_and_its_peak_kept() -> None:
    path = ROOT / DIGITS
    (memory,) = plans_of(path)
    for width in (40, 55):
        drawing = draw_memory_plan(memory, width=width, glyphs=ASCII)
        assert all(len(line) <= width for line in drawing.splitlines())
        begin = drawing.index("bytes in use ")
        curve, *bars = drawing[begin:].splitlines()
        assert curve.split("  ")[-1].count("#") == 1  # the fullest column
        assert all(set(bar[-10:]) <= set("#.") for bar in bars)


def test_json_has_every_slot() -> None:
    (memory,) = plans_of(ROOT / DIGITS)
    (method,) = json.loads(cli("memory", DIGITS, "--json").out)["methods"]
    (buffer,) = method["buffers"]
    assert buffer["size_bytes"] == 9216
    assert {slot["value"] for slot in buffer["slots"]} == set(memory.slots)
    (taken,) = [slot for slot in buffer["slots"] if slot["roles"] == ["input 0"]]
    assert (taken["offset"], taken["size_bytes"], taken["first_instruction"]) == (0, 256, -1)
