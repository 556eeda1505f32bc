"""The peer's own tests on pteron: those that take about a minute.

``python -m conformance`` runs all of them, on the compiled runtime too (``docs/conformance.md``).
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from conformance import __main__ as conformance
from conformance.suites import SUITES, Suite

pytestmark = [pytest.mark.peer, pytest.mark.slow]


@pytest.fixture(scope="module")
def package() -> Path:
    if importlib.util.find_spec("executorch") is None:
        pytest.skip("executorch is not installed")
    return conformance.package()


@pytest.mark.parametrize("suite", [s for s in SUITES if s.quick], ids=lambda suite: suite.name)
def test_a_suite_passes_on_pteron(
    suite: Suite, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = conformance.load(suite, "pteron")
    monkeypatch.setattr(conformance, "RESULTS", tmp_path)
    conformance.run(suite, "pteron", package)
    (written,) = tmp_path.glob("*.json")
    found = json.loads(written.read_text())
    failed = {name: why for name, why in found.items() if why not in ("passed", "skipped")}
    failed = {name: why for name, why in failed.items() if why[0] in ("failed", "error")}
    assert not failed
    assert known is not None
    passed = {name for name, outcome in known.items() if outcome[0] == "passed"}
    assert passed <= {name for name, outcome in found.items() if outcome == "passed"}
