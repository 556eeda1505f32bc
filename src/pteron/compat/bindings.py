"""The classes of ExecuTorch's Python bindings, over pteron's programs and methods.

``ExecuTorchModule`` is the older shape (read at the first use), ``ExecuTorchProgram`` and
``ExecuTorchMethod`` the newer. Underneath both run the same pteron Program and Method. As under
executorch's own bindings, calls from several threads take turns.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch

from pteron.compat.errors import PROGRAM, ExecuTorchError, error_from, translated
from pteron.devtools.tracer import Tracer
from pteron.errors import AccessFailedError, InvalidArgumentError, NotFoundError
from pteron.executor.method import Method
from pteron.executor.outputs import borrowed
from pteron.format.schema import ExecutionPlan, Tensor
from pteron.format.source import ByteSource, SourceData, open_source
from pteron.program.method_meta import MethodMeta
from pteron.runtime import Program


class LoadedProgram:
    """Owns the open files of a program, which is read when it is first asked for, and its trace.

    The files are those that the names stood for when it was made, whatever becomes of the names.
    """

    def __init__(
        self,
        data: SourceData,
        data_path: SourceData | None,
        *,
        enable_etdump: bool = False,
        debug_buffer_size: int = 0,
    ) -> None:
        self.tracer = Tracer(debug_buffer_size=debug_buffer_size) if enable_etdump else None
        self._lock = threading.RLock()
        self._program: Program | None = None
        files = (data,) if data_path is None else (data, data_path)
        with ExitStack() as opened:
            self._sources = [opened.enter_context(_opened(file)) for file in files]
            self._opened = opened.pop_all()

    @property
    def program(self) -> Program:
        """The program, read."""
        with self._lock:
            if self._program is None:
                self._program = Program(self._sources[0], self._sources[1:])
            return self._program

    def close(self) -> None:
        """Close the files; what a method uses of them stays."""
        self._opened.close()

    def plan(self, name: str) -> ExecutionPlan:
        """Return a method's plan; an unknown name is an invalid argument, as in ExecuTorch."""
        if not isinstance(name, str):
            raise TypeError(f"the name of a method is a str, got {type(name).__name__}")
        plans = {plan.name: plan for plan in self.program.pte.program.execution_plan}
        if name not in plans:
            known = ", ".join(plans) or "none"
            raise InvalidArgumentError(f"the program has no method {name!r}; it has: {known}")
        return plans[name]

    def method(self, name: str) -> Method:
        """Return a method, loaded."""
        with self._lock:
            self.plan(name)
            start = perf_counter_ns()
            method = self.program.load_method(name)
            if self.tracer is not None:
                self.tracer.loaded(start, perf_counter_ns())
            return method

    @contextmanager
    def turn(self, method: Method) -> Iterator[None]:
        """Hold a method's turn over several calls; runs that are traced together take turns."""
        with ExitStack() as held:
            if self.tracer is not None:  # before the method's, in every thread
                held.enter_context(self._lock)
            held.enter_context(method.turn())
            yield

    def run(self, method: Method) -> None:
        """Run a method on the inputs that it has; a traced program keeps the trace."""
        if self.tracer is None:
            method.run()
            return
        with self.turn(method):
            self.tracer.run(method, self.plan(method.name))

    def execute(self, method: Method, *, clone_outputs: bool) -> list[Any]:
        """Run a method on the inputs that it has and return its outputs, in one turn."""
        with self.turn(method):
            self.run(method)
            return method.get_outputs(borrow=not clone_outputs)

    def write_etdump(self, path: str, debug_buffer_path: str | None) -> None:
        """Write the trace since the last call, and the debug buffer if there is one."""
        if self.tracer is None:
            raise RuntimeError("No etdump found: load the program with enable_etdump=True")
        with self._lock:
            if not self.tracer.runs:
                return
            _write(path, self.tracer.take())
            buffer = self.tracer.debug_buffer
        if buffer is not None and isinstance(debug_buffer_path, (str, Path)):
            _write(debug_buffer_path, buffer)


