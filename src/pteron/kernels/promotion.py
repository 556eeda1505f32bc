"""Integers in functions that give floats: in float32, whatever torch's default dtype is.

torch computes ``sqrt`` of integers, or integers times 1.5, in its default dtype. In a fresh process
that is float32, and a program counts on it. The default belongs to the whole process, and another
thread may change it while a method runs, so it is neither asked for nor set: integers are converted
to float32 before torch sees them, which is what torch does in a fresh process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pteron.errors import NotSupportedError
from pteron.kernels.registry import Kernel

_float32 = torch.float32
INTEGERS = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint16,
        torch.uint32,
        torch.uint64,
    }
)

Function = Callable[..., Any]


def _names(overload: str, names: str) -> list[str]:
    return [f"{name}.{overload}" for name in names.split()]


_POLYNOMIALS = (
    "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w "
    "hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p "
    "shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
    "shifted_chebyshev_polynomial_w xlog1py xlogy zeta"
)

OF_ONE: frozenset[str] = frozenset(
    _names(
        "out",
        "acos acosh angle arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh cos "
        "cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 i0 lgamma log log10 log1p log2 logit "
        "logsumexp mvlgamma rad2deg reciprocal rsqrt sigmoid sin sinc sinh sqrt tan tanh "
        "special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 "
        "special_digamma special_entr special_erf special_erfc special_erfcx special_erfinv "
        "special_exp2 special_expit special_expm1 special_gammaln special_i0 special_i0e "
        "special_i1 special_i1e special_log1p special_log_ndtr special_logit special_logsumexp "
        "special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 "
        "special_modified_bessel_k1 special_multigammaln special_ndtr special_ndtri special_psi "
        "special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_sinc "
        "special_spherical_bessel_j0",
    )
)
"""Functions whose first argument, if it holds integers, is taken for float32."""

OF_TWO: frozenset[str] = frozenset(
    (
        *_names("out", "arctan2 atan2 copysign div divide ldexp true_divide"),
        "xlogy.OutTensor",
        *_names("out", " ".join(f"special_{name}" for name in _POLYNOMIALS.split())),
    )
)
"""Functions of two tensors that give floats if both hold integers."""

WITH_NUMBER: frozenset[str] = frozenset(
    _names("Scalar_out", "add eq floor_divide fmod ge gt le lt mul ne remainder rsub sub")
    + _names("Tensor_Scalar_out", "pow")
    + _names("Scalar_out", "greater greater_equal less less_equal not_equal")
    + _names("out", "clamp clamp_max clamp_min clip")
)
"""Arithmetic that gives floats if a number after its tensor of integers is a float."""

ALWAYS: frozenset[str] = frozenset({"div.Scalar_out", "copysign.Scalar_out"})
"""Functions of a tensor and a number that always give floats."""

SECOND: dict[str, bool] = {
    "pow.Scalar_out": True,
    "remainder.Scalar_Tensor_out": True,
    "polygamma.out": False,
    "special_polygamma.out": False,
    **{
        f"special_{name}.{kind}_scalar_out": False
        for name in _POLYNOMIALS.split()
        for kind in ("x", "self")
    },
    "xlogy.OutScalar_Self": False,
}
"""Functions of a number and a tensor; whether only a number that is a float makes floats."""


NEUTRAL: frozenset[str] = frozenset(
    _names("out", "addbmm addcmul addmv bincount new_full threshold")
    + ["index_fill.int_Scalar_out"]
    + [
        f"{name}.{kinds}_out"
        for name in ("linspace", "logspace")
        for kinds in ("Scalar_Tensor", "Tensor_Scalar", "Tensor_Tensor")
    ]
)
"""Functions of integers with a result, or a number, that may be a float, and that do not ask for
the default dtype."""


def of_one(function: Function) -> Function:
    """Return ``function``, which takes integers in its first argument for float32."""

    def kernel(self: Tensor, *args: Any, **options: Any) -> Any:
        if self.dtype in INTEGERS:
            self = self.to(_float32)
        return function(self, *args, **options)

    return kernel


def of_one_alone(function: Function) -> Function:
    """Return what :func:`of_one` does for a function without further arguments."""

    def kernel(self: Tensor, *, out: Tensor) -> Any:
        if self.dtype in INTEGERS:
            self = self.to(_float32)
        return function(self, out=out)

    return kernel


def of_two(function: Function) -> Function:
    """Return ``function``, which computes in float32 if both its tensors hold integers."""

    def kernel(self: Tensor, other: Tensor, *, out: Tensor) -> Any:
        if self.dtype in INTEGERS and other.dtype in INTEGERS:
            self = self.to(_float32)
        return function(self, other, out=out)

    return kernel


def with_number(function: Function) -> Function:
    """Return ``function``, which computes in float32 if it meets integers and a float number."""

    def kernel(self: Tensor, *args: Any, **options: Any) -> Any:
        if self.dtype in INTEGERS and float in map(type, args):
            self = self.to(_float32)
        return function(self, *args, **options)

    return kernel


def of_second(function: Function, *, only_floats: bool) -> Function:
    """Return ``function`` of a number and a tensor, which takes integers for float32."""

    def kernel(self: Any, other: Tensor, *, out: Tensor) -> Any:
        if other.dtype in INTEGERS and not (only_floats and type(self) is not float):
            other = other.to(_float32)
        return function(self, other, out=out)

    return kernel


def steady(name: str, kernel: Kernel) -> Function | None:
    """Return the function of an ATen kernel, independent of the default dtype; None if it is."""
    function = kernel.function
    if name in OF_ONE or name in ALWAYS:
        alone = kernel.positional == 1 and not kernel.keywords
        return of_one_alone(function) if alone else of_one(function)
    if name in OF_TWO:
        return of_two(function)
    if name in WITH_NUMBER:
        return with_number(function)
    if name in SECOND:
        return of_second(function, only_floats=SECOND[name])
    return None


def watched(kernel: Kernel, kinds: Sequence[str]) -> Function:
    """Return the function of a kernel that a schema alone gave, which refuses what is ambiguous.

    ``kinds`` are the schema's types of its inputs. If the default dtype is not float32, integers
    that give floats, or that meet a float number, raise NotSupportedError.
    """
    function, name, out_names = kernel.function, kernel.name, kernel.out_names
    numbers = [n for n, kind in enumerate(kinds) if kind == "number"]
    by_name = set(kernel.keywords)

    def call(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        if torch.get_default_dtype() is not _float32:
            inputs = [*args, *(value for n, value in options.items() if n in by_name)]
            outs = [value for n, value in options.items() if n in out_names] or result
            mixed = any(type(inputs[n]) is float for n in numbers if n < len(inputs))
            _refuse_ambiguous(name, inputs, outs, mixed=mixed)
        return result

    return function if name.removeprefix("aten::") in NEUTRAL else call


def _refuse_ambiguous(name: str, inputs: Sequence[Any], results: Any, *, mixed: bool) -> None:
    tensors = _tensors(inputs)
    if not tensors or any(t.dtype not in INTEGERS for t in tensors):
        return
    if mixed or any(t.is_floating_point() or t.is_complex() for t in _tensors(results)):
        raise NotSupportedError(
            f"{name} may compute integers in torch's default dtype, which is "
            f"{torch.get_default_dtype()}; a program counts on float32",
            hint="call torch.set_default_dtype(torch.float32) before the method runs",
        )


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in _tensors(item)]
    return []
