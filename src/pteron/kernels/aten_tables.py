"""Which callable stands for which ATen operator, where the schema alone does not say.

``FAST`` names out variants whose Python binding (``torch.add(a, b, out=o)``) runs the same
overload: the binding costs about half of a call through ``torch.ops``. ``SPECIAL`` names those that
need another function; :mod:`pteron.kernels.aten` makes kernels of both, and of all others from
their schemas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pteron.kernels import aten_functions as own
from pteron.kernels import aten_layers as layers
from pteron.kernels.registry import Style

_F = torch._C._VariableFunctions
_NN = torch._C._nn
_ops = torch.ops.aten


def _overloads(overload: str, names: str) -> list[str]:
    return [f"{name}.{overload}" for name in names.split()]


FAST: frozenset[str] = frozenset(
    _overloads(
        "out",
        "_log_softmax _softmax abs acos acosh add addmm amax amin any arange "
        "argmax argmin asin asinh atan atan2 atanh baddbmm bitwise_not bmm cat ceil clamp "
        "clamp_max clamp_min conj_physical cos cosh cumprod cumsum div erf erfc exp exp2 expm1 "
        "floor floor_divide gather hypot index_select log log10 log1p log2 logical_and "
        "logical_not logical_or logical_xor logit masked_select matmul maximum mean minimum mm mul "
        "neg reciprocal round rsqrt scatter_add sigmoid sign sin sinh sqrt square stack "
        "sub tan tanh tril triu trunc",
    )
    + _overloads(
        "Tensor_out",
        "bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor clamp eq fmod "
        "ge gt le lt ne remainder",
    )
    + _overloads(
        "Scalar_out",
        "bitwise_and bitwise_or bitwise_xor eq fmod ge gt le lt mul ne pow remainder div",
    )
    + _overloads("Tensor_Scalar_out", "bitwise_left_shift bitwise_right_shift pow")
    + _overloads("start_out", "arange")
    + _overloads("all_out", "any")
    + _overloads("dims_out", "any")
    + _overloads("unary_out", "max min")
    + _overloads("int_out", "prod")
    + _overloads("IntList_out", "sum")
    + _overloads("Tensor_Tensor_out", "pow")
    + _overloads("src_out", "scatter")
    + _overloads("value_out", "scatter")
)

FAST_NN: frozenset[str] = frozenset(
    _overloads(
        "out",
        "avg_pool2d elu glu hardsigmoid hardswish hardtanh leaky_relu log_sigmoid mish silu "
        "softplus",
    )
)


@dataclass(frozen=True, slots=True)
class Special:
    """What differs from the kernel that a schema alone gives.

    ``positional`` is how many inputs go by position; the others, in schema order, by their names
    (None: as the schema has it).
    """

    function: Callable[..., Any]
    style: Style = Style.OUT
    positional: int | None = None
    masks: tuple[int, ...] = ()
    data_dependent: bool | None = None


def _functional(function: Callable[..., Any]) -> Special:
    """Take torch's functional form: its out variant would make a tensor and copy it, too."""
    return Special(function, Style.FUNCTIONAL)


