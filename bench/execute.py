"""Execution: small programs where the runtime's own cost shows, and whole models."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from bench.measure import Row, interleaved


class Mlp(nn.Module):
    """Three linear layers: six instructions that are not folded at load."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, 10), nn.Softmax(-1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


CHAIN = 2_000


class Chain(nn.Module):
    """2,000 elementwise operators on 16 numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(CHAIN // 2):
            x = torch.sigmoid(x + x)
        return x


def contenders(path: Any, module: nn.Module, inputs: tuple[Any, ...], *, wheel: bool = True) -> Any:
    """Return calls by contender that run one program, after checking that they agree."""
    from executorch.runtime import Runtime as Wheel

    from pteron import Runtime

    mine = Runtime.get().load_program(path).load_method("forward")
    calls = {"pteron": lambda: mine.execute(inputs)}

    def eager() -> Any:
        with torch.inference_mode():
            return module(*inputs)

    calls["eager"] = eager
    want = [x for x in torch.utils._pytree.tree_leaves(eager()) if isinstance(x, torch.Tensor)]
    got = [x for x in mine.execute(inputs) if isinstance(x, torch.Tensor)]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    if wheel:
        theirs = Wheel.get().load_program(str(path)).load_method("forward")
        calls["wheel portable"] = lambda: theirs.execute(inputs)
    return calls


def small() -> list[Row]:
    """Time a six-instruction MLP and a chain of tiny operators."""
    from support.exporting import exported_once, write_program
    from support.models import Architecture, MethodSpec

    rows = []
    for name, module, x in (
        ("MLP, 6 instructions, batch 1", Mlp(), torch.randn(1, 64)),
        (f"chain of {CHAIN} tiny operators", Chain(), torch.randn(4, 4)),
    ):
        module.eval()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            for parameter in module.parameters():
                nn.init.normal_(parameter, std=0.1)
        title = f"bench_{type(module).__name__}"
        methods = {"forward": MethodSpec(module, (x,), ((x,),))}
        entry = Architecture(title, lambda full, m=methods: m)
        file = exported_once(title, lambda folder, e=entry, m=methods: write_program(e, m, folder))
        seconds = interleaved(contenders(file.pte, module, (x,)), seconds=3.0)
        row = Row(name, seconds)
        if isinstance(module, Chain):
            row.notes["us an instruction"] = f"{seconds['pteron'] / CHAIN * 1e6:.2f}"
        rows.append(row)
    return rows


MODELS = ("mobilenet_v2", "resnet18", "bert", "gpt2")


def models(names: tuple[str, ...] = MODELS) -> list[Row]:
    """Time whole models from portable files."""
    from support.exporting import export_portable
    from support.models import architecture

    rows = []
    for name in names:
        entry = architecture(name)
        spec = entry.build(full=True)["forward"]
        file = export_portable(entry, full=True)
        calls = contenders(file.pte, spec.module, tuple(spec.inputs[0]))
        rows.append(Row(name, interleaved(calls, seconds=6.0, rounds=9)))
    return rows


def geometric_mean(rows: list[Row], of: str, to: str = "pteron") -> float:
    """Return the geometric mean of how many times longer ``of`` took than ``to``."""
    return math.exp(sum(math.log(row.ratio(of, to)) for row in rows) / len(rows))
