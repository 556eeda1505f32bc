"""The one text notation for values and instructions.

    %0  float32[2, 3] planned 1+0                      a tensor in buffer 1 at byte 0
    %1  float32[<=8, 3] planned 2+64 cuda:0            a dynamic shape, on an accelerator
    %2  float32[4, 3, 8, 8] order [0, 2, 3, 1] constant 5 'conv.weight'
    %3  int 1      %4  None      %5  ints [%3, %3]      %6  tensors [%0, None]

    0: aten::add.out(%0, %2, %3=1, %1, %1)
    1: delegate 0 'XnnpackBackend'(%1, %0)
    2: move %0 -> %1
    3: jump to 7 if not %8
    4: free %1

A number, truth value, string or None is shown beside its index. Nothing here fails on an index that
leads nowhere: it is shown with a question mark, so that errors about it can use this notation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from pteron.format.schema import (
    Bool,
    BoolList,
    DelegateCall,
    Double,
    DoubleList,
    EValue,
    ExecutionPlan,
    FreeCall,
    Instruction,
    Int,
    IntList,
    JumpFalseCall,
    KernelCall,
    MoveCall,
    Null,
    OptionalTensorList,
    String,
    Tensor,
    TensorList,
    TensorShapeDynamism,
)

_Item = TypeVar("_Item")

_LIST_ITEMS = 16
_STRING_CHARS = 60
_NAME_CHARS = 120


def format_value(plan: ExecutionPlan, index: int) -> str:
    """Return one value as text: its index, kind, and what the file says of it."""
    if not 0 <= index < len(plan.values):
        return f"%{index}?"
    return f"%{index} {_describe(plan, plan.values[index])}"


def format_instruction(plan: ExecutionPlan, index: int) -> str:
    """Return one instruction of the first chain as text, without its number."""
    if not 0 <= index < len(plan.instructions):
        return f"instruction {index}?"
    return describe_instruction(plan, plan.instructions[index])


def format_window(plan: ExecutionPlan, index: int, *, around: int = 2) -> str:
    """Return an instruction with its neighbours, one a line, the one that is meant marked."""
    first = max(0, index - around)
    last = min(len(plan.instructions), index + around + 1)
    width = len(str(max(last - 1, 0)))
    return "\n".join(
        f"{'>' if at == index else ' '} {at:{width}}: {format_instruction(plan, at)}"
        for at in range(first, last)
    )


def quoted(text: str) -> str:
    """Return a name or string of the file in quotes, cut short if it is long."""
    return repr(text if len(text) <= _STRING_CHARS else f"{text[:_STRING_CHARS]}...")


def numbers(items: Sequence[int]) -> str:
    """Return numbers in brackets; only the ends of a long list are shown."""
    return f"[{_joined(items, str)}]"


def format_tensor(tensor: Tensor) -> str:
    """Return element type and shape: ``float32[2, 3]``, ``float32[<=8, 3]`` if dynamic."""
    return f"{tensor.scalar_type.torch_name}[{_shape(tensor)}]"


def describe_instruction(plan: ExecutionPlan, instruction: Instruction) -> str:
    """Return any instruction as text."""
    if isinstance(instruction, KernelCall):
        at = instruction.op_index
        known = 0 <= at < len(plan.operators)
        name = plan.operators[at].full_name if known else f"operator {at}?"
        name = name if len(name) <= _NAME_CHARS else f"{name[:_NAME_CHARS]}..."
        return f"{name}({_arguments(plan, instruction.args)})"
    if isinstance(instruction, DelegateCall):
        at = instruction.delegate_index
        known = 0 <= at < len(plan.delegates)
        name = quoted(plan.delegates[at].id) if known else "?"
        return f"delegate {at} {name}({_arguments(plan, instruction.args)})"
    if isinstance(instruction, MoveCall):
        source = _argument(plan, instruction.move_from)
        return f"move {source} -> {_argument(plan, instruction.move_to)}"
    if isinstance(instruction, JumpFalseCall):
        condition = _argument(plan, instruction.cond_value_index)
        return f"jump to {instruction.destination_instruction} if not {condition}"
    if isinstance(instruction, FreeCall):
        return f"free {_argument(plan, instruction.value_index)}"
    raise AssertionError(instruction)


def _arguments(plan: ExecutionPlan, args: tuple[int, ...]) -> str:
    return _joined(args, lambda index: _argument(plan, index))


def _argument(plan: ExecutionPlan, index: int) -> str:
    if not 0 <= index < len(plan.values):
        return f"%{index}?"
    literal = _literal(plan.values[index])
    return f"%{index}" if literal is None else f"%{index}={literal}"


def _literal(value: EValue) -> str | None:
    if isinstance(value, Int):
        return str(value.int_val)
    if isinstance(value, Bool):
        return str(value.bool_val)
    if isinstance(value, Double):
        return repr(value.double_val)
    if isinstance(value, String):
        return quoted(value.string_val)
    return "None" if isinstance(value, Null) else None


_SCALAR_KINDS: dict[type[EValue], str] = {
    Int: "int ",
    Bool: "bool ",
    Double: "float ",
    String: "str ",
}


def _describe(plan: ExecutionPlan, value: EValue) -> str:
    literal = _literal(value)
    if literal is not None:
        return _SCALAR_KINDS.get(type(value), "") + literal
    if isinstance(value, Tensor):
        return _describe_tensor(plan, value)
    if isinstance(value, (DoubleList, BoolList)):
        kind = "floats" if isinstance(value, DoubleList) else "bools"
        return f"{kind} [{_joined(value.items, str)}]"
    assert isinstance(value, (IntList, TensorList, OptionalTensorList))
    kind = "ints" if isinstance(value, IntList) else "tensors"
    items = _joined(value.items, lambda at: "None" if at == -1 else _argument(plan, at))
    return f"{kind} [{items}]"


def _describe_tensor(plan: ExecutionPlan, tensor: Tensor) -> str:
    parts = [format_tensor(tensor)]
    if tensor.dim_order != tuple(range(len(tensor.sizes))):
        parts.append(f"order {numbers(tensor.dim_order)}")
    place = tensor.allocation_info
    if place is not None:
        parts.append(f"planned {place.memory_id}+{place.memory_offset}")
        devices = (
            d.device for d in plan.non_const_buffer_device if d.buffer_idx == place.memory_id
        )
        parts += [str(device) for device in devices if not device.is_host]
        if tensor.has_initial_value and not tensor.is_external:
            parts.append(f"initial {tensor.data_buffer_idx}")
    elif tensor.data_buffer_idx and not tensor.is_external:
        parts.append(f"constant {tensor.data_buffer_idx}")
    elif not tensor.is_external:
        parts.append("unplanned")
    if tensor.is_external:
        parts.append("external")
    if tensor.fully_qualified_name:
        parts.append(quoted(tensor.fully_qualified_name))
    return " ".join(parts)


def _shape(tensor: Tensor) -> str:
    bound = "" if tensor.shape_dynamism is TensorShapeDynamism.STATIC else "<="
    return _joined(tensor.sizes, lambda size: f"{bound}{size}")


def _joined(items: Sequence[_Item], show: Callable[[_Item], str]) -> str:
    """Join items with commas; only the ends of a long list are shown."""
    if len(items) <= 2 * _LIST_ITEMS:
        return ", ".join(map(show, items))
    left_out = f"... {len(items) - 2 * _LIST_ITEMS} more ..."
    first, last = items[:_LIST_ITEMS], items[-_LIST_ITEMS:]
    return ", ".join([*map(show, first), left_out, *map(show, last)])
