"""Copies that a plan makes of a view, left out where the view itself will do.

An exported program has no views: what was ``x.permute(...)`` in the model is a copy of ``x`` into a
slot of its own. Such a copy is not needed if the bytes under the view stay as they are until the
last use of the copy. They do

- where they are, if the plan gives them to nothing else until then, or
- in the slot of the copy, if the plan gives that to nothing else since ``x`` is computed: then
  ``x`` is computed there at once.

Only methods that run straight through are changed, and only values that nothing but kernels use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pteron.executor.bind_kernel import KernelBinder
from pteron.executor.evalue import ValueTable
from pteron.format.schema import (
    DelegateCall,
    Instruction,
    IntList,
    JumpFalseCall,
    KernelCall,
    MoveCall,
    Tensor,
)
from pteron.kernels.aten_tables import FAST, FAST_NN
from pteron.kernels.aten_views import VIEWS
from pteron.kernels.registry import Kernel, OperatorRegistry, Style
from pteron.memory.hierarchical_allocator import HierarchicalAllocator
from pteron.program.dataflow import ET_VIEW, Access, expand, operator_name
from pteron.program.memory_plan import PlannedSlot

MAX_INSTRUCTIONS = 4_000
"""Longer methods are left as they are: looking for copies takes time that grows with the square."""

_PLAIN_STYLES = (Style.OUT, Style.FUNCTIONAL)

_COUNTS_IN_STORAGE = frozenset(
    {"as_strided_copy.out", "view_as_complex_copy.out", "view_copy.dtype_out"}
)
_TAKES_ANY_STRIDES = frozenset(
    f"aten::{name}" for name in (FAST | FAST_NN | frozenset(VIEWS)) - _COUNTS_IN_STORAGE
)
"""Operators whose results are known not to depend on how their arguments lie in memory."""


@dataclass
class _Tenant:
    """A value that lies in planned bytes from its first write to the last use of it or a view."""

    slot: PlannedSlot
    first: int
    last: int

    def meets(self, slot: PlannedSlot, first: int, last: int) -> bool:
        """Whether it needs some of the slot's bytes at some time from ``first`` to ``last``."""
        return (
            self.slot.offset < slot.end
            and slot.offset < self.slot.end
            and self.first <= last
            and self.last >= first
        )


