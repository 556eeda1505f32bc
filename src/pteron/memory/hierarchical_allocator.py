"""A method's arenas, and the slots in them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch.utils import dlpack

from pteron.format.schema import Tensor
from pteron.program.slots import PlannedSlot


def torch_dtype(tensor: Tensor) -> torch.dtype:
    """Return torch's name for the element type of a tensor value."""
    dtype = getattr(torch, tensor.scalar_type.torch_name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def dense_strides(sizes: Sequence[int], dim_order: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a dense tensor whose dimensions lie in ``dim_order``."""
    strides = [1] * len(sizes)
    step = 1
    for dim in reversed(dim_order):
        strides[dim] = step
        step *= max(sizes[dim], 1)
    return tuple(strides)


def fixed_slot(arena: torch.Tensor, offset: int, nbytes: int) -> torch.Tensor:
    """Return bytes ``offset`` to ``offset + nbytes`` as a tensor that cannot grow.

    A plain slice shares the arena's storage, and an out variant that outgrows it would write over
    its neighbour in silence. A tensor imported through DLPack has a storage of its own, of just
    these bytes, that torch will not resize (DESIGN, P8). Views and keeps alive the arena.
    """
    with on_device(arena.device):  # DLPack exports from the current device only
        return dlpack.from_dlpack(arena[offset : offset + nbytes])


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which a CUDA device is the current one; for others it does nothing."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def typed(flat: torch.Tensor, tensor: Tensor) -> torch.Tensor:
    """Return flat bytes as a tensor of the file's element type, sizes and dim order."""
    strides = dense_strides(tensor.sizes, tensor.dim_order)
    return flat.view(torch_dtype(tensor)).as_strided(tensor.sizes, strides)


@dataclass(frozen=True, slots=True)
class Arena:
    """Owns the memory of one planned buffer, or of one that several methods share."""

    memory: torch.Tensor
    device: torch.device
    shared: bool
    pinned: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes that were allocated."""
        return self.memory.numel()


class HierarchicalAllocator:
    """Hands out the slots of one method. Views arenas that the method or its program owns."""

    def __init__(self, arenas: dict[int, Arena]) -> None:
        self.arenas = arenas

    def slot(self, planned: PlannedSlot, tensor: Tensor) -> torch.Tensor:
        """Return the tensor over exactly the planned bytes of a value."""
        arena = self.arenas[planned.buffer]
        return typed(fixed_slot(arena.memory, planned.offset, planned.nbytes), tensor)
