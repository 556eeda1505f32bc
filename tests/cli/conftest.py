"""What the tests of the command share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_told_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no runner say how wide lines are: parallel workers have COLUMNS set."""
    monkeypatch.delenv("COLUMNS", raising=False)
