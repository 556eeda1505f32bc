"""One-operator programs of the operator cases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from support.dense import is_dense
from support.one_op import ProgramBuilder, one_op
from support.operator_cases import Case
from support.operator_check import expected, full_args, signature

FORMS = ("planned", "unplanned", "dynamic")


def as_programmed(tensor: Tensor, *, plain: bool) -> Tensor:
    """Return a copy that a dim order describes; if ``plain``, one that the wheel takes as well."""
    channels_last = tensor.is_contiguous(memory_format=torch.channels_last) and tensor.dim() == 4
    if tensor.is_contiguous() or channels_last or (not plain and is_dense(tensor)):
        return tensor.clone()
    return tensor.contiguous()


def densified(args: list[Any], *, plain: bool) -> list[Any]:
    """Return arguments whose tensors, also those in lists, are as in a program."""

    def take(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [take(v) for v in value]
        return as_programmed(value, plain=plain) if isinstance(value, Tensor) else value

    return [take(value) for value in args]


def program_of(
    name: str, case: Case, form: str, *, plain: bool
) -> tuple[bytes, list[Tensor], list[Tensor]]:
    """Return a case's program, its inputs, and the outputs that it should give."""
    prepared = Case(tuple(densified(full_args(name, case), plain=plain)), case.dtype, case.bounds)
    wanted = densified(expected(name, prepared)[0], plain=plain)
    facts = signature(name)
    inplace = name in ("aten::copy_", "aten::index_put_")
    data, inputs = one_op(
        name,
        facts.kinds,
        prepared.args,
        [] if inplace else wanted,
        planned=form != "unplanned",
        dynamic=form == "dynamic" or case.bounds is not None,
        bounds=case.bounds,
        returns="self" if inplace else "repeat" if facts.outs else "none",
    )
    return data, inputs, [t for r in wanted for t in (r if isinstance(r, list) else [r])]


def number_program(name: str, case: Case) -> tuple[bytes, list[Any]]:
    """Return the program of a call that gives a number, and its inputs."""
    builder = ProgramBuilder()
    args, inputs = [], []
    for value in case.args:
        if isinstance(value, torch.Tensor):
            inputs.append(value.contiguous())
            args.append(builder.tensor(inputs[-1], role="input"))
        else:
            args.append(builder.number(value))
    out = builder.number(0)
    builder.outputs.append(out)
    builder.call(name, *args, out)
    return builder.finish(), inputs
