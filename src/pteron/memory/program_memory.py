"""The arenas of a program: those that methods share, and those of one method.

What a buffer is, :mod:`pteron.program.ownership` decides. Nothing is allocated before a method that
needs it is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from pteron.errors import (
    DeviceMissingError,
    MemoryAllocationFailedError,
    NotFoundError,
    NotSupportedError,
)
from pteron.format.schema import Tensor
from pteron.memory.device_allocator import DeviceAllocator, find_device_allocator
from pteron.memory.device_map import DeviceMap
from pteron.memory.hierarchical_allocator import Arena, HierarchicalAllocator
from pteron.memory.turns import ForkSafeLock, Turn
from pteron.program.memory_plan import MemoryPlan
from pteron.program.ownership import Owner, Ownership, ProgramOwnership
from pteron.program.slots import PlannedBuffer


@dataclass(frozen=True, slots=True)
class BufferReport:
    """Planned against allocated bytes of one buffer of a loaded method."""

    method: str
    buffer: int
    planned_device: str
    device: str
    planned_bytes: int
    allocated_bytes: int
    shared: bool
    pinned: bool
    owner: str
    """What the buffer is: ``scratch``, ``own``, ``state`` or ``shared state``."""
    because: str
    """Why it is that."""


@dataclass
class MethodMemory:
    """Owns the arenas of one method instance, and borrows those it shares."""

    allocator: HierarchicalAllocator
    lock: Turn
    report: tuple[BufferReport, ...]


class ProgramMemory:
    """Owns the arenas that methods of one program share, and makes those that they do not."""

    def __init__(self, plans: Mapping[str, MemoryPlan], device_map: DeviceMap) -> None:
        self._plans = plans
        self._device_map = device_map
        self.ownership = ProgramOwnership(self._plans, lambda tag: str(device_map(tag)))
        self._scratch: dict[int, Arena] = {}
        self._scratch_lock = Turn()
        self._state_arenas: dict[int, Arena] = {}
        self._load_lock = ForkSafeLock()
        self._initialised: set[object] = set()
        self._named_state: dict[str, tuple[torch.Tensor, torch.device]] = {}

    def plan(self, name: str) -> MemoryPlan:
        """Return the memory plan of a method."""
        return self._plans[name]

    def device(self, buffer: PlannedBuffer) -> torch.device:
        """Return where a buffer lives after the device map."""
        return self._device_map(buffer.device)

    def allocate(self, name: str, *, private: bool) -> MethodMemory:
        """Return the memory of a method, allocating what is not there yet.

        ``private`` gives an instance of its own: no scratch and no state shared with any other.
        A failure disturbs no method that is loaded.
        """
        with self._load_lock:
            return self._allocate(name, private)

    def missing_devices(self, name: str) -> Iterator[NotFoundError]:
        """Yield an error for each buffer of a method whose device this machine does not have."""
        for buffer in self._plans[name].buffers:
            device = self.device(buffer)
            try:
                require_allocator(device, _described(name, buffer, device))
            except NotFoundError as error:
                yield error

    @contextmanager
    def undone_on_failure(self) -> Iterator[None]:
        """Keep nothing that methods share and that was made inside, if that fails."""
        with self._load_lock:
            before = dict(self._scratch), dict(self._state_arenas), dict(self._named_state)
            initialised = set(self._initialised)
            try:
                yield
            except BaseException:
                self._scratch, self._state_arenas, self._named_state = before
                self._initialised = initialised
                raise

    def _allocate(self, name: str, private: bool) -> MethodMemory:
        plan = self._plans[name]
        for error in self.missing_devices(name):  # before anything is made
            raise error
        pinning = self._pinning_allocator(plan)
        arenas: dict[int, Arena] = {}
        owners = {b.index: self.ownership.of(name, b.index, private=private) for b in plan.buffers}
        for buffer in plan.buffers:
            owner = owners[buffer.index].owner
            if owner is Owner.SHARED_STATE:
                arenas[buffer.index] = self._shared_state_arena(name, buffer)
            elif owner is Owner.SCRATCH:
                arenas[buffer.index] = self._scratch_arena(name, buffer)
            else:
                device = self.device(buffer)
                arenas[buffer.index] = self._arena(name, buffer, buffer.nbytes, device, pinning)
        shares = any(ownership.is_shared for ownership in owners.values())
        lock = self._scratch_lock if shares else Turn()
        return MethodMemory(HierarchicalAllocator(arenas), lock, self._report(name, arenas, owners))

    def _report(
        self, name: str, arenas: dict[int, Arena], owners: Mapping[int, Ownership]
    ) -> tuple[BufferReport, ...]:
        return tuple(
            BufferReport(
                name,
                b.index,
                str(b.device),
                str(arenas[b.index].device),
                b.nbytes,
                arenas[b.index].nbytes,
                arenas[b.index].shared,
                arenas[b.index].pinned,
                owners[b.index].owner.value,
                owners[b.index].because,
            )
            for b in self._plans[name].buffers
        )

    def _pinning_allocator(self, plan: MemoryPlan) -> DeviceAllocator | None:
        for buffer in plan.buffers:
            device = self.device(buffer)
            if device.type != "cpu":
                return find_device_allocator(device.type)
        return None

    def _scratch_arena(self, name: str, buffer: PlannedBuffer) -> Arena:
        arena = self._scratch.get(buffer.index)
        if arena is None:
            nbytes = max(self.ownership.scratch_bytes(buffer.index), buffer.nbytes)
            arena = self._arena(name, buffer, nbytes, torch.device("cpu"), None, shared=True)
            self._scratch[buffer.index] = arena
        return arena

    def _shared_state_arena(self, name: str, buffer: PlannedBuffer) -> Arena:
        arena = self._state_arenas.get(buffer.index)
        if arena is None:
            users = {
                other: plan.buffer(buffer.index)
                for other, plan in self._plans.items()
                if buffer.index in plan.dedicated_state_buffers
            }
            devices = {other: self.device(user) for other, user in users.items()}
            if len(set(devices.values())) > 1:
                places = ", ".join(f"{other} on {device}" for other, device in devices.items())
                raise NotSupportedError(
                    f"method {name!r}: buffer {buffer.index} holds state that methods share, but "
                    f"they place it apart: {places}",
                    hint="bring both to one device with device_map",
                )
            nbytes = max(user.nbytes for user in users.values())
            device = self.device(buffer)
            arena = self._arena(name, buffer, nbytes, device, None, shared=True)
            arena.memory.zero_()
            self._state_arenas[buffer.index] = arena
        return arena

    def _arena(
        self,
        method: str,
        buffer: PlannedBuffer,
        nbytes: int,
        device: torch.device,
        pinning: DeviceAllocator | None,
        *,
        shared: bool = False,
    ) -> Arena:
        what = _described(method, buffer, device, nbytes)
        allocator = require_allocator(device, what)
        try:
            if device.type == "cpu" and pinning is not None:
                pinned = pinning.allocate_pinned(nbytes)
                if pinned is not None:
                    return Arena(pinned, device, shared, pinned=True)
            return Arena(allocator.allocate(nbytes, device), device, shared)
        except MemoryAllocationFailedError as error:
            error.add_context(f"{what} was not allocated; methods loaded before are not touched")
            raise

    def initial_value(self, plan: MemoryPlan, index: int, *, shared: bool) -> Tensor | None:
        """Return the value whose bytes a method's state starts with, or None for zero.

        State that is shared may have its initial value in another method that knows it.
        """
        value = plan.plan.values[index]
        assert isinstance(value, Tensor)
        if _has_bytes(value) or not shared:
            return value if _has_bytes(value) else None
        slot, name = plan.slots.get(index), value.fully_qualified_name
        for other in self._plans.values():
            for peer in other.state:
                known = other.plan.values[peer]
                assert isinstance(known, Tensor)
                place = other.slots.get(peer)
                same_name = name is not None and known.fully_qualified_name == name
                same_place = (
                    slot is not None
                    and place is not None
                    and slot.buffer in self.ownership.shared_buffers
                    and (place.buffer, place.offset) == (slot.buffer, slot.offset)
                )
                if _has_bytes(known) and (same_name or same_place):
                    if known.nbytes == value.nbytes:
                        return known
        return None

    def first_use(self, key: object) -> bool:
        """Whether shared state is used for the first time, so that it needs its initial value."""
        with self._load_lock:
            if key in self._initialised:
                return False
            self._initialised.add(key)
            return True

    @property
    def lock(self) -> Turn:
        """The lock that methods hold while they run on memory that they share."""
        return self._scratch_lock

    def named_state(
        self, name: str, method: str, nbytes: int, device: torch.device
    ) -> torch.Tensor | None:
        """Return the program's memory for state that several methods know by one name, if so.

        The memory is flat bytes, zero at first. Methods that disagree about its size or device
        cannot share it, and are refused.
        """
        with self._load_lock:
            if name not in self.ownership.shared_names:
                return None
            if name not in self._named_state:
                allocator = require_allocator(device, f"method {method!r}: state {name!r}")
                self._named_state[name] = allocator.allocate(nbytes, device).zero_(), device
            flat, place = self._named_state[name]
            if flat.numel() != nbytes or place != device:
                raise NotSupportedError(
                    f"method {method!r}: state {name!r} has {nbytes:,} bytes on {device}, in "
                    f"another method {flat.numel():,} bytes on {place}; one name is one memory",
                    hint="bring both to one device with device_map",
                )
            return flat

    def close(self) -> None:
        """Drop the shared arenas; methods that still use them keep them alive."""
        self._scratch.clear()
        self._state_arenas.clear()
        self._named_state.clear()


def require_allocator(device: torch.device, what: str) -> DeviceAllocator:
    """Return the allocator for a device that this machine has, or raise NotFoundError."""
    allocator = find_device_allocator(device.type)
    if allocator is None:
        raise NotFoundError(f"{what}: no device allocator for device type {device.type!r}")
    if not allocator.is_available(device):
        raise DeviceMissingError(f"{what}: this machine has no {device}", device=str(device))
    return allocator


def _described(
    method: str, buffer: PlannedBuffer, device: torch.device, nbytes: int | None = None
) -> str:
    """Return the words that name a buffer in an error; ``nbytes`` if not those of its plan."""
    nbytes = buffer.nbytes if nbytes is None else nbytes
    return f"method {method!r}: planned buffer {buffer.index} ({nbytes:,} bytes on device {device})"


def _has_bytes(state: Tensor) -> bool:
    """Return whether the file gives the value that a piece of state starts with."""
    return state.has_initial_value or state.is_constant
