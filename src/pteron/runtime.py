"""The public face: Runtime, Program, and the registries behind them.

The calls are those of ``executorch.runtime``; what pteron adds are keyword arguments and methods.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import pteron  # the types that need torch, such as pteron.Method, are imported when asked for
from pteron.errors import (
    DeviceMissingError,
    InvalidArgumentError,
    InvalidStateError,
    InvalidTypeError,
    NotFoundError,
    NotSupportedError,
    missing_package,
)
from pteron.format.ptd import PtdFile, read_ptd
from pteron.format.pte import PteFile, read_pte
from pteron.format.schema import ExecutionPlan, KernelCall
from pteron.format.source import ByteSource, SourceData, open_source
from pteron.memory.turns import ForkSafeLock
from pteron.program.data_map import NamedDataMap
from pteron.program.device_tag import canonical_tag
from pteron.program.html import heading, values_table
from pteron.program.memory_plan import MemoryPlan
from pteron.program.method_meta import MethodMeta
from pteron.program.signature import (
    ValueFacts,
    describe_inputs,
    describe_outputs,
    nearest,
)
from pteron.program.verify import Verified, verify_program, verify_ptd

if TYPE_CHECKING:
    import torch

    from pteron.executor.load import LoadContext

logger = logging.getLogger("pteron")

DataPaths: TypeAlias = SourceData | Sequence[SourceData] | None
"""One data file (``.ptd``), several, or none."""

NativeCode: TypeAlias = Literal["allow", "refuse"]
"""Whether delegates may run machine code that a file carries."""

Copying: TypeAlias = Literal["small", "file"]
"""Which files are read when they are opened: small ones, or any."""


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
        device_map: pteron.DeviceMapping | None = None,
        native_code: NativeCode = "allow",
        optimize: bool = True,
        kernels: Mapping[str, Any] | None = None,
        backends: Mapping[str, pteron.Backend | str] | None = None,
    ) -> None:
        if not isinstance(source, ByteSource):
            raise InvalidTypeError(
                f"a Program is made by load_program, not from {type(source).__name__}",
                hint="call Runtime.get().load_program(path)",
            )
        check_settings(device_map, native_code, kernels, backends, optimize)
        self._sources = (source, *data_sources)
        self._pte = read_pte(source)
        self._verified = verify_program(self._pte)
        self._ptds = tuple(_read_checked_ptd(data) for data in data_sources)
        self._data_map = NamedDataMap(self._pte, self._ptds)
        self._plans: dict[str, ExecutionPlan] = {
            plan.name: plan for plan in self._pte.program.execution_plan
        }
        _check_kernel_names(kernels or {}, self._plans, source.name)
        self._settings = Settings(device_map, native_code, optimize, kernels, backends)
        self._context: LoadContext | None = None
        self._methods: dict[str, pteron.Method] = {}
        self._lock = ForkSafeLock()
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
            raise no_such_method(name, self._plans)
        return self._plans[name]

    def constants(self, method_name: str | None = None) -> pteron.Constants:
        """Return the weights by name; each is copied when it is asked for.

        A constant that has no name in the file is called ``constant_1``, by its number there.

        Args:
            method_name: Return the constants of this method only (default: those of all methods).

        """
        from pteron.executor.weights import Constants

        if method_name is not None:
            self._plan(method_name)
        plans = [plan for name, plan in self._plans.items() if method_name in (None, name)]
        return Constants(self._pte, self._data_map, plans)

    # -- methods ---------------------------------------------------------------------------------

    def load_method(self, name: str = "forward", *, capture: bool = False) -> pteron.Method:
        """Load a method and return it; a second call returns the same one, with the same state.

        Loading allocates the method's memory. :meth:`new_method` returns another instance each
        time. ``capture`` records a static method's work on its CUDA device
        (:meth:`Method.capture`).

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

    def new_method(self, name: str = "forward", *, capture: bool = False) -> pteron.Method:
        """Load a new instance of a method, with scratch, state and delegates of its own."""
        with self._lock:
            method = self._load(name, private=True)
        if capture:
            method.capture()
        return method

    def _load(self, name: str, *, private: bool) -> pteron.Method:
        if self._closed:
            raise InvalidStateError("the program is closed")
        plan = self._plan(name)
        try:
            from pteron.executor.load import load_method
        except ModuleNotFoundError as error:
            raise missing_package(error, "loading a method") from error
        begin = time.perf_counter()
        try:
            method = load_method(self._load_context(), plan, MethodMeta(plan), private=private)
        except DeviceMissingError as error:
            error.hint = error.hint or self._device_hint(error.device)
            raise
        paths = _paths_of(self._sources)
        if paths is not None:
            method._reopen = Reopening(paths, self._settings).method
        if logger.isEnabledFor(logging.INFO):
            taken_ms = 1e3 * (time.perf_counter() - begin)
            text = _load_text(plan, method, self._load_context())
            logger.info("loaded method %r in %.3g ms: %s", name, taken_ms, text)
        return method

    def _device_hint(self, device: str) -> str:
        return device_hint(self._settings.device_map, len(self._plans) - 1, device)

    def _load_context(self) -> LoadContext:
        if self._context is None:
            self._context = _make_context(
                self._pte, self._verified, self._data_map, self._plans, self._settings
            )
            others = len(self._plans) - 1
            self._context.device_hint = partial(device_hint, self._settings.device_map, others)
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
            methods, context = list(self._methods.values()), self._context
            self._methods.clear()
            self._context = None
        for method in methods:  # without the lock: a method waits for its turn
            method.close()
        if context is not None:
            context.memory.close()
            context.constants.clear()
            context.shared.clear()

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
        state = "closed" if self._closed else "open"
        names = ", ".join(sorted(self._plans)) or "none"
        word = "method" if len(self._plans) == 1 else "methods"
        return f"<pteron.Program {self._pte.source.name!r} ({state}), {word}: {names}>"

    def _repr_html_(self) -> str:
        state = "closed" if self._closed else "open"
        parts = [heading(f"pteron program {self._pte.source.name} ({state})")]
        for name, plan in self._plans.items():
            values = (*describe_inputs(plan, ValueFacts), *describe_outputs(plan, ValueFacts))
            parts += [heading(f"method {name}"), values_table(values)]
        return "".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._closed:
            raise InvalidStateError("a closed program cannot be pickled")
        paths = _paths_of(self._sources)
        if paths is None:
            raise NotSupportedError(
                f"{self._pte.source.name} was not opened from a path, so it cannot be pickled",
                hint="open the program again where it is needed",
            )
        return Reopening(paths, self._settings).program, ()


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
    def operator_registry(self) -> pteron.OperatorRegistry:
        """The operators that have a kernel (importing torch at the first use)."""
        from pteron.kernels import default_registry

        return default_registry()

    @property
    def backend_registry(self) -> pteron.BackendRegistry:
        """The backends that run delegates."""
        from pteron.backends.registry import default_backends

        return default_backends

    def load_program(
        self,
        data: SourceData,
        *,
        verification: Verification = Verification.InternalConsistency,
        data_path: DataPaths = None,
        copy: Copying = "small",
        device_map: pteron.DeviceMapping | None = None,
        native_code: NativeCode = "allow",
        optimize: bool = True,
        kernels: Mapping[str, Callable[..., Any]] | None = None,
        backends: Mapping[str, pteron.Backend | str] | None = None,
    ) -> Program:
        """Open a program, check all of it, and allocate nothing.

        Args:
            data: A path, bytes, bytearray, memoryview or binary file object.
            verification: Accepted for executorch's sake; everything is always checked.
            data_path: The ``.ptd`` file or files that hold what the program keeps outside.
            copy: What is read when the file is opened. ``"small"``: files up to 4 MiB; larger ones
                are mapped, and must not be written to while the program is open: a run then raises,
                and a file that is cut short during a run ends the process. ``"file"``: any file,
                which costs its size in memory. Replacing or deleting a file is always safe.
            device_map: Moves what the program puts on one device to another, such as
                ``{"cpu": "cuda"}``.
            native_code: ``"refuse"`` keeps delegates from running machine code in the file.
            optimize: False runs every instruction as the file has it: no constant is computed at
                load and no copy left out. ``PTERON_OPTIMIZE=0`` in the environment does the same.
            kernels: Functions by operator name, for this program only, over the registered ones.
                The program has to call each of these operators.
            backends: Backends by id, for this program only; ``"executorch"`` asks for that
                package's runtime in this process, for files that you trust: a damaged delegate may
                end it. Delegates that pteron does not know run there in a process of their own.

        Raises:
            AccessFailedError: The file cannot be read.
            InvalidProgramError: What is wrong with the file, all of it.
            InvalidExternalDataError: The same for a data file.
            InvalidArgumentError: An argument is not one of those allowed.
            NotFoundError: A file does not exist, or ``kernels`` has a misspelt operator.

        """
        del verification
        check_settings(device_map, native_code, kernels, backends, optimize)
        begin = time.perf_counter()
        if copy not in ("small", "file"):
            raise InvalidArgumentError(f"copy is 'small' or 'file', got {copy!r}")
        whole = copy == "file"
        sources = [open_source(data, copy=whole)]
        try:
            sources += [open_source(path, copy=whole) for path in _data_sources(data_path)]
            program = Program(
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
        logger.info(
            "opened and verified %s in %.3g ms",
            " and ".join(f"{source.name} ({source.size:,} bytes)" for source in sources),
            1e3 * (time.perf_counter() - begin),
        )
        return program

    def __repr__(self) -> str:
        return f"<pteron.Runtime {pteron.__version__}: opens programs with load_program(path)>"


@dataclass(frozen=True, slots=True)
class Settings:
    """What a program was opened with, besides its files."""

    device_map: pteron.DeviceMapping | None
    native_code: NativeCode
    optimize: bool
    kernels: Mapping[str, Any] | None
    backends: Mapping[str, pteron.Backend | str] | None


@dataclass(frozen=True, slots=True)
class Reopening:
    """Opens a program again from its files, in another process or later."""

    files: tuple[tuple[str, int], ...]
    """Absolute path and bytes of each; the program first."""
    settings: Settings

    def program(self) -> Program:
        """Open the program; a file of another size is refused."""
        sources: list[ByteSource] = []
        try:
            for path, nbytes in self.files:
                sources.append(open_source(path))
                if sources[-1].size != nbytes:
                    raise InvalidStateError(
                        f"{path} has changed: it had {nbytes:,} bytes when the object was pickled, "
                        f"and has {sources[-1].size:,} now"
                    )
            settings = self.settings
            return Program(
                sources[0],
                sources[1:],
                device_map=settings.device_map,
                native_code=settings.native_code,
                optimize=settings.optimize,
                kernels=settings.kernels,
                backends=settings.backends,
            )
        except BaseException:
            for source in sources:
                source.close()
            raise

    def method(self, name: str, state: Mapping[str, torch.Tensor]) -> pteron.Method:
        """Open the program and load one of its methods, with this state."""
        method = self.program().load_method(name)
        method.state.restore(state)
        return method


def _load_text(plan: ExecutionPlan, method: pteron.Method, context: LoadContext) -> str:
    """Say what a method that was just loaded consists of, for the log."""
    kernels = {
        plan.operators[one.op_index].full_name
        for one in plan.instructions
        if isinstance(one, KernelCall)
    }
    parts = [f"{len(plan.instructions)} instructions, {len(kernels)} kernels"]
    for number, delegate in enumerate(plan.delegates):
        backend = type(context.backends.find(delegate.id)).__qualname__
        parts.append(f"delegate {number} ({delegate.id}) is run by {backend}")
    parts += [
        f"buffer {buffer.buffer} takes {buffer.allocated_bytes:,} bytes on {buffer.device}"
        for buffer in method.memory
    ]
    return "; ".join(parts)


def _paths_of(sources: Sequence[ByteSource]) -> tuple[tuple[str, int], ...] | None:
    """Return path and bytes of each file, or None if one was not opened from a path."""
    if not all(source.path for source in sources):
        return None
    return tuple((str(source.path), source.size) for source in sources)


def no_such_method(name: object, known: Mapping[str, object]) -> NotFoundError:
    """Return the error about a method that a program does not have."""
    near = nearest(str(name), known)
    meant = f" (did you mean {near}?)" if near is not None else ""
    names = ", ".join(sorted(known)) or "none"
    return NotFoundError(f"the program has no method {name!r}{meant}; it has: {names}")


def check_settings(
    device_map: object, native_code: object, kernels: object, backends: object, optimize: object
) -> None:
    """Raise for an argument of ``load_program`` that cannot be right, before anything is read."""
    allowed = get_args(NativeCode)
    if native_code not in allowed:
        raise InvalidArgumentError(
            f"native_code is {' or '.join(map(repr, allowed))}, got {native_code!r}"
        )
    for name, value, what, example in (
        ("device_map", device_map, "devices to devices", '{"cpu": "cuda"}'),
        ("kernels", kernels, "operators to functions", '{"my::op.out": function}'),
        ("backends", backends, "ids to backends", '{"XnnpackBackend": "executorch"}'),
    ):
        if value is not None and not isinstance(value, Mapping):
            text = f" {value!r}" if isinstance(value, str) else ""
            raise InvalidTypeError(
                f"{name} is a mapping from {what}, got {type(value).__name__}{text}",
                hint=f"write {name}={example}",
            )
    if not isinstance(optimize, bool):
        raise InvalidTypeError(f"optimize is True or False, got {optimize!r}")
    for tag in device_map if isinstance(device_map, Mapping) else ():
        canonical_tag(tag)


def _check_kernel_names(
    kernels: Mapping[str, Any], plans: Mapping[str, ExecutionPlan], path: str
) -> None:
    """Refuse a kernel whose name is nearly that of an operator that is called; log other strangers.

    Such a kernel never runs. One mapping may serve several programs, so that is no error as such.
    """
    if not kernels:
        return
    called = {operator.full_name for plan in plans.values() for operator in plan.operators}
    for name in kernels:
        if name in called:
            continue
        near = nearest(str(name), called)
        if near is None:
            logger.warning("kernels has %r, but %s does not call that operator", name, path)
            continue
        raise NotFoundError(
            f"kernels has {name!r}, but {path} does not call that operator (did you mean {near}?)",
            hint="`pteron inspect` lists the operators that a file calls",
        )


def device_hint(device_map: pteron.DeviceMapping | None, others: int, device: str) -> str:
    """Say how to do without a device that this machine lacks; ``others`` counts other methods."""
    kind = device.partition(":")[0]
    for tag, target in (device_map or {}).items():
        if str(target) in (device, kind):
            return f'leave out device_map={{"{tag}": "{target}"}}'
    hint = f'device_map={{"{kind}": "cpu"}} moves a method without delegates to the host'
    return f"{hint}; other methods of the file still run" if others else hint


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
    settings: Settings,
) -> LoadContext:
    device_map, native_code = settings.device_map, settings.native_code
    kernels, backends = settings.kernels, settings.backends
    from pteron.backends.registry import default_backends
    from pteron.executor.load import LoadContext, native_code_allowed, optimize_allowed
    from pteron.executor.nodes import ProgramNodes
    from pteron.kernels import Kernel, default_registry, kernel_from_function
    from pteron.memory.device_map import DeviceMap
    from pteron.memory.program_memory import ProgramMemory

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
        optimize=optimize_allowed(settings.optimize),
    )
