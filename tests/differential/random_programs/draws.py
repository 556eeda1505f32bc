"""How arguments are drawn. A draw takes the sketch and the arguments before its own."""

from __future__ import annotations

import torch

from differential.random_programs.recipe import Arg, Ref, Role, Tensors, Value, root
from differential.random_programs.sketch import CLASSES, ELASTIC, Sketch
from differential.random_programs.table import Draw, NoFit


def kind(value: Value) -> str:
    """Return the letter of ``Row.dtypes`` that a value's dtype has."""
    return CLASSES.get(value.dtype, "i")


def first(s: Sketch, args: list[Arg]) -> Value:
    """Return the value of the first argument."""
    assert isinstance(args[0], Ref)
    return s.values[args[0].index]


def tensor(*, rank: int | None = None, least: int = 0, dtypes: str = "") -> Draw:
    """Draw any tensor of the row's dtypes."""

    def draw(s: Sketch, args: list[Arg]) -> Arg:
        allowed = dtypes or (s.row.dtypes if s.row else "fhib")

        def fits(v: Value) -> bool:
            ranks = rank is None or len(v.shape) == rank
            return ranks and len(v.shape) >= least and kind(v) in allowed

        try:
            return Ref(s.pick(fits))
        except NoFit:
            if rank is None or s.rng.random() < 0.5:
                raise
            found = [d for d in s.profile.dtypes if CLASSES.get(d, "i") in allowed]
            if not found:
                raise
            shape = [s.rng.randint(1, 4) for _ in range(rank)]
            return Ref(s.supply(shape, s.rng.choice(found)))

    return draw


T = tensor()


def like(*, broadcast: bool = False) -> Draw:
    """Draw a tensor of the first argument's dtype and shape, or one that spreads over it."""

    def draw(s: Sketch, args: list[Arg]) -> Arg:
        value = first(s, args)
        shape = list(value.shape)
        if broadcast and shape and s.rng.random() < 0.3:
            shape = shape[s.rng.randrange(len(shape) + 1) :]
            shape = [1 if s.rng.random() < 0.2 else n for n in shape]
        return Ref(s.supply(shape, value.dtype))

    return draw


LIKE = like()
SPREAD = like(broadcast=True)


def bools(s: Sketch, args: list[Arg]) -> Arg:
    """Draw a bool tensor of the first argument's shape."""
    return Ref(s.supply(first(s, args).shape, torch.bool, fresh=0.2))


def const(value: Arg) -> Draw:
    """Give this argument always."""
    return lambda s, args: value


def one_of(*values: Arg) -> Draw:
    """Draw one of these."""
    return lambda s, args: s.rng.choice(values)


YES_NO = one_of(False, True)
NO = const(False)
NONE = const(None)
ZERO = const(0)
ONE = const(1)
MINUS_ONE = const(-1)
ZEROS = const((0, 0))
ONES = const((1, 1))
TWOS = const((2, 2))


def scalar(s: Sketch, args: list[Arg]) -> Arg:
    """Draw a small number that fits the first argument's dtype."""
    value = s.rng.choice([-2, -1, 1, 2, 3])
    return float(value) if kind(first(s, args)) in "fh" else abs(value)


def dim(s: Sketch, args: list[Arg]) -> Arg:
    """Draw a dimension, also counted from the end."""
    rank = len(first(s, args).shape)
    if rank == 0:
        raise NoFit
    return s.rng.randrange(-rank, rank)


def new_dim(s: Sketch, args: list[Arg]) -> Arg:
    """Draw where a new dimension goes."""
    rank = len(first(s, args).shape)
    return s.rng.randrange(-rank - 1, rank + 1)


def permutation(s: Sketch, args: list[Arg]) -> Arg:
    """Draw an order of all dimensions."""
    rank = len(first(s, args).shape)
    order = list(range(rank))
    s.rng.shuffle(order)
    return tuple(d - rank if s.rng.random() < 0.1 else d for d in order)


def dims(s: Sketch, args: list[Arg]) -> Arg:
    """Draw some dimensions, one at least."""
    rank = len(first(s, args).shape)
    if rank == 0:
        raise NoFit
    return tuple(sorted(s.rng.sample(range(rank), s.rng.randint(1, rank))))


def ones_dims(s: Sketch, args: list[Arg]) -> Arg:
    """Draw dimensions of size 1, if there are any, and others."""
    shape = first(s, args).shape
    found = [d for d, n in enumerate(shape) if n == 1 or s.rng.random() < 0.2]
    return tuple(found)


