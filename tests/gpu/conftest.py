"""What GPU tests share: exact float32, nothing left behind, and fixtures opened by name."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from pteron import Runtime
from support import cuda_fixtures as fixtures


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    """Keep cuDNN from rounding float32 to tf32: the expected numbers are the CPU's."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Drop what a test held on the device, and see that the current device is as it was."""
    if not torch.cuda.is_available():
        yield
        return
    before = torch.cuda.current_device()
    yield
    assert torch.cuda.current_device() == before
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


@pytest.fixture
def load() -> Iterator[Callable[..., Any]]:
    """Return a function that opens a CUDA fixture by name; all are closed after the test."""
    opened = []

    def load_program(name: str, **settings: Any) -> Any:
        program = Runtime.get().load_program(
            fixtures.pte_path(name), data_path=fixtures.ptd_path(name), **settings
        )
        opened.append(program)
        return program

    yield load_program
    for program in opened:
        program.close()
