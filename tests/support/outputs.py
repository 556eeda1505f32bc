"""Comparing what two runs of a method returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def assert_same(outputs: Sequence[Any], expected: Sequence[Any]) -> None:
    """Assert that tensors are close, and that all else is equal and of one type."""
    assert len(outputs) == len(expected)
    for output, wanted in zip(outputs, expected, strict=True):
        if isinstance(wanted, torch.Tensor):
            torch.testing.assert_close(output, wanted)
        else:
            assert (type(output), output) == (type(wanted), wanted)
