"""pteron: run ExecuTorch programs from Python, on any device that PyTorch knows.

    from pteron import Runtime

    program = Runtime.get().load_program("model.pte")
    outputs = program.load_method("forward").execute([x])

Importing this package, opening a program and reading its metadata does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pteron.errors import PteronError

if TYPE_CHECKING:
    from pteron.executor.method import Method
    from pteron.kernels import register_kernel
    from pteron.memory.device_allocator import DeviceAllocator, register_device_allocator
    from pteron.module import Module
    from pteron.program.method_meta import MethodMeta, TensorInfo
    from pteron.runtime import Program, Runtime, Verification

__version__ = "0.1.0"

__all__ = [
    "DeviceAllocator",
    "Method",
    "MethodMeta",
    "Module",
    "Program",
    "PteronError",
    "Runtime",
    "TensorInfo",
    "Verification",
    "register_device_allocator",
    "register_kernel",
]

_HOMES = {
    "DeviceAllocator": "pteron.memory.device_allocator",
    "Method": "pteron.executor.method",
    "MethodMeta": "pteron.program.method_meta",
    "Module": "pteron.module",
    "Program": "pteron.runtime",
    "Runtime": "pteron.runtime",
    "TensorInfo": "pteron.program.method_meta",
    "Verification": "pteron.runtime",
    "register_device_allocator": "pteron.memory.device_allocator",
    "register_kernel": "pteron.kernels",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module when it is first asked for."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
