"""Who owns each planned buffer of a program, and why: decided here and nowhere else.

The memory of a program follows it (:mod:`pteron.memory.program_memory`), and so do the locks:
methods that share memory take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from pteron.format.schema import Device, Tensor
from pteron.program.memory_plan import MemoryPlan


class Owner(Enum):
    """What a planned buffer of one method is."""

    SCRATCH = "scratch"
    """Shared by the host methods of a program, which take turns; sized for the largest."""
    OWN = "own"
    """One method instance's alone."""
    STATE = "state"
    """One method instance's alone, and it keeps values from call to call."""
    SHARED_STATE = "shared state"
    """State of several methods: one memory for the program."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """What a buffer is, and the reason in words."""

    owner: Owner
    because: str

    @property
    def is_shared(self) -> bool:
        """Whether methods share the buffer."""
        return self.owner in (Owner.SCRATCH, Owner.SHARED_STATE)


class ProgramOwnership:
    """Decides for the planned buffers and the named state of one program. Views its plans."""

    def __init__(
        self, plans: Mapping[str, MemoryPlan], place: Callable[[Device], str] = str
    ) -> None:
        """Take the plans by method, and where memory with a tag lives (``cpu``, ``cuda:0``)."""
        self._plans = plans
        self._place = place

    def is_host_method(self, name: str) -> bool:
        """Whether every buffer of a method lives on the host."""
        return self._accelerator(name) is None

    def _accelerator(self, name: str) -> str | None:
        places = (self._place(buffer.device) for buffer in self._plans[name].buffers)
        return next((place for place in places if place != "cpu"), None)

    @cached_property
    def shared_buffers(self) -> Mapping[int, tuple[str, ...]]:
        """The buffers that the file dedicates to state of several methods, with these methods.

        Each holds nothing but state in every method that uses it. What a method names in no
        instruction decides nothing.
        """
        users: dict[int, tuple[str, ...]] = {}
        mixed: set[int] = set()
        for name, plan in self._plans.items():
            for index in plan.dedicated_state_buffers:
                users[index] = (*users.get(index, ()), name)
            mixed |= plan.used_buffers - plan.dedicated_state_buffers
        return {b: names for b, names in users.items() if len(names) > 1 and b not in mixed}

    @cached_property
    def shared_names(self) -> Mapping[str, tuple[str, ...]]:
        """The fully qualified names of state that several methods have, with these methods."""
        users: dict[str, tuple[str, ...]] = {}
        for method, plan in self._plans.items():
            for name in dict.fromkeys(state_names(plan).values()):
                users[name] = (*users.get(name, ()), method)
        return {name: methods for name, methods in users.items() if len(methods) > 1}

    def of(self, method: str, buffer: int, *, private: bool = False) -> Ownership:
        """Return what a buffer is; ``private`` for an instance that shares nothing."""
        plan = self._plans[method]
        if private:
            return Ownership(Owner.OWN, "the instance shares nothing with others")
        if buffer in self.shared_buffers:
            methods = ", ".join(self.shared_buffers[buffer])
            return Ownership(Owner.SHARED_STATE, f"it holds nothing but state, in {methods}")
        if buffer in plan.state_buffers:
            count = sum(plan.slots[i].buffer == buffer for i in plan.state if i in plan.slots)
            tensors = "1 state tensor" if count == 1 else f"{count} state tensors"
            return Ownership(Owner.STATE, f"it holds {tensors}")
        accelerator = self._accelerator(method)
        if accelerator is not None:
            return Ownership(Owner.OWN, f"the method has a buffer on {accelerator}")
        sharing = [name for name in self._scratch_users(buffer) if name != method]
        with_whom = f"with {', '.join(sharing)}" if sharing else "with no other method"
        return Ownership(Owner.SCRATCH, f"a host method's scratch, shared {with_whom}")

    def _scratch_users(self, buffer: int) -> Iterator[str]:
        for name, plan in self._plans.items():
            if len(plan.buffers) >= buffer and self.is_host_method(name):
                if buffer not in plan.state_buffers:
                    yield name

    def scratch_bytes(self, buffer: int) -> int:
        """Return how many bytes of a scratch buffer the largest of its users plans."""
        sizes = (self._plans[name].buffer(buffer).nbytes for name in self._scratch_users(buffer))
        return max(sizes, default=0)


def state_names(plan: MemoryPlan) -> dict[int, str]:
    """Return the fully qualified names of a method's state, by value."""
    names: dict[int, str] = {}
    for index in plan.state:
        value = plan.plan.values[index]
        if isinstance(value, Tensor) and value.fully_qualified_name:
            names[index] = value.fully_qualified_name
    return names
