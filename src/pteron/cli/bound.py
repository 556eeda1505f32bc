"""What becomes of a method's instructions at load: which run, which do not, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from pteron.cli.page import Page, count
from pteron.format.source import SourceData
from pteron.program.disasm import format_instruction


class LeftOutFacts(TypedDict):
    """Why an instruction does not run."""

    pass_name: str
    reason: str
    detail: str


class BoundInstruction(TypedDict):
    """One instruction of a loaded method."""

    instruction: int
    text: str
    left_out: LeftOutFacts | None


def describe_bound(
    path: SourceData, data: Sequence[SourceData], method: str
) -> list[BoundInstruction]:
    """Load a method (which imports torch) and return what becomes of its instructions."""
    from pteron.runtime import Runtime

    with Runtime.get().load_program(path, data_path=list(data) or None) as program:
        left_out = program.load_method(method).left_out
        plan = program.memory_plan(method).plan
        facts: list[BoundInstruction] = []
        for number in range(len(plan.instructions)):
            found = left_out.get(number)
            why = (
                None
                if found is None
                else LeftOutFacts(
                    pass_name=found.pass_name, reason=found.reason.value, detail=found.detail
                )
            )
            text = format_instruction(plan, number)
            facts.append(BoundInstruction(instruction=number, text=text, left_out=why))
        return facts


def show_bound(page: Page, method: str, facts: Sequence[BoundInstruction]) -> None:
    """Add a table of the instructions to a page."""
    idle = sum(fact["left_out"] is not None for fact in facts)
    page.heading(
        f"method {method} as loaded: {idle} of {count(len(facts), 'instruction')} left out"
    )
    rows = []
    for fact in facts:
        why = fact["left_out"]
        detail = f" ({why['detail']})" if why and why["detail"] else ""
        reason = f"{why['pass_name']}: {why['reason']}{detail}" if why else "runs"
        rows.append((str(fact["instruction"]), fact["text"], reason))
    page.table(("", "instruction", "at load"), rows, right=(0,))
