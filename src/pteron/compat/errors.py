"""Errors in the form that callers of ExecuTorch's bindings know: RuntimeError with a hex code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pteron.errors import InvalidArgumentError, InvalidTypeError, PteronError


class ExecuTorchError(RuntimeError):
    """A PteronError as a RuntimeError. ``code`` is ExecuTorch's number; the cause is the error."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type[ExecuTorchError], tuple[str, int], dict[str, Any]]:
        return type(self), (str(self), self.code), vars(self)


PROGRAM: Final = "0x:"
MODULE: Final = "0x"
"""How the two paths of the bindings write a code."""


def code_of(error: PteronError) -> int:
    """Return the code that ExecuTorch gives for an error (a value of the wrong kind is 0x12)."""
    return InvalidArgumentError.code if isinstance(error, InvalidTypeError) else error.code


def error_from(error: PteronError, task: str, form: str = MODULE) -> ExecuTorchError:
    """Return an error whose first line is ExecuTorch's and whose others say what happened."""
    code = code_of(error)
    return ExecuTorchError(f"{task}, error: {form}{code:x}\n{error}", code)


@contextmanager
def translated(task: str, form: str = MODULE) -> Iterator[None]:
    """Turn a PteronError of the ``with`` block into a RuntimeError that names the task."""
    try:
        yield
    except PteronError as error:
        raise error_from(error, task, form) from error