def sizes(s: Sketch, args: list[Arg]) -> Arg:
    """Draw another shape of as many elements."""
    value = first(s, args)
    return elastic_sizes(s, value, other_shape(s, value.shape))


def other_shape(s: Sketch, shape: tuple[int, ...]) -> list[int]:
    """Return a shape of as many elements: dimensions joined, split or added."""
    if 0 in shape:
        return [0, *shape[1:]]
    found = list(shape)
    for _ in range(s.rng.randint(1, 2)):
        if len(found) > 1 and s.rng.random() < 0.5:
            at = s.rng.randrange(len(found) - 1)
            found[at : at + 2] = [found[at] * found[at + 1]]
        else:
            at = s.rng.randrange(len(found) + 1)
            splits = [k for k in (2, 3, 4) if at < len(found) and found[at] % k == 0]
            if splits and len(found) < 5:
                k = s.rng.choice(splits)
                found[at : at + 1] = s.rng.choice([[k, found[at] // k], [found[at] // k, k]])
            elif len(found) < 5:
                found.insert(at, 1)
    return found


def elastic_sizes(s: Sketch, value: Value, shape: list[int]) -> Arg:
    """Return a shape, with -1 for the dimension that varies from call to call."""
    elastic = [at for at, n in enumerate(shape) if n and n % ELASTIC == 0]
    if s.profile.dynamic and ELASTIC in value.shape and len(elastic) == 1:
        shape = [-1 if at in elastic else n for at, n in enumerate(shape)]
    elif s.rng.random() < 0.1 and 0 not in shape and shape:
        shape[s.rng.randrange(len(shape))] = -1
    return tuple(shape)


def expanded(s: Sketch, args: list[Arg]) -> Arg:
    """Draw a shape to expand to: ones grow, dimensions are put in front."""
    shape = first(s, args).shape
    grown: list[int] = [
        (s.rng.randint(2, 4) if n == 1 else -1 if s.rng.random() < 0.2 else n) for n in shape
    ]
    if s.profile.dynamic:
        grown = [-1 if n == ELASTIC else n for n in grown]
    front = [s.rng.randint(1, 3)] if s.rng.random() < 0.3 and len(shape) < 4 else []
    return tuple(front + grown)


def size_at(s: Sketch, args: list[Arg]) -> int:
    """Return the size of the first argument's dimension that the second argument names."""
    at = args[1]
    assert isinstance(at, int)
    return first(s, args).shape[at]


def position(s: Sketch, args: list[Arg]) -> Arg:
    """Draw a position along the dimension of the second argument."""
    size = size_at(s, args)
    if size == 0:
        raise NoFit
    if s.profile.dynamic and size == ELASTIC:
        return 0
    return s.number(size)


def start(s: Sketch, args: list[Arg]) -> Arg:
    """Draw where a slice begins."""
    size = size_at(s, args)
    return s.rng.choice([None, 0, s.rng.randint(0, max(size - 1, 0)), -s.rng.randint(1, size or 1)])


def end(s: Sketch, args: list[Arg]) -> Arg:
    """Draw where a slice ends; the file has a large number for "at the end"."""
    size = size_at(s, args)
    return s.rng.choice([None, (1 << 63) - 1, s.rng.randint(1, size or 1), size])


def strided_size(s: Sketch, args: list[Arg]) -> Arg:
    """Draw a shape for ``as_strided`` that is no larger than the first argument."""
    value = first(s, args)
    count = 1
    for n in value.shape:
        count *= n
    if count == 0 or (s.profile.dynamic and ELASTIC in value.shape):
        raise NoFit
    rank = s.rng.randint(1, 3)
    return tuple(s.rng.randint(1, max(1, min(4, count))) for _ in range(rank))


def strides(s: Sketch, args: list[Arg]) -> Arg:
    """Draw strides for ``as_strided`` that stay inside."""
    value, size = first(s, args), args[1]
    count = 1
    for n in value.shape:
        count *= n
    assert isinstance(size, tuple)
    left, found = count - 1, []
    for n in size:
        assert isinstance(n, int)
        most = left // (n - 1) if n > 1 else 4
        step = s.rng.randint(0, min(most, 4)) if most >= 0 else 0
        left -= step * (n - 1)
        found.append(step)
    return tuple(found)


def offset(s: Sketch, args: list[Arg]) -> Arg:
    """Draw a first element for ``as_strided``."""
    value, size, steps = first(s, args), args[1], args[2]
    count = 1
    for n in value.shape:
        count *= n
    assert isinstance(size, tuple)
    assert isinstance(steps, tuple)
    reach = sum((n - 1) * k for n, k in zip(size, steps, strict=True))  # type: ignore[operator]
    return s.rng.choice([None, s.rng.randint(0, max(count - 1 - reach, 0))])


def several(s: Sketch, args: list[Arg]) -> Arg:
    """Draw two or three tensors of one dtype and of shapes that differ in at most dimension 0."""
    base = s.values[s.pick(lambda v: len(v.shape) >= 1 and kind(v) in "fhib")]
    found = []
    for _ in range(s.rng.randint(2, 3)):
        shape = list(base.shape)
        if s.rng.random() < 0.3 and shape[0] != ELASTIC:
            shape[0] = s.rng.randint(1, 3)
        found.append(s.supply(shape, base.dtype, fresh=0.2))
    return Tensors(tuple(found))


def alike(s: Sketch, args: list[Arg]) -> Arg:
    """Draw two or three tensors of one dtype and shape."""
    base = s.values[s.pick(lambda v: kind(v) in "fhib")]
    found = tuple(s.supply(base.shape, base.dtype, fresh=0.2) for _ in range(s.rng.randint(2, 3)))
    return Tensors(found)


def of_shape(*wanted: int | str, dtype: torch.dtype | None = None, optional: float = 0.0) -> Draw:
    """Draw a tensor of this shape; ``"n"`` is any number, ``"0.1"`` size 1 of argument 0."""

    def draw(s: Sketch, args: list[Arg]) -> Arg:
        if s.rng.random() < optional:
            return None
        shape = []
        for one in wanted:
            if one == "n":
                shape.append(s.rng.randint(1, 4))
            elif isinstance(one, str):
                argument, _, at = one.partition(".")
                value = args[int(argument)]
                assert isinstance(value, Ref)
                shape.append(s.values[value.index].shape[int(at)])
            else:
                shape.append(one)
        return Ref(s.supply(shape, dtype or first(s, args).dtype))

    return draw


def indices(*, rank: int = 1, at: int = 1) -> Draw:
    """Draw an index tensor into the dimension that argument ``at`` names (or dimension 0)."""

    def draw(s: Sketch, args: list[Arg]) -> Arg:
        named = args[at] if at < len(args) else 0
        assert isinstance(named, int)
        shape = first(s, args).shape
        if not shape or shape[named] in (0, ELASTIC if s.profile.dynamic else 0):
            raise NoFit
        wanted = [s.rng.randint(1, 3) for _ in range(rank)]
        return Ref(s.supply(wanted, torch.int64, shape[named]))

    return draw


def target(*, rank: int | None = None, least: int = 0) -> Draw:
    """Draw a tensor that may be changed in place: state rather than others, never a constant."""

    def draw(s: Sketch, args: list[Arg]) -> Arg:
        allowed = s.row.dtypes if s.row else "fhib"

        def fits(v: Value) -> bool:
            ranks = (rank is None or len(v.shape) == rank) and len(v.shape) >= least
            return ranks and kind(v) in allowed and 0 not in v.shape

        def changeable(index: int) -> bool:
            role = s.values[root(s.values, index)].role
            return role in (Role.STATE, Role.RESULT) or (
                role is Role.INPUT and s.rng.random() < 0.1 and s.values[index].high is None
            )

        found = [
            i
            for i in s.visible
            if s.values[i].role is not Role.NUMBER and fits(s.values[i]) and changeable(i)
        ]
        states = [i for i in found if s.values[root(s.values, i)].role is Role.STATE]
        if states and s.rng.random() < 0.6:
            return Ref(s.rng.choice(states))
        if found and s.rng.random() < 0.8:
            return Ref(s.rng.choice(found))
        dtypes = [d for d in s.profile.dtypes if CLASSES.get(d, "i") in allowed]
        if not dtypes:
            raise NoFit
        count = rank if rank is not None else max(least, s.rng.randint(1, 3))
        return Ref(s.state([s.rng.randint(1, 4) for _ in range(count)], s.rng.choice(dtypes)))

    return draw


def target_like(s: Sketch, args: list[Arg]) -> Arg:
    """Draw a tensor of the first argument's shape that may be changed in place."""
    value = first(s, args)
    assert isinstance(args[0], Ref)
    owner = root(s.values, args[0].index)
    found = [
        i
        for i in s.visible
        if (v := s.values[i]).shape == value.shape
        and v.dtype == value.dtype
        and root(s.values, i) != owner
        and s.values[root(s.values, i)].role in (Role.STATE, Role.RESULT)
    ]
    if found and s.rng.random() < 0.8:
        return Ref(s.rng.choice(found))
    if s.profile.dynamic and ELASTIC in value.shape:
        raise NoFit
    return Ref(s.state(value.shape, value.dtype))
