"""A method: bound, with its memory, ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import torch

from pteron.backends.interface import DelegateHandle
from pteron.errors import (
    InternalError,
    InvalidArgumentError,
    InvalidStateError,
    InvalidTypeError,
    MemoryAllocationFailedError,
    NotSupportedError,
    PteronError,
)
from pteron.executor.bind import BoundPlan
from pteron.executor.bind_kernel import NOT_RESIZABLE
from pteron.executor.capture import Captured, capture, check_capturable
from pteron.executor.evalue import ValueTable
from pteron.executor.explain import operand_lines, out_of_range
from pteron.executor.first_run import FirstRuns, repair
from pteron.executor.inputs import input_takers
from pteron.executor.interpreter import Observer, StepFailed, run, run_observed
from pteron.executor.isolation import isolated
from pteron.executor.memory_use import MemoryUse
from pteron.executor.outputs import Outputs
from pteron.executor.passes import LeftOut
from pteron.executor.signature import Signature, ValueInfo
from pteron.executor.state import State
from pteron.memory.device_order import DeviceOrder
from pteron.memory.program_memory import BufferReport, MethodMemory
from pteron.program.disasm import format_window
from pteron.program.html import heading, values_table
from pteron.program.method_meta import MethodMeta

if TYPE_CHECKING:
    from pteron.executor.load import LoadContext

Inputs: TypeAlias = "Sequence[Any] | Mapping[str, Any] | torch.Tensor"
"""The inputs of a call: in order, by name, or a single tensor or array."""


class Method:
    """Owns one loaded method: its arenas, its state and its delegates.

    ``inputs`` and ``outputs`` say what it takes and gives. ``method(x, mask=m)`` takes values in
    order and by name; :meth:`execute` takes them as one list or dict. The program's file stays
    alive as long as the method does. Calls from several threads take turns, also with other methods
    that share memory with this one.
    """

    _reopen: Callable[[str, Mapping[str, torch.Tensor]], Method] | None = None
    """Opens the file again and loads a method with some state; set by what loaded this one."""

    def __init__(
        self,
        metadata: MethodMeta,
        table: ValueTable,
        bound: BoundPlan,
        memory: MethodMemory,
        delegates: Mapping[int, DelegateHandle],
        context: LoadContext,
    ) -> None:
        self._metadata = metadata
        self._table = table
        self._bound = bound
        self._memory = memory
        self._delegates = dict(delegates)
        self._keep_alive = context  # the file, and what the program's methods share
        self._signature = Signature(table.plan)
        self.__signature__ = self._signature.python_signature()
        self._inputs = input_takers(table, self._signature.inputs, bound.dense_inputs)
        self._outputs = Outputs(table, bound.file_memory)
        self._blocks = bound.blocks
        self._captured: Captured | None = None
        self._first_runs: FirstRuns | None = FirstRuns(table, bound.blocks)
        self._takes_tensors = any(table.is_tensor(index) for index in table.plan.inputs)
        self._given = not self._takes_tensors
        self._has_outputs = False
        self._lent = False
        self._use = MemoryUse(table, memory)
        self._order = DeviceOrder(memory.lock, [d for d in table.devices if d is not None])
        self._order.finish_load()
        self._closed = False

    # -- running ---------------------------------------------------------------------------------

    def execute(
        self,
        inputs: Inputs = (),
        *,
        outputs: Sequence[str | int] | None = None,
        borrow_outputs: bool = False,
        observer: Observer | None = None,
    ) -> list[Any]:
        """Run the method and return its outputs as a flat list, in the order of the file.

        Args:
            inputs: One value for each input, in order or by name (a dict): tensors (any strides,
                any device), numpy arrays, or the Python numbers, strings and None that the program
                was exported with. A single tensor or array may be given as it is.
            outputs: The outputs to return, by name or position, in this order (default: all).
            borrow_outputs: Return views of the method's own memory, valid until the next call.
            observer: Is told of every instruction (see :mod:`pteron.devtools`).

        Raises:
            InvalidArgumentError: An input does not fit, or a kernel refused a value. The method
                can be called again.
            NotFoundError: No input or output has this name; the message has the nearest one.

        """
        chosen = None if outputs is None else self._signature.choose(outputs)
        with self._memory.lock, isolated():
            self._set_inputs(inputs)
            self._run(observer)
            found = self._outputs.collect(borrow=self._lend(borrow_outputs))
        return found if chosen is None else [found[position] for position in chosen]

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Run the method on inputs in order and by name: ``method(x, mask=m)``.

        A single list, tuple or dict holds all inputs, as :meth:`execute` takes them.
        """
        if len(args) == 1 and not kwargs and isinstance(args[0], (list, tuple, Mapping)):
            return self.execute(args[0])
        return self.execute(self._signature.of_call(args, kwargs))

    def set_inputs(self, inputs: Inputs) -> None:
        """Give the inputs of the next :meth:`run`.

        They are there for one run. Another run takes them again if nothing was written over them:
        by this method, or by one that shares its memory.
        """
        with self._memory.lock, isolated():
            self._set_inputs(inputs)

    def run(self, *, observer: Observer | None = None) -> None:
        """Run the method on the inputs that were set; ``observer`` is told of each instruction.

        Raises:
            InvalidArgumentError: The method takes tensors and none was given yet.
            InvalidStateError: The inputs that were given have been overwritten since, or the call
                came from inside a run of a method that shares the memory.

        """
        with self._memory.lock, isolated():
            self._run(observer)

    def get_outputs(self, *, borrow: bool = False) -> list[Any]:
        """Return what the last run left in the outputs.

        Raises:
            InvalidStateError: There was no run yet, or the outputs have been overwritten since.

        """
        with self._memory.lock, isolated():
            self._check_open()
            if not self._has_outputs:
                raise InvalidStateError(
                    f"method {self.name!r} has not run yet: it has no outputs",
                    hint="call run() first, or execute(inputs)",
                )
            self._use.check_outputs(self.name)
            if self._order:
                self._order.begin()
            return self._outputs.collect(borrow=self._lend(borrow))

    def turn(self) -> AbstractContextManager[object]:
        """Hold the method's turn over several calls, as :meth:`execute` does over its own."""
        return self._memory.lock

    def _lend(self, borrow: bool) -> bool:
        self._lent = self._lent or borrow
        return borrow

    def _set_inputs(self, inputs: Inputs) -> None:
        self._check_open()
        if isinstance(inputs, Mapping):
            inputs = self._signature.by_name(inputs)
        elif hasattr(inputs, "__array_interface__") or hasattr(inputs, "__dlpack__"):
            inputs = (inputs,)
        if not isinstance(inputs, (list, tuple)):
            raise InvalidTypeError(
                f"method {self.name!r} takes its inputs as a list, tuple or dict, got "
                f"{type(inputs).__name__}",
                hint="put the values into a list, or call method(a, b)",
            )
        if len(inputs) != len(self._inputs):
            raise self._signature.wrong_number(len(inputs))
        inputs = self._use.protect(inputs, lent=self._lent)
        self._use.take_inputs(self.name)
        if self._order:
            self._order.begin()
        with torch.inference_mode():
            for put, given in zip(self._inputs, inputs, strict=True):
                put(given)
        self._given = True

    def _run(self, observer: Observer | None) -> None:
        self._check_open()
        if not self._given:
            raise InvalidArgumentError(
                f"method {self.name!r} has not been given its inputs",
                hint="call set_inputs(inputs) first, or execute(inputs)",
            )
        self._keep_alive.check_files()
        turn = self._memory.lock
        self._use.begin_run(self.name)
        if self._order:
            self._order.begin()
        turn.running = self.name
        try:
            self._run_and_check(observer)
        finally:
            turn.running = None
        self._use.end_run()
        self._has_outputs = True

    def _run_and_check(self, observer: Observer | None) -> None:
        self._outputs.prepare()
        try:
            with torch.inference_mode():
                try:
                    self._run_blocks(observer)
                finally:
                    if self._bound.finish is not None:
                        self._bound.finish()
        except StepFailed as failure:
            self._fail(failure)

    def _run_blocks(self, observer: Observer | None) -> None:
        if observer is not None:
            run_observed(self._bound.blocks, observer)
        elif self._first_runs is None:
            run(self._blocks)
        else:
            self._first_runs.run()
            if self._first_runs.done:
                self._first_runs = None

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidStateError(f"method {self.name!r} is closed")

    # -- CUDA graphs -----------------------------------------------------------------------------

    def capture(self) -> None:
        """Record what the method does on its CUDA device, and replay that from now on.

        Only a method whose shapes are static and that takes no decisions can be captured. Inputs
        and outputs without a place in the plan are copied to and from fixed memory then. State
        keeps its value. A method that is captured already is left as it is.

        Raises:
            NotSupportedError: Names the instruction or value that a graph cannot hold.

        """
        with self._memory.lock:
            self._check_open()
            if self._captured is not None:
                return
            check_capturable(self._table, self._bound)
            self._order.begin()
            hidden = [n for n, handle in self._delegates.items() if handle.hides_state]
            if hidden:
                raise NotSupportedError(
                    f"method {self.name!r} cannot be captured into a CUDA graph: delegate "
                    f"{hidden[0]} holds state that cannot be put back after warming up",
                    hint="export the program again: newer files name their state",
                )
            with torch.inference_mode(), isolated():
                saved = [(tensor, tensor.clone()) for tensor in self._state_tensors()]
                for put in self._inputs:
                    put.fix()
                self._outputs.fix()
                try:
                    self._captured = capture(self._table, self._bound)
                except StepFailed as failure:
                    self._fail(failure)
                finally:
                    for tensor, value in saved:
                        tensor.copy_(value)
            self._blocks = self._captured.blocks
            self._first_runs = None
            # Warming up has run on inputs of zeros.
            self._given, self._has_outputs = not self._takes_tensors, False

    @property
    def is_captured(self) -> bool:
        """Whether calls replay CUDA graphs."""
        return self._captured is not None

    def _state_tensors(self) -> list[torch.Tensor]:
        tensors = [slot.tensor for slot in self._table.state.values()]
        for handle in self._delegates.values():
            tensors += handle.state_tensors()
        return tensors

    # -- errors ----------------------------------------------------------------------------------

    def _fail(self, failure: StepFailed) -> NoReturn:
        """Raise the error of a failed instruction, without a cycle that keeps memory alive."""
        cause = failure.__cause__
        error = self._explained(failure)
        try:
            raise error from (error.__cause__ if error is cause else cause)
        finally:
            failure.__cause__ = failure.__context__ = failure.__traceback__ = None
            del error, cause, failure

    def _explained(self, failure: StepFailed) -> PteronError:
        """Return the error of a failed instruction, with its place and its operands."""
        cause = failure.__cause__
        number = failure.instruction
        memory_plan, values = self._table.memory_plan, self._table.values
        operands = operand_lines(memory_plan, values, number, self._signature.inputs)
        plain = out_of_range(self._table.plan, values, number)
        with torch.inference_mode():
            repair(self._table)
        error: PteronError
        if isinstance(cause, PteronError):
            error = cause
        elif isinstance(cause, (MemoryError, torch.OutOfMemoryError)):
            error = MemoryAllocationFailedError(_first_line(cause))
        elif isinstance(cause, RuntimeError) and NOT_RESIZABLE in str(cause):
            error = InvalidArgumentError(
                f"a result outgrows the memory that the program plans for it ({NOT_RESIZABLE})",
                hint="the exporter planned memory for smaller shapes: export the program again "
                "with larger upper bounds",
            )
        elif isinstance(cause, IndexError) and plain is not None:
            error = InvalidArgumentError(plain)
        elif isinstance(cause, (RuntimeError, ValueError, IndexError, TypeError, ArithmeticError)):
            error = InvalidArgumentError(_first_line(cause))
        else:
            error = InternalError(f"{type(cause).__name__}: {_first_line(cause)}")
        error.add_context(f"method {self.name!r}, instruction {number} failed:")
        error.context += format_window(self._table.plan, number).splitlines()
        error.context += operands
        return error

    # -- what it is ------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The method's name in the program."""
        return self._table.plan.name

    @property
    def inputs(self) -> tuple[ValueInfo, ...]:
        """What the method takes: name, element type, shape, kind and device of each input."""
        return self._signature.inputs

    @property
    def outputs(self) -> tuple[ValueInfo, ...]:
        """What the method gives: name, element type, shape, kind and device of each output."""
        return self._signature.outputs

    def example_inputs(self, seed: int = 0) -> list[Any]:
        """Return random inputs that the method takes, the same for the same seed.

        Floats are normal, 8-bit integers cover their range, wider ones are 0 or 1, dynamic shapes
        are at their upper bound, and other values are those that the program holds.
        """
        return self._signature.example_inputs(seed)

    @property
    def metadata(self) -> MethodMeta:
        """What the file says of the method."""
        return self._metadata

    @property
    def memory(self) -> tuple[BufferReport, ...]:
        """Planned and allocated bytes of each buffer, and where it is."""
        return self._memory.report

    @property
    def left_out(self) -> Mapping[int, LeftOut]:
        """The instructions that need not run, by number, with the pass that found it and why.

        None are left out with ``load_program(optimize=False)``.
        """
        return MappingProxyType(dict(self._bound.left_out))

    @property
    def values(self) -> list[Any]:
        """The values by index, as the last run left them. Views the method's memory."""
        return self._table.values

    def __repr__(self) -> str:
        state = "closed" if self._closed else _memory_text(self._memory.report)
        given, got = (
            ", ".join(f"{value.name}: {value.type_text}" for value in values)
            for values in (self.inputs, self.outputs)
        )
        return f"<pteron.Method {self.name!r} ({given}) -> ({got}), {state}>"

    def _repr_html_(self) -> str:
        state = "closed" if self._closed else _memory_text(self._memory.report)
        title = heading(f"pteron method {self.name!r}: {state}")
        return title + values_table((*self.inputs, *self.outputs))

    def __dir__(self) -> list[str]:
        inner = ("turn", "values")  # for the other parts of pteron
        return [name for name in super().__dir__() if name not in inner]

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_open()
        if self._reopen is None:
            raise InvalidStateError(f"method {self.name!r} cannot be pickled: its file is unknown")
        hidden = [handle for handle in self._delegates.values() if handle.hides_state]
        if hidden:
            raise NotSupportedError(
                f"method {self.name!r} cannot be pickled: a delegate holds state that cannot be "
                "copied",
                hint="open the program again where it is needed",
            )
        return self._reopen, (self.name, self.state.snapshot())

    # -- state -----------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The method's mutable buffers, by name."""
        return State(self)

    def reset(self) -> None:
        """Bring all state back to its initial value: that of the file, or zero.

        State that other methods share is reset for them too.
        """
        with self._memory.lock, isolated(), torch.inference_mode():
            self._check_open()
            if self._order:
                self._order.begin()
            for slot in self._table.state.values():
                slot.reset()
            for handle in self._delegates.values():
                handle.reset()

    # -- end -------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the method was closed."""
        return self._closed

    def close(self) -> None:
        """Give back the method's memory and delegates. Outputs that were returned stay valid."""
        with self._memory.lock:
            if self._closed:
                return
            self._closed = True
            handles = list(self._delegates.values())
            self._delegates.clear()
            self._table.values.clear()
            self._table.state.clear()
            self._bound = BoundPlan((), (), {})
            self._blocks, self._captured, self._first_runs = (), None, None
            self._inputs = []
            self._memory.allocator.arenas.clear()
        for handle in handles:  # without the turn: it is a backend's own code
            handle.close()

    def __enter__(self) -> Method:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _first_line(error: BaseException | None) -> str:
    """Return what an error of torch says, without the C++ stack that some carry."""
    text = str(error).strip()
    return text.split("\nException raised from")[0].splitlines()[0] if text else repr(error)


def _memory_text(report: Sequence[BufferReport]) -> str:
    """Return the planned bytes by device: ``224 bytes on cpu``."""
    planned: dict[str, int] = {}
    for buffer in report:
        planned[buffer.device] = planned.get(buffer.device, 0) + buffer.planned_bytes
    found = [f"{nbytes:,} bytes on {device}" for device, nbytes in planned.items() if nbytes]
    return " and ".join(found) or "no planned memory"
