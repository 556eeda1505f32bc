"""Leave out copies whose readers can read the source where it is.

An exported program has no views: what was ``x.permute(...)`` in the model is a copy of ``x`` into a
slot of its own. The copy is not needed if

- nothing but kernels uses it, and each of them takes a tensor of any strides (or the view lies as
  the copy would);
- nothing writes to the copy or, while the copy is in use, to the bytes under the view;
- nothing reads the copy's bytes through another value.

The bytes under the view stay as they are either where they are, if the plan gives them to nothing
else until the copy's last use, or in the slot of the copy, if the plan gives that to nothing else
since ``x`` is computed: then ``x`` is computed there from the start.

A *tenant* is a value that owns planned bytes for a time, with all values that lie in its memory.
The invariant: two tenants share bytes at one time only where the file itself says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pteron.executor.nodes import Node
from pteron.executor.passes.lowering import Lowering, Reason, lies_alike, share_memory
from pteron.format.schema import Tensor
from pteron.kernels.registry import Kernel, Style
from pteron.program.graph import UNUSED
from pteron.program.slots import PlannedSlot

MAX_INSTRUCTIONS = 4_000
"""Longer methods are left as they are: looking for copies takes time that grows with the square."""


def elide_copies(lowering: Lowering) -> None:
    """Re-point the results of copies that are not needed, and leave their instructions out."""
    if len(lowering.plan.instructions) > MAX_INSTRUCTIONS or not lowering.graph.straight:
        return
    elider = _Elider(lowering)
    for node in lowering.nodes:
        kernel = lowering.is_computed(node)
        if kernel is not None and kernel.view is not None and kernel.pure:
            detail = elider.try_copy(node, kernel)
            if detail is not None:
                lowering.leave_out(node, "elide_copies", Reason.COPY, detail)
    lowering.drop_left_out()


@dataclass
class _Tenant:
    """A value that owns planned bytes from its first write to the last read of its memory."""

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


class _Elider:
    def __init__(self, lowering: Lowering) -> None:
        self._lowering = lowering
        self._table = lowering.table
        self._graph = lowering.graph
        self._slots = lowering.table.memory_plan.slots
        self._parents: dict[int, int] = {
            view: value for value, views in lowering.views.items() for view in views
        }
        """The value in whose memory another one lies: by the file, and by copies left out."""
        self._members: dict[int, list[int]] = {}
        for index in self._parents:
            self._members.setdefault(self._root(index), []).append(index)
        graph = lowering.graph
        self._fixed = (
            set(graph.outputs)
            | set(graph.plan.inputs)
            | set(lowering.table.state)
            | graph.updated
            | graph.in_delegates
            | self._in_device_copies()
        )
        """Values that have to be where the plan says, and hold what the file says."""
        self._tenants: dict[int, dict[int, _Tenant]] = {}
        for index, slot in self._slots.items():
            if graph.first[index] != UNUSED and index not in self._parents:
                self._add_tenant(index, slot)

    def _in_device_copies(self) -> set[int]:
        return {
            index
            for node in self._lowering.nodes
            if node.kernel is not None and node.kernel.style is Style.DEVICE_COPY
            for index in (*node.access.reads, *node.access.writes)
        }

    def _add_tenant(self, index: int, slot: PlannedSlot) -> None:
        graph = self._graph
        if index in self._table.state:
            first, last = -1, graph.end
        else:
            first, last = graph.first[index], graph.last_needed[index]
            for member in self._members.get(index, ()):
                last = max(last, graph.last_needed[member])
        self._tenants.setdefault(slot.buffer, {})[index] = _Tenant(slot, first, last)

    def _root(self, index: int) -> int:
        while index in self._parents:
            index = self._parents[index]
        return index

    # -- one copy ----------------------------------------------------------------------------------

    def try_copy(self, node: Node, kernel: Kernel) -> str | None:
        """Leave one copy out if that is safe; return how its readers find the values."""
        source, copy = node.args[0], node.args[kernel.num_inputs]
        root = self._root(source)
        if not self._is_replaceable(copy, node.number) or not self._is_plain(source, root):
            return None
        if not self._has_tensor_only_first(node, kernel):
            return None
        family = list(self._lowering.family(copy))
        tenant = self._tenant(root)
        until = max(self._graph.last_needed[member] for member in family)
        if tenant is None or self._is_changed(root, node.number, until):
            return None
        last = max(tenant.last, until)
        views = self._views(node, kernel, family)
        if views is None:
            return None
        known = {root, copy}
        how = f"read in place of %{source}"
        if self._others_meet(tenant.slot, known, tenant.first, last):
            if not self._can_move(root, copy, last):
                return None
            self._move(root, copy)
            views = self._views(node, kernel, family)
            if views is None:  # pragma: no cover - the same view of the same strides
                raise AssertionError("a value that was moved has other strides")
            how = f"%{root} is computed in its place"
        for member, view in views.items():
            self._lowering.tensor(member).set_(view)  # type: ignore[call-overload]
        self._adopt(copy, root, last)
        return how

    def _is_replaceable(self, copy: int, number: int) -> bool:
        """Whether nothing but kernels that read it cares where a copy, or a view of it, lies."""
        lowering = self._lowering
        if lowering.writers.get(copy) != [number] or copy in self._parents:
            return False
        if self._graph.may_be_read_by_place(copy):
            return False
        return not any(
            member in self._fixed or member in lowering.file_memory or not self._is_held(member)
            for member in lowering.family(copy)
        )

    def _is_held(self, member: int) -> bool:
        """Whether a value's memory is decided at load."""
        return self._table.is_static(member) and not self._is_made_each_run(member)

    def _is_made_each_run(self, member: int) -> bool:
        return any(
            number not in self._lowering.left_out and self._is_view_call(number)
            for number in self._lowering.writers.get(member, ())
        )

    def _is_view_call(self, number: int) -> bool:
        kernel = self._lowering.nodes_by_number[number].kernel
        return kernel is not None and kernel.style is Style.VIEW

    def _is_plain(self, source: int, root: int) -> bool:
        """Whether a source is planned memory whose place and shape never change."""
        table = self._table
        return all(
            table.is_tensor(index)
            and table.is_static(index)
            and table.is_planned(index)
            and index not in self._lowering.file_memory
            and not self._is_made_each_run(index)
            for index in (source, root)
        ) and not self._was_folded(root)

    def _was_folded(self, root: int) -> bool:
        return any(
            number in self._lowering.left_out and not self._is_view_call(number)
            for number in self._lowering.writers.get(root, ())
        )

    def _has_tensor_only_first(self, node: Node, kernel: Kernel) -> bool:
        tensors = [
            item
            for index in node.args[1 : kernel.num_inputs]
            for item in self._table.items(index)
            if self._table.is_tensor(item)
        ]
        return not tensors and self._lowering.has_fixed_numbers(node, kernel, 1)

    def _is_changed(self, root: int, after: int, until: int) -> bool:
        """Whether an instruction may write to the source's memory while the copy is in use."""
        return any(
            after < number <= until
            for index in (root, *self._members.get(root, ()))
            for number in self._lowering.writers.get(index, ())
            if not self._is_view_call(number) and number not in self._lowering.left_out
        )

    def _tenant(self, root: int) -> _Tenant | None:
        return self._tenants.get(self._slots[root].buffer, {}).get(root)

    def _others_meet(self, slot: PlannedSlot, known: set[int], first: int, last: int) -> bool:
        return any(
            tenant.meets(slot, first, last)
            for index, tenant in self._tenants.get(slot.buffer, {}).items()
            if index not in known
        )

    def _views(
        self, node: Node, kernel: Kernel, family: list[int]
    ) -> dict[int, torch.Tensor] | None:
        """Return the views that stand for the copy and for all that lies in it, or None.

        None if some reader needs the copy: strides cannot express a view of it, or a kernel wants
        it dense.
        """
        lowering = self._lowering
        copy = node.args[kernel.num_inputs]
        target = lowering.tensor(copy)
        assert kernel.view is not None
        try:
            inputs = lowering.binder.inputs(kernel, node.args)
            view: torch.Tensor = kernel.view(*inputs)
            if not share_memory(view, inputs[0]):
                return None
            views = {copy: view}
            for member in family[1:]:
                views[member] = view.view(lowering.sizes(member))
        except (RuntimeError, TypeError, ValueError, IndexError):
            return None
        same = view.shape == target.shape and view.dtype == target.dtype
        if not same or view.device != target.device or view.is_neg() or view.is_conj():
            return None
        if any(views[m].dtype != lowering.tensor(m).dtype for m in family):
            return None
        if not lies_alike(view, target) and lowering.is_wanted_dense(copy):
            return None
        return views

    # -- moving a source ---------------------------------------------------------------------------

    def _can_move(self, root: int, copy: int, last: int) -> bool:
        """Whether the source may be computed in the slot of its copy from the start."""
        target, tenant = self._slots[copy], self._tenant(root)
        assert tenant is not None
        slot, graph = tenant.slot, self._graph
        return (
            root not in self._fixed
            and len(self._lowering.writers.get(root, ())) == 1
            and graph.first[root] == self._lowering.writers[root][0]
            and not graph.may_be_read_by_place(root)
            and slot.buffer == target.buffer
            and slot.nbytes == target.nbytes
            and not any(
                member in self._fixed or not self._is_held(member)
                for member in self._members.get(root, ())
            )
            and not self._others_meet(target, {root, copy}, graph.first[root], last)
        )

    def _move(self, root: int, copy: int) -> None:
        """Put a value, and all that lies in its memory, into the slot of its copy."""
        lowering = self._lowering
        target = self._slots[copy]
        value = self._table.plan.values[root]
        assert isinstance(value, Tensor)
        tensor = lowering.tensor(root)
        before = tensor.data_ptr()
        moved = PlannedSlot(root, target.buffer, target.offset, target.nbytes)
        tensor.set_(lowering.allocator.slot(moved, value))  # type: ignore[call-overload]
        for member in self._members.get(root, ()):
            view = lowering.tensor(member)
            offset = (view.data_ptr() - before) // view.element_size()
            view.set_(tensor.untyped_storage(), offset, view.size(), view.stride())
        tenant = self._tenant(root)
        assert tenant is not None
        tenant.slot = moved

    def _adopt(self, copy: int, root: int, last: int) -> None:
        """Make a copy, and what lies in it, part of the tenant that holds its bytes now."""
        adopted = [copy, *self._members.pop(copy, ())]
        self._parents[copy] = root
        self._members.setdefault(root, []).extend(adopted)
        self._tenants.get(self._slots[copy].buffer, {}).pop(copy, None)
        tenant = self._tenant(root)
        assert tenant is not None
        tenant.last = last
