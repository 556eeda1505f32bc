"""Cortex-M operators, bit for bit against CMSIS-NN's own results (``cortex_m_golden/make.py``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pteron.kernels import cortex_m
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
