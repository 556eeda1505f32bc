"""Memory for intermediate results, reused as soon as a result is no longer needed."""

from __future__ import annotations

from math import prod

import torch

from pteron.errors import DelegateMemoryAllocationFailedError

_ALIGNMENT = 64
_SMALL = 1 << 16


class BufferPool:
    """Owns blocks of memory on one device, and lends them to plans.

    A plan takes and gives back blocks in the order in which its calls run, so that two results
    share a block only if they are never needed together. All plans of one method instance use one
    pool: they take turns.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._free: list[torch.Tensor] = []
        self.nbytes = 0
        """Bytes of all blocks, lent or not."""

    def take(self, nbytes: int) -> torch.Tensor:
        """Lend a free block, or make one.

        The block that came back last is the likeliest to be in the processor's cache. One that is
        much too large is kept for what needs it.
        """
        for index in range(len(self._free) - 1, -1, -1):
            if nbytes <= self._free[index].numel() <= max(4 * nbytes, _SMALL):
                return self._free.pop(index)
        size = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        try:
            block = torch.empty(size, dtype=torch.uint8, device=self.device)
        except (RuntimeError, MemoryError) as error:
            raise DelegateMemoryAllocationFailedError(
                f"an XNNPACK delegate needs {size} bytes for one result on {self.device}, beside "
                f"{self.nbytes} bytes that it has: {str(error).splitlines()[0]}"
            ) from error
        self.nbytes += size
        return block

    def give_back(self, block: torch.Tensor) -> None:
        """Take a block back."""
        self._free.append(block)


class Block:
    """Counts who needs one result's memory; the last one gives it back to the pool.

    ``pool`` is None for memory that the pool does not hold: the caller's, a constant's, or what a
    call returned. Only the last of these is ``writable``.
    """

    __slots__ = ("memory", "pool", "users", "writable")

    def __init__(
        self,
        pool: BufferPool | None = None,
        memory: torch.Tensor | None = None,
        *,
        writable: bool = True,
    ) -> None:
        self.pool = pool
        self.memory = memory
        self.users = 0
        self.writable = writable

    def release(self) -> None:
        """Count one user less."""
        self.users -= 1
        if self.users == 0 and self.pool is not None and self.memory is not None:
            self.pool.give_back(self.memory)
            self.memory = None


def shaped(memory: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return the beginning of a block as a dense tensor."""
    return memory[: prod(shape) * dtype.itemsize].view(dtype).view(shape)
