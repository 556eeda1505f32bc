"""Run the peer's tests on its compiled runtime and on pteron, and write the table.

    python -m conformance                      every suite that has no cached result, then the table
    python -m conformance quick --again        these suites anew
    python -m conformance --table              the table from cached results alone

The tests come out of the installed executorch package; nothing of it is copied or changed. Results
are cached in ``conformance/results``, one JSON file for each suite and runtime. What a run that was
stopped had found is kept beside them (``*.part``): the next run goes on from there.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from conformance.plugin import read_outcomes
from conformance.suites import SUITES, Suite, by_name
from conformance.table import Outcomes, write_table

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULTS = HERE / "results"
RUNTIMES = ("wheel", "pteron")
ENDED = (0, 1, 5)
"""pytest ran all there was: none failed, some did, there was nothing left."""

PLUGIN = ("-p", "pteron.compat.pytest_plugin")
DEMO_BACKENDS = (
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


def run(suite: Suite, runtime: str, base: Path, processes: int = 1) -> None:
    """Run a suite in one process or several on one runtime, and cache its outcomes."""
    arguments = [str(base / path) for path in suite.paths]
    for option in suite.options:
        name, equals, path = option.partition("=")
        arguments.append(f"{name}={base / path}" if equals else option)
    if processes > 1:
        arguments += ["-n", str(processes)]
    RESULTS.mkdir(exist_ok=True)
    part = result_file(suite, runtime).with_suffix(".part")
    known = read_outcomes(part) if part.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        done = Path(folder) / "done.json"
        done.write_text(json.dumps(list(known)))
        command = [sys.executable, "-m", "pytest", "-q", "--show-capture=no"]
        command += ["-c", str(HERE / "pytest.ini"), "--rootdir", str(base)]
        command += ["-p", "conformance.plugin", "--outcomes", str(part), "--done", str(done)]
        if runtime == "pteron":
            command += [*PLUGIN, *(() if suite.plugin_alone else DEMO_BACKENDS)]
        command += arguments
        parts = (ROOT, ROOT / "src", ROOT / "tests", os.environ.get("PYTHONPATH", ""))
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(str(part) for part in parts if str(part)),
        }
        print(f"{runtime}: {suite.name}", file=sys.stderr)
        ended = subprocess.run(command, cwd=folder, env=environment, check=False).returncode
    if ended not in ENDED:
        print(f"pytest was stopped ({ended}): the next run goes on from there", file=sys.stderr)
        return
    store(suite, runtime, read_outcomes(part))
    part.unlink()


def store(suite: Suite, runtime: str, cases: dict[str, list[str]]) -> None:
    """Cache a suite's outcomes and what they were found with, unless there are none."""
    if cases:
        text = ",\n".join(
            f"{json.dumps(name)}: {json.dumps(outcome[0] if not outcome[1] else outcome)}"
            for name, outcome in sorted(cases.items())
        )
        head = f'{{"environment": {json.dumps(environment())}, "cases": {{\n'
        result_file(suite, runtime).write_text(head + text + "\n}}\n")


def environment() -> str:
    """Return the versions that outcomes depend on."""
    python, torch = sys.version_info, version("torch").partition("+")[0]
    return f"Python {python.major}.{python.minor}, torch {torch}"


def load(suite: Suite, runtime: str) -> Outcomes | None:
    """Return cached outcomes, or None."""
    path = result_file(suite, runtime)
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    cases = {
        name: (outcome, "") if isinstance(outcome, str) else (outcome[0], outcome[1])
        for name, outcome in found["cases"].items()
    }
    return Outcomes(found["environment"], cases)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("suites", nargs="*", help="names, or 'quick'; none means all")
    parser.add_argument("--runtime", choices=RUNTIMES, action="append")
    parser.add_argument("--again", action="store_true", help="run also what is cached")
    parser.add_argument("--processes", type=int, default=1, help="for each suite (pytest-xdist)")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--snapshot", type=Path, help="a checkout, for what the wheel lacks")
    given = parser.parse_args()
    chosen = [] if given.table else by_name(given.suites)
    for runtime in given.runtime or RUNTIMES:
        todo = [s for s in chosen if given.again or not result_file(s, runtime).exists()]
        without = [s.name for s in todo if s.snapshot and given.snapshot is None]
        if without:
            print(f"not in the wheel, give --snapshot: {', '.join(without)}", file=sys.stderr)
        for suite in todo:
            base = given.snapshot if suite.snapshot else package()
            if base is not None:
                run(suite, runtime, base.resolve(), given.processes)
    rows = [(suite, load(suite, "wheel"), load(suite, "pteron")) for suite in SUITES]
    write_table(ROOT / "docs" / "conformance.md", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
