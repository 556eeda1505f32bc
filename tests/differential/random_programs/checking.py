"""Compares what runs gave with what the oracle says."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from differential.random_programs.assemble import assemble
from differential.random_programs.eager import expected
from differential.random_programs.operators import ROWS
from differential.random_programs.recipe import Call, Recipe, refs, root, walk
from differential.random_programs.running import VARIANTS, InputChanged, Session, Variant
from pteron.errors import PteronError


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference, and where it was seen."""

    seed: int
    form: str
    """``built`` by hand or ``exported``."""
    variant: str
    kind: str
    """``differs``, ``refused`` (a PteronError), ``bare`` (another exception), ``file`` (the
    caller's bytes were changed) or ``input`` (an input was, that the program only reads)."""
    detail: str
    operators: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the finding for a file of results."""
        return asdict(self)


def operators_of(recipe: Recipe) -> set[str]:
    """Return the names of the operators that a recipe calls."""
    return {step.op for step in walk(recipe.steps) if isinstance(step, Call)}


def check(recipe: Recipe, variants: Sequence[Variant] = VARIANTS) -> list[Finding]:
    """Run a recipe in every way; return what was not as the oracle says, one finding a way."""
    wanted = expected(recipe)
    slack = [recipe.values[i].slack for i in recipe.outputs]
    names = operators_of(recipe)
    return check_program(
        assemble(recipe),
        names,
        recipe.calls,
        wanted,
        slack,
        variants,
        seed=recipe.seed,
        form="built",
        changed=changed_inputs(recipe),
    )


def changed_inputs(recipe: Recipe) -> frozenset[int]:
    """Return the positions of the inputs that some step changes in place."""
    targets = {
        root(recipe.values, index)
        for step in walk(recipe.steps)
        if isinstance(step, Call)
        for position in ROWS[step.op].changes
        for index in refs(step.args[position])
    }
    return frozenset(at for at, index in enumerate(recipe.inputs) if index in targets)


def check_program(
    data: bytes,
    names: set[str],
    calls: Sequence[Sequence[Any]],
    wanted: Sequence[Sequence[Any]],
    slack: Sequence[float],
    variants: Sequence[Variant],
    *,
    seed: int,
    form: str,
    changed: frozenset[int] | None = None,
) -> list[Finding]:
    """Do the same for a program whose results are known."""
    digest = hashlib.sha1(data).digest()
    found = []

    def add(variant: Variant, kind: str, detail: str) -> None:
        found.append(Finding(seed, form, variant.name, kind, detail, tuple(sorted(names))))

    with Session(data, names) as session, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for variant in variants:
            try:
                for number, outputs in session.run(calls, variant, changed):
                    if form == "exported":  # inputs that the module changes come first
                        outputs = outputs[-len(wanted[number]) :]
                    said = difference(outputs, wanted[number], slack)
                    if said is not None:
                        add(variant, "differs", f"call {number}, {said}")
                        break
            except InputChanged as error:
                add(variant, "input", str(error))
            except PteronError as error:
                add(variant, "refused", first_line(error))
            except Exception as error:  # noqa: BLE001 - any other one is what is looked for
                add(variant, "bare", f"{type(error).__name__}: {first_line(error)}")
            if hashlib.sha1(data).digest() != digest:
                add(variant, "file", "the caller's bytes were changed")
                break
    return found


def first_line(error: BaseException) -> str:
    """Return the first line of a message that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " | ".join(lines[:3])[:240]


def difference(got: Sequence[Any], want: Sequence[Any], slack: Sequence[float]) -> str | None:
    """Return how outputs differ, or None.

    Values without slack come from whole numbers through operators that round each result once, so
    they have to be the same. For the others see ``Sketch._exactness``: 64 roundings of the largest
    number that took part, for each operator whose loops may round in another order.
    """
    if len(got) != len(want):
        return f"{len(got)} outputs instead of {len(want)}"
    for at, (here, there, most) in enumerate(zip(got, want, slack, strict=True)):
        if not isinstance(there, Tensor):
            if here != there:
                return f"output {at}: {here!r} instead of {there!r}"
            continue
        if not isinstance(here, Tensor):
            return f"output {at}: {type(here).__name__} instead of a tensor"
        if here.dtype != there.dtype or here.shape != there.shape:
            return (
                f"output {at}: {here.dtype} {tuple(here.shape)} instead of {there.dtype} "
                f"{tuple(there.shape)}"
            )
        if not _close(here, there, most):
            return f"output {at}: {_short(here)} instead of {_short(there)}"
    return None


def _close(here: Tensor, there: Tensor, most: float) -> bool:
    if most == 0:
        return torch.equal(here, there) or torch.allclose(
            here, there, rtol=0, atol=0, equal_nan=True
        )
    wide = torch.complex128 if there.is_complex() else torch.float64
    return torch.allclose(here.to(wide), there.to(wide), rtol=1e-5, atol=most, equal_nan=True)


def _short(tensor: Tensor) -> str:
    text = str(tensor.flatten()[:12].tolist())
    return text if tensor.numel() <= 12 else f"{text[:-1]}, ...]"
