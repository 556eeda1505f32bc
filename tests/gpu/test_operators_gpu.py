"""Every operator of ExecuTorch's registry on CUDA: pteron's kernel against eager torch."""

from __future__ import annotations

import zlib

import pytest
import torch

from pteron.kernels import Style, default_registry
from support.operator_cases import CASES
from support.operator_check import expected, kernel_problems, moved

pytestmark = pytest.mark.gpu

EAGER_REFUSES = (NotImplementedError, RuntimeError)
"""What eager torch says to a dtype for which CUDA has no kernel: such a case is no case."""


@pytest.mark.parametrize("name", CASES)
def test_kernel_agrees_with_eager_on_cuda(name: str) -> None:
    torch.manual_seed(zlib.crc32(name.encode()))
    kernel = default_registry().find(name)
    assert kernel is not None
    found, ran = [], 0
    for number, case in enumerate(CASES[name]()):
        on_device = type(case)(tuple(moved(case.args, "cuda")), case.dtype, case.bounds)
        try:
            expected(name, on_device)
        except EAGER_REFUSES:
            continue
        ran += 1
        for dynamic in (False,) if kernel.style is Style.INPLACE else (True, False):
            try:
                found += kernel_problems(name, number, case, dynamic=dynamic, device="cuda")
            except EAGER_REFUSES as error:
                found.append(f"case {number} (dynamic={dynamic}): {error}")
    assert not found, "\n".join(found)
    assert ran >= 2
