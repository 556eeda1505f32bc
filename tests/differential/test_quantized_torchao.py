"""``torchao`` operators as functions, against torchao itself and ExecuTorch's own definitions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("torchao.quantization.quant_primitives")
    import executorch.extension.llm.export.int4
    import executorch.extension.llm.export.mx
    import executorch.extension.llm.export.nvfp4  # noqa: F401

from pteron import Runtime
from pteron.errors import InvalidArgumentError
from pteron.kernels import default_registry
from support.one_op import SCALAR_TYPES, one_op

AO = torch.ops.torchao
CODES = SCALAR_TYPES | {torch.float8_e5m2: 23, torch.float8_e4m3fn: 24}
I8, U8, I32, F32, F16 = torch.int8, torch.uint8, torch.int32, torch.float32, torch.float16


def function(name: str) -> Callable[..., Any]:
    kernel = default_registry().find(name)
    assert kernel is not None
    return kernel.function


def call(name: str, args: list[Any]) -> Any:
    """Call the kernel of ``torchao::name`` as the executor does, with numbers for element types."""
    return function(f"torchao::{name}")(
        *(CODES[a] if isinstance(a, torch.dtype) else a for a in args)
    )


def floats(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    return (torch.randn(shape) * 3).to(dtype)


def scales(*shape: int) -> Tensor:
    return torch.rand(shape) * 0.1 + 0.01


def zeros(*shape: int) -> Tensor:
    return torch.randint(-5, 5, shape, dtype=I32)


AFFINE: list[tuple[str, Callable[[], list[Any]]]] = [
    ("quantize_affine",
     lambda: [floats(4, 32), [1, 16], scales(4, 2), zeros(4, 2), I8, -8, 7]),
    ("quantize_affine", lambda: [floats(4, 6), [4, 6], scales(1), zeros(1), I8, None, None]),
    ("quantize_affine",
     lambda: [floats(3, 4, 5), [1, 4, 5], scales(3), torch.zeros(3, dtype=I32), U8, 0, 255]),
    ("quantize_affine", lambda: [floats(6, 6), [2, 3], scales(3, 2), zeros(3, 2), I8, -128, 127]),
    ("dequantize_affine",
     lambda: [torch.randint(-8, 8, (4, 32), dtype=I8), [1, 16], scales(4, 2), zeros(4, 2).to(I8),
              I8, -8, 7, F32]),
    ("dequantize_affine",
     lambda: [torch.randint(-128, 128, (4, 6), dtype=I8), [4, 6], scales(1), None, I8, None, None,
              F32]),
    ("dequantize_affine",
     lambda: [torch.randint(0, 256, (3, 4), dtype=U8), [1, 4], scales(3).half(), zeros(3).abs(),
              U8, 0, 255, F16]),
    ("dequantize_affine",
     lambda: [torch.randint(-128, 128, (6, 6), dtype=I8), [2, 3], scales(3, 2), zeros(3, 2), I8,
              -128, 127, F32]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "make"), AFFINE, ids=[f"{n}-{i}" for i, (n, _) in enumerate(AFFINE)]
)
def test_affine_operator_is_torchaos(name: str, make: Callable[[], list[Any]]) -> None:
    args = make()
    want = getattr(AO, name)(*args)
    data, inputs = one_op(f"torchao::{name}", ["any"] * len(args), args, [want], returns="none")
    (result,) = Runtime.get().load_program(data).load_method("forward").execute(inputs)
    assert result.dtype is want.dtype
    torch.testing.assert_close(result, want, rtol=0, atol=0)


CHOICES: list[list[Any]] = [
    ["ASYMMETRIC", [1, 16], I8, None, None, None, None, None, False],
    ["SYMMETRIC", [1, 16], I8, -8, 7, None, None, None, False],
    ["SYMMETRIC_NO_CLIPPING_ERR", [1, 8], I8, -8, 7, 1e-3, F32, torch.int64, False],
    ["ASYMMETRIC", [4, 32], U8, 0, 255, 1e-5, torch.float64, I8, True],
    ["SYMMETRIC", [2, 4], I8, -128, 127, None, None, I32, True],
]


@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: f"{c[0]}-{c[1]}")
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16])
def test_choose_qparams_affine_is_torchaos(choice: list[Any], dtype: torch.dtype) -> None:
    args = [floats(4, 32, dtype=dtype), *choice]
    want = list(AO.choose_qparams_affine(*args))
    name = "torchao::choose_qparams_affine"
    data, inputs = one_op(name, ["any"] * len(args), args, [want], returns="none")
    results = Runtime.get().load_program(data).load_method("forward").execute(inputs)
    for result, right in zip(results, want, strict=True):
        assert result.dtype is right.dtype
        torch.testing.assert_close(result, right, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(1,), (4, 1), (2, 4)])
@pytest.mark.parametrize("float8", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_operators_are_torchaos(shape: tuple[int, ...], float8: torch.dtype) -> None:
    x, scale = floats(4, 8), torch.rand(shape) * 0.1 + 1e-3
    want = AO.quantize_affine_float8_non_decomposed(x, scale, float8)
    got = call("quantize_affine_float8_non_decomposed", [x, scale, float8])
    assert got.dtype is float8
    assert torch.equal(got.view(U8), want.view(U8))
    back = call("dequantize_affine_float8_non_decomposed", [got, scale, F32])
    assert torch.equal(back, AO.dequantize_affine_float8_non_decomposed(want, scale, F32))


@pytest.mark.parametrize(("n", "k", "group"), [(3, 32, 16), (1, 64, 64), (5, 8, 4)])
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16])
def test_dequantize_int4_tensor(n: int, k: int, group: int, dtype: torch.dtype) -> None:
    packed = torch.randint(0, 256, (n, k // 2), dtype=U8)
    args = [packed, scales(k // group, n), torch.rand(k // group, n) * 15, group, dtype]
    want = AO.dequantize_int4_tensor(*args)
    assert torch.equal(call("dequantize_int4_tensor", args), want)


@pytest.mark.parametrize(("n", "k", "block"), [(3, 32, 16), (1, 64, 32), (2, 96, 32)])
def test_dequantize_mx_and_nvfp4(n: int, k: int, block: int) -> None:
    values = floats(n, k).to(torch.float8_e4m3fn)
    exponents = torch.randint(120, 134, (n, k // block), dtype=U8).view(torch.float8_e8m0fnu)
    want = AO.dequantize_mx(values, exponents, torch.float8_e4m3fn, block, F32)
    got = call("dequantize_mx", [values, exponents, torch.float8_e4m3fn, block, F32])
    assert torch.equal(got, want)

    packed = torch.randint(0, 256, (n, k // 2), dtype=U8).view(torch.uint32)
    factors = (torch.rand(n, k // block) * 3).to(torch.float8_e4m3fn).view(U8)
    args = [packed, factors, torch.tensor(0.37), block, F32]
    torch.testing.assert_close(
        call("dequantize_nvfp4", args), AO.dequantize_nvfp4(*args), rtol=1e-6, atol=0
    )


def test_blocks_that_do_not_fit_are_named() -> None:
    with pytest.raises(InvalidArgumentError, match=r"blocks of 5 do not divide a size of 32"):
        call("quantize_affine", [floats(4, 32), [1, 5], scales(4, 2), None, I8, None, None])
    with pytest.raises(InvalidArgumentError, match=r"\[32\] has 1 entries for a tensor of rank 2"):
        call("quantize_affine", [floats(4, 32), [32], scales(4), None, I8, None, None])
    with pytest.raises(InvalidArgumentError, match="'ODD' is none of"):
        call("choose_qparams_affine", [floats(4, 32), "ODD", [1, 32], I8])
