"""Make views at load whose source never moves and whose size never changes.

Others (``executorch_prim::et_view`` of a dynamic tensor) are made in each run.
"""

from __future__ import annotations

from pteron.executor.nodes import Node
from pteron.executor.passes.lowering import Lowering, Reason
from pteron.kernels.registry import Kernel, Style


def bind_views(lowering: Lowering) -> None:
    """Re-point the results of views now, and leave their instructions out."""
    made_each_run: set[int] = set()
    for node in lowering.nodes:
        kernel = node.kernel
        if kernel is None or kernel.style is not Style.VIEW:
            continue
        if _is_fixed(lowering, node, kernel, made_each_run) and _bind(lowering, node, kernel):
            lowering.leave_out(node, "bind_views", Reason.VIEW)
        else:
            made_each_run.add(node.args[-1])
    lowering.drop_left_out()


def _is_fixed(lowering: Lowering, node: Node, kernel: Kernel, made_each_run: set[int]) -> bool:
    table, source, out = lowering.table, node.args[0], node.args[-1]
    if not table.is_tensor(source) or not table.is_static(source):
        return False
    return (
        (table.is_planned(source) or source in table.constants)
        and source not in made_each_run
        and table.is_tensor(out)
        and table.is_static(out)
        and out not in table.state
        and out not in table.moved
        and out not in table.plan.inputs
        and len(lowering.writers.get(out, ())) == 1 + _delegate_uses(lowering, out)
        and lowering.has_fixed_numbers(node, kernel, 1)
    )


def _delegate_uses(lowering: Lowering, out: int) -> int:
    """Return how many delegates may write to a view: they write to its source's memory."""
    writers = lowering.writers.get(out, ())
    return sum(lowering.nodes_by_number[n].kernel is None for n in writers)


def _bind(lowering: Lowering, node: Node, kernel: Kernel) -> bool:
    source, out = lowering.tensor(node.args[0]), lowering.tensor(node.args[-1])
    lowering.binder.bind(kernel, node.args)()
    if out.data_ptr() != source.data_ptr():
        return False  # its source's strides ask for a copy, made in each run
    if node.args[0] in lowering.file_memory or node.args[0] in lowering.table.constants:
        lowering.file_memory.add(node.args[-1])
    return True
