"""``quantized_decomposed`` operators against eager PyTorch and the executorch wheel.

The wheel's kernels give the numbers exactly: pteron follows their float32 arithmetic. Eager PyTorch
takes the reciprocal of a scale in float64, so a value that lies on a tie may fall one step beside.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import executorch.exir.passes._quant_patterns_and_replacements  # eager functions
    import executorch.kernels.quantized  # noqa: F401  (the wheel's kernels)
    from executorch.runtime import Runtime as WheelRuntime
    from torch.ao.quantization.fx import _decomposed  # noqa: F401

from pteron import Runtime
from pteron.errors import InvalidArgumentError
from pteron.kernels import default_registry
from support.one_op import one_op

QD = torch.ops.quantized_decomposed
I8, U8, I16, I32 = torch.int8, torch.uint8, torch.int16, torch.int32
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


@dataclass(frozen=True)
class Case:
    """One call: an operator of the file, its arguments, and the eager function that is right."""

    name: str
    args: Callable[[], list[Any]]
    eager: Callable[..., Any]
    steps: int = 0
    """By how many quantization steps eager may differ."""
    wheel: bool = True
    keywords: tuple[str, ...] = field(default=())
    """Names of the last arguments, which eager takes by keyword."""
    tolerance: float = 1e-6
    exact: bool = True
    """Whether the wheel's result has to be the same bit for bit."""


def floats(*shape: int, dtype: torch.dtype = F32, scale: float = 3.0) -> Tensor:
    return (torch.randn(shape) * scale).to(dtype)


def ints(*shape: int, dtype: torch.dtype = I8) -> Tensor:
    info = torch.iinfo(dtype)
    low, high = max(info.min, -40000), min(info.max, 40000)
    return torch.randint(low, high + 1, shape).to(dtype)


def scales(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return (torch.rand(shape) * 0.1 + 0.01).to(dtype)


def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(-20, 20, shape).to(dtype)


def channels_last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


QUANTIZE = [
    Case("quantize_per_tensor.out", args, QD.quantize_per_tensor, steps=1)
    for args in (
        lambda: [floats(3, 5), 0.0371, -3, -128, 127, I8],
        lambda: [floats(2, 3, 4, 5), 0.11, 100, 0, 255, U8],
        lambda: [channels_last(floats(2, 3, 4, 5)), 0.07, 5, -127, 127, I8],
        lambda: [floats(64, dtype=F16), 0.013, 0, -8, 7, I8],
        lambda: [floats(7), 1e-4, 12, -32768, 32767, I16],
        lambda: [floats(7), 1e-8, 0, -(2**31), 2**31 - 1, I32],
        lambda: [floats(0, 3), 0.1, 0, -128, 127, I8],
        lambda: [torch.tensor(1.26), 0.5, 1, -128, 127, I8],
        lambda: [torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5]), 1.0, 3, -128, 127, I8],
    )
] + [
    Case("quantize_per_tensor.Tensor_out", args, QD.quantize_per_tensor.tensor, steps=1)
    for args in (
        lambda: [floats(3, 5), scales(1), zeros(1), -128, 127, I8],
        lambda: [floats(2, 3, 4), scales(1), torch.tensor([128]), 0, 255, U8],
        lambda: [floats(9, dtype=F16), scales(1), zeros(1), -128, 127, I8],
    )
] + [
    Case("quantize_per_channel.out", args, QD.quantize_per_channel, steps=1)
    for args in (
        lambda: [floats(4, 5), scales(4), zeros(4), 0, -128, 127, I8],
        lambda: [floats(2, 3, 4, 5), scales(3), zeros(3), 1, -128, 127, I8],
        lambda: [floats(2, 6), scales(6), zeros(6).abs(), -1, 0, 255, U8],
        lambda: [floats(5), scales(5), zeros(5), 0, -128, 127, I8],
    )
] + [
    Case("quantize_per_token.out", args, QD.quantize_per_token, steps=1)
    for args in (
        lambda: [floats(4, 8), scales(4, 1), zeros(4, 1), -128, 127, I8],
        lambda: [floats(2, 3, 8), scales(2, 3, 1), zeros(2, 3, 1), -128, 127, I8],
        lambda: [floats(1, 5), scales(1, 1), zeros(1, 1), -8, 7, I8],
    )
]  # fmt: skip

