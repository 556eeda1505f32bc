"""What a method takes and gives, one value at a time, with the names that the file has.

Names come from the pytree specs of the exported model's arguments and result
(``container_meta_type`` in ``program.fbs``): keyword arguments, dict keys and fields have names;
positional arguments do not. A value without one is called ``input_0`` or ``output_0``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from pteron.errors import NotFoundError
from pteron.format.schema import (
    HOST,
    Bool,
    BoolList,
    Double,
    DoubleList,
    EValue,
    ExecutionPlan,
    Int,
    IntList,
    Null,
    OptionalTensorList,
    String,
    Tensor,
    TensorList,
    TensorShapeDynamism,
)

Scalar: TypeAlias = "int | float | bool | str | None"

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


@dataclass(frozen=True, slots=True, repr=False)
class ValueFacts:
    """One input or output. What follows ``literal`` is None for a value that is not a tensor."""

    role: str
    """``input`` or ``output``."""
    position: int
    index: int
    """Its number among the method's values, as the disassembly writes it (``%3``)."""
    name: str
    """The name in the file; ``input_0`` or ``output_0`` where the file has none."""
    path: str | None
    """Where it is in the model's arguments or result, if the file says so."""
    is_named: bool
    """Whether the name is the file's."""
    kind: str
    """``tensor``, ``int``, ``float``, ``bool``, ``str``, ``none`` or a list of these."""
    literal: Scalar
    """The number or string in the file, of a value that is not a tensor."""
    dtype_name: str | None
    shape: tuple[int, ...] | None
    """The shape, or its upper bound if it is dynamic."""
    dynamism: TensorShapeDynamism | None
    dim_order: tuple[int, ...] | None
    nbytes: int | None
    is_planned: bool | None
    device: str | None

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor."""
        return self.kind == "tensor"

    @property
    def is_dynamic(self) -> bool:
        """Whether the shape may change from call to call; ``shape`` is its bound then."""
        return self.dynamism not in (None, TensorShapeDynamism.STATIC)

    @property
    def label(self) -> str:
        """How messages call it: ``input 0 (image)``, or ``input 0`` without a name."""
        return f"{self.role} {self.position}" + (f" ({self.name})" if self.is_named else "")

    @property
    def type_text(self) -> str:
        """The type in short: ``float32[<=8, 3]``, ``int 3``, ``none``."""
        if not self.is_tensor:
            return self.kind if self.literal is None else f"{self.kind} {self.literal!r}"
        if self.dynamism is TensorShapeDynamism.DYNAMIC_UNBOUND:
            return f"{self.dtype_name}[any shape]"
        return tensor_text(self.dtype_name, self.shape, self.dim_order, dynamic=self.is_dynamic)

    def __repr__(self) -> str:
        device = "" if self.device in (None, "cpu") else f" on {self.device}"
        return f"<{self.role} {self.position} {self.name!r}: {self.type_text}{device}>"


_Facts = TypeVar("_Facts", bound=ValueFacts)


def describe_inputs(plan: ExecutionPlan, kind: type[_Facts]) -> tuple[_Facts, ...]:
    """Describe a method's inputs."""
    meta = plan.container_meta_type
    paths = names_of(meta.encoded_inp_str, inputs=True) if meta is not None else None
    return _describe_all(plan, plan.inputs, paths, "input", kind)


def describe_outputs(plan: ExecutionPlan, kind: type[_Facts]) -> tuple[_Facts, ...]:
    """Describe a method's outputs."""
    meta = plan.container_meta_type
    paths = names_of(meta.encoded_out_str) if meta is not None else None
    return _describe_all(plan, plan.outputs, paths, "output", kind)


