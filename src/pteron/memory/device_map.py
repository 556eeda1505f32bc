"""A program's device tags to torch devices."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pteron.errors import InvalidArgumentError
from pteron.format.schema import Device
from pteron.program.device_tag import canonical_tag

DeviceMapping = Mapping[str, str | torch.device]


class DeviceMap:
    """Moves tags: ``{"cuda:0": "cuda:1"}``, ``{"cpu": "cuda"}``, ``{"cuda": "cpu"}``.

    A key names a tag with its index, or every index of a kind (``cuda``); the exact one wins. A
    tag that no key names stays what it is.
    """

    def __init__(self, mapping: DeviceMapping | None = None) -> None:
        self._targets: dict[str, torch.device] = {}
        for tag, target in (mapping or {}).items():
            self._targets[canonical_tag(tag)] = _concrete(target)

    def __call__(self, tag: Device) -> torch.device:
        """Return the device on which memory with this tag lives."""
        kind = tag.type.name.lower()
        target = self._targets.get(str(tag)) or self._targets.get(kind)
        return target if target is not None else torch.device(str(tag))

    def __repr__(self) -> str:
        return f"DeviceMap({ {tag: str(device) for tag, device in self._targets.items()} })"


def _concrete(target: str | torch.device) -> torch.device:
    """Return a device with an index, so that two names of one device are equal."""
    try:
        device = torch.device(target)
    except (RuntimeError, TypeError) as error:
        raise InvalidArgumentError(
            f"device_map: {target!r} is not a device that torch knows"
        ) from error
    if device.type == "cpu":
        return torch.device("cpu")
    return device if device.index is not None else torch.device(device.type, 0)
