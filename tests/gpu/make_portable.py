# ruff: noqa: T201
"""Make ``tests/fixtures/portable``: small programs without delegates, with eager's outputs.

    PYTHONPATH=src:tests python tests/gpu/make_portable.py

Needs executorch. The files are committed: machines with a GPU need not have it.
"""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn

from support.exporting import export_portable, quiet, write_program
from support.models import ARCHITECTURES, Architecture, MethodSpec, seeded

TARGET = Path(__file__).parents[1] / "fixtures" / "portable"


def main() -> None:
    shutil.rmtree(TARGET, ignore_errors=True)
    for name, entry in ARCHITECTURES.items():
        methods = entry.build()
        calls = {method: run(spec) for method, spec in methods.items()}
        made = export_portable(entry)
        keep(name, made.pte, made.ptd, calls, entry.rtol, entry.atol)
    for name, net, inputs in quantized_nets():
        spec = MethodSpec(quantize(net, inputs), inputs, (inputs,))
        part = TARGET / "part"
        part.mkdir()
        with quiet():
            import executorch.kernels.quantized  # noqa: F401 - out variants for the exporter

            write_program(Architecture(name, lambda full: {}), {"forward": spec}, part)
        # A value that falls between two steps may round to the other one.
        keep(name, part / "program.pte", None, {"forward": run(spec)}, 1e-4, 5e-2)
        shutil.rmtree(part)


def run(spec: MethodSpec) -> list[tuple[tuple[Any, ...], list[Any]]]:
    """Return inputs and eager outputs of the calls in order, from a copy: state begins anew."""
    module = copy.deepcopy(spec.module)
    calls = []
    with torch.no_grad():
        for inputs in spec.inputs:
            given = copy.deepcopy(inputs)
            outputs = module(*given)
            flat = torch.utils._pytree.tree_leaves(outputs)
            calls.append((inputs, [x.clone() for x in flat]))
    return calls


def quantized_nets() -> Any:
    with seeded("quantized"):
        conv = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, groups=8),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 4),
        )
        yield "quantized_conv", conv.eval(), (torch.randn(2, 3, 12, 14),)
        mlp = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 7))
        yield "quantized_mlp", mlp.eval(), (torch.randn(5, 16),)


def quantize(model: nn.Module, inputs: tuple[Any, ...]) -> nn.Module:
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    with quiet():
        config = get_symmetric_quantization_config(is_per_channel=True)
        prepared = prepare_pt2e(
            torch.export.export(model, inputs).module(), XNNPACKQuantizer().set_global(config)
        )
        prepared(*inputs)
        return convert_pt2e(prepared)


def keep(name: str, pte: Path, ptd: Path | None, calls: Any, rtol: float, atol: float) -> None:
    folder = TARGET / name
    folder.mkdir(parents=True)
    shutil.copy(pte, folder / "program.pte")
    if ptd is not None:
        shutil.copy(ptd, folder / "weights.ptd")
    torch.save({"calls": calls, "rtol": rtol, "atol": atol}, folder / "io.pt")
    print(f"{name:24} {sum(f.stat().st_size for f in folder.iterdir()):>9,} bytes")


if __name__ == "__main__":
    main()
