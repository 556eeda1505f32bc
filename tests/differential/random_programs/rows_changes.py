"""Operators that change an argument in place, those of language models among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from differential.random_programs import draws as d
from differential.random_programs.draws import MINUS_ONE, NO, NONE, ONE, YES_NO, ZERO
from differential.random_programs.recipe import Arg, Ref, Tensors
from differential.random_programs.sketch import ELASTIC, Sketch
from differential.random_programs.table import NoFit, Row, change, math

TARGET = d.target()
FLOAT_CACHE = d.target(rank=4)
SIDE = d.of_shape


def tokens(s: Sketch, args: list[Arg]) -> Arg:
    """Draw values for a cache that is drawn after them: (batch, tokens, heads, size)."""
    shape = [s.rng.randint(1, 2), s.rng.randint(1, 2), s.rng.randint(1, 2), s.rng.randint(2, 3)]
    found = [
        i
        for i in s.visible
        if len(v := s.values[i].shape) == 4
        and s.values[i].dtype is torch.float32
        and v[1] <= 3
        and 0 not in v
        and ELASTIC not in v
    ]
    if found and s.rng.random() < 0.7:
        return Ref(s.rng.choice(found))
    return Ref(s.supply(shape, torch.float32))


def cache(*, of: int = 0, like: int | None = None) -> d.Draw:
    """Draw a cache for argument ``of``: as it, but with more positions in dimension 1.

    ``like`` is another cache that has the same size.
    """

    def draw(s: Sketch, args: list[Arg]) -> Arg:
        given = args[of]
        assert isinstance(given, Ref)
        shape = s.values[given.index].shape
        taken = {i for arg in args for i in d_refs(arg)}
        other = None if like is None else args[like]
        size = s.values[other.index].shape[1] if isinstance(other, Ref) else None

        def fits(i: int) -> bool:
            v = s.values[i]
            return (
                len(v.shape) == 4
                and v.dtype is torch.float32
                and (v.shape[0], *v.shape[2:]) == (shape[0], *shape[2:])
                and (v.shape[1] >= shape[1] if size is None else v.shape[1] == size)
                and d.root(s.values, i) not in {d.root(s.values, t) for t in taken}
                and s.values[d.root(s.values, i)].role in (d.Role.STATE, d.Role.RESULT)
                and tuple(v.order) == (0, 1, 2, 3)
            )

        found = [i for i in s.visible if fits(i)]
        if found and s.rng.random() < 0.85:
            return Ref(s.rng.choice(found))
        size = shape[1] + s.rng.randint(0, 3) if size is None else size
        return Ref(s.state((shape[0], size, *shape[2:]), torch.float32))

    return draw


def d_refs(arg: Arg) -> list[int]:
    """Return the values that an argument names."""
    from differential.random_programs.recipe import refs

    return list(refs(arg))


def cache_position(*, values: int = 0, at: int = 1) -> d.Draw:
    """Draw where the values go in the cache."""

    def draw(s: Sketch, args: list[Arg]) -> Arg:
        new, old = args[values], args[at]
        assert isinstance(new, Ref)
        assert isinstance(old, Ref)
        return s.number(s.values[old.index].shape[1] - s.values[new.index].shape[1] + 1)

    return draw


def token_places(s: Sketch, args: list[Arg]) -> Arg:
    """Draw a position for each token, (batch, tokens) in int64; each one only once."""
    new, old = args[0], args[1]
    assert isinstance(new, Ref)
    assert isinstance(old, Ref)
    shape, places = s.values[new.index].shape, s.values[old.index].shape[1]
    rows = [torch.randperm(places, generator=s.noise)[: shape[1]] for _ in range(shape[0])]
    return Ref(s.constant(torch.stack(rows)))


def llama(name: str) -> Callable[..., Any]:
    """Return an operator that the wheel registers with torch, looked up when it is called."""

    def call(*args: Any) -> Any:
        from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401 - it registers

        return getattr(torch.ops.llama, name)(*args)

    return call


def update_cache(value: Tensor, cache: Tensor, start: int) -> Tensor:
    """Write the values from a position on."""
    cache[:, start : start + value.shape[1]] = value
    return torch.zeros(1)


def update_cache_with_indices(value: Tensor, cache: Tensor, start: int, places: Tensor) -> Tensor:
    """Write each token at its own position."""
    for batch, row in enumerate(places.tolist()):
        for token, place in enumerate(row):
            cache[batch, place] = value[batch, token]
    return torch.zeros(1)


def sdpa_with_kv_cache(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    start: int,
    length: int,
    mask: None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    """Write keys and values, then attend to all positions up to the query's own."""
    update_cache(key, keys, start)
    update_cache(value, values, start)
    end = start + length
    known, content = keys[:, :end].transpose(1, 2), values[:, :end].transpose(1, 2)
    scores = query.transpose(1, 2) @ known.transpose(2, 3) / query.shape[-1] ** 0.5
    if is_causal:
        seen = torch.arange(end)[None, :] <= torch.arange(start, end)[:, None]
        scores = scores.masked_fill(~seen, float("-inf"))
    return (torch.softmax(scores, -1) @ content).transpose(1, 2)


