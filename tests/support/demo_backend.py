"""ExecuTorch's demo backend (``BackendWithCompilerDemo``) in Python.

Its blob is text: ``<n>version:0#``, then for each operator
``op:demo::<name>, numel:<k>, dtype:<torch dtype><debug_handle><h>#``. The text does not say which
value an operator takes: the first takes the delegate's first inputs, the others take what the one
before gave, and then the inputs that are left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

from pteron.backends.interface import Backend, BackendInitContext, DelegateHandle
from pteron.backends.registry import default_backends
from pteron.errors import (
    DelegateInvalidCompatibilityError,
    DelegateInvalidHandleError,
    InvalidArgumentError,
    InvalidProgramError,
    NotSupportedError,
)
from support.tagged_device import TaggedDevice

MAX_SHAPE = 4
"""What the demo backend takes at most as ``max_value``, the size of the input at export."""

HEADER = re.compile(r"(?P<count>\d+)version:(?P<version>\d+)#")
OPERATOR = re.compile(
    r"op:demo::(?P<name>[\w.]+), numel:(?P<numel>\d+), dtype:(?P<dtype>[\w.]+)"
    r"<debug_handle>(?P<handle>-?\d+)#"
)


def _sin(x: torch.Tensor) -> torch.Tensor:
    return x - x * x * x / 6  # the two terms of the series that the demo backend computes


OPERATORS: dict[str, Callable[..., torch.Tensor]] = {
    "aten.add.Tensor": torch.add,
    "aten.mm.default": torch.mm,
    "aten.sin.default": _sin,
}
INPUTS = {"aten.add.Tensor": 2, "aten.mm.default": 2, "aten.sin.default": 1}


class DemoHandle(DelegateHandle):
    """Runs the operators of one blob."""

    def __init__(
        self, context: BackendInitContext, names: Sequence[str], device: TaggedDevice | None
    ) -> None:
        self.context = context
        self.device = device
        self.names = tuple(names)
        self.args: list[Any] = []
        self.runs = 0
        self.closed = False

    def bind(self, args: Sequence[Any]) -> Callable[[], None]:
        self.args = list(args)
        inputs, out = list(args[:-1]), args[-1]

        def call() -> None:
            if self.closed:
                raise DelegateInvalidHandleError("the demo delegate is closed")
            if self.device is None:
                compute()
            else:
                self.device.enqueue(compute)

        def compute() -> None:
            left = list(inputs)
            result: torch.Tensor | None = None
            for name in self.names:
                taken = [] if result is None else [result]
                taken += [left.pop(0) for _ in range(INPUTS[name] - len(taken))]
                result = OPERATORS[name](*taken)
            assert result is not None
            out.resize_(result.shape).copy_(result)
            self.runs += 1

        return call

    def close(self) -> None:
        self.closed = True
        self.args = []


class DemoBackend(Backend):
    """Keeps its handles, so that a test can see what they were given."""

    id: ClassVar[str] = "BackendWithCompilerDemo"

    def __init__(self) -> None:
        self.handles: list[DemoHandle] = []
        self.device: TaggedDevice | None = None
        """The device that does the work, at its time; None: the host, at once."""

    def init(self, context: BackendInitContext) -> DemoHandle:
        for spec in context.compile_specs:
            if spec.key == "max_value" and spec.value[0] > MAX_SHAPE:
                raise InvalidArgumentError(
                    f"the input has {spec.value[0]} elements, the demo backend takes {MAX_SHAPE}"
                )
        handle = DemoHandle(context, parsed(bytes(context.processed).decode()), self.device)
        self.handles.append(handle)
        return handle


def parsed(blob: str) -> list[str]:
    """Return the operators of a blob."""
    header = HEADER.match(blob)
    if header is None:
        raise InvalidProgramError(f"a demo blob begins with '<n>version:0#', got {blob[:20]!r}")
    if int(header["version"]) != 0:
        raise DelegateInvalidCompatibilityError(
            f"the demo backend reads version 0, the blob has version {header['version']}"
        )
    operators = list(OPERATOR.finditer(blob, header.end()))
    if len(operators) != int(header["count"]):
        raise InvalidProgramError(f"the blob has {len(operators)} of {header['count']} operators")
    for operator in operators:
        if operator["name"] not in OPERATORS or operator["dtype"] != "torch.float32":
            raise NotSupportedError(f"the demo backend has no {operator[0]!r}")
    return [operator["name"] for operator in operators]


@contextmanager
def demo_backend() -> Iterator[DemoBackend]:
    """Register the backend for the whole process inside a ``with`` block."""
    backend = DemoBackend()
    default_backends.register(backend)
    try:
        yield backend
    finally:
        default_backends.unregister(backend.id)
