"""ATen operators whose results were seen to depend on the values of their arguments alone.

Each was run (``tests/support/observed_effects.py``) on arguments that lie in memory in different
ways, and twice on the same: the results were the same within rounding. Those, and no others, take
a strided view in place of a dense copy, and are computed at load if their arguments are constant.
"""

from __future__ import annotations

_BY_OVERLOAD: dict[str, str] = {
    "": "_local_scalar_dense amax broadcast_tensors sym_numel view_as_real",
    "IntList_out": "sum",
    "L": "linalg_cholesky_ex",
    "OutTensor": "xlogy",
    "Scalar_Tensor_out": "linspace logspace",
    "Scalar_mode_out": "div",
    "Scalar_out": (
        "add bitwise_and bitwise_or bitwise_xor div eq fill fmod ge gt le lerp lt "
        "masked_fill mul ne pow remainder rsub sub"
    ),
    "Tensor_Scalar_out": "bitwise_left_shift bitwise_right_shift linspace logspace pow",
    "Tensor_Tensor_out": "isin linspace logspace pow",
    "Tensor_out": (
        "bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor "
        "bucketize clamp clamp_max clamp_min eq fill fmod frexp ge gt index le lerp lt "
        "masked_fill ne remainder repeat_interleave rsub searchsorted slice_copy split_copy "
        "unsafe_split"
    ),
    "U": "_linalg_svd",
    "X": "triangular_solve",
    "a": "geqrf",
    "all_out": "all any",
    "atol_rtol_tensor_out": "linalg_pinv",
    "bin_ct_out": "histogram",
    "bins_tensor_out": "histogram",
    "correction_out": "std std_mean var var_mean",
    "decimals_out": "round",
    "dim": "all",
    "dim_IntList_out": "count_nonzero",
    "dim_max": "max",
    "dim_min": "min",
    "dim_out": "squeeze_copy",
    "dim_values": "median nanmedian",
    "dims_out": "all any squeeze_copy",
    "dtype_out": "mean",
    "eigenvalues": "_linalg_eigh",
    "grad_input": "max_pool2d_with_indices_backward",
    "int": "sym_size",
    "int_Scalar_out": "index_fill",
    "int_Tensor_out": "index_fill",
    "int_out": "prod select_copy transpose_copy unbind_copy",
    "inverse": "linalg_inv_ex",
    "m_out": "eye",
    "no_stats_out": "_native_batch_norm_legit",
    "out": (
        "_adaptive_avg_pool2d _adaptive_avg_pool3d _cdist_forward _chunk_cat _conj_physical "
        "_fft_c2c _fft_c2r _fft_r2c _histogramdd_bin_edges _histogramdd_from_bin_cts "
        "_histogramdd_from_bin_tensors _log_softmax _native_batch_norm_legit "
        "_native_batch_norm_legit_no_training _softmax _softmax_backward_data _to_copy "
        "_trilinear _unique2 _unsafe_view _upsample_nearest_exact1d "
        "_upsample_nearest_exact2d abs acos acosh adaptive_max_pool2d add addbmm addcdiv "
        "addcmul addmm addmv addr alias_copy all amax amin aminmax angle any arange argmax "
        "argmin asin asinh atan atan2 atanh avg_pool2d baddbmm "
        "binary_cross_entropy_with_logits bincount bitwise_not block_diag bmm cat ceil celu "
        "channel_shuffle cholesky cholesky_inverse cholesky_solve clamp clamp_min clone "
        "complex constant_pad_nd convolution convolution_backward copy copysign cos cosh "
        "count_nonzero cross cummax cummin cumprod cumsum deg2rad detach_copy diag_embed "
        "diagonal_copy diagonal_scatter digamma dist div dot elu embedding erf erfc erfinv "
        "exp exp2 expand_copy expm1 eye flip floor floor_divide fmax fmin frac full "
        "full_like gather gcd glu grid_sampler_2d grid_sampler_3d hardshrink hardsigmoid "
        "hardswish hardtanh hash_tensor heaviside histc hypot i0 igamma igammac im2col "
        "index_add index_copy index_put index_reduce index_select isinf isnan isneginf "
        "isposinf lcm ldexp leaky_relu lgamma lift_fresh_copy linalg_cross linalg_eig "
        "linalg_householder_product linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq "
        "linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp linalg_qr "
        "linalg_solve_triangular linalg_vector_norm linear linspace log log10 log1p log2 "
        "log_sigmoid logaddexp logaddexp2 logcumsumexp logical_and logical_not logical_or "
        "logical_xor logit logspace logsumexp lu_unpack masked_scatter masked_select matmul "
        "max_pool2d_with_indices maximum mean median minimum mish mm mul multi_margin_loss "
        "mv mvlgamma nan_to_num nanmedian nansum narrow_copy native_dropout_backward "
        "native_layer_norm neg new_full new_ones new_zeros nextafter nonzero nonzero_static "
        "norm ones ones_like ormqr permute_copy pixel_shuffle pixel_unshuffle polar "
        "polygamma prod put rad2deg reciprocal reflection_pad1d reflection_pad2d relu "
        "renorm repeat replication_pad1d replication_pad2d roll rot90 round rsqrt "
        "scalar_tensor scatter_add segment_reduce select_scatter sgn sigmoid sign signbit "
        "silu sin sinc sinh slice_scatter softplus softshrink special_airy_ai "
        "special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 "
        "special_chebyshev_polynomial_t special_chebyshev_polynomial_u "
        "special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_entr "
        "special_erfcx special_hermite_polynomial_h special_hermite_polynomial_he "
        "special_i0e special_i1 special_i1e special_laguerre_polynomial_l "
        "special_legendre_polynomial_p special_log_ndtr special_modified_bessel_i0 "
        "special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 "
        "special_ndtri special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 "
        "special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u "
        "special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w "
        "special_spherical_bessel_j0 special_xlog1py special_zeta split_with_sizes_copy "
        "sqrt square squeeze_copy stack sub sum t_copy take tan tanh threshold trace tril "
        "tril_indices triu triu_indices trunc unfold_backward unfold_copy "
        "unique_consecutive unsqueeze_copy upsample_bicubic2d upsample_bilinear2d "
        "upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_trilinear3d var "
        "vdot view_as_real_copy view_copy zeros zeros_like"
    ),
    "out_mode": "div",
    "output": "nll_loss2d_forward nll_loss_forward",
    "reduce_out": "scatter",
    "result": "_linalg_solve_ex",
    "sections": "tensor_split",
    "self_out": "where",
    "src_out": "scatter",
    "start_out": "arange",
    "two_out": "scatter_reduce",
    "unary_out": "max min",
    "value_out": "scatter",
    "values": "kthvalue mode sort topk",
    "values_stable": "sort",
    "vec_out": "upsample_bicubic2d upsample_bilinear2d upsample_nearest2d",
}

AUDITED: frozenset[str] = frozenset(
    f"{name}.{overload}".rstrip(".")
    for overload, names in _BY_OVERLOAD.items()
    for name in names.split()
)
"""Names without their namespace: ``add.out``."""
