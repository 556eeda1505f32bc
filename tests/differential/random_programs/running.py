"""The other side: a program on pteron, in every way that must not make a difference."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from differential.random_programs.own_kernels import pteron_kernels
from pteron import Method, Runtime
from pteron.memory.device_allocator import device_allocator
from support.tagged_device import TaggedDevice

HAS_SWITCH = "optimize" in inspect.signature(Runtime.load_program).parameters


@contextmanager
def opened(
    data: bytes, kernels: Mapping[str, Any], *, passes: bool, device_map: Any = None
) -> Iterator[Any]:
    """Open a program with or without the passes that leave work out.

    This is the only place that knows how they are switched off.
    """
    facts: dict[str, Any] = {"kernels": kernels or None, "device_map": device_map}
    if HAS_SWITCH:
        with Runtime.get().load_program(data, optimize=passes, **facts) as program:
            yield program
        return
    from pteron.executor.bind import PlanBinder

    defaults = PlanBinder.__init__.__kwdefaults__
    assert defaults is not None
    before = defaults["optimize"]
    defaults["optimize"] = passes
    try:
        with Runtime.get().load_program(data, **facts) as program:
            yield program
    finally:
        defaults["optimize"] = before


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a program."""

    name: str
    passes: bool = True
    borrow: bool = False
    strided: bool = False
    """Inputs that are slices, transposed or expanded in memory."""
    second: bool = False
    """A second instance, after the first one ran."""
    device: bool = False
    """On a device that stands in for an accelerator."""
    scribble: bool = False
    """The caller writes over its own outputs between the calls."""


VARIANTS: tuple[Variant, ...] = (
    Variant("passes on", scribble=True),
    Variant("passes off", passes=False),
    Variant("passes on, borrowed, strided", borrow=True, strided=True),
    Variant("passes off, borrowed, strided", passes=False, borrow=True, strided=True),
    Variant("second instance", second=True),
    Variant("on a device", device=True),
    Variant("on a device, passes off, borrowed", passes=False, device=True, borrow=True),
)


def strided(tensor: Tensor, number: int) -> Tensor:
    """Return the same numbers with other strides."""
    kind = number % 3
    if tensor.dim() == 0 or tensor.numel() == 0:
        return tensor
    if kind == 0 and tensor.dim() > 1:  # transposed
        order = list(reversed(range(tensor.dim())))
        return tensor.permute(order).contiguous().permute(order)
    if kind == 1 and bool((tensor == tensor.select(0, 0)).all()):
        return tensor.select(0, 0).clone().expand(tensor.shape)
    wide = tensor.new_full((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1), 1)
    wide[..., 1::2] = tensor
    return wide[..., 1::2]


def run(
    data: bytes, operators: set[str], calls: Sequence[Sequence[Any]], variant: Variant
) -> Iterator[tuple[int, list[Any]]]:
    """Yield the outputs of every call; after the last call, those of all again, if they are owned.

    Outputs that a call lent are copied at once, as a caller has to.
    """
    kernels = pteron_kernels(operators)
    device = device_allocator(TaggedDevice()) if variant.device else nullcontext()
    place = {"cpu": "cuda"} if variant.device else None
    with (
        device,
        opened(data, kernels, passes=variant.passes, device_map=place) as program,
    ):
        method: Method = program.load_method("forward")
        if variant.second:
            if not any(name.startswith("own::") for name in kernels):  # they may count calls
                method.execute(_inputs(calls[0], variant))
            method = program.new_method("forward")
        held: list[tuple[int, list[Any]]] = []
        for number, given in enumerate(calls):
            inputs = _inputs(given, variant)
            outputs = method.execute(inputs, borrow_outputs=variant.borrow)
            if variant.borrow:
                yield number, [_copy(value) for value in outputs]
                continue
            yield number, outputs
            if variant.scribble:
                for value in outputs:
                    if isinstance(value, Tensor):
                        value.fill_(1)
            else:
                held.append((number, outputs))
        yield from held


def _inputs(given: Sequence[Any], variant: Variant) -> list[Any]:
    found = [t.clone() if isinstance(t, Tensor) else t for t in given]
    if not variant.strided:
        return found
    return [strided(t, n) if isinstance(t, Tensor) else t for n, t in enumerate(found)]


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def quiet() -> None:
    """Keep pteron's and torch's warnings about these programs out of the output."""
    logging.getLogger("pteron").setLevel(logging.ERROR)
    torch.set_num_threads(1)
