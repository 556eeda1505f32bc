"""What the peer's own configuration does for its tests, and its wheel lacks.

Seeds torch by each test's name, and adds each outcome to ``--outcomes FILE`` when it is known, so
that a run that is stopped can go on: the tests named in ``--done FILE`` are left out.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

_RANK = {"passed": 0, "skipped": 1, "xfailed": 1, "failed": 2, "error": 3}


class Outcomes:
    """Writes one line of JSON for each test: its name, its worst outcome with subtests, and why."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("a")
        self.running: dict[str, list[str]] = {}

    def add(self, name: str, outcome: str, reason: str = "") -> None:
        known = self.running.get(name)
        if known is None or _RANK[outcome] > _RANK[known[0]]:
            self.running[name] = [outcome, reason]

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.write(_name(nodeid))

    def write(self, name: str) -> None:
        if name in self.running:
            self.file.write(json.dumps([name, *self.running.pop(name)]) + "\n")
            self.file.flush()

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = _name(report.nodeid)
        if report.when != "call" and report.passed:
            return
        outcome = report.outcome
        if report.failed and report.when != "call":
            outcome = "error"
        self.add(name, outcome, _reason(report))

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.add(_name(report.nodeid), "error", _reason(report))
            self.write(_name(report.nodeid))


def read_outcomes(path: Path) -> dict[str, list[str]]:
    """Return each test's outcome in an outcomes file, and why."""
    lines = (json.loads(line) for line in path.read_text().splitlines())
    return {name: [outcome, reason] for name, outcome, reason in lines}


def _name(node: str) -> str:
    return node.replace("\\", "/").rpartition("executorch/")[2]


def _reason(report: Any) -> str:
    """Return the last line of a failure that says something, or why a test was skipped."""
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).splitlines()[0][:200]
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line.removeprefix("E ").strip() for line in lines if line.startswith("E  ")]
    if raised and crash is None:  # a file that cannot be imported: the last line says why
        return raised[-1][:300]
    return lines[0][:300] if lines else ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, help="add each test's outcome to this file")
    parser.addoption("--done", type=Path, help="leave out the tests that this JSON file names")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--outcomes")
    if path and not hasattr(config, "workerinput"):  # a worker of pytest-xdist reports to this one
        config.pluginmanager.register(Outcomes(path), "conformance-outcomes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    path = config.getoption("--done")
    if path:
        done = set(json.loads(path.read_text()))
        items[:] = [item for item in items if _name(item.nodeid) not in done]


@pytest.fixture(autouse=True)
def _seed(request: pytest.FixtureRequest) -> None:
    import torch

    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))
