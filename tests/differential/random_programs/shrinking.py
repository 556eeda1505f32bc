"""Makes a program that fails smaller, as long as it fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from differential.random_programs.checking import Finding, check
from differential.random_programs.eager import Interpreter, settled
from differential.random_programs.recipe import (
    Arg,
    Branch,
    Call,
    Layout,
    Recipe,
    Ref,
    Role,
    Step,
    Tensors,
    named,
    walk,
)
from differential.random_programs.running import MORE_VARIANTS, Variant
from differential.random_programs.sketch import laid_out

SECONDS = 20.0


Check = Callable[[Recipe, Sequence[Variant]], list[Finding]]
"""Runs a recipe in some ways."""


def shrink(
    recipe: Recipe, finding: Finding, *, run: Check = check, seconds: float = SECONDS
) -> Recipe:
    """Return the smallest recipe that was found with a finding of the same kind and variant."""
    end = time.monotonic() + seconds
    variant = next(v for v in MORE_VARIANTS if v.name == finding.variant)
    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for attempt in ATTEMPTS:
            for candidate in attempt(recipe):
                if time.monotonic() > end:
                    break
                if candidate is not None and fails_alike(candidate, finding, variant, run):
                    recipe, changed = candidate, True
                    break
    return recipe


def fails_alike(recipe: Recipe, finding: Finding, variant: Variant, run: Check) -> bool:
    """Whether a recipe fails as a finding says: a refusal has to begin with the same words."""
    try:
        found = run(recipe, [variant])
    except Exception:  # noqa: BLE001 - it is no program any more
        return False
    return any(
        f.kind == finding.kind
        and (finding.kind == "differs" or words(f.detail) == words(finding.detail))
        for f in found
    )


def words(text: str) -> str:
    """Return the beginning of a message without numbers, by which refusals are told apart."""
    kept = [w for w in text.split() if not any(c.isdigit() for c in w)]
    return " ".join(kept[:6])


# -- attempts --------------------------------------------------------------------------------------


def fewer_calls(recipe: Recipe) -> Iterator[Recipe | None]:
    """Leave calls out."""
    for at in range(len(recipe.calls)):
        if len(recipe.calls) > 1:
            calls = recipe.calls[:at] + recipe.calls[at + 1 :]
            yield settled(replace(recipe, calls=calls))


def fewer_outputs(recipe: Recipe) -> Iterator[Recipe | None]:
    """Keep one output, or leave one out."""
    if len(recipe.outputs) > 1:
        for output in recipe.outputs:
            yield pruned(replace(recipe, outputs=(output,)))
        for at in range(len(recipe.outputs)):
            yield pruned(replace(recipe, outputs=recipe.outputs[:at] + recipe.outputs[at + 1 :]))


def fewer_steps(recipe: Recipe) -> Iterator[Recipe | None]:
    """Leave a step out; what it gave becomes an input, or goes with it."""
    count = len(list(walk(recipe.steps)))
    for at in reversed(range(count)):
        steps, gone = without(recipe.steps, at)
        yield cut(replace(recipe, steps=steps), recipe, gone)


def flatter(recipe: Recipe) -> Iterator[Recipe | None]:
    """Put the body of a branch in its place."""
    for at, step in enumerate(recipe.steps):
        if isinstance(step, Branch):
            for body, which in ((step.then, 1), (step.otherwise, 2)):
                names = {result[0]: result[which] for result in step.results}
                steps = recipe.steps[:at] + body + recipe.steps[at + 1 :]
                yield pruned(renamed(replace(recipe, steps=steps), names))


def shorter_chains(recipe: Recipe) -> Iterator[Recipe | None]:
    """Give a step's readers what the step itself read, if it looks the same."""
    for at, step in enumerate(recipe.steps):
        if isinstance(step, Call) and len(step.outs) == 1:
            out = recipe.values[step.outs[0]]
            for index in named(step):
                given = recipe.values[index]
                if index not in step.outs and (given.dtype, given.shape) == (out.dtype, out.shape):
                    steps = recipe.steps[:at] + recipe.steps[at + 1 :]
                    yield pruned(renamed(replace(recipe, steps=steps), {step.outs[0]: index}))


