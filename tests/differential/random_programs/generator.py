"""From a seed to a recipe, by chance and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from math import prod

import torch

from differential.random_programs import draws
from differential.random_programs.eager import settled
from differential.random_programs.operators import ROWS
from differential.random_programs.own_kernels import fresh_state
from differential.random_programs.recipe import (
    Branch,
    Call,
    Layout,
    Recipe,
    Ref,
    Role,
    Step,
    Value,
    refs,
    root,
    walk,
)
from differential.random_programs.sketch import (
    CLASSES,
    ELASTIC,
    Profile,
    Sketch,
    laid_out,
    random_tensor,
)
from differential.random_programs.table import NoFit, Row

CALLS = 3
OTHER_TYPES = (
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.float64,
)
NAMES = tuple(ROWS)
READERS = ("aten::neg.out", "aten::add.out", "aten::abs.out", "aten::clone.out", "delegate::neg")
"""What is put behind a value that nobody would read but the caller."""
SNAPSHOTS = (
    "aten::permute_copy.out",
    "aten::clone.out",
    "aten::slice_copy.Tensor_out",
    "aten::view_copy.out",
    "aten::transpose_copy.int_out",
    "aten::select_copy.int_out",
    "executorch_prim::et_view.default",
    "aten::expand_copy.out",
    "dim_order_ops::_clone_dim_order.out",
)
"""What is put in front of a change in place: a copy or view that is read afterwards."""


def recipe_of(seed: int, *, exports: bool = False) -> Recipe:
    """Return the recipe of a seed, the same one each time; one that can be exported, if asked."""
    for attempt in range(100):
        rng = random.Random(f"{seed}.{attempt}.{exports}")
        found = _try(seed, rng, exports)
        if found is not None:
            return found
    raise AssertionError(f"seed {seed} gives no program")


def _profile(rng: random.Random, exports: bool) -> Profile:
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    if rng.random() < 0.45:
        dtypes = (*dtypes, *rng.sample(OTHER_TYPES, rng.randint(1, 2)))
        if rng.random() < 0.3:
            dtypes = dtypes[1:]
    public = rng.random() < 0.4
    return Profile(dtypes, rng.random() < 0.15, rng.randint(2, 14), exports, public)


def _try(seed: int, rng: random.Random, exports: bool) -> Recipe | None:
    """Draw a program, or return None if it cannot be called with other numbers."""
    s = Sketch(rng, _profile(rng, exports))
    s.eager_of = dict(fresh_state())
    for _ in range(rng.randint(1, 2)):
        s.input(_shape(s), rng.choice(s.profile.dtypes))
    favourites = [rng.choice(NAMES) for _ in range(3)]
    weights = [ROWS[n].weight * (8 if n in favourites else 1) for n in NAMES]
    _grow(s, weights, s.profile.steps, depth=0)
    outputs = _outputs(s)
    if not outputs or not s.steps:
        return None
    layout = _layout(rng)
    if any(v.source is not None and not v.silent and _is_blank(s, v.source) for v in s.values):
        # Nothing but its name tells state from memory that a view writes.
        layout = replace(layout, state_named=True)
    if any(_is_blank(s, i) for i in _given_to_delegates(s)):
        # Nor from a delegate's result, if nothing else uses it.
        layout = replace(layout, state_named=True)
    recipe = Recipe(seed, tuple(s.values), tuple(s.steps), tuple(s.inputs), outputs, (), layout)
    return _with_calls(recipe, s)


def _given_to_delegates(s: Sketch) -> Iterator[int]:
    """Yield the values that delegates are given."""
    for step in walk(tuple(s.steps)):
        if isinstance(step, Call) and step.op.startswith("delegate::"):
            for arg in step.args:
                yield from refs(arg)


def _is_blank(s: Sketch, index: int) -> bool:
    """Whether a value is state without an initial value."""
    value = s.values[root(s.values, index)]
    return value.role is Role.STATE and value.data is None


def _shape(s: Sketch) -> list[int]:
    shape = [s.rng.randint(1, 4) for _ in range(s.rng.choice([0, 1, 2, 2, 2, 3, 3, 4]))]
    if s.profile.dynamic and shape:
        shape[s.rng.randrange(len(shape))] = ELASTIC
    elif s.rng.random() < 0.03 and shape:
        shape[s.rng.randrange(len(shape))] = 0
    return shape


def _grow(s: Sketch, weights: list[float], count: int, depth: int) -> None:
    """Add steps."""
    for _ in range(count):
        draw = s.rng.random()
        if draw < 0.06 and depth == 0:
            _add_branch(s, weights)
            continue
        if draw < 0.10 and not s.profile.exports:
            _add_silent(s)
            continue
        (name,) = s.rng.choices(NAMES, weights)
        _add(s, ROWS[name], depth)


def _add(s: Sketch, row: Row, depth: int = 0) -> None:
    """Add a call of an operator, if the program has arguments for it."""
    if (s.profile.dynamic and not row.dynamic) or (s.profile.exports and not row.exports):
        return
    if s.profile.public and row.name.startswith(("own::", "delegate::")):
        return
    if s.profile.exports and depth and row.changes:
        return  # the bodies of a cond change nothing that is outside
    s.row = row
    before = len(s.steps)
    try:
        args: list[draws.Arg] = []
        for draw in row.args:
            args.append(draw(s, args))
        if row.changes and s.rng.random() < 0.5:
            changed = [args[p] for p in row.changes]
            for target in changed:
                assert isinstance(target, Ref)
                _snapshot(s, target)
        s.row = row
        s.run(row, args)
    except NoFit:
        del before
    finally:
        s.row = None


def _snapshot(s: Sketch, target: Ref) -> None:
    """Add a copy of what is changed next."""
    row = s.row = ROWS[s.rng.choice(SNAPSHOTS)]
    value = s.values[target.index]
    if CLASSES.get(value.dtype, "i") not in row.dtypes or (s.profile.dynamic and not row.dynamic):
        return
    try:
        args: list[draws.Arg] = [target]
        for draw in row.args[1:]:
            args.append(draw(s, args))
        s.run(row, args)
    except NoFit:
        pass


def _add_silent(s: Sketch) -> None:
    """Add a value that reads the place of another one."""
    found = [
        i
        for i in s.visible
        if (v := s.values[i]).role in (Role.RESULT, Role.STATE)
        and not v.silent
        and not v.dynamic
        and v.order == tuple(range(len(v.shape)))
        and not (s.profile.dynamic and ELASTIC in v.shape)
        and 0 not in v.shape
    ]
    if found:
        source = s.rng.choice(found[-5:])
        if s.tensors[source].numel() == prod(s.values[source].shape):  # not one that has grown
            s.silent_view(source, draws.other_shape(s, s.values[source].shape))


def _add_branch(s: Sketch, weights: list[float]) -> None:
    """Add a ``cond`` whose bodies are grown as the program is."""
    predicate = s.supply((), torch.bool, fresh=0.5)
    outer, visible, unread = s.steps, list(s.visible), set(s.unread)
    bodies: list[tuple[Step, ...]] = []
    news: list[list[int]] = []
    for _ in range(2):
        s.steps, s.visible = [], list(visible)
        _grow(s, weights, s.rng.randint(1, 3), depth=1)
        bodies.append(tuple(s.steps))
        kept = [i for i in s.visible if s.values[i].role in (Role.INPUT, Role.CONSTANT, Role.STATE)]
        news.append([i for i in s.visible if i not in visible and i not in kept])
        visible += [i for i in kept if i not in visible]
    s.steps, s.visible = outer, visible
    s.unread = {i for i in s.unread if i in visible} | {i for i in unread if i in s.unread}
    pairs = [
        (a, b)
        for a in news[0]
        for b in (*news[1], *visible[-4:])
        if _match(s.values[a], s.values[b])
        and (s.values[a].shape == s.values[b].shape or not s.profile.exports)
    ]
    s.rng.shuffle(pairs)
    results = []
    taken = bool(s.tensors[predicate].item())
    for then, otherwise in pairs[: s.rng.randint(1, 2)]:
        a, b = s.values[then], s.values[otherwise]
        shape = tuple(map(max, a.shape, b.shape))
        value = Value(
            Role.RESULT,
            a.dtype,
            shape,
            tuple(range(len(shape))),
            dynamic=a.shape != b.shape,
            slack=max(a.slack, b.slack),
        )
        tensor = laid_out(s.tensors[then if taken else otherwise], value.order)
        out = s._add(
            value,
            tensor,
            whole=s.whole[then] and s.whole[otherwise],
            scale=max(s.scale[then], s.scale[otherwise]),
        )
        s.unread.add(out)
        results.append((out, then, otherwise))
    if s.profile.exports and not results:
        return
    s.unread.discard(predicate)
    s.steps.append(Branch(predicate, bodies[0], bodies[1], tuple(results)))


def _match(a: Value, b: Value) -> bool:
    return (
        a.role is not Role.NUMBER
        and b.role is not Role.NUMBER
        and a.dtype == b.dtype
        and len(a.shape) == len(b.shape)
        and a.order == b.order == tuple(range(len(a.shape)))
    )


def _outputs(s: Sketch) -> tuple[int, ...]:
    """Return the outputs: what nobody read, behind another operator or as it is, and others."""
    unread = [i for i in sorted(s.unread) if i in s.visible and s.values[i].role is not Role.NUMBER]
    found: list[int] = []
    for index in unread:
        if s.rng.random() < 0.6:
            row = s.row = ROWS[s.rng.choice(READERS)]
            try:
                if CLASSES.get(s.values[index].dtype, "i") not in row.dtypes or not (
                    row.exports or (not s.profile.exports and not s.profile.public)
                ):
                    raise NoFit
                args: list[draws.Arg] = [Ref(index)]
                for draw in row.args[1:]:
                    args.append(draw(s, args))
                found += s.run(row, args)
                continue
            except NoFit:
                pass
            finally:
                s.row = None
        if s.values[root(s.values, index)].role is not Role.STATE or s.rng.random() < 0.5:
            found.append(index)
    others = [i for i in s.visible if s.values[i].role is not Role.NUMBER]
    for chance, pool in ((0.12, others), (0.08, s.inputs), (0.08, found)):
        if s.rng.random() < chance and pool:
            found.append(s.rng.choice(pool))  # an input, a constant, the same value twice ...
    return tuple(found)


def _layout(rng: random.Random) -> Layout:
    return Layout(
        reuse=rng.random() < 0.75,
        overwrite=rng.random() < 0.25,
        buffers=2 if rng.random() < 0.15 else 1,
        state_apart=rng.random() < 0.4,
        state_named=rng.random() < 0.3,
        state_planned=rng.random() < 0.9,
    )


def _with_calls(recipe: Recipe, s: Sketch) -> Recipe | None:
    """Add the inputs of several calls, and what only they show: which shapes vary."""
    rng = s.rng
    calls = []
    for number in range(CALLS):
        elastic = ELASTIC if number == 0 else rng.randint(1, ELASTIC)
        inputs = []
        for index in recipe.inputs:
            value = recipe.values[index]
            shape = [elastic if s.profile.dynamic and n == ELASTIC else n for n in value.shape]
            tensor = random_tensor(s.noise, shape, value.dtype, value.high)
            if value.dtype is torch.bool and not shape:
                tensor.fill_((number + rng.randrange(2)) % 2 == 0)
            if len(shape) > 1 and rng.random() < 0.2 and tensor.numel():
                tensor = tensor[:1].expand(tensor.shape)  # a run on strided inputs expands it
            inputs.append(laid_out(tensor, value.order))
        calls.append(tuple(inputs))
    if rng.random() < 0.3:
        calls[-1] = calls[0]
    recipe = _unplanned(replace(recipe, calls=tuple(calls)), rng)
    return settled(recipe)


def _unplanned(recipe: Recipe, rng: random.Random) -> Recipe:
    """Take inputs, outputs or state out of the plan, as settings of the exporter do."""
    draw = rng.random()
    values = list(recipe.values)
    silent = {root(values, i) for i, v in enumerate(values) if v.silent}  # they have a place
    inputs = set(recipe.inputs) - silent if draw < 0.35 else set()
    results = {root(values, i) for i in recipe.outputs if 0.2 < draw < 0.5} - silent
    results = {i for i in results if values[i].role is Role.RESULT}
    states = {i for i, v in enumerate(values) if v.role is Role.STATE and v.data is not None}
    if recipe.layout.state_planned:
        states = set()
    for index in inputs | results | (states - silent):
        values[index] = replace(values[index], planned=False)
    return replace(recipe, values=tuple(values))
