"""Cases of operators that ExecuTorch's registry lacks: whatever torch has, a program may call."""

from __future__ import annotations

import torch

from support.operator_cases.case import Cases, boo, c64, case, f16, f32, i64, ids, t


def each(*names: str) -> dict[str, Cases]:
    """Cases of functions of one tensor of floats."""
    return {
        f"aten::{name}.out": lambda: (
            case(t(2, 3)),
            case(t(2, 3, 4, 5, lay="l", d=f16)),
            case(t(0, 3)),
        )
        for name in names
    }


BEYOND: dict[str, Cases] = {
    **each("erfc", "exp2", "hardsigmoid", "hardswish", "mish", "silu", "softplus", "square"),
    **each("frac", "sgn", "sinc", "log_sigmoid", "nan_to_num", "deg2rad", "erfinv", "i0"),
    "aten::addcdiv.out": lambda: (case(t(2, 3), t(3), t(2, 1, lo=1), 0.5), case(t(2), t(2), t(2))),
    "aten::addcmul.out": lambda: (case(t(2, 3), t(3), t(2, 1), 2), case(t(2), t(2), t(2))),
    "aten::all.dim": lambda: (case(t(2, 3, d=boo), 1), case(t(2, 3, d=i64), 0, True)),
    "aten::amax": lambda: (case(t(2, 3), [1], True), case(t(2, 3), [])),
    "aten::avg_pool3d.out": lambda: (case(t(1, 2, 4, 4, 4), [2, 2, 2]),),
    "aten::baddbmm.out": lambda: (case(t(2, 3, 5), t(2, 3, 4), t(2, 4, 5), 0.5, 2),),
    "aten::bincount.out": lambda: (case(ids(0, 2, 2)), case(ids(1, 1), t(2), 4)),
    "aten::clamp_min.Tensor_out": lambda: (case(t(2, 3), t(3)),),
    "aten::complex.out": lambda: (case(t(2, 3), t(2, 3)),),
    "aten::cross.out": lambda: (case(t(2, 3), t(2, 3), 1),),
    "aten::cumprod.out": lambda: (case(t(2, 3), 1), case(t(4, d=i64), 0)),
    "aten::diag_embed.out": lambda: (case(t(2, 3)), case(t(3), 1)),
    "aten::linalg_vector_norm.out": lambda: (case(t(2, 3), 2.0, [1], False),),
    "aten::logaddexp.out": lambda: (case(t(2, 3), t(3)),),
    "aten::logcumsumexp.out": lambda: (case(t(2, 3), 1),),
    "aten::logsumexp.out": lambda: (case(t(2, 3), [0]),),
    "aten::masked_fill.Tensor_out": lambda: (case(t(2, 3), t(3, d=boo), torch.tensor(2.0)),),
    "aten::matmul.out": lambda: (case(t(2, 3, 4), t(4, 5)), case(t(3), t(3))),
    "aten::max_pool3d_with_indices.out": lambda: (case(t(1, 2, 4, 4, 4), [2, 2, 2]),),
    "aten::broadcast_tensors": lambda: (case([t(2, 1), t(3)]),),
    "aten::mode.values": lambda: (case(t(2, 3, d=i64), 1),),
    "aten::polar.out": lambda: (case(t(2, lo=0), t(2)),),
    "aten::renorm.out": lambda: (case(t(2, 3), 2, 0, 1.0),),
    "aten::scatter_reduce.two_out": lambda: (
        case(t(3, 4), 0, ids([[0, 1, 2, 0]]), t(1, 4), "sum"),
        case(t(3, 4), 0, ids([[0, 1, 2, 0]]), t(1, 4), "amax", False),
    ),
    "aten::searchsorted.Tensor_out": lambda: (case(torch.arange(5.0), t(2, 3)),),
    "aten::sort.values_stable": lambda: (case(t(2, 3), False, 1), case(t(4, d=i64), True, 0, True)),
    "aten::std.correction_out": lambda: (case(t(2, 3), [1]), case(t(2, 3), None)),
    "aten::take.out": lambda: (case(t(2, 3), ids(0, 5)),),
    "aten::tensor_split.sections": lambda: (case(t(5, 2), 2),),
    "aten::tril_indices.out": lambda: (case(3, 3, dtype=i64),),
    "aten::triu.out": lambda: (case(t(3, 4), 1), case(t(2, 3, 3, d=i64))),
    "aten::upsample_bicubic2d.vec_out": lambda: (case(t(1, 2, 3, 4), [6, 8], False, None),),
    "aten::view_as_complex_copy.out": lambda: (case(t(2, 3, 2)),),
    "aten::view_as_real": lambda: (case(t(2, 3, d=c64)),),
    "aten::view_copy.dtype_out": lambda: (case(t(2, 4, d=f32), torch.int32),),
    "aten::xlogy.OutTensor": lambda: (case(t(2, 3, lo=0), t(3, lo=0.5)),),
}
"""``aten::all.dim`` and its like are functional: a program may hold them where no out variant was
found. Their result is written into the slot. ``upsample_bicubic2d.vec_out`` is no overload of
torch's: its kernel is made of the functional one."""
