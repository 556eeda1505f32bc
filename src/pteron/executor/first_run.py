"""Compare the shapes that instructions give with those that the plan has room for.

Static shapes are the same in every run, so each block is checked the first time it runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from pteron.errors import InvalidArgumentError
from pteron.executor.evalue import ValueTable
from pteron.executor.interpreter import Block, run, watched
from pteron.format.schema import DelegateCall, Tensor
from pteron.memory.hierarchical_allocator import dense_strides


class ShapeCheck:
    """Compares each instruction's static results with the plan (an Observer)."""

    def __init__(self, table: ValueTable) -> None:
        self._table = table
        self._plan = table.plan

    def before(self, instruction: int) -> None:
        """Do nothing."""

    def after(self, instruction: int) -> None:
        """Raise InvalidArgumentError if a result that is static has another shape than planned."""
        step = self._table.memory_plan.graph.accesses[instruction]
        changed = step.writes + step.updates
        if isinstance(self._plan.instructions[instruction], DelegateCall):
            changed = step.reads
        for index in changed:
            value = self._plan.values[index]
            if not isinstance(value, Tensor) or not self._table.is_static(index):
                continue
            shape = tuple(self._table.values[index].shape)
            if shape != value.sizes and index not in self._plan.inputs:
                raise InvalidArgumentError(
                    f"the result %{index} has shape {shape}; the program plans it static "
                    f"{value.sizes}"
                )


class FirstRuns:
    """Owns the blocks of a method, each of which is checked until it has run once."""

    def __init__(self, table: ValueTable, blocks: Sequence[Block]) -> None:
        self._checked = tuple(blocks)
        check = ShapeCheck(table)
        self._blocks = [watched(block, check) for block in blocks]
        self._left = set(range(len(self._blocks)))

    @property
    def done(self) -> bool:
        """Whether every block has run once."""
        return not self._left

    def run(self) -> None:
        """Run as ``interpreter.run`` does, and compare the static results of blocks that are new.

        A block that fails is checked again the next time.
        """
        with warnings.catch_warnings():
            # torch warns before the comparison can say it better.
            warnings.filterwarnings(
                "ignore", message="An output with one or more elements was resized"
            )
            run(self._blocks, self._finished)

    def _finished(self, number: int) -> None:
        if number in self._left:
            self._left.discard(number)
            self._blocks[number] = self._checked[number]


def repair(table: ValueTable) -> None:
    """Give planned shapes back to tensors that a failed instruction left larger than their memory.

    torch sets an out tensor's shape before it finds that the storage cannot grow; such a tensor
    would be read past its end.
    """
    for index, value in enumerate(table.plan.values):
        if not isinstance(value, Tensor):
            continue
        tensor: torch.Tensor = table.values[index]
        if _end_bytes(tensor) > tensor.untyped_storage().nbytes() or (
            table.is_static(index) and table.is_planned(index) and tensor.shape != value.sizes
        ):
            tensor.resize_(0)
            strides = dense_strides(value.sizes, value.dim_order)
            if tensor.untyped_storage().nbytes() >= (
                (tensor.storage_offset() + value.numel) * value.scalar_type.itemsize
            ):
                tensor.as_strided_(value.sizes, strides)


def _end_bytes(tensor: torch.Tensor) -> int:
    """Return where in its storage a tensor's last element ends."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (int(tensor.storage_offset()) + last + 1) * tensor.element_size()
