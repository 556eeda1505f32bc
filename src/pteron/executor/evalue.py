"""A plan's values as Python objects that stay the same for the life of a method.

Every tensor value becomes one ``torch.Tensor`` object, to which instructions are bound; its shape
and, for values that are not planned, its memory may change, the object does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from pteron.format.schema import (
    Bool,
    BoolList,
    Double,
    DoubleList,
    EValue,
    ExecutionPlan,
    Int,
    IntList,
    MoveCall,
    Null,
    OptionalTensorList,
    String,
    Tensor,
    TensorList,
    TensorShapeDynamism,
)
from pteron.memory.device_map import DeviceMap
from pteron.memory.hierarchical_allocator import dense_strides, fixed_slot, torch_dtype, typed
from pteron.memory.host_view import flat_tensor
from pteron.memory.program_memory import MethodMemory, ProgramMemory, require_allocator
from pteron.program.memory_plan import MemoryPlan

ConstantBytes = Callable[[Tensor], memoryview]
"""Returns the bytes of a constant, or the initial bytes of a mutable tensor."""


@dataclass(frozen=True, slots=True)
class StateSlot:
    """One mutable buffer: where it is, its name in the file, and its initial bytes (None: zero)."""

    value: int
    name: str | None
    tensor: torch.Tensor
    initial: torch.Tensor | None
    shared: bool

    def reset(self) -> None:
        """Bring the initial value back."""
        if self.initial is None:
            self.tensor.zero_()
        else:
            self.tensor.copy_(self.initial)


@dataclass
class ValueTable:
    """The values of one method instance, by value index."""

    plan: ExecutionPlan
    values: list[Any]
    devices: list[torch.device | None]
    """Where each tensor lives; None for what is no tensor."""
    memory_plan: MemoryPlan
    constants: frozenset[int]
    moved: frozenset[int]
    """Tensors that a move gives their value: they have memory of their own (DESIGN, S4)."""
    scalars_written: frozenset[int]
    """Values that are no tensors and change while the method runs."""
    state: dict[int, StateSlot] = field(default_factory=dict)
    shares_state: bool = False

    def items(self, index: int) -> tuple[int, ...]:
        """Return a value's index, or the indices of its elements if it is a list of values."""
        value = self.plan.values[index]
        if isinstance(value, (IntList, TensorList, OptionalTensorList)):
            return tuple(item for item in value.items if item >= 0)
        return (index,)

    def is_tensor(self, index: int) -> bool:
        """Whether the file says that a value is a tensor."""
        return isinstance(self.plan.values[index], Tensor)

    def is_static(self, index: int) -> bool:
        """Whether a tensor's shape never changes."""
        value = self.plan.values[index]
        return (
            isinstance(value, Tensor)
            and value.shape_dynamism is TensorShapeDynamism.STATIC
            and index not in self.moved
        )

    def is_planned(self, index: int) -> bool:
        """Whether a tensor has a place in the memory plan (and was not moved out of it)."""
        value = self.plan.values[index]
        return (
            isinstance(value, Tensor)
            and value.allocation_info is not None
            and index not in self.moved
        )


