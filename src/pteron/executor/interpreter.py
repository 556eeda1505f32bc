"""The loop that runs a bound method.

A method is cut into blocks at its jumps. A block is a flat tuple of calls that take no arguments;
running one is a bare loop, and which call failed is found from what is left of the iterator.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pteron import limits
from pteron.errors import OutOfResourcesError

Call = Callable[[], object]

END = -1
"""The block number that means: the method is done."""


@dataclass(frozen=True, slots=True)
class Block:
    """Calls without a jump among them, and where to go from there."""

    calls: tuple[Call, ...]
    instructions: tuple[int, ...]
    """The instruction that each call belongs to; the jump at the end, if there is one, is last."""
    condition: Callable[[], bool] | None
    on_false: int
    then: int


class StepFailed(Exception):
    """Carries the number of the instruction that failed; the cause is what it raised."""

    def __init__(self, instruction: int) -> None:
        super().__init__(instruction)
        self.instruction = instruction


def run(blocks: Sequence[Block], finished: Callable[[int], None] | None = None) -> None:
    """Run the blocks from the first. Raises StepFailed from the error of the call that failed.

    ``finished`` is called with the number of each block whose calls have run.
    """
    at = 0 if blocks else END
    budget = limits.JUMP_BUDGET
    while at != END:
        block = blocks[at]
        calls = iter(block.calls)
        try:
            for call in calls:
                call()
        except Exception as error:
            done = len(block.calls) - operator.length_hint(calls)
            raise StepFailed(block.instructions[done - 1]) from error
        if finished is not None:
            finished(at)
        if block.condition is None:
            at = block.then
            continue
        at = block.then if _decide(block) else block.on_false
        budget -= 1
        if budget < 0:
            raise StepFailed(block.instructions[-1]) from OutOfResourcesError(
                f"the method took more than {limits.JUMP_BUDGET:,} jumps and was stopped",
                hint="a loop in the program never ends, or limits.JUMP_BUDGET is too small for it",
            )


def _decide(block: Block) -> bool:
    assert block.condition is not None
    try:
        return block.condition()
    except Exception as error:
        raise StepFailed(block.instructions[-1]) from error


class Observer(Protocol):
    """Is told of every instruction that a traced run executes."""

    def before(self, instruction: int) -> None:
        """Take note that an instruction's call comes next."""

    def after(self, instruction: int) -> None:
        """Take note that it has returned."""


def run_observed(blocks: Sequence[Block], observer: Observer) -> None:
    """Run the blocks as :func:`run` does, and tell an observer of each call."""
    run([watched(block, observer) for block in blocks])


def watched(block: Block, observer: Observer) -> Block:
    """Return a block that tells an observer of each of its calls."""
    calls = tuple(
        _watch(call, number, observer)
        for call, number in zip(block.calls, block.instructions, strict=False)
    )
    return replace(block, calls=calls)


def _watch(call: Call, number: int, observer: Observer) -> Call:
    def watched() -> None:
        observer.before(number)
        call()
        observer.after(number)

    return watched