def _opened(file: SourceData) -> ByteSource:
    try:
        return open_source(file)
    except AccessFailedError as error:
        raise error_from(error, f"Failed to open {file!s}") from error


def _write(path: str | Path, data: bytes) -> None:
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        message = f"Failed to open file {path}: {error.strerror}"
        raise ExecuTorchError(message, AccessFailedError.code) from error


def set_inputs(method: Method, inputs: Any) -> None:
    """Give a method its inputs: a sequence, or one tensor."""
    if isinstance(inputs, torch.Tensor):
        inputs = [inputs]
    elif isinstance(inputs, str):
        raise ExecuTorchError(
            f"The inputs for method {method.name} are a str; they are passed as a flat list",
            InvalidArgumentError.code,
        )
    elif isinstance(inputs, Mapping) or not hasattr(inputs, "__getitem__"):
        raise TypeError(
            f"the inputs for method {method.name!r} are a list or tuple, got "
            f"{type(inputs).__name__}"
        )
    elif not isinstance(inputs, (list, tuple)):
        inputs = list(inputs)
    for position, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and value.device.type == "meta" and value.numel():
            raise ExecuTorchError(
                f"Input {position} for method {method.name} is on device {value.device}, which "
                "holds no data: only CPU and CUDA tensors can be passed to a method",
                InvalidArgumentError.code,
            )
        if isinstance(value, (list, tuple, dict, set)):
            raise ExecuTorchError(
                f"Input {position} for method {method.name} is a {type(value).__name__}; inputs "
                "are passed as a flat list of tensors, numbers and None",
                InvalidArgumentError.code,
            )
    method.set_inputs(inputs)


class ExecuTorchModule:
    """A program whose methods are loaded when they are first run."""

    def __init__(self, loaded: LoadedProgram) -> None:
        self._loaded = loaded
        self._methods: dict[str, Method] = {}
        self._lock = threading.Lock()

    def _method(self, name: str) -> Method:
        with self._lock:
            if name not in self._methods:
                self._methods[name] = self._loaded.method(name)
            return self._methods[name]

    def run_method(
        self,
        method_name: str,
        inputs: Sequence[Any] | torch.Tensor = (),
        clone_outputs: bool = True,
    ) -> list[Any]:
        """Run a method; outputs that are not cloned are overwritten by the next call."""
        with translated(f"Failed to get method_meta for {method_name}"):
            self._loaded.plan(method_name)
        with translated(f"Failed to execute method {method_name}"):
            method = self._method(method_name)
            with self._loaded.turn(method):
                set_inputs(method, inputs)
                return self._loaded.execute(method, clone_outputs=clone_outputs)

    def forward(
        self, inputs: Sequence[Any] | torch.Tensor = (), clone_outputs: bool = True
    ) -> list[Any]:
        """Run ``forward``."""
        return self.run_method("forward", inputs, clone_outputs)

    __call__ = forward

    def plan_execute(self, method_name: str, clone_outputs: bool = True) -> list[Any]:
        """Run a method on the inputs that it has."""
        with translated(f"executing execution plan for method '{method_name}' failed"):
            return self._loaded.execute(self._method(method_name), clone_outputs=clone_outputs)

    def method_meta(self, method_name: str) -> MethodMeta:
        """Return what the file says of a method."""
        with translated(f"failed to retrieve method_meta for method {method_name}"):
            return MethodMeta(self._loaded.plan(method_name))

    def method_names(self) -> list[str]:
        """Return the names of the methods."""
        with translated("Failed to get method names"):
            return [plan.name for plan in self._loaded.program.pte.program.execution_plan]

    def has_etdump(self) -> bool:
        """Return whether runs are traced."""
        return self._loaded.tracer is not None

    def write_etdump_result_to_file(self, path: str, debug_buffer_path: str | None = None) -> None:
        """Write the trace, and the values that it counts offsets in."""
        self._loaded.write_etdump(path, debug_buffer_path)

    def load_bundled_input(self, bundle: Any, method_name: str, testset_idx: int) -> None:
        """Give a method the inputs of one test case of a bundled program."""
        with translated(f"Failed to load bundled input {testset_idx} for method {method_name}"):
            set_inputs(self._method(method_name), bundle.inputs(method_name, testset_idx))


