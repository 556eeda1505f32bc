"""Kernels for every operator that torch has a schema for.

The name in a program is looked up as it is (``aten::view_copy.dtype_out``). Where torch has no such
overload, the functional one is taken (``foo.Tensor`` for ``foo.Tensor_out``) and its result is
written into the slot. Operators of other libraries (``torch.library``) are found the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pteron.format.schema import ScalarType
from pteron.kernels.admission import is_admitted
from pteron.kernels.aten_audited import AUDITED
from pteron.kernels.aten_tables import (
    CONTIGUOUS_OUTS,
    FAST,
    FAST_NN,
    KEEP_LAYOUT,
    RANDOM,
    SPECIAL,
    WRITES,
)
from pteron.kernels.aten_views import VIEW_LISTS, VIEWS, copies_of, copy_of
from pteron.kernels.promotion import steady, watched
from pteron.kernels.registry import Kernel, OperatorRegistry, Style
from pteron.kernels.result_sizes import BOUNDED, RESULT_SIZES
from pteron.kernels.write import contiguous_outs, write_list

_Converter = Callable[[Any], Any]
_FACTORY_ARGUMENTS = frozenset({"device", "layout", "pin_memory"})


def to_dtype(value: int | torch.dtype | None) -> torch.dtype | None:
    """Return the torch.dtype of a ScalarType's number."""
    if value is None or isinstance(value, torch.dtype):
        return value
    dtype = getattr(torch, ScalarType(value).torch_name)
    assert isinstance(dtype, torch.dtype)
    return dtype


_MEMORY_FORMATS = (
    torch.contiguous_format,
    torch.preserve_format,
    torch.channels_last,
    torch.channels_last_3d,
)


def to_memory_format(value: int | torch.memory_format | None) -> torch.memory_format | None:
    """Return the torch.memory_format of a number."""
    if value is None or isinstance(value, torch.memory_format):
        return value
    return _MEMORY_FORMATS[value]


def to_none(_: Any) -> None:
    """Leave out a device, a layout or pinning: the slot has its own."""


def aten_kernel(name: str) -> Kernel | None:
    """Return the kernel for a full operator name, or None if torch knows no such operator."""
    qualified, _, overload = name.partition(".")
    schema = _schema(qualified, overload)
    if schema is None:
        kernel = _kernel_of_functional(name, qualified, overload)
    elif any(argument.is_out for argument in schema.arguments):
        kernel = _out_kernel(name, qualified, overload, schema)
    elif any(_is_written(argument) for argument in schema.arguments):
        kernel = _inplace_kernel(name, qualified, overload, schema)
    else:
        kernel = _functional_kernel(name, qualified, overload, schema, returns=0)
    return None if kernel is None else _with_facts(kernel)


def _with_facts(kernel: Kernel) -> Kernel:
    """Add what a schema does not say: that memory does not matter, and that calls repeat."""
    namespace, _, name = kernel.name.partition("::")
    if namespace != "aten":
        return kernel
    facts: dict[str, Any] = {"bounded": name in BOUNDED, "result_sizes": RESULT_SIZES.get(name)}
    if name in _REPLACES:
        facts["replaces"] = True
    if name in AUDITED:
        pure = not kernel.random and not kernel.mutated
        return replace(kernel, dense=(), pure=pure, **facts)
    return replace(kernel, dense=_DENSE.get(name), **facts)


_REPLACES = frozenset({"copy_"})
_DENSE: dict[str, tuple[int, ...]] = {
    "_native_batch_norm_legit.out": (),
    "copy_": (),
    "index_put_": (0,),
    "native_batch_norm.out": (),
    "native_group_norm.out": (0, 1, 2),
}
"""Operators that are not in :data:`AUDITED`, and which of their inputs have to be dense."""


def known_names() -> Iterable[str]:
    """List the out variants and in-place operators of ATen that a program may call."""
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}".rstrip(".")
        if not schema.name.startswith("aten::"):
            continue
        if any(a.is_out for a in schema.arguments) or name in _LISTED_INPLACE:
            if is_admitted(schema.name, schema.overload_name, schema):
                yield name


_LISTED_INPLACE = frozenset({"aten::copy_", "aten::index_put_"})


