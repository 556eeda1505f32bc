"""What is done with one seed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from differential.random_programs.assemble import assemble
from differential.random_programs.campaign import Outcome
from differential.random_programs.checking import Finding, check, check_program, operators_of
from differential.random_programs.eager import expected
from differential.random_programs.exported import calls_of, export, exportable, results
from differential.random_programs.generator import recipe_of
from differential.random_programs.notation import program_text, recipe_text
from differential.random_programs.operators import ROWS
from differential.random_programs.own_delegates import PREFIX
from differential.random_programs.own_kernels import EXPORTED
from differential.random_programs.recipe import Recipe
from differential.random_programs.running import MORE_VARIANTS, VARIANTS, Variant, quiet
from differential.random_programs.shrinking import shrink
from differential.random_programs.wheel import Wheel


@dataclass
class BuiltJob:
    """Checks hand-built programs; the first ``shrinks`` that fail are made smaller."""

    shrinks: int = 40
    shrink_seconds: float = 20.0
    wheel: Wheel | None = None

    def __call__(self, seed: int) -> Outcome:
        """Check one seed."""
        begin = time.monotonic()
        recipe = recipe_of(seed)
        findings = check(recipe)
        runs = len(VARIANTS) * len(recipe.calls)
        outcome = Outcome(seed, 1, runs, [f.as_dict() for f in findings])
        if self.wheel is not None:
            outcome.wheel = self._ask(self.wheel, recipe)
        if findings:
            outcome.key, outcome.smallest = self._explain(recipe, findings)
            outcome.smallest += f"\nthe wheel: {outcome.wheel}" if outcome.wheel else ""
        outcome.seconds = time.monotonic() - begin
        return outcome

    def _ask(self, wheel: Wheel, recipe: Recipe) -> str:
        if any(name.startswith(("own::", PREFIX)) for name in operators_of(recipe)):
            return "refuses: own operators"
        return wheel.verdict(recipe, assemble(recipe), expected(recipe))

    def _explain(self, recipe: Recipe, findings: list[Finding]) -> tuple[str, str]:
        small = recipe
        if self.shrinks > 0:
            self.shrinks -= 1
            small = shrink(recipe, findings[0], seconds=self.shrink_seconds)
            findings = check(small, MORE_VARIANTS) or findings
        names = " ".join(sorted(operators_of(small)))
        ways = "; ".join(f.variant for f in findings)
        text = recipe_text(small)
        for finding in findings:
            text += f"\n{finding.variant}: {finding.kind}: {finding.detail}"
        return f"{findings[0].kind} | {names} | {ways}", text


@dataclass(frozen=True)
class MakeBuilt:
    """Makes the job in a process of its own."""

    shrinks: int
    wheel: bool = False

    def __call__(self) -> BuiltJob:
        """Return the job."""
        quiet()
        return BuiltJob(self.shrinks, wheel=Wheel() if self.wheel else None)


@dataclass
class ExportedJob:
    """Checks exported modules; those that the exporter refuses count as no program."""

    wheel: Wheel | None = None
    shrinks: int = 0
    shrink_seconds: float = 60.0

    def __call__(self, seed: int) -> Outcome:
        """Check one seed."""
        recipe = exportable(seed)
        try:
            program = exported(recipe)
        except Exception as error:  # noqa: BLE001 - whatever the exporter has to say
            return Outcome(seed, refused=f"{type(error).__name__}: {str(error)[:200]}")
        found = program.check(VARIANTS)
        runs = len(VARIANTS) * len(program.calls)
        outcome = Outcome(seed, 1, runs, [f.as_dict() for f in found])
        if self.wheel is not None:
            outcome.wheel = program.ask(self.wheel)
        if found:
            outcome.key, outcome.smallest = self._explain(recipe, program, found)
        return outcome

    def _explain(self, recipe: Recipe, program: Exported, found: list[Finding]) -> tuple[str, str]:
        if self.shrinks > 0:
            self.shrinks -= 1
            recipe = shrink(
                recipe,
                found[0],
                run=lambda smaller, variants: exported(smaller).check(variants),
                seconds=self.shrink_seconds,
            )
            program = exported(recipe)
            found = program.check(MORE_VARIANTS) or found
        lines = [program_text(program.data)]
        lines += [f"call: {'; '.join(str(t.tolist()) for t in given)}" for given in program.calls]
        lines += [f"{f.variant}: {f.kind}: {f.detail}" for f in found]
        names = " ".join(sorted(operators_of(recipe)))
        ways = "; ".join(f.variant for f in found)
        return f"exported {found[0].kind} | {names} | {ways}", "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Exported:
    """An exported module, and what it gives in eager torch."""

    seed: int
    data: bytes
    calls: tuple[tuple[Tensor, ...], ...]
    wanted: list[list[Any]]
    slack: list[float]
    names: set[str]

    def check(self, variants: Sequence[Variant]) -> list[Finding]:
        """Run it in these ways."""
        return check_program(
            self.data,
            self.names,
            self.calls,
            self.wanted,
            self.slack,
            variants,
            seed=self.seed,
            form="exported",
        )

    def ask(self, wheel: Wheel) -> str:
        """Return what the wheel says."""
        if any(name.startswith("own::") for name in self.names):
            return "refuses: own operators"
        return wheel.compared(self.data, self.calls, self.wanted, self.slack)


def exported(recipe: Recipe) -> Exported:
    """Export a recipe; raises whatever eager torch and the exporter raise.

    A change in place also reaches views that the recipe takes for copies, so all outputs get the
    largest slack then.
    """
    calls = calls_of(recipe)
    wanted = results(recipe, calls)  # torch refuses to change an expanded view, for one
    most = max((value.slack for value in recipe.values), default=0.0)
    changes = any(ROWS[name].changes for name in operators_of(recipe))
    slack = [most if changes else recipe.values[i].slack for i in recipe.outputs]
    return Exported(recipe.seed, export(recipe), calls, wanted, slack, own_names(recipe))


def own_names(recipe: Recipe) -> set[str]:
    """Return the operators of a recipe, own ones as an exported file names them."""
    return {f"{n}.out" if n in EXPORTED else n for n in operators_of(recipe)}


@dataclass(frozen=True)
class MakeExported:
    """Makes the job in a process of its own."""

    shrinks: int
    wheel: bool = False

    def __call__(self) -> ExportedJob:
        """Return the job."""
        quiet()
        return ExportedJob(Wheel() if self.wheel else None, self.shrinks)
