"""The programs on which the peer's C++ tests run, beside the wheel."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from pteron import Program, Runtime
from pteron.program.method_meta import Tag
from support.outputs import assert_same

wheel = pytest.importorskip("executorch.runtime", reason="the executorch wheel is not installed")

FOLDER = Path(__file__).parents[1] / "fixtures" / "peer_modules"
LOADABLE = sorted(
    path.stem
    for path in FOLDER.glob("*.pte")
    # The first needs a delegate that the wheel lacks; the second crashes it.
    if path.stem not in ("ModuleAddWithDevice", "ModuleStateful")
)
DTYPES = {3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32, 11: torch.bool}


@pytest.fixture(autouse=True)
def _silence() -> None:
    """Let executorch print what it likes."""


def inputs_of(program: Program, name: str) -> list[Any]:
    meta, plan = program.metadata(name), program._plan(name)
    inputs: list[Any] = []
    for number, index in enumerate(plan.inputs):
        if meta.input_tag(number) is Tag.Tensor:
            info = meta.input_tensor_meta(number)
            inputs.append((torch.rand(info.sizes()) * 3).to(DTYPES[int(info.dtype())]))
        else:
            value = plan.values[index]
            fields = ("int_val", "bool_val", "double_val")
            inputs.append(next((getattr(value, f) for f in fields if hasattr(value, f)), None))
    return inputs


@pytest.mark.parametrize("name", LOADABLE)
def test_the_wheel_agrees(name: str) -> None:
    path, data = FOLDER / f"{name}.pte", FOLDER / f"{name}.ptd"
    data_path = data if data.exists() else None
    ours = Runtime.get().load_program(path, data_path=data_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = wheel.Runtime.get().load_program(path, data_path=data_path)
    for method in sorted(ours.method_names):
        inputs = inputs_of(ours, method)
        loaded = ours.load_method(method), theirs.load_method(method)
        for _ in range(2):
            outputs, expected = (one.execute(inputs) for one in loaded)
            assert_same(outputs, expected)


def test_state_without_memory_has_memory_of_its_own() -> None:
    """``ModuleStateful.pte``: the plan gives its state no place, on which 1.5.1 crashes."""
    method = Runtime.get().load_program(FOLDER / "ModuleStateful.pte").load_method()
    x = torch.tensor([0.5])
    outputs = [float(method.execute([x])[0]) for _ in range(3)]
    assert outputs == [1.5, 2.5, 3.5]
    torch.testing.assert_close(method.state["state"], torch.tensor([3], dtype=torch.int32))
    method.reset()
    assert float(method.execute([x])[0]) == 1.5
