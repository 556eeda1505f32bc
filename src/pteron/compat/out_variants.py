"""Out variants of ``quantized_decomposed``, so that quantized models without a delegate export.

ExecuTorch's exporter wants an out variant for every operator that stays in the program. Its own
come in a native library that a user has to import first (``executorch.kernels.quantized``); these
are the same signatures in Python.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import torch

NAMESPACE: Final = "quantized_decomposed"

_QUANTIZE: Final = "int quant_min, int quant_max, ScalarType dtype"
_OUT: Final = "*, Tensor(a!) out"
_TWO: Final = "*, Tensor(a!) scale_out, Tensor(b!) zero_point_out"
_SIDE: Final = (
    "Tensor {0}, float {0}_scale, int {0}_zero_point, int {0}_quant_min, int {0}_quant_max"
)

VARIANTS: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "add.out",
        "default",
        f"{_SIDE.format('a')}, {_SIDE.format('b')}, float out_scale, int out_zero_point, "
        f"int out_quant_min, int out_quant_max, {_OUT}",
    ),
    (
        "choose_qparams.Tensor_out",
        "tensor",
        f"Tensor input, int quant_min, int quant_max, float eps, ScalarType dtype, {_TWO}",
    ),
    (
        "choose_qparams_per_token_asymmetric.out",
        "default",
        f"Tensor input, ScalarType dtype, {_TWO}",
    ),
    (
        "quantize_per_tensor.out",
        "default",
        f"Tensor input, float scale, int zero_point, {_QUANTIZE}, {_OUT}",
    ),
    (
        "quantize_per_tensor.Tensor_out",
        "tensor",
        f"Tensor input, Tensor scale, Tensor zero_point, {_QUANTIZE}, {_OUT}",
    ),
    (
        "dequantize_per_tensor.out",
        "default",
        f"Tensor input, float scale, int zero_point, {_QUANTIZE}, *, ScalarType? out_dtype=None, "
        "Tensor(a!) out",
    ),
    (
        "dequantize_per_tensor.Tensor_out",
        "tensor",
        f"Tensor input, Tensor scale, Tensor zero_point, {_QUANTIZE}, *, "
        "ScalarType? out_dtype=None, Tensor(a!) out",
    ),
    (
        "quantize_per_channel.out",
        "default",
        f"Tensor input, Tensor scales, Tensor zero_points, int axis, {_QUANTIZE}, {_OUT}",
    ),
    (
        "dequantize_per_channel.out",
        "default",
        f"Tensor input, Tensor scales, Tensor? zero_points, int axis, {_QUANTIZE}, *, "
        "ScalarType? out_dtype=None, Tensor(a!) out",
    ),
    (
        "quantize_per_token.out",
        "default",
        f"Tensor input, Tensor scales, Tensor zero_points, {_QUANTIZE}, {_OUT}",
    ),
    (
        "dequantize_per_token.out",
        "default",
        f"Tensor input, Tensor scales, Tensor zero_points, {_QUANTIZE}, ScalarType output_dtype, "
        f"{_OUT}",
    ),
    (
        "mixed_mm.out",
        "default",
        f"Tensor input, Tensor weight, Tensor weight_scales, Tensor? weight_zero_points, {_OUT}",
    ),
    (
        "mixed_linear.out",
        "default",
        "Tensor input, Tensor weight, Tensor weight_scales, Tensor? weight_zero_points, "
        f"ScalarType? dtype=None, {_OUT}",
    ),
)
"""Name of the out variant, overload of the operator it belongs to, and its arguments."""

LIBRARIES: Final = ("quantized_ops_aot_lib", "kernels/quantized:custom_ops_generated_lib")
"""Parts of the names of native libraries that define the same: a second definition is an error."""

_library: list[Any] = []


def defined() -> bool:
    """Return whether this process has out variants that are defined here."""
    return bool(_library)


def register_out_variants() -> list[str]:
    """Define the out variants that are not there yet, and return their names."""
    import_module("torch.ao.quantization.fx._decomposed")
    there = set(torch._C._dispatch_get_all_op_names())
    missing = [row for row in VARIANTS if f"{NAMESPACE}::{row[0]}" not in there]
    if not missing:
        return []
    library: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
    _library.append(library)
    for name, overload, arguments in missing:
        two = "Tensor(b!)" in arguments
        returns = "(Tensor(a!), Tensor(b!))" if two else "Tensor(a!)"
        library.define(f"{name}({arguments}) -> {returns}")
        library.impl(name, _out_variant(name, overload), "CompositeExplicitAutograd")
    return [name for name, _, _ in missing]


def skip_native_libraries() -> None:
    """Let ``torch.ops.load_library`` pass over libraries whose operators are defined here.

    That holds as long as the definitions do: torch ends the process over a second one.
    """
    load = type(torch.ops).load_library

    def load_library(path: Any) -> None:
        if not any(part in str(path) for part in LIBRARIES):
            load(torch.ops, path)  # type: ignore[no-untyped-call]

    vars(torch.ops)["load_library"] = load_library


def _out_variant(name: str, overload: str) -> Any:
    base = name.partition(".")[0]
    outs = ("scale_out", "zero_point_out") if base.startswith("choose") else ("out",)

    def variant(*args: Any, **kwargs: Any) -> Any:
        given = tuple(kwargs.pop(out) for out in outs)
        results = getattr(getattr(torch.ops.quantized_decomposed, base), overload)(*args, **kwargs)
        for out, result in zip(
            given, results if isinstance(results, tuple) else (results,), strict=True
        ):
            out.resize_(result.shape).copy_(result)
        return given if len(given) > 1 else given[0]

    return variant
