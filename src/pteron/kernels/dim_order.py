"""Operators whose dim order argument says how the out tensor lies in memory.

A slot already lies as the program says, so a copy by values is all there is to do.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pteron.kernels.aten_views import alias
from pteron.kernels.registry import Kernel, OperatorRegistry, Style
from pteron.kernels.write import fit, write


def copy_out(self: Tensor, *, out: Tensor, **_ignored: Any) -> Tensor:
    """Copy ``self`` into ``out``, with ``out``'s dtype, device and layout."""
    return write(out, self)


def empty_out(size: list[int], *, out: Tensor, **_ignored: Any) -> Tensor:
    """Give ``out`` the shape ``size``; its elements are whatever they were."""
    return fit(out, size)


_DEFAULTS = {"non_blocking": False, "dim_order": None}


def register(registry: OperatorRegistry) -> None:
    """Add the operators of this file."""
    for name in ("_to_dim_order_copy", "_clone_dim_order"):
        registry.register(
            Kernel(
                f"dim_order_ops::{name}.out",
                Style.OUT,
                copy_out,
                1,
                keywords=("non_blocking", "dim_order"),
                out_names=("out",),
                defaults=_DEFAULTS,
                dense=(),
                pure=True,
                view=alias if name == "_clone_dim_order" else None,
            )
        )
    registry.register(
        Kernel(
            "dim_order_ops::_empty_dim_order.out",
            Style.OUT,
            empty_out,
            1,
            keywords=("dim_order",),
            out_names=("out",),
            defaults={"dim_order": None},
            dense=(),
        )
    )
