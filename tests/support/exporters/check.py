"""Runs a kept program here or in the wheel, and measures how far it is from eager torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import torch

from pteron import Runtime
from support.exporters.kept import Call, KeptProgram
from support.xnnpack_check import compare

UNUSABLE: dict[tuple[str, str], str] = {
    (exporter, name): reason
    for exporter in ("0.7.0", "1.0.1")
    for name, reason in {
        "map": "the exporter plans the result of the loop as if it never grew",
        "external_weights": "the exporter writes equal weights once and loses the second name",
    }.items()
}
"""Programs, by exporter and architecture, that no runtime can run, and why."""


def is_unusable(program: KeptProgram) -> bool:
    """Return whether no runtime can run the program."""
    return (program.exporter, program.architecture) in UNUSABLE


def is_another_function(program: KeptProgram) -> bool:
    """Return whether the exporter wrote another function than the model's.

    Delegated to XNNPACK, GELU is the exact one, also where the model asks for that of ``tanh``.
    """
    return program.architecture == "gelu_tanh" and program.form == "xnnpack"


STEPS = 1.5
"""How far quantized outputs may be apart: their own step is a little more than ``steps`` gives."""


def wheel_reason(program: KeptProgram) -> str | None:
    """Return why the wheel runs the program wrongly; 0.7.0 did not lay results out as later."""
    return None if program.exporter == "0.7.0" else program.entry.wheel


def rtol(dtype: torch.dtype) -> float:
    """Return how far an output may be from eager: of its own value and of the largest, together.

    Sums in another order are some 1e-6 apart. Half precision gets two of its own steps.
    """
    return 2 * torch.finfo(dtype).eps if dtype in (torch.float16, torch.bfloat16) else 1e-5


def steps(outputs: Sequence[torch.Tensor]) -> list[float]:
    """Return the 255th part of each output's range: a step, if the output were of 8 bits."""
    return [
        max((wanted.double().max() - wanted.double().min()).item() / 255, 1e-6)
        for wanted in outputs
    ]


def assert_near(
    kept: KeptProgram, got: list[list[torch.Tensor]], want: list[list[torch.Tensor]]
) -> None:
    """Assert that outputs agree: floats within ``rtol``, quantized ones within ``STEPS``."""
    assert len(got) == len(want)
    for here, there in zip(got, want, strict=True):
        if kept.form != "static_int8":
            for ours, theirs in zip(here, there, strict=True):
                compare([ours], [theirs], rtol=rtol(theirs.dtype))
            continue
        for ours, theirs, size in zip(here, there, steps(there), strict=True):
            compare([ours], [theirs], step=STEPS * size)


def in_turn(program: KeptProgram) -> Iterator[tuple[str, list[Call]]]:
    """Return each method and its calls; those of a method without state also in reverse."""
    for method, calls in program.calls.items():
        backwards = [] if "state" in program.entry.tags else calls[::-1]
        yield method, [*calls, *backwards]


@cache
def here(program: KeptProgram, *, optimize: bool = True) -> list[list[torch.Tensor]]:
    """Return pteron's outputs for every call of every method; nobody may change them."""
    file = program.file
    runtime = Runtime.get()
    with runtime.load_program(file.pte, data_path=file.ptd, optimize=optimize) as loaded:
        return [
            [leaf.clone() for leaf in loaded.load_method(method).execute(call.inputs)]
            for method, calls in in_turn(program)
            for call in calls
        ]


def there(program: KeptProgram) -> list[list[torch.Tensor]]:
    """Return the wheel's outputs for every call of every method."""
    from executorch.extension.pybindings.portable_lib import _load_for_executorch

    file, found = program.file, []
    for method, calls in in_turn(program):
        loaded = _load_for_executorch(str(file.pte), file.data_path)
        for call in calls:
            found.append([leaf.clone() for leaf in loaded.run_method(method, call.inputs)])
    return found


def wanted(program: KeptProgram) -> list[list[torch.Tensor]]:
    """Return eager's outputs for every call of every method."""
    return [list(call.outputs) for _, calls in in_turn(program) for call in calls]
