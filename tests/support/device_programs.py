"""Programs planned on an accelerator, as executorch's own test partitioner tags them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from support.programs import Files, edited, export, kept

FLOATS = 4
"""Elements of each input: the demo backend takes no more."""


class Sum(nn.Module):
    """One addition, which the partitioner delegates."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b


class Scaled(nn.Module):
    """Host, delegate, host: the sum is between two products."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a * 3 + b) * 2


class HostWork(nn.Module):
    """No addition: nothing to delegate, and a plan larger than the device methods'."""

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return (a.repeat(8) * 2).exp().sum(0, keepdim=True)


def device_partitioner(device: str = "cuda:0") -> Any:
    from executorch.exir.backend.test.device_util import DeviceAwarePartitioner

    return DeviceAwarePartitioner(device)


def pair(count: int = FLOATS) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(count) + 0.5, torch.full((count,), 10.0)


def planning(**facts: Any) -> Any:
    from executorch.exir.passes import MemoryPlanningPass

    return MemoryPlanningPass(**facts)


def skipping(*, inputs: bool, outputs: bool) -> Any:
    from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig

    return PropagateDeviceConfig(
        skip_h2d_for_method_inputs=inputs, skip_d2h_for_method_outputs=outputs
    )


@kept
def device_sum() -> Files:
    return export(Sum(), pair(), partitioner=[device_partitioner()])


@kept
def device_scaled() -> Files:
    return export(Scaled(), pair(), partitioner=[device_partitioner()])


@kept
def host_sum() -> Files:
    return export(Sum(), pair())


@kept
def host_and_device() -> Files:
    """``forward`` on the host, ``forward2`` on cuda:0, ``forward3`` on cuda:1."""
    return export(
        {"forward": HostWork(), "forward2": Scaled(), "forward3": Scaled()},
        {"forward": pair()[:1], "forward2": pair(), "forward3": pair()},
        partitioner={
            "forward2": [device_partitioner()],
            "forward3": [device_partitioner("cuda:1")],
        },
    )


@kept
def tags_without_plan() -> Files:
    """Tensors tagged for cuda:0 in buffers that have no tag: what older exporters write."""
    return export(
        Sum(), pair(), partitioner=[device_partitioner()], enable_non_cpu_memory_planning=False
    )


@kept
def resident_unplanned() -> Files:
    """The caller hands over device tensors and gets device tensors, with memory of their own."""
    return export(
        Sum(),
        pair(),
        partitioner=[device_partitioner()],
        propagate_device_config=skipping(inputs=True, outputs=True),
        memory_planning_pass=planning(alloc_graph_input=False, alloc_graph_output=False),
    )


@kept
def resident_planned() -> Files:
    """No copies at the method's border, though its inputs and outputs are in the device's plan."""
    return export(
        Sum(),
        pair(),
        partitioner=[device_partitioner()],
        propagate_device_config=skipping(inputs=True, outputs=True),
    )


@kept
def resident_input_only() -> Files:
    return export(
        Sum(),
        pair(),
        partitioner=[device_partitioner()],
        propagate_device_config=skipping(inputs=True, outputs=False),
        memory_planning_pass=planning(alloc_graph_input=False),
    )


@kept
def contradicting_tags() -> Files:
    """A tensor that says it is on the host, in a buffer that is planned on cuda:0."""

    def untag(program: Any) -> None:
        for value in program.execution_plan[0].values:
            info = getattr(value.val, "extra_tensor_info", None)
            if info is not None:
                info.device_type = type(info.device_type)(0)

    return edited(export(Sum(), pair(), partitioner=[device_partitioner()]), untag)


class Small(nn.Module):
    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return a * 2


class BigHostPart(nn.Module):
    """Delegated sum whose host part needs far more host memory than ``Small``."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a + b).repeat(256).cumsum(0)[-4:]


@kept
def small_host_big_device() -> Files:
    """Two host methods of different size, and a device method with the largest host buffer."""
    return export(
        {"small": Small(), "large": HostWork(), "device": BigHostPart()},
        {"small": pair()[:1], "large": pair()[:1], "device": pair()},
        partitioner={"device": [device_partitioner()]},
    )


class TwoSums(nn.Module):
    """Two delegated sums that leave the device side by side."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a + b, (a + b) + b


@kept
def device_two_outputs() -> Files:
    return export(TwoSums(), pair(), partitioner=[device_partitioner()])
