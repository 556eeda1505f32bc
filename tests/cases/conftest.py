"""Nothing is printed in any case."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.silence import silence


@pytest.fixture(autouse=True)
def _silence(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    yield from silence(capfd)
