"""An accelerator that is host memory, and the demo backend, for tests of placement."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pteron.memory.device_allocator import device_allocator
from support.demo_backend import DemoBackend, demo_backend
from support.silence import silence
from support.tagged_device import TaggedDevice


@pytest.fixture(autouse=True)
def _silence(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    yield from silence(capfd)


@pytest.fixture
def demo() -> Iterator[DemoBackend]:
    """Register ExecuTorch's demo backend, in Python."""
    with demo_backend() as backend:
        yield backend


@pytest.fixture
def device() -> Iterator[TaggedDevice]:
    """Make ``cuda`` two devices of tagged host memory."""
    with device_allocator(TaggedDevice()) as allocator:
        assert isinstance(allocator, TaggedDevice)
        yield allocator


@pytest.fixture
def no_device() -> Iterator[TaggedDevice]:
    """Make ``cuda`` a kind of device that this machine does not have."""
    with device_allocator(TaggedDevice(count=0)) as allocator:
        assert isinstance(allocator, TaggedDevice)
        yield allocator
