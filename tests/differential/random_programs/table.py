"""What the generator knows of an operator: one row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from differential.random_programs.recipe import Arg
    from differential.random_programs.sketch import Sketch

Draw = Callable[["Sketch", list["Arg"]], "Arg"]
"""Draws one argument; is given those before it. Raises ``NoFit`` if the program has none."""


class NoFit(Exception):
    """The program has no arguments for an operator; another one is drawn."""


@dataclass(frozen=True, slots=True)
class Row:
    """An operator: how its arguments are drawn, and what it computes in eager torch.

    ``eager`` takes the arguments by position and returns the result or results. A result that
    shares memory with an argument is copied by the oracle, unless it ``returns`` a view.
    """

    name: str
    args: tuple[Draw, ...]
    eager: Callable[..., Any]
    family: str = "math"
    weight: float = 1.0
    changes: tuple[int, ...] = ()
    """Positions of the arguments that it changes in place."""
    returns: str = "out"
    """What follows the arguments: ``out`` (results, and they again), ``list`` (one list of
    results, twice), ``plain`` (results once), ``self`` (the first argument again), ``number``,
    ``view`` (one result that shares the first argument's memory), ``ignored`` (as ``out``, but the
    result has no meaning), ``nothing``."""
    dynamic: bool = True
    """Whether it does as well when a call is smaller than the one it was drawn for."""
    inexact: bool = False
    """Whether different loops over the same numbers may round differently."""
    ordered: bool = False
    """Whether rounding depends on the order of a sum: exact for whole numbers only."""
    whole: bool = True
    """Whether whole numbers give whole numbers."""
    steady: bool = True
    """Whether small errors of arguments stay small; others are given exact ones only."""
    dtypes: str = "fhib"
    """f: float32, h: halves, i: whole numbers, b: bool, c: complex."""
    traced: Callable[..., Any] | None = None
    """What an exported module calls instead of ``eager``, if that is not what people write."""
    hidden: int = 0
    """How many arguments at the end are the oracle's only: the file says it in another way."""
    exports: bool = True
    """Whether a module can be exported that does this."""


def view(name: str, args: list[Draw], eager: Callable[..., Any], **facts: Any) -> Row:
    """Describe an operator that only moves elements."""
    facts.setdefault("dtypes", "fhibc")
    return Row(name, tuple(args), eager, family="view", **facts)


def math(name: str, args: list[Draw], eager: Callable[..., Any], **facts: Any) -> Row:
    """Describe an operator that computes something."""
    return Row(name, tuple(args), eager, **facts)


def change(name: str, args: list[Draw], eager: Callable[..., Any], **facts: Any) -> Row:
    """Describe an operator that changes its first argument, or those in ``changes``."""
    facts.setdefault("changes", (0,))
    facts.setdefault("returns", "self")
    return Row(name, tuple(args), eager, family="change", **facts)