DEQUANTIZE = [
    Case("dequantize_per_tensor.out", args, QD.dequantize_per_tensor, keywords=("out_dtype",))
    for args in (
        lambda: [ints(3, 5), 0.0371, -3, -128, 127, I8, None],
        lambda: [ints(2, 3, 4, dtype=U8), 0.2, 128, 0, 255, U8, F32],
        lambda: [channels_last(ints(2, 3, 4, 5)), 0.2, 0, -128, 127, I8, None],
        lambda: [ints(6, dtype=I16), 1e-4, -1000, -32768, 32767, I16, None],
        lambda: [ints(0, 2), 0.2, 0, -128, 127, I8, None],
    )
] + [
    Case("dequantize_per_tensor.out", args, QD.dequantize_per_tensor, keywords=("out_dtype",),
         tolerance=2e-3)
    for args in (
        lambda: [ints(40), 0.0371, -3, -128, 127, I8, F16],
        lambda: [ints(6, dtype=I32), 1e-5, 7, -(2**31), 2**31 - 1, I32, None],
    )
] + [
    Case("dequantize_per_tensor.Tensor_out", args, QD.dequantize_per_tensor.tensor,
         keywords=("out_dtype",))
    for args in (
        lambda: [ints(3, 5), scales(1), zeros(1), -128, 127, I8, None],
        lambda: [ints(9, dtype=U8), scales(1), zeros(1).abs(), 0, 255, U8, None],
        lambda: [ints(4, 1, 2), scales(1), zeros(1), -128, 127, I8, F32],
    )
] + [
    Case("dequantize_per_channel.out", args, QD.dequantize_per_channel, keywords=("out_dtype",))
    for args in (
        lambda: [ints(4, 5), scales(4), zeros(4), 0, -128, 127, I8, None],
        lambda: [ints(2, 3, 4, 5), scales(3, dtype=F32), zeros(3), 1, -128, 127, I8, None],
        lambda: [ints(6, 7), scales(7), None, 1, -128, 127, I8, F32],
        lambda: [ints(5, dtype=U8), scales(5), zeros(5).abs(), 0, 0, 255, U8, None],
        lambda: [channels_last(ints(2, 3, 4, 5)), scales(3), zeros(3), 1, -128, 127, I8, None],
        lambda: [ints(4, 2, dtype=I32), scales(4), zeros(4), 0, -(2**31), 2**31 - 1, I32, None],
    )
] + [
    Case("dequantize_per_token.out", args, QD.dequantize_per_token)
    for args in (
        lambda: [ints(4, 8), scales(4, 1), zeros(4, 1), -128, 127, I8, F32],
        lambda: [ints(2, 3, 8), scales(2, 3, 1), zeros(2, 3, 1), -128, 127, I8, F32],
        lambda: [ints(1, 5), scales(1, 1), zeros(1, 1), -128, 127, I8, F32],
    )
]  # fmt: skip


