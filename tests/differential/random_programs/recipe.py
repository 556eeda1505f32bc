"""A program as data: what the generator draws, and what the assembler and the oracles read.

A recipe says nothing about bytes: where values lie is worked out by ``planning`` from
``Recipe.layout``, and what a step computes by the table of operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import torch


class Role(Enum):
    """Where a value comes from."""

    INPUT = "input"
    CONSTANT = "constant"
    STATE = "state"
    """A tensor that keeps its value from call to call; ``data`` is the initial value, or None."""
    RESULT = "result"
    NUMBER = "number"
    """A Python number that a step computes."""


@dataclass(frozen=True, slots=True)
class Ref:
    """An argument that is a value of the recipe."""

    index: int


@dataclass(frozen=True, slots=True)
class Tensors:
    """An argument that is a list of tensors, some of which may be None."""

    items: tuple[int | None, ...]
    optional: bool = False


Literal = bool | int | float | str | torch.dtype | None
Arg = Ref | Tensors | Literal | tuple["Literal | Ref", ...]
"""A tuple is a list of numbers, some of which may be values."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor or number. ``shape`` is the largest that it has in any call."""

    role: Role
    dtype: torch.dtype
    shape: tuple[int, ...]
    order: tuple[int, ...]
    """The dimensions, outermost in memory first."""
    data: torch.Tensor | None = None
    dynamic: bool = False
    planned: bool = True
    source: int | None = None
    """The value in whose memory this one lies: by place alone, or because of ``et_view``."""
    silent: bool = False
    """Whether nothing but the place says so: exporters drop views of planned memory."""
    slack: float = 0.0
    """How far results may be off, in absolute terms; 0 asks for the same bits."""
    high: int | None = None
    """Inputs that are positions are drawn from 0 up to, but without, this number."""


@dataclass(frozen=True, slots=True)
class Call:
    """One operator. ``outs`` follow the arguments."""

    op: str
    args: tuple[Arg, ...]
    outs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """``cond``: one of two bodies runs. ``results`` are (value, value of then, value of else)."""

    predicate: int
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...]
    results: tuple[tuple[int, int, int], ...]


Step = Call | Branch


@dataclass(frozen=True, slots=True)
class Layout:
    """How the memory plan is made."""

    reuse: bool = True
    """Values whose lifetimes do not meet share bytes."""
    overwrite: bool = False
    """A result may take the place of an argument that nobody reads afterwards."""
    buffers: int = 1
    state_apart: bool = False
    """State has a buffer of its own."""
    state_named: bool = False
    state_planned: bool = True


@dataclass(frozen=True, slots=True)
class Recipe:
    """One program and the inputs of the calls to run it with."""

    seed: int
    values: tuple[Value, ...]
    steps: tuple[Step, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    calls: tuple[tuple[torch.Tensor, ...], ...]
    layout: Layout = field(default=Layout())

    @property
    def has_state(self) -> bool:
        """Whether any value lives from call to call."""
        return any(value.role is Role.STATE for value in self.values)


def refs(arg: Arg) -> Iterator[int]:
    """Yield the values that an argument names."""
    if isinstance(arg, Ref):
        yield arg.index
    elif isinstance(arg, Tensors):
        yield from (item for item in arg.items if item is not None)
    elif isinstance(arg, tuple):
        yield from (item.index for item in arg if isinstance(item, Ref))


def walk(steps: tuple[Step, ...]) -> Iterator[Step]:
    """Yield every step, also those inside branches."""
    for step in steps:
        yield step
        if isinstance(step, Branch):
            yield from walk(step.then)
            yield from walk(step.otherwise)


def named(step: Step) -> Iterator[int]:
    """Yield the values that a step names, without those of the bodies of a branch."""
    if isinstance(step, Call):
        for arg in step.args:
            yield from refs(arg)
        yield from step.outs
    else:
        yield step.predicate
        for result in step.results:
            yield from result


def root(values: tuple[Value, ...] | list[Value], index: int) -> int:
    """Return the value that owns the memory in which a value lies."""
    while (source := values[index].source) is not None:
        index = source
    return index
