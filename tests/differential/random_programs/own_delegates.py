"""A delegate that computes what its blob names: the blob is the name of a row.

It takes its arguments by pointer, as compiled code does: dense, in the order of their dims.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from differential.random_programs import draws as d
from differential.random_programs.table import Draw, Row
from pteron.backends.interface import Backend, BackendInitContext, DelegateHandle

PREFIX = "delegate::"


def memory(x: Tensor) -> Tensor:
    """Return a tensor's elements in the order of its memory, as code with a pointer sees them."""
    return x.as_strided((x.numel(),), (1,))


def turned(x: Tensor) -> Tensor:
    """Return the elements of memory, last first."""
    return memory(x).flip(0)


def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return a sum and a difference."""
    return x + y, x - y


WHERE = d.tensor(dtypes="f")
NUMBERS = d.tensor(dtypes="fhi")


def delegate(name: str, args: tuple[Draw, ...], eager: Callable[..., Any], **facts: Any) -> Row:
    """Describe a delegate; ``dtypes`` are those of its first argument."""
    return Row(PREFIX + name, args, eager, "own", returns="plain", exports=False, **facts)


DELEGATES: tuple[Row, ...] = (
    delegate("neg", (NUMBERS,), torch.neg, dtypes="fhi", weight=1.5),
    delegate("add", (NUMBERS, d.LIKE), torch.add, dtypes="fhi", weight=2),
    delegate("turned", (WHERE,), turned, dtypes="f", weight=1.5, dynamic=False),
    delegate("both", (WHERE, d.LIKE), both, dtypes="f"),
)


class Handle(DelegateHandle):
    """Runs one row on the values of a call."""

    def __init__(self, row: Row) -> None:
        self._row = row

    def bind(self, args: Sequence[Any]) -> Callable[[], None]:
        count = len(self._row.args)
        inputs, outs = args[:count], args[count:]

        def call() -> None:
            found = self._row.eager(*inputs)
            found = found if isinstance(found, tuple) else (found,)
            for out, result in zip(outs, [t.clone() for t in found], strict=True):
                out.resize_(result.shape).copy_(result)

        return call


class RowBackend(Backend):
    """Takes a row's name for a blob."""

    id: ClassVar[str] = "RandomProgramsBackend"

    def init(self, context: BackendInitContext) -> Handle:
        name = bytes(context.processed).decode()
        return Handle(next(row for row in DELEGATES if row.name == name))
