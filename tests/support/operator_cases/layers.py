"""Cases of convolutions, pooling, normalisation, padding and resampling."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from support.operator_cases.case import (
    Case,
    Cases,
    bf16,
    case,
    f16,
    f32,
    f64,
    i64,
    t,
)


def convolutions() -> Iterable[Case]:
    """Cases of one and two dimensions, groups, strides, transposed."""
    one, zero = [1, 1], [0, 0]
    yield case(t(1, 3, 6, 5), t(4, 3, 3, 3), t(4), one, one, one, False, zero, 1)
    yield case(t(2, 4, 6, 6), t(4, 1, 3, 3), None, [2, 2], zero, one, False, zero, 4)
    yield case(
        t(1, 4, 5, 5, lay="l"), t(6, 2, 2, 3, lay="l"), t(6), one, [1, 0], [1, 2], False, zero, 2
    )
    yield case(t(1, 3, 4, 4), t(3, 2, 3, 3), t(2), [2, 2], one, one, True, one, 1)
    yield case(t(2, 3, 8), t(4, 3, 3), t(4), [2], [1], [1], False, [0], 1)
    yield case(t(2, 4, 5), t(4, 3, 3), None, [1], [0], [1], True, [0], 2)
    yield case(
        t(1, 2, 5, 5, d=f64), t(3, 2, 1, 1, d=f64), t(3, d=f64), one, zero, one, False, zero, 1
    )
    yield case(
        t(1, 2, 4, 4, d=bf16, lo=-1, hi=1),
        t(3, 2, 3, 3, d=bf16, lo=-1, hi=1),
        t(3, d=bf16),
        *(one, one, one, False, zero, 1),
    )
    yield case(t(1, 1, 4, 4, lay="r"), t(2, 1, 2, 2), t(2), one, zero, one, False, zero, 1)
    yield case(t(1, 1, 7, 5, lay="l"), t(5, 1, 1, 1), t(5), one, zero, one, False, zero, 1)
    yield case(t(0, 3, 4, 4), t(2, 3, 3, 3), t(2), one, one, one, False, zero, 1)


def convolution_gradients() -> Iterable[Case]:
    """Cases of a two-dimensional convolution's gradients."""
    one, zero = [1, 1], [0, 0]
    mask = [True, True, True]
    x, w = t(1, 3, 5, 5), t(4, 3, 3, 3)
    yield case(t(1, 4, 5, 5), x, w, [4], one, one, one, False, zero, 1, mask)
    yield case(t(1, 4, 2, 2), x, w, [4], [2, 2], zero, one, False, zero, 1, mask)
    yield case(
        t(2, 4, 4, 4), t(2, 4, 4, 4), t(4, 2, 3, 3), [4], one, one, one, False, zero, 2, mask
    )


def pools() -> Iterable[Case]:
    """Cases of a maximum over a window, with indices."""
    yield case(t(1, 2, 6, 6), [2, 2])
    yield case(t(2, 3, 7, 5, lay="l"), [3, 2], [2, 1], [1, 1], [1, 1], False)
    yield case(t(3, 6, 6, d=f64), [2, 2], [2, 2], [0, 0], [1, 1], True)
    yield case(t(1, 2, 7, 7, d=f16), [2, 2], [1, 1], [0, 0], [2, 2], False)
    yield case(t(1, 32, 23, 23), [2, 2], [2, 2], [0, 0], [1, 1], True)
    yield case(t(1, 1, 4, 4, d=bf16, lay="r"), [2, 2], [], [0, 0], [1, 1], False)


def pool_gradients() -> Iterable[Case]:
    """Cases of the gradient of ``pools``, with the indices that the pool gave."""
    for d, shape in ((f32, (1, 2, 6, 6)), (f64, (2, 3, 4, 4)), (f32, (2, 6, 6))):
        x = t(*shape, d=d)
        args = ([2, 2], [2, 2], [0, 0], [1, 1], False)
        y, indices = torch.ops.aten.max_pool2d_with_indices(x, *args)
        yield case(torch.randn_like(y), x, *args, indices)


