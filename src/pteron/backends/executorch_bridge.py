"""Delegates that run in the installed executorch package.

For each delegate a program that calls nothing else is made in memory and given to executorch's own
runtime, in a process of its own or in this one. In this one, inputs are handed over where they lie
and outputs are copied once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import torch

from pteron import limits
from pteron.backends.bridge_group import Elsewhere, WorkerGroup
from pteron.backends.bridge_program import METHOD, DelegateProgram, write_program
from pteron.backends.installed_executorch import installed_executorch
from pteron.backends.interface import Backend, BackendInitContext, DelegateHandle
from pteron.backends.readers import call_shape, reader_of
from pteron.errors import (
    DelegateInvalidCompatibilityError,
    DelegateInvalidHandleError,
    InvalidStateError,
    NotSupportedError,
)
from pteron.format.schema import Tensor
from pteron.memory.hierarchical_allocator import dense_strides

logger = logging.getLogger("pteron")


@cache
def wheel_runtime() -> Any:
    """Return executorch's binding module, or None if it cannot be imported.

    The extension is imported by itself: the Python modules around it take seconds.
    """
    try:
        if find_spec("executorch.extension.pybindings._C") is None:
            return None
        binding = import_module("executorch.extension.pybindings._C")
        original = getattr(binding, "__pteron_original__", None)  # pteron.compat stands in for it
        return binding if original is None else original()
    except (ImportError, OSError) as error:
        logger.warning("the installed executorch package cannot be used: %s", error)
        return None


def executorch_version() -> str:
    """Return the version of the installed package."""
    return installed_executorch() or "that is not installed"


class ExecutorchBridge(Backend):
    """Runs delegates of one id in executorch's own runtime.

    In this process nothing is copied on the way in, and a blob that makes the native code crash
    ends the process: that is for a caller who trusts the file and asks for it by name. In a process
    of its own such a blob is an error.
    """

    def __init__(self, backend_id: str, *, own_process: bool = False) -> None:
        self.id = backend_id  # type: ignore[misc]
        self._own_process = own_process

    @property
    def is_there(self) -> bool:
        """Whether the installed executorch was built with this backend, available or not."""
        runtime = wheel_runtime()
        return runtime is not None and self.id in runtime._get_registered_backend_names()

    @property
    def is_available(self) -> bool:
        """Whether executorch is installed and has this backend, and the machine what it needs."""
        if not self.is_there:
            return False
        if self._own_process:
            return _available_in_a_worker(self.id)
        return bool(wheel_runtime()._is_available(self.id))

    @property
    def runs_native_code(self) -> bool:
        """Whether the blob may hold machine code, as far as pteron can tell."""
        return reader_of(self.id).may_hold_code

    def init(self, context: BackendInitContext) -> DelegateHandle:
        """Make the program and load it."""
        if not (self.is_there if self._own_process else self.is_available):
            raise NotSupportedError(
                f"executorch {executorch_version()} has no backend {self.id!r}",
                hint="install a build of executorch that has it",
            )
        if context.device.type != "cpu":
            raise NotSupportedError(
                f"delegate {context.delegate_index} ({self.id}) was sent to {context.device}; "
                "executorch's Python runtime takes and gives host memory only",
                hint="leave this delegate on the host in the device map",
            )
        if self.runs_native_code and not context.native_code:
            digest = sha256(context.processed).hexdigest()
            raise NotSupportedError(
                f"delegate {context.delegate_index} ({self.id}) runs in executorch, and pteron "
                f"cannot tell whether its blob (sha256 {digest}) is native code, which this "
                "process does not allow",
                hint='load the program with native_code="allow", and without '
                "PTERON_NATIVE_CODE=refuse, if you trust the file",
            )
        logger.info(
            "method %r: delegate %d (%s) runs in executorch %s%s",
            context.method_name,
            context.delegate_index,
            self.id,
            executorch_version(),
            ", in a process of its own" if self._own_process else "",
        )
        call = _describe(context)
        program = DelegateProgram(
            backend_id=context.backend_id,
            compile_specs=context.compile_specs,
            processed=context.processed,
            named_data={key: context.named_data.get(key).data for key in call.keys},
            args=context.args,
            inputs=call.inputs,
            outputs=call.outputs,
        )
        if not self._own_process:
            return _Handle(program, _Here(program))
        group = context.instance_store.setdefault(f"{self.id}.worker", WorkerGroup())
        return _Handle(program, Elsewhere(program, group, executorch_version()))


@cache
def _available_in_a_worker(backend_id: str) -> bool:
    """Ask in a process of its own: some backends load libraries, and write to stderr, to tell."""
    from pteron.backends.bridge_process import Worker, WorkerEndedError

    worker = Worker()
    try:
        request = {"do": "ask", "backend_id": backend_id}
        return not worker.ask(request, seconds=limits.BRIDGE_LOAD_SECONDS).get("missing")
    except WorkerEndedError:
        return False
    finally:
        worker.close()


class _Runner(Protocol):
    """Owns a delegate's program, loaded."""

    def run(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return the outputs, which the next call may overwrite."""

    def load(self) -> None:
        """Load the program again."""

    @property
    def has_ended(self) -> bool:
        """Whether it has to be loaded again before it can run."""

    def close(self) -> None:
        """Give the program back."""


class _Here:
    """Owns a program of the runtime in this process, and the bytes it lies in."""

    has_ended = False

    def __init__(self, program: DelegateProgram) -> None:
        self._id = program.backend_id
        self._data = write_program(program)
        self.load()

    def load(self) -> None:
        runtime = wheel_runtime()
        try:
            program = runtime._load_program_from_buffer(
                self._data, program_verification=runtime.Verification.InternalConsistency
            )
            self._method: Any = program.load_method(METHOD)
        except RuntimeError as error:
            raise DelegateInvalidCompatibilityError(
                f"executorch {executorch_version()} refuses a delegate of {self._id}: {error}",
                hint="executorch says more on stderr; the delegate may be damaged, of another "
                "version, or for hardware that is not here",
            ) from error

    def run(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        method = self._method
        try:
            method.set_inputs(inputs)
            method.execute()
            results: list[torch.Tensor] = method.get_outputs(clone_outputs=False)
        except RuntimeError as error:
            raise InvalidStateError(
                f"executorch {executorch_version()} failed in a delegate of {self._id}: {error}"
            ) from error
        return results

    def close(self) -> None:
        self._method = None


class _Handle(DelegateHandle):
    """Owns a delegate in executorch's runtime, wherever that is."""

    def __init__(self, program: DelegateProgram, runner: _Runner) -> None:
        self._id = program.backend_id
        self._keeps_state = reader_of(program.backend_id).keeps_state
        self._inputs, self._outputs = program.inputs, program.outputs
        self._orders = [
            value.dim_order
            for value in (program.args[position] for position in program.outputs)
            if isinstance(value, Tensor)
        ]
        self._runner: _Runner | None = runner

    def bind(self, args: Sequence[Any]) -> Callable[[], None]:
        """Return a call that runs the delegate on these values."""
        inputs = [args[position] for position in self._inputs]
        outputs = [args[position] for position in self._outputs]
        orders = self._orders

        def call() -> None:
            runner = self._runner
            if runner is None:
                raise DelegateInvalidHandleError(f"delegate of {self._id} is closed")
            for slot, order, result in zip(outputs, orders, runner.run(inputs), strict=True):
                if slot.shape != result.shape:
                    slot.resize_(result.shape)
                    slot.as_strided_(result.shape, dense_strides(result.shape, order))
                slot.copy_(result)

        return call

    def reset(self) -> None:
        """Load the delegate again, unless it holds no state and is there."""
        runner = self._runner
        if runner is not None and (self._keeps_state or runner.has_ended):
            runner.load()

    def close(self) -> None:
        """Give the program back."""
        if self._runner is not None:
            self._runner.close()
        self._runner = None


@dataclass(frozen=True, slots=True)
class _Call:
    """Positions of a call's inputs and outputs, and the named data it needs."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    keys: tuple[str, ...]


def _describe(context: BackendInitContext) -> _Call:
    """Say what a delegate takes and gives.

    If nobody but its backend knows where the inputs end, a value that may be either is treated as
    both, and all named data is handed over.
    """
    tensors = [p for p, value in enumerate(context.args) if isinstance(value, Tensor)]
    shape = call_shape(context.blob)  # a damaged blob is refused before native code reads it
    if shape is None:
        either = tuple(p for p in tensors if p >= context.first_unwritten)
        return _Call(tuple(tensors), either, context.named_data.keys())
    first = len(context.args) - shape.outputs
    return _Call(
        tuple(p for p in tensors if p < first), tuple(p for p in tensors if p >= first), shape.keys
    )


__all__ = ["ExecutorchBridge", "executorch_version", "wheel_runtime"]
