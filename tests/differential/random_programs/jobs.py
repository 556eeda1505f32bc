"""What is done with one seed."""

from __future__ import annotations

import time
from dataclasses import dataclass

from differential.random_programs.campaign import Outcome
from differential.random_programs.checking import Finding, check, operators_of
from differential.random_programs.generator import recipe_of
from differential.random_programs.notation import recipe_text
from differential.random_programs.recipe import Recipe
from differential.random_programs.running import VARIANTS, quiet
from differential.random_programs.shrinking import shrink


@dataclass
class BuiltJob:
    """Checks hand-built programs; the first ``shrinks`` that fail are made smaller."""

    shrinks: int = 40
    shrink_seconds: float = 20.0

    def __call__(self, seed: int) -> Outcome:
        """Check one seed."""
        begin = time.monotonic()
        recipe = recipe_of(seed)
        findings = check(recipe)
        runs = len(VARIANTS) * len(recipe.calls)
        outcome = Outcome(seed, 1, runs, [f.as_dict() for f in findings])
        if findings:
            outcome.key, outcome.smallest = self._explain(recipe, findings)
        outcome.seconds = time.monotonic() - begin
        return outcome

    def _explain(self, recipe: Recipe, findings: list[Finding]) -> tuple[str, str]:
        small = recipe
        if self.shrinks > 0:
            self.shrinks -= 1
            small = shrink(recipe, findings[0], seconds=self.shrink_seconds)
            findings = check(small) or findings
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

    def __call__(self) -> BuiltJob:
        """Return the job."""
        quiet()
        return BuiltJob(self.shrinks)
