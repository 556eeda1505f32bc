"""Device allocators: one small interface, one allocator per kind of device.

The names follow ExecuTorch's ``runtime/core/device_allocator.h``. An arena is a flat uint8 tensor
that owns its memory: it goes back to the device when the arena and all its slots are gone.
"""

from __future__ import annotations

import logging
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from pteron.errors import InvalidArgumentError, MemoryAllocationFailedError
from pteron.memory import cuda_runtime

logger = logging.getLogger("pteron")

ARENA_ALIGNMENT = 64
"""Bytes. Slots keep the alignment that the exporter planned relative to the arena's start."""


class DeviceAllocator(ABC):
    """Makes arenas on one kind of device, and copies between it and the host."""

    device_type: str
    """The kind of device, as torch names it: ``cpu``, ``cuda``, ..."""

    @abstractmethod
    def is_available(self, device: torch.device) -> bool:
        """Whether this machine has the device."""

    @abstractmethod
    def allocate(self, nbytes: int, device: torch.device) -> torch.Tensor:
        """Return an arena of ``nbytes`` bytes, or raise MemoryAllocationFailedError."""

    def empty(self, sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return an uninitialised tensor that is nobody's planned memory, such as an output."""
        return torch.empty(tuple(sizes), dtype=dtype, device=device)

    def memory_info(self, device: torch.device) -> tuple[int, int] | None:
        """Return the device's free and total bytes, or None if they cannot be had."""
        return None

    def copy_host_to_device(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Copy a host tensor to the device; both have one shape. The copy may be asynchronous."""
        destination.copy_(source, non_blocking=True)

    def copy_device_to_host(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Copy a device tensor to the host. Its bytes are there after :meth:`synchronize`."""
        destination.copy_(source, non_blocking=True)

    def synchronize(self, device: torch.device) -> None:  # noqa: B027 - the host never waits
        """Wait until the copies to the host that were begun are done."""

    def allocate_pinned(self, nbytes: int) -> torch.Tensor | None:
        """Return a host arena that copies to and from this device are fastest with, if any is."""
        return None


class HostAllocator(DeviceAllocator):
    """Makes host arenas. Pages that are never touched cost no memory."""

    device_type = "cpu"

    def is_available(self, device: torch.device) -> bool:
        return True

    def allocate(self, nbytes: int, device: torch.device) -> torch.Tensor:
        try:
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        except (RuntimeError, MemoryError) as error:
            raise MemoryAllocationFailedError(
                f"the host has no {nbytes:,} bytes for a planned buffer"
            ) from error


class TorchAllocator(DeviceAllocator):
    """Makes arenas with torch's own allocator, on any kind of device that torch knows."""

    def __init__(self, device_type: str) -> None:
        self.device_type = device_type

    def is_available(self, device: torch.device) -> bool:
        module = getattr(torch, self.device_type, None)
        if module is None or not hasattr(module, "is_available"):
            return self.device_type == "meta"
        count = module.device_count() if hasattr(module, "device_count") else 1
        return bool(module.is_available()) and (device.index or 0) < count

    def allocate(self, nbytes: int, device: torch.device) -> torch.Tensor:
        try:
            return torch.empty(nbytes, dtype=torch.uint8, device=device)
        except (RuntimeError, MemoryError) as error:
            raise MemoryAllocationFailedError(
                f"{device} has no {nbytes:,} bytes for a planned buffer"
            ) from error

    def synchronize(self, device: torch.device) -> None:
        module = getattr(torch, self.device_type, None)
        if module is not None and hasattr(module, "synchronize"):
            module.synchronize()


class CudaAllocator(DeviceAllocator):
    """Makes arenas with ``cudaMalloc``, so that what a method claimed is returned when it goes.

    torch's caching allocator would keep the memory for itself (DESIGN, P5). Host arenas that take
    part in copies are pinned (P9).
    """

    device_type = "cuda"

    def is_available(self, device: torch.device) -> bool:
        return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()

    def memory_info(self, device: torch.device) -> tuple[int, int] | None:
        free, total = torch.cuda.mem_get_info(device)
        return int(free), int(total)

    def allocate(self, nbytes: int, device: torch.device) -> torch.Tensor:
        if nbytes == 0:
            return torch.empty(0, dtype=torch.uint8, device=device)
        with torch.cuda.device(device):
            torch.cuda.current_stream()
            pointer = cuda_runtime.malloc(nbytes)
            if pointer is None:
                # What torch only caches is free memory to a user: give it back and try once more.
                torch.cuda.empty_cache()
                pointer = cuda_runtime.malloc(nbytes)
            if pointer is None:
                free, total = torch.cuda.mem_get_info(device)
                raise MemoryAllocationFailedError(
                    f"{device} has {free:,} of {total:,} bytes free; a planned buffer needs "
                    f"{nbytes:,} bytes"
                )
            return torch.as_tensor(_CudaBlock(pointer, nbytes, device), device=device)

    def synchronize(self, device: torch.device) -> None:
        torch.cuda.current_stream(device).synchronize()

    def allocate_pinned(self, nbytes: int) -> torch.Tensor | None:
        try:
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise MemoryAllocationFailedError(
                f"the host has no {nbytes:,} bytes of pinned memory for a planned buffer"
            ) from error


class _CudaBlock:
    """Owns one ``cudaMalloc`` block; torch tensors made from it keep it alive."""

    def __init__(self, pointer: int, nbytes: int, device: torch.device) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "strides": None,
            "version": 3,
        }
        weakref.finalize(self, cuda_runtime.free, pointer, device.index or 0).atexit = False


_registry: dict[str, DeviceAllocator] = {"cpu": HostAllocator(), "cuda": CudaAllocator()}
_registry_lock = threading.Lock()


def register_device_allocator(allocator: DeviceAllocator, *, replace: bool = False) -> None:
    """Make an allocator the one for its kind of device.

    A kind has one allocator; a second is refused unless ``replace`` says so.
    """
    with _registry_lock:
        if allocator.device_type in _registry and not replace:
            raise InvalidArgumentError(
                f"device type {allocator.device_type!r} already has an allocator",
                hint="pass replace=True to put another in its place",
            )
        _registry[allocator.device_type] = allocator


def find_device_allocator(device_type: str) -> DeviceAllocator | None:
    """Return the allocator for a kind of device, or None if torch does not know the kind."""
    with _registry_lock:
        allocator = _registry.get(device_type)
        if allocator is None and hasattr(torch, device_type):
            allocator = _registry[device_type] = TorchAllocator(device_type)
        return allocator


@contextmanager
def device_allocator(allocator: DeviceAllocator) -> Iterator[DeviceAllocator]:
    """Use an allocator for its kind of device inside a ``with`` block, then the one before it."""
    with _registry_lock:
        before = _registry.get(allocator.device_type)
        _registry[allocator.device_type] = allocator
    try:
        yield allocator
    finally:
        with _registry_lock:
            if before is None:
                del _registry[allocator.device_type]
            else:
                _registry[allocator.device_type] = before
