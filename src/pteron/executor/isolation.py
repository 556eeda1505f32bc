"""Keep what a caller has set for torch out of a program.

A program gives the numbers that it gives in a fresh process. What torch lets a caller set falls
into three groups:

- Switched off while a method loads or runs: function modes (a default device is one), dispatch
  modes (``FakeTensorMode``, ``FlopCounterMode``), autocast, gradients, and flushing of denormal
  numbers to zero. All of these belong to one thread, so other threads keep theirs.
- Without effect: the default dtype. It belongs to the whole process, and another thread may change
  it at any time (loading a checkpoint does), so it is not switched: kernels never ask for it
  (:mod:`pteron.kernels.promotion`).
- The caller's own: ``torch.use_deterministic_algorithms``, ``torch.set_float32_matmul_precision``,
  ``torch.backends`` and the number of threads choose among algorithms for the same values. Results
  may differ in rounding, as they do in eager PyTorch.

Inside a transform (``torch.func.vmap``, ``grad``, ``jvp``) or while torch records what is called
(``make_fx``, ``torch.export``, ``torch.jit.trace``) a method refuses to run: it works on memory of
its own, which neither can follow, and a recording would keep the result of this call for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NoReturn

import torch
from torch.utils._python_dispatch import _disable_current_modes

from pteron.errors import NotSupportedError

_NOTHING = nullcontext()
_LEAST = 5e-324
"""The least positive number; equal to zero where denormals are flushed."""

_function_modes = torch._C._len_torch_function_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_any_autocast = torch._C._is_any_autocast_enabled
_transform = torch._C._functorch.peek_interpreter_stack
_is_jit_tracing = torch._C._is_tracing


def isolated() -> AbstractContextManager[Any]:
    """Return a context in which a caller's settings do not change what torch computes.

    Raises:
        NotSupportedError: The caller is inside a transform of ``torch.func``, or records calls.

    """
    if _transform() is not None:
        raise NotSupportedError(
            f"a method cannot be loaded or run inside a transform of torch.func "
            f"({_transform_name()})",
            hint="call it outside of the transform, on plain tensors",
        )
    if _is_jit_tracing():
        _refuse_recording("torch.jit.trace")
    if _function_modes() or _dispatch_modes() or _any_autocast() or _LEAST == 0.0:
        return _without_settings()
    return _NOTHING


def _refuse_recording(who: str) -> NoReturn:
    raise NotSupportedError(
        f"a method cannot be loaded or run while {who} records what is called",
        hint="record the model that the program was exported from",
    )


def _transform_name() -> str:
    """Return what torch calls the innermost transform: vmap, grad, jvp or functionalize."""
    innermost = _transform()
    assert innermost is not None
    return str(innermost.key().name).lower()


@contextmanager
def _without_settings() -> Iterator[None]:
    with ExitStack() as stack:
        if _function_modes():
            stack.enter_context(torch._C.DisableTorchFunction())
        if _dispatch_modes():
            if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None:
                _refuse_recording("make_fx or torch.export")
            stack.enter_context(_disable_current_modes())
        if _any_autocast():
            stack.enter_context(_without_autocast())
        if _LEAST == 0.0:
            torch.set_flush_denormal(False)
            stack.callback(torch.set_flush_denormal, True)
        yield


@contextmanager
def _without_autocast() -> Iterator[None]:
    """Switch autocast off for each kind of device that has it on."""
    kinds = [kind for kind in _autocast_devices() if torch.is_autocast_enabled(kind)]
    try:
        for kind in kinds:
            torch.set_autocast_enabled(kind, False)
        yield
    finally:
        for kind in kinds:
            torch.set_autocast_enabled(kind, True)


def _autocast_devices() -> list[str]:
    """Return the kinds of devices that autocast knows."""
    kinds = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "maia", "xla", "ipu")
    own = torch._C._get_privateuse1_backend_name()
    return [kind for kind in (*kinds, own) if torch.amp.is_autocast_available(kind)]
