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


@kept
def resident_output_unplanned() -> Files:
    """Inputs are copied to the device from planned host memory; the output stays there."""
    return export(
        Sum(),
        pair(),
        partitioner=[device_partitioner()],
        propagate_device_config=skipping(inputs=False, outputs=True),
        memory_planning_pass=planning(alloc_graph_output=False),
    )


def hand_made(
    program: Any,
    tensors: list[tuple[int, int, int]],
    calls: list[tuple[str, list[int]]],
    inputs: list[int],
    outputs: list[int],
) -> None:
    """Make the program's method one of four-float tensors (buffer, offset, GPU or -1) and calls."""
    from executorch.exir import schema

    (plan,) = program.execution_plan
    plan.values = [schema.EValue(placed(*tensor)) for tensor in tensors]
    plan.values.append(schema.EValue(schema.Int(1)))
    names = list(dict.fromkeys(name for name, _ in calls))
    plan.operators = [schema.Operator(*name.split(".")) for name in names]
    plan.chains[0].instructions = [
        schema.Instruction(schema.KernelCall(names.index(name), args)) for name, args in calls
    ]
    plan.inputs, plan.outputs = inputs, outputs
    plan.container_meta_type = schema.ContainerMetadata("", "")
    gpus = {buffer: gpu for buffer, _, gpu in tensors}
    plan.non_const_buffer_sizes = [0] + [256] * max(gpus)
    plan.non_const_buffer_device = [
        schema.NonConstBufferDevice(buffer, schema.DeviceType.CUDA, gpu)
        for buffer, gpu in gpus.items()
        if gpu >= 0
    ]


def placed(buffer: int, offset: int, gpu: int) -> Any:
    from executorch.exir import schema
    from executorch.exir.scalar_type import ScalarType

    extra = None
    if gpu >= 0:
        extra = schema.ExtraTensorInfo(device_type=schema.DeviceType.CUDA, device_index=gpu)
    return schema.Tensor(
        scalar_type=ScalarType.FLOAT,
        storage_offset=0,
        sizes=[FLOATS],
        dim_order=[0],
        requires_grad=False,
        layout=0,
        data_buffer_idx=0,
        allocation_info=schema.AllocationDetails(buffer, offset, 0),
        shape_dynamism=schema.TensorShapeDynamism.STATIC,
        extra_tensor_info=extra,
    )


TO, BACK, ADD = "et_copy::_h2d_copy.out", "et_copy::_d2h_copy.out", "aten::add.out"


@kept
def overwritten_source() -> Files:
    """A host sum is written where a copy to the device was read from: ``(x, y) -> x, y + y``."""

    def change(program: Any) -> None:
        # 0: x, 1: y, 2: x on the GPU, 3: y + y in the place of x, 4: x again; 5: the number one
        tensors = [(1, 0, -1), (1, 16, -1), (2, 0, 0), (1, 0, -1), (1, 32, -1)]
        calls = [(TO, [0, 2, 2]), (ADD, [1, 1, 5, 3, 3]), (BACK, [2, 4, 4])]
        hand_made(program, tensors, calls, [0, 1], [4, 3])

    return edited(export(Sum(), pair()), change)


@kept
def back_from_two_devices() -> Files:
    """Two copies to the host in a row, of two devices."""

    def change(program: Any) -> None:
        tensors = [(1, 0, -1), (1, 16, -1), (2, 0, 0), (3, 0, 1), (1, 32, -1), (1, 48, -1)]
        calls = [(TO, [0, 2, 2]), (TO, [1, 3, 3]), (BACK, [2, 4, 4]), (BACK, [3, 5, 5])]
        hand_made(program, tensors, calls, [0, 1], [4, 5])

    return edited(export(Sum(), pair()), change)


@kept
def overwritten_source_after_a_jump() -> Files:
    def change(program: Any) -> None:
        from executorch.exir import schema

        tensors = [(1, 0, -1), (1, 16, -1), (2, 0, 0), (1, 0, -1), (1, 32, -1)]
        calls = [(TO, [0, 2, 2]), (ADD, [1, 1, 5, 3, 3]), (BACK, [2, 4, 4])]
        hand_made(program, tensors, calls, [0, 1], [4, 3])
        (plan,) = program.execution_plan
        plan.values.append(schema.EValue(schema.Bool(True)))
        jump = schema.JumpFalseCall(len(plan.values) - 1, 2)
        plan.chains[0].instructions.insert(1, schema.Instruction(jump))

    return edited(export(Sum(), pair()), change)
