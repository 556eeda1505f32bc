"""Cases of operators that the executorch 1.5.1 wheel refuses, or computes otherwise than torch.

Each table says why, then by operator which cases (their numbers in ``support.operator_cases``).
A case that is named here and comes out right is a failure of the test: the table must not go stale.
"""

from __future__ import annotations

from collections.abc import Mapping

Table = Mapping[str, Mapping[str, tuple[int, ...]]]

ONE_ORDER = "takes tensors of one dim order only, or only the contiguous one"
MISREAD = "reads or writes channels-last memory as if it were contiguous, without a word"
DTYPE = "has no kernel for the dtype"
ADD_NUMBER = "does not promote by the number that it adds"
PUT = (
    "takes one index tensor of integers that are not negative, for dimension 0, without accumulate"
)
PLACES = "copies between the host and a device only"
NEGATIVE = "takes no negative padding"
TRAINING = "normalises by running statistics only"
SINGLE = "computes double precision in single precision"

ABORTS: Table = {
    "a dimension of a tensor without dimensions": {"aten::sum.IntList_out": (15,)},
    "an empty tensor": {"aten::amax.out": (17,), "aten::amin.out": (17,)},
    "a dimension counted from the end": {"aten::narrow_copy.out": (1,), "aten::sym_size.int": (1,)},
}
"""Cases that end the process; they are not run."""

