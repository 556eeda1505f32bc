"""What an operator's results should be, and ways to run it: the kernel alone, or in a program."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pteron.kernels import Kernel, Style, default_registry
from pteron.kernels.write import write
from support.dense import dim_order
from support.operator_cases import Case

RANDOM = frozenset({"aten::rand.out", "aten::randn.out", "aten::native_dropout.out"})
UNDEFINED = frozenset({"aten::empty.out", "dim_order_ops::_empty_dim_order.out"})
"""Operators whose elements are whatever memory held."""

SCHEMAS = {
    "dim_order_ops::_to_dim_order_copy.out": (
        "(Tensor self, *, bool non_blocking=False, int[]? dim_order=None, Tensor(a!) out)"
    ),
    "dim_order_ops::_clone_dim_order.out": (
        "(Tensor self, *, bool non_blocking=False, int[]? dim_order=None, Tensor(a!) out)"
    ),
    "dim_order_ops::_empty_dim_order.out": (
        "(int[] size, *, int[]? dim_order=None, Tensor(a!) out)"
    ),
    "et_copy::_h2d_copy.out": "(Tensor self, *, Tensor(a!) out)",
    "et_copy::_d2h_copy.out": "(Tensor self, *, Tensor(a!) out)",
}
"""Of operators that torch does not have (``exir/passes``)."""

GUARD = 64
"""Bytes on both sides of a slot that nothing may write to."""

FACTORY = frozenset({"dtype", "layout", "device", "pin_memory"})


@dataclass(frozen=True)
class Signature:
    """An operator's schema as a program writes it."""

    kinds: tuple[str, ...]
    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    written: tuple[int, ...]
    lists: bool
    """Whether the out argument, or the result, is a list of tensors."""
    outs: bool
    """Whether there are out arguments."""


@cache
def signature(name: str) -> Signature:
    """Return the inputs of an out variant or in-place operator."""
    base, _, overload = name.partition(".")
    if name in SCHEMAS:
        schema = torch._C.parse_schema(f"{name}{SCHEMAS[name]} -> Tensor(a!)")
    else:
        try:
            schema = torch._C._get_schema(base, overload)
        except RuntimeError:
            schema = torch._C._get_schema(base, overload.removesuffix("_out"))
    inputs = [a for a in schema.arguments if not a.is_out]
    return Signature(
        tuple(str(a.type) for a in inputs),
        tuple(a.name for a in inputs),
        tuple(a.default_value for a in inputs),
        tuple(
            i for i, a in enumerate(inputs) if a.alias_info is not None and a.alias_info.is_write
        ),
        any(
            str(a.type) == "List[Tensor]"
            for a in (*schema.arguments[len(inputs) :], *schema.returns)
        ),
        len(inputs) < len(schema.arguments) or overload.endswith("out"),
    )


def full_args(name: str, case: Case) -> list[Any]:
    """Return a case's arguments, with the schema's defaults for those left out."""
    return [*case.args, *signature(name).defaults[len(case.args) :]]


@cache
def functional(name: str) -> Any:
    """Return the ATen operator that returns what ``name`` writes into its out tensors."""
    base, _, overload = name.removeprefix("aten::").partition(".")
    if not signature(name).outs and not base.endswith("_"):
        return getattr(getattr(torch.ops.aten, base), overload or "default")
    packet = getattr(torch.ops.aten, base.removesuffix("_") if not overload else base)
    wanted = signature(name)
    found = []
    for candidate in packet.overloads():
        operator = getattr(packet, candidate)
        arguments = operator._schema.arguments
        if any(a.is_out for a in arguments) or not operator._schema.returns:
            continue
        own = [a for a in arguments if a.name not in FACTORY or a.name in wanted.names]
        if tuple((a.name, str(a.type)) for a in own) == tuple(
            zip(wanted.names, wanted.kinds, strict=True)
        ):
            found.append(operator)
    assert len(found) == 1, f"{name}: {len(found)} functional forms"
    return found[0]


def memory_format(order: Sequence[int] | None) -> torch.memory_format:
    """Return the memory format of a dim order that an exporter writes."""
    if order is None:
        return torch.preserve_format
    return torch.channels_last if list(order) == [0, 2, 3, 1] else torch.contiguous_format


def expected(name: str, case: Case) -> tuple[list[Any], list[Any]]:
    """Return eager results (a tensor each, or a list of tensors), and the inputs afterwards.

    Random operators draw from the generator as it stands.
    """
    args = [a.clone() if isinstance(a, Tensor) else a for a in full_args(name, case)]
    namespace = name.partition("::")[0]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if namespace == "aten":
            operator = functional(name)
            extra = {} if case.dtype is None else {"dtype": case.dtype}
            by_keyword = {a.name for a in operator._schema.arguments if a.kwarg_only}
            names = signature(name).names
            given = dict(zip(names, args, strict=True))
            keywords = {n: v for n, v in given.items() if n in by_keyword}
            positional = [v for n, v in given.items() if n not in by_keyword]
            result = operator(*positional, **{**extra, **keywords})
        elif name == "dim_order_ops::_empty_dim_order.out":
            result = torch.empty(args[0], dtype=case.dtype)
        else:
            order = memory_format(args[2] if len(args) > 2 else None)
            result = torch.ops.aten._to_copy(case.args[0], dtype=case.dtype, memory_format=order)
    if isinstance(result, Tensor):
        return [result], args
    return ([list(result)] if signature(name).lists else list(result)), args


