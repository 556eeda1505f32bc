"""A memory plan as text: one chart for each buffer, its slots over the instructions.

    buffer 1 on cpu: 9,216 bytes, 8 slots; at most 9,216 bytes (100 %) in use, at instruction 1
                                                     before   8
      bytes in use                                   ▁▅█▅▃▂▁▁▁▁
      %6   float32[1, 1, 8, 8]     0..256   input 0  ██········
      %7   float32[1, 16, 8, 8]  5120..9216           █·······

The first time in a chart is the one before the first instruction; then every instruction has up to
three columns, or a column stands for several in a row. torch is not imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pteron.format.schema import Tensor
from pteron.program.disasm import format_tensor
from pteron.program.memory_plan import MemoryPlan
from pteron.program.memory_use import bytes_in_use
from pteron.program.slots import PlannedBuffer, PlannedSlot

_MIN_CHART_COLUMNS = 10
_MAX_COLUMNS_PER_TIME = 3
_MAX_TENSOR_CHARS = 32
_MAX_ROLE_CHARS = 24

MIN_WIDTH = 40
"""The narrowest chart: what a line says of a slot is left out, from the right, to keep the bars."""


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters of a chart: ``levels`` from nothing to full."""

    alive: str
    idle: str
    levels: str


UNICODE = Glyphs("█", "·", " ▁▂▃▄▅▆▇█")
ASCII = Glyphs("#", ".", " .:-=+*%#")


def draw_memory_plan(
    memory: MemoryPlan, *, width: int = 100, top: int = 20, glyphs: Glyphs = UNICODE
) -> str:
    """Return the plan as text, at most ``width`` characters wide, and no narrower than 40.

    Of each buffer, the ``top`` largest slots are drawn (0 draws all). ``glyphs`` may be ``ASCII``.
    """
    return "\n".join(
        line
        for number, buffer in enumerate(memory.buffers)
        for line in ([""] if number else []) + _draw_buffer(memory, buffer, width, top, glyphs)
    )


def slots_of(memory: MemoryPlan, buffer: int) -> list[PlannedSlot]:
    """Return the slots of one buffer by offset, then by the instruction that first needs them."""
    lifetimes = memory.lifetimes
    return sorted(
        (slot for slot in memory.slots.values() if slot.buffer == buffer),
        key=lambda slot: (slot.offset, lifetimes[slot.value].first, slot.value),
    )


def roles_of(memory: MemoryPlan, value: int) -> tuple[str, ...]:
    """Return what a planned value is for: ``input 0``, ``output 1``, ``state``, its name."""
    plan = memory.plan
    tensor = plan.values[value]
    assert isinstance(tensor, Tensor)
    roles = [f"input {at}" for at, index in enumerate(plan.inputs) if index == value]
    roles += [f"output {at}" for at, index in enumerate(plan.outputs) if index == value]
    if value in memory.state:
        roles.append("state")
    if tensor.fully_qualified_name:
        roles.append(tensor.fully_qualified_name)
    return tuple(roles)


def _draw_buffer(
    memory: MemoryPlan, buffer: PlannedBuffer, width: int, top: int, glyphs: Glyphs
) -> list[str]:
    slots = slots_of(memory, buffer.index)
    use = bytes_in_use(memory, buffer.index)
    peak = max(use)
    width = max(width, MIN_WIDTH)
    title = f"buffer {buffer.index} on {buffer.device}: {_bytes(buffer.nbytes)}, {len(slots)} slots"
    if len(slots) == 1:
        title = title.removesuffix("s")
    if not buffer.nbytes or not slots:
        return wrap(title, width)
    title += (
        f"; at most {_bytes(peak)} ({peak / buffer.nbytes:.0%}) in use, {_moment(use.index(peak))}"
    )
    drawn = slots
    if 0 < top < len(slots):
        largest = sorted(slots, key=lambda slot: -slot.nbytes)[:top]
        drawn = [slot for slot in slots if slot in largest]
    labels = _align([_label(memory, slot) for slot in drawn], width - _MIN_CHART_COLUMNS - 4)
    left = max(len(labels[0]), len("bytes in use"))
    columns = _columns(len(use), width - left - 4)
    lines = [
        *wrap(title, width),
        f"  {'':{left}}  {_axis(len(use), columns)}".rstrip(),
        f"  {'bytes in use':{left}}  {_curve(use, buffer.nbytes, columns, glyphs)}".rstrip(),
    ]
    for slot, label in zip(drawn, labels, strict=True):
        life = memory.lifetimes[slot.value]
        bar = _bar(life.first + 1, life.last + 1, len(use), columns, glyphs)
        lines.append(f"  {label:{left}}  {bar}")
    if len(drawn) < len(slots):
        lines.append(f"  ... and {len(slots) - len(drawn):,} smaller slots")
    return lines


def _bytes(number: int) -> str:
    return f"{number:,} byte{'' if number == 1 else 's'}"


def _moment(column: int) -> str:
    return f"at instruction {column - 1}" if column else "before the first instruction"


def _label(memory: MemoryPlan, slot: PlannedSlot) -> tuple[str, str, str, str, str]:
    tensor = memory.plan.values[slot.value]
    assert isinstance(tensor, Tensor)
    return (
        f"%{slot.value}",
        _cut(format_tensor(tensor), _MAX_TENSOR_CHARS),
        f"{slot.offset}..",
        f"{slot.end}",
        _cut(", ".join(roles_of(memory, slot.value)), _MAX_ROLE_CHARS),
    )


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _align(rows: Sequence[tuple[str, str, str, str, str]], room: int) -> list[str]:
    """Return the labels in columns; what goes beyond the room is left out, the roles first."""
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    parts = [
        (
            f"{value:{widths[0]}}",
            f"{tensor:{widths[1]}}",
            f"{begin:>{widths[2]}}{end:<{widths[3]}}",
            f"{role:{widths[4]}}",
        )
        for value, tensor, begin, end, role in rows
    ]
    for kept in ((0, 1, 2, 3), (0, 1, 2), (0, 1), (0,)):
        labels = ["  ".join(row[at] for at in kept) for row in parts]
        if len(labels[0]) <= room:
            break
    return labels


def wrap(text: str, width: int) -> list[str]:
    """Return a line broken between words, the rest set in by two."""
    lines, line = [], ""
    for word in text.split(" "):
        if line.strip() and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = f"  {word}"
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]


def _columns(times: int, room: int) -> int:
    """Return how many columns to draw: up to three for each time, or one for several times."""
    room = max(room, _MIN_CHART_COLUMNS)
    return times * min(room // times, _MAX_COLUMNS_PER_TIME) if times <= room else room


def _bins(times: int, columns: int) -> Iterator[tuple[int, int]]:
    """Yield the times (half open) that each column stands for."""
    for column in range(columns):
        begin = column * times // columns
        yield begin, max((column + 1) * times // columns, begin + 1)


def _axis(times: int, columns: int) -> str:
    first, last = "before", str(times - 2)
    room = columns - len(first) - len(last)
    return f"{first}{' ' * room}{last}" if room > 0 else last.rjust(columns)


def _curve(use: Sequence[int], whole: int, columns: int, glyphs: Glyphs) -> str:
    steps = len(glyphs.levels) - 1
    peaks = [max(use[begin:end]) for begin, end in _bins(len(use), columns)]
    return "".join(glyphs.levels[min(steps, -(-peak * steps // whole))] for peak in peaks)


def _bar(first: int, last: int, times: int, columns: int, glyphs: Glyphs) -> str:
    return "".join(
        glyphs.alive if begin <= last and first < end else glyphs.idle
        for begin, end in _bins(times, columns)
    )
