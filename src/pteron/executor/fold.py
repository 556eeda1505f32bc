"""Instructions that always give the same result, run once at load.

Exporters leave a good many: transposes of weights, numbers made into tensors, constants of another
element type. A view of a constant costs no memory; other results are kept if they are small.
"""

from __future__ import annotations

import torch

from pteron.executor.bind_kernel import KernelBinder, write_result
from pteron.executor.evalue import ValueTable
from pteron.format.schema import (
    DelegateCall,
    KernelCall,
    MoveCall,
    OptionalTensorList,
    Tensor,
    TensorList,
)
from pteron.kernels.registry import Kernel, OperatorRegistry, Style
from pteron.memory.hierarchical_allocator import fixed_slot, typed
from pteron.program.dataflow import expand, operator_name

MAX_FOLDED_TENSOR_BYTES = 1 << 16
"""A result that is no view is kept only up to this size: loading must not cost memory."""


_REPEATABLE = ("aten::", "dim_order_ops::", "quantized_decomposed::")
"""Libraries whose operators do nothing but compute their results, unless they are random."""


def fold_constants(table: ValueTable, registry: OperatorRegistry) -> frozenset[int]:
    """Give values that never change their value now; return the instructions that are done."""
    plan = table.plan
    writers: dict[int, int] = {}
    pinned: set[int] = set(plan.inputs) | set(table.state) | set(table.moved)
    for instruction, step in zip(plan.instructions, table.memory_plan.steps, strict=True):
        for index in step.writes:
            writers[index] = writers.get(index, 0) + 1
        pinned.update(step.updates)
        if step.aliases and set(step.writes) & pinned:
            pinned.update(step.reads)
        if isinstance(instruction, MoveCall):
            pinned.add(instruction.move_to)
        if isinstance(instruction, DelegateCall):
            pinned.update(instruction.args)
        if isinstance(instruction, KernelCall):
            kernel = registry.find(operator_name(plan, instruction))
            for position in kernel.mutated if kernel is not None else ():
                pinned.update(expand(plan, instruction.args[position]))
    binder = KernelBinder(table)
    known = set(table.constants)
    aliases_of = table.memory_plan.aliases_of
    done: set[int] = set()
    for number, instruction in enumerate(plan.instructions):
        if not isinstance(instruction, KernelCall):
            continue
        kernel = registry.find(operator_name(plan, instruction))
        if kernel is None or len(instruction.args) != kernel.num_args:
            continue
        if _foldable(table, kernel, instruction, known, writers, pinned):
            if _fold(table, binder, kernel, instruction):
                out = instruction.args[kernel.num_inputs]
                known.update((out, *aliases_of.get(out, ())))
                done.add(number)
    return frozenset(done)


def _foldable(
    table: ValueTable,
    kernel: Kernel,
    call: KernelCall,
    known: set[int],
    writers: dict[int, int],
    pinned: set[int],
) -> bool:
    if kernel.style not in (Style.OUT, Style.FUNCTIONAL) or len(kernel.out_names) != 1:
        return False
    if kernel.random or kernel.data_dependent or not kernel.name.startswith(_REPEATABLE):
        return False
    out = call.args[kernel.num_inputs]
    if not table.is_tensor(out) or not table.is_static(out) or not table.is_planned(out):
        return False
    if writers.get(out, 0) != 1 or out in pinned or table.memory_plan.is_aliased(out):
        return False
    if not any(table.is_tensor(index) for index in call.args[: kernel.num_inputs]):
        return False
    for index in call.args[: kernel.num_inputs]:
        value = table.plan.values[index]
        items = value.items if isinstance(value, (TensorList, OptionalTensorList)) else (index,)
        for item in items:
            if item < 0:
                continue
            if table.is_tensor(item):
                if item not in known:
                    return False
            elif item in table.scalars_written or _has_changing_items(table, item):
                return False
    return True


def _has_changing_items(table: ValueTable, index: int) -> bool:
    items = getattr(table.plan.values[index], "items", ())
    return any(isinstance(item, int) and item in table.scalars_written for item in items)


def _fold(table: ValueTable, binder: KernelBinder, kernel: Kernel, call: KernelCall) -> bool:
    """Compute one result and give its value the memory of it; False if it has to run each time."""
    index = call.args[kernel.num_inputs]
    value, target = table.plan.values[index], table.values[index]
    assert isinstance(value, Tensor)
    inputs = binder.inputs(kernel, call.args)
    try:
        if kernel.view is not None:
            result = kernel.view(*inputs)
            if result.shape != target.shape or result.dtype != target.dtype:
                return False
            if result.device != target.device:
                return False
            _set(table, index, result)
            return True
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
        _set(table, index, fresh)
    except Exception:  # noqa: BLE001 - it fails when the method runs, with its place named
        return False
    return True


def _set(table: ValueTable, index: int, result: torch.Tensor) -> None:
    """Give a value, and the aliases that read its place, the memory of a result."""
    aliases = table.memory_plan.aliases_of.get(index, ())
    views = [result.view(table.values[alias].shape) for alias in aliases]
    table.values[index].set_(result)
    for alias, view in zip(aliases, views, strict=True):
        table.values[alias].set_(view)
