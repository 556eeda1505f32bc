"""What the passes over one method's instructions share, and what they leave behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import torch

from pteron.backends.interface import DelegateHandle
from pteron.executor.bind_kernel import KernelBinder
from pteron.executor.evalue import ValueTable
from pteron.executor.nodes import Node
from pteron.format.schema import DelegateCall, Tensor
from pteron.kernels.registry import Kernel, Style
from pteron.memory.hierarchical_allocator import HierarchicalAllocator
from pteron.program.graph import Graph


class Reason(Enum):
    """Why an instruction need not run."""

    FOLDED = "its result never changes and was computed at load"
    VIEW = "it makes a view of memory that never moves, which was made at load"
    COPY = "it copies what its readers can read where it is"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One instruction that does not run, by which pass and why."""

    instruction: int
    pass_name: str
    reason: Reason
    detail: str = ""

    def __str__(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.pass_name}: {self.reason.value}{detail}"


class Lowering:
    """The instructions of one method instance on their way to calls. Views the value table."""

    def __init__(
        self,
        table: ValueTable,
        nodes: Sequence[Node],
        allocator: HierarchicalAllocator,
        delegates: Mapping[int, DelegateHandle],
    ) -> None:
        self.table = table
        self.plan = table.plan
        self.graph: Graph = table.memory_plan.graph
        self.allocator = allocator
        self.binder = KernelBinder(table)
        self._all_nodes = tuple(nodes)
        self.nodes = list(nodes)
        """Those that still run, in order."""
        self.left_out: dict[int, LeftOut] = {}
        self.file_memory: set[int] = set()
        """Values that became views of constants: their memory is the file's."""
        self._delegates = delegates

    def leave_out(self, node: Node, pass_name: str, reason: Reason, detail: str = "") -> None:
        """Note that an instruction does not run; :meth:`drop_left_out` removes it."""
        self.left_out[node.number] = LeftOut(node.number, pass_name, reason, detail)

    def drop_left_out(self) -> None:
        """Remove the instructions that were noted."""
        self.nodes = [node for node in self.nodes if node.number not in self.left_out]

    # -- who uses a value --------------------------------------------------------------------------

    @cached_property
    def writers(self) -> dict[int, list[int]]:
        """The instructions that may write each value; a delegate, unless its handle says not."""
        found: dict[int, list[int]] = {}
        for node in self._all_nodes:
            changed = (*node.access.writes, *node.access.updates)
            if isinstance(node.instruction, DelegateCall):
                changed = self._changed_by(node.instruction)
            for index in changed:
                found.setdefault(index, []).append(node.number)
        return found

    def _changed_by(self, call: DelegateCall) -> tuple[int, ...]:
        positions = self._delegates[call.delegate_index].changes
        if positions is None:
            return call.args
        return tuple(call.args[p] for p in positions if p < len(call.args))

    @cached_property
    def nodes_by_number(self) -> dict[int, Node]:
        """All instructions by number, those that were left out included."""
        return {node.number: node for node in self._all_nodes}

    @cached_property
    def _dense_readers(self) -> frozenset[int]:
        """The values that some reader wants dense, as the plan lays them out."""
        found: set[int] = set()
        for node in self._all_nodes:
            kernel = node.kernel
            if isinstance(node.instruction, DelegateCall) or kernel is None:
                found.update(node.access.reads)
            elif kernel.style is not Style.VIEW:
                found.update(
                    item
                    for position, index in enumerate(node.args[: kernel.num_inputs])
                    if kernel.is_dense(position)
                    for item in self.table.items(index)
                )
        return frozenset(found)

    @cached_property
    def views(self) -> dict[int, list[int]]:
        """The values that lie in each value's memory: its ``et_view`` results and silent views."""
        found: dict[int, list[int]] = {}
        for node in self._all_nodes:
            if node.kernel is not None and node.kernel.style is Style.VIEW:
                found.setdefault(node.args[0], []).append(node.args[-1])
        for view, source in self.graph.view_sources.items():
            found.setdefault(source, []).append(view)
        for value, argument in self.graph.repeats.items():
            found.setdefault(argument, []).append(value)
        return found

    def family(self, index: int) -> Iterator[int]:
        """Yield a value and all that lies in its memory by the file's own word."""
        pending = [index]
        seen = {index}
        while pending:
            one = pending.pop()
            yield one
            for view in self.views.get(one, ()):
                if view not in seen:
                    seen.add(view)
                    pending.append(view)

    def is_wanted_dense(self, index: int) -> bool:
        """Whether a reader of a value, or of a view of it, wants it as the plan lays it out."""
        return any(member in self._dense_readers for member in self.family(index))

    # -- what can be decided at load ---------------------------------------------------------------

    def is_computed(self, node: Node) -> Kernel | None:
        """Return the kernel of a call that computes one planned tensor of fixed shape."""
        kernel = node.kernel
        if kernel is None or kernel.style not in (Style.OUT, Style.FUNCTIONAL):
            return None
        if len(kernel.out_names) != 1:
            return None
        out = node.args[kernel.num_inputs]
        table = self.table
        if not table.is_tensor(out) or not table.is_static(out) or not table.is_planned(out):
            return None
        return kernel

    def has_fixed_numbers(self, node: Node, kernel: Kernel, first: int = 0) -> bool:
        """Whether the inputs from ``first`` on that are no tensors never change."""
        written = self.graph.scalars_written | self.table.scalars_written
        for index in node.args[first : kernel.num_inputs]:
            for item in self.table.items(index):
                if not self.table.is_tensor(item) and item in written:
                    return False
        return True

    def tensor(self, index: int) -> torch.Tensor:
        """Return the tensor of a value."""
        found = self.table.values[index]
        assert isinstance(found, torch.Tensor)
        return found

    def planned_slot(self, index: int) -> torch.Tensor:
        """Return a tensor over the planned bytes of a value, which may have left them."""
        value = self.plan.values[index]
        assert isinstance(value, Tensor)
        return self.allocator.slot(self.table.memory_plan.slots[index], value)

    def sizes(self, index: int) -> tuple[int, ...]:
        """Return the planned sizes of a tensor value."""
        value = self.plan.values[index]
        assert isinstance(value, Tensor)
        return value.sizes


def lies_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape have the same strides where strides matter."""
    if one.shape != other.shape:
        return False
    return all(
        size <= 1 or a == b
        for size, a, b in zip(one.shape, one.stride(), other.stride(), strict=True)
    )


def share_memory(view: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether a view really lies in its source's memory: reshaping may have made a copy."""
    return view.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
