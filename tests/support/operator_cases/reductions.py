"""Cases of reductions, sorting, and of products of matrices."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from support.operator_cases.case import (
    ALL,
    FLOATS,
    REALS,
    Case,
    Cases,
    bf16,
    boo,
    c64,
    case,
    f16,
    f32,
    f64,
    i32,
    i64,
    ids,
    spread,
    t,
    u8,
)

NAN = float("nan")


def over_dims(dtypes: Iterable[torch.dtype], *, empty: bool = True, none: bool = True) -> Cases:
    """Cases of a list of dimensions and ``keepdim``."""
    kinds = list(dtypes)

    def cases() -> Iterable[Case]:
        for number, d in enumerate(kinds):
            yield case(t(2, 3, 4, d=d), [number % 3], bool(number % 2))
        yield case(t(2, 3, 4, 5, d=kinds[0], lay="l"), [2, 3], False)
        yield case(t(2, 3, 4, 5, d=kinds[-1], lay="l"), [-1, 1], True)
        yield case(t(4, 3, d=kinds[0], lay="r"), [0], False)
        yield case(t(3, 4, d=kinds[0], lay="s"), [1, 0], True)
        yield case(t(3, 4, d=kinds[0]), [], False)
        yield case(t(d=kinds[0]), [0], False)
        yield case(t(d=kinds[0]), [], True)
        if none:
            yield case(t(3, 4, d=kinds[0]), None, False)
        if empty:
            yield case(t(0, 3, d=kinds[0]), [0], False)
        yield case(t(2, 0, 3, d=kinds[0]), [2], False)
        yield case(torch.tensor([[1.0, NAN], [2.0, 0.0]]).to(kinds[0]), [1], False)

    return cases


def with_dtype(base: Cases, *dtypes: torch.dtype) -> Cases:
    """The cases of ``base``, then the first of them again for each dtype."""

    def cases() -> Iterable[Case]:
        yield from base()
        for d in dtypes:
            first = next(iter(base()))
            yield case(*first.args, d)

    return cases


def over_one_dim(dtypes: Iterable[torch.dtype], *, empty: bool = True) -> Cases:
    """Cases of one dimension and ``keepdim``."""
    kinds = list(dtypes)

    def cases() -> Iterable[Case]:
        for number, d in enumerate(kinds):
            yield case(t(2, 3, 4, d=d), number % 3 - 1, bool(number % 2))
        yield case(t(2, 3, 4, 5, d=kinds[0], lay="l"), 1, False)
        yield case(t(4, 3, d=kinds[0], lay="r"), 0, True)
        yield case(t(4, 3, d=kinds[0], lay="e"), 0, False)
        yield case(t(d=kinds[0]), 0, False)
        yield case(torch.tensor([[1.0, NAN, NAN], [2.0, 5.0, 5.0]]).to(kinds[0]), 1, False)
        if empty:
            yield case(t(0, 3, d=kinds[0]), 0, False)
        yield case(t(2, 0, 3, d=kinds[0]), 2, True)

    return cases


def whole(dtypes: Iterable[torch.dtype], *, empty: bool = True) -> Cases:
    """Cases of a reduction of all elements."""
    kinds = list(dtypes)

    def cases() -> Iterable[Case]:
        for x in spread(kinds):
            if x.numel() or empty:
                yield case(x)

    return cases


def softmaxes() -> Iterable[Case]:
    """Cases of a dimension and ``half_to_float`` (which the CPU has not)."""
    for number, x in enumerate(spread(FLOATS, least=8)):
        if x.dim():
            yield case(x, number % x.dim() - 1, False)
    yield case(t(), 0, False)
    yield case(torch.tensor([[1e4, -1e4, 0.0], [float("-inf"), 1.0, 1.0]]), 1, False)


def variances(*, mean: bool = False) -> Cases:
    """Cases of ``correction``, also where no degree of freedom is left."""

    def cases() -> Iterable[Case]:
        for number, d in enumerate(FLOATS):
            yield case(t(2, 3, 4, d=d), [number % 3], (1, 0, None, 2)[number], bool(number % 2))
        yield case(t(2, 3, 4, 5, lay="l"), [0, 2, 3], 1, False)
        yield case(t(3, 4, lay="r"), None, 0, False)
        yield case(t(3, 4, lay="s"), [], 1.5, True)
        yield case(t(1, 4), [0], 1, False)
        yield case(t(2, 4), [0], 3, False)
        yield case(t(), None, 1, False)
        yield case(t(0, 3), [0], 1, False)
        yield case(t(0, 3), [1], 0, False)
        if not mean:
            yield case(t(2, 3, 4, 5, d=f16, lay="l"), [1], 1, True)

    return cases


def old_variances() -> Iterable[Case]:
    """Cases of ``unbiased``."""
    for number, d in enumerate(FLOATS):
        yield case(t(2, 3, 4, d=d), [number % 3], bool(number % 2), number > 1)
    yield case(t(2, 3, 4, 5, lay="l"), [2, 3], False, False)
    yield case(t(4, 1), [1], True, False)
    yield case(t(4, 1), [1], False, True)
    yield case(t(3, 4, lay="r"), None, True, False)


REDUCTIONS: dict[str, Cases] = {
    "aten::sum.IntList_out": with_dtype(over_dims(ALL), f64, i64),
    "aten::mean.out": with_dtype(over_dims(FLOATS), f64),
    "aten::mean.dtype_out": lambda: (
        case(t(2, 3)),
        case(t(2, 3, d=i64), f32),
        case(t(2, 3, 4, 5, d=f16, lay="l"), f32),
        case(t()),
        case(t(0, 2)),
    ),
    "aten::amax.out": over_dims(ALL, empty=False, none=False),
    "aten::amin.out": over_dims(ALL, empty=False, none=False),
    "aten::any.dims_out": over_dims(ALL),
    "aten::any.out": over_one_dim(ALL),
    "aten::any.all_out": whole(ALL),
    "aten::prod.int_out": with_dtype(over_one_dim(ALL), f64),
    "aten::prod.out": with_dtype(whole(ALL), f64),
    "aten::max.dim_max": over_one_dim(ALL, empty=False),
    "aten::min.dim_min": over_one_dim(ALL, empty=False),
    "aten::max.unary_out": whole(ALL, empty=False),
    "aten::min.unary_out": whole(ALL, empty=False),
    "aten::argmax.out": lambda: (
        *over_one_dim(REALS, empty=False)(),
        case(t(3, 4), None, False),
        case(t(3, 4, lay="r"), None, False),
        case(torch.tensor([1, 3, 3, 0]), None, True),
    ),
    "aten::argmin.out": lambda: (
        *over_one_dim(REALS, empty=False)(),
        case(t(3, 4), None, False),
        case(t(3, 4, lay="r"), None, True),
    ),
    "aten::cumsum.out": lambda: (
        case(t(2, 3, 4), 1),
        case(t(2, 3, 4, d=i32), -1),
        case(t(3, 4, d=boo, lay="r"), 0),
        case(t(2, 3, 4, 5, lay="l", d=f64), 1),
        case(t(5, d=f16), 0, f32),
        case(t(5, d=u8), 0, i64),
        case(t(), 0),
        case(t(0, 3), 0),
    ),
    "aten::_softmax.out": softmaxes,
    "aten::_log_softmax.out": softmaxes,
    "aten::var.correction_out": variances(),
    "aten::var_mean.correction_out": variances(mean=True),
    "aten::var.out": old_variances,
    "aten::topk.values": lambda: (
        case(torch.randperm(24).reshape(2, 3, 4).float(), 2),
        case(torch.randperm(12).reshape(3, 4), 3, 0, False),
        case(torch.randperm(120).reshape(2, 3, 4, 5).to(f16).contiguous(), 2, 1, True, True),
        case(torch.randperm(12, dtype=i32).reshape(4, 3).t(), 1, 1),
        case(torch.tensor([1.0, NAN, 3.0]), 2),
        case(t(), 1),
        case(t(3, 4), 0),
    ),
}

MATRICES: dict[str, Cases] = {
    "aten::mm.out": lambda: (
        case(t(2, 3), t(3, 4)),
        case(t(2, 3, d=f64, lay="r"), t(3, 4, d=f64, lay="r")),
        case(t(2, 3, d=f16, lo=-1, hi=1), t(3, 4, d=f16, lo=-1, hi=1)),
        case(t(2, 3, d=bf16, lo=-1, hi=1), t(3, 4, d=bf16, lo=-1, hi=1)),
        case(t(2, 3, d=i32), t(3, 4, d=i32)),
        case(t(2, 0), t(0, 4)),
        case(t(0, 3), t(3, 4)),
        case(t(2, 3, lay="s"), t(3, 4, lay="e")),
    ),
    "aten::bmm.out": lambda: (
        case(t(2, 3, 4), t(2, 4, 5)),
        case(t(2, 3, 4, d=f64, lay="r"), t(2, 4, 5, d=f64)),
        case(t(2, 3, 4, d=f16, lo=-1, hi=1), t(2, 4, 2, d=f16, lo=-1, hi=1)),
        case(t(2, 3, 4, d=bf16, lo=-1, hi=1), t(2, 4, 2, d=bf16, lo=-1, hi=1)),
        case(t(2, 3, 4, d=i64), t(2, 4, 2, d=i64)),
        case(t(2, 3, 0), t(2, 0, 2)),
    ),
    "aten::addmm.out": lambda: (
        case(t(4), t(2, 3), t(3, 4)),
        case(t(2, 4), t(2, 3), t(3, 4), 0.5, 2.0),
        case(t(2, 1, d=f64), t(2, 3, d=f64, lay="r"), t(3, 4, d=f64), 2, 1),
        case(t(4, d=f16), t(2, 3, d=f16, lo=-1, hi=1), t(3, 4, d=f16, lo=-1, hi=1)),
        case(t(4, d=i64), t(2, 3, d=i64), t(3, 4, d=i64), 2, 3),
        case(torch.full((4,), NAN), t(2, 3), t(3, 4), 0, 1),
        case(t(4), t(2, 0), t(0, 4)),
        case(t(), t(2, 3), t(3, 4)),
    ),
    "aten::linear.out": lambda: (
        case(t(2, 3), t(4, 3), t(4)),
        case(t(2, 3), t(4, 3), None),
        case(t(2, 5, 3, d=f64), t(4, 3, d=f64), t(4, d=f64)),
        case(t(3, d=f32), t(4, 3), t(4)),
        case(t(2, 3, d=bf16, lo=-1, hi=1), t(4, 3, d=bf16, lo=-1, hi=1), t(4, d=bf16)),
        case(t(2, 5, 3, lay="r"), t(4, 3, lay="r"), t(4)),
        case(t(0, 3), t(4, 3), t(4)),
    ),
    "aten::_cdist_forward.out": lambda: (
        case(t(3, 4), t(5, 4), 2.0, None),
        case(t(2, 3, 4, d=f64), t(2, 5, 4, d=f64), 1.0, 0),
        case(t(2, 1, 3, 4), t(1, 2, 2, 4), float("inf"), 1),
        case(t(3, 4, lay="r"), t(2, 4), 0.0, 2),
        case(t(30, 4), t(40, 4), 2.0, None),
        case(t(0, 4), t(5, 4), 2.0, None),
    ),
    "aten::_pdist_forward.out": lambda: (
        case(t(4, 3)),
        case(t(4, 3, d=f64), 1.0),
        case(t(3, 5), float("inf")),
        case(t(1, 3), 2.0),
        case(t(4, 3), 0.0),
    ),
    "aten::_fft_r2c.out": lambda: (
        case(t(2, 6), [1], 0, True),
        case(t(2, 6, d=f64), [0, 1], 1, True),
        case(t(3, 5), [1], 2, False),
        case(t(5, 4, lay="r"), [0], 0, True),
    ),
    "aten::_fft_c2r.out": lambda: (
        case(t(2, 4, d=c64), [1], 0, 6),
        case(t(2, 4, d=c64), [1], 2, 7),
        case(t(4, 3, d=c64), [0, 1], 1, 4),
    ),
}

INDEXING: dict[str, Cases] = {
    "aten::index.Tensor_out": lambda: (
        case(t(5, 3), [ids([0, 4, -1])]),
        case(t(5, 3, d=bf16), [ids([0, 1])]),
        case(t(4, 3, 2, d=i64), [None, ids([[0, 2], [1, 1]])]),
        case(t(4, 3, 2, d=f16), [ids([0, 1]), None, ids([1, 0])]),
        case(t(2, 3, 4, 5, lay="l"), [ids([0, 1]), ids([2])]),
        case(t(4, 3, d=boo, lay="r"), [torch.tensor([3, 0], dtype=i32)]),
        case(t(4, 3), [torch.tensor([True, False, True, True])]),
        case(t(4, 3), [torch.tensor([1, 0, 1, 0], dtype=u8)]),
        case(t(2, 2), [torch.tensor([[True, False], [True, True]])]),
        case(t(4, 3), [ids([]).reshape(0)]),
        case(t(4), [torch.tensor(2)]),
    ),
    "aten::index_put.out": lambda: puts(),
    "aten::index_put_": lambda: puts(),
    "aten::index_select.out": lambda: (
        case(t(4, 3), 0, ids([3, 0, 0])),
        case(t(2, 3, 4, d=i32), 2, ids([1])),
        case(t(2, 3, 4, 5, lay="l", d=f16), 1, ids([2, 0])),
        case(t(4, 3, d=boo, lay="r"), -1, torch.tensor([2, 1], dtype=i32)),
        case(t(), 0, ids([0])),
        case(t(4, 3), 0, ids([]).reshape(0)),
    ),
    "aten::gather.out": lambda: (
        case(t(3, 4), 1, ids([[0, 3], [1, 1], [2, 0]])),
        case(t(3, 4, d=i64), 0, ids([[2, 1, 0]])),
        case(t(3, 4, d=f16, lay="r"), -1, ids([[0], [1], [2]])),
        case(t(2, 3, 4, d=boo), 2, torch.zeros(1, 2, 3, dtype=i64)),
        case(t(), 0, torch.zeros((), dtype=i64)),
        case(t(3, 4), 0, torch.zeros(0, 4, dtype=i64)),
    ),
    "aten::scatter.src_out": lambda: scatters(source=True),
    "aten::scatter.value_out": lambda: scatters(source=False),
    "aten::scatter_add.out": lambda: scatters(source=True),
    "aten::masked_select.out": lambda: (
        case(t(2, 3), torch.tensor([[True, False, True]] * 2), bounds=((6,),)),
        case(t(2, 3, d=i64, lay="r"), t(2, 3, d=boo), bounds=((6,),)),
        case(t(3, d=f16), t(2, 1, d=boo), bounds=((6,),)),
        case(t(3), torch.zeros(3, dtype=boo), bounds=((3,),)),
        case(t(), torch.tensor(True), bounds=((1,),)),
    ),
    "aten::nonzero.out": lambda: (
        case(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), bounds=((4, 2),)),
        case(t(2, 3, d=boo), bounds=((6, 2),)),
        case(t(2, 3, 4, d=i32, lo=0, hi=1), bounds=((24, 3),)),
        case(t(3, 4, d=u8, lay="r", hi=1), bounds=((12, 2),)),
        case(torch.tensor(5.0), bounds=((1, 0),)),
        case(torch.zeros(0, 2), bounds=((0, 2),)),
    ),
    "aten::embedding.out": lambda: (
        case(t(5, 3), ids([[0, 4], [1, 1]])),
        case(t(5, 3, d=f16), ids([2]), 0, False, False),
        case(t(5, 4, d=bf16), torch.tensor([[3, 0]], dtype=i32), -1),
        case(t(5, 3, lay="r"), ids([4, 4])),
        case(t(5, 3), torch.tensor(2)),
        case(t(5, 3), torch.zeros(0, 2, dtype=i64)),
        case(t(5, 3, d=i64), ids([[1, 2, 3]])),
    ),
    "aten::repeat_interleave.Tensor_out": lambda: (
        case(ids([1, 0, 3]), bounds=((10,),)),
        case(ids([2, 2]), 4),
        case(torch.tensor([1, 2], dtype=i32), 3),
        case(ids([0, 0]), bounds=((4,),)),
    ),
}


def puts() -> Iterable[Case]:
    """Cases of ``index_put``."""
    yield case(t(5, 3), [ids([0, 4])], t(2, 3))
    yield case(t(5, 3, d=i64), [ids([0, 0, 1])], t(3, 3, d=i64), True)
    yield case(t(4, 3, d=f16), [None, ids([2, 0])], t(4, 2, d=f16))
    yield case(t(4, 3), [ids([1]), ids([2])], t())
    yield case(t(2, 3, 4, 5, lay="l"), [ids([0, 1]), ids([2, 1])], t(4, 5))
    yield case(t(4, 3), [torch.tensor([True, False, True, False])], t(3))
    yield case(t(4, 3), [torch.tensor([1, 0, 0, 0], dtype=u8)], t(3))
    yield case(t(4, 3, d=bf16, lay="r"), [torch.tensor([-1], dtype=i32)], t(1, 3, d=bf16))
    yield case(t(4, 3), [torch.zeros(0, dtype=i64)], t(0, 3))


def scatters(*, source: bool) -> Iterable[Case]:
    """Cases of ``scatter`` and ``scatter_add``, with a source tensor or a number."""

    def second(d: torch.dtype, *shape: int) -> object:
        return t(*shape, d=d) if source else 1.0 if d.is_floating_point else 3

    yield case(t(3, 4), 1, ids([[0, 3], [1, 2], [2, 0]]), second(f32, 3, 2))
    yield case(t(3, 4, d=i64), 0, ids([[2, 1, 0, 1]]), second(i64, 1, 4))
    yield case(t(3, 4, d=f16, lay="r"), -1, ids([[0], [1], [2]]), second(f16, 3, 4))
    yield case(
        t(2, 3, 4, 5, lay="l"), 1, torch.zeros(1, 1, 4, 5, dtype=i64), second(f32, 2, 3, 4, 5)
    )
    yield case(t(3, 4), 0, torch.zeros(0, 4, dtype=i64), second(f32, 3, 4))
    yield case(t(), 0, torch.zeros((), dtype=i64), second(f32))
