"""The public face: Runtime, Program, and the registries behind them.

The calls are those of ``executorch.runtime``; what pteron adds are keyword arguments and methods.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from pteron.errors import InvalidStateError, NotFoundError
from pteron.format.ptd import PtdFile, read_ptd
from pteron.format.pte import PteFile, read_pte
from pteron.format.schema import ExecutionPlan
from pteron.format.source import ByteSource, SourceData, open_source
from pteron.program.data_map import NamedDataMap
from pteron.program.memory_plan import MemoryPlan
from pteron.program.method_meta import MethodMeta
from pteron.program.verify import Verified, verify_program, verify_ptd

if TYPE_CHECKING:
    import torch

    from pteron.backends.interface import Backend
    from pteron.backends.registry import BackendRegistry
    from pteron.executor.load import LoadContext
    from pteron.executor.method import Method
    from pteron.kernels.registry import OperatorRegistry
    from pteron.memory.device_map import DeviceMapping

DataPaths: TypeAlias = "SourceData | Sequence[SourceData] | None"
"""One data file (``.ptd``), several, or none."""


class Verification(enum.Enum):
    """How much of a program is checked before it is used. pteron always checks everything."""

    Minimal = 0
    InternalConsistency = 1

    def __int__(self) -> int:
        return self.value


class Program:
    """Owns an open program: its file, its data files, and the memory that its methods share.

    Opening allocates nothing on any device. A method is loaded once and kept; the file stays
    mapped as long as the program or one of its methods is alive.
    """

    def __init__(
        self,
        source: ByteSource,
        data_sources: Sequence[ByteSource] = (),
        *,
        device_map: DeviceMapping | None = None,
        native_code: str = "allow",
        optimize: bool = True,
        kernels: Mapping[str, Any] | None = None,
        backends: Mapping[str, Backend | str] | None = None,
    ) -> None:
        self._sources = (source, *data_sources)
        self._pte = read_pte(source)
        self._verified = verify_program(self._pte)
        self._ptds = tuple(_read_checked_ptd(data) for data in data_sources)
        self._data_map = NamedDataMap(self._pte, self._ptds)
        self._plans: dict[str, ExecutionPlan] = {
            plan.name: plan for plan in self._pte.program.execution_plan
        }
        self._settings = (device_map, native_code, optimize, kernels, backends)
        self._context: LoadContext | None = None
        self._methods: dict[str, Method] = {}
        self._lock = threading.RLock()
        self._closed = False

    # -- what the file says --------------------------------------------------------------------

    @property
    def pte(self) -> PteFile:
        """The file's tables."""
        return self._pte

    @property
    def data_map(self) -> NamedDataMap:
        """The named data of the program and of its data files."""
        return self._data_map

    @property
    def method_names(self) -> set[str]:
        """The names of the program's methods."""
        return set(self._plans)

    def metadata(self, method_name: str) -> MethodMeta:
        """Return what the file says of a method; it need not be loadable on this machine."""
        return MethodMeta(self._plan(method_name))

    def memory_plan(self, method_name: str) -> MemoryPlan:
        """Return a method's planned buffers and slots."""
        plan = self._plan(method_name)
        return MemoryPlan(plan, self._verified.graphs.get(plan.name))

    def _plan(self, name: str) -> ExecutionPlan:
        if name not in self._plans:
            known = ", ".join(sorted(self._plans)) or "none"
            raise NotFoundError(f"the program has no method {name!r}; it has: {known}")
        return self._plans[name]

    # -- methods ---------------------------------------------------------------------------------

    def load_method(self, name: str = "forward", *, capture: bool = False) -> Method:
        """Return a method, allocating its memory and binding it at the first call.

        ``capture`` records a static method's work on its CUDA device (:meth:`Method.capture`).

        Host methods share scratch memory and take turns; a method with a buffer on an accelerator
        has memory of its own. A failure names the method and disturbs no other.

        Raises:
            NotFoundError: There is no such method, backend, data key or device.
            OperatorMissingError: Names every operator that no kernel implements.
            MemoryAllocationFailedError: With the bytes asked for and free.

        """
        with self._lock:
            method = self._methods.get(name)
            if method is None or method.closed:
                method = self._methods[name] = self._load(name, private=False)
            if capture:
                method.capture()
            return method

    def new_method(self, name: str = "forward", *, capture: bool = False) -> Method:
        """Return a new instance of a method, with scratch, state and delegates of its own."""
        with self._lock:
            method = self._load(name, private=True)
            if capture:
                method.capture()
            return method

    def _load(self, name: str, *, private: bool) -> Method:
        if self._closed:
            raise InvalidStateError("the program is closed")
        plan = self._plan(name)
        from pteron.executor.load import load_method

        return load_method(self._load_context(), plan, MethodMeta(plan), private=private)

    def _load_context(self) -> LoadContext:
        if self._context is None:
            self._context = _make_context(
                self._pte, self._verified, self._data_map, self._plans, *self._settings
            )
        return self._context

    # -- end -------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the program was closed."""
        return self._closed

    def close(self) -> None:
        """Close the program and the methods that it keeps; their memory goes back."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for method in self._methods.values():
                method.close()
            self._methods.clear()
            if self._context is not None:
                self._context.memory.close()
                self._context.constants.clear()
                self._context.shared.clear()
                self._context = None

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<pteron.Program {self._pte.source.name}: {', '.join(sorted(self._plans))}>"


class Runtime:
    """The runtime of this process: opens programs, knows operators and backends."""

    _instance: Runtime | None = None
    _instance_lock = threading.Lock()

    @staticmethod
    def get() -> Runtime:
        """Return the process's runtime."""
        with Runtime._instance_lock:
            if Runtime._instance is None:
                Runtime._instance = Runtime()
            return Runtime._instance

    @property
    def operator_registry(self) -> OperatorRegistry:
        """The operators that have a kernel (importing torch at the first use)."""
        from pteron.kernels import default_registry

        return default_registry()

    @property
    def backend_registry(self) -> BackendRegistry:
        """The backends that run delegates."""
        from pteron.backends.registry import default_backends

        return default_backends

    def load_program(
        self,
        data: SourceData,
        *,
        verification: Verification = Verification.InternalConsistency,
        data_path: DataPaths = None,
        device_map: DeviceMapping | None = None,
        native_code: str = "allow",
        optimize: bool = True,
        kernels: Mapping[str, Callable[..., Any]] | None = None,
        backends: Mapping[str, Backend | str] | None = None,
    ) -> Program:
        """Open a program, check all of it, and allocate nothing.

        Args:
            data: A path, bytes, bytearray, memoryview or binary file object.
            verification: Accepted for executorch's sake; everything is always checked.
            data_path: The ``.ptd`` file or files that hold what the program keeps outside.
            device_map: Where tagged memory goes instead, such as ``{"cpu": "cuda"}``.
            native_code: ``"refuse"`` keeps delegates from running machine code out of the file.
            optimize: False binds every instruction as the file has it: no constant is folded and
                no copy left out. ``PTERON_OPTIMIZE=0`` in the environment does the same.
            kernels: Functions by operator name, for this program only, over the registered ones.
            backends: Backends by id, for this program only; ``"executorch"`` asks for that
                package's runtime in this process, for files that you trust: a damaged delegate may
                end it. Delegates that pteron does not know run there in a process of their own.

        Raises:
            AccessFailedError: The file cannot be read.
            InvalidProgramError: What is wrong with the file, all of it.
            InvalidExternalDataError: The same for a data file.

        """
        del verification
        sources = [open_source(data)]
        try:
            sources += [open_source(path) for path in _data_sources(data_path)]
            return Program(
                sources[0],
                sources[1:],
                device_map=device_map,
                native_code=native_code,
                optimize=optimize,
                kernels=kernels,
                backends=backends,
            )
        except BaseException:
            for source in sources:
                source.close()
            raise


