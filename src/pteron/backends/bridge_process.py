"""A process of its own for delegates that only native code can read.

What executorch's backends do with a damaged blob is up to them: some end the process. Here that is
the worker's process, and an error in ours.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final

import torch

from pteron import limits
from pteron.backends.bridge_frames import (
    PIECES,
    FrameError,
    FrameReader,
    drop,
    pack,
    pack_tensors,
    unpack_tensors,
)
from pteron.errors import NotSupportedError, OutOfResourcesError

_START: Final = (
    "import sys; sys.path[:] = sys.argv[3:]; from pteron.backends.bridge_worker import main; "
    "main(int(sys.argv[1]), int(sys.argv[2]))"
)
_SAID_BYTES: Final = 2_000
_CHUNK_BYTES: Final = 1 << 16
_WAIT_SECONDS: Final = 10.0
_NO_SIGNAL: Final = getattr(socket, "MSG_NOSIGNAL", 0)
"""A worker that is gone must not end us with SIGPIPE, which some programs do not ignore."""


class WorkerEndedError(Exception):
    """Say how the worker ended, and what it wrote last."""


class Worker:
    """Owns a process that runs delegates, and the connection to it.

    It ends when it is closed, collected or left behind by our own end, however sudden.
    """

    def __init__(self) -> None:
        if os.name != "posix" or not sys.executable:
            raise NotSupportedError(
                "a process of its own for executorch cannot be started here: "
                + ("sys.executable is not set" if os.name == "posix" else f"this is {os.name}")
            )
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._said = b""
        self._reason: str | None = None
        self._reader = FrameReader(max_text_bytes=limits.MAX_BRIDGE_ANSWER_BYTES)
        self._poll = select.poll()
        try:
            self._start()
        except OSError as error:
            raise OutOfResourcesError(
                f"a process of its own for executorch cannot be started: {error}"
            ) from error

    def _start(self) -> None:
        with ExitStack() as theirs, ExitStack() as ours:
            self._socket, their_socket = socket.socketpair()
            theirs.callback(their_socket.close)
            ours.callback(self._socket.close)
            their_lifeline, lifeline = os.pipe()
            theirs.callback(os.close, their_lifeline)
            ours.callback(os.close, lifeline)
            self._words, their_words = os.pipe()
            theirs.callback(os.close, their_words)
            ours.callback(os.close, self._words)
            self._socket.setblocking(False)
            os.set_blocking(self._words, False)
            self._poll.register(self._words, select.POLLIN)
            fds = (their_socket.fileno(), their_lifeline)
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, *map(str, (*fds, *sys.path))],
                stdin=subprocess.DEVNULL,
                stdout=their_words,
                stderr=their_words,
                pass_fds=fds,
                start_new_session=True,  # a Ctrl-C at the terminal is ours alone
            )
            self._end = weakref.finalize(self, _end, self._owner, self._process, ours.pop_all())

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def ended(self) -> str | None:
        """How the process ended; None while it runs, as far as is known."""
        return self._reason

    def ask(
        self,
        request: dict[str, Any],
        payload: Sequence[memoryview | bytes] = (),
        *,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """Send a request and return the answer; raise WorkerEndedError if there is none."""
        return self._talk(pack(request, payload), 0, seconds)[0]

    def run(
        self, request: dict[str, Any], inputs: Sequence[torch.Tensor], output_bytes: int
    ) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """Send a request with tensors; return the answer and its tensors."""
        answer, payload = self._talk(pack_tensors(request, inputs), output_bytes, None)
        if "error" in answer:
            return answer, []
        try:
            return answer, unpack_tensors(answer, payload)
        except FrameError as error:
            self.stop(f"was stopped: its answer cannot be read ({error})")
            raise WorkerEndedError(self._reason) from error

    def said(self) -> str:
        """Return the end of what the process has written to its stdout and stderr."""
        text = self._said.decode("utf-8", "replace").strip()
        return "".join(f"\n  {line}" for line in text.splitlines() if line.strip())

    def close(self) -> None:
        """End the process."""
        self.stop("was closed")

    # -- talking -------------------------------------------------------------------------------

    def _talk(
        self, pieces: list[memoryview], payload_bytes: int, seconds: float | None
    ) -> tuple[dict[str, Any], torch.Tensor]:
        if os.getpid() != self._owner:
            raise WorkerEndedError(f"belongs to process {self._owner}, which forked this one")
        with self._lock:
            if self._reason is not None:
                raise WorkerEndedError(self._reason)
            deadline = None if seconds is None else time.monotonic() + seconds
            try:
                return self._exchange(pieces, payload_bytes, deadline)
            except (ConnectionError, EOFError):
                self.stop(None)
            except TimeoutError:
                self.stop(f"was stopped after {seconds:g} s without an answer")
            except FrameError as error:
                self.stop(f"was stopped: its answer cannot be read ({error})")
            except BaseException:  # an interrupt: its answer would be taken for the next one's
                self.stop("was stopped: a call was interrupted")
                raise
            raise WorkerEndedError(self._reason)

    def _exchange(
        self, pieces: list[memoryview], payload_bytes: int, deadline: float | None
    ) -> tuple[dict[str, Any], torch.Tensor]:
        self._said = b""
        self._send(pieces, deadline)

        def receive(buffer: memoryview) -> int:
            self._wait(select.POLLIN, deadline)
            return self._socket.recv_into(buffer)

        answer = self._reader.read(receive, max_payload_bytes=payload_bytes)
        self._listen()
        return answer

    def _send(self, pieces: list[memoryview], deadline: float | None) -> None:
        while pieces:
            drop(pieces, self._send_some(pieces[:PIECES], deadline))

    def _send_some(self, pieces: list[memoryview], deadline: float | None) -> int:
        try:
            return self._socket.sendmsg(pieces, (), _NO_SIGNAL)
        except BlockingIOError:
            self._wait(select.POLLOUT, deadline)
            return 0

    def _wait(self, event: int, deadline: float | None) -> None:
        """Wait until the connection is ready. What the process writes meanwhile is read."""
        self._poll.register(self._socket, event)
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1_000
            ready = [fd for fd, _ in self._poll.poll(left)]
            if not ready:
                raise TimeoutError
            if self._words in ready:
                self._listen()
            if self._socket.fileno() in ready:
                return

    def _listen(self) -> None:
        """Read what the process has written, and keep its end."""
        with suppress(BlockingIOError):
            while chunk := os.read(self._words, _CHUNK_BYTES):
                self._said = (self._said + chunk)[-_SAID_BYTES:]
            with suppress(KeyError):  # nobody will write any more
                self._poll.unregister(self._words)

    # -- the end -------------------------------------------------------------------------------

    def stop(self, reason: str | None) -> None:
        """End the process. Without a reason it has ended by itself, and the reason is its own."""
        if self._reason is not None or not self._end.alive:
            return
        if reason is None:
            reason = _how_it_ended(self._process)
            self._listen()
        self._reason = reason
        self._end()


def _how_it_ended(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(_WAIT_SECONDS)
    except subprocess.TimeoutExpired:
        return "closed its connection"
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        return f"ended with {signal.Signals(-code).name}"
    except ValueError:
        return f"ended with signal {-code}"


def _end(owner: int, process: subprocess.Popen[bytes], ours: ExitStack) -> None:
    ours.close()
    if os.getpid() == owner:
        process.kill()
        process.wait()
    else:  # a fork of the owner: the worker is not its child, and not its to end
        process.returncode = 0
