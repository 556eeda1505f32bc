"""Compute at load what always gives the same result.

Exporters leave a good many such calls: transposes of weights, numbers made into tensors, constants
of another element type. A view of a constant costs no memory; other results are kept if they are
small. Only pure kernels are asked, and only for values that nothing changes.
"""

from __future__ import annotations

import torch

from pteron.executor.bind_kernel import write_result
from pteron.executor.nodes import Node
from pteron.executor.passes.lowering import Lowering, Reason, lies_alike, share_memory
from pteron.format.schema import Tensor
from pteron.kernels.registry import Kernel, Style
from pteron.memory.hierarchical_allocator import fixed_slot, typed

MAX_FOLDED_TENSOR_BYTES = 1 << 16
"""A result that is no view is kept only up to this size: loading must not cost memory."""


def fold_constants(lowering: Lowering) -> None:
    """Give values that never change their value now, and leave their instructions out."""
    known = set(lowering.table.constants)
    for node in lowering.nodes:
        kernel = lowering.is_computed(node)
        if kernel is None or not kernel.pure or kernel.data_dependent:
            continue
        out = node.args[kernel.num_inputs]
        if not _is_constant(lowering, node, kernel, known) or not _is_free(lowering, out):
            continue
        if _fold(lowering, node, lowering.binder.for_dtypes(kernel, node.args)):
            known.add(out)
            known.update(view for view, of in lowering.graph.view_sources.items() if of == out)
            lowering.leave_out(node, "fold_constants", Reason.FOLDED)
    lowering.drop_left_out()


def _is_constant(lowering: Lowering, node: Node, kernel: Kernel, known: set[int]) -> bool:
    """Whether a call has the same inputs in every run."""
    tensors = (
        item
        for index in node.args[: kernel.num_inputs]
        for item in lowering.table.items(index)
        if lowering.table.is_tensor(item)
    )
    return known.issuperset(tensors) and lowering.has_fixed_numbers(node, kernel)


def _is_free(lowering: Lowering, out: int) -> bool:
    """Whether nothing but its call gives a value, or its views, a content, or needs its bytes."""
    table, graph = lowering.table, lowering.graph
    if len(lowering.writers.get(out, ())) != 1 or graph.may_be_read_by_place(out):
        return False
    return not any(
        member in table.state
        or member in table.moved
        or member in graph.updated
        or member in graph.plan.inputs
        or (member != out and member in lowering.writers and not _is_view(lowering, member))
        for member in lowering.family(out)
    )


def _is_view(lowering: Lowering, member: int) -> bool:
    """Whether the only instruction that writes a value makes it a view."""
    return len(lowering.writers[member]) == 1 and any(
        member in views for views in lowering.views.values()
    )


def _fold(lowering: Lowering, node: Node, kernel: Kernel) -> bool:
    """Compute one result and give its value the memory of it; False if it has to run each time."""
    table = lowering.table
    index = node.args[kernel.num_inputs]
    value, target = table.plan.values[index], lowering.tensor(index)
    assert isinstance(value, Tensor)
    try:
        inputs = lowering.binder.inputs(kernel, node.args)
        if kernel.view is not None:
            result = kernel.view(*inputs)
            fits = result.shape == target.shape and result.dtype == target.dtype
            alike = fits and result.device == target.device
            is_view = isinstance(inputs[0], torch.Tensor) and share_memory(result, inputs[0])
            if alike and is_view:
                if lies_alike(result, target) or not lowering.is_wanted_dense(index):
                    return _give(lowering, index, result, is_file_memory=True)
        if value.nbytes > MAX_FOLDED_TENSOR_BYTES:
            return False
        memory = torch.empty(value.nbytes, dtype=torch.uint8, device=target.device)
        fresh = typed(fixed_slot(memory, 0, value.nbytes), value)  # a result must not outgrow it
        keywords = dict(zip(kernel.keywords, inputs[kernel.positional :], strict=True))
        if kernel.style is Style.OUT:
            kernel.function(
                *inputs[: kernel.positional], **keywords, **{kernel.out_names[0]: fresh}
            )
            if fresh.shape != target.shape:
                return False
        else:
            result = kernel.function(*inputs[: kernel.positional], **keywords)
            write_result(fresh, result, value.dim_order, static=True)
        return _give(lowering, index, fresh, is_file_memory=False)
    except Exception:  # noqa: BLE001 - it fails when the method runs, with its place named
        return False


def _give(lowering: Lowering, index: int, result: torch.Tensor, *, is_file_memory: bool) -> bool:
    """Give a value, and the silent views of it, the memory of a result."""
    members = [m for m in lowering.views.get(index, ()) if m in lowering.graph.view_sources]
    views = {member: result.view(lowering.sizes(member)) for member in members}
    for member, view in {index: result, **views}.items():
        lowering.tensor(member).set_(view)  # type: ignore[call-overload]
        if is_file_memory:
            lowering.file_memory.add(member)
    return True