def like_query(s: Sketch, args: list[Arg]) -> Arg:
    """Draw a tensor of the first argument's shape."""
    return Ref(s.supply(d.first(s, args).shape, torch.float32))


def query_length(s: Sketch, args: list[Arg]) -> Arg:
    """Return the number of tokens of the query."""
    return d.first(s, args).shape[1]


def update_cross_attn_cache(value: Tensor, cache: Tensor) -> Tensor:
    """Write values to the start of a (batch, heads, positions, size) cache; return the cache."""
    cache[:, :, : value.shape[2]] = value
    return cache


def smaller(s: Sketch, args: list[Arg]) -> Arg:
    """Draw values for a cache of which dimension 2 may be longer."""
    return Ref(s.supply([1, 2, s.rng.randint(1, 2), 2], torch.float32))


def cross_cache(s: Sketch, args: list[Arg]) -> Arg:
    """Draw that cache."""
    shape = d.first(s, args).shape
    found = [
        i
        for i in s.visible
        if s.values[i].shape == (1, 2, 3, 2)
        and s.values[i].dtype is torch.float32
        and s.values[i].order == (0, 1, 2, 3)
        and s.values[d.root(s.values, i)].role in (d.Role.STATE, d.Role.RESULT)
    ]
    if found:
        return Ref(s.rng.choice(found))
    return Ref(s.state((*shape[:2], 3, shape[3]), torch.float32))


def rows_of(s: Sketch, args: list[Arg]) -> Arg:
    """Draw one list of row numbers, each at most once: order does not matter then."""
    shape = d.first(s, args).shape
    if not shape or shape[0] in (0, ELASTIC):
        raise NoFit
    count = s.rng.randint(1, min(2, shape[0]))
    return Tensors(
        (s.constant(torch.randperm(shape[0], generator=s.noise)[:count]),), optional=True
    )


def row_values(s: Sketch, args: list[Arg]) -> Arg:
    """Draw what is put into those rows."""
    value, rows = d.first(s, args), args[1]
    assert isinstance(rows, Tensors)
    assert rows.items[0] is not None
    count = s.values[rows.items[0]].shape[0]
    return Ref(s.supply([count, *value.shape[1:]], value.dtype))


def row_index(s: Sketch, args: list[Arg]) -> Arg:
    """Draw a tensor of distinct row numbers."""
    shape = d.first(s, args).shape
    if not shape or shape[0] in (0, ELASTIC):
        raise NoFit
    count = s.rng.randint(1, min(2, shape[0]))
    return Ref(s.constant(torch.randperm(shape[0], generator=s.noise)[:count]))


def index_values(s: Sketch, args: list[Arg]) -> Arg:
    """Draw what is put into those rows."""
    value, rows = d.first(s, args), args[2]
    assert isinstance(rows, Ref)
    return Ref(s.supply([*s.values[rows.index].shape, *value.shape[1:]], value.dtype))


def index_put(x: Tensor, rows: list[Tensor], values: Tensor, accumulate: bool) -> Tensor:
    """Put or add rows, and return the tensor."""
    return x.index_put_(tuple(rows), values, accumulate)