def plainer_layout(recipe: Recipe) -> Iterator[Recipe | None]:
    """Give every value bytes of its own, one thing at a time."""
    plain = Layout(reuse=False)
    if recipe.layout != plain:
        yield replace(recipe, layout=plain)
    for name in ("overwrite", "buffers", "state_apart", "state_named", "reuse"):
        value = getattr(plain, name)
        if getattr(recipe.layout, name) != value:
            yield replace(recipe, layout=replace(recipe.layout, **{name: value}))
    for index, value in enumerate(recipe.values):
        changes: dict[str, Any] = {}
        if not value.planned and value.role is not Role.STATE:
            changes["planned"] = True
        elif value.role is Role.STATE and value.data is not None and value.planned:
            changes["data"] = None
        if changes:
            values = list(recipe.values)
            values[index] = replace(value, **changes)
            yield settled(replace(recipe, values=tuple(values)))


def smaller_sizes(recipe: Recipe) -> Iterator[Recipe | None]:
    """Make all dimensions of one size smaller by one, also where they are literals."""
    sizes = {n for v in recipe.values for n in v.shape if n > 1}
    for size in sorted(sizes, reverse=True):
        for literals in (True, False):
            for tail in (False, True):
                yield _smaller(recipe, size, literals=literals, tail=tail)


def _smaller(recipe: Recipe, size: int, *, literals: bool, tail: bool) -> Recipe | None:
    """Leave out the last element of each dimension of a size, or the first."""

    def less(tensor: Tensor) -> Tensor:
        for dim, n in enumerate(tensor.shape):
            if n == size:
                tensor = tensor.narrow(dim, int(tail), size - 1)
        return tensor.clone()

    def literal(arg: Arg) -> Arg:
        if isinstance(arg, tuple):
            return tuple(size - 1 if literals and a == size else a for a in arg)
        return arg

    values = []
    for value in recipe.values:
        if value.role in (Role.CONSTANT, Role.STATE, Role.INPUT) or value.silent:
            shape = tuple(size - 1 if n == size else n for n in value.shape)
            data = None if value.data is None else laid_out(less(value.data), value.order)
            value = replace(value, shape=shape, data=data)
        values.append(value)
    steps = mapped(recipe.steps, literal)
    calls = tuple(
        tuple(
            laid_out(less(t), recipe.values[i].order) for t, i in zip(c, recipe.inputs, strict=True)
        )
        for c in recipe.calls
    )
    return settled(replace(recipe, values=tuple(values), steps=steps, calls=calls))


def plainer_orders(recipe: Recipe) -> Iterator[Recipe | None]:
    """Lay channels-last values out as others."""
    if any(v.order != tuple(range(len(v.order))) for v in recipe.values):
        values = tuple(replace(v, order=tuple(range(len(v.order)))) for v in recipe.values)
        yield replace(recipe, values=values)


ATTEMPTS: tuple[Callable[[Recipe], Iterator[Recipe | None]], ...] = (
    fewer_outputs,
    fewer_steps,
    flatter,
    shorter_chains,
    fewer_calls,
    plainer_layout,
    plainer_orders,
    smaller_sizes,
)


# -- changes of recipes ----------------------------------------------------------------------------


def mapped(steps: tuple[Step, ...], change: Callable[[Arg], Arg]) -> tuple[Step, ...]:
    """Return steps with every argument changed."""
    found: list[Step] = []
    for step in steps:
        if isinstance(step, Call):
            found.append(replace(step, args=tuple(change(arg) for arg in step.args)))
        else:
            then, otherwise = mapped(step.then, change), mapped(step.otherwise, change)
            found.append(replace(step, then=then, otherwise=otherwise))
    return tuple(found)


def without(steps: tuple[Step, ...], at: int) -> tuple[tuple[Step, ...], list[int]]:
    """Return the steps without the one at a place (as ``walk`` counts), and what it gave."""
    counter = iter(range(1 << 30))
    gone: list[int] = []

    def go(body: tuple[Step, ...]) -> tuple[Step, ...]:
        kept: list[Step] = []
        for step in body:
            here = next(counter)
            if isinstance(step, Branch):
                step = replace(step, then=go(step.then), otherwise=go(step.otherwise))
            if here != at:
                kept.append(step)
            elif isinstance(step, Call):
                gone.extend(step.outs)
            else:
                gone.extend(result[0] for result in step.results)
        return tuple(kept)

    return go(steps), gone


