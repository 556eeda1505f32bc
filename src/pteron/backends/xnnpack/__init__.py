"""XNNPACK delegates, run with torch's operators.

``blob``, ``graph``, ``shapes`` and ``verify`` read and check a delegate without torch; the other
modules plan and run it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pteron.backends.xnnpack.backend import XnnpackBackend as XnnpackBackend

__all__ = ["XnnpackBackend"]


def __getattr__(name: str) -> Any:
    if name == "XnnpackBackend":
        from pteron.backends.xnnpack.backend import XnnpackBackend

        return XnnpackBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
