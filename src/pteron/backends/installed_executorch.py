"""Which executorch package is installed, told without importing it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec


def installed_executorch() -> str | None:
    """Return the version of the installed executorch package; None if there is none."""
    if find_spec("executorch") is None:
        return None
    try:
        return version("executorch")
    except PackageNotFoundError:
        return "of unknown version"
