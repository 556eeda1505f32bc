"""Operators that no library has, as a user registers them.

The same plain torch function is given to pteron and to the oracle, each with a state of its own:
what is tested is what the executor does around it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from differential.random_programs import draws as d
from differential.random_programs.table import Row

F = "f"


def dense_sum(x: Tensor) -> Tensor:
    """Add neighbours in memory, as C code does that takes a pointer and a number of elements."""
    memory = x.as_strided((x.numel(),), (1,))
    return memory.cumsum(0) - memory[:1]


def last_of_memory(x: Tensor, *, out: Tensor) -> None:
    """Write the elements in the order of memory, last first."""
    out.resize_(x.numel()).copy_(x.as_strided((x.numel(),), (1,)).flip(0))


def same(x: Tensor) -> Tensor:
    """Return the argument itself."""
    return x


def every_other(x: Tensor) -> Tensor:
    """Return a strided view of the argument."""
    return x[::2]


def both(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return two results, one of them a view of the argument."""
    return x.flatten(), x + 1


def bump(x: Tensor, by: float) -> None:
    """Add a number in place."""
    x.add_(by)


def scale_(x: Tensor, y: Tensor) -> Tensor:
    """Add another tensor in place, and return the first."""
    return x.add_(y)


def add_into(x: Tensor, total: Tensor) -> None:
    """Add the first argument to the second one in place."""
    total.add_(x)


class Counter:
    """Adds the number of calls that there were so far."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * 0 + self.calls


class Noise:
    """Draws numbers, other ones in each call."""

    def __init__(self) -> None:
        self.source = torch.Generator().manual_seed(7)

    def __call__(self, count: int) -> Tensor:
        return torch.randint(-4, 5, (count,), generator=self.source).float()


class Tick:
    """Takes nothing at all, and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Tensor:
        self.calls += 1
        return torch.full((2, 2), float(self.calls))


WITH_STATE: dict[str, Callable[[], Callable[..., Any]]] = {
    "own::counter": Counter,
    "own::noise": Noise,
    "own::tick": Tick,
}
FACTS: dict[str, dict[str, Any]] = {
    "own::bump": {"mutates": 0, "returns": 0},
    "own::scale_": {"mutates": 0},
    "own::add_into": {"mutates": 1, "returns": 0},
    "own::both": {"outs": ("out0", "out1")},
}
"""What a user says of a kernel when registering it, beside the function."""


def fresh_state() -> dict[str, Callable[..., Any]]:
    """Return the kernels that have state, at its beginning."""
    return {name: make() for name, make in WITH_STATE.items()}


def pteron_kernels(names: set[str]) -> dict[str, Any]:
    """Return kernels of these names for ``load_program``, with a fresh state."""
    from pteron.kernels import kernel_from_function

    found = {}
    for row in OWN:
        for name in (row.name, f"{row.name}.out"):
            if name in names:
                make = WITH_STATE.get(row.name)
                function = as_function(make()) if make is not None else row.eager
                function = PTERON_FORMS.get(row.name, function)
                found[name] = kernel_from_function(name, function, **FACTS.get(row.name, {}))
    return found


def as_function(made: Any) -> Callable[..., Any]:
    """Return an object's call as a function, whose parameters can be counted."""
    return made.__call__  # type: ignore[no-any-return]


def reversed_memory(x: Tensor) -> Tensor:
    """Return what ``last_of_memory`` writes."""
    return x.as_strided((x.numel(),), (1,)).flip(0)


PTERON_FORMS: dict[str, Callable[..., Any]] = {"own::last_of_memory.out": last_of_memory}
"""Kernels that fill an out tensor; the row has the form that returns the result."""

WHERE = d.tensor(dtypes=F)


def operator(name: str) -> Callable[..., Any]:
    """Return an operator that ``define_for_export`` makes, looked up when it is called."""

    def call(*args: Any) -> Any:
        return getattr(torch.ops.own, name)(*args)

    return call


def _not_in_eager(*args: Any) -> Tensor:
    raise RuntimeError("eager runs call the kernels themselves")


OWN: tuple[Row, ...] = (
    Row(
        "own::dense_sum",
        (WHERE,),
        dense_sum,
        "own",
        1.5,
        returns="plain",
        dtypes=F,
        traced=operator("dense_sum"),
    ),
    Row("own::last_of_memory.out", (WHERE,), reversed_memory, "own", 1.5, dtypes=F, exports=False),
    Row("own::same", (d.T,), same, "own", returns="plain", exports=False),
    Row(
        "own::every_other",
        (d.tensor(least=1, dtypes=F),),
        every_other,
        "own",
        returns="plain",
        exports=False,
    ),
    Row("own::both", (WHERE,), both, "own", returns="plain", exports=False),
    Row(
        "own::bump",
        (d.target(), d.const(5.0)),
        bump,
        "change",
        2,
        (0,),
        "nothing",
        dtypes=F,
        exports=False,
    ),
    Row(
        "own::scale_",
        (d.target(), d.LIKE),
        scale_,
        "change",
        1,
        (0,),
        "self",
        dtypes=F,
        exports=False,
    ),
    Row(
        "own::add_into",
        (WHERE, d.target_like),
        add_into,
        "change",
        2,
        (1,),
        "nothing",
        dtypes=F,
        exports=False,
    ),
    Row(
        "own::counter", (WHERE,), same, "own", returns="plain", dtypes=F, traced=operator("counter")
    ),
    Row(
        "own::noise",
        (d.const(4),),
        same,
        "own",
        0.7,
        returns="plain",
        dtypes=F,
        exports=False,
    ),
    Row(
        "own::tick",
        (),
        lambda: None,
        "own",
        0.7,
        returns="plain",
        dtypes=F,
        exports=False,
    ),
)

EXPORTED = {
    "own::dense_sum": "dense_sum(Tensor x) -> Tensor",
    "own::counter": "counter(Tensor x) -> Tensor",
}
"""Schemas of those that exported modules call; the file names their out variants."""

_library: list[torch.library.Library] = []


def define_for_export() -> None:
    """Tell torch of the operators, once, so that modules with them can be exported."""
    if _library:
        return
    library = torch.library.Library("own", "DEF")
    _library.append(library)
    shapes: dict[str, Callable[..., Tensor]] = {
        "dense_sum": lambda x: x.new_empty(x.numel()),
        "counter": torch.empty_like,
    }
    for schema in EXPORTED.values():
        name, _, rest = schema.partition("(")
        arguments = rest.partition(")")[0]
        out = f"{arguments}, *, Tensor(a!) out" if arguments else "*, Tensor(a!) out"
        library.define(schema, tags=())
        library.define(f"{name}.out({out}) -> Tensor(a!)")
        library.impl(name, shapes[name], "Meta")
        library.impl(f"{name}.out", lambda *a, out, **k: out, "Meta")
        library.impl(name, _not_in_eager, "CPU")
