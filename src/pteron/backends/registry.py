"""Backend ids to backends.

Backends of this package are imported when a program first names them; other packages add theirs
with an entry point of the group ``pteron.backends``, named by the id.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from typing import Any

from pteron.backends.interface import Backend
from pteron.errors import BackendMissingError, InvalidTypeError

BUILT_IN: dict[str, str] = {
    "CudaBackend": "pteron.backends.cuda:CudaBackend",
    "XnnpackBackend": "pteron.backends.xnnpack:XnnpackBackend",
}
"""Where the backend with an id is: module and class."""

BRIDGE = "executorch"
"""The name under which a caller asks for executorch's own runtime to run a delegate."""


class BackendRegistry:
    """Backends by id. A registry may have a ``parent``: what it lacks is looked up there."""

    def __init__(self, parent: BackendRegistry | None = None) -> None:
        self._parent = parent
        self._backends: dict[str, Backend] = {}
        self._lock = threading.RLock()

    def register(self, backend: Backend, *, backend_id: str | None = None) -> None:
        """Add a backend under its id, or put it in place of the one that was there."""
        if not isinstance(backend, Backend):
            raise InvalidTypeError(
                f"a backend derives from pteron.backends.Backend, got {type(backend).__name__}"
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
            raise BackendMissingError(
                f"{what} needs backend {backend_id!r}, which is not registered; there are: "
                f"{', '.join(self.registered_backend_names)}",
                hint=_missing_hint(),
            )
        return backend

    def is_available(self, backend_id: str) -> bool:
        """Whether a backend is there and this machine has what it needs."""
        backend = self.find(backend_id)
        return backend is not None and backend.is_available

    @property
    def registered_backend_names(self) -> list[str]:
        """The ids of all backends, sorted."""
        names = set(self._backends)
        if self._parent is not None:
            names |= set(self._parent.registered_backend_names)
        else:
            names |= set(BUILT_IN) | {e.name for e in entry_points(group="pteron.backends")}
        return sorted(names)

    def overrides(self, backends: Mapping[str, Any]) -> BackendRegistry:
        """Return a registry with these on top: backends, or ``"executorch"`` for the bridge.

        A delegate that is bridged by name runs in this process: nothing is copied on the way in,
        and a blob that crashes executorch ends the process. One that is bridged because nobody else
        knows it runs in a process of its own.
        """
        child = BackendRegistry(parent=self)
        for backend_id, backend in backends.items():
            if backend == BRIDGE:
                backend = _bridge(backend_id, own_process=False)
                if backend is None:
                    raise BackendMissingError(
                        f"backends={{{backend_id!r}: 'executorch'}} needs the executorch package "
                        "with that backend",
                        hint=_missing_hint(),
                    )
            child.register(backend, backend_id=backend_id)
        return child


def _load(backend_id: str) -> Backend | None:
    for entry_point in entry_points(group="pteron.backends"):
        if entry_point.name == backend_id:
            return _instance(entry_point.load())
    place = BUILT_IN.get(backend_id)
    if place is not None:
        module, _, name = place.partition(":")
        return _instance(getattr(import_module(module), name))
    return _bridge(backend_id, own_process=True)


def _instance(found: Any) -> Backend:
    backend = found() if isinstance(found, type) else found
    if not isinstance(backend, Backend):
        raise InvalidTypeError(f"{found!r} is no pteron.backends.Backend")
    return backend


def _bridge(backend_id: str, *, own_process: bool) -> Backend | None:
    """Return executorch's own runtime as a backend, if it is installed and has the id."""
    if find_spec("executorch") is None:
        return None
    from pteron.backends.executorch_bridge import ExecutorchBridge

    bridge = ExecutorchBridge(backend_id, own_process=own_process)
    # Whether the machine has what a backend needs is asked in its own process, when it is loaded.
    return bridge if (bridge.is_there if own_process else bridge.is_available) else None


def runtime_of(backend_id: str) -> str:
    """Say what would run a delegate, as far as can be told without importing what runs it."""
    for entry_point in entry_points(group="pteron.backends"):
        if entry_point.name == backend_id:
            package = entry_point.dist
            return entry_point.value if package is None else f"{package.name} {package.version}"
    if backend_id in BUILT_IN:
        return "pteron"
    found = installed_executorch()
    if found is None:
        return "nothing here; pip install executorch"
    return f"executorch {found} if it has it"


def installed_executorch() -> str | None:
    """Return the version of the installed executorch package; None if there is none."""
    if find_spec("executorch") is None:
        return None
    try:
        return version("executorch")
    except PackageNotFoundError:
        return "of unknown version"


def _missing_hint() -> str:
    own = "register a backend of your own with Runtime.get().backend_registry.register"
    found = installed_executorch()
    if found is None:
        return (
            "install executorch (pip install executorch): delegates that pteron does not know run "
            f"in it, in a process of their own; or {own}"
        )
    return f"executorch {found}, which is installed, cannot run it here either; {own}"


default_backends = BackendRegistry()
"""The process-wide registry."""
