"""Entry points of installed packages, and what is known of those that do not work.

A package that is broken disturbs nothing that does not need it: what loads an entry point catches
``FAILURES``, reports them here and goes on without it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint
from importlib.util import find_spec

logger = logging.getLogger("pteron")

FAILURES: tuple[type[BaseException], ...] = (Exception, SystemExit)
"""What code of an entry point may raise for any reason of its own; an interrupt is the user's."""


@dataclass(frozen=True, slots=True)
class BrokenPlugin:
    """An entry point that was loaded and failed."""

    name: str
    place: str
    """``entry point 'name' (module:attribute) of package 1.0``."""
    error: BaseException

    def __str__(self) -> str:
        return f"{self.place} failed with {summary(self.error)}"


def report_broken(entry_point: EntryPoint, error: BaseException) -> BrokenPlugin:
    """Log that an entry point failed, and return what to remember of it."""
    package = package_of(entry_point)
    place = f"entry point {entry_point.name!r} ({entry_point.value})"
    broken = BrokenPlugin(entry_point.name, f"{place} of {package}" if package else place, error)
    logger.warning("%s, group %s: what it would add is not there", broken, entry_point.group)
    logger.debug("%s", place, exc_info=error)
    return broken


def package_of(entry_point: EntryPoint) -> str | None:
    """Return name and version of the package that an entry point is from; None if not known."""
    package = entry_point.dist
    if package is None:
        return None
    try:
        facts = (package.name, package.version)
    except FAILURES:  # its metadata is damaged too
        return None
    return " ".join(facts) if all(facts) else None


def is_missing(entry_point: EntryPoint) -> bool:
    """Whether the module that an entry point names is not there, told without importing it."""
    module = entry_point.value.partition(":")[0].partition("[")[0].strip()
    name, *rest = module.split(".")
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # a finder of another package, a module made by hand
        return False
    for part in rest:
        if spec is None:
            return True
        if spec.submodule_search_locations is None:
            return False  # no package, which can still make a module of that name
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return spec is None


def summary(error: BaseException) -> str:
    """Return an error's class and the first line of what it says."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
