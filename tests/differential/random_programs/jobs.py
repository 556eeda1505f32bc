"""What is done with one seed."""

from __future__ import annotations

import time
from dataclasses import dataclass

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
from differential.random_programs.running import MORE_VARIANTS, VARIANTS, quiet
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

    def __call__(self, seed: int) -> Outcome:
        """Check one seed."""
        recipe = exportable(seed)
        calls = calls_of(recipe)
        try:
            wanted = results(recipe, calls)  # an expanded view cannot be changed in place
            data = export(recipe)
        except Exception as error:  # noqa: BLE001 - whatever the exporter has to say
            return Outcome(seed, refused=f"{type(error).__name__}: {str(error)[:200]}")
        names = own_names(recipe)
        most = max((value.slack for value in recipe.values), default=0.0)
        changes = any(ROWS[name].changes for name in operators_of(recipe))
        slack = [most if changes else recipe.values[i].slack for i in recipe.outputs]
        found = check_program(
            data, names, calls, wanted, slack, VARIANTS, seed=seed, form="exported"
        )
        outcome = Outcome(seed, 1, len(VARIANTS) * len(calls), [f.as_dict() for f in found])
        if self.wheel is not None:
            own = any(name.startswith("own::") for name in names)
            asked = "refuses: own operators"
            outcome.wheel = asked if own else self.wheel.compared(data, calls, wanted, slack)
        if found:
            outcome.smallest = "\n".join(
                [program_text(data), *(f"{f.variant}: {f.kind}: {f.detail}" for f in found)]
            )
            names = operators_of(recipe)
            outcome.key = f"exported {found[0].kind} | {' '.join(sorted(names))}"
        return outcome


def own_names(recipe: Recipe) -> set[str]:
    """Return the operators of a recipe, own ones as an exported file names them."""
    return {f"{n}.out" if n in EXPORTED else n for n in operators_of(recipe)}


@dataclass(frozen=True)
class MakeExported:
    """Makes the job in a process of its own."""

    wheel: bool = False

    def __call__(self) -> ExportedJob:
        """Return the job."""
        quiet()
        return ExportedJob(Wheel() if self.wheel else None)
