"""Backend ids to backends.

Backends of this package are imported when a program first names them; other packages add theirs
with an entry point of the group ``pteron.backends``, named by the id. One that fails is logged once
and is not there: a program that needs it is told why.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pteron.backends.installed_executorch import installed_executorch
from pteron.backends.interface import Backend
from pteron.errors import BackendMissingError, InvalidTypeError
from pteron.plugins import (
    FAILURES,
    BrokenPlugin,
    is_missing,
    package_of,
    report_broken,
    summary,
)

logger = logging.getLogger("pteron")


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """Where the two faces of a backend of this package are, as ``module:class``."""

    backend: str
    """What runs delegates."""
    reader: str
    """What reads their blobs, without torch."""


BUILT_IN: dict[str, BuiltIn] = {
    "CudaBackend": BuiltIn(
        "pteron.backends.cuda:CudaBackend", "pteron.backends.cuda.reader:CudaReader"
    ),
    "XnnpackBackend": BuiltIn(
        "pteron.backends.xnnpack:XnnpackBackend", "pteron.backends.xnnpack.reader:XnnpackReader"
    ),
}
"""The backends of this package, by id."""

BRIDGE = "executorch"
"""The name under which a caller asks for executorch's own runtime to run a delegate."""

_broken: dict[EntryPoint, BrokenPlugin] = {}
"""Entry points that failed; they are not tried again in this process."""


class BackendRegistry:
    """Backends by id. A registry may have a ``parent``: what it lacks is looked up there."""

    def __init__(self, parent: BackendRegistry | None = None) -> None:
        self._parent = parent
        self._backends: dict[str, Backend] = {}
        self._unanswering: set[str] = set()
        self._lock = threading.RLock()

    def register(self, backend: Backend, *, backend_id: str | None = None) -> None:
        """Add a backend under its id, or put it in place of the one that was there."""
        if not isinstance(backend, Backend):
            raise InvalidTypeError(
                "a backend derives from pteron.backends.interface.Backend, got "
                f"{type(backend).__name__}"
            )
        with self._lock:
            self._backends[backend_id or backend.id] = backend

    def unregister(self, backend_id: str) -> None:
        """Remove a backend that was registered here; an unknown id is ignored."""
        with self._lock:
            self._backends.pop(backend_id, None)

    def find(self, backend_id: str) -> Backend | None:
        """Return the backend with an id, importing it if need be; None if there is none."""
        with self._lock:
            backend = self._backends.get(backend_id)
            if backend is None and self._parent is not None:
                return self._parent.find(backend_id)
            if backend is None:
                backend = _load(backend_id)
                if backend is not None:
                    self._backends[backend_id] = backend
            return backend

    def require(self, backend_id: str, what: str) -> Backend:
        """Return the backend with an id, or raise BackendMissingError that begins with ``what``."""
        backend = self.find(backend_id)
        if backend is None:
            broken = [plugin for plugin in _broken.values() if plugin.name == backend_id]
            if broken:
                raise BackendMissingError(
                    f"{what} needs backend {backend_id!r}, which is not there: "
                    f"{'; '.join(map(str, broken))}",
                    hint=_broken_hint(backend_id),
                ) from broken[0].error
            raise BackendMissingError(
                f"{what} needs backend {backend_id!r}, which is not registered; there are: "
                f"{', '.join(self.registered_backend_names)}",
                hint=_missing_hint(),
            )
        return backend

    def is_available(self, backend_id: str) -> bool:
        """Whether a backend is there and this machine has what it needs."""
        backend = self.find(backend_id)
        if backend is None:
            return False
        try:
            return bool(backend.is_available)
        except FAILURES as error:
            if backend_id not in self._unanswering:
                self._unanswering.add(backend_id)
                logger.warning(
                    "backend %r cannot say whether it is available: %s", backend_id, summary(error)
                )
            return False

    @property
    def registered_backend_names(self) -> list[str]:
        """The ids of all backends, sorted."""
        names = set(self._backends)
        if self._parent is not None:
            names |= set(self._parent.registered_backend_names)
        else:
            names |= set(BUILT_IN)
            brought = {e.name for e in entry_points(group="pteron.backends")}
            names |= {name for name in brought - names if self.find(name) is not None}
        return sorted(names)

    def overrides(self, backends: Mapping[str, Any]) -> BackendRegistry:
        """Return a registry with these on top: backends, or ``"executorch"`` for the bridge.

        A delegate that is bridged by name runs in this process: nothing is copied on the way in,
        and a blob that crashes executorch ends the process. One that is bridged because nobody else
        knows it runs in a process of its own.
        """
        if not isinstance(backends, Mapping):
            raise InvalidTypeError(
                f"backends is a mapping from ids to backends, got {type(backends).__name__}",
                hint='write backends={"XnnpackBackend": ...}',
            )
        child = BackendRegistry(parent=self)
        for backend_id, backend in backends.items():
            if not isinstance(backend_id, str):
                raise InvalidTypeError(
                    f"the keys of backends are ids of backends, got {backend_id!r}"
                )
            if isinstance(backend, str) and backend == BRIDGE:
                backend = _bridge(backend_id, own_process=False)
                if backend is None:
                    raise BackendMissingError(
                        f"backends={{{backend_id!r}: 'executorch'}} needs the executorch package "
                        "with that backend",
                        hint=_missing_hint(),
                    )
            elif not isinstance(backend, Backend):
                found = backend if isinstance(backend, (str, type)) else type(backend).__name__
                raise InvalidTypeError(
                    f"backends[{backend_id!r}] is {found!r}; allowed are an instance of a class "
                    "that derives from pteron.backends.interface.Backend, and 'executorch'"
                )
            child.register(backend, backend_id=backend_id)
        return child