def register(registry: OperatorRegistry) -> None:
    """Add the factory of this file."""
    registry.register_factory(aten_kernel, names=known_names)


def _out_kernel(name: str, qualified: str, overload: str, schema: Any) -> Kernel:
    inputs = [a for a in schema.arguments if not a.is_out]
    outs = [a for a in schema.arguments if a.is_out]
    kernel = Kernel(
        name=name,
        style=Style.OUT,
        function=_call(qualified, overload),
        positional=sum(not a.kwarg_only for a in inputs),
        keywords=tuple(a.name for a in inputs if a.kwarg_only),
        out_names=tuple(a.name for a in outs),
        also_mutates=tuple(i for i, a in enumerate(inputs) if _is_written(a)),
        defaults=_defaults(inputs),
        converters=_converters(inputs),
    )
    return _specialize(_tagged(kernel, qualified, overload), inputs, outs)


def _inplace_kernel(name: str, qualified: str, overload: str, schema: Any) -> Kernel:
    inputs = list(schema.arguments)
    written = [i for i, argument in enumerate(inputs) if _is_written(argument)]
    kernel = Kernel(
        name=name,
        style=Style.INPLACE,
        function=_call(qualified, overload),
        positional=sum(not a.kwarg_only for a in inputs),
        keywords=tuple(a.name for a in inputs if a.kwarg_only),
        returns=len(schema.returns),
        mutates=written[0],
        also_mutates=tuple(written[1:]),
        defaults=_defaults(inputs),
        converters=_converters(inputs),
    )
    return _specialize(_tagged(kernel, qualified, overload), inputs)


def _functional_kernel(
    name: str, qualified: str, overload: str, schema: Any, *, returns: int
) -> Kernel | None:
    """Return a kernel that writes results into slots; ``returns`` of 1 if they are repeated."""
    inputs = list(schema.arguments)
    kinds = [str(r.type) for r in schema.returns]
    function = _call(qualified, overload)
    style, out_names = Style.FUNCTIONAL, tuple(f"out{i}" for i in range(len(kinds)))
    if kinds == ["List[Tensor]"]:
        style, function = Style.OUT, _list_writer(function)
    elif not kinds:
        style = Style.INPLACE
    elif all(kind in ("int", "float", "bool", "number", "Scalar") for kind in kinds):
        style, out_names, returns = Style.VALUE, (), 1
    elif any(kind != "Tensor" for kind in kinds):
        return None
    if len(out_names) == 1:
        out_names = ("out",)
    kernel = Kernel(
        name=name,
        style=style,
        function=function,
        positional=sum(not a.kwarg_only for a in inputs),
        keywords=tuple(a.name for a in inputs if a.kwarg_only),
        out_names=out_names,
        returns=returns,
        also_mutates=tuple(i for i, a in enumerate(inputs) if _is_written(a)),
        defaults=_defaults(inputs),
        converters=_converters(inputs),
    )
    if qualified.startswith("aten::"):
        kernel = replace(kernel, function=watched(kernel, _kinds(inputs)))
    return _tagged(kernel, qualified, overload)


def _kernel_of_functional(name: str, qualified: str, overload: str) -> Kernel | None:
    """Return a kernel for an out variant that torch does not have, from the functional operator."""
    functional = _functional_overload(overload)
    if functional is None:
        return None
    schema = _schema(qualified, functional)
    if schema is None or any(_is_written(a) for a in schema.arguments):
        return None
    return _functional_kernel(name, qualified, functional, schema, returns=1)


def _functional_overload(overload: str) -> str | None:
    if overload == "out":
        return ""
    if overload.endswith("_out"):
        return overload[: -len("_out")]
    if overload.startswith("out_"):
        return overload[len("out_") :]
    return None


