"""Export the programs in ``tests/cli/files``, which the transcripts of a first day run.

    PYTHONPATH=src:tests python tests/cli/make_programs.py

Needs executorch 1.5.1. Weights are small whole numbers or halves, so that results are exact.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from executorch.exir import EdgeCompileConfig, to_edge
from executorch.exir.capture._config import ExecutorchBackendConfig
from torch.export import Dim, export

FILES = Path(__file__).with_name("files")


class Classifier(torch.nn.Module):
    """Two named inputs of different kinds, two named outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(3, 4)
        fill(self.head)

    def forward(self, *, image: torch.Tensor, temperature: torch.Tensor) -> dict[str, torch.Tensor]:
        features = image.mean((2, 3))
        return {"logits": self.head(features) / temperature, "features": features}


class Encoder(torch.nn.Module):
    """Two named inputs of one type and shape, which are easily swapped."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(20, 2)
        fill(self.words)

    def forward(self, *, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return (self.words(input_ids * 1) * attention_mask.unsqueeze(-1)).sum((1, 2))


class Rows(torch.nn.Module):
    """A batch of rows, up to 32 of them."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(8, 2)
        fill(self.head)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


class Nested(torch.nn.Module):
    """A nested argument, and two numbers that the exporter bakes in."""

    def forward(self, pair: Any, scale: float, flip: bool) -> Any:
        a, b = pair
        total = a * scale + b
        return {"sum": -total if flip else total, "parts": [a + 0.0, b + 0.0]}


class Counter(torch.nn.Module):
    """A buffer that counts the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x)
        return self.seen + 0.0


class Picture(torch.nn.Module):
    """A grey picture of bytes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Half(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Scores(torch.nn.Module):
    """Wide scores and a wide scale of values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)


def fill(layer: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in layer.parameters():
            numbers = torch.arange(parameter.numel(), dtype=torch.float32) % 7 - 3
            parameter.copy_((numbers / 2).reshape(parameter.shape))


def write(name: str, methods: Any, **config: Any) -> None:
    edge = to_edge(methods, compile_config=EdgeCompileConfig(_check_ir_validity=False))
    program = edge.to_executorch(ExecutorchBackendConfig(**config))
    (FILES / f"{name}.pte").write_bytes(program.buffer)


def main() -> None:
    FILES.mkdir(exist_ok=True)
    named = {"image": torch.ones(1, 3, 4, 4), "temperature": torch.ones(1)}
    write("classifier", export(Classifier(), (), named, strict=True))
    ids = torch.ones(1, 6, dtype=torch.int64)
    tokens = {"input_ids": ids, "attention_mask": ids.clone()}
    write("named_enc", export(Encoder(), (), tokens, strict=True))
    batch = {"x": {0: Dim("batch", max=32)}}
    rows = export(Rows(), (torch.ones(4, 8),), dynamic_shapes=batch, strict=True)
    write("dynbatch", rows)
    pair = (torch.ones(2), torch.ones(2))
    write("nest", export(Nested(), (pair, 2.0, False), strict=True))
    counter = export(Counter(), (torch.ones(4),), strict=True)
    write("counter", counter, emit_mutable_buffer_names=True)
    write("u8", export(Picture(), (torch.zeros(1, 1, 4, 4, dtype=torch.uint8),), strict=True))
    write("bf16", export(Half(), (torch.ones(1, 8, dtype=torch.bfloat16),), strict=True))
    write("scores", export(Scores(), (torch.ones(1, 12),), strict=True))
    encode = export(Half(), (torch.ones(4),), strict=True)
    write("twomethods", {"encode": encode, "decode": export(Picture(), (torch.ones(4),))})


if __name__ == "__main__":
    main()
