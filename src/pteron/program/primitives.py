"""Operators without a schema in torch: what each takes, what it gives, and what it touches.

The one table of them. ``pteron.kernels.prim`` and ``pteron.kernels.et_copy`` add the callables, and
the verifier checks the number of arguments (``kernels/prim_ops/register_prim_ops.cpp`` and
``exir/emit/_emitter.py`` of ExecuTorch).
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Result(Enum):
    """What the last values of a primitive's call are."""

    VALUE = "value"
    """One Python number, stored as the last value."""
    VIEW = "view"
    """One tensor that shares the memory of the first argument."""
    COPY = "copy"
    """One out tensor, named twice: as the argument and as the result."""
    IN_PLACE = "in place"
    """None: the first argument is changed."""
    NOTHING = "nothing"
    """None: the arguments are only looked at."""


ET_VIEW: Final = "executorch_prim::et_view.default"
ET_COPY_INDEX: Final = "executorch_prim::et_copy_index.tensor"
H2D: Final = "et_copy::_h2d_copy.out"
D2H: Final = "et_copy::_d2h_copy.out"

_SCALAR: Final = "executorch_prim::{}.Scalar"

PRIMITIVES: Final[dict[str, tuple[int, Result]]] = {
    "aten::sym_size.int": (2, Result.VALUE),
    "aten::sym_stride.int": (2, Result.VALUE),
    "aten::sym_numel": (1, Result.VALUE),
    "aten::sym_storage_offset": (1, Result.VALUE),
    "aten::_local_scalar_dense": (1, Result.VALUE),
    "aten::item": (1, Result.VALUE),
    **{
        _SCALAR.format(name): (2, Result.VALUE)
        for name in (
            *("add", "sub", "mul", "floordiv", "truediv", "mod", "sym_max", "sym_min"),
            *("eq", "gt", "lt", "ge", "le"),
        )
    },
    "executorch_prim::floordiv.int": (2, Result.VALUE),
    "executorch_prim::mod.int": (2, Result.VALUE),
    **{
        _SCALAR.format(name): (1, Result.VALUE)
        for name in ("neg", "sym_not", "sym_float", "sym_int", "ceil", "round", "trunc")
    },
    _SCALAR.format("sym_ite"): (3, Result.VALUE),
    ET_VIEW: (2, Result.VIEW),
    ET_COPY_INDEX: (3, Result.IN_PLACE),
    H2D: (1, Result.COPY),
    D2H: (1, Result.COPY),
    "aten::_assert_async": (1, Result.NOTHING),
    "aten::_assert_async.msg": (2, Result.NOTHING),
    "aten::_assert_scalar": (2, Result.NOTHING),
    "aten::sym_constrain_range": (3, Result.NOTHING),
    "aten::sym_constrain_range_for_size": (3, Result.NOTHING),
}
"""Operators by full name: how many arguments they take, and what follows the arguments."""

_RESULTS: Final = {
    Result.VALUE: 1,
    Result.VIEW: 1,
    Result.COPY: 2,
    Result.IN_PLACE: 0,
    Result.NOTHING: 0,
}


def argument_count(name: str) -> int | None:
    """Return how many values a call of a primitive names, or None for another operator."""
    found = PRIMITIVES.get(name)
    return None if found is None else found[0] + _RESULTS[found[1]]