def batch_norms(*, statistics: bool, training: bool | None) -> Cases:
    """Cases of a batch norm with or without running statistics and the flag."""

    def cases() -> Iterable[Case]:
        for d, shape, lay in (
            (f32, (2, 3, 4, 5), "c"),
            (f64, (2, 3, 4, 5), "l"),
            (f32, (4, 3), "c"),
            (bf16, (2, 3, 6), "c"),
        ):
            x = t(*shape, d=d, lay=lay)
            weight, bias, mean = t(3, d=d), t(3, d=d), t(3, d=d)
            variance = t(3, d=d, lo=0.5, hi=2)
            flags = (True, False) if training is None else (None,)
            for flag in flags:
                if not statistics and flag is False:
                    continue
                middle = (mean, variance) if statistics else ()
                train = () if flag is None else (flag,)
                yield case(x, weight, bias, *middle, *train, 0.1, 1e-5)
        x, mean, variance = t(2, 3, 4), t(3), t(3, lo=0.5, hi=2)
        train = () if training is not None else (True,)
        yield case(x, None, None, *((mean, variance) if statistics else ()), *train, 0.1, 1e-3)

    return cases


def resized(*options: object) -> Cases:
    """Cases of an output size and of scale factors; ``options`` come between them."""

    def cases() -> Iterable[Case]:
        yield case(t(1, 2, 3, 4), [6, 8], *options, None)
        yield case(t(1, 2, 3, 4, lay="l"), None, *options, [2.0, 2.0])
        yield case(t(2, 1, 5, 4, d=f64), [3, 7], *options, None)
        yield case(t(1, 2, 3, 4, d=f16), None, *options, [1.5, 0.7])
        yield case(t(1, 3, 4, 4, d=bf16), [4, 4], *options, None)
        yield case(t(1, 1, 2, 2, lay="r"), None, *options, [1.0, 3.0])

    return cases


def padded(dims: int, *, reflect: bool) -> Cases:
    """Cases of padding the last ``dims`` dimensions by what is there."""

    def cases() -> Iterable[Case]:
        shape = (1, 2, 4, 3, 4)[: dims + 2] if dims == 3 else (2, 3, 4, 5)[: dims + 2]
        ones = [1] * (2 * dims)
        yield case(t(*shape), ones)
        yield case(t(*shape[1:], d=f64), [2, 1] + [0] * (2 * dims - 2))
        yield case(t(*shape, d=f16, lay="r"), ones)
        yield case(t(*shape, d=bf16), [0] * (2 * dims - 1) + [2])
        if dims == 2:
            yield case(t(*shape, lay="l"), ones)
        if not reflect:
            yield case(t(*shape), [3] * (2 * dims))

    return cases