def _specialize(kernel: Kernel, inputs: Sequence[Any], outs: Sequence[Any] = ()) -> Kernel:
    """Put the callable of the tables in place of torch's, or guard torch's.

    What no table names may compute in the default dtype, and may write wrongly into out tensors
    that are not contiguous.
    """
    namespace, _, name = kernel.name.partition("::")
    known = _from_tables(kernel, name, inputs) if namespace == "aten" else None
    found = kernel if known is None else known
    if namespace == "aten":
        function = steady(name, found)
        if function is not None:
            found = replace(found, function=function, float_function=found.function)
        elif known is None:
            found = replace(found, function=watched(found, _kinds(inputs)))
        found = replace(
            found,
            random=found.random or name in RANDOM,
            also_mutates=WRITES.get(name, found.also_mutates),
        )
    guarded = name in CONTIGUOUS_OUTS or (known is None and name not in KEEP_LAYOUT)
    if guarded and found.style is Style.OUT and all(str(a.type) == "Tensor" for a in outs):
        found = replace(found, function=contiguous_outs(found.function, found.out_names))
    return found


def _from_tables(kernel: Kernel, name: str, inputs: Sequence[Any]) -> Kernel | None:
    """Return the kernel that a table has for an ATen operator, or None."""
    base = name.partition(".")[0]
    if name in FAST:
        return replace(kernel, function=getattr(torch._C._VariableFunctions, base))
    if name in FAST_NN:
        return replace(kernel, function=getattr(torch._C._nn, base))
    if name in VIEWS:
        return replace(kernel, function=copy_of(VIEWS[name]), view=VIEWS[name])
    if name in VIEW_LISTS:
        return replace(kernel, function=copies_of(VIEW_LISTS[name]))
    special = SPECIAL.get(name)
    if special is None:
        return None
    positional = kernel.positional if special.positional is None else special.positional
    by_keyword = inputs[positional:]
    dependent = special.data_dependent
    return replace(
        kernel,
        style=special.style,
        function=special.function,
        positional=positional,
        keywords=tuple(a.name for a in by_keyword),
        defaults={a.name: a.default_value for a in by_keyword if a.has_default_value()},
        masks=special.masks,
        data_dependent=kernel.data_dependent if dependent is None else dependent,
    )


def _schema(qualified: str, overload: str) -> Any:
    """Return the schema of an operator that torch has and a program may call, or None."""
    try:
        schema = torch._C._get_schema(qualified, overload)
        return schema if is_admitted(qualified, overload, schema) else None
    except (RuntimeError, AttributeError):
        return None


def _call(qualified: str, overload: str) -> Callable[..., Any]:
    """Return torch's own callable of one overload, without the Python frame around it."""
    namespace, _, base = qualified.partition("::")
    packet = getattr(getattr(torch.ops, namespace), base)
    function = getattr(packet, overload or "default")._op
    assert callable(function)
    return function  # type: ignore[no-any-return]


def _list_writer(function: Callable[..., Sequence[Tensor]]) -> Callable[..., None]:
    def kernel(*args: Any, out: Sequence[Tensor], **kwargs: Any) -> None:
        write_list(out, function(*args, **kwargs))

    return kernel


def _kinds(inputs: Sequence[Any]) -> list[str]:
    return [str(argument.type) for argument in inputs]


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def _defaults(inputs: Sequence[Any]) -> Mapping[str, Any]:
    return {a.name: a.default_value for a in inputs if a.kwarg_only and a.has_default_value()}


def _converters(inputs: Sequence[Any]) -> tuple[tuple[int, _Converter], ...]:
    converters: list[tuple[int, _Converter]] = []
    for position, argument in enumerate(inputs):
        kind = str(argument.real_type)
        if "ScalarType" in kind:
            converters.append((position, to_dtype))
        elif "MemoryFormat" in kind:
            converters.append((position, to_memory_format))
        elif "Device" in kind or "Layout" in kind or argument.name in _FACTORY_ARGUMENTS:
            converters.append((position, to_none))
    return tuple(converters)


def _tagged(kernel: Kernel, qualified: str, overload: str) -> Kernel:
    """Mark a kernel by torch's tags: of the overload, and of the functional one, which has more."""
    namespace, _, base = qualified.partition("::")
    packet = getattr(getattr(torch.ops, namespace), base)
    tags: set[Any] = set()
    for candidate in {overload or "default", _functional_overload(overload) or "default"}:
        found = getattr(packet, candidate, None)
        tags |= set(found.tags) if found is not None else set()
    dependent = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return replace(
        kernel,
        data_dependent=bool(tags & dependent),
        random=torch.Tag.nondeterministic_seeded in tags,
        tells_shapes=namespace == "aten",
    )