def cut(recipe: Recipe, whole: Recipe, gone: list[int]) -> Recipe | None:
    """Make what a step gave an input, with the values that it had in each call."""
    used = {i for step in walk(recipe.steps) for i in named(step)} | set(recipe.outputs)
    used |= {v.source for i, v in enumerate(recipe.values) if v.source is not None and i in used}
    wanted = [i for i in gone if i in used]
    if any(
        recipe.values[i].role is Role.NUMBER or recipe.values[i].source is not None for i in wanted
    ):
        return None
    if not wanted:
        return pruned(recipe)
    interpreter, calls = Interpreter(whole), []
    for given in whole.calls:
        interpreter.call(given)
        if any(i not in interpreter.tensors for i in wanted):
            return None
        calls.append((*given, *(interpreter.tensors[i].clone() for i in wanted)))
    values = list(recipe.values)
    for index in wanted:
        values[index] = replace(values[index], role=Role.INPUT, slack=0.0)
    inputs = (*recipe.inputs, *wanted)
    return pruned(replace(recipe, values=tuple(values), inputs=inputs, calls=tuple(calls)))


def renamed(recipe: Recipe, names: dict[int, int]) -> Recipe:
    """Put other values in the place of some, wherever they are named."""

    def new(index: int) -> int:
        while index in names:
            index = names[index]
        return index

    def change(arg: Arg) -> Arg:
        if isinstance(arg, Ref):
            return Ref(new(arg.index))
        if isinstance(arg, Tensors):
            items = tuple(None if i is None else new(i) for i in arg.items)
            return replace(arg, items=items)
        if isinstance(arg, tuple):
            return tuple(Ref(new(a.index)) if isinstance(a, Ref) else a for a in arg)
        return arg

    def go(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        found: list[Step] = []
        for step in mapped(steps, change):
            if isinstance(step, Branch):
                results = tuple((new(a), new(b), new(c)) for a, b, c in step.results)
                step = Branch(new(step.predicate), go(step.then), go(step.otherwise), results)
            else:
                step = replace(step, outs=tuple(new(i) for i in step.outs))
            found.append(step)
        return tuple(found)

    values = tuple(
        value if value.source is None else replace(value, source=new(value.source))
        for value in recipe.values
    )
    return replace(
        recipe,
        values=values,
        steps=go(recipe.steps),
        inputs=tuple(new(i) for i in recipe.inputs),
        outputs=tuple(new(i) for i in recipe.outputs),
    )


def pruned(recipe: Recipe) -> Recipe | None:
    """Leave out inputs and values that nothing names, and number the others anew."""
    used = {i for step in walk(recipe.steps) for i in named(step)} | set(recipe.outputs)
    todo = list(used)
    while todo:
        source = recipe.values[todo.pop()].source
        if source is not None and source not in used:
            used.add(source)
            todo.append(source)
    places = [at for at, index in enumerate(recipe.inputs) if index in used]
    calls = tuple(tuple(call[at] for at in places) for call in recipe.calls)
    inputs = tuple(recipe.inputs[at] for at in places)
    numbers = {old: new for new, old in enumerate(sorted(used))}
    kept = tuple(recipe.values[i] for i in sorted(used))
    recipe = replace(recipe, inputs=inputs, calls=calls)
    shifted = renamed_once(recipe, numbers)
    values = tuple(v if v.source is None else replace(v, source=numbers[v.source]) for v in kept)
    return settled(replace(shifted, values=values))


def renamed_once(recipe: Recipe, names: dict[int, int]) -> Recipe:
    """Rename with numbers that are old and new at the same time."""
    far = {old: -1 - new for old, new in names.items()}
    back = {-1 - new: new for new in names.values()}
    plain = tuple(replace(v, source=None) for v in recipe.values)
    return renamed(renamed(replace(recipe, values=plain), far), back)
