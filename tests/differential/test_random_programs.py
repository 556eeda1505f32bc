"""Random programs of fixed seeds, and that the machinery around them does what it says.

``python -m differential.random_programs`` runs as many more as there is time for.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

from differential.random_programs.assemble import assemble
from differential.random_programs.checking import Finding, check, difference
from differential.random_programs.eager import expected
from differential.random_programs.generator import recipe_of
from differential.random_programs.jobs import ExportedJob
from differential.random_programs.notation import recipe_text
from differential.random_programs.operators import ROWS
from differential.random_programs.recipe import Branch, Call, Recipe, Ref, Role, Value, walk
from differential.random_programs.running import VARIANTS
from differential.random_programs.shrinking import shrink

BUILT, CHUNK = 600, 60
EXPORTED, EXPORTED_CHUNK = 16, 4


def told(findings: list[Finding]) -> str:
    return "\n".join(f"seed {f.seed}: {f.variant}: {f.kind}: {f.detail}" for f in findings)


@pytest.mark.parametrize("first", range(0, BUILT, CHUNK))
def test_built_programs_agree_with_eager(first: int) -> None:
    found: list[Finding] = []
    for seed in range(first, first + CHUNK):
        found += check(recipe_of(seed))
    assert not found, told(found)


@pytest.mark.parametrize("first", range(0, EXPORTED, EXPORTED_CHUNK))
def test_exported_programs_agree_with_eager(first: int) -> None:
    job, programs, found = ExportedJob(), 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(first, first + EXPORTED_CHUNK):
            outcome = job(seed)
            programs += outcome.programs
            found += [f"seed {seed}: {one}" for one in outcome.findings]
    assert not found, "\n".join(found)
    assert programs > EXPORTED_CHUNK // 2


# -- the machinery ---------------------------------------------------------------------------------


def vector(role: Role, **facts: object) -> Value:
    return replace(Value(role, torch.float32, (3,), (0,)), **facts)  # type: ignore[arg-type]


def negated_twice() -> Recipe:
    """``neg(neg(x))`` and ``abs(x)``, called twice."""
    values = (vector(Role.INPUT), *(vector(Role.RESULT) for _ in range(3)))
    steps = (
        Call("aten::neg.out", (Ref(0),), (1,)),
        Call("aten::neg.out", (Ref(1),), (2,)),
        Call("aten::abs.out", (Ref(0),), (3,)),
    )
    calls = ((torch.tensor([1.0, -2.0, 3.0]),), (torch.tensor([0.0, 4.0, -5.0]),))
    return Recipe(0, values, steps, (0,), (2, 3), calls)


def test_a_seed_gives_one_program() -> None:
    for seed in (1, 2, 3):
        assert assemble(recipe_of(seed)) == assemble(recipe_of(seed))
        assert recipe_text(recipe_of(seed)) == recipe_text(recipe_of(seed))


def test_every_row_is_drawn() -> None:
    seen: set[str] = set()
    branches = 0
    for seed in range(900):
        for step in walk(recipe_of(seed).steps):
            if isinstance(step, Call):
                seen.add(step.op)
            else:
                branches += 1
    assert set(ROWS) - seen == set()
    assert branches > 50


def test_the_oracle_keeps_state_and_values_apart() -> None:
    values = (
        vector(Role.INPUT),
        vector(Role.STATE, data=torch.ones(3)),
        vector(Role.RESULT),
        vector(Role.RESULT, source=1, silent=True),
    )
    steps = (
        Call("aten::clone.out", (Ref(1), None), (2,)),
        Call("aten::add_.Tensor", (Ref(1), Ref(0), 1)),
    )
    x = torch.tensor([1.0, 2.0, 3.0])
    recipe = Recipe(0, values, steps, (0,), (2, 3), ((x,), (x,)))
    (old, view), (old_again, view_again) = expected(recipe)
    assert old.tolist() == [1, 1, 1]
    assert view.tolist() == old_again.tolist() == [2, 3, 4]
    assert view_again.tolist() == [3, 5, 7]
    assert check(recipe) == []


def test_a_wrong_kernel_is_found_and_the_program_made_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = negated_twice()
    assert check(recipe) == []
    wrong = replace(ROWS["aten::abs.out"], eager=torch.neg)
    monkeypatch.setitem(ROWS, "aten::abs.out", wrong)
    found = check(recipe)
    assert [f.variant for f in found] == [v.name for v in VARIANTS]
    assert {f.kind for f in found} == {"differs"}
    small = shrink(recipe, found[0])
    assert [step.op for step in small.steps if isinstance(step, Call)] == ["aten::abs.out"]
    assert len(small.calls) == len(small.outputs) == len(small.values) - 1 == 1
    assert small.values[0].shape == (1,)
    assert "aten::abs.out(%0, %1, %1)" in recipe_text(small)


def test_an_exception_that_is_no_pteron_error_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    from pteron import Method

    def fail(*args: object, **facts: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(Method, "execute", fail)
    found = check(negated_twice())
    assert {f.kind for f in found} == {"bare"}
    assert found[0].detail == "KeyError: 'x'"


def test_shape_dtype_and_number_of_outputs_are_compared() -> None:
    x = torch.ones(2, 2)
    assert difference([x], [x], [0.0]) is None
    assert difference([x.nan_to_num() * float("nan")], [x * float("nan")], [0.0]) is None
    for other in (x + 1e-6, x[:1], x.double(), torch.ones(4), None):
        assert difference([other], [x], [0.0]) is not None
    assert difference([x + 1e-6], [x], [1e-5]) is None
    assert difference([x, x], [x], [0.0]) == "2 outputs instead of 1"


def test_branches_are_taken_both_ways() -> None:
    taken: set[bool] = set()
    for seed in range(120):
        recipe = recipe_of(seed)
        for step in walk(recipe.steps):
            if isinstance(step, Branch) and step.predicate in recipe.inputs:
                at = recipe.inputs.index(step.predicate)
                taken.update(bool(call[at]) for call in recipe.calls)
    assert taken == {True, False}
