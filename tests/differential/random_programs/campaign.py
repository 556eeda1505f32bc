"""Many seeds in several processes; one that dies is a finding, not the end."""

from __future__ import annotations

import json
import multiprocessing
import queue
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

CHUNK = 10
"""Seeds that a process takes at a time."""


@dataclass(slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    programs: int = 0
    runs: int = 0
    findings: list[dict[str, Any]] = field(default_factory=list)
    smallest: str = ""
    key: str = ""
    """Kind, operators of the smallest program and ways that fail: findings alike share it."""
    seconds: float = 0.0
    refused: str = ""
    """Why the exporter made no program of it."""
    wheel: str = ""
    """What the wheel says: ``agrees``, ``differs: ...``, ``refuses: ...``, ``died: ...``."""


@dataclass(slots=True)
class Totals:
    """What came of all of them."""

    programs: int = 0
    runs: int = 0
    seeds: int = 0
    failing: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wheel: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    keys: dict[str, list[int]] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Count one seed."""
        self.seeds += 1
        self.programs += outcome.programs
        self.runs += outcome.runs
        if outcome.wheel:
            self.wheel[outcome.wheel.partition(":")[0]] += 1
        if outcome.refused:
            self.refused[outcome.refused[:60]] += 1
        if outcome.findings:
            self.failing += 1
            self.kinds.update({f["kind"] for f in outcome.findings})
            self.keys.setdefault(outcome.key, []).append(outcome.seed)

    def line(self) -> str:
        """Return the summary line."""
        rate = self.programs / self.seconds if self.seconds else 0.0
        kinds = (
            ", ".join(f"{n} {kind}" for kind, n in sorted(self.kinds.items())) or "no difference"
        )
        wheel = ", ".join(f"{n} {word}" for word, n in sorted(self.wheel.items()))
        if wheel:
            kinds += f"; the wheel: {wheel}"
        return (
            f"{self.programs} programs, {self.runs} runs, {self.failing} with findings ({kinds}), "
            f"{self.seconds:.0f} s, {rate:.1f} programs a second"
        )


Job = Callable[[int], Outcome]
"""Checks one seed."""


def _work(make: Callable[[], Job], tasks: Any, results: Any, current: Any) -> None:
    job = make()
    while (chunk := tasks.get()) is not None:
        for seed in chunk:
            current.value = seed
            try:
                results.put(job(seed))
            except Exception:  # noqa: BLE001 - a fault of the generator or oracle, to be seen
                text = traceback.format_exc(limit=-6)
                fault = {"seed": seed, "kind": "fault", "variant": "", "detail": text}
                results.put(Outcome(seed, findings=[fault], key=f"fault {text[-200:]}"))


def campaign(
    make: Callable[[], Job], seeds: Sequence[int], *, jobs: int, minutes: float | None
) -> Iterator[Outcome]:
    """Yield the outcome of every seed, as they come, until the time is over.

    ``make`` is called in each process and returns the function that checks one seed.
    """
    if jobs == 0:
        end = None if minutes is None else time.monotonic() + 60 * minutes
        job = make()
        for seed in seeds:
            if end is not None and time.monotonic() > end:
                return
            yield job(seed)
        return
    yield from _Pool(make, seeds, jobs, minutes).outcomes()


class _Pool:
    """Processes that take seeds in chunks, and are replaced when they die."""

    def __init__(
        self, make: Callable[[], Job], seeds: Sequence[int], jobs: int, minutes: float | None
    ) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._make, self._seeds, self._jobs = make, seeds, jobs
        self._end = None if minutes is None else time.monotonic() + 60 * minutes
        self._tasks = self._context.Queue(maxsize=2 * jobs)
        self._results = self._context.Queue()
        self._left = 0

    def _start(self) -> tuple[Any, Any]:
        current = self._context.Value("q", -1)
        process = self._context.Process(
            target=_work, args=(self._make, self._tasks, self._results, current)
        )
        process.start()
        return process, current

    def outcomes(self) -> Iterator[Outcome]:
        """Yield the outcomes; the processes end with the iterator."""
        workers = [self._start() for _ in range(self._jobs)]
        try:
            yield from self._collect(workers)
            for _ in workers:
                self._tasks.put(None)
            for process, _ in workers:
                process.join(timeout=30)
        finally:
            for process, _ in workers:
                process.terminate()

    def _collect(self, workers: list[tuple[Any, Any]]) -> Iterator[Outcome]:
        chunks = (self._seeds[at : at + CHUNK] for at in range(0, len(self._seeds), CHUNK))
        done = False
        while not done or self._left > 0:
            while not done and not self._tasks.full():
                chunk = next(chunks, None)
                late = self._end is not None and time.monotonic() > self._end
                if chunk is None or late:
                    done = True
                    break
                self._left += len(chunk)
                self._tasks.put(list(chunk))
            try:
                outcome = self._results.get(timeout=0.5)
                self._left -= 1
                yield outcome
            except queue.Empty:
                for at, (process, current) in enumerate(workers):
                    if not process.is_alive():
                        yield self._died(process, current.value)
                        workers[at] = self._start()

    def _died(self, process: Any, seed: int) -> Outcome:
        """Return a finding for the seed that ended a process; the rest of its chunk is lost."""
        self._left -= CHUNK - seed % CHUNK if seed >= 0 else 0
        detail = f"the process ended with {process.exitcode}"
        found = {"seed": seed, "kind": "crash", "variant": "", "detail": detail}
        return Outcome(seed, 1, 0, [found], "", f"crash {process.exitcode}")


def record(folder: Path, outcome: Outcome) -> None:
    """Append one seed's findings to ``findings.jsonl``, and keep the smallest program as text."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "findings.jsonl").open("a") as file:
        file.write(json.dumps(asdict(outcome)) + "\n")
    if outcome.smallest:
        (folder / f"{outcome.seed}.txt").write_text(outcome.smallest + "\n")
