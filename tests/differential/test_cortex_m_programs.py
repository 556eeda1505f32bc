"""Programs of executorch's Cortex-M exporter (``tests/fixtures/cortex_m/make.py``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pteron import Runtime

FOLDER = Path(__file__).parents[1] / "fixtures" / "cortex_m"


@pytest.mark.parametrize("name", ["vision", "vision_m4", "decoder", "mixer"])
def test_program_gives_what_the_exporters_own_operators_give(name: str) -> None:
    arrays = np.load(FOLDER / f"{name}.npz")
    inputs = [torch.from_numpy(arrays[key]) for key in arrays.files if key.startswith("input")]
    method = Runtime.get().load_program(FOLDER / f"{name}.pte").load_method("forward")
    for _ in range(2):
        (result,) = method.execute(inputs)
        torch.testing.assert_close(result, torch.from_numpy(arrays["output"]), rtol=0, atol=0)


def test_programs_call_most_operators() -> None:
    """So that the test above says something."""
    called = {
        operator.name
        for path in FOLDER.glob("*.pte")
        for plan in Runtime.get().load_program(path).pte.program.execution_plan
        for operator in plan.operators
    }
    assert len([name for name in called if name.startswith("cortex_m::")]) >= 15
