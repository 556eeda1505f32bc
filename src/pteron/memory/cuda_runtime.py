"""The few calls of the CUDA runtime that torch does not offer, in the library torch has loaded."""

from __future__ import annotations

import ctypes
import threading
import weakref
from pathlib import Path
from typing import Any

import torch

from pteron.errors import InternalError, NotFoundError

_NON_BLOCKING = 1
"""cudaStreamNonBlocking (``driver_types.h``)."""

_lock = threading.Lock()
_library: Any = None


def _runtime() -> Any:
    """Return the CUDA runtime that torch has loaded in this process."""
    global _library
    with _lock:
        if _library is None:
            torch.cuda.init()  # type: ignore[no-untyped-call]
            library = ctypes.CDLL(_loaded_library("libcudart.so"))
            library.cudaMalloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
            library.cudaFree.argtypes = [ctypes.c_void_p]
            library.cudaStreamCreateWithFlags.argtypes = [
                ctypes.POINTER(ctypes.c_void_p),
                ctypes.c_uint,
            ]
            library.cudaStreamDestroy.argtypes = [ctypes.c_void_p]
            _library = library
        return _library


def _loaded_library(prefix: str) -> str:
    with Path("/proc/self/maps").open(encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if path.rpartition("/")[2].startswith(prefix):
                return "/" + path
    raise NotFoundError(f"torch has not loaded {prefix}: no CUDA runtime to allocate with")


def malloc(nbytes: int) -> int | None:
    """Return the address of memory on the current device, or None if there is not enough."""
    pointer = ctypes.c_void_p()
    runtime = _runtime()
    if runtime.cudaMalloc(ctypes.byref(pointer), nbytes) != 0:
        runtime.cudaGetLastError()  # an out-of-memory error must not stay behind for torch to find
        return None
    return pointer.value


def free(pointer: int, index: int) -> None:
    """Give memory of device ``index`` back."""
    with torch.cuda.device(index):
        _runtime().cudaFree(pointer)


class OwnStream:
    """Borrows a CUDA stream that nobody else uses; torch's own streams come from a pool of 32.

    A stream that torch was given is never destroyed: torch keeps memory by the stream's address. It
    is kept for the next who asks.
    """

    def __init__(self, device: torch.device) -> None:
        index = device.index or 0
        with _streams_lock:
            idle = _idle_streams.setdefault(index, [])
            self.stream = idle.pop() if idle else _new_stream(device)
        weakref.finalize(self, idle.append, self.stream).atexit = False


_idle_streams: dict[int, list[torch.cuda.Stream]] = {}
_streams_lock = threading.Lock()


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    pointer = ctypes.c_void_p()
    with torch.cuda.device(device):
        code = _runtime().cudaStreamCreateWithFlags(ctypes.byref(pointer), _NON_BLOCKING)
    if code != 0 or pointer.value is None:
        raise InternalError(f"{device}: cudaStreamCreateWithFlags failed with code {code}")
    return torch.cuda.ExternalStream(pointer.value, device)  # type: ignore[no-untyped-call]
