"""DESIGN, X3: what a test of pteron does prints nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from support import programs


def silence(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Fail a test that printed, on any descriptor, unless executorch was at work in it."""
    before = programs.exports, "executorch.exir" in sys.modules
    yield
    printed = capfd.readouterr()
    if before == (programs.exports, "executorch.exir" in sys.modules):
        assert (printed.out, printed.err) == ("", "")
