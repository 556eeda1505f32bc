"""Copies between host and device that an exporter put at the borders of a delegate.

The executor knows the real places of both sides and may do better than these plain copies.
"""

from __future__ import annotations

from pteron.kernels.dim_order import copy_out
from pteron.kernels.registry import Kernel, OperatorRegistry, Style


def register(registry: OperatorRegistry) -> None:
    """Add the operators of this file."""
    for name in ("_h2d_copy", "_d2h_copy"):
        registry.register(
            Kernel(f"et_copy::{name}.out", Style.OUT, copy_out, 1, out_names=("out",))
        )
