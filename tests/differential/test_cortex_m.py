"""Cortex-M operators, bit for bit against CMSIS-NN's own results (``cortex_m_golden/make.py``)."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pteron import Runtime
from pteron.errors import InvalidArgumentError
from pteron.kernels import cortex_m
from pteron.kernels import cortex_m_math as fixed
from pteron.kernels.registry import OperatorRegistry

GOLDEN = np.load(Path(__file__).parent / "cortex_m_golden" / "cases.npz")
CASES = json.loads(GOLDEN["cases"].tobytes())
SCRATCH = {
    "quantized_conv2d": 1,
    "quantized_depthwise_conv2d": 1,
    "quantized_transpose_conv2d": 2,
    "quantized_avg_pool2d": 1,
    "quantized_batch_matmul": 1,
}


@pytest.fixture(scope="module")
def registry() -> OperatorRegistry:
    registry = OperatorRegistry()
    cortex_m.register(registry)
    return registry


def arguments(case: dict[str, Any]) -> list[Any]:
    args = [
        torch.from_numpy(GOLDEN[value["array"]].copy()) if isinstance(value, dict) else value
        for value in case["args"]
    ]
    scratch = SCRATCH.get(case["operator"].removesuffix("_nhwc"), 0)
    return [*args, *[torch.empty(0, dtype=torch.uint8)] * scratch]


def expected(case: dict[str, Any]) -> torch.Tensor:
    return torch.from_numpy(GOLDEN[case["out"]].copy())


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['operator']}-{c['out'][:3]}")
def test_result_is_what_cmsis_nn_computes(case: dict[str, Any], registry: OperatorRegistry) -> None:
    kernel = registry.find(f"cortex_m::{case['operator']}.out")
    assert kernel is not None
    args = arguments(case)
    assert len(args) == kernel.positional
    result = kernel.function(*args)
    assert result.dtype is torch.int8
    torch.testing.assert_close(result, expected(case), rtol=0, atol=0)


# Layouts


@pytest.mark.parametrize("name", ["conv2d", "depthwise_conv2d", "transpose_conv2d", "avg_pool2d"])
def test_plain_operator_is_the_nhwc_one_with_permuted_activations(
    name: str, registry: OperatorRegistry
) -> None:
    kernel = registry.find(f"cortex_m::quantized_{name}.out")
    assert kernel is not None
    found = [case for case in CASES if case["operator"] == f"quantized_{name}_nhwc"]
    assert found
    for case in found:
        first, *rest = arguments(case)
        result = kernel.function(first.permute(0, 3, 1, 2), *rest)
        assert torch.equal(result.permute(0, 2, 3, 1), expected(case))


def test_kernel_sums_give_what_biases_give(registry: OperatorRegistry) -> None:
    """A file for a vector core folds the bias and the input offset into ``kernel_sum``."""
    kernel = registry.find("cortex_m::quantized_linear.out")
    assert kernel is not None
    for case in (c for c in CASES if c["operator"] == "quantized_linear"):
        x, weight, bias, _, input_offset, filter_offset, *rest = arguments(case)
        matrix = weight.to(torch.int64) + filter_offset
        sums = matrix.sum(dim=1) * input_offset + (0 if bias is None else bias)
        result = kernel.function(
            x, weight, None, sums.to(torch.int32), input_offset, filter_offset, *rest
        )
        assert torch.equal(result, expected(case))


@pytest.mark.parametrize(
    ("shape", "channels_last", "pads", "out"),
    [
        ((1, 2, 3, 4), True, (0, 1, 2, 3), (1, 8, 5, 8)),  # amounts for N, H, W, C
        ((1, 2, 3, 4), False, (0, 1, 2, 3), (1, 4, 7, 10)),  # amounts for N, C, H, W
        ((3, 4), False, (0, 0, 1, 2), (5, 8)),
    ],
)
def test_pad_amounts_are_in_memory_order(
    shape: tuple[int, ...], channels_last: bool, pads: tuple[int, ...], out: tuple[int, ...]
) -> None:
    x = torch.randint(-128, 128, shape, dtype=torch.int8)
    given = x.to(memory_format=torch.channels_last) if channels_last else x
    result = cortex_m.pad(given, pads, pads, -7)
    assert result.shape == out
    inner = tuple(slice((o - s) // 2, (o - s) // 2 + s) for s, o in zip(shape, out, strict=True))
    assert torch.equal(result[inner], x)
    assert int((result == -7).sum()) >= result.numel() - x.numel()


def test_a_tensor_of_one_channel_counts_as_nhwc() -> None:
    """As executorch decides it at export and at run time."""
    x = torch.zeros(1, 1, 4, 5, dtype=torch.int8)
    assert cortex_m.pad(x, (0, 1, 0, 0), (0, 1, 0, 0), 1).shape == (1, 1, 6, 5)


# The arithmetic, against whole numbers of Python


def exact_requantize(value: int, multiplier: int, shift: int) -> int:
    """Multiply by multiplier * 2**shift / 2**31: round to 32 bits, then once more when shifting."""
    product = (value * 2 ** max(shift, 0) * multiplier + 2**30) // 2**31
    half, step = divmod(abs(product) * 2, 2 ** (1 + max(-shift, 0)))
    rounded = half + (2 * step >= 2 ** (1 + max(-shift, 0)))
    return rounded if product >= 0 else -rounded


@pytest.mark.parametrize("shift", [-31, -9, -1, 0, 1, 5])
def test_requantize_is_exact(shift: int) -> None:
    values = [0, 1, -1, 2, -3, 255, -256, 1 << 20, -(1 << 20), (1 << 25) - 1, -(1 << 25)]
    for multiplier in (1 << 30, (1 << 31) - 1, 1500406475):
        want = [exact_requantize(value, multiplier, shift) for value in values]
        got = fixed.requantize(torch.tensor(values), multiplier, shift)
        assert got.tolist() == want
        per_value = fixed.requantize(
            torch.tensor(values),
            torch.full((len(values),), multiplier),
            torch.full((len(values),), shift),
        )
        assert per_value.tolist() == want


@pytest.mark.parametrize("exponent", [0, 1, 4])
def test_halves_go_away_from_zero(exponent: int) -> None:
    values = torch.arange(-40, 41)
    want = [int(abs(v) / 2**exponent + 0.5) * (1 if v >= 0 else -1) for v in values.tolist()]
    assert fixed.divide_by_power_of_two(values, exponent).tolist() == want
    exponents = torch.full_like(values, exponent)
    assert fixed.divide_by_power_of_two(values, exponents).tolist() == want


def test_softmax_is_near_the_real_one() -> None:
    x = torch.randint(-128, 128, (6, 20), dtype=torch.int8)
    scale = 0.05
    real_multiplier = scale * 2**26  # input in Q5.26
    shift = 0
    while real_multiplier >= 1:
        real_multiplier /= 2
        shift += 1
    result = fixed.softmax(x, round(real_multiplier * 2**31), shift, -248)
    want = torch.softmax(x.double() * scale, -1) * 256 - 128
    assert float((result.double() - want.clamp(max=127)).abs().max()) <= 1.0


# Small operators


def test_division_rounds_halves_away_from_zero_and_takes_zero_divisors() -> None:
    a = torch.tensor([5, -5, 3, 7, 100, -128], dtype=torch.int8)
    b = torch.tensor([2, 2, 2, 0, 1, 1], dtype=torch.int8)
    assert cortex_m.quantized_div(a, 0, b, 0, 0, 1.0).tolist() == [3, -3, 2, 0, 100, -128]
    assert cortex_m.quantized_div(a, 0, b, 0, 10, 2.0).tolist() == [15, 5, 13, 10, 127, -128]
    wide = cortex_m.quantized_div(a.to(torch.int16), 0, b.to(torch.int16), 0, 10, 2.0)
    assert wide.tolist() == [15, 5, 13, 10, 210, -246]
    assert wide.dtype is torch.int16


def test_activation_looks_values_up() -> None:
    table = torch.arange(127, -129, -1, dtype=torch.int16).to(torch.int8)
    x = torch.tensor([[-128, 127], [0, 5]], dtype=torch.int8)
    assert cortex_m.quantized_activation(x, table).tolist() == [[127, -128], [-1, -6]]


@pytest.mark.parametrize("name", ["minimum", "maximum"])
@pytest.mark.parametrize("shape", [(2, 3), (3,), (1,)])
def test_extrema_broadcast(name: str, shape: tuple[int, ...], registry: OperatorRegistry) -> None:
    kernel = registry.find(f"cortex_m::{name}.out")
    assert kernel is not None
    a = torch.randint(-128, 128, (2, 3), dtype=torch.int8)
    b = torch.randint(-128, 128, shape, dtype=torch.int8)
    want = np.minimum if name == "minimum" else np.maximum
    assert np.array_equal(kernel.function(a, b).numpy(), want(a.numpy(), b.numpy()))


@pytest.mark.parametrize("perm", [(1, 0), (2, 0, 1), (0, 2, 3, 1)])
def test_transpose(perm: tuple[int, ...]) -> None:
    x = torch.randint(-128, 128, tuple(range(2, 2 + len(perm))), dtype=torch.int8)
    assert np.array_equal(cortex_m.transpose(x, perm).numpy(), x.numpy().transpose(perm))


def test_softmax_over_another_dimension_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="asks for dimension 0 of 2"):
        cortex_m.softmax(torch.zeros(2, 3, dtype=torch.int8), 0, 0, -128, 1 << 30, 20, -100)


def test_every_operator_that_executorch_declares_has_a_kernel(registry: OperatorRegistry) -> None:
    found = find_spec("executorch")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the executorch wheel is not installed")
    (root,) = found.submodule_search_locations
    text = (Path(root) / "backends" / "cortex_m" / "ops" / "operators.yaml").read_text()
    declared = re.findall(r"- func: (cortex_m::\S+?)\((.*), \*, Tensor\(a!\) out\)", text)
    assert len(declared) >= 23
    for name, parameters in declared:
        kernel = registry.find(name)
        assert kernel is not None, name
        assert kernel.num_inputs == len(parameters.split(", ")), name


# A whole network

WORDS = ["silence", "unknown", *"yes no up down left right on off stop go".split()]


def test_keyword_spotting_hears_the_five_recordings(shared: Path) -> None:
    recordings = np.load(shared / "fixtures" / "public" / "keyword_spotting_inputs.npz")
    program = Runtime.get().load_program(shared / "fixtures" / "public" / "keyword_spotting.pte")
    method = program.load_method("forward")
    assert len(recordings.files) == 5
    for word in recordings.files:
        features = torch.from_numpy(recordings[word]).reshape(1, 1, 49, 10)
        (scores,) = method.execute([features])
        assert WORDS[int(scores.argmax())] == word