class Slot:
    """Owns a tensor over exactly its bytes, which cannot grow, with a guard on both sides."""

    def __init__(self, like: Tensor) -> None:
        nbytes = like.numel() * like.element_size()
        self.arena = torch.full((nbytes + 2 * GUARD,), 0xA5, dtype=torch.uint8, device=like.device)
        inner = torch.from_dlpack(self.arena[GUARD : GUARD + nbytes]).view(like.dtype)
        order = dim_order(like)
        shape = [like.shape[d] for d in order]
        self.tensor = inner.view(shape).permute([order.index(d) for d in range(like.dim())])
        self.strides, self.address = self.tensor.stride(), self.tensor.data_ptr()

    def problems(self) -> list[str]:
        """Say what is wrong with the memory around the tensor."""
        found = []
        guards = torch.cat([self.arena[:GUARD], self.arena[-GUARD:]])
        if not bool((guards == 0xA5).all()):
            found.append("wrote outside its slot")
        if self.tensor.data_ptr() != self.address and self.tensor.numel():
            found.append("moved away from its slot")
        return found


def run_kernel(kernel: Kernel, args: Sequence[Any], outs: Sequence[Any]) -> None:
    """Call a kernel the way the executor does; write what a functional one returns."""
    values = list(args)
    for position, convert in kernel.converters:
        values[position] = convert(values[position])
    keywords = {
        name: value
        for name, value in zip(kernel.keywords, values[kernel.positional :], strict=True)
        if not (name in kernel.defaults and _same(value, kernel.defaults[name]))
    }
    with torch.inference_mode():
        if kernel.style in (Style.OUT, Style.DEVICE_COPY):
            keywords.update(zip(kernel.out_names, outs, strict=True))
        result = kernel.function(*values[: kernel.positional], **keywords)
        if kernel.style is Style.FUNCTIONAL:
            results = [result] if isinstance(result, Tensor) else result
            for out, one in zip(outs, results, strict=True):
                write(out, one)


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)


TOLERANCE: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-9, 1e-9),
    torch.float32: (2e-5, 2e-5),
    torch.float16: (4e-3, 4e-3),
    torch.bfloat16: (3e-2, 3e-2),
    torch.complex64: (2e-5, 2e-5),
    torch.complex128: (1e-9, 1e-9),
}


def difference(got: Any, want: Tensor, *, exact: bool = False) -> str | None:
    """Say how a result differs from what it should be, or None."""
    if not isinstance(got, Tensor):
        return f"is {got!r}, not a tensor"
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"is {got.dtype} {tuple(got.shape)}, not {want.dtype} {tuple(want.shape)}"
    rtol, atol = (0.0, 0.0) if exact else TOLERANCE.get(want.dtype, (0.0, 0.0))
    try:
        torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())
    return None


def flat(results: Sequence[Any]) -> list[Tensor]:
    """Return results with lists opened."""
    return [t for r in results for t in (r if isinstance(r, list) else [r])]


def moved(value: Any, device: str) -> Any:
    """Return a copy of an argument on a device; strides stay as they are."""
    if isinstance(value, (list, tuple)):
        return [moved(v, device) for v in value]
    if not isinstance(value, Tensor):
        return value
    if device == "cpu" or value.dim() == 0:
        return value.clone().to(device)
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    return value.to(device) if 0 in value.stride() else copy.copy_(value)


def kernel_problems(
    name: str, number: int, case: Case, *, dynamic: bool, device: str = "cpu"
) -> list[str]:
    """Run a kernel on slots; say how the results, or the memory around them, differ from eager."""
    kernel = default_registry().find(name)
    assert kernel is not None
    case = Case(tuple(moved(case.args, device)), case.dtype, case.bounds)
    generator = torch.cuda if device == "cuda" else torch
    state = generator.get_rng_state()
    wanted, inputs_after = expected(name, case)
    if device == "cuda" and not any(isinstance(a, Tensor) for a in case.args):
        wanted = moved(wanted, device)
    args = [a.clone() if isinstance(a, Tensor) else a for a in full_args(name, case)]
    if kernel.style is Style.INPLACE:
        slots = [Slot(args[0])]
        args[0] = slots[0].tensor.copy_(args[0])
        outs: list[Any] = []
    else:
        slots = [Slot(t) for t in flat(wanted)]
        tensors = iter(slot.tensor for slot in slots)
        outs = [
            [next(tensors) for _ in w] if isinstance(w, list) else next(tensors) for w in wanted
        ]
    for slot in slots if dynamic else ():
        slot.tensor.resize_(0)
    generator.set_rng_state(state)
    run_kernel(kernel, args, outs)
    found = []
    for index, (slot, want) in enumerate(zip(slots, flat(wanted), strict=True)):
        found += slot.problems()
        if not dynamic and slot.tensor.stride() != slot.strides:
            found.append(f"result {index} lies otherwise: {slot.tensor.stride()}")
        drawn = name in RANDOM and device != "cpu"  # a factory's oracle draws on the host
        if (name in UNDEFINED or drawn) and slot.tensor.shape == want.shape:
            want = slot.tensor.to(want.dtype)
        problem = difference(slot.tensor, want, exact=device == "cpu")
        if problem is not None:
            found.append(f"result {index} {problem}")
    for position in signature(name).written:
        if kernel.style is not Style.INPLACE:
            problem = difference(args[position], inputs_after[position])
            found += [f"input {position} {problem}"] if problem else []
    shown = [tuple(a.shape) if isinstance(a, Tensor) else a for a in case.args]
    return [f"case {number} {shown}: {problem}" for problem in found]
