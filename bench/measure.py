"""Timing side by side: the contenders take turns, so that noise of the machine hits all alike."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))


@dataclass
class Row:
    """One line of a table: medians in seconds by contender, and what else was seen."""

    name: str
    seconds: dict[str, float]
    notes: dict[str, Any] = field(default_factory=dict)

    def ratio(self, of: str, to: str) -> float:
        """How many times longer ``of`` took than ``to``."""
        return self.seconds[of] / self.seconds[to]


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    *,
    seconds: float = 2.0,
    rounds: int = 15,
    slow_rounds: int = 3,
) -> dict[str, float]:
    """Return each contender's median time of a call.

    A round gives each contender one turn of about ``seconds / rounds / len(contenders)``. One
    that needs longer than that for a single call takes part in ``slow_rounds`` rounds only.
    """
    share = seconds / rounds / len(contenders)
    once = {}
    for name, call in contenders.items():
        call()
        begin = time.perf_counter()
        call()
        once[name] = time.perf_counter() - begin
    repeats = {name: max(1, int(share / taken)) for name, taken in once.items()}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds):
        for name, call in contenders.items():
            if once[name] > share and turn >= slow_rounds and once[name] > 0.1:
                continue
            begin = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            samples[name].append((time.perf_counter() - begin) / repeats[name])
    return {name: statistics.median(taken) for name, taken in samples.items()}


def show(title: str, rows: list[Row], *, base: str = "pteron") -> None:
    """Print a table: milliseconds by contender, and each one's ratio to ``base``."""
    names = list(dict.fromkeys(name for row in rows for name in row.seconds))
    width = max(len(row.name) for row in rows) + 2
    print(f"\n{title}")
    print(" " * width + "".join(f"{name:>16}" for name in names) + "   ratio to " + base)
    for row in rows:
        cells = "".join(
            f"{row.seconds[name] * 1e3:>13.3f} ms" if name in row.seconds else " " * 16
            for name in names
        )
        ratios = ", ".join(
            f"{name} {row.ratio(name, base):.2f}x"
            for name in names
            if name != base and name in row.seconds and base in row.seconds
        )
        notes = "".join(f"; {key} {value}" for key, value in row.notes.items())
        print(f"{row.name:<{width}}{cells}   {ratios}{notes}")
