"""Quantized models without a delegate export, with nothing to import first."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pteron.compat.out_variants import LIBRARIES, VARIANTS

CODE = """
import torch
from pteron.compat import executorch
executorch.install()
from pteron.compat.out_variants import VARIANTS, register_out_variants
assert register_out_variants() == []
op = torch.ops.quantized_decomposed
x = torch.randn(3, 4)
arguments = (0.02, 3, -128, 127, torch.int8)
q = op.quantize_per_tensor.default(x, *arguments)
out = torch.empty(0, dtype=torch.int8)
op.quantize_per_tensor.out(x, *arguments, out=out)
assert torch.equal(out, q)
back = torch.empty(0)
op.dequantize_per_tensor.out(q, *arguments, out=back)
assert torch.equal(back, op.dequantize_per_tensor.default(q, *arguments))
scale, zero = torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.int64)
op.choose_qparams.Tensor_out(x, -128, 127, 1e-5, torch.int8, scale_out=scale, zero_point_out=zero)
wanted = op.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8)
assert torch.equal(scale, wanted[0]) and torch.equal(zero, wanted[1])
torch.ops.load_library("/nowhere/libquantized_ops_aot_lib.so")  # its operators are there
try:
    torch.ops.load_library("/nowhere/other.so")
except OSError:
    pass
else:
    raise AssertionError("another library was not looked for")
print("done")
"""

AFTERWARDS = """
import torch
from pteron.compat import executorch
load = torch.ops.load_library
executorch.install(out_variants=False)
executorch.uninstall()
assert torch.ops.load_library == load  # nothing was defined: nothing is passed over
executorch.install()
executorch.uninstall()
import executorch.kernels.quantized
torch.ops.load_library("/nowhere/libquantized_ops_aot_lib.so")
print("done")
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )


def test_out_variants_compute_what_the_operators_do() -> None:
    done = run(CODE)
    assert done.stdout.strip() == "done", done.stderr


def test_the_native_library_is_passed_over_as_long_as_the_definitions_are_there() -> None:
    done = run(AFTERWARDS)
    assert done.stdout.strip() == "done", done.stderr


@pytest.mark.slow
def test_they_are_those_that_executorchs_library_adds() -> None:
    pytest.importorskip("executorch.exir", reason="executorch is not installed")
    code = """
import torch
import torch.ao.quantization.fx._decomposed
import executorch.exir.passes._quant_patterns_and_replacements
before = set(torch._C._dispatch_get_all_op_names())
import executorch.kernels.quantized
added = set(torch._C._dispatch_get_all_op_names()) - before
for name in sorted(n for n in added if n.startswith("quantized_decomposed::")):
    print(torch._C._get_schema(name.partition(".")[0], name.partition(".")[2]))
"""
    theirs = set(run(code).stdout.splitlines())
    ours_code = """
import torch
from pteron.compat import executorch
executorch.install()
import executorch.exir.passes._quant_patterns_and_replacements
from pteron.compat.out_variants import VARIANTS
for name, _, _ in VARIANTS:
    base, _, overload = name.partition(".")
    print(torch._C._get_schema(f"quantized_decomposed::{base}", overload))
"""
    ours = set(run(ours_code).stdout.splitlines())
    assert ours
    assert ours == theirs


def test_names_of_libraries_match_the_file_in_the_package() -> None:
    assert any(part in "kernels/quantized/libquantized_ops_aot_lib.so" for part in LIBRARIES)
    assert len({name for name, _, _ in VARIANTS}) == len(VARIANTS)
