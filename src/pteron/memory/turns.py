"""Turns: who may use memory that methods share, and what became of what they left in it.

Lock order: a method's turn, then the program's lock (``Program._lock``), then the memory's load
lock. No lock is taken against it, and none of them is held while a method is closed.
"""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType
from typing import Any

from pteron.errors import InvalidStateError


class ForkSafeLock:
    """A lock that one thread may take several times, and that a forked child finds free.

    A child has only the thread that forked: a lock that another thread held would stay taken.
    """

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock, as ``threading.RLock`` does."""
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        """Give it back."""
        self._lock.release()

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Forget who held the lock."""
        self._lock = threading.RLock()


class Turn(ForkSafeLock):
    """The lock of one memory, who is running on it, and how often it was written.

    ``with turn:`` waits for other threads. Calls that begin inside a run of the same thread do not
    wait, and are refused by :meth:`begin`.
    """

    __slots__ = ("running", "streams", "writes", "written_by")

    def __init__(self) -> None:
        super().__init__()
        self.running: str | None = None
        """The method that is running now."""
        self.writes = 0
        """How often inputs were given to a method on this memory, or one ran."""
        self.written_by = ""
        """The method that wrote last."""
        self.streams: dict[Any, Any] = {}
        """The stream of the last turn on each device (:mod:`pteron.memory.device_order`)."""

    def write(self, method: str) -> int:
        """Note that a method is about to write to the memory; return the new count.

        Raises:
            InvalidStateError: A method is running: this call came from a kernel, an observer or a
                callback inside of it.

        """
        if self.running is not None:
            raise InvalidStateError(
                f"method {method!r} was called inside a run of method {self.running!r}, whose "
                "memory it shares",
                hint="give it memory of its own with program.new_method",
            )
        self.writes += 1
        self.written_by = method
        return self.writes

    def renew(self) -> None:
        """Forget who held the turn, and what was running."""
        super().renew()
        self.running = None


_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_locks):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
