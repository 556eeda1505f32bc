"""Statically and weight-only quantized models, exported without a delegate.

pteron runs them in a process that never imported executorch or torchao.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.exporting import exported_once

SCRIPT = """
import sys
import torch
from pteron import Runtime
results = {}
for folder in sys.argv[2:]:
    inputs, expected = torch.load(f"{folder}/io.pt", weights_only=True)
    program = Runtime.get().load_program(f"{folder}/program.pte")
    (results[folder],) = program.load_method("forward").execute(inputs)
torch.save(results, sys.argv[1])
assert not any(name.split(".")[0] in ("executorch", "torchao") for name in sys.modules)
"""


def linear_relu() -> tuple[nn.Module, tuple[Any, ...]]:
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 7)), (torch.randn(5, 16),)


def conv() -> tuple[nn.Module, tuple[Any, ...]]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    return model, (torch.randn(2, 3, 12, 14),)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        return torch.cat([self.second(y) + x, torch.max_pool2d(y, 3, 1, 1)], dim=1)


def residual() -> tuple[nn.Module, tuple[Any, ...]]:
    return Residual(), (torch.randn(1, 4, 9, 6),)


def quantize(model: nn.Module, inputs: tuple[Any, ...], *, dynamic: bool) -> nn.Module:
    """Quantize with the XNNPACK quantizer, per channel."""
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    config = get_symmetric_quantization_config(is_per_channel=True, is_dynamic=dynamic)
    prepared = prepare_pt2e(
        torch.export.export(model, inputs).module(), XNNPACKQuantizer().set_global(config)
    )
    for _ in range(4):
        prepared(*(torch.randn_like(x) for x in inputs))
    prepared(*inputs)
    converted: nn.Module = convert_pt2e(prepared)
    return converted


def save(folder: Path, model: nn.Module, inputs: tuple[Any, ...], **config: Any) -> None:
    """Write a portable program, its inputs and the eager result."""
    import executorch.kernels.quantized  # noqa: F401  (out variants for the exporter)
    from executorch.exir import (
        EdgeCompileConfig,
        ExecutorchBackendConfig,
        to_edge_transform_and_lower,
    )

    edge = to_edge_transform_and_lower(
        torch.export.export(model, inputs),
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    program = edge.to_executorch(ExecutorchBackendConfig(**config))
    (folder / "program.pte").write_bytes(program.buffer)
    torch.save((list(inputs), model(*inputs).detach()), folder / "io.pt")


def embedding_weight_only() -> tuple[nn.Module, tuple[Any, ...]]:
    from torchao.quantization import IntxWeightOnlyConfig, quantize_
    from torchao.quantization.granularity import PerGroup

    model = nn.Sequential(nn.Embedding(10, 32), nn.Linear(32, 8)).eval()
    config = IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerGroup(16))
    quantize_(model, config, lambda module, _: isinstance(module, nn.Embedding))
    return model, (torch.tensor([1, 3, 9, 0]),)


STATIC: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "linear_relu": linear_relu,
    "conv": conv,
    "residual": residual,
}


def write_static(folder: Path, name: str) -> None:
    model, inputs = STATIC[name]()
    save(folder, quantize(model.eval(), inputs, dynamic=False), inputs)


def write_dynamic(folder: Path) -> None:
    model, inputs = linear_relu()
    save(folder, quantize(model.eval(), inputs, dynamic=True), inputs)


def write_torchao(folder: Path) -> None:
    from executorch.exir.passes import ToOutVarPass

    model, inputs = embedding_weight_only()
    keep = ToOutVarPass(ignore_to_out_var_failure=True)
    save(folder, model, inputs, to_out_var_pass=keep)


def files() -> dict[str, Path]:
    """Return the folder of each exported model, kept from run to run."""
    writers = {f"{name}-static": partial(write_static, name=name) for name in STATIC}
    writers |= {"linear_relu-dynamic": write_dynamic, "embedding-torchao": write_torchao}
    digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
    return {
        name: exported_once(f"quantized-{digest}-{name}", writer).pte.parent
        for name, writer in writers.items()
    }


@dataclass(frozen=True)
class Run:
    """What pteron made of one exported model."""

    folder: Path
    result: torch.Tensor

    def io(self) -> tuple[list[torch.Tensor], torch.Tensor]:
        inputs, right = torch.load(self.folder / "io.pt", weights_only=True)
        return inputs, right


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Export all models and run them all in one other process."""
    torch.manual_seed(0)
    folders = files()
    results = tmp_path_factory.mktemp("quantized") / "results.pt"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(results), *map(str, folders.values())],
        env={"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = torch.load(results, weights_only=True)
    return {name: Run(folder, found[str(folder)]) for name, folder in folders.items()}


@pytest.mark.parametrize(
    "name",
    [*(f"{name}-static" for name in STATIC), "linear_relu-dynamic", "embedding-torchao"],
)
def test_quantized_model_without_delegate_agrees_with_eager(
    name: str, runs: dict[str, Run]
) -> None:
    result, (_, right) = runs[name].result, runs[name].io()
    assert result.shape == right.shape
    step = float((right.max() - right.min()) / 255)
    worst = float((result - right).abs().max())
    assert worst <= (1.01 * step if name.endswith("static") else 1e-5), (worst, step)
    assert float((result - right).abs().mean()) <= 0.1 * step


@pytest.mark.parametrize("name", [f"{name}-static" for name in STATIC])
def test_quantized_model_without_delegate_agrees_with_the_wheel(
    name: str, runs: dict[str, Run]
) -> None:
    import executorch.kernels.quantized  # noqa: F401
    from executorch.runtime import Runtime

    run = runs[name]
    method = Runtime.get().load_program(run.folder / "program.pte").load_method("forward")
    assert method is not None
    (theirs,) = method.execute(run.io()[0])
    step = float((theirs.max() - theirs.min()) / 255)
    assert float((run.result - theirs).abs().max()) <= 1.01 * step
