"""What a method takes and gives, one value at a time, with names where the file has them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias, TypedDict

from pteron.format.schema import (
    Bool,
    BoolList,
    Double,
    DoubleList,
    EValue,
    Int,
    IntList,
    Null,
    OptionalTensorList,
    String,
    Tensor,
    TensorList,
    TensorShapeDynamism,
)
from pteron.program.memory_plan import MemoryPlan

Literal: TypeAlias = "int | float | bool | str | None"

_KINDS: Final[dict[type[EValue], str]] = {
    Null: "none",
    Int: "int",
    Bool: "bool",
    Double: "float",
    String: "str",
    Tensor: "tensor",
    IntList: "ints",
    DoubleList: "floats",
    BoolList: "bools",
    TensorList: "tensors",
    OptionalTensorList: "tensors",
}

_MAX_SPEC_CHARS: Final = 1 << 20


class Value(TypedDict):
    """One input or output. ``dtype`` and what follows are None for a value that is no tensor."""

    position: int
    value: int
    name: str | None
    """Where it is in the model's arguments or result, if the file says so."""
    kind: str
    literal: Literal
    """The number or string in the file, of a value that is no tensor."""
    dtype: str | None
    sizes: list[int] | None
    """The shape, or its upper bound if it is dynamic."""
    dynamic: bool | None
    dim_order: list[int] | None
    size_bytes: int | None
    planned: bool | None
    device: str | None


def kind_of(value: EValue) -> str:
    """Return what sort of Python value stands for this one."""
    return _KINDS[type(value)]


def literal_of(value: EValue) -> Literal:
    """Return the number or string that the file holds, else None."""
    if isinstance(value, Int):
        return value.int_val
    if isinstance(value, Bool):
        return value.bool_val
    if isinstance(value, Double):
        return value.double_val
    return value.string_val if isinstance(value, String) else None


def describe_inputs(memory: MemoryPlan) -> list[Value]:
    """Describe a method's inputs."""
    meta = memory.plan.container_meta_type
    names = names_of(meta.encoded_inp_str, inputs=True) if meta is not None else None
    return _describe_all(memory, memory.plan.inputs, names)


def describe_outputs(memory: MemoryPlan) -> list[Value]:
    """Describe a method's outputs."""
    meta = memory.plan.container_meta_type
    names = names_of(meta.encoded_out_str) if meta is not None else None
    return _describe_all(memory, memory.plan.outputs, names)


def _describe_all(
    memory: MemoryPlan, indices: Sequence[int], names: Sequence[str] | None
) -> list[Value]:
    if names is None or len(names) != len(indices):
        names = ("",) * len(indices)
    return [
        _describe(memory, position, index, name if name != f"[{position}]" else "")
        for position, (index, name) in enumerate(zip(indices, names, strict=True))
    ]


def _describe(memory: MemoryPlan, position: int, index: int, name: str) -> Value:
    value = memory.plan.values[index]
    facts = Value(
        position=position,
        value=index,
        name=name or None,
        kind=kind_of(value),
        literal=literal_of(value),
        dtype=None,
        sizes=None,
        dynamic=None,
        dim_order=None,
        size_bytes=None,
        planned=None,
        device=None,
    )
    if isinstance(value, Tensor):
        place = value.allocation_info
        device = value.device if place is None else memory.buffer(place.memory_id).device
        facts["dtype"] = value.scalar_type.torch_name
        facts["sizes"] = list(value.sizes)
        facts["dynamic"] = value.shape_dynamism is not TensorShapeDynamism.STATIC
        facts["dim_order"] = list(value.dim_order)
        facts["size_bytes"] = value.nbytes
        facts["planned"] = place is not None
        facts["device"] = str(device)
    return facts


def names_of(spec: str, *, inputs: bool = False) -> tuple[str, ...] | None:
    """Return the path of each leaf in a pytree spec (torch's JSON), or None if it is not readable.

    Keyword arguments, dict keys and fields have names: ``mask``, ``[0]``, ``[1].past[3]``. A result
    that is a single value has the name "".
    """
    if not spec or len(spec) > _MAX_SPEC_CHARS:
        return None
    try:
        version, tree = json.loads(spec)
        paths = list(_paths(tree, ())) if version == 1 else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if paths is None:
        return None
    # The root of the arguments is (args, kwargs).
    return tuple("".join(path[1:] if inputs else path).removeprefix(".") for path in paths)


def _paths(tree: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if tree["type"] is None:
        yield path
        return
    children = tree["children_spec"]
    for step, child in zip(_steps(tree["context"], len(children)), children, strict=True):
        yield from _paths(child, (*path, step))


def _steps(context: Any, number: int) -> list[str]:
    """Return the steps to a node's children: by key or field name, else by position."""
    try:
        keys = json.loads(context) if isinstance(context, str) else context
    except ValueError:
        keys = None
    if isinstance(keys, dict):  # a defaultdict
        keys = keys.get("dict_context")
    if isinstance(keys, list) and keys and isinstance(keys[0], list):  # a dataclass
        keys = keys[0]
    if isinstance(keys, list) and len(keys) == number:
        return [f".{key}" for key in keys]
    return [f"[{position}]" for position in range(number)]
