"""Copies between host and device that an exporter put at the borders of a delegate.

The executor copies by the real places of both sides (``Style.DEVICE_COPY``); a kernel that a user
registers under these names takes its place.
"""

from __future__ import annotations

from pteron.kernels.dim_order import copy_out
from pteron.kernels.registry import Kernel, OperatorRegistry, Style
from pteron.program.primitives import D2H, H2D


def register(registry: OperatorRegistry) -> None:
    """Add the operators of this file."""
    for name in (H2D, D2H):
        registry.register(
            Kernel(name, Style.DEVICE_COPY, copy_out, 1, out_names=("out",), dense=(), pure=True)
        )
