"""``pteron memory``: a method's memory plan as text."""

from __future__ import annotations

import argparse
import sys
from typing import TypedDict

from pteron.cli.arguments import whole
from pteron.cli.files import add_file, find_plan, open_program
from pteron.cli.inspect_page import planned_text
from pteron.cli.page import Page, count, is_unicode, line_width, show_json
from pteron.devtools.memory_view import (
    ASCII,
    MIN_WIDTH,
    UNICODE,
    draw_memory_plan,
    roles_of,
    slots_of,
)
from pteron.format.schema import Tensor
from pteron.program.disasm import format_tensor
from pteron.program.memory_plan import MemoryPlan
from pteron.program.memory_use import bytes_in_use
from pteron.program.ownership import ProgramOwnership
from pteron.program.slots import PlannedBuffer, PlannedSlot

HELP = """\
Draw the memory plan of a method: its buffers, the device of each, and the slots in them over the
instructions that use them. Nothing is allocated, and no device is needed.

Each line is the slot of one tensor: its value, type, first and last byte, what it is for, and the
instructions during which it is in use. The first column is the time before the first instruction.
"""

EXAMPLES = """\
examples:
  pteron memory model.pte
  pteron memory model.pte --method forward --top 0     every slot
  pteron memory model.pte --json
"""


class Slot(TypedDict):
    """The place of one tensor; the instruction -1 is the time before the first."""

    value: int
    tensor: str
    roles: list[str]
    offset: int
    size_bytes: int
    first_instruction: int
    last_instruction: int


class Buffer(TypedDict):
    """One planned buffer."""

    index: int
    device: str
    size_bytes: int
    peak_bytes: int
    peak_instruction: int
    holds_state: bool
    owner: str
    """``scratch``, ``own``, ``state`` or ``shared state``."""
    because: str
    slots: list[Slot]


class Method(TypedDict):
    """The plan of one method; ``planned_bytes`` is by device."""

    name: str
    num_instructions: int
    planned_bytes: dict[str, int]
    buffers: list[Buffer]


class Plans(TypedDict):
    """The root of ``--json``."""

    json_version: int
    path: str
    methods: list[Method]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_file(parser)
    parser.add_argument(
        "--method",
        metavar="NAME",
        help="draw this method only, such as forward (default: all that plan memory)",
    )
    parser.add_argument(
        "--top",
        metavar="N",
        type=whole,
        default=20,
        help="how many slots of a buffer to draw, the largest; 0 draws all (default: 20)",
    )
    parser.add_argument(
        "--width",
        metavar="N",
        type=_width,
        help=f"characters in a line, at least {MIN_WIDTH} (default: the terminal's width, or 100 "
        "in a pipe)",
    )
    parser.add_argument(
        "--json", action="store_true", help="write all buffers and slots as JSON (default: text)"
    )


def _width(text: str) -> int:
    number = whole(text)
    if number < MIN_WIDTH:
        raise argparse.ArgumentTypeError(f"a chart needs at least {MIN_WIDTH} characters")
    return number


def run(args: argparse.Namespace) -> int:
    """Draw the plans."""
    pte = open_program(args.file)
    plans = pte.program.execution_plan
    if args.method is not None:
        plans = (find_plan(pte, args.method),)
    every = {plan.name: MemoryPlan(plan) for plan in pte.program.execution_plan}
    memories = [every[plan.name] for plan in plans]
    ownership = ProgramOwnership(every)
    if args.json:
        methods = [_method(memory, ownership) for memory in memories]
        show_json(Plans(json_version=1, path=args.file, methods=methods))
        return 0
    page = Page()
    width = args.width or line_width(sys.stdout)
    glyphs = UNICODE if is_unicode(sys.stdout) else ASCII
    empty = 0
    for memory in memories:
        if not any(buffer.nbytes for buffer in memory.buffers) and args.method is None:
            empty += 1
            continue
        page.heading(_title(memory))
        chart = draw_memory_plan(memory, width=width, top=args.top, glyphs=glyphs)
        for line in chart.splitlines():
            page.line(line, drawn=True)
        for buffer in memory.buffers:
            owned = ownership.of(memory.plan.name, buffer.index)
            page.line(f"buffer {buffer.index} is {owned.owner.value}: {owned.because}")
    if empty:
        page.heading(f"{count(empty, 'method')} that plan{'s' if empty == 1 else ''} no memory")
    page.show()
    return 0


def _title(memory: MemoryPlan) -> str:
    return (
        f"method {memory.plan.name}: {count(len(memory.plan.instructions), 'instruction')}"
        f"{planned_text(_by_device(memory)) or ', plans no memory'}"
    )


def _by_device(memory: MemoryPlan) -> dict[str, int]:
    return {
        str(device): memory.total_bytes(device)
        for device in dict.fromkeys(buffer.device for buffer in memory.buffers)
    }


def _method(memory: MemoryPlan, ownership: ProgramOwnership) -> Method:
    return Method(
        name=memory.plan.name,
        num_instructions=len(memory.plan.instructions),
        planned_bytes=_by_device(memory),
        buffers=[_buffer(memory, buffer, ownership) for buffer in memory.buffers],
    )


def _buffer(memory: MemoryPlan, buffer: PlannedBuffer, ownership: ProgramOwnership) -> Buffer:
    owned = ownership.of(memory.plan.name, buffer.index)
    use = bytes_in_use(memory, buffer.index)
    return Buffer(
        index=buffer.index,
        device=str(buffer.device),
        size_bytes=buffer.nbytes,
        peak_bytes=max(use),
        peak_instruction=use.index(max(use)) - 1,
        holds_state=buffer.index in memory.state_buffers,
        owner=owned.owner.value,
        because=owned.because,
        slots=[_slot(memory, slot) for slot in slots_of(memory, buffer.index)],
    )


def _slot(memory: MemoryPlan, slot: PlannedSlot) -> Slot:
    tensor, life = memory.plan.values[slot.value], memory.lifetimes[slot.value]
    assert isinstance(tensor, Tensor)
    return Slot(
        value=slot.value,
        tensor=format_tensor(tensor),
        roles=list(roles_of(memory, slot.value)),
        offset=slot.offset,
        size_bytes=slot.nbytes,
        first_instruction=life.first,
        last_instruction=life.last,
    )