class ValueBuilder:
    """Builds the value table of one method instance."""

    def __init__(
        self,
        plan: MemoryPlan,
        memory: MethodMemory,
        program_memory: ProgramMemory,
        constant_bytes: ConstantBytes,
        device_map: DeviceMap,
        shared_constants: dict[Any, torch.Tensor],
        *,
        private: bool,
    ) -> None:
        self._plan = plan
        self._memory = memory
        self._program_memory = program_memory
        self._constant_bytes = constant_bytes
        self._device_map = device_map
        self._shared_constants = shared_constants
        self._private = private
        self._inputs = frozenset(plan.plan.inputs)

    def build(self) -> ValueTable:
        """Return the table; runs under inference mode, so that calls skip autograd's layers."""
        plan = self._plan.plan
        moved = frozenset(
            i.move_to
            for i in plan.instructions
            if isinstance(i, MoveCall)
            and isinstance(plan.values[i.move_to], Tensor)
            and i.move_to not in self._plan.graph.silently_viewed
        )
        state = frozenset(self._plan.state)
        constants = frozenset(
            i
            for i, v in enumerate(plan.values)
            if isinstance(v, Tensor) and v.is_constant and i not in state
        )
        table = ValueTable(
            plan,
            [None] * len(plan.values),
            [None] * len(plan.values),
            self._plan,
            constants,
            moved,
            self._plan.graph.scalars_written
            | frozenset(i for i in plan.inputs if isinstance(plan.values[i], Null)),
        )
        lists: list[tuple[int, EValue]] = []
        for index, value in enumerate(plan.values):
            if isinstance(value, Tensor):
                self._tensor(table, index, value, index in state)
            elif isinstance(value, (IntList, TensorList, OptionalTensorList)):
                lists.append((index, value))
            else:
                table.values[index] = plain_value(value)
        for index, stands_for in self._plan.graph.repeats.items():
            table.values[index] = table.values[stands_for]
            table.devices[index] = table.devices[stands_for]
        for index, value in lists:
            assert isinstance(value, (IntList, TensorList, OptionalTensorList))
            table.values[index] = [table.values[i] if i >= 0 else None for i in value.items]
        return table

    def _tensor(self, table: ValueTable, index: int, value: Tensor, is_state: bool) -> None:
        if index in table.constants:
            device = self._device_map(value.device)
            table.values[index] = self._constant(value, device)
        elif is_state:
            place = value.allocation_info
            device = (
                self._device_map(value.device)
                if place is None
                else self._buffer_device(place.memory_id)
            )
            table.values[index] = self._state(table, index, value, device)
        elif value.allocation_info is None or index in table.moved:
            device = self._device_map(value.device)
            if index in table.moved and value.allocation_info is not None:
                device = self._buffer_device(value.allocation_info.memory_id)
            table.values[index] = self._unplanned(value, device, index in self._inputs)
        else:
            device = self._buffer_device(value.allocation_info.memory_id)
            table.values[index] = self._memory.allocator.slot(self._plan.slots[index], value)
        table.devices[index] = device

    def _buffer_device(self, buffer: int) -> torch.device:
        return self._memory.allocator.arenas[buffer].device

    def _constant(self, value: Tensor, device: torch.device) -> torch.Tensor:
        view = self._constant_bytes(value)
        host = typed(flat_tensor(view, torch.uint8), value)
        if device.type == "cpu":
            return host
        key = (str(device), value)
        placed = self._shared_constants.get(key)
        if placed is None:
            allocator = require_allocator(device, f"method {self._plan.plan.name!r}: a constant")
            arena = allocator.allocate(value.nbytes, device)
            placed = typed(arena, value)
            placed.copy_(host)
            self._shared_constants[key] = placed
        return placed

    def _unplanned(self, value: Tensor, device: torch.device, is_input: bool) -> torch.Tensor:
        """Return a tensor with memory of its own, or an empty one if the caller's takes its place.

        It is no inference tensor: outputs are handed to the caller as they are.
        """
        what = f"method {self._plan.plan.name!r}: an input or output without a place in the plan"
        allocator = require_allocator(device, what)
        with torch.inference_mode(False):
            if is_input or value.shape_dynamism is TensorShapeDynamism.DYNAMIC_UNBOUND:
                return allocator.empty((0,) * len(value.sizes), torch_dtype(value), device)
            tensor = allocator.empty((value.numel,), torch_dtype(value), device)
            return tensor.as_strided(value.sizes, dense_strides(value.sizes, value.dim_order))

    def _state(
        self, table: ValueTable, index: int, value: Tensor, device: torch.device
    ) -> torch.Tensor:
        name, planned = value.fully_qualified_name, self._plan.slots.get(index)
        flat, shared = None, False
        if planned is not None and self._memory.allocator.arenas[planned.buffer].shared:
            shared = True
        elif name and not self._private:
            method = self._plan.plan.name
            flat = self._program_memory.named_state(name, method, value.nbytes, device)
            shared = flat is not None
        if flat is not None:
            tensor = typed(fixed_slot(flat, 0, flat.numel()), value)
        elif planned is not None:
            tensor = self._memory.allocator.slot(planned, value)
        else:
            tensor = self._unplanned(value, device, is_input=False)
        initial = None
        source = self._program_memory.initial_value(self._plan, index, shared=shared)
        if source is not None:
            initial = typed(flat_tensor(self._constant_bytes(source), torch.uint8), source)
        table.state[index] = StateSlot(index, name, tensor, initial, shared)
        table.shares_state = table.shares_state or shared
        return tensor


def plain_value(value: EValue) -> Any:
    """Return the Python value of what is neither a tensor nor a list of values."""
    if isinstance(value, Null):
        return None
    if isinstance(value, Int):
        return value.int_val
    if isinstance(value, Bool):
        return value.bool_val
    if isinstance(value, Double):
        return value.double_val
    if isinstance(value, String):
        return value.string_val
    if isinstance(value, (DoubleList, BoolList)):
        return list(value.items)
    raise AssertionError(value)