def _load(backend_id: str) -> Backend | None:
    brought = _entry_points_of(backend_id)
    for entry_point in brought:
        backend = _from_package(entry_point)
        if backend is not None:
            return backend
    built_in = BUILT_IN.get(backend_id)
    if built_in is not None:
        module, _, name = built_in.backend.partition(":")
        return _instance(getattr(import_module(module), name))
    # Where a package was installed to run these delegates, executorch is not what was asked for.
    return None if brought else _bridge(backend_id, own_process=True)


def _entry_points_of(backend_id: str) -> list[EntryPoint]:
    return [e for e in entry_points(group="pteron.backends") if e.name == backend_id]


def _from_package(entry_point: EntryPoint) -> Backend | None:
    """Return what an entry point brings; None if it fails, which is logged the first time."""
    if entry_point in _broken:
        return None
    try:
        return _instance(entry_point.load())
    except FAILURES as error:
        _broken[entry_point] = report_broken(entry_point, error)
        return None


def _instance(found: Any) -> Backend:
    backend = found() if isinstance(found, type) else found
    if not isinstance(backend, Backend):
        raise InvalidTypeError(f"{found!r} is not a pteron.backends.interface.Backend")
    return backend


def _bridge(backend_id: str, *, own_process: bool) -> Backend | None:
    """Return executorch's own runtime as a backend, if it is installed and has the id."""
    if installed_executorch() is None:
        return None
    from pteron.backends.executorch_bridge import ExecutorchBridge

    bridge = ExecutorchBridge(backend_id, own_process=own_process)
    # Whether the machine has what a backend needs is asked in its own process, when it is loaded.
    return bridge if (bridge.is_there if own_process else bridge.is_available) else None


def runtime_of(backend_id: str) -> str:
    """Say what would run a delegate, as far as can be told without importing what runs it."""
    without = []
    for entry_point in _entry_points_of(backend_id):
        package = package_of(entry_point) or entry_point.value
        if entry_point not in _broken and not is_missing(entry_point):
            return f"{package} if it loads"
        without.append(f"; {package} does not load")
    if backend_id in BUILT_IN:
        return "pteron" + "".join(without)
    if without:
        return "nothing here" + "".join(without)
    found = installed_executorch()
    if found is None:
        return "nothing here; pip install executorch"
    return f"executorch {found} if it has it"


def _missing_hint() -> str:
    own = "register a backend of your own with Runtime.get().backend_registry.register"
    found = installed_executorch()
    if found is None:
        return (
            "install executorch (pip install executorch): delegates that pteron does not know run "
            f"in it, in a process of their own; or {own}"
        )
    return f"executorch {found}, which is installed, cannot run it here either; {own}"


def _broken_hint(backend_id: str) -> str:
    hint = "repair or uninstall that package"
    if installed_executorch() is None:
        return hint
    return f"{hint}, or ask for executorch with backends={{{backend_id!r}: 'executorch'}}"


default_backends = BackendRegistry()
"""The process-wide registry."""
