"""Run the peer's tests on its compiled runtime and on pteron, and write the table.

    python -m conformance                      every suite that has no cached result, then the table
    python -m conformance quick --again        these suites anew
    python -m conformance --table              the table from cached results alone

The tests come out of the installed executorch package; nothing of it is copied or changed. Results
are cached in ``conformance/results``, one JSON file for each suite and runtime.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from conformance.suites import SUITES, Suite, by_name
from conformance.table import write_table

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULTS = HERE / "results"
RUNTIMES = ("wheel", "pteron")

PTERON_OPTIONS = (
    "-p",
    "pteron.compat.pytest_plugin",
    "--pteron-backend",
    "conformance.backends:DemoBackend",
    "--pteron-backend",
    "conformance.backends:ExecutorBackend",
)


def package() -> Path:
    """Return the installed package's folder."""
    spec = importlib.util.find_spec("executorch")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("executorch is not installed: pip install executorch==1.5.1")
    return Path(next(iter(spec.submodule_search_locations)))


def result_file(suite: Suite, runtime: str) -> Path:
    return RESULTS / f"{suite.name.replace(', ', '-').replace(' ', '_')}.{runtime}.json"


def run(suites: list[Suite], runtime: str, base: Path, limit_s: int) -> None:
    """Run suites in one process on one runtime, and cache each one's outcomes."""
    arguments = [str(base / path) for suite in suites for path in suite.paths]
    for suite in suites:
        for option in suite.options:
            name, equals, path = option.partition("=")
            arguments.append(f"{name}={base / path}" if equals else option)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder) / "outcomes.json"
        command = [sys.executable, "-m", "pytest", "-q", "--show-capture=no"]
        command += ["-c", str(HERE / "pytest.ini"), "--rootdir", str(base)]
        command += ["-p", "conformance.plugin", "--outcomes", str(outcomes)]
        command += [*(PTERON_OPTIONS if runtime == "pteron" else ()), *arguments]
        parts = (ROOT, ROOT / "src", ROOT / "tests", os.environ.get("PYTHONPATH", ""))
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(str(part) for part in parts if str(part)),
        }
        print(f"{runtime}: {', '.join(suite.name for suite in suites)}", file=sys.stderr)
        try:
            subprocess.run(command, cwd=folder, env=environment, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            print(f"stopped after {limit_s} s", file=sys.stderr)
        if not outcomes.exists():
            print("no outcomes: the process died or was stopped", file=sys.stderr)
            return
        store(suites, runtime, json.loads(outcomes.read_text()))


def store(suites: list[Suite], runtime: str, cases: dict[str, list[str]]) -> None:
    """Split outcomes by suite and cache them."""
    RESULTS.mkdir(exist_ok=True)
    for suite in suites:
        mine = {
            name: outcome
            for name, outcome in sorted(cases.items())
            if any(name.startswith(path) for path in suite.paths)
        }
        if mine:
            text = ",\n".join(
                f"{json.dumps(name)}: {json.dumps(outcome[0] if not outcome[1] else outcome)}"
                for name, outcome in mine.items()
            )
            result_file(suite, runtime).write_text("{\n" + text + "\n}\n")


def load(suite: Suite, runtime: str) -> dict[str, tuple[str, str]] | None:
    """Return cached outcomes, or None."""
    path = result_file(suite, runtime)
    if not path.exists():
        return None
    return {
        name: (outcome, "") if isinstance(outcome, str) else (outcome[0], outcome[1])
        for name, outcome in json.loads(path.read_text()).items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("suites", nargs="*", help="names, or 'quick'; none means all")
    parser.add_argument("--runtime", choices=RUNTIMES, action="append")
    parser.add_argument("--again", action="store_true", help="run also what is cached")
    parser.add_argument("--together", action="store_true", help="one process for all suites")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--snapshot", type=Path, help="a checkout, for what the wheel lacks")
    given = parser.parse_args()
    chosen = [] if given.table else by_name(given.suites)
    for runtime in given.runtime or RUNTIMES:
        todo = [s for s in chosen if given.again or not result_file(s, runtime).exists()]
        without = [s.name for s in todo if s.snapshot and given.snapshot is None]
        if without:
            print(f"not in the wheel, give --snapshot: {', '.join(without)}", file=sys.stderr)
        here = [s for s in todo if not s.snapshot]
        for group in [here] if given.together and here else [[s] for s in here]:
            run(group, runtime, package(), sum(s.limit_s for s in group))
        for suite in todo:
            if suite.snapshot and given.snapshot is not None:
                run([suite], runtime, given.snapshot.resolve(), suite.limit_s)
    rows = [(suite, load(suite, "wheel"), load(suite, "pteron")) for suite in SUITES]
    write_table(ROOT / "docs" / "conformance.md", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
