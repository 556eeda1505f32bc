"""The devices that a program can name."""

from __future__ import annotations

from pteron.errors import InvalidArgumentError


def canonical_tag(tag: str) -> str:
    """Return a tag in one spelling: ``cpu``, ``cuda`` (every index of it) or ``cuda:1``."""
    kind, _, index = str(tag).partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise InvalidArgumentError(
            f"device_map: {tag!r} is not a tag that a program can have "
            "(cpu, cuda, cuda:0, cuda:1, ...)",
        )
    return kind if kind == "cpu" or not index else f"{kind}:{int(index)}"
