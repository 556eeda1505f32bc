"""A method's instructions as bound calls, in blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch

from pteron.backends.interface import DelegateHandle
from pteron.errors import (
    DelegateInvalidHandleError,
    DelegateMemoryAllocationFailedError,
    InvalidArgumentError,
    InvalidProgramError,
    InvalidTypeError,
    PteronError,
)
from pteron.executor.in_flight import Waits, copied_device, find_waits
from pteron.executor.interpreter import END, Block, Call
from pteron.executor.nodes import Node, add_place
from pteron.executor.passes import LeftOut, Lowering
from pteron.format.schema import (
    DelegateCall,
    FreeCall,
    JumpFalseCall,
    KernelCall,
    MoveCall,
    Tensor,
    TensorShapeDynamism,
)
from pteron.kernels.registry import Style
from pteron.memory.device_allocator import find_device_allocator
from pteron.memory.hierarchical_allocator import dense_strides
from pteron.plugins import summary
from pteron.program.effects import operator_name
from pteron.program.primitives import D2H


@dataclass(frozen=True, slots=True)
class Step:
    """One bound call and what the executor has to know of it."""

    instruction: int
    call: Call
    device: torch.device
    """Where it computes; the host for copies between host and device."""


@dataclass(frozen=True, slots=True)
class BoundPlan:
    """A method's steps in program order, and its blocks."""

    steps: tuple[Step, ...]
    blocks: tuple[Block, ...]
    left_out: Mapping[int, LeftOut]
    """The instructions that do not run, and why."""
    file_memory: frozenset[int] = frozenset()
    """Values that passes have made views of constants."""
    dense_inputs: frozenset[int] = frozenset()
    """Inputs that some reader wants dense in the dim order of the file."""
    finish: Call | None = None
    """Waits, when the method has run, for copies to a device that may still read its memory."""


def delegate_failure(error: Exception, owner: object, name: str) -> PteronError:
    """Return the error for what a backend's own method raised, which names the method."""
    text = f"{method_name(owner, name)} raised {summary(error)}"
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return DelegateMemoryAllocationFailedError(text)
    return DelegateInvalidHandleError(text)


def method_name(owner: object, name: str) -> str:
    """Return the full name of an object's method."""
    return f"{type(owner).__module__}.{type(owner).__qualname__}.{name}"


