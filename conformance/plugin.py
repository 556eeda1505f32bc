"""What the peer's own configuration does for its tests, and its wheel lacks.

Seeds torch by each test's name, and counts subtests apart, into ``--outcomes FILE``.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

_RANK = {"passed": 0, "skipped": 1, "xfailed": 1, "failed": 2, "error": 3}


class Outcomes:
    """Keeps the worst outcome of each test, and why."""

    def __init__(self) -> None:
        self.cases: dict[str, list[str]] = {}

    def add(self, name: str, outcome: str, reason: str = "") -> None:
        known = self.cases.get(name, ["passed", ""])
        if name not in self.cases or _RANK[outcome] > _RANK[known[0]]:
            self.cases[name] = [outcome, reason]

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.replace("\\", "/").rpartition("executorch/")[2]
        if report.when != "call" and report.passed:
            return
        outcome = report.outcome
        if report.failed and report.when != "call":
            outcome = "error"
        self.add(name, outcome, _reason(report))

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            name = report.nodeid.replace("\\", "/").rpartition("executorch/")[2]
            self.add(name, "error", _reason(report))


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
    parser.addoption("--outcomes", help="write each test's outcome to this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--outcomes")
    if path:
        config.pluginmanager.register(Outcomes(), "conformance-outcomes")


def pytest_unconfigure(config: pytest.Config) -> None:
    outcomes = config.pluginmanager.get_plugin("conformance-outcomes")
    if outcomes is not None:
        Path(config.getoption("--outcomes")).write_text(json.dumps(outcomes.cases, indent=0))


@pytest.fixture(autouse=True)
def _seed(request: pytest.FixtureRequest) -> None:
    import torch

    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))