REFUSES: Table = {
    DTYPE: {
        "aten::_local_scalar_dense": (5,),
        "aten::logit.out": (2, 3, 11, 14),
        "aten::_conj_physical.out": (0, 2, 3, 5, 6),
        "aten::_to_copy.out": (7, 8),
        "aten::copy_": (5,),
    },
    ONE_ORDER: {
        "aten::add.out": (23,),
        "aten::sub.out": (21,),
        "aten::mul.out": (23,),
        "aten::div.out": (13,),
        "aten::div.out_mode": (39, 40, 41),
        "aten::floor_divide.out": (13,),
        "aten::fmod.Tensor_out": (13,),
        "aten::remainder.Tensor_out": (13,),
        "aten::atan2.out": (15,),
        "aten::maximum.out": (23,),
        "aten::minimum.out": (23,),
        "aten::eq.Tensor_out": (23,),
        "aten::ge.Tensor_out": (23,),
        "aten::gt.Tensor_out": (23,),
        "aten::le.Tensor_out": (23,),
        "aten::lt.Tensor_out": (23,),
        "aten::ne.Tensor_out": (23,),
        "aten::logical_and.out": (23,),
        "aten::logical_or.out": (23,),
        "aten::logical_xor.out": (23,),
        "aten::bitwise_and.Tensor_out": (15,),
        "aten::bitwise_or.Tensor_out": (15,),
        "aten::bitwise_xor.Tensor_out": (15,),
        "aten::bitwise_left_shift.Tensor_out": (13,),
        "aten::bitwise_right_shift.Tensor_out": (13,),
        "aten::pow.Tensor_Tensor_out": (15,),
        "aten::clamp.Tensor_out": (2,),
        "aten::where.self_out": (2,),
        "aten::masked_fill.Scalar_out": (2,),
        "aten::sum.IntList_out": (10, 11),
        "aten::mean.out": (4, 5),
        "aten::mean.dtype_out": (2,),
        "aten::amax.out": (10, 11),
        "aten::amin.out": (10, 11),
        "aten::any.dims_out": (10, 11),
        "aten::any.out": (10,),
        "aten::any.all_out": (1, 8),
        "aten::max.dim_max": (10,),
        "aten::min.dim_min": (10,),
        "aten::max.unary_out": (1, 7),
        "aten::min.unary_out": (1, 7),
        "aten::argmax.out": (9,),
        "aten::argmin.out": (9,),
        "aten::cumsum.out": (3,),
        "aten::_softmax.out": (1,),
        "aten::var.out": (4,),
        "aten::index.Tensor_out": (4,),
        "aten::index_put.out": (4,),
        "aten::index_put_": (4,),
        "aten::index_select.out": (2,),
        "aten::scatter_add.out": (3,),
        "aten::full_like.out": (1, 8),
        "aten::tril.out": (5,),
        "aten::alias_copy.out": (1, 8),
        "aten::detach_copy.out": (1, 8),
        "aten::lift_fresh_copy.out": (1, 8),
        "aten::_to_copy.out": (1,),
        "aten::copy_": (2,),
        "aten::repeat.out": (3,),
        "aten::select_scatter.out": (2,),
        "aten::permute_copy.out": (2,),
        "aten::transpose_copy.int_out": (2,),
        "aten::view_copy.out": (2,),
        "aten::select_copy.int_out": (2,),
        "aten::slice_copy.Tensor_out": (2,),
        "aten::diagonal_copy.out": (3,),
        "aten::unfold_copy.out": (2,),
        "aten::split_copy.Tensor_out": (2,),
        "aten::split_with_sizes_copy.out": (2,),
        "aten::unbind_copy.int_out": (2,),
        "aten::cat.out": (2, 3),
        "aten::pixel_shuffle.out": (1,),
        "aten::avg_pool2d.out": (1,),
        "aten::_adaptive_avg_pool2d.out": (1,),
        "aten::_native_batch_norm_legit.out": (3,),
        "aten::_native_batch_norm_legit.no_stats_out": (1,),
        "aten::_native_batch_norm_legit_no_training.out": (1,),
        "aten::native_group_norm.out": (4,),
        "aten::grid_sampler_2d.out": (3,),
        "aten::reflection_pad2d.out": (4,),
    },
    ADD_NUMBER: {
        "aten::add.Scalar_out": (9, 14, 15, 16, 17, 18, 19, 32),
    },
    "has no dimension 0 in a tensor without dimensions": {
        "aten::cumsum.out": (6,),
    },
    "takes the last dimension in memory only": {
        "aten::_log_softmax.out": (1,),
    },
    "takes no single vector": {
        "aten::linear.out": (3,),
    },
    "gives one side only": {
        "aten::_fft_r2c.out": (2,),
    },
    PUT: {
        "aten::index_put_": (1, 3, 5, 6, 7),
    },
    PLACES: {
        "et_copy::_h2d_copy.out": (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
        "et_copy::_d2h_copy.out": (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
    },
    "has no implicit form": {
        "aten::expand_copy.out": (5,),
    },
    NEGATIVE: {
        "aten::constant_pad_nd.out": (3, 8),
    },
    "takes no start from the end": {
        "aten::narrow_copy.out": (4,),
    },
    "needs a dimension for each shift": {
        "aten::roll.out": (1,),
    },
    "gives an empty batch another shape": {
        "aten::pixel_unshuffle.out": (3,),
    },
    TRAINING: {
        "aten::_native_batch_norm_legit.out": (0, 2, 4, 6, 8),
    },
}

DIFFERS: Table = {
    "gives NaN for NaN, where torch gives 0": {
        "aten::sign.out": (10,),
    },
    MISREAD: {
        "aten::glu.out": (2,),
        "aten::scatter.src_out": (3,),
        "aten::scatter.value_out": (3,),
        "aten::copy.out": (2,),
        "aten::constant_pad_nd.out": (2,),
        "aten::slice_scatter.out": (2,),
        "aten::narrow_copy.out": (2,),
        "aten::flip.out": (2,),
        "aten::roll.out": (2,),
        "aten::pixel_unshuffle.out": (1,),
        "aten::replication_pad2d.out": (4,),
    },
    "gives an infinity for 0 / 0 rounded down": {
        "aten::div.out_mode": (44,),
        "aten::div.Scalar_mode_out": (83, 86),
        "aten::floor_divide.out": (14,),
    },
    "gives integers the sign of the dividend": {
        "aten::remainder.Tensor_out": (0, 1, 2, 3, 11),
        "aten::remainder.Scalar_out": (5, 7, 8, 13, 14, 16, 17, 31, 34, 35),
    },
    "converts a negative divisor to an unsigned integer otherwise": {
        "aten::fmod.Scalar_out": (15,),
    },
    SINGLE: {
        "aten::remainder.Scalar_out": (1, 10, 19, 28),
        "aten::sum.IntList_out": (1,),
        "aten::_adaptive_avg_pool2d.out": (2,),
        "aten::native_layer_norm.out": (1,),
        "aten::native_group_norm.out": (1,),
        "aten::upsample_bilinear2d.vec_out": (2,),
        "aten::_upsample_bilinear2d_aa.out": (2,),
    },
    "gives NaN where no degree of freedom is left": {
        "aten::var.correction_out": (3, 8),
        "aten::var_mean.correction_out": (3, 7, 8, 9),
    },
    "multiplies NaN by a beta of zero": {
        "aten::addmm.out": (5,),
    },
}

NUMBERS_DIFFER: Mapping[str, str] = {
    "executorch_prim::floordiv.int": "rounds toward zero",
    "executorch_prim::mod.Scalar": "gives the sign of the dividend",
    "executorch_prim::mod.int": "gives the sign of the dividend",
}


def named(table: Table, name: str) -> dict[int, str]:
    """Return the numbers of an operator's cases in a table, each with its reason."""
    return {number: reason for reason, cases in table.items() for number in cases.get(name, ())}
