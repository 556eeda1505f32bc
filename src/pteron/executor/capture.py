"""A static method's device steps as CUDA graphs.

Planned addresses never move, so what a method does on its device can be recorded once and replayed
with new inputs in the same places. Copies between host and device, and whatever runs on the host,
stay outside: the steps are cut into runs on the device, one graph each.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

import torch

from pteron.errors import NotSupportedError
from pteron.executor.bind import BoundPlan, Step
from pteron.executor.evalue import ValueTable
from pteron.executor.interpreter import END, Block, Call, run
from pteron.format.schema import JumpFalseCall, Tensor
from pteron.memory.cuda_runtime import OwnStream
from pteron.memory.turns import ForkSafeLock
from pteron.program.disasm import format_instruction, format_value

WARM_UP_RUNS = 2
"""Runs before a capture: libraries make their workspaces and choose their kernels in them."""


@dataclass(frozen=True, slots=True)
class Captured:
    """The blocks of a captured method, and how many graphs and instructions they replay."""

    blocks: tuple[Block, ...]
    graphs: int
    instructions: int
    streams: tuple[OwnStream, ...]
    """The streams that the graphs were captured on; they live as long as the graphs."""


def check_capturable(table: ValueTable, bound: BoundPlan) -> None:
    """Raise NotSupportedError that names what keeps a method from being captured."""
    plan = table.plan
    prefix = f"method {plan.name!r} cannot be captured into a CUDA graph"
    for number, instruction in enumerate(plan.instructions):
        if isinstance(instruction, JumpFalseCall):
            raise NotSupportedError(
                f"{prefix}: it decides on a value as it runs, at instruction {number}: "
                f"{format_instruction(plan, number)}"
            )
    for index, value in enumerate(plan.values):
        if isinstance(value, Tensor) and not table.is_static(index):
            raise NotSupportedError(
                f"{prefix}: its shapes are dynamic, the first is {format_value(plan, index)}"
            )
    _refuse_numbers_of_the_host(table, bound, prefix)
    if not any(step.device.type == "cuda" for step in bound.steps):
        raise NotSupportedError(
            f"{prefix}: none of its instructions runs on a CUDA device",
            hint='load the program with device_map={"cpu": "cuda"} to run a portable method there',
        )


def _refuse_numbers_of_the_host(table: ValueTable, bound: BoundPlan, prefix: str) -> None:
    """Refuse steps on a device that read a number which may be another one in the next call."""
    plan = table.plan
    for step in bound.steps:
        if step.device.type != "cuda":
            continue
        for arg in getattr(plan.instructions[step.instruction], "args", ()):
            for index in table.items(arg):
                if not table.is_tensor(index) and index in table.scalars_written:
                    raise NotSupportedError(
                        f"{prefix}: instruction {step.instruction} "
                        f"({format_instruction(plan, step.instruction)}) reads the number "
                        f"{format_value(plan, index)}, which may change from call to call; a graph "
                        "would keep it"
                    )


def capture(table: ValueTable, bound: BoundPlan) -> Captured:
    """Warm a method up, record its device steps, and return blocks that replay them.

    The caller holds the method's lock, has fixed where inputs and outputs are, and puts state
    back afterwards: warming up runs the method, on inputs of zeros (what an earlier call left in
    an input's slot may since have been overwritten, and zero is a valid index). Raises StepFailed
    if an instruction fails in it.
    """
    check_capturable(table, bound)
    device = next(step.device for step in bound.steps if step.device.type == "cuda")
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_RUNS):
            for index in table.plan.inputs:
                if table.is_tensor(index):
                    table.values[index].zero_()
            run(bound.blocks)
    torch.cuda.current_stream(device).wait_stream(stream)
    torch.cuda.synchronize(device)
    calls: list[Call] = []
    numbers: list[int] = []
    streams: list[OwnStream] = []
    captured = 0
    for on_device, group in groupby(bound.steps, key=lambda step: step.device):
        steps = list(group)
        numbers.append(steps[0].instruction)
        if on_device.type == "cuda":
            streams.append(OwnStream(on_device))
            calls.append(_record(table, steps, on_device, streams[-1].stream))
            captured += len(steps)
        else:
            calls += [step.call for step in steps]
            numbers += [step.instruction for step in steps[1:]]
    block = Block(tuple(calls), tuple(numbers), None, END, END)
    return Captured((block,), len(streams), captured, tuple(streams))


def _record(
    table: ValueTable, steps: Sequence[Step], device: torch.device, stream: torch.cuda.Stream
) -> Call:
    """Record steps as one graph; return its replay.

    torch keeps a cuBLAS workspace for each stream, in memory that anybody may give back (a capture
    of torch.compile does). They are dropped before a recording, so that the workspace is made in
    it, in the graph's own memory, and after it, so that no later graph uses that. One recording
    runs at a time in a process. torch does not go back to the stream before if a recording fails.
    """
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    step = steps[0]
    with _recording, torch.cuda.device(device):
        before = torch.cuda.current_stream(device)
        try:
            torch._C._cuda_clearCublasWorkspaces()
            with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
                for step in steps:
                    step.call()
        except RuntimeError as error:
            with suppress(RuntimeError, AttributeError):
                # torch skips this if a recording fails, and then gives no memory back any more.
                torch._C._cuda_endAllocateToPool(device.index or 0, pool)
            raise _refusal(table, step, error) from error
        finally:
            torch.cuda.set_stream(before)
            torch._C._cuda_clearCublasWorkspaces()
    return graph.replay


_recording = ForkSafeLock()


def _refusal(table: ValueTable, step: Step, error: RuntimeError) -> NotSupportedError:
    """Return the error for an instruction that cannot be recorded."""
    text = format_instruction(table.plan, step.instruction)
    return NotSupportedError(
        f"method {table.plan.name!r} cannot be captured into a CUDA graph: instruction "
        f"{step.instruction} ({text}) does what a graph cannot hold: {error}"
    )