def table(rows: int, columns: int, bits: int) -> Tensor:
    if bits == 8:
        return ints(rows, columns)
    return torch.randint(0, 256, (rows, columns * bits // 8), dtype=U8)


def _embedding_cases() -> list[Case]:
    cases = []
    for bits, name in ((8, "byte"), (4, "4bit"), (2, "2bit")):
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        eager = getattr(QD, f"embedding_{name}")
        for args in (
            lambda b=bits, lo=low, hi=high: [
                table(9, 16, b), scales(9, dtype=F32), None, lo, hi, torch.tensor([[1, 8], [0, 8]])
            ],
            lambda b=bits, lo=low, hi=high: [
                table(5, 32, b), scales(5, 4, dtype=F32), zeros(5, 4, dtype=F32), lo, hi,
                torch.tensor([4, 0, 2])
            ],
            lambda b=bits, lo=low, hi=high: [
                table(6, 16, b), scales(6, dtype=F16), zeros(6, dtype=F16), lo, hi,
                torch.tensor([5])
            ],
        ):  # fmt: skip
            cases.append(Case(f"embedding_{name}.out", args, eager, tolerance=2e-3))
        for args in (
            lambda b=bits, lo=low, hi=high: [
                table(10, 16, b), scales(10, dtype=F32), None, lo, hi, torch.tensor([3, 3]), F32
            ],
            lambda b=bits, lo=low, hi=high: [
                table(5, 32, b), scales(5, 2, dtype=F32), None, lo, hi, torch.tensor([4, 0]), F16
            ],
            lambda b=bits, lo=low, hi=high: [
                table(4, 16, b), scales(4, dtype=BF16), None, lo, hi, torch.tensor([[0], [3]]), F32
            ],
        ):  # fmt: skip
            cases.append(
                Case(
                    f"embedding_{name}.dtype_out",
                    args,
                    eager.dtype,
                    keywords=("dtype",),
                    tolerance=2e-2,
                )
            )
    return cases


def eager_add(
    a: Tensor, sa: float, za: int, la: int, ha: int,
    b: Tensor, sb: float, zb: int, lb: int, hb: int,
    so: float, zo: int, lo: int, ho: int,
) -> Tensor:  # fmt: skip
    total = QD.dequantize_per_tensor(a, sa, za, la, ha, a.dtype)
    total = total + QD.dequantize_per_tensor(b, sb, zb, lb, hb, b.dtype)
    return QD.quantize_per_tensor(total, so, zo, lo, ho, a.dtype)


def eager_mixed_mm(x: Tensor, weight: Tensor, factors: Tensor, zero: None) -> Tensor:
    return x @ (weight.to(x.dtype) * factors[:, None])


def eager_mixed_linear(
    x: Tensor, weight: Tensor, factors: Tensor, zero: None, dtype: torch.dtype | None
) -> Tensor:
    grouped = factors.reshape(weight.shape[0], -1).repeat_interleave(
        weight.shape[1] // factors.reshape(weight.shape[0], -1).shape[1], dim=1
    )
    return x @ (weight.to(x.dtype) * grouped).t()


ARITHMETIC = [
    Case("add.out", args, eager_add, steps=1)
    for args in (
        lambda: [ints(3, 4, dtype=U8), 0.1, 10, 0, 255, ints(3, 4, dtype=U8), 0.05, 100, 0, 255,
                 0.2, 7, 0, 255],
        lambda: [ints(64, dtype=U8), 0.3, 128, 0, 255, ints(64, dtype=U8), 0.3, 128, 0, 255,
                 0.3, 128, 0, 255],
        lambda: [ints(2, 1, dtype=I8), 0.02, 1, 0, 127, ints(2, 1, dtype=I8), 0.7, 3, 0, 127,
                 0.9, 0, 0, 127],
    )
] + [
    Case("mixed_mm.out", args, eager_mixed_mm, tolerance=1e-4, exact=False)
    for args in (
        lambda: [floats(2, 8), ints(8, 5), scales(8, dtype=F32), None],
        lambda: [floats(1, 33), ints(33, 3), scales(33, dtype=F32), None],
        lambda: [floats(4, 1), ints(1, 4), scales(1, dtype=F32), None],
    )
] + [
    Case("mixed_linear.out", args, eager_mixed_linear, tolerance=1e-4, exact=False)
    for args in (
        lambda: [floats(2, 8), ints(5, 8), scales(5, dtype=F32), None, None],
        lambda: [floats(1, 32), ints(3, 32), scales(3, 4, dtype=F32), None, None],
        lambda: [floats(4, 6), ints(2, 6), scales(2, 1, dtype=F32), None, F32],
    )
]  # fmt: skip

CASES = [*QUANTIZE, *DEQUANTIZE, *_embedding_cases(), *ARITHMETIC]


def call_eager(case: Case, args: list[Any]) -> Tensor:
    named = dict(zip(case.keywords, args[len(args) - len(case.keywords) :], strict=True))
    return case.eager(*args[: len(args) - len(case.keywords)], **named)


def kind_of(value: Any) -> str:
    return "float" if isinstance(value, float) else "Tensor" if isinstance(value, Tensor) else "int"


def build(name: str, args: list[Any], outs: list[Tensor]) -> tuple[bytes, list[Tensor]]:
    planned = any(out.numel() for out in outs)
    kinds = [kind_of(a) for a in args]
    return one_op(f"quantized_decomposed::{name}", kinds, args, outs, planned=planned)


def run_pteron(data: bytes, inputs: list[Tensor]) -> list[Tensor]:
    return Runtime.get().load_program(data).load_method("forward").execute(inputs)


def run_wheel(data: bytes, inputs: list[Tensor]) -> list[Tensor]:
    method = WheelRuntime.get().load_program(data).load_method("forward")
    assert method is not None
    return list(method.execute([x.contiguous() if x.dim() < 4 else x for x in inputs]))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_operator_gives_the_right_values(case: Case) -> None:
    args = case.args()
    right = call_eager(case, args)
    data, inputs = build(case.name, args, [right])
    (result,) = run_pteron(data, inputs)
    assert result.dtype is right.dtype
    assert result.shape == right.shape
    if case.steps:
        distance = (result.to(torch.int64) - right.to(torch.int64)).abs()
        assert distance.numel() == 0 or int(distance.max()) <= case.steps
    else:
        torch.testing.assert_close(result, right, rtol=case.tolerance, atol=case.tolerance)
    if case.wheel:
        (theirs,) = run_wheel(data, inputs)
        close = 0.0 if case.exact else case.tolerance
        torch.testing.assert_close(result, theirs, rtol=close, atol=close)


CHOOSE: list[tuple[str, Callable[[], list[Any]]]] = [
    ("choose_qparams.Tensor_out", lambda: [floats(3, 5), -128, 127, 1e-7, I8]),
    ("choose_qparams.Tensor_out", lambda: [floats(40).abs(), 0, 255, 1e-7, U8]),
    ("choose_qparams.Tensor_out", lambda: [torch.zeros(4), -128, 127, 1e-7, I8]),
    ("choose_qparams.Tensor_out", lambda: [floats(9, scale=1e-4), -128, 127, 1e-7, I8]),
    ("choose_qparams.Tensor_out", lambda: [-floats(9, scale=1e-4).abs(), -128, 127, 1e-7, I8]),
    ("choose_qparams.Tensor_out", lambda: [floats(9, scale=1e-40), -128, 127, 1e-7, I8]),
    ("choose_qparams_per_token_asymmetric.out", lambda: [floats(4, 8), I8]),
    ("choose_qparams_per_token_asymmetric.out", lambda: [floats(2, 3, 300), I8]),
    ("choose_qparams_per_token_asymmetric.out", lambda: [floats(5, 4, scale=1e-4), I8]),
    ("choose_qparams_per_token_asymmetric.out", lambda: [floats(3, 4).abs() + 1, I8]),
]


@pytest.mark.parametrize(
    ("name", "make"), CHOOSE, ids=[f"{n}-{i}" for i, (n, _) in enumerate(CHOOSE)]
)
def test_quantization_parameters_are_chosen_as_in_the_wheel(
    name: str, make: Callable[[], list[Any]]
) -> None:
    args = make()
    shape = (1,) if name.startswith("choose_qparams.") else (*args[0].shape[:-1], 1)
    outs = [torch.empty(shape, dtype=torch.float64), torch.empty(shape, dtype=torch.int64)]
    data, inputs = build(name, args, outs)
    scale, zero_point = run_pteron(data, inputs)
    their_scale, their_zero_point = run_wheel(data, inputs)
    assert torch.equal(scale, their_scale)
    assert torch.equal(zero_point, their_zero_point)


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_parameters_are_near_those_of_eager(scale: float) -> None:
    """Away from tiny ranges, eager's formula differs by float32 rounding only."""
    x = floats(6, 64, scale=scale)
    kernel = default_registry().find(
        "quantized_decomposed::choose_qparams_per_token_asymmetric.out"
    )
    assert kernel is not None
    found = kernel.function(x, 1)
    right = QD.choose_qparams_per_token_asymmetric(x, I8)
    torch.testing.assert_close(found[0], right[0], rtol=1e-6, atol=0.0)
    assert int((found[1] - right[1]).abs().max()) <= 1


PLAIN: list[tuple[str, Callable[[], list[Any]], dict[str, Any]]] = [
    ("quantize_per_tensor", lambda: [floats(3, 4), 0.07, 2, -128, 127, I8], {}),
    ("quantize_per_tensor.tensor", lambda: [floats(7), scales(1), zeros(1), -128, 127, I8], {}),
    ("quantize_per_tensor.tensor2",
     lambda: [floats(7), scales(1), zeros(1), torch.tensor(-100), torch.tensor(90), I8], {}),
    ("dequantize_per_tensor", lambda: [ints(3, 4), 0.07, 2, -128, 127, I8], {"out_dtype": F32}),
    ("dequantize_per_tensor.tensor",
     lambda: [ints(5), scales(1), zeros(1), -128, 127, I8], {"out_dtype": F32}),
    ("dequantize_per_tensor.tensor2",
     lambda: [ints(5), scales(1), zeros(1), torch.tensor(-128), torch.tensor(127), I8],
     {"out_dtype": F32}),
    ("quantize_per_channel", lambda: [floats(3, 4), scales(3), zeros(3), 0, -128, 127, I8], {}),
    ("dequantize_per_channel",
     lambda: [ints(3, 4), scales(4), None, 1, -128, 127, I8], {"out_dtype": F32}),
    ("quantize_per_token", lambda: [floats(3, 4), scales(3, 1), zeros(3, 1), -128, 127, I8], {}),
    ("dequantize_per_token",
     lambda: [ints(3, 4), scales(3, 1), zeros(3, 1), -128, 127, I8, F32], {}),
    ("quantize_per_channel_group",
     lambda: [floats(3, 8), scales(3, 2, dtype=F32), zeros(3, 2, dtype=I32), -8, 7, I8, 4], {}),
    ("quantize_per_channel_group",
     lambda: [floats(3, 6), scales(3, 1, dtype=F32), zeros(3, 1, dtype=I32), -8, 7, I8, 128], {}),
    ("quantize_per_channel_group",
     lambda: [floats(1, 64), scales(1, 2, dtype=F32), zeros(1, 2, dtype=I32), -128, 127, I8, 32],
     {}),
    ("dequantize_per_channel_group",
     lambda: [ints(3, 8), scales(3, 2, dtype=F32), zeros(3, 2, dtype=I32), -8, 7, I8, 4, F32], {}),
    ("dequantize_per_channel_group",
     lambda: [ints(2, 8), scales(2, 4, dtype=F32), None, -128, 127, I8, 2, F32], {}),
    ("dequantize_per_channel_group",
     lambda: [ints(2, 8), scales(2, 1, dtype=F16), None, -128, 127, I8, 64, F16], {}),
    ("fake_quant_per_channel", lambda: [floats(3, 4), scales(3), zeros(3), 0, -8, 7], {}),
    ("fake_quant_per_channel", lambda: [floats(2, 5, 3), scales(5), zeros(5), 1, -128, 127], {}),
    ("fake_quant_per_channel", lambda: [floats(4), scales(4), zeros(4), 0, 0, 255], {}),
    ("convert_element_type.no_fuse", lambda: [floats(3), F16], {}),
    ("choose_qparams_symmetric.tensor", lambda: [floats(3, 5), -127, 127, 1e-7, I8], {}),
    ("choose_qparams_symmetric.tensor", lambda: [floats(8).abs(), 0, 255, 1e-7, U8], {}),
    ("choose_qparams_symmetric.tensor", lambda: [torch.zeros(3), -127, 127, 1e-3, I8], {}),
    ("choose_qparams_per_token", lambda: [floats(3, 5), I8], {}),
    ("choose_qparams_per_token", lambda: [floats(2, 3, 5, dtype=F16), I8], {}),
    ("choose_qparams_per_token", lambda: [torch.zeros(2, 4), I8], {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "make", "named"), PLAIN, ids=[f"{c[0]}-{i}" for i, c in enumerate(PLAIN)]
)
def test_functional_form_gives_the_values_of_eager(
    name: str, make: Callable[[], list[Any]], named: dict[str, Any]
) -> None:
    """Exporters that are told to ignore missing out variants leave these in a file."""
    args = make()
    base, _, overload = name.partition(".")
    right = getattr(getattr(QD, base), overload or "default")(*args, **named)
    outs = list(right) if isinstance(right, tuple) else [right]
    given = [*args, *named.values()]
    kinds = [kind_of(a) for a in given]
    full = f"quantized_decomposed::{name}"
    data, inputs = one_op(full, kinds, given, [outs] if len(outs) > 1 else outs, returns="none")
    results = run_pteron(data, inputs)
    for result, wanted in zip(results, outs, strict=True):
        assert result.dtype is wanted.dtype
        if wanted.dtype.is_floating_point:
            torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-6)
        else:
            assert int((result.long() - wanted.long()).abs().max()) <= 1


def test_floats_out_of_range_saturate() -> None:
    x = torch.tensor([1e30, -1e30, float("inf"), -float("inf")])
    data, inputs = build("quantize_per_tensor.out", [x, 0.1, 0, -128, 127, I8], [x.to(I8)])
    (result,) = run_pteron(data, inputs)
    assert result.tolist() == [127, -128, 127, -128]
    limits = [-(2**31), 2**31 - 1]
    data, inputs = build("quantize_per_tensor.out", [x, 0.1, 0, *limits, I32], [x.to(I32)])
    (result,) = run_pteron(data, inputs)
    assert result.tolist() == [limits[1], limits[0]] * 2


def test_every_operator_of_the_wheels_library_has_a_kernel() -> None:
    names = {
        name
        for name in WheelRuntime.get().operator_registry.operator_names
        if name.startswith("quantized_decomposed::")
    }
    assert len(names) >= 19
    registry = default_registry()
    assert [name for name in sorted(names) if registry.find(name) is None] == []
    for name in names:
        kernel = registry.find(name)
        assert kernel is not None
        base, _, overload = name.removeprefix("quantized_decomposed::").partition(".")
        schema = getattr(getattr(QD, base), overload)._schema
        takes = [a.name for a in schema.arguments if not a.is_out]
        assert kernel.num_inputs == len(takes), name
        assert len(kernel.out_names) == len(schema.arguments) - len(takes), name


def test_wrong_number_of_channels_is_named() -> None:
    kernel = default_registry().find("quantized_decomposed::quantize_per_channel.out")
    assert kernel is not None
    with pytest.raises(InvalidArgumentError, match=r"3 quantization parameters for 4 channels"):
        kernel.function(floats(4, 2), scales(3), zeros(3), 0, -128, 127, 1)


def test_index_outside_an_embedding_table_is_an_error() -> None:
    kernel = default_registry().find("quantized_decomposed::embedding_4bit.out")
    assert kernel is not None
    for index in (10, -1):
        with pytest.raises(IndexError):
            kernel.function(
                table(10, 16, 4), scales(10, dtype=F32), None, -8, 7, torch.tensor([index])
            )
