"""The places of a memory plan: buffers, slots in them, and when a slot is in use."""

from __future__ import annotations

from dataclasses import dataclass

from pteron.format.schema import Device


@dataclass(frozen=True, slots=True)
class PlannedBuffer:
    """One memory-planned buffer of one method."""

    index: int
    nbytes: int
    device: Device


@dataclass(frozen=True, slots=True)
class PlannedSlot:
    """The place of one tensor value: bytes ``offset`` to ``offset + nbytes`` of a buffer."""

    value: int
    buffer: int
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        """The first byte behind the slot."""
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The instructions between which a value is in use, both included; -1 is before the first."""

    first: int
    last: int