def _describe_all(
    plan: ExecutionPlan,
    indices: Sequence[int],
    paths: Sequence[str] | None,
    role: str,
    kind: type[_Facts],
) -> tuple[_Facts, ...]:
    if paths is None or len(paths) != len(indices):
        paths = ("",) * len(indices)
    devices = {entry.buffer_idx: entry.device for entry in plan.non_const_buffer_device}
    counts = Counter(paths)
    named = [path if counts[path] == 1 and _is_name(path) else "" for path in paths]
    return tuple(
        kind(
            role,
            position,
            index,
            name or _stand_in(role, position, named),
            path if path and path != f"[{position}]" else None,
            bool(name),
            kind_of(plan.values[index]),
            literal_of(plan.values[index]),
            *_tensor_facts(plan.values[index], devices),
        )
        for position, (index, path, name) in enumerate(zip(indices, paths, named, strict=True))
    )


def _stand_in(role: str, position: int, named: Sequence[str]) -> str:
    name = f"{role}_{position}"
    return name if name not in named else f"[{position}]"


def _is_name(path: str) -> bool:
    """Whether a path has a name in it, and is not made of positions alone."""
    return bool(path) and re.fullmatch(r"(\[\d+\])+", path) is None


def _tensor_facts(value: EValue, devices: dict[int, Any]) -> tuple[Any, ...]:
    if not isinstance(value, Tensor):
        return (None,) * 7
    place = value.allocation_info
    device = value.device if place is None else devices.get(place.memory_id, HOST)
    return (
        value.scalar_type.torch_name,
        tuple(value.sizes),
        value.shape_dynamism,
        tuple(value.dim_order),
        value.nbytes,
        place is not None,
        str(device),
    )


def kind_of(value: EValue) -> str:
    """Return what sort of Python value stands for this one."""
    return _KINDS[type(value)]


def literal_of(value: EValue) -> Scalar:
    """Return the number or string that the file holds, else None."""
    if isinstance(value, Int):
        return value.int_val
    if isinstance(value, Bool):
        return value.bool_val
    if isinstance(value, Double):
        return value.double_val
    return value.string_val if isinstance(value, String) else None


def tensor_text(
    dtype: str | None,
    sizes: Sequence[int] | None,
    dim_order: Sequence[int] | None = None,
    *,
    dynamic: bool = False,
) -> str:
    """Return ``float32[<=8, 3]``, with the dim order if it is not the usual one."""
    if dtype is None or sizes is None:
        return "bytes"
    bound = "<=" if dynamic else ""
    text = f"{dtype}[{', '.join(f'{bound}{size}' for size in sizes)}]"
    if dim_order is not None and list(dim_order) != list(range(len(sizes))):
        text += f" order {list(dim_order)}"
    return text


# -- names ----------------------------------------------------------------------------------------


def find(values: Sequence[_Facts], name: str | int, what: str) -> _Facts:
    """Return the input or output of this name or position; ``what`` begins the message.

    Raises:
        NotFoundError: With the nearest name.

    """
    if isinstance(name, int) and not isinstance(name, bool) and 0 <= name < len(values):
        return values[name]
    for value in values:
        if value.name == name:
            return value
    raise stranger(values, name, what)


def stranger(values: Sequence[ValueFacts], name: object, what: str) -> NotFoundError:
    """Return the error about a name that no input or output has."""
    role = values[0].role if values else "value"
    near = nearest(str(name), [value.name for value in values])
    meant = f" (did you mean {near}?)" if near is not None else ""
    return NotFoundError(
        f"{what} has no {role} {name!r}{meant}; its {role}s are {listed(values)}"
        if values
        else f"{what} has no {role} {name!r}; it has none"
    )


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name that is most like a misspelt one."""
    from difflib import get_close_matches  # only for an error

    lower = {known.lower(): known for known in names}
    found = get_close_matches(name.lower(), list(lower), n=1, cutoff=0.6)
    if not found and len(name) > 2:  # the beginning of a longer name
        found = [known for known in lower if known.startswith(name.lower())]
    return lower[found[0]] if found else None


def listed(values: Sequence[ValueFacts]) -> str:
    """Return the names of inputs or outputs with their types, for a message."""
    return ", ".join(f"{value.name}: {value.type_text}" for value in values) or "none"


# -- pytree specs ---------------------------------------------------------------------------------


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
