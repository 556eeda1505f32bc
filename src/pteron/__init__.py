"""pteron: run ExecuTorch programs from Python, on any device that PyTorch knows.

    from pteron import Runtime

    program = Runtime.get().load_program("model.pte")
    method = program.load_method("forward")
    method.inputs                              # names, element types, shapes
    outputs = method(x)

``Module("model.pte")`` takes and returns what the original model did. ``pteron.inspect(path)``
returns what a file holds. docs/api.md lists everything; errors are in ``pteron.errors``.

Importing this package, opening a program and reading its metadata does not import torch.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from pteron.errors import PteronError

if _TYPE_CHECKING:
    from pteron.backends.interface import Backend
    from pteron.backends.registry import BackendRegistry as BackendRegistry
    from pteron.cli.inspect import inspect
    from pteron.executor.method import Method
    from pteron.executor.signature import ValueInfo
    from pteron.executor.weights import Constants as Constants
    from pteron.kernels import register_kernel
    from pteron.kernels.registry import OperatorRegistry as OperatorRegistry
    from pteron.memory.device_allocator import DeviceAllocator, register_device_allocator
    from pteron.memory.device_map import DeviceMapping as DeviceMapping
    from pteron.module import Module
    from pteron.program.method_meta import MethodMeta, TensorInfo
    from pteron.runtime import Program, Runtime, Verification

__version__ = "0.1.0"

__all__ = [
    "Backend",
    "DeviceAllocator",
    "Method",
    "MethodMeta",
    "Module",
    "Program",
    "PteronError",
    "Runtime",
    "TensorInfo",
    "ValueInfo",
    "Verification",
    "inspect",
    "register_device_allocator",
    "register_kernel",
]

_HOMES = {
    "Backend": "pteron.backends.interface",
    "BackendRegistry": "pteron.backends.registry",
    "Constants": "pteron.executor.weights",
    "DeviceAllocator": "pteron.memory.device_allocator",
    "DeviceMapping": "pteron.memory.device_map",
    "Method": "pteron.executor.method",
    "MethodMeta": "pteron.program.method_meta",
    "Module": "pteron.module",
    "OperatorRegistry": "pteron.kernels.registry",
    "Program": "pteron.runtime",
    "Runtime": "pteron.runtime",
    "TensorInfo": "pteron.program.method_meta",
    "ValueInfo": "pteron.executor.signature",
    "Verification": "pteron.runtime",
    "inspect": "pteron.cli.inspect",
    "register_device_allocator": "pteron.memory.device_allocator",
    "register_kernel": "pteron.kernels",
}


def __getattr__(name: str) -> _Any:
    """Import a public name from its module when it is first asked for."""
    if name in _HOMES:
        try:
            return getattr(_import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            from pteron.errors import missing_package

            raise missing_package(error, f"pteron.{name}") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__", "errors"})
