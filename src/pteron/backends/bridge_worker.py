"""The process that runs delegates in executorch's own runtime, for ``bridge_process``.

It may end at any time: what a blob makes the native code do happens here. It answers one frame with
one frame until the connection ends.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from importlib import import_module
from typing import Any

import torch

from pteron.backends.bridge_frames import (
    PIECES,
    FrameReader,
    drop,
    pack,
    pack_tensors,
    unpack_tensors,
)

_TEXT_BYTES = 4_000


def main(connection_fd: int, lifeline_fd: int) -> None:
    """Answer until the parent closes the connection or ends."""
    _end_with_the_parent(lifeline_fd)
    _leave_no_core_dump()
    connection = socket.socket(fileno=connection_fd)
    worker = _Worker(import_module("executorch.extension.pybindings._C"))
    reader = FrameReader()
    with suppress(ConnectionError, EOFError):  # the parent closed the connection, or is gone
        while True:
            _send(connection, worker.answer(*reader.read(connection.recv_into)))


def _end_with_the_parent(lifeline_fd: int) -> None:
    """Have the system end this process when the pipe's other end is closed.

    A call that never returns reads no connection, and may not let another Python thread run. The
    signal's default action needs neither.
    """
    import fcntl
    import select

    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(lifeline_fd, fcntl.F_GETFL)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, flags | os.O_ASYNC)
    if select.select([lifeline_fd], [], [], 0)[0]:  # it was closed before we asked for the signal
        raise SystemExit(0)


def _leave_no_core_dump() -> None:
    import resource

    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class _Worker:
    """Owns the programs that were loaded, by the parent's numbers."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._loaded: dict[int, tuple[Any, bytes]] = {}
        """Methods, and the bytes that they are made of: the runtime does not copy them."""

    def answer(self, request: dict[str, Any], payload: torch.Tensor) -> list[memoryview]:
        """Return the frame that answers a request."""
        backend_id = request["backend_id"]
        try:
            if request["do"] != "run" and not self._runtime._is_available(backend_id):
                return pack({"missing": True})
            if request["do"] == "load":
                self._load(request["key"], request["method"], payload)
            elif request["do"] == "run":
                return self._run(self._loaded[request["key"]][0], request, payload)
            return pack({})
        except (RuntimeError, LookupError) as error:
            return pack({"error": str(error)[:_TEXT_BYTES]})

    def _load(self, key: int, name: str, payload: torch.Tensor) -> None:
        self._loaded.pop(key, None)
        data = payload.numpy().tobytes()
        program = self._runtime._load_program_from_buffer(
            data, program_verification=self._runtime.Verification.InternalConsistency
        )
        self._loaded[key] = (program.load_method(name), data)

    def _run(self, method: Any, request: dict[str, Any], payload: torch.Tensor) -> list[memoryview]:
        method.set_inputs(unpack_tensors(request, payload))
        method.execute()
        return pack_tensors({}, method.get_outputs(clone_outputs=False))


def _send(connection: socket.socket, pieces: list[memoryview]) -> None:
    while pieces:
        sent = connection.sendmsg(pieces[:PIECES])
        drop(pieces, sent)
