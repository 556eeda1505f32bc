"""Keep what a process has set for itself, such as torch's default device, out of a program."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

_NOTHING = nullcontext()


def isolated() -> AbstractContextManager[Any]:
    """Return a context in which no torch function mode changes calls; a default device is one."""
    if torch._C._len_torch_function_stack():
        return torch._C.DisableTorchFunction()
    return _NOTHING
