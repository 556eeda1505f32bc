"""Programs with XNNPACK delegates, and the models that they are made of."""

from __future__ import annotations

from pathlib import Path

import torch

from support.exporting import ExportedFile, exported_once


class Mixed(torch.nn.Module):
    """Two delegated parts with an operator between them that stays outside."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = torch.relu(self.conv(x))
        b = torch.sort(a.mean((2, 3)))[0]
        return self.linear(b) + y, b * 2, a


def write_mixed(folder: Path) -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    torch.manual_seed(3)
    batch = torch.export.Dim("batch", min=1, max=6)
    exported = torch.export.export(
        Mixed().eval(),
        (torch.randn(2, 3, 8, 8), torch.randn(2, 4)),
        dynamic_shapes=({0: batch}, {0: batch}),
    )
    edge = to_edge_transform_and_lower(
        exported,
        partitioner=[XnnpackPartitioner()],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    (folder / "program.pte").write_bytes(edge.to_executorch().buffer)


def mixed_model() -> torch.nn.Module:
    torch.manual_seed(3)
    return Mixed().eval()


class ChannelsLast(torch.nn.Module):
    """Channels-last tensors of changing size, through a delegate."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.second = torch.nn.Conv2d(4, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.sin(self.first(x)))


def write_channels_last(folder: Path) -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    x = torch.randn(2, 3, 6, 5).to(memory_format=torch.channels_last)
    exported = torch.export.export(
        channels_last_model(), (x,), dynamic_shapes=({0: torch.export.Dim("n", min=1, max=6)},)
    )
    edge = to_edge_transform_and_lower(
        exported,
        partitioner=[XnnpackPartitioner()],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    (folder / "program.pte").write_bytes(edge.to_executorch().buffer)


def channels_last_model() -> torch.nn.Module:
    torch.manual_seed(4)
    return ChannelsLast().eval()


def mixed() -> ExportedFile:
    """Return the program of ``Mixed``, for batches of 1 to 6."""
    return exported_once("bridge_mixed_1", write_mixed)


def channels_last() -> ExportedFile:
    """Return the program of ``ChannelsLast``, for batches of 1 to 6."""
    return exported_once("bridge_channels_last_2", write_channels_last)
