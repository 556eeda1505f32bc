"""Order on the device between turns that come on different streams.

A turn (:mod:`pteron.memory.turns`) orders the host. What it starts on a device may still be running
when the next turn begins on another stream. The rule: a turn that uses device memory on a stream
waits, on the device, for all that the turn before it started on its stream. Nobody else makes
streams wait for each other. Turns on one stream are ordered by the stream itself, and pay for one
comparison.

Inside a capture of the caller's own nothing waits: a graph cannot hold it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pteron.memory.turns import Turn


class DeviceOrder:
    """Brings the turns of one memory in order on its CUDA devices."""

    def __init__(self, turn: Turn, devices: Sequence[torch.device]) -> None:
        self._turn = turn
        found = dict.fromkeys(device for device in devices if device.type == "cuda")
        self._devices = tuple(found) if found and torch.cuda.is_available() else ()

    def __bool__(self) -> bool:
        """Whether there is a device whose work has to be ordered."""
        return bool(self._devices)

    def begin(self) -> None:
        """Let the current streams wait for what the last turn started. Called with the turn."""
        streams = self._turn.streams
        for device in self._devices:
            current = torch.cuda.current_stream(device)
            last = streams.get(device)
            if last is not None and last != current:
                if torch.cuda.is_current_stream_capturing():
                    continue
                current.wait_stream(last)
            streams[device] = current

    def finish_load(self) -> None:
        """Wait until what a load started is done, so that any stream may come next."""
        for device in self._devices:
            if not torch.cuda.is_current_stream_capturing():
                torch.cuda.current_stream(device).synchronize()