LAYERS: dict[str, Cases] = {
    "aten::convolution.out": convolutions,
    "aten::convolution_backward.out": convolution_gradients,
    "aten::max_pool2d_with_indices.out": pools,
    "aten::max_pool2d_with_indices_backward.grad_input": pool_gradients,
    "aten::avg_pool2d.out": lambda: (
        case(t(1, 2, 6, 6), [2, 2]),
        case(t(2, 3, 7, 5, lay="l"), [3, 2], [2, 1], [1, 1], False, True, None),
        case(t(3, 6, 6, d=f64), [2, 2], [2, 2], [1, 1], True, False, None),
        case(t(1, 2, 7, 7, d=f16), [3, 3], [2, 2], [0, 0], False, True, 4),
        case(t(1, 1, 4, 4, d=bf16), [2, 2], [], [0, 0], False, True, None),
        case(t(1, 2, 5, 5, d=i64), [2, 2], [2, 2], [0, 0], False, True, None),
    ),
    "aten::_adaptive_avg_pool2d.out": lambda: (
        case(t(1, 2, 6, 6), [2, 3]),
        case(t(2, 3, 7, 5, lay="l"), [1, 1]),
        case(t(3, 5, 7, d=f64), [3, 2]),
        case(t(1, 2, 4, 4, d=f16), [4, 4]),
        case(t(1, 2, 3, 3, d=bf16, lay="r"), [5, 2]),
    ),
    "aten::_native_batch_norm_legit.out": batch_norms(statistics=True, training=None),
    "aten::_native_batch_norm_legit.no_stats_out": batch_norms(statistics=False, training=None),
    "aten::_native_batch_norm_legit_no_training.out": batch_norms(statistics=True, training=False),
    "aten::native_layer_norm.out": lambda: (
        case(t(2, 3, 4), [4], t(4), t(4), 1e-5),
        case(t(2, 3, 4, d=f64), [3, 4], t(3, 4, d=f64), None, 1e-6),
        case(t(2, 4, d=f16), [4], t(4, d=f16), t(4, d=f16), 1e-5),
        case(t(2, 4, d=bf16), [4], None, None, 1e-5),
        case(t(3, 4, lay="r"), [4], t(4), t(4), 1e-3),
        case(t(0, 4), [4], t(4), t(4), 1e-5),
    ),
    "aten::native_group_norm.out": lambda: (
        case(t(2, 4, 3, 3), t(4), t(4), 2, 4, 9, 2, 1e-5),
        case(t(2, 4, 5, d=f64), None, None, 2, 4, 5, 4, 1e-6),
        case(t(1, 6, 2, 2, d=f16), t(6, d=f16), t(6, d=f16), 1, 6, 4, 3, 1e-5),
        case(t(1, 6, 2, 2, d=bf16), t(6, d=bf16), None, 1, 6, 4, 1, 1e-5),
        case(t(2, 4, 3, 3, lay="l"), t(4), t(4), 2, 4, 9, 2, 1e-5),
        case(t(2, 4), t(4), t(4), 2, 4, 1, 2, 1e-5),
    ),
    "aten::native_dropout.out": lambda: (
        case(t(20, 5), 0.5, True),
        case(t(3, 4, d=f16), 0.3, False),
        case(t(2, 3, 4, 5, lay="l", d=f64), 0.1, True),
        case(t(6), 0.0, None),
        case(t(6), 1.0, True),
    ),
    "aten::grid_sampler_2d.out": lambda: (
        case(t(1, 2, 4, 5), t(1, 3, 3, 2, lo=-1.2, hi=1.2), 0, 0, False),
        case(t(2, 1, 4, 4, d=f64), t(2, 2, 3, 2, d=f64, lo=-1.5, hi=1.5), 1, 1, True),
        case(t(1, 2, 5, 4), t(1, 2, 2, 2, lo=-1.5, hi=1.5), 2, 2, False),
        case(t(1, 2, 4, 5, lay="l"), t(1, 3, 3, 2, lo=-1, hi=1), 0, 2, True),
    ),
    "aten::upsample_nearest2d.vec_out": resized(),
    "aten::upsample_bilinear2d.vec_out": lambda: (*resized(False)(), *resized(True)()),
    "aten::_upsample_bilinear2d_aa.out": lambda: (
        case(t(1, 2, 6, 8), [3, 4], False),
        case(t(1, 2, 6, 8, lay="l"), [3, 3], True),
        case(t(2, 1, 5, 4, d=f64), [2, 7], False, None, None),
        case(t(1, 1, 4, 4), [8, 8], False, 2.0, 2.0),
    ),
    **{f"aten::reflection_pad{dims}d.out": padded(dims, reflect=True) for dims in (1, 2, 3)},
    **{f"aten::replication_pad{dims}d.out": padded(dims, reflect=False) for dims in (1, 2, 3)},
}
