"""What every test may use."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Run torch on one thread: the workers already share the cores."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed(request: pytest.FixtureRequest) -> None:
    """Seed torch by the test's name, so that a test draws the same numbers alone and in a run."""
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of files that is laid beside a checkout, and is not in the repository.

    ``PTERON_SHARED`` names it if it is elsewhere.
    """
    elsewhere = os.environ.get("PTERON_SHARED")
    for folder in (
        *([Path(elsewhere)] if elsewhere else []),
        ROOT / "shared",
        ROOT.parent / "shared",
    ):
        if (folder / "fixtures").is_dir():
            return folder
    pytest.skip("the shared folder is not beside this checkout")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip GPU tests where there is no GPU."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