class CopyElider:
    """Finds the copies of one method that can be left out, and re-points their values."""

    def __init__(
        self, table: ValueTable, registry: OperatorRegistry, allocator: HierarchicalAllocator
    ) -> None:
        self._table = table
        self._plan = table.plan
        self._registry = registry
        self._allocator = allocator
        self._binder = KernelBinder(table)
        self._bound: set[int] = set()
        """Views that lie in their source's memory by now."""
        self._loose: set[int] = set()
        """Views that are bound in each run."""
        self._family: dict[int, int] = {}
        """The value in whose memory an elided or viewed value lies."""

    def elide(self, folded: frozenset[int]) -> frozenset[int]:
        """Re-point what can be; return the instructions that need not run."""
        instructions = self._plan.instructions
        if len(instructions) > MAX_INSTRUCTIONS or any(
            isinstance(i, (JumpFalseCall, MoveCall)) for i in instructions
        ):
            return frozenset()
        self._look_around(folded)
        done = set()
        for number, kernel, call in self._calls(folded):
            if kernel.style is Style.VIEW:
                self._bind_view(call)
            elif kernel.view is not None and self._try(number, kernel, call):
                done.add(number)
        return frozenset(done)

    # -- what is known before --------------------------------------------------------------------

    def _look_around(self, folded: frozenset[int]) -> None:
        """Collect writers, last uses, views and tenants of all planned memory."""
        plan, end = self._plan, len(self._plan.instructions)
        self._writers: dict[int, list[int]] = {}
        self._views: dict[int, list[int]] = {}
        self._uses: dict[int, list[tuple[int, bool]]] = {}
        self._dense: set[int] = set()
        self._fixed: set[int] = set(plan.outputs) | set(plan.inputs) | set(self._table.state)
        first: dict[int, int] = dict.fromkeys((*plan.inputs, *self._table.state), -1)
        last: dict[int, int] = dict.fromkeys((*plan.outputs, *self._table.state), end)
        for number, instruction in enumerate(plan.instructions):
            if number in folded:
                continue
            step = self._table.memory_plan.steps[number]
            for index in (*step.writes, *step.updates):
                self._writers.setdefault(index, []).append(number)
            for index in (*step.reads, *step.writes, *step.updates):
                first.setdefault(index, number)
                last[index] = max(last.get(index, number), number)
            self._fixed.update(step.updates)
            for index in (*step.reads, *step.updates):
                self._uses.setdefault(index, []).append((number, False))
            for index in step.writes:
                self._uses.setdefault(index, []).append((number, True))
            self._note_kernel(number, instruction, step)
            if isinstance(instruction, DelegateCall):
                self._fixed.update(step.reads)
            elif isinstance(instruction, KernelCall):
                name = operator_name(plan, instruction)
                if name.startswith("et_copy::"):
                    self._fixed.update((*step.reads, *step.writes))
                if name == ET_VIEW:
                    source, view = instruction.args[0], instruction.args[-1]
                    self._views.setdefault(source, []).append(view)
                    self._family[view] = self._root(source)
        for alias, source in self._table.memory_plan.alias_sources.items():
            self._family[alias] = self._root(source)
            self._bound.add(alias)
        self._first, self._last = first, last
        for view in self._family:
            root = self._root(view)
            last[root] = max(last.get(root, -1), last.get(view, -1))
        self._tenants: dict[int, dict[int, _Tenant]] = {}
        for index, slot in self._table.memory_plan.slots.items():
            if index in first and index not in self._family:
                tenant = _Tenant(slot, first[index], last.get(index, first[index]))
                self._tenants.setdefault(slot.buffer, {})[index] = tenant
        for index in self._table.memory_plan.aliases:  # they read what lies there, at any time
            if index in self._table.memory_plan.alias_sources:
                continue
            slot = self._table.memory_plan.slots[index]
            self._tenants.setdefault(slot.buffer, {})[index] = _Tenant(slot, -1, end)

    def _note_kernel(self, number: int, instruction: Instruction, step: Access) -> None:
        """Note what an instruction's kernel changes beyond its results, and what it wants dense."""
        if isinstance(instruction, DelegateCall):
            return
        if not isinstance(instruction, KernelCall):
            self._dense.update(step.reads)
            return
        name = operator_name(self._plan, instruction)
        if name not in _TAKES_ANY_STRIDES and name != ET_VIEW:
            self._dense.update((*step.reads, *step.updates))
        kernel = self._registry.find(name)
        for position in kernel.mutated if kernel is not None else ():
            for index in expand(self._plan, instruction.args[position]):
                self._fixed.add(index)
                self._writers.setdefault(index, []).append(number)

    def _is_read_by_place(self, copy: int, number: int) -> bool:
        """Whether another value may read what the copy leaves in its slot."""
        plan, slot = self._table.memory_plan, self._slot(copy)
        known = {copy, *plan.aliases_of.get(copy, ()), *self._views.get(copy, ())}
        for index, other in plan.slots.items():
            if other.buffer != slot.buffer or index in known:
                continue
            if other.offset < slot.end and slot.offset < other.end:
                later = [whole for at, whole in self._uses.get(index, ()) if at > number]
                if (later and not later[0]) or index in self._table.state:
                    return True
        return False

    def _root(self, index: int) -> int:
        while index in self._family:
            index = self._family[index]
        return index

    def _calls(self, folded: frozenset[int]) -> Iterator[tuple[int, Kernel, KernelCall]]:
        plan = self._plan
        for number, instruction in enumerate(plan.instructions):
            if number in folded or not isinstance(instruction, KernelCall):
                continue
            kernel = self._registry.find(operator_name(plan, instruction))
            if kernel is None or len(instruction.args) != kernel.num_args:
                continue
            copies = kernel.style in _PLAIN_STYLES and len(kernel.out_names) == 1
            if kernel.style is Style.VIEW or copies:
                yield number, kernel, instruction

    def _bind_view(self, call: KernelCall) -> None:
        """Re-point the result of ``et_view`` now, so that views of it lie where its source lies."""
        source, view = call.args[0], call.args[-1]
        if self._is_plain_source(source) and self._table.is_static(view):
            value = self._plan.values[view]
            assert isinstance(value, Tensor)
            try:
                self._table.values[view].set_(self._table.values[source].view(value.sizes))
            except RuntimeError:
                self._fixed.add(view)  # it is a copy, made in each run
                self._loose.add(view)
                return
            self._bound.add(view)
        else:
            self._loose.add(view)

    # -- one copy --------------------------------------------------------------------------------

    def _try(self, number: int, kernel: Kernel, call: KernelCall) -> bool:
        source, copy = call.args[0], call.args[kernel.num_inputs]
        if not self._is_free(copy) or self._writers.get(copy) != [number]:
            return False
        if not self._is_plain_source(source) or not self._inputs_are_fixed(kernel, call):
            return False
        root = self._root(source)
        if self._changes(root, number, self._last[copy]) or self._is_read_by_place(copy, number):
            return False
        last = max(self._last[root], self._last[copy])
        tenant = self._tenant(root)
        if tenant is None:
            return False
        if self._others_meet(tenant.slot, (root, copy), tenant.first, last):
            if not self._can_move(root, copy, last) or self._view(kernel, call) is None:
                return False
            tenant = self._move(root, copy)
        view = self._view(kernel, call)
        if view is None:
            return False
        self._table.values[copy].set_(view)
        for alias in self._table.memory_plan.aliases_of.get(copy, ()):
            self._table.values[alias].set_(view.view(self._sizes(alias)))
        self._family[copy] = root
        self._bound.add(copy)
        self._tenants[self._slot(copy).buffer].pop(copy, None)
        tenant.last = self._last[root] = last
        return True

    def _sizes(self, index: int) -> tuple[int, ...]:
        value = self._plan.values[index]
        assert isinstance(value, Tensor)
        return value.sizes

    def _is_free(self, index: int) -> bool:
        """Whether a value's memory is nobody's business but the kernels' that use it."""
        table = self._table
        return (
            table.is_tensor(index)
            and table.is_static(index)
            and table.is_planned(index)
            and index not in self._fixed
            and not table.memory_plan.is_aliased(index)
        )

    def _changes(self, root: int, after: int, until: int) -> bool:
        """Whether an instruction changes a value in place while a view of it would be in use."""
        return any(
            after < number <= until
            for index in (root, *self._members(root))
            for number in self._writers.get(index, ())
            if index == root or index in self._fixed
        )

    def _is_plain_source(self, source: int) -> bool:
        table, root = self._table, self._root(source)
        if source in self._loose or root in self._loose:
            return False
        return all(
            table.is_tensor(i)
            and table.is_static(i)
            and table.is_planned(i)
            and not table.memory_plan.is_aliased(i)
            for i in (source, root)
        )

    def _inputs_are_fixed(self, kernel: Kernel, call: KernelCall) -> bool:
        for index in call.args[1 : kernel.num_inputs]:
            value = self._plan.values[index]
            items = value.items if isinstance(value, IntList) else (index,)
            if isinstance(value, Tensor) or any(i in self._table.scalars_written for i in items):
                return False
        return True

    def _slot(self, index: int) -> PlannedSlot:
        return self._table.memory_plan.slots[index]

    def _tenant(self, root: int) -> _Tenant | None:
        return self._tenants.get(self._slot(root).buffer, {}).get(root)

    def _others_meet(
        self, slot: PlannedSlot, known: tuple[int, int], first: int, last: int
    ) -> bool:
        return any(
            tenant.meets(slot, first, last)
            for index, tenant in self._tenants.get(slot.buffer, {}).items()
            if index not in known
        )

    def _can_move(self, root: int, copy: int, last: int) -> bool:
        """Whether the source may be computed in the slot of its copy from the start."""
        target, tenant = self._slot(copy), self._tenant(root)
        assert tenant is not None
        slot = tenant.slot
        return (
            self._is_free(root)
            and len(self._writers.get(root, ())) == 1
            and slot.buffer == target.buffer
            and slot.nbytes == target.nbytes
            and not any(view in self._fixed or view in self._loose for view in self._members(root))
            and not self._others_meet(target, (root, copy), self._first[root], last)
        )

    def _members(self, root: int) -> list[int]:
        return [index for index in self._family if self._root(index) == root]

    def _move(self, root: int, copy: int) -> _Tenant:
        """Put a value, and the views of it that are bound already, into the slot of its copy."""
        target = self._slot(copy)
        value = self._plan.values[root]
        assert isinstance(value, Tensor)
        moved = PlannedSlot(root, target.buffer, target.offset, target.nbytes)
        tensor: torch.Tensor = self._table.values[root]
        before = tensor.data_ptr()
        tensor.set_(self._allocator.slot(moved, value))  # type: ignore[call-overload]
        for member in self._bound.intersection(self._members(root)):
            view: torch.Tensor = self._table.values[member]
            offset = (view.data_ptr() - before) // view.element_size()
            view.set_(tensor.untyped_storage(), offset, view.size(), view.stride())
        tenant = self._tenants[target.buffer][root]
        tenant.slot = moved
        return tenant

    def _view(self, kernel: Kernel, call: KernelCall) -> torch.Tensor | None:
        """Return the view that stands for the copy, or None if some use needs the copy."""
        assert kernel.view is not None
        copy = call.args[kernel.num_inputs]
        target: torch.Tensor = self._table.values[copy]
        try:
            view: torch.Tensor = kernel.view(*self._binder.inputs(kernel, call.args))
            aliases = self._table.memory_plan.aliases_of.get(copy, ())
            for reader in (*self._views.get(copy, ()), *aliases):
                view.view(self._sizes(reader))
        except (RuntimeError, TypeError, ValueError, IndexError):
            return None
        readers = {copy, *self._views.get(copy, ()), *aliases}
        if view.stride() != target.stride() and not readers.isdisjoint(self._dense):
            return None
        same = view.shape == target.shape and view.dtype == target.dtype
        return view if same and view.device == target.device else None
