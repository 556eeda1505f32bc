"""Operator names to callables on torch tensors.

``default_registry()`` holds what pteron brings and what installed packages add: an entry point of
the group ``pteron.kernels`` is a function ``register(registry)``, like the one that each module
named in ``MODULES`` has. One that fails is logged and left out; ``broken_plugins()`` names it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import copy
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeVar, overload

from pteron.kernels.registry import (
    Kernel,
    KernelFactory,
    OperatorRegistry,
    Style,
    kernel_from_function,
)
from pteron.plugins import FAILURES, BrokenPlugin, report_broken

__all__ = [
    "MODULES",
    "Kernel",
    "KernelFactory",
    "OperatorRegistry",
    "Style",
    "broken_plugins",
    "default_registry",
    "kernel_from_function",
    "register_kernel",
]

MODULES: list[str] = [
    "pteron.kernels.prim",
    "pteron.kernels.dim_order",
    "pteron.kernels.et_copy",
    "pteron.kernels.quantized",
    "pteron.kernels.quantized_weights",
    "pteron.kernels.torchao",
    "pteron.kernels.llm",
    "pteron.kernels.llm_packed",
    "pteron.kernels.cortex_m",
    "pteron.kernels.aten",
    "pteron.kernels.prepared",
]
"""Modules with a function ``register(registry)``, called in this order. ``aten`` comes with the
factory that answers for every operator that torch knows; ``prepared`` adds to what it finds."""

F = TypeVar("F", bound=Callable[..., Any])


_lock = threading.RLock()
_default: list[OperatorRegistry] = []
_broken: list[BrokenPlugin] = []


def default_registry() -> OperatorRegistry:
    """Return the process-wide registry, built at the first call (it imports torch)."""
    with _lock:
        if not _default:
            registry = OperatorRegistry()
            for name in MODULES:
                import_module(name).register(registry)
            _default.append(registry)  # first, since a plug-in's module may ask for it
            _add_plugins(registry)
        return _default[0]


def broken_plugins() -> tuple[BrokenPlugin, ...]:
    """Return the entry points that could not add to the process-wide registry."""
    return tuple(_broken)


def _add_plugins(registry: OperatorRegistry) -> None:
    """Let installed packages add theirs; what one that fails had added is taken out again."""
    for entry_point in entry_points(group="pteron.kernels"):
        before = {name: copy(part) for name, part in vars(registry).items()}
        try:
            entry_point.load()(registry)
        except FAILURES as error:
            vars(registry).update(before)
            _broken.append(report_broken(entry_point, error))


@overload
def register_kernel(name: str, function: F, **facts: Any) -> F: ...
@overload
def register_kernel(name: str, function: None = None, **facts: Any) -> Callable[[F], F]: ...
def register_kernel(name: str, function: F | None = None, **facts: Any) -> F | Callable[[F], F]:
    """Register a Python function for operator ``name``, process-wide; also a decorator.

    ``def my_op(a, b, *, out)`` fills ``out``; ``def my_op(a, b)`` returns the result. ``facts`` are
    those of :func:`kernel_from_function`. For one program only, see ``load_program(kernels=...)``.
    """
    return default_registry().register_kernel(name, function, **facts)
