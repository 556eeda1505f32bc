"""Where memory is: nothing before a method needs it, the plan and no more, and back again."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pteron.errors import MemoryAllocationFailedError
from support import cuda_fixtures as fixtures

pytestmark = pytest.mark.gpu

MIB = 1 << 20
SLACK = 16 * MIB
"""What a load may take beyond plan and weights: allocations are rounded up to 2 MiB each, and the
driver keeps the compiled kernels."""


@pytest.fixture(scope="module")
def table() -> dict[str, int]:
    script = Path(__file__).with_name("memory_table.py")
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root / "src"), str(root / "tests"), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_opening_takes_no_device_memory(table: dict[str, int]) -> None:
    assert table["open the program"] == 0


def test_the_host_method_takes_no_device_memory(table: dict[str, int]) -> None:
    assert table["load and run the host method"] == 0


def test_the_device_method_takes_its_plan_and_its_weights(table: dict[str, int]) -> None:
    took, plan = table["load the device method"], table["planned on cuda:0"]
    assert plan == 32 * MIB
    assert took >= 0.9 * plan
    assert took <= plan + table["weights"] + SLACK


def test_the_report_agrees_with_the_plan(table: dict[str, int]) -> None:
    assert table["allocated by report on cuda:0"] == table["planned on cuda:0"]


def test_memory_goes_back_to_the_device(table: dict[str, int]) -> None:
    assert table["close the program"] <= SLACK


def test_dropping_without_closing_gives_memory_back(load: Any) -> None:
    case = fixtures.cases("mixed_host_cuda")["forward2"][0]
    torch.cuda.empty_cache()
    warm = load("mixed_host_cuda")
    warm.load_method("forward2").execute(case.inputs)
    warm.close()
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    from pteron import Runtime

    for _ in range(3):
        program = Runtime.get().load_program(
            fixtures.pte_path("mixed_host_cuda"), data_path=fixtures.ptd_path("mixed_host_cuda")
        )
        method = program.load_method("forward2")
        assert before - torch.cuda.mem_get_info()[0] >= 30 * MIB
        del program, method
        gc.collect()
        assert before - torch.cuda.mem_get_info()[0] <= 4 * MIB


def test_out_of_memory_is_an_error_with_the_bytes_and_no_more(load: Any) -> None:
    methods = fixtures.cases("mixed_host_cuda")
    (host,), (device,) = methods["forward"], methods["forward2"]
    program = load("mixed_host_cuda")
    forward = program.load_method("forward")
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    filler = [torch.empty(free - 64 * MIB, dtype=torch.uint8, device="cuda")]
    while torch.cuda.mem_get_info()[0] > 28 * MIB:
        filler.append(torch.empty(4 * MIB, dtype=torch.uint8, device="cuda"))
    with pytest.raises(MemoryAllocationFailedError) as refusal:
        program.load_method("forward2")
    text = str(refusal.value)
    assert "33,554,432" in text
    assert "forward2" in text
    assert "cuda:0" in text
    assert "free" in text
    host.check(forward.execute(host.inputs))
    filler.clear()
    torch.cuda.empty_cache()
    device.check(program.load_method("forward2").execute(device.inputs))
    host.check(forward.execute(host.inputs))


def test_no_memory_while_running_is_an_error_and_passes(load: Any) -> None:
    """The compiled code's own intermediates have no place: the call fails, the process lives."""
    from pteron.errors import PteronError

    (case,) = fixtures.cases("mixed_host_cuda")["forward2"]
    method = load("mixed_host_cuda").load_method("forward2")
    torch.cuda.empty_cache()
    filler = [torch.empty(torch.cuda.mem_get_info()[0] - 8 * MIB, dtype=torch.uint8, device="cuda")]
    with pytest.raises(PteronError, match=r"forward2"):
        method.execute(case.inputs)
    filler.clear()
    torch.cuda.empty_cache()
    case.check(method.execute(case.inputs))
