"""The peer's own tests on pteron: those that take about a minute.

``python -m conformance`` runs all of them, on the compiled runtime too (``docs/conformance.md``).
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from conformance import __main__ as conformance
from conformance.suites import SUITES, Suite
from conformance.table import failed

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
    assert known is not None
    monkeypatch.setattr(conformance, "RESULTS", tmp_path)
    conformance.run(suite, "pteron", package)
    found = conformance.load(suite, "pteron")
    assert found is not None
    assert not failed(found)
    passed = {name for name, outcome in known.cases.items() if outcome[0] == "passed"}
    assert passed <= {name for name, outcome in found.cases.items() if outcome[0] == "passed"}
