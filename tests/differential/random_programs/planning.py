"""Where the values of a recipe lie: a memory plan as exporters make it, but by chance."""

from __future__ import annotations

from dataclasses import dataclass

from differential.random_programs.operators import ROWS
from differential.random_programs.recipe import Branch, Call, Recipe, Role, Step, named, root

ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class Place:
    """A buffer (from 1 on) and the first byte in it."""

    buffer: int
    offset: int
    nbytes: int
    first: int
    last: int

    def meets(self, other: Place) -> bool:
        """Whether two values need the same bytes at the same time."""
        return (
            self.buffer == other.buffer
            and self.offset < other.offset + other.nbytes
            and other.offset < self.offset + self.nbytes
            and self.first <= other.last
            and other.first <= self.last
        )


def flat(steps: tuple[Step, ...]) -> list[Step]:
    """Return the steps in the order of the file: a branch's results stand behind its bodies."""
    found: list[Step] = []
    for step in steps:
        if isinstance(step, Branch):
            found.append(Branch(step.predicate, (), (), ()))
            found += flat(step.then)
            found += flat(step.otherwise)
        found.append(step)
    return found


def lifetimes(recipe: Recipe) -> dict[int, tuple[int, int]]:
    """Return when the memory of each value is in use; what lies in it counts for its owner.

    The results of a branch are written in both bodies, so they live from its beginning on.
    """
    steps = flat(recipe.steps)
    end = len(steps)
    found: dict[int, tuple[int, int]] = {}

    def use(index: int, at: int) -> None:
        owner = root(recipe.values, index)
        begin, last = found.get(owner, (at, at))
        found[owner] = (min(begin, at), max(last, at))

    for index in recipe.inputs:
        use(index, -1)
    starts: dict[int, int] = {}
    for number, step in enumerate(steps):
        if isinstance(step, Branch) and not step.results and not step.then:
            continue
        for index in named(step):
            use(index, number)
    for number, step in enumerate(steps):
        if isinstance(step, Branch):
            if not step.then and not step.otherwise and not step.results:
                starts[step.predicate] = number
                use(step.predicate, number)
            else:
                begin = _begin(steps, number)
                for out, _, _ in step.results:
                    use(out, begin)
    for index, value in enumerate(recipe.values):
        if value.role is Role.STATE:
            use(index, -1)
            use(index, end)
    for index in recipe.outputs:
        use(index, end)
    return found


def _begin(steps: list[Step], number: int) -> int:
    """Return where the bodies of the branch at a place begin."""
    step = steps[number]
    assert isinstance(step, Branch)
    return number - len(flat(step.then)) - len(flat(step.otherwise))


def nbytes(recipe: Recipe, index: int) -> int:
    """Return the bytes of a tensor at its largest."""
    value = recipe.values[index]
    count = 1
    for size in value.shape:
        count *= size
    return count * value.dtype.itemsize


def places(recipe: Recipe) -> dict[int, Place]:
    """Return the place of each planned tensor that owns its memory."""
    layout, used = recipe.layout, lifetimes(recipe)
    overwrites = _overwrites(recipe, used) if layout.overwrite else {}
    found: dict[int, Place] = {}
    tops: dict[int, int] = {}
    for index in sorted(used, key=lambda i: (used[i][0], i)):
        value = recipe.values[index]
        if value.role in (Role.CONSTANT, Role.NUMBER) or not value.planned:
            continue
        state = value.role is Role.STATE
        buffer = 1 + index % layout.buffers
        if state and layout.state_apart:
            buffer = layout.buffers + 1
        over = overwrites.get(index)
        if over in found and found[over].nbytes == nbytes(recipe, index):
            taken = found[over]
            place = Place(
                taken.buffer, taken.offset, taken.nbytes, used[index][0] + 1, used[index][1]
            )
            if not any(place.meets(other) for other in found.values()):
                found[index] = place
                continue
        size = nbytes(recipe, index)
        offset = tops.get(buffer, 0)
        if layout.reuse:
            candidates = [
                0,
                *sorted(p.offset + p.nbytes for p in found.values() if p.buffer == buffer),
            ]
            for candidate in candidates:
                at = -(-candidate // ALIGNMENT) * ALIGNMENT
                place = Place(buffer, at, max(size, 1), *used[index])
                if not any(place.meets(other) for other in found.values()):
                    offset = at
                    break
        found[index] = Place(buffer, offset, size, *used[index])
        tops[buffer] = max(tops.get(buffer, 0), -(-(offset + size) // ALIGNMENT) * ALIGNMENT)
    return found


def _overwrites(recipe: Recipe, used: dict[int, tuple[int, int]]) -> dict[int, int]:
    """Return for results the argument whose place they may take: read for the last time there.

    Only operators that go through their arguments element by element are asked.
    """
    found: dict[int, int] = {}
    for number, step in enumerate(flat(recipe.steps)):
        if not isinstance(step, Call) or ROWS[step.op].name not in ELEMENT_BY_ELEMENT:
            continue
        (out,) = step.outs
        value = recipe.values[out]
        for index in named(step):
            given = recipe.values[index]
            if (
                given.role is Role.RESULT
                and given.source is None
                and not given.dynamic
                and not value.dynamic
                and used[index][1] == number
                and used[out][0] == number
                and (given.shape, given.dtype, given.order)
                == (value.shape, value.dtype, value.order)
            ):
                found[out] = index
    return found


ELEMENT_BY_ELEMENT = frozenset(
    f"aten::{name}.out" for name in ("relu", "neg", "abs", "add", "mul", "sub", "maximum", "tanh")
)
