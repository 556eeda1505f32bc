"""Operators that only move elements."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from differential.random_programs import draws as d
from differential.random_programs.draws import MINUS_ONE, NO, ZERO
from differential.random_programs.recipe import Arg, Ref, Tensors
from differential.random_programs.sketch import Sketch, laid_out
from differential.random_programs.table import NoFit, Row, math, view

T = d.T
A = torch.ops.aten


def plain(x: Tensor, *_: Any) -> Tensor:
    """Return the tensor itself: the copy is the oracle's."""
    return x


def cloned(x: Tensor, memory_format: int | None) -> Tensor:
    """Copy, or ask for contiguous memory, as people write it."""
    return x.clone() if memory_format is None else x.contiguous()


def in_format(x: Tensor, _: bool, order: list[int]) -> Tensor:
    """Return the tensor in the memory format that a dim order stands for."""
    last = order == [0, 2, 3, 1]
    return x.to(memory_format=torch.channels_last if last else torch.contiguous_format)


def reordered(x: Tensor, *rest: Any) -> Tensor:
    """Return the tensor in the dim order of the last argument."""
    order = rest[-1]
    return x if order is None else laid_out(x, order)


def converted(x: Tensor, _: bool, order: list[int], dtype: torch.dtype) -> Tensor:
    """Return the tensor in another dtype, which the file says by its out tensor."""
    return laid_out(x.to(dtype), order)


def other_dtype(s: Sketch, args: list[Arg]) -> Arg:
    """Draw a dtype to convert to."""
    return s.rng.choice([*s.profile.dtypes, torch.float32, torch.int32, torch.bool])


def dim_order(s: Sketch, args: list[Arg]) -> Arg:
    """Draw a dim order: contiguous or, of four dimensions, channels last."""
    rank = len(d.first(s, args).shape)
    if rank == 4 and s.rng.random() < 0.6:
        return (0, 2, 3, 1)
    return tuple(range(rank))


def same_bytes(s: Sketch, args: list[Arg]) -> Arg:
    """Draw a dtype to read the first argument's bytes as."""
    kinds = {2: [torch.int16], 4: [torch.int32, torch.int16], 1: [torch.uint8], 8: [torch.int32]}
    return s.rng.choice(kinds[d.first(s, args).dtype.itemsize])


def pieces(s: Sketch, args: list[Arg]) -> Arg:
    """Draw sizes that add up to the first argument's size in a dimension drawn here: the last."""
    shape = d.first(s, args).shape
    if not shape or shape[-1] < 2 or (s.profile.dynamic and shape[-1] == 5):
        raise NoFit
    cut = s.rng.randint(1, shape[-1] - 1)
    return (cut, shape[-1] - cut)


def short(s: Sketch, args: list[Arg]) -> Arg:
    """Draw a window no longer than the dimension of the second argument."""
    size = d.size_at(s, args)
    if size == 0 or (s.profile.dynamic and size == 5):
        raise NoFit
    return s.rng.randint(1, size)


def whole_split(s: Sketch, args: list[Arg]) -> Arg:
    """Draw a size to split the last dimension by."""
    shape = d.first(s, args).shape
    if not shape or shape[-1] < 2 or (s.profile.dynamic and shape[-1] == 5):
        raise NoFit
    return s.rng.randint(1, shape[-1])


def index_of(s: Sketch, args: list[Arg]) -> int:
    """Draw an index tensor into dimension 0."""
    found = d.indices(rank=s.rng.randint(1, 2), at=9)(s, args)
    assert isinstance(found, Ref)
    return found.index


def like_index(s: Sketch, args: list[Arg]) -> Arg:
    """Draw what is scattered: the same number everywhere, so that the order does not matter."""
    index = args[2]
    assert isinstance(index, Ref)
    value = d.first(s, args)
    same = torch.full(s.values[index.index].shape, 1).to(value.dtype)
    return Ref(s.constant(same))


def pair_last(s: Sketch, args: list[Arg]) -> Arg:
    """Draw a float32 tensor whose last dimension has two elements."""
    shape = [s.rng.randint(1, 4) for _ in range(s.rng.randint(1, 2))]
    found = [
        i
        for i in s.visible
        if s.values[i].shape[-1:] == (2,) and s.values[i].dtype is torch.float32
    ]
    if found:
        return Ref(s.rng.choice(found))
    return Ref(s.supply([*shape, 2], torch.float32))


def flat_view(x: Tensor, size: list[int]) -> Tensor:
    """Return a view where there is one, as ``et_view`` does on dense memory."""
    return x.view(size)


