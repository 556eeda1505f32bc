"""An accelerator that is host memory with a name on it.

It says what an accelerator would say, and writes down what was asked of it. So a program whose
memory is planned on ``cuda`` loads and runs on a machine that has none, and a test can see where
each value lies.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from pteron.errors import MemoryAllocationFailedError
from pteron.memory.device_allocator import DeviceAllocator

GARBAGE = 0xA5
"""What fresh memory holds: memory of a device is not zero either."""


@dataclass(frozen=True)
class Block:
    """One piece of memory: where it says that it is, and where it is."""

    device: str
    begin: int
    nbytes: int
    kind: str
    """``arena``, ``tensor`` (an output or constant that is nobody's plan) or ``pinned``."""

    @property
    def end(self) -> int:
        return self.begin + self.nbytes


class TaggedDevice(DeviceAllocator):
    """Hands out host memory as the memory of a device of one kind.

    A copy to the host lands at :meth:`synchronize`, as on a device whose copies are asynchronous.
    ``late`` says that the device does nothing at all before that: it reads the host's memory when
    the host may have gone on.
    """

    def __init__(
        self,
        device_type: str = "cuda",
        *,
        count: int = 2,
        capacity: int = 1 << 30,
        pins: bool = True,
        late: bool = False,
    ) -> None:
        self.device_type = device_type
        self.count = count
        self.capacity = capacity
        self.pins = pins
        self.late = late
        self.requests: list[Block] = []
        """Every piece of memory that was handed out, in order."""
        self.copies: list[tuple[str, int]] = []
        """Every copy: ``h2d`` or ``d2h``, and its bytes."""
        self.synchronized: list[str] = []
        self._live: dict[int, Block] = {}
        self._pending: list[Callable[[], object]] = []

    # -- what an allocator does ----------------------------------------------------------------

    def is_available(self, device: torch.device) -> bool:
        return (device.index or 0) < self.count

    def allocate(self, nbytes: int, device: torch.device) -> torch.Tensor:
        return self._give(nbytes, device, "arena")

    def empty(self, sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        count = int(np.prod(tuple(sizes), dtype=np.int64))
        return self._give(count * dtype.itemsize, device, "tensor").view(dtype).view(tuple(sizes))

    def memory_info(self, device: torch.device) -> tuple[int, int] | None:
        return self.capacity - self.live_bytes(str(device)), self.capacity

    def copy_host_to_device(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        self.copies.append(("h2d", source.nbytes))
        self.enqueue(partial(destination.copy_, source))

    def copy_device_to_host(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        self.copies.append(("d2h", source.nbytes))
        found = source if self.late else source.clone()
        self._pending.append(lambda: destination.copy_(found))

    def synchronize(self, device: torch.device) -> None:
        self.synchronized.append(str(device))
        while self._pending:
            self._pending.pop(0)()

    def enqueue(self, work: Callable[[], object]) -> None:
        """Do some work of the device, at its time."""
        if self.late:
            self._pending.append(work)
        else:
            work()

    def allocate_pinned(self, nbytes: int) -> torch.Tensor | None:
        return self._give(nbytes, torch.device("cpu"), "pinned") if self.pins else None

    # -- what a test sees ----------------------------------------------------------------------

    @property
    def arenas(self) -> list[tuple[str, int]]:
        """Device and bytes of every planned buffer that was asked for."""
        return [(block.device, block.nbytes) for block in self.requests if block.kind == "arena"]

    @property
    def live(self) -> list[Block]:
        """What was not given back."""
        return list(self._live.values())

    def live_bytes(self, device: str | None = None) -> int:
        """Return the bytes that were not given back, of one device or of all but the host."""
        return sum(
            block.nbytes
            for block in self._live.values()
            if block.kind != "pinned" and device in (None, block.device)
        )

    def place(self, tensor: torch.Tensor) -> str:
        """Return the device whose memory a tensor lies in, ``cpu`` if it is none of ours."""
        begin = tensor.data_ptr()
        for block in self._live.values():
            if block.begin <= begin and begin + tensor.nbytes <= block.end and block.nbytes:
                return block.device
        return "cpu"

    def block(self, tensor: torch.Tensor) -> Block | None:
        """Return the piece of memory that a tensor lies in."""
        for block in self._live.values():
            if block.begin <= tensor.data_ptr() < block.end:
                return block
        return None

    def _give(self, nbytes: int, device: torch.device, kind: str) -> torch.Tensor:
        free = self.capacity - self.live_bytes(str(device))
        if kind != "pinned" and nbytes > free:
            raise MemoryAllocationFailedError(
                f"{device} has {free:,} of {self.capacity:,} bytes free; {nbytes:,} were asked for"
            )
        memory = np.full(nbytes, GARBAGE, dtype=np.uint8)
        block = Block(str(device), memory.ctypes.data, nbytes, kind)
        self.requests.append(block)
        number = len(self.requests)
        self._live[number] = block
        weakref.finalize(memory, self._live.pop, number, None)
        return torch.from_numpy(memory) if nbytes else torch.empty(0, dtype=torch.uint8)