SPECIAL: dict[str, Special] = {
    # Numbers stand for tensors in Python's bindings, with the same promotion.
    "add.Scalar_out": Special(_F.add, positional=2),
    "sub.Scalar_out": Special(_F.sub, positional=2),
    "rsub.Scalar_out": Special(own.rsub, positional=2),
    "div.out_mode": Special(own.div_mode),
    "div.Scalar_mode_out": Special(own.div_mode),
    "relu.out": Special(own.relu),
    "isnan.out": Special(own.isnan),
    "isinf.out": _functional(_F.isinf),
    "gelu.out": Special(own.gelu, positional=1),
    "_conj_physical.out": Special(_F.conj_physical),
    # Copies and fills.
    "_to_copy.out": Special(own.to_copy),
    "copy.out": Special(own.copy),
    "copy_": Special(own.copy_, Style.INPLACE),
    "full.out": Special(own.full),
    "full_like.out": Special(own.fill),
    "fill.Scalar_out": Special(own.fill),
    "fill.Tensor_out": Special(own.fill),
    "zeros.out": Special(own.zeros),
    "ones.out": Special(own.ones),
    "empty.out": Special(own.empty),
    "scalar_tensor.out": Special(own.scalar_tensor),
    "repeat.out": Special(own.repeat),
    "constant_pad_nd.out": Special(own.constant_pad_nd),
    "select_scatter.out": Special(own.select_scatter),
    "slice_scatter.out": Special(own.slice_scatter),
    "flip.out": _functional(_F.flip),
    "roll.out": _functional(_F.roll),
    "pixel_shuffle.out": _functional(_F.pixel_shuffle),
    "pixel_unshuffle.out": _functional(_F.pixel_unshuffle),
    # Masks and indices.
    "index.Tensor_out": Special(own.index, masks=(1,), data_dependent=False),
    "index_put.out": Special(own.index_put, masks=(1,)),
    "index_put_": Special(own.index_put_, Style.INPLACE, masks=(1,)),
    "where.self_out": Special(own.where),
    "masked_fill.Scalar_out": Special(own.masked_fill),
    "masked_fill.Tensor_out": Special(own.masked_fill),
    "masked_scatter.out": Special(own.masked_scatter),
    "embedding.out": Special(own.embedding),
    "nonzero.out": _functional(_F.nonzero),  # on CUDA, the out variant relays a strided result
    "repeat_interleave.Tensor_out": Special(
        lambda repeats, *, output_size=None: _F.repeat_interleave(repeats, output_size=output_size),
        Style.FUNCTIONAL,
        data_dependent=True,
    ),
    # Reductions.
    "prod.out": _functional(_F.prod),
    "mean.dtype_out": _functional(_F.mean),
    "var.out": Special(own.var),
    "var.correction_out": Special(own.var_correction),
    "var_mean.correction_out": _functional(own.var_mean),
    # Layers.
    "linear.out": Special(layers.linear),
    "_fft_c2r.out": Special(layers.fft_c2r),
    "_fft_r2c.out": Special(layers.fft_r2c),
    **{f"reflection_pad{n}d.out": Special(pad) for n, pad in layers.reflection_pads.items()},
    **{f"replication_pad{n}d.out": Special(pad) for n, pad in layers.replication_pads.items()},
    "convolution.out": _functional(_F.convolution),
    "convolution_backward.out": Special(layers.convolution_backward),
    "native_layer_norm.out": _functional(_F.native_layer_norm),
    "native_group_norm.out": _functional(layers.group_norm),
    "_embedding_bag.out": _functional(layers.dense_inputs(_ops._embedding_bag.default._op)),
    "_embedding_bag_forward_only.out": _functional(
        layers.dense_inputs(_ops._embedding_bag_forward_only.default._op)
    ),
    "native_dropout.out": _functional(_F.native_dropout),
    "_native_batch_norm_legit.out": Special(layers.batch_norm_legit),
    "_native_batch_norm_legit.no_stats_out": Special(layers.batch_norm_no_stats),
    "_native_batch_norm_legit_no_training.out": Special(layers.batch_norm_no_training),
    "_adaptive_avg_pool2d.out": _functional(_F._adaptive_avg_pool2d),
    "_cdist_forward.out": _functional(_ops._cdist_forward.default._op),
    "_pdist_forward.out": _functional(layers.pdist_forward),
    "grid_sampler_2d.out": _functional(_F.grid_sampler_2d),
    "max_pool2d_with_indices_backward.grad_input": Special(layers.max_pool2d_backward),
    # Losses, whose out variants need room for every element before they reduce.
    **{
        f"{name}.out": _functional(getattr(_NN, name))
        for name in ("huber_loss", "mse_loss", "smooth_l1_loss", "soft_margin_loss")
    },
    "binary_cross_entropy.out": _functional(_NN.binary_cross_entropy),
    "upsample_nearest2d.vec_out": Special(layers.upsample_nearest2d),
    "upsample_bilinear2d.vec_out": Special(layers.upsample_bilinear2d),
}

RANDOM: frozenset[str] = frozenset({"rand.out", "randn.out", "native_dropout.out"})
"""Operators that draw from the generator and do not carry torch's tag for it."""

WRITES: dict[str, tuple[int, ...]] = {"native_batch_norm.out": (3, 4)}
"""Inputs that an operator changes without a word of it in its schema: running statistics."""

CONTIGUOUS_OUTS: frozenset[str] = frozenset(
    _overloads(
        "out",
        "_log_softmax _softmax linear matmul reflection_pad2d reflection_pad3d replication_pad2d "
        "replication_pad3d tril triu",
    )
)
"""Operators of the tables above that write rightly into contiguous out tensors only."""

KEEP_LAYOUT: frozenset[str] = frozenset(
    _overloads("out", "max_pool2d_with_indices upsample_bilinear2d upsample_nearest2d")
)
"""Operators that no table names and that write rightly into any out tensor: tests hold them to
it. All others get a contiguous one."""