def _data_sources(data_path: DataPaths) -> Sequence[SourceData]:
    if data_path is None:
        return ()
    if isinstance(data_path, (list, tuple)):
        return data_path
    return (data_path,)  # type: ignore[return-value]  # a str is a path, not a sequence of them


def _read_checked_ptd(source: ByteSource) -> PtdFile:
    ptd = read_ptd(source)
    verify_ptd(ptd)
    return ptd


def _make_context(
    pte: PteFile,
    verified: Verified,
    data_map: NamedDataMap,
    plans: Mapping[str, ExecutionPlan],
    device_map: DeviceMapping | None,
    native_code: str,
    optimize: bool,
    kernels: Mapping[str, Any] | None,
    backends: Mapping[str, Backend | str] | None,
) -> LoadContext:
    from pteron.backends.registry import default_backends
    from pteron.executor.load import LoadContext, native_code_allowed, optimize_allowed
    from pteron.executor.nodes import ProgramNodes
    from pteron.kernels import Kernel, default_registry, kernel_from_function
    from pteron.memory.device_map import DeviceMap
    from pteron.memory.program_memory import ProgramMemory, require_allocator

    registry = default_registry()
    if kernels:
        registry = registry.overrides(
            {
                name: kernel if isinstance(kernel, Kernel) else kernel_from_function(name, kernel)
                for name, kernel in kernels.items()
            }
        )
    places = DeviceMap(device_map)
    nodes = ProgramNodes(plans, registry, verified.graphs)

    def allocate(nbytes: int, device: torch.device) -> torch.Tensor:
        return require_allocator(device, "a delegate's memory").allocate(nbytes, device)

    return LoadContext(
        pte=pte,
        verified=verified,
        nodes=nodes,
        data_map=data_map,
        memory=ProgramMemory(nodes.memory_plans, places),
        device_map=places,
        kernels=registry,
        backends=default_backends if backends is None else default_backends.overrides(backends),
        native_code=native_code_allowed(native_code),
        optimize=optimize_allowed(optimize),
        shared={"pteron.allocate": allocate},
    )