VIEWS: tuple[Row, ...] = (
    view("aten::permute_copy.out", [T, d.permutation], torch.permute, weight=5),
    view("aten::transpose_copy.int_out", [T, d.dim, d.dim], torch.transpose, weight=2),
    view("aten::t_copy.out", [d.tensor(rank=2)], torch.t),
    view("aten::expand_copy.out", [T, d.expanded, NO], lambda x, n, _: x.expand(n), weight=2),
    view(
        "aten::slice_copy.Tensor_out",
        [d.tensor(least=1), d.dim, d.start, d.end, d.one_of(1, 1, 2)],
        A.slice.Tensor,
        weight=3,
    ),
    view(
        "aten::select_copy.int_out", [d.tensor(least=1), d.dim, d.position], torch.select, weight=2
    ),
    view("aten::view_copy.out", [T, d.sizes], torch.reshape, weight=4),
    view("aten::_unsafe_view.out", [T, d.sizes], torch.reshape, weight=0.5),
    view("aten::unsqueeze_copy.out", [T, d.new_dim], torch.unsqueeze),
    view("aten::squeeze_copy.dims_out", [T, d.ones_dims], torch.squeeze),
    view("aten::squeeze_copy.dim_out", [d.tensor(least=1), d.dim], torch.squeeze, dynamic=False),
    view("aten::clone.out", [T, d.one_of(None, 0, 1)], plain, weight=3, traced=cloned),
    view("aten::alias_copy.out", [T], plain, traced=torch.Tensor.contiguous),
    view("aten::detach_copy.out", [T], plain, weight=0.5, traced=torch.detach),
    view("aten::lift_fresh_copy.out", [T], plain, weight=0.5, exports=False),
    view(
        "aten::as_strided_copy.out",
        [T, d.strided_size, d.strides, d.offset],
        torch.as_strided,
        weight=3,
        dynamic=False,
        traced=lambda x, *a: x.contiguous().as_strided(*a),
    ),
    view(
        "aten::view_as_complex_copy.out", [pair_last], torch.view_as_complex, dtypes="f", weight=2
    ),
    view(
        "aten::view_as_real_copy.out",
        [d.tensor(dtypes="c")],
        torch.view_as_real,
        dtypes="c",
        weight=2,
    ),
    view(
        "aten::view_copy.dtype_out",
        [d.tensor(least=1, dtypes="fhi"), same_bytes],
        torch.Tensor.view,
        steady=False,
        dtypes="fhi",
    ),
    view(
        "aten::diagonal_copy.out",
        [d.tensor(least=2), d.one_of(0, 0, 1, -1), ZERO, d.one_of(1, -1)],
        torch.diagonal,
        dynamic=False,
    ),
    view(
        "aten::unfold_copy.out",
        [d.tensor(least=1), d.dim, short, d.one_of(1, 2)],
        lambda x, *a: x.unfold(*a),
    ),
    view(
        "aten::split_copy.Tensor_out",
        [d.tensor(least=1), whole_split, MINUS_ONE],
        torch.split,
        returns="list",
        weight=2,
    ),
    view(
        "aten::split_with_sizes_copy.out",
        [d.tensor(least=1), pieces, MINUS_ONE],
        lambda x, n, k: torch.split(x, n, k),
        returns="list",
    ),
    view(
        "aten::unbind_copy.int_out",
        [d.tensor(least=1), MINUS_ONE],
        torch.unbind,
        returns="list",
        dynamic=False,
    ),
    view(
        "dim_order_ops::_clone_dim_order.out",
        [T, NO, dim_order],
        reordered,
        weight=2,
        traced=in_format,
    ),
    view(
        "executorch_prim::et_view.default",
        [T, d.sizes],
        flat_view,
        returns="view",
        weight=2,
        traced=torch.reshape,
    ),
    math("aten::cat.out", [d.several, ZERO], torch.cat, weight=3),
    math("aten::stack.out", [d.alike, d.one_of(0, -1)], torch.stack),
    math(
        "aten::repeat.out",
        [d.tensor(least=1), lambda s, a: tuple(s.rng.randint(1, 2) for _ in d.first(s, a).shape)],
        lambda x, n: x.repeat(n),
    ),
    math("aten::flip.out", [T, d.dims], torch.flip),
    math("aten::roll.out", [T, d.const((1,)), lambda s, a: (d.dim(s, a),)], torch.roll),
    math("aten::index_select.out", [d.tensor(least=1), d.dim, d.indices()], torch.index_select),
    math(
        "aten::gather.out",
        [d.tensor(rank=2), d.dim, d.indices(rank=2), NO],
        lambda x, k, i, _: torch.gather(x, k, i),
        dynamic=False,
    ),
    math(
        "aten::constant_pad_nd.out",
        [d.tensor(least=1), d.one_of((1, 0), (0, 2), (-1, 1)), ZERO],
        torch.constant_pad_nd,
    ),
    math(
        "aten::index.Tensor_out",
        [d.tensor(least=1), lambda s, a: Tensors((index_of(s, a),), optional=True)],
        lambda x, i: x[i[0]],
    ),
    math(
        "aten::scatter.src_out",
        [d.tensor(rank=1), ZERO, d.indices(), lambda s, a: like_index(s, a)],
        torch.scatter,
        dynamic=False,
        exports=False,
    ),
    math("aten::nonzero.out", [d.tensor(dtypes="b")], torch.nonzero, weight=0.5, exports=False),
    math("aten::tril.out", [d.tensor(least=2), d.one_of(0, 1, -1)], torch.tril),
    math(
        "dim_order_ops::_to_dim_order_copy.out",
        [T, NO, dim_order, other_dtype],
        converted,
        hidden=1,
        traced=lambda x, _, order, dtype: x.to(dtype),
        weight=2,
        steady=False,
    ),
)
