"""The other side: a program on pteron, in every way that must not make a difference."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from differential.random_programs.own_delegates import PREFIX, RowBackend
from differential.random_programs.own_kernels import WITH_STATE, pteron_kernels
from pteron import Method, Runtime
from pteron.memory.device_allocator import device_allocator
from pteron.runtime import Program
from support.tagged_device import TaggedDevice

HAS_SWITCH = "optimize" in inspect.signature(Runtime.load_program).parameters
DEVICE_MAP = {"cpu": "cuda"}


def opened(data: bytes, *, passes: bool, **facts: Any) -> Program:
    """Open a program with or without the passes that leave work out (see also ``loading``)."""
    if HAS_SWITCH:
        facts["optimize"] = passes
    return Runtime.get().load_program(data, **facts)


@contextmanager
def loading(*, passes: bool) -> Iterator[None]:
    """Load methods with or without the passes, where ``load_program`` has no switch."""
    if HAS_SWITCH:
        yield
        return
    from pteron.executor.bind import PlanBinder

    defaults = PlanBinder.__init__.__kwdefaults__
    assert defaults is not None
    before = defaults["optimize"]
    defaults["optimize"] = passes
    try:
        yield
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
    ambient: bool = False
    """The calling process works in bfloat16 by default."""


VARIANTS: tuple[Variant, ...] = (
    Variant("passes on", scribble=True),
    Variant("passes off, borrowed, ambient", passes=False, borrow=True, ambient=True),
    Variant("passes on, borrowed, strided, second", borrow=True, strided=True, second=True),
    Variant("passes off, strided, second", passes=False, strided=True, second=True),
    Variant("passes on, device", device=True),
)
"""Every way is in one of them at least; together they are quick."""

MORE_VARIANTS: tuple[Variant, ...] = (
    *VARIANTS,
    Variant("passes off", passes=False),
    Variant("passes off, ambient", passes=False, ambient=True),
    Variant("passes on, borrowed", borrow=True),
    Variant("passes on, strided", strided=True),
    Variant("passes on, second", second=True),
    Variant("passes off, device, borrowed", passes=False, device=True, borrow=True),
)
"""Those that tell apart what the combined ones found."""


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


class InputChanged(Exception):
    """A call changed an input that the program only reads."""


@contextmanager
def surroundings(variant: Variant) -> Iterator[None]:
    """Set what must not matter to a method."""
    before = torch.get_default_dtype()
    if variant.ambient:
        torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Session:
    """Owns a file that is open in several ways, for the variants that take turns on it."""

    def __init__(self, data: bytes, operators: set[str]) -> None:
        self._data = data
        self._operators = operators
        self._counts = any(name.removesuffix(".out") in WITH_STATE for name in operators)
        self._programs: dict[Any, Program] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _program(self, variant: Variant) -> Program:
        key = variant if self._counts else (variant.passes, variant.device)
        if key not in self._programs:
            facts: dict[str, Any] = {"kernels": pteron_kernels(self._operators) or None}
            if any(name.startswith(PREFIX) for name in self._operators):
                facts["backends"] = {RowBackend.id: RowBackend()}
            if variant.device:
                facts["device_map"] = DEVICE_MAP
            program = opened(self._data, passes=variant.passes, **facts)
            self._programs[key] = self._stack.enter_context(program)
        return self._programs[key]

    def run(
        self,
        calls: Sequence[Sequence[Any]],
        variant: Variant,
        changed: frozenset[int] | None = None,
    ) -> Iterator[tuple[int, list[Any]]]:
        """Yield the outputs of every call; at the end those of all again, where they are owned.

        Outputs that a call lent are copied at once, as a caller has to. ``changed`` are the inputs
        that a call may change (None: any).
        """
        device = device_allocator(TaggedDevice()) if variant.device else nullcontext()
        with device:
            program = self._program(variant)
            with loading(passes=variant.passes):
                load = program.new_method if variant.second else program.load_method
                method: Method = load("forward")
            if not variant.second and method.state:
                method.reset()
            held: list[tuple[int, list[Any]]] = []
            for number, given in enumerate(calls):
                inputs = _inputs(given, variant)
                with surroundings(variant):
                    outputs = method.execute(inputs, borrow_outputs=variant.borrow)
                if changed is not None:
                    _compare_inputs(given, inputs, changed)
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


def _compare_inputs(before: Sequence[Any], after: Sequence[Any], changed: frozenset[int]) -> None:
    for at, (old, new) in enumerate(zip(before, after, strict=True)):
        if at not in changed and isinstance(old, Tensor) and not torch.equal(old, new):
            raise InputChanged(f"input {at} was {old.flatten()[:8].tolist()} before the call")


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def quiet() -> None:
    """Keep pteron's and torch's warnings about these programs out of the output."""
    logging.getLogger("pteron").setLevel(logging.ERROR)
    torch.set_num_threads(1)
