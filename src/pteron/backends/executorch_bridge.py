"""Delegates that run in the installed executorch package.

For each delegate a program that calls nothing else is made in memory and given to executorch's own
runtime. Inputs are handed over where they lie; outputs are copied once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from pteron.backends.bridge_program import METHOD, DelegateProgram, write_program
from pteron.backends.interface import Backend, BackendInitContext, DelegateHandle
from pteron.errors import (
    DelegateInvalidCompatibilityError,
    DelegateInvalidHandleError,
    InvalidStateError,
    NotSupportedError,
)
from pteron.format.schema import Tensor
from pteron.memory.hierarchical_allocator import dense_strides

logger = logging.getLogger("pteron")

_STATELESS = frozenset({"XnnpackBackend"})
"""Delegates that keep nothing from call to call, so that a reset has nothing to do."""


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
    try:
        return version("executorch")
    except PackageNotFoundError:
        return "of unknown version"


class ExecutorchBridge(Backend):
    """Runs delegates of one id in executorch's own runtime."""

    def __init__(self, backend_id: str) -> None:
        self.id = backend_id  # type: ignore[misc]

    @property
    def is_available(self) -> bool:
        """Whether executorch is installed and has this backend."""
        runtime = wheel_runtime()
        if runtime is None or self.id not in runtime._get_registered_backend_names():
            return False
        return bool(runtime._is_available(self.id))

    def init(self, context: BackendInitContext) -> DelegateHandle:
        """Make the program and load it."""
        if not self.is_available:
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
        logger.info(
            "method %r: delegate %d (%s) runs in executorch %s",
            context.method_name,
            context.delegate_index,
            self.id,
            executorch_version(),
        )
        return _Handle(context)


class _Handle(DelegateHandle):
    """Owns a program of executorch's runtime, and the bytes it lies in."""

    def __init__(self, context: BackendInitContext) -> None:
        shape = _describe(context)
        self._inputs, self._outputs = shape.inputs, shape.outputs
        self._orders = [
            value.dim_order
            for value in (context.args[position] for position in shape.outputs)
            if isinstance(value, Tensor)
        ]
        self._id = context.backend_id
        self._data = write_program(
            DelegateProgram(
                backend_id=context.backend_id,
                compile_specs=context.compile_specs,
                processed=context.processed,
                named_data={key: context.named_data.get(key).data for key in shape.keys},
                args=context.args,
                inputs=shape.inputs,
                outputs=shape.outputs,
            )
        )
        self._method: Any = None
        self._load()

    def _load(self) -> None:
        runtime = wheel_runtime()
        try:
            program = runtime._load_program_from_buffer(
                self._data, program_verification=runtime.Verification.InternalConsistency
            )
            self._method = program.load_method(METHOD)
        except RuntimeError as error:
            raise DelegateInvalidCompatibilityError(
                f"executorch {executorch_version()} refuses a delegate of {self._id}: {error}",
                hint="executorch says more on stderr; the delegate may be damaged, of another "
                "version, or for hardware that is not here",
            ) from error

    def bind(self, args: Sequence[Any]) -> Callable[[], None]:
        """Return a call that runs the delegate on these values."""
        inputs = [args[position] for position in self._inputs]
        outputs = [args[position] for position in self._outputs]
        orders = self._orders

        def call() -> None:
            method = self._method
            if method is None:
                raise DelegateInvalidHandleError(f"delegate of {self._id} is closed")
            try:
                method.set_inputs(inputs)
                method.execute()
                results = method.get_outputs(clone_outputs=False)
            except RuntimeError as error:
                raise InvalidStateError(
                    f"executorch {executorch_version()} failed in a delegate of {self._id}: {error}"
                ) from error
            for slot, order, result in zip(outputs, orders, results, strict=True):
                if slot.shape != result.shape:
                    slot.resize_(result.shape)
                    slot.as_strided_(result.shape, dense_strides(result.shape, order))
                slot.copy_(result)

        return call

    def reset(self) -> None:
        """Load the delegate again, unless it holds no state."""
        if self._id not in _STATELESS and self._method is not None:
            self._load()

    def close(self) -> None:
        """Give the program back."""
        self._method = None


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
    found = _describe_xnnpack(context) if context.backend_id == "XnnpackBackend" else None
    if found is None:
        either = tuple(p for p in tensors if p >= context.first_unwritten)
        return _Call(tuple(tensors), either, context.named_data.keys())
    outputs, keys = found
    first = len(context.args) - outputs
    return _Call(
        tuple(p for p in tensors if p < first), tuple(p for p in tensors if p >= first), keys
    )


def _describe_xnnpack(context: BackendInitContext) -> tuple[int, tuple[str, ...]] | None:
    """Return the number of outputs and the keys that an XNNPACK blob names.

    A damaged blob is refused here, before native code reads it; None if it is of a version that
    only executorch may know.
    """
    from pteron.backends.xnnpack.blob import read_blob

    try:
        graph = read_blob(context.processed).graph
    except DelegateInvalidCompatibilityError:
        return None
    keys = tuple(entry.named_key for entry in graph.constants if entry.named_key)
    return len(graph.output_ids), tuple(dict.fromkeys(keys))


__all__ = ["ExecutorchBridge", "executorch_version", "wheel_runtime"]
