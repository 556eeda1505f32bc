"""Every error that a user or a file can cause.

    PteronError                                code   also a
    ├── InternalError                          0x01   RuntimeError
    ├── InvalidStateError                      0x02   RuntimeError
    ├── NotSupportedError                      0x10   RuntimeError
    │   ├── NotSupportedShapeError             0x10   ValueError
    │   └── PackageMissingError                0x10   ImportError
    ├── InvalidArgumentError                   0x12   ValueError
    │   └── MetadataIndexError                 0x12   IndexError
    ├── InvalidTypeError                       0x13   TypeError
    ├── OperatorMissingError                   0x14   LookupError
    ├── NotFoundError                          0x20   KeyError
    │   ├── BackendMissingError                0x20
    │   └── DeviceMissingError                 0x20
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
``error.message`` is what happened, and ``error.hint`` what to do about it, or None. An
AccessFailedError has the ``filename`` and ``errno`` of an OSError.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "AccessFailedError",
    "BackendMissingError",
    "DelegateInvalidCompatibilityError",
    "DelegateInvalidHandleError",
    "DelegateMemoryAllocationFailedError",
    "DeviceMissingError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidExternalDataError",
    "InvalidProgramError",
    "InvalidStateError",
    "InvalidTypeError",
    "MemoryAllocationFailedError",
    "MetadataIndexError",
    "NotFoundError",
    "NotSupportedError",
    "NotSupportedShapeError",
    "OperatorMissingError",
    "OutOfResourcesError",
    "PackageMissingError",
    "ProgramIsADirectoryError",
    "ProgramNotFoundError",
    "ProgramPermissionError",
    "PteronError",
]


class PteronError(Exception):
    """Base of every error that a user or a file can cause.

    ``message`` says what was found, what is allowed and where; ``hint`` says what to do, or is
    None. Outer layers add context with :meth:`add_context`; the first text stays. ``problems`` are
    the errors that this one reports together, or empty if it is about one problem.
    """

    code: ClassVar[int] = 0x01
    """ExecuTorch's number for this kind of error."""

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


class NotSupportedShapeError(NotSupportedError, ValueError):
    """Refuse an input of a shape that the program was not exported for."""


class PackageMissingError(NotSupportedError, ImportError):
    """Name a package that is not installed."""


def missing_package(error: ModuleNotFoundError, what: str) -> ImportError:
    """Return the error for a package that ``what`` needs; one of pteron's own is our bug."""
    package = (error.name or "").partition(".")[0]
    if not package or package == "pteron":
        return error
    return PackageMissingError(
        f"{what} needs the package {package}",
        hint=f"pip install {_PIP_NAMES.get(package, package)}",
    )


_PIP_NAMES = {"PIL": "pillow"}


class InvalidArgumentError(PteronError, ValueError):
    """Refuse a caller's value, or name a value that a kernel refused."""

    code = 0x12


class MetadataIndexError(InvalidArgumentError, IndexError):
    """Refuse an index that no input, output, attribute or buffer has."""


class InvalidTypeError(PteronError, TypeError):
    """Refuse a value of the wrong kind."""

    code = 0x13


class OperatorMissingError(PteronError, LookupError):
    """Name all operators of a method that no kernel implements."""

    code = 0x14


class NotFoundError(PteronError, KeyError):
    """Name a method, input, key, device or backend that does not exist."""

    code = 0x20


class BackendMissingError(NotFoundError):
    """Name a delegate that no registered backend runs."""


class DeviceMissingError(NotFoundError):
    """Name a device that this machine does not have."""

    def __init__(self, message: str, *, hint: str | None = None, device: str = "") -> None:
        super().__init__(message, hint=hint)
        self.device = device
        """The device, such as ``cuda:0``."""


class MemoryAllocationFailedError(PteronError, MemoryError):
    """Report bytes asked for, bytes free and the device."""

    code = 0x21


class AccessFailedError(PteronError, OSError):
    """Report a file that cannot be read or written.

    ``filename`` and ``errno`` are those of an OSError, or None.
    """

    code = 0x22

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        filename: str | None = None,
        errno: int | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.filename = filename
        self.errno = errno

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            _access_failed_again,
            (type(self), self.message, self.filename, self.errno),
            vars(self),
        )


class ProgramNotFoundError(AccessFailedError, FileNotFoundError):
    """Name a path where there is no file."""


class ProgramIsADirectoryError(AccessFailedError, IsADirectoryError):
    """Name a path that is a folder."""


class ProgramPermissionError(AccessFailedError, PermissionError):
    """Name a path that this user cannot read."""


def _access_failed_again(
    kind: type[AccessFailedError], message: str, filename: str | None, errno: int | None
) -> AccessFailedError:
    """Rebuild an error from a pickle: an OSError keeps two attributes outside of its dict."""
    return kind(message, filename=filename, errno=errno)


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
