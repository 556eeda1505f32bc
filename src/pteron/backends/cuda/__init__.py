"""Delegates of ExecuTorch's CUDA backend: compiled shared objects, run in this process.

``blob``, ``describe``, ``elf``, ``device_images`` and ``reader`` read and check a delegate without
torch; the other modules run it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pteron.backends.cuda.describe import NativeCode, describe, violations

if TYPE_CHECKING:
    from pteron.backends.cuda.backend import CudaBackend as CudaBackend

__all__ = ["NativeCode", "describe", "violations"]


def __getattr__(name: str) -> Any:
    if name == "CudaBackend":
        from pteron.backends.cuda.backend import CudaBackend

        return CudaBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