class ExecuTorchProgram:
    """A program, open."""

    def __init__(self, loaded: LoadedProgram) -> None:
        self._loaded = loaded
        with translated("Failed to load program", PROGRAM):
            try:
                program = loaded.program
            except BaseException:
                loaded.close()
                raise
        self._names = [plan.name for plan in program.pte.program.execution_plan]

    def num_methods(self) -> int:
        """Return how many methods there are."""
        return len(self._names)

    def get_method_name(self, method_index: int) -> str:
        """Return the name of a method, counted from 0."""
        with translated("Failed to get method name", PROGRAM):
            if not 0 <= method_index < len(self._names):
                raise InvalidArgumentError(
                    f"there is no method {method_index}; the program has {len(self._names)}"
                )
            return self._names[method_index]

    def load_method(self, method_name: str) -> ExecuTorchMethod:
        """Load a method."""
        with translated(f"Failed to load method {method_name}", PROGRAM):
            return ExecuTorchMethod(self._loaded, self._loaded.method(method_name))

    def method_meta(self, method_name: str) -> MethodMeta:
        """Return what the file says of a method."""
        with translated(f"Failed to get method meta for method {method_name}", PROGRAM):
            return MethodMeta(self._loaded.plan(method_name))

    def has_etdump(self) -> bool:
        """Return whether runs are traced."""
        return self._loaded.tracer is not None

    def write_etdump_result_to_file(self, path: str, debug_buffer_path: str | None = None) -> None:
        """Write the trace, and the values that it counts offsets in."""
        self._loaded.write_etdump(path, debug_buffer_path)


class ExecuTorchMethod:
    """A method, loaded."""

    def __init__(self, loaded: LoadedProgram, method: Method) -> None:
        self._loaded = loaded
        self._method = method

    def set_inputs(self, inputs: Sequence[Any] | torch.Tensor) -> None:
        """Give the inputs of the next run; they stay."""
        with translated(f"method->set_inputs() for method '{self._method.name}' failed"):
            set_inputs(self._method, inputs)

    def execute(self) -> None:
        """Run on the inputs that were set."""
        with translated("method->execute() failed"):
            self._loaded.run(self._method)

    def get_outputs(self, clone_outputs: bool = True) -> list[Any]:
        """Return what the last run left."""
        with translated(f"method->get_outputs() for method '{self._method.name}' failed"):
            return self._method.get_outputs(borrow=not clone_outputs)

    def call(
        self, inputs: Sequence[Any] | torch.Tensor = (), clone_outputs: bool = True
    ) -> list[Any]:
        """Run on inputs and return the outputs."""
        with self._loaded.turn(self._method):
            self.set_inputs(inputs)
            self.execute()
            return self.get_outputs(clone_outputs)

    __call__ = call

    def method_meta(self) -> MethodMeta:
        """Return what the file says of the method."""
        return self._method.metadata

    def get_attribute(self, name: str) -> torch.Tensor:
        """Return a tensor that has a name in the file, over the method's own memory."""
        task = f"Failed to get attribute '{name}' for method '{self._method.name}'"
        with translated(task, PROGRAM):
            for index, value in enumerate(self._loaded.plan(self._method.name).values):
                if isinstance(value, Tensor) and value.fully_qualified_name == name:
                    return borrowed(self._method.values[index])
            raise NotFoundError(f"no tensor of the method is named {name!r} in the file")


__all__ = [
    "ExecuTorchMethod",
    "ExecuTorchModule",
    "ExecuTorchProgram",
    "LoadedProgram",
    "set_inputs",
]
