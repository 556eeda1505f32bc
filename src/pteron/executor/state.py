"""A method's mutable buffers, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from pteron.errors import InvalidArgumentError, InvalidTypeError, NotFoundError
from pteron.executor.evalue import StateSlot
from pteron.executor.hints import describe
from pteron.executor.inputs import as_tensor
from pteron.executor.isolation import isolated
from pteron.program.signature import nearest

if TYPE_CHECKING:
    from pteron.executor.method import Method


class State(Mapping[str, torch.Tensor]):
    """Reads and writes a method's mutable buffers. Views the method.

    A buffer is known by its fully qualified name if the file has it
    (``ExecutorchBackendConfig(emit_mutable_buffer_names=True)``), else as ``value_N``. Reading
    gives a copy; assigning copies into place.
    """

    def __init__(self, method: Method) -> None:
        self._method = method

    def _slots(self) -> dict[str, StateSlot]:
        self._method._check_open()
        self._method._order.begin()
        slots = self._method._table.state
        return {slot.name or f"value_{index}": slot for index, slot in slots.items()}

    def _slot(self, name: str) -> StateSlot:
        slots = self._slots()
        if name not in slots:
            known = ", ".join(slots) or "none"
            near = nearest(str(name), slots)
            meant = f" (did you mean {near}?)" if near else ""
            raise NotFoundError(
                f"method {self._method.name!r} has no state {name!r}{meant}; it has: {known}"
            )
        return slots[name]

    def __getitem__(self, name: str) -> torch.Tensor:
        with self._method._memory.lock, isolated():
            return self._slot(name).tensor.clone()

    def __setitem__(self, name: str, value: Any) -> None:
        with self._method._memory.lock, isolated(), torch.inference_mode():
            slot, given = self._checked(name, value)
            slot.copy_(given)

    def _checked(self, name: str, value: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the place of some state and a tensor that fits it."""
        slot = self._slot(name).tensor
        what = f"method {self._method.name!r}: state {name!r}"
        given = value if isinstance(value, torch.Tensor) else as_tensor(value, what, describe(slot))
        if given.shape != slot.shape or given.dtype != slot.dtype:
            dtype = str(slot.dtype)
            raise InvalidArgumentError(
                f"{what} takes {describe(slot)}, got {describe(given)}",
                hint=None if given.dtype == slot.dtype else f"convert it to {dtype}",
            )
        return slot, given

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots())

    def __len__(self) -> int:
        return len(self._slots())

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Return copies of all state, to be given to :meth:`restore` later."""
        return {name: self[name] for name in self}

    def restore(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Write back what :meth:`snapshot` returned: all state, or nothing if a value does not fit.

        Raises:
            InvalidArgumentError: Some state is missing.
            NotFoundError: There is no state of a name.

        """
        if not isinstance(saved, Mapping):
            raise InvalidTypeError(
                f"state.restore() takes what state.snapshot() returned, a dict; "
                f"got {type(saved).__name__}"
            )
        with self._method._memory.lock, isolated(), torch.inference_mode():
            missing = [name for name in self if name not in saved]
            pairs = [self._checked(name, value) for name, value in saved.items()]
            if missing:
                raise InvalidArgumentError(
                    f"method {self._method.name!r} also has state {', '.join(missing)}",
                    hint="assign state[name] to change a part of it",
                )
            for slot, given in pairs:
                slot.copy_(given)

    def __repr__(self) -> str:
        if self._method.closed:
            return f"<state of closed method {self._method.name!r}>"
        slots = self._slots().items()
        found = ", ".join(f"{name!r}: {describe(slot.tensor)}" for name, slot in slots)
        return f"<state of method {self._method.name!r}: {{{found}}}>"
