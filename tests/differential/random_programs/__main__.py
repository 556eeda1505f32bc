"""Check many seeds: ``python -m differential.random_programs --help``."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from differential.random_programs.campaign import Totals, campaign, record


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m differential.random_programs",
        description="Compare random programs on pteron with eager torch.",
    )
    parser.add_argument("--seeds", default="0..199", help="one seed, or A..B with both ends")
    parser.add_argument("--jobs", type=int, default=0, help="processes; 0: this one")
    parser.add_argument("--minutes", type=float, help="stop after this time")
    parser.add_argument("--keep", type=Path, help="folder for findings.jsonl and summary.json")
    parser.add_argument(
        "--shrink", type=int, default=40, help="programs to make smaller, a process"
    )
    parser.add_argument("--exported", action="store_true", help="export modules: slower")
    parser.add_argument("--wheel", action="store_true", help="ask the executorch wheel as well")
    parser.add_argument("--show", action="store_true", help="print the programs, run nothing")
    return parser.parse_args(arguments)


def seeds_of(text: str) -> range:
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)


def cpu() -> str:
    """Return the processor's name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def show(seeds: range) -> None:
    from differential.random_programs.generator import recipe_of
    from differential.random_programs.notation import recipe_text

    for seed in seeds:
        sys.stdout.write(recipe_text(recipe_of(seed)) + "\n\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return 1 if anything was found."""
    options = parsed(arguments)
    seeds = seeds_of(options.seeds)
    if options.show:
        show(seeds)
        return 0
    from differential.random_programs.jobs import MakeBuilt, MakeExported

    make: MakeExported | MakeBuilt
    if options.exported:
        make = MakeExported(options.shrink, options.wheel)
    else:
        make = MakeBuilt(options.shrink, options.wheel)
    totals, begin = Totals(), time.monotonic()
    for outcome in campaign(make, seeds, jobs=options.jobs, minutes=options.minutes):
        totals.add(outcome)
        totals.seconds = time.monotonic() - begin
        if outcome.wheel.startswith(("differs", "died")):
            sys.stdout.write(f"seed {outcome.seed}: the wheel {outcome.wheel}\n")
        if outcome.findings:
            first = outcome.findings[0]
            new = len(totals.keys[outcome.key]) == 1
            sys.stdout.write(
                f"\nseed {outcome.seed}: {first['variant']}: {first['kind']}: {first['detail']}\n"
            )
            if new:
                sys.stdout.write(outcome.smallest + "\n")
            if options.keep:
                record(options.keep, outcome)
        if totals.seeds % 50 == 0 and sys.stderr.isatty():
            sys.stderr.write(f"\r{totals.line()}")
        sys.stdout.flush()
    totals.seconds = time.monotonic() - begin
    write_summary(options, totals)
    return 1 if totals.failing else 0


def write_summary(options: argparse.Namespace, totals: Totals) -> None:
    groups = sorted(totals.keys.items(), key=lambda item: -len(item[1]))
    for key, found in groups:
        sys.stdout.write(f"{len(found):5} {key} (seeds {', '.join(map(str, found[:5]))})\n")
    for why, count in totals.refused.most_common(12):
        sys.stdout.write(f"{count:5} not exported: {why}\n")
    sys.stdout.write(totals.line() + "\n")
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        summary = {
            "seeds": options.seeds,
            "programs": totals.programs,
            "runs": totals.runs,
            "failing": totals.failing,
            "kinds": dict(totals.kinds),
            "wheel": dict(totals.wheel),
            "not exported": dict(totals.refused),
            "groups": {key: found[:20] for key, found in groups},
            "seconds": round(totals.seconds, 1),
            "cpu": cpu(),
        }
        (options.keep / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