def running(s: Sketch, args: list[Arg]) -> Arg:
    """Draw running statistics of the channels: a result, since they are not exact."""
    shape = d.first(s, args).shape
    if 0 in shape or shape[0] * shape[2] < 2:
        raise NoFit
    taken = {i for arg in args for i in d_refs(arg)}
    found = [
        i
        for i in s.visible
        if s.values[i].shape == (shape[1],)
        and s.values[i].dtype is torch.float32
        and s.values[i].role is d.Role.RESULT
        and s.values[i].source is None
        and i not in taken
    ]
    if found and s.rng.random() < 0.7:
        return Ref(s.rng.choice(found))
    (out,) = s.run(s.row_named("aten::full.out"), [(shape[1],), 1.0])
    return Ref(out)


CHANGES: tuple[Row, ...] = (
    change(
        "aten::_native_batch_norm_legit.out",
        [
            d.tensor(rank=3, dtypes="f"),
            d.of_shape("0.1", optional=0.3),
            d.of_shape("0.1", optional=0.3),
            running,
            running,
            d.const(True),
            d.const(0.5),
            d.const(0.5),
        ],
        torch.ops.aten._native_batch_norm_legit,
        changes=(3, 4),
        returns="out",
        inexact=True,
        whole=False,
        steady=False,
        dtypes="f",
        dynamic=False,
        exports=False,
    ),
    change(
        "aten::copy_",
        [TARGET, d.SPREAD, NO],
        lambda x, y, _: x.copy_(y),
        # The exporter gives the result the shape of the source.
        traced=lambda x, y, _: x.copy_(y.expand(x.shape)),
        weight=3,
    ),
    change(
        "aten::add_.Tensor", [d.target(), d.SPREAD, ONE], lambda x, y, a: x.add_(y), dtypes="fhi"
    ),
    change("aten::mul_.Scalar", [d.target(), MINUS_ONE], lambda x, y: x.mul_(y), dtypes="fi"),
    change("aten::relu_", [d.target()], lambda x: x.relu_(), dtypes="fi"),
    change("aten::zero_", [d.target()], lambda x: x.zero_()),
    change("aten::fill_.Scalar", [d.target(), ONE], lambda x, v: x.fill_(v)),
    change(
        "aten::masked_fill_.Scalar",
        [d.target(), d.bools, d.const(2)],
        lambda x, m, v: x.masked_fill_(m, v),
        dtypes="fhi",
    ),
    change(
        "aten::index_put_",
        [d.target(least=1), rows_of, row_values, YES_NO],
        index_put,
        dtypes="fhi",
        weight=2,
    ),
    change(
        "aten::index_copy_",
        [d.target(least=1), ZERO, row_index, index_values],
        lambda x, k, i, v: x.index_copy_(k, i, v),
        dtypes="fhi",
    ),
    change(
        "llama::update_cache.out",
        [tokens, cache(), cache_position()],
        update_cache,
        traced=llama("update_cache"),
        changes=(1,),
        returns="ignored",
        weight=12,
    ),
    change(
        "llama::update_cache_with_indices.out",
        [tokens, cache(), ZERO, token_places],
        update_cache_with_indices,
        traced=llama("update_cache_with_indices"),
        changes=(1,),
        returns="ignored",
        weight=5,
    ),
    change(
        "llama::sdpa_with_kv_cache.out",
        [
            tokens,
            like_query,
            like_query,
            cache(),
            cache(like=3),
            cache_position(at=3),
            query_length,
            NONE,
            d.const(0.0),
            d.one_of(True, False),
            NONE,
        ],
        sdpa_with_kv_cache,
        traced=llama("sdpa_with_kv_cache"),
        changes=(3, 4),
        returns="out",
        weight=2,
        inexact=True,
        dynamic=False,
    ),
    change(
        "executorch::update_cross_attn_cache",
        [smaller, cross_cache],
        update_cross_attn_cache,
        exports=False,
        changes=(1,),
        returns="plain",
        weight=1,
    ),
    math(
        "aten::index_put.out",
        [d.tensor(least=1, dtypes="fhi"), rows_of, row_values, YES_NO],
        lambda x, r, v, a: x.index_put(tuple(r), v, a),
    ),
)
