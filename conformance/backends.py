"""The peer's demo delegates, which its released wheel lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from pteron.backends.interface import Backend, BackendInitContext, DelegateHandle
from pteron.format.source import open_source
from pteron.runtime import Program
from support.demo_backend import DemoBackend

__all__ = ["DemoBackend", "ExecutorBackend"]


class ExecutorHandle(DelegateHandle):
    """Owns the program that is a delegate's blob."""

    def __init__(self, context: BackendInitContext) -> None:
        self._program = Program(open_source(bytes(context.processed)))
        if context.named_data.keys():
            self._program._data_map = context.named_data
        self._method = self._program.load_method("forward")

    def bind(self, args: Sequence[Any]) -> Callable[[], None]:
        count = self._method.metadata.num_inputs()
        inputs, outs = list(args[:count]), list(args[count:])

        def call() -> None:
            results = self._method.execute(inputs)
            for out, result in zip(outs, results, strict=True):
                if isinstance(out, torch.Tensor):
                    if out.shape != result.shape:
                        out.resize_(result.shape)
                    out.copy_(result)

        return call

    def close(self) -> None:
        self._program.close()


class ExecutorBackend(Backend):
    """A delegate whose blob is a program of its own (the peer's ``demos/rpc``)."""

    id: ClassVar[str] = "ExecutorBackend"

    def init(self, context: BackendInitContext) -> ExecutorHandle:
        return ExecutorHandle(context)
