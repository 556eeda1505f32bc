"""Operators that compute something and change nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from differential.random_programs import draws as d
from differential.random_programs.draws import (
    MINUS_ONE,
    NO,
    NONE,
    ONE,
    ONES,
    TWOS,
    YES_NO,
    ZERO,
    ZEROS,
)
from differential.random_programs.recipe import Arg, Ref
from differential.random_programs.sketch import Sketch
from differential.random_programs.table import NoFit, Row, math

T, LIKE, SPREAD = d.T, d.LIKE, d.SPREAD
A = torch.ops.aten
NUMBERS = d.tensor(dtypes="fhi")
FLOATS = d.tensor(dtypes="f")
MATRIX = d.tensor(rank=2, dtypes="f")


def unary(name: str, eager: Any, **facts: Any) -> Row:
    """Describe ``name(x)``."""
    return math(f"aten::{name}.out", [T], eager, **facts)


def groups(s: Sketch, args: list[Arg]) -> Arg:
    """Draw a number of groups that divides the channels."""
    channels = d.first(s, args).shape[1]
    if channels == 0:
        raise NoFit
    return s.rng.choice([k for k in range(1, channels + 1) if channels % k == 0])


def extent(*axes: int) -> d.Draw:
    """Return the product of some dimensions of the first argument, as group norm takes it."""

    def draw(s: Sketch, args: list[Arg]) -> Arg:
        shape = d.first(s, args).shape
        count = 1
        for n in shape[axes[0] :] if len(axes) == 1 else [shape[k] for k in axes]:
            count *= n
        return count

    return draw


def channels(s: Sketch, args: list[Arg]) -> Arg:
    """Return the size of dimension 1."""
    return d.first(s, args).shape[1]


def batches(s: Sketch, args: list[Arg]) -> Arg:
    """Return the size of dimension 0."""
    return d.first(s, args).shape[0]


def last_dim(s: Sketch, args: list[Arg]) -> Arg:
    """Return the size of the last dimension, as layer norm takes it."""
    shape = d.first(s, args).shape
    if not shape or shape[-1] == 0:
        raise NoFit
    return (shape[-1],)


def images(s: Sketch, args: list[Arg]) -> Arg:
    """Draw a batch of images of 2 or 4 channels."""
    try:
        return d.tensor(rank=4, dtypes="f")(s, args)
    except NoFit:
        shape = [
            s.rng.randint(1, 2),
            s.rng.choice([2, 4]),
            s.rng.randint(3, 4),
            s.rng.randint(3, 4),
        ]
        return Ref(s.supply(shape, torch.float32))


def softmax_of(x: Tensor, at: int, half_to_float: bool) -> Tensor:
    """Return the softmax."""
    return torch.softmax(x, at)


def full_like(x: Tensor, value: Any, *_: Any) -> Tensor:
    """Return a tensor of one value."""
    return torch.full_like(x, value, memory_format=torch.contiguous_format)


NORM = [d.of_shape("0.1", optional=0.3), d.of_shape("0.1", optional=0.3)]

MATH: tuple[Row, ...] = (
    unary("relu", torch.relu, weight=3, dtypes="fhi"),
    unary("neg", torch.neg, weight=4, dtypes="fhi"),
    unary("abs", torch.abs, weight=2, dtypes="fhi"),
    unary("sign", torch.sign, dtypes="fhi", steady=False),
    unary("floor", torch.floor, dtypes="fh", steady=False),
    unary("logical_not", torch.logical_not, steady=False),
    unary("bitwise_not", torch.bitwise_not, dtypes="ib"),
    unary("tanh", torch.tanh, dtypes="fhi", inexact=True),
    unary("sigmoid", torch.sigmoid, dtypes="fhi", inexact=True),
    unary("sin", torch.sin, dtypes="f", inexact=True),
    unary("erf", torch.erf, dtypes="f", inexact=True),
    math(
        "aten::gelu.out",
        [FLOATS, d.one_of("none", "tanh")],
        lambda x, a: torch.nn.functional.gelu(x, approximate=a),
        dtypes="f",
        inexact=True,
    ),
    math(
        "aten::add.out",
        [NUMBERS, SPREAD, d.one_of(1, 1, 2)],
        lambda x, y, a: torch.add(x, y, alpha=a),
        weight=4,
    ),
    math(
        "aten::sub.out",
        [NUMBERS, SPREAD, d.one_of(1, 1, 2)],
        lambda x, y, a: torch.sub(x, y, alpha=a),
        weight=2,
    ),
    math("aten::mul.out", [NUMBERS, SPREAD], torch.mul, weight=3),
    math(
        "aten::add.Scalar_out", [NUMBERS, d.scalar, ONE], lambda x, y, a: torch.add(x, y), weight=2
    ),
    math("aten::mul.Scalar_out", [NUMBERS, d.scalar], torch.mul, weight=2),
    math(
        "aten::div.out",
        [
            d.tensor(dtypes="fi"),
            lambda s, a: Ref(s.constant(torch.tensor([2.0, 4.0, -3.0][s.rng.randrange(3)]))),
        ],
        torch.div,
        whole=False,
    ),
    math("aten::maximum.out", [NUMBERS, SPREAD], torch.maximum),
    math("aten::minimum.out", [NUMBERS, SPREAD], torch.minimum),
    math("aten::clamp.out", [NUMBERS, d.const(-3), d.one_of(None, 5)], torch.clamp),
    math(
        "aten::where.self_out",
        [
            d.tensor(dtypes="b"),
            lambda s, a: Ref(s.supply(d.first(s, a).shape, s.profile.dtypes[0])),
            lambda s, a: Ref(s.supply(d.first(s, a).shape, s.profile.dtypes[0])),
        ],
        torch.where,
        weight=2,
    ),
    math("aten::eq.Tensor_out", [T, SPREAD], torch.eq, steady=False),
    math("aten::lt.Tensor_out", [NUMBERS, SPREAD], torch.lt, steady=False),
    math("aten::ge.Scalar_out", [NUMBERS, ONE], torch.ge, steady=False),
    math("aten::logical_and.out", [T, SPREAD], torch.logical_and, steady=False),
    math(
        "aten::addcmul.out",
        [FLOATS, LIKE, LIKE, ONE],
        lambda x, y, z, v: torch.addcmul(x, y, z, value=v),
        inexact=True,
    ),
    math(
        "aten::sum.IntList_out",
        [NUMBERS, d.dims, YES_NO, NONE],
        lambda x, n, k, _: torch.sum(x, n, k),
        ordered=True,
        weight=3,
    ),
    math(
        "aten::mean.out",
        [FLOATS, d.dims, YES_NO, NONE],
        lambda x, n, k, _: torch.mean(x, n, k),
        ordered=True,
        whole=False,
        dtypes="f",
    ),
    math("aten::amax.out", [NUMBERS, d.dims, YES_NO], torch.amax),
    math("aten::amin.out", [NUMBERS, d.dims, YES_NO], torch.amin),
    math("aten::max.dim_max", [NUMBERS, d.dim, YES_NO], torch.max, steady=False),
    math("aten::argmax.out", [NUMBERS, d.dim, YES_NO], torch.argmax, steady=False),
    math("aten::any.out", [d.tensor(dtypes="b"), d.dim, YES_NO], torch.any),
    math(
        "aten::cumsum.out", [NUMBERS, d.dim, NONE], lambda x, k, _: torch.cumsum(x, k), ordered=True
    ),
    math(
        "aten::prod.int_out",
        [d.tensor(dtypes="f"), d.dim, NO, NONE],
        lambda x, k, m, _: torch.prod(x, k, m),
        ordered=True,
        weight=0.5,
    ),
    math("aten::sort.values", [NUMBERS, d.dim, YES_NO], torch.sort, steady=False),
    math("aten::_softmax.out", [FLOATS, d.dim, NO], softmax_of, inexact=True, dtypes="f"),
    math(
        "aten::_log_softmax.out",
        [FLOATS, d.dim, NO],
        lambda x, k, _: torch.log_softmax(x, k),
        inexact=True,
        dtypes="f",
    ),
    math(
        "aten::native_layer_norm.out",
        [
            d.tensor(least=1, dtypes="f"),
            last_dim,
            d.of_shape("0.-1", optional=0.3),
            d.of_shape("0.-1", optional=0.3),
            d.const(0.1),
        ],
        torch.native_layer_norm,
        inexact=True,
        steady=False,
        dtypes="f",
    ),
    math(
        "aten::native_group_norm.out",
        [d.tensor(rank=3, dtypes="f"), *NORM, batches, channels, extent(2), groups, d.const(0.1)],
        lambda *a: torch.native_group_norm(a[0].contiguous(), *a[1:]),
        inexact=True,
        steady=False,
        dtypes="f",
        dynamic=False,
        weight=2,
    ),
    math(
        "aten::mm.out",
        [MATRIX, d.of_shape("0.1", "n")],
        torch.mm,
        ordered=True,
        dtypes="f",
        weight=2,
    ),
    math(
        "aten::bmm.out",
        [d.tensor(rank=3, dtypes="f"), d.of_shape("0.0", "0.2", "n")],
        torch.bmm,
        ordered=True,
        dtypes="f",
    ),
    math(
        "aten::addmm.out",
        [d.tensor(rank=1, dtypes="f"), d.of_shape("n", "n"), d.of_shape("1.1", "0.0"), ONE, ONE],
        lambda b, x, y, p, q: torch.addmm(b, x, y),
        ordered=True,
        dtypes="f",
    ),
    math(
        "aten::_pdist_forward.out",
        [MATRIX, d.const(2.0)],
        lambda x, p: A._pdist_forward(x.contiguous(), p),
        inexact=True,
        steady=False,
        dtypes="f",
    ),
    math(
        "aten::_cdist_forward.out",
        [MATRIX, d.of_shape("n", "0.1"), d.const(1.0), NONE],
        A._cdist_forward,
        ordered=True,
        dtypes="f",
    ),
    math(
        "aten::convolution.out",
        [
            images,
            d.of_shape(2, "0.1", 2, 2),
            d.of_shape(2, optional=0.5),
            ONES,
            ZEROS,
            ONES,
            NO,
            ZEROS,
            ONE,
        ],
        torch.convolution,
        inexact=True,
        dtypes="f",
    ),
    math(
        "aten::max_pool2d_with_indices.out",
        [images, TWOS, ONES, ZEROS, ONES, NO],
        A.max_pool2d_with_indices,
        dtypes="f",
        steady=False,
    ),
    math(
        "aten::avg_pool2d.out",
        [images, TWOS, ONES, ZEROS, NO, d.const(True), NONE],
        A.avg_pool2d,
        dtypes="f",
        ordered=True,
        whole=False,
    ),
    math(
        "aten::embedding.out",
        [
            d.tensor(rank=2, dtypes="f"),
            lambda s, a: Ref(s.supply([s.rng.randint(1, 3)], torch.int64, d.first(s, a).shape[0])),
            MINUS_ONE,
            NO,
            NO,
        ],
        lambda w, i, *_: torch.nn.functional.embedding(i, w),
        dynamic=False,
    ),
    math("aten::full_like.out", [T, d.one_of(0, 1, 3), ZERO], full_like),
    math(
        "aten::full.out",
        [d.one_of((2, 3), (4,), ()), d.one_of(0.0, 2.0)],
        lambda n, v: torch.full(n, v),
        weight=0.7,
    ),
    math(
        "aten::slice_scatter.out",
        [
            d.tensor(least=1),
            lambda s, a: Ref(s.supply(d.first(s, a).shape, d.first(s, a).dtype)),
            ZERO,
            NONE,
            d.const((1 << 63) - 1),
            ONE,
        ],
        torch.slice_scatter,
    ),
    math(
        "aten::select_scatter.out",
        [d.tensor(rank=2), d.of_shape("0.1"), ZERO, ZERO],
        torch.select_scatter,
    ),
    math("aten::scalar_tensor.out", [d.one_of(1.0, 2.0)], torch.scalar_tensor, weight=0.3),
    math(
        "aten::sym_size.int",
        [d.tensor(least=1), d.dim],
        lambda x, k: x.size(k),
        exports=False,
        returns="number",
        weight=0.3,
    ),
    math(
        "aten::_local_scalar_dense",
        [lambda s, a: Ref(s.supply((), torch.int64, 3))],
        lambda x: x.item(),
        exports=False,
        returns="number",
        weight=0.1,
    ),
    math(
        "aten::_assert_async",
        [lambda s, a: Ref(s.constant(torch.tensor([True])))],
        lambda x: None,
        traced=torch.ops.aten._assert_async.default,
        returns="nothing",
        weight=0.4,
    ),
)
