"""The table of ``docs/conformance.md``, between its two markers."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import NamedTuple, TypeAlias

from conformance.reasons import REASONS
from conformance.suites import NOT_THE_RUNTIME, Suite

Cases: TypeAlias = "dict[str, tuple[str, str]]"


class Outcomes(NamedTuple):
    """What became of each test, and why; and with which versions."""

    environment: str
    cases: Cases


Row: TypeAlias = "tuple[Suite, Outcomes | None, Outcomes | None]"

BEGIN = "<!-- written by `python -m conformance`: begin -->"
END = "<!-- written by `python -m conformance`: end -->"
BAD = ("failed", "error")


def write_table(page: Path, rows: list[Row]) -> None:
    """Replace what is between the markers."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    parts = [table(rows), environments(rows), lists(rows)]
    page.write_text(
        f"{before}{BEGIN}\n\n" + "\n\n".join(p for p in parts if p) + f"\n\n{END}{after}"
    )


def table(rows: list[Row]) -> str:
    lines = [
        "| Suite | What it shows | Cases | Wheel passes | pteron passes | Both fail "
        "| Only the wheel fails | Only pteron fails | Skipped by both |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for suite, wheel, pteron in rows:
        cells = [suite.name, suite.shows]
        if wheel is None and pteron is None:
            why = "not in the wheel; not run" if suite.snapshot else "not run"
            lines.append(f"| {' | '.join(cells)} | {why} | | | | | | |")
            continue
        cells.append(str(len(set().union(*(run.cases for run in (wheel, pteron) if run)))))
        cells += [passes(found) for found in (wheel, pteron)]
        if wheel is None or pteron is None:
            cells += ["", "", "", ""]
        else:
            cells += [
                str(len(both(wheel, pteron))),
                str(len(worse(wheel, pteron))),
                str(len(worse(pteron, wheel))),
                str(len(skipped(wheel) & skipped(pteron))),
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def passes(run: Outcomes | None) -> str:
    return "not run" if run is None else str(sum(v[0] == "passed" for v in run.cases.values()))


def skipped(run: Outcomes) -> set[str]:
    return {n for n, v in run.cases.items() if v[0] == "skipped"}


def failed(run: Outcomes) -> dict[str, str]:
    """Return the cases that fail, and why."""
    return {n: v[1] for n, v in run.cases.items() if v[0] in BAD}


def both(one: Outcomes, other: Outcomes) -> list[str]:
    return [n for n in failed(one) if n in failed(other)]


def worse(one: Outcomes, other: Outcomes) -> list[str]:
    """Return the cases that fail on the first and not on the second."""
    return [n for n in failed(one) if n not in failed(other)]


def environments(rows: list[Row]) -> str:
    """Say with which versions the suites ran: what most of them have, and the others by name."""
    found: dict[str, list[str]] = {}
    for suite, wheel, pteron in rows:
        for runtime, run in (("wheel", wheel), ("pteron", pteron)):
            if run:
                found.setdefault(run.environment, []).append(f"{suite.name} ({runtime})")
    usual = max(found, key=lambda name: len(found[name]))
    lines = [f"Run with {usual}."]
    lines += [f"With {name}: {'; '.join(runs)}." for name, runs in found.items() if name != usual]
    return "\n".join(lines)


def lists(rows: list[Row]) -> str:
    sections = []
    only = [(s, n, failed(p)[n]) for s, w, p in rows if w and p for n in worse(p, w)]
    alone = [(s, n, why) for s, w, p in rows if p and not w for n, why in failed(p).items()]
    for title, found in (
        ("Fails only on pteron", only),
        ("Fails on pteron; the wheel was not run", alone),
    ):
        if found:
            lines = [f"### {title}", "", "| Suite | Test | Why |", "|---|---|---|"]
            for suite, name, message in found:
                lines.append(f"| {suite.name} | `{short(name)}` | {reason(name, message)} |")
            sections.append("\n".join(lines))
    gained = [(s, n) for s, w, p in rows if w and p for n in worse(w, p)]
    if gained:
        lines = ["### Fails only on the wheel", ""]
        files: dict[tuple[str, str], list[str]] = {}
        for suite, name in gained:
            file, _, case = short(name).partition("::")
            files.setdefault((suite.name, file), []).append(case.rpartition("::")[2])
        for (suite_name, file), cases in files.items():
            shown = ", ".join(f"`{case}`" for case in cases[:4])
            more = f" and {len(cases) - 4} more" if len(cases) > 4 else ""
            lines.append(f"- {suite_name}, `{file}`: {shown}{more}")
        sections.append("\n".join(lines))
    shared = [(s, n, failed(p)[n]) for s, w, p in rows if w and p for n in both(w, p)]
    if shared:
        lines = ["### Fails on both", ""]
        lines += [f"- {s.name}: `{short(n)}`: {reason(n, why)}" for s, n, why in shared]
        sections.append("\n".join(lines))
    lines = ["### Not reached by a stand-in", ""]
    lines += [f"- {name}: {why}" for name, why in NOT_THE_RUNTIME.items()]
    sections.append("\n".join(lines))
    return "\n\n".join(sections)


def short(name: str) -> str:
    """Return a test's name without the folders."""
    return name.rpartition("/")[2]


def reason(name: str, message: str) -> str:
    """Return the reason that was written down for a test, or the start of its message."""
    for pattern, why in REASONS.items():
        if fnmatch.fnmatch(name, pattern):
            return why
    line = message.replace("\\n", " ").replace("|", "\\|").replace("`", "'")
    return f"`{line[:160]}`" if line else ""