class PlanBinder:
    """Binds the instructions of one method instance."""

    def __init__(self, lowering: Lowering, delegates: Mapping[int, DelegateHandle]) -> None:
        """Take the instructions that passes have left, and the delegates by number."""
        self._lowering = lowering
        self._table = lowering.table
        self._plan = lowering.plan
        self._delegates = delegates
        self._kernels = lowering.binder

    def bind(self) -> BoundPlan:
        """Return the bound plan."""
        steps: list[Step] = []
        for node in self._lowering.nodes:
            if isinstance(node.instruction, JumpFalseCall):
                continue
            try:
                step = self._step(node)
            except PteronError as error:
                add_place(error, self._plan, node.number)
                raise
            if step is not None:
                steps.append(step)
        waits = find_waits(self._table, self._lowering.nodes)
        steps = [_waiting(step, waits) for step in steps]
        finish = _waiter(waits.at_end) if waits.at_end else None
        blocks = tuple(self._blocks(steps))
        return BoundPlan(
            tuple(steps),
            blocks,
            self._lowering.left_out,
            frozenset(self._lowering.file_memory),
            frozenset(i for i in self._plan.inputs if self._lowering.is_wanted_dense(i)),
            finish,
        )

    # -- instructions ----------------------------------------------------------------------------

    def _step(self, node: Node) -> Step | None:
        host = torch.device("cpu")
        number, instruction = node.number, node.instruction
        if isinstance(instruction, KernelCall):
            kernel = node.kernel
            assert kernel is not None
            if kernel.style is Style.DEVICE_COPY:
                return Step(number, self._device_copy(node), host)
            call = self._kernels.bind(kernel, instruction.args)
            return Step(number, call, self._device_of(instruction.args))
        if isinstance(instruction, DelegateCall):
            handle = self._delegates[instruction.delegate_index]
            call = self._delegate_call(handle, instruction.args)
            return Step(number, call, self._device_of(instruction.args))
        if isinstance(instruction, MoveCall):
            return Step(number, self._move(instruction), self._device_of([instruction.move_to]))
        if isinstance(instruction, FreeCall):
            free = self._free(instruction.value_index)
            return None if free is None else Step(number, free, host)
        raise InvalidProgramError(f"instruction {number} is of no known kind")

    def _delegate_call(self, handle: DelegateHandle, args: Sequence[int]) -> Call:
        """Return a delegate's call on its values. What it raises names the delegate's class."""
        try:
            call: Call | None = handle.bind([self._table.values[index] for index in args])
        except PteronError:
            raise
        except Exception as error:
            raise delegate_failure(error, handle, "bind") from error
        if not callable(call):
            raise InvalidTypeError(
                f"{method_name(handle, 'bind')} has to return a callable, got {type(call).__name__}"
            )
        return call

    def _device_of(self, args: Sequence[int]) -> torch.device:
        """Return the accelerator among the values' places, or the host."""
        for index in args:
            items = getattr(self._plan.values[index], "items", (index,))
            for item in items:
                place = self._table.devices[item] if isinstance(item, int) and item >= 0 else None
                if place is not None and place.type != "cpu":
                    return place
        return torch.device("cpu")

    def _device_copy(self, node: Node) -> Call:
        args = node.args
        source, destination = self._table.values[args[0]], self._table.values[args[-1]]
        if not isinstance(source, torch.Tensor) or not isinstance(destination, torch.Tensor):
            raise InvalidProgramError(
                f"{operator_name(self._plan, node.instruction)} copies tensors"  # type: ignore[arg-type]
            )
        places = (self._table.devices[args[0]], self._table.devices[args[-1]])
        accelerator = next((p for p in places if p is not None and p.type != "cpu"), None)
        dynamic = not self._table.is_static(args[-1])
        order = self._plan.values[args[-1]].dim_order  # type: ignore[union-attr]
        copy = self._copier(places, accelerator)
        wait = self._waiter(node, places, accelerator)

        def copy_between() -> None:
            if source.shape != destination.shape:
                fit(destination, source, order, dynamic)
            copy(destination, source)
            if wait is not None:
                wait(accelerator)

        return copy_between

    def _copier(
        self, places: tuple[Any, Any], accelerator: torch.device | None
    ) -> Callable[[torch.Tensor, torch.Tensor], object]:
        """Return the copy for the real places of both sides (DESIGN, P9)."""
        allocator = find_device_allocator(accelerator.type) if accelerator else None
        source, destination = places
        if allocator is None or source == destination:
            return torch.Tensor.copy_
        if destination.type == "cpu":
            return allocator.copy_device_to_host
        if source.type == "cpu":
            return allocator.copy_host_to_device
        return torch.Tensor.copy_

    def _waiter(
        self, node: Node, places: tuple[Any, Any], accelerator: torch.device | None
    ) -> Callable[[Any], None] | None:
        """Return the wait that follows the last of several copies to the host, if this is it."""
        if accelerator is None or places[1].type != "cpu" or places[0] == places[1]:
            return None
        following = self._next.get(node.number)
        if following is not None and copied_device(self._table, following, D2H) == accelerator:
            return None
        allocator = find_device_allocator(accelerator.type)
        return allocator.synchronize if allocator is not None else None

    @cached_property
    def _next(self) -> dict[int, Node]:
        """The instruction that runs right after each one, where the next one of the file does."""
        nodes = self._lowering.nodes
        leaders = {
            node.instruction.destination_instruction
            for node in nodes
            if isinstance(node.instruction, JumpFalseCall)
        }
        return {
            node.number: after
            for node, after in pairwise(nodes)
            if not any(node.number < leader <= after.number for leader in leaders)
        }

    def _move(self, move: MoveCall) -> Call:
        values, source, target = self._table.values, move.move_from, move.move_to
        if self._table.is_tensor(source) != self._table.is_tensor(target):
            raise InvalidProgramError(f"a move from value {source} to {target} changes its kind")
        if not self._table.is_tensor(source):

            def move_scalar() -> None:
                values[target] = values[source]

            return move_scalar
        from_tensor, to_tensor = values[source], values[target]
        order = self._plan.values[target].dim_order  # type: ignore[union-attr]

        def move_tensor() -> None:
            if from_tensor.shape != to_tensor.shape:
                fit(to_tensor, from_tensor, order, dynamic=True)
            to_tensor.copy_(from_tensor)

        if target not in self._table.moved or target not in self._table.memory_plan.graph.shadowed:
            return move_tensor
        place = self._lowering.planned_slot(target)

        def move_to_both() -> None:
            move_tensor()
            if place.shape != from_tensor.shape:
                fit(place, from_tensor, order, dynamic=True)
            place.copy_(from_tensor)

        return move_to_both

    def _free(self, index: int) -> Call | None:
        """Return a call that drops the memory of a tensor that is not planned; None if none is."""
        value = self._plan.values[index]
        if not isinstance(value, Tensor) or self._table.is_planned(index):
            return None
        if value.shape_dynamism is not TensorShapeDynamism.DYNAMIC_UNBOUND:
            return None
        tensor: torch.Tensor = self._table.values[index]
        return lambda: tensor.set_()  # type: ignore[call-overload]

    # -- blocks ----------------------------------------------------------------------------------

    def _blocks(self, steps: Sequence[Step]) -> list[Block]:
        instructions = self._plan.instructions
        count = len(instructions)
        if count == 0:
            return []
        jumps = {n: i for n, i in enumerate(instructions) if isinstance(i, JumpFalseCall)}
        leaders = {0}
        for number, jump in jumps.items():
            leaders.update((number + 1, jump.destination_instruction))
        starts = sorted(leader for leader in leaders if leader < count)
        block_at = {start: n for n, start in enumerate(starts)}
        by_number = {step.instruction: step for step in steps}
        blocks = []
        for start, end in zip(starts, [*starts[1:], count], strict=True):
            inside = [by_number[n] for n in range(start, end) if n in by_number]
            ends_with = jumps.get(end - 1)
            blocks.append(
                Block(
                    tuple(step.call for step in inside),
                    tuple(step.instruction for step in inside)
                    + ((end - 1,) if ends_with is not None else ()),
                    None if ends_with is None else self._condition(ends_with.cond_value_index),
                    END
                    if ends_with is None
                    else block_at.get(ends_with.destination_instruction, END),
                    block_at.get(end, END),
                )
            )
        return blocks

    def _condition(self, index: int) -> Callable[[], bool]:
        values = self._table.values
        if self._table.is_tensor(index):
            tensor: torch.Tensor = values[index]
            return lambda: bool(tensor.all())

        def scalar() -> bool:
            value = values[index]
            if not isinstance(value, bool):
                raise InvalidArgumentError(f"a jump needs a bool, got {value!r}")
            return value

        return scalar


def _waiting(step: Step, waits: Waits) -> Step:
    """Return a step that waits before and after its call, where it has to."""
    number = step.instruction
    calls = [step.call]
    if number in waits.before:
        calls.insert(0, _waiter(waits.before[number]))
    if number in waits.after:
        calls.append(_waiter(waits.after[number]))
    if len(calls) == 1:
        return step

    def call() -> None:
        for one in calls:
            one()

    return replace(step, call=call)


def _waiter(devices: Sequence[torch.device]) -> Call:
    """Return a call that waits for the copies to these devices."""
    found = [(find_device_allocator(device.type), device) for device in devices]

    def wait() -> None:
        for allocator, device in found:
            assert allocator is not None
            allocator.synchronize(device)

    return wait


def fit(
    destination: torch.Tensor, source: torch.Tensor, dim_order: Sequence[int], dynamic: bool
) -> None:
    """Give a destination the shape of its source, within its bytes."""
    if not dynamic:
        raise InvalidArgumentError(
            f"a tensor of shape {tuple(source.shape)} does not fit into one that is static "
            f"{tuple(destination.shape)}"
        )
    destination.resize_(source.shape)
    destination.as_strided_(source.shape, dense_strides(source.shape, dim_order))
