"""The loop that runs a bound method.

A method is cut into blocks at its jumps. A block is a flat tuple of calls that take no arguments;
running one is a bare loop, and which call failed is found from what is left of the iterator.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    """The instruction that each call belongs to."""
    condition: Callable[[], bool] | None
    on_false: int
    then: int


class StepFailed(Exception):
    """Carries the number of the instruction that failed; the cause is what it raised."""

    def __init__(self, instruction: int) -> None:
        super().__init__(instruction)
        self.instruction = instruction


def run(blocks: Sequence[Block]) -> None:
    """Run the blocks from the first. Raises StepFailed from the error of the call that failed."""
    at = 0 if blocks else END
    budget = limits.JUMP_BUDGET
    while at != END:
        block = blocks[at]
        calls = iter(block.calls)
        try:
            for call in calls:
                call()
            if block.condition is None:
                at = block.then
                continue
            at = block.then if block.condition() else block.on_false
        except Exception as error:
            done = len(block.calls) - operator.length_hint(calls)
            raise StepFailed(_failed_instruction(block, calls, done)) from error
        budget -= 1
        if budget < 0:
            raise OutOfResourcesError(
                f"the method took more than {limits.JUMP_BUDGET:,} jumps and was stopped"
            )


def _failed_instruction(block: Block, calls: object, done: int) -> int:
    if block.instructions:
        return block.instructions[max(done - 1, 0)]
    return 0
