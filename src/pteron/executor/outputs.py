"""A method's values to the caller's outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import dlpack

from pteron.executor.evalue import ValueTable
from pteron.format.schema import Tensor, TensorShapeDynamism
from pteron.memory.device_allocator import find_device_allocator
from pteron.memory.hierarchical_allocator import (
    dense_strides,
    fixed_slot,
    on_device,
    torch_dtype,
    typed,
)


class Outputs:
    """Hands out what a run left in a method's outputs.

    A planned output is copied, so that it is the caller's own. One without a place in the plan is
    handed over as it is, and the next run writes into fresh memory. Borrowed outputs are not
    copied, unless they are constants of the program; the next run of the method, or of one that
    shares its scratch, overwrites them.
    """

    def __init__(self, table: ValueTable, file_memory: frozenset[int] = frozenset()) -> None:
        """Take the values, and those that passes have made views of constants."""
        self._table = table
        self._of_file = file_memory | table.constants
        """Outputs whose memory is the file's: borrowed or not, the caller gets a copy."""
        self._indices = table.plan.outputs
        self._owned = _handed_over(table)
        self._refill: dict[int, Callable[[], None]] = {}
        """How to give an output fresh memory, for each that was handed over since the last run."""

    def fix(self) -> None:
        """Copy every output from now on, so that the method writes to the same memory each time.

        Outputs without a place in the plan get one that cannot be resized: a delegate then copies
        its result into it, instead of re-pointing it.
        """
        self.prepare()
        for index in self._owned:
            self._fix(index)
        self._owned = frozenset()

    def _fix(self, index: int) -> None:
        value, device = self._table.plan.values[index], self._table.devices[index]
        assert isinstance(value, Tensor)
        assert device is not None
        allocator = find_device_allocator(device.type)
        assert allocator is not None
        with torch.inference_mode(mode=False):
            arena = allocator.empty((value.nbytes,), torch.uint8, device)
            fixed = typed(fixed_slot(arena, 0, value.nbytes), value)
            slot: torch.Tensor = self._table.values[index]
            slot.set_(fixed)  # type: ignore[call-overload]

    def prepare(self) -> None:
        """Give outputs that were handed over fresh memory; called before a run."""
        while self._refill:
            self._refill.popitem()[1]()

    def collect(self, *, borrow: bool) -> list[Any]:
        """Return the outputs of the run that has just ended."""
        outputs: list[Any] = []
        for index in self._indices:
            value = self._table.values[index]
            if not isinstance(value, torch.Tensor):
                outputs.append(list(value) if isinstance(value, list) else value)
            elif borrow and index not in self._of_file:
                outputs.append(borrowed(value))
            elif index in self._owned and index not in self._refill:
                outputs.append(value.detach())
                self._refill[index] = self._refiller(index, value)
            else:
                outputs.append(value.clone())
        return outputs

    def _refiller(self, index: int, slot: torch.Tensor) -> Callable[[], None]:
        value = self._table.plan.values[index]
        device = self._table.devices[index]
        assert isinstance(value, Tensor)
        assert device is not None

        def refill() -> None:
            allocator = find_device_allocator(device.type)
            assert allocator is not None
            if value.shape_dynamism is TensorShapeDynamism.DYNAMIC_UNBOUND:
                slot.set_(allocator.empty((0,), torch_dtype(value), device))  # type: ignore[call-overload]
                return
            fresh = allocator.empty((value.numel,), torch_dtype(value), device)
            strides = dense_strides(value.sizes, value.dim_order)
            slot.set_(fresh.as_strided(value.sizes, strides))  # type: ignore[call-overload]

        return refill


def _handed_over(table: ValueTable) -> frozenset[int]:
    """Return the outputs whose memory nothing else in the method shares."""
    plan = table.plan
    aliased: set[int] = set(plan.inputs)
    graph = table.memory_plan.graph
    for step in graph.accesses:
        if step.aliases:
            aliased.update(step.writes)
            aliased.update(step.reads)
    aliased.update((*graph.repeats, *graph.repeats.values()))
    return frozenset(
        index
        for index in plan.outputs
        if table.is_tensor(index)
        and not table.is_planned(index)
        and index not in table.constants
        and index not in table.state
        and index not in table.moved
        and index not in aliased
    )


def borrowed(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor over the same memory that autograd takes for an ordinary one."""
    if not value.is_inference():
        return value.detach()
    try:
        with on_device(value.device):
            return dlpack.from_dlpack(value)
    except (RuntimeError, BufferError, TypeError):  # an element type that DLPack does not know
        return value.detach()
