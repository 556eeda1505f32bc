"""Every error that a user or a file can cause.

    PteronError                                code   also a
    ├── InternalError                          0x01   RuntimeError
    ├── InvalidStateError                      0x02   RuntimeError
    ├── NotSupportedError                      0x10   RuntimeError
    ├── InvalidArgumentError                   0x12   ValueError
    ├── InvalidTypeError                       0x13   TypeError
    ├── OperatorMissingError                   0x14   LookupError
    ├── NotFoundError                          0x20   LookupError
    │   └── BackendMissingError                0x20
    ├── MemoryAllocationFailedError            0x21   MemoryError
    ├── AccessFailedError                      0x22   OSError
    │   ├── ProgramNotFoundError               0x22   FileNotFoundError
    │   ├── ProgramIsADirectoryError           0x22   IsADirectoryError
    │   └── ProgramPermissionError             0x22   PermissionError
    ├── InvalidProgramError                    0x23   ValueError
    ├── InvalidExternalDataError               0x24   ValueError
    ├── OutOfResourcesError                    0x25   RuntimeError
    ├── DelegateInvalidCompatibilityError      0x30   RuntimeError
    ├── DelegateMemoryAllocationFailedError    0x31   MemoryError
    └── DelegateInvalidHandleError             0x32   RuntimeError

The codes are ExecuTorch's (``runtime/core/error.h``); ``error.code`` is the number.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AccessFailedError",
    "BackendMissingError",
    "DelegateInvalidCompatibilityError",
    "DelegateInvalidHandleError",
    "DelegateMemoryAllocationFailedError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidExternalDataError",
    "InvalidProgramError",
    "InvalidStateError",
    "InvalidTypeError",
    "MemoryAllocationFailedError",
    "NotFoundError",
    "NotSupportedError",
    "OperatorMissingError",
    "OutOfResourcesError",
    "ProgramIsADirectoryError",
    "ProgramNotFoundError",
    "ProgramPermissionError",
    "PteronError",
]


class PteronError(Exception):
    """Base of every error that a user or a file can cause.

    ``message`` says what was found, what was allowed and where; ``hint``, if there is one,
    is the way out. Outer layers add context with :meth:`add_context`; the first text stays.
    ``problems`` are the errors that this one reports together, or empty if it is about one problem.
    """

    code: ClassVar[int] = 0x01

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.context: list[str] = []
        self.problems: tuple[PteronError, ...] = ()

    def add_context(self, line: str) -> None:
        """Add one line that says where in a larger task the error happened."""
        self.context.append(line)

    def __str__(self) -> str:
        lines = [self.message, *(f"  {line}" for line in self.context)]
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


class InternalError(PteronError, RuntimeError):
    """Report a bug of pteron itself."""

    code = 0x01


class InvalidStateError(PteronError, RuntimeError):
    """Refuse a call that the object's state does not allow (closed, or an input is not set)."""

    code = 0x02


class NotSupportedError(PteronError, RuntimeError):
    """Refuse what the program asks for and this machine or this caller cannot have."""

    code = 0x10


class InvalidArgumentError(PteronError, ValueError):
    """Refuse a caller's value, or name a value that a kernel refused."""

    code = 0x12


class InvalidTypeError(PteronError, TypeError):
    """Refuse a value of the wrong kind."""

    code = 0x13


class OperatorMissingError(PteronError, LookupError):
    """Name all operators of a method that no kernel implements."""

    code = 0x14


class NotFoundError(PteronError, LookupError):
    """Name a method, key, device or backend that is not there."""

    code = 0x20


class BackendMissingError(NotFoundError):
    """Name a delegate that no registered backend runs."""


class MemoryAllocationFailedError(PteronError, MemoryError):
    """Report bytes asked for, bytes free and the device."""

    code = 0x21


class AccessFailedError(PteronError, OSError):
    """Report a file that cannot be read."""

    code = 0x22


class ProgramNotFoundError(AccessFailedError, FileNotFoundError):
    """Name a path where there is no file."""


class ProgramIsADirectoryError(AccessFailedError, IsADirectoryError):
    """Name a path that is a folder."""


class ProgramPermissionError(AccessFailedError, PermissionError):
    """Name a path that this user cannot read."""


class InvalidProgramError(PteronError, ValueError):
    """Report what a program file holds that no program may hold.

    ``violations`` lists every independent problem that was found, one line each.
    """

    code = 0x23

    def __init__(
        self, message: str, *, hint: str | None = None, violations: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.violations = violations or (message,)


class InvalidExternalDataError(PteronError, ValueError):
    """Report what a data file (``.ptd``) holds that it may not hold."""

    code = 0x24


class OutOfResourcesError(PteronError, RuntimeError):
    """Report a limit that a file or a run went over."""

    code = 0x25


class DelegateInvalidCompatibilityError(PteronError, RuntimeError):
    """Report a delegate blob of a version that its backend does not read."""

    code = 0x30


class DelegateMemoryAllocationFailedError(PteronError, MemoryError):
    """Report memory that a delegate could not get."""

    code = 0x31


class DelegateInvalidHandleError(PteronError, RuntimeError):
    """Report a delegate that is not initialised or already closed."""

    code = 0x32
