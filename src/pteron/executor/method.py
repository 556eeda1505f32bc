"""A method: bound, with its memory, ready to run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType, TracebackType
from typing import Any, NoReturn

import torch

from pteron.backends.interface import DelegateHandle
from pteron.errors import (
    InternalError,
    InvalidArgumentError,
    InvalidStateError,
    InvalidTypeError,
    MemoryAllocationFailedError,
    NotFoundError,
    NotSupportedError,
    PteronError,
)
from pteron.executor.bind import BoundPlan
from pteron.executor.bind_kernel import NOT_RESIZABLE
from pteron.executor.capture import Captured, capture, check_capturable
from pteron.executor.evalue import StateSlot, ValueTable
from pteron.executor.first_run import FirstRuns, repair
from pteron.executor.inputs import describe, input_takers
from pteron.executor.interpreter import Observer, StepFailed, run, run_observed
from pteron.executor.isolation import isolated
from pteron.executor.outputs import Outputs
from pteron.executor.passes import LeftOut
from pteron.format.schema import DelegateCall, KernelCall
from pteron.memory.program_memory import BufferReport, MethodMemory
from pteron.program.disasm import format_window
from pteron.program.method_meta import MethodMeta


class Method:
    """Owns one loaded method: its arenas, its state and its delegates.

    The program's file stays alive as long as the method does. Calls from several threads take
    turns, also with other methods that share memory with this one.
    """

    def __init__(
        self,
        metadata: MethodMeta,
        table: ValueTable,
        bound: BoundPlan,
        memory: MethodMemory,
        delegates: Mapping[int, DelegateHandle],
        keep_alive: object,
    ) -> None:
        self._metadata = metadata
        self._table = table
        self._bound = bound
        self._memory = memory
        self._delegates = dict(delegates)
        self._keep_alive = keep_alive
        self._inputs = input_takers(table)
        self._outputs = Outputs(table, bound.file_memory)
        self._blocks = bound.blocks
        self._captured: Captured | None = None
        self._first_runs: FirstRuns | None = FirstRuns(table, bound.blocks)
        self._given = not any(table.is_tensor(index) for index in table.plan.inputs)
        self._has_outputs = False
        self._lent = False
        self._closed = False

    # -- running ---------------------------------------------------------------------------------

    def execute(
        self,
        inputs: Sequence[Any] | torch.Tensor = (),
        *,
        borrow_outputs: bool = False,
        observer: Observer | None = None,
    ) -> list[Any]:
        """Run the method and return its outputs, flat, in the order of the file.

        Args:
            inputs: One value for each input: tensors (any strides, any device), numpy arrays, or
                the Python numbers, strings and None that the program was exported with.
            borrow_outputs: Return views of the method's own memory, valid until the next call.
            observer: Is told of every instruction (see :mod:`pteron.devtools`).

        Raises:
            InvalidArgumentError: An input does not fit, or a kernel refused a value. The method
                can be called again.

        """
        with self._memory.lock, isolated():
            self._set_inputs(inputs)
            self._run(observer)
            return self._outputs.collect(borrow=self._lend(borrow_outputs))

    __call__ = execute

    def set_inputs(self, inputs: Sequence[Any] | torch.Tensor) -> None:
        """Give the inputs of the next :meth:`run`; they stay until others are given."""
        with self._memory.lock, isolated():
            self._set_inputs(inputs)

    def run(self, *, observer: Observer | None = None) -> None:
        """Run the method on the inputs that were set; ``observer`` is told of each instruction.

        Raises:
            InvalidArgumentError: The method takes tensors and none was given yet.

        """
        with self._memory.lock, isolated():
            self._run(observer)

    def get_outputs(self, *, borrow: bool = False) -> list[Any]:
        """Return what the last run left in the outputs.

        Raises:
            InvalidStateError: There was no run yet.

        """
        with self._memory.lock, isolated():
            self._check_open()
            if not self._has_outputs:
                raise InvalidStateError(
                    f"method {self.name!r} has not run yet: it has no outputs",
                    hint="call run() first, or execute(inputs)",
                )
            return self._outputs.collect(borrow=self._lend(borrow))

    def turn(self) -> AbstractContextManager[object]:
        """Hold the method's turn over several calls, as :meth:`execute` does over its own."""
        return self._memory.lock

    def _lend(self, borrow: bool) -> bool:
        self._lent = self._lent or borrow
        return borrow

    def _set_inputs(self, inputs: Sequence[Any] | torch.Tensor) -> None:
        self._check_open()
        if isinstance(inputs, torch.Tensor):
            inputs = (inputs,)
        if not isinstance(inputs, (list, tuple)):
            raise InvalidTypeError(
                f"method {self.name!r} takes its inputs as a list or tuple, got "
                f"{type(inputs).__name__}"
            )
        if len(inputs) != len(self._inputs):
            raise InvalidArgumentError(
                f"method {self.name!r} takes {len(self._inputs)} input(s), got {len(inputs)}"
            )
        if self._lent:  # an input may be a view of memory that another input is copied to
            inputs = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
        with torch.inference_mode():
            for put, given in zip(self._inputs, inputs, strict=True):
                put(given)
        self._given = True

    def _run(self, observer: Observer | None) -> None:
        self._check_open()
        if not self._given:
            raise InvalidArgumentError(
                f"method {self.name!r} takes {len(self._inputs)} input(s), and none was given yet",
                hint="call set_inputs(inputs) first, or execute(inputs)",
            )
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
        self._has_outputs = True

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
        operands = self._operands(number)
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
        elif isinstance(cause, (RuntimeError, ValueError, IndexError, TypeError, ArithmeticError)):
            error = InvalidArgumentError(_first_line(cause))
        else:
            error = InternalError(f"{type(cause).__name__}: {_first_line(cause)}")
        error.add_context(f"method {self.name!r}, instruction {number} failed:")
        error.context += format_window(self._table.plan, number).splitlines()
        error.context += operands
        return error

    def _operands(self, number: int) -> list[str]:
        instruction = self._table.plan.instructions[number]
        if not isinstance(instruction, (KernelCall, DelegateCall)):
            return []
        lines = []
        for index in dict.fromkeys(instruction.args):
            value = self._table.values[index]
            if isinstance(value, torch.Tensor):
                lines.append(f"%{index} is {describe(value)}, strides {tuple(value.stride())}")
        return lines

    # -- what it is ------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The method's name in the program."""
        return self._table.plan.name

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
        state = "closed" if self._closed else f"{len(self._bound.steps)} bound calls"
        return f"<pteron.Method {self.name!r}: {state}>"

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
            for handle in self._delegates.values():
                handle.close()
            self._delegates.clear()
            self._table.values.clear()
            self._table.state.clear()
            self._bound = BoundPlan((), (), {})
            self._blocks, self._captured, self._first_runs = (), None, None
            self._inputs = []
            self._memory.allocator.arenas.clear()

    def __enter__(self) -> Method:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class State(Mapping[str, torch.Tensor]):
    """Reads and writes a method's mutable buffers. Views the method.

    A buffer is known by its fully qualified name if the file has it
    (``ExecutorchBackendConfig(emit_mutable_buffer_names=True)``), else as ``value_N``. Reading
    gives a copy; assigning copies into place.
    """

    def __init__(self, method: Method) -> None:
        self._method = method

    def _slots(self) -> dict[str, StateSlot]:
        self._method._check_open()
        slots = self._method._table.state
        return {slot.name or f"value_{index}": slot for index, slot in slots.items()}

    def _slot(self, name: str) -> StateSlot:
        slots = self._slots()
        if name not in slots:
            known = ", ".join(slots) or "none"
            raise NotFoundError(
                f"method {self._method.name!r} has no state {name!r}; it has: {known}"
            )
        return slots[name]

    def __getitem__(self, name: str) -> torch.Tensor:
        with self._method._memory.lock, isolated():
            return self._slot(name).tensor.clone()

    def __setitem__(self, name: str, value: torch.Tensor) -> None:
        with self._method._memory.lock, isolated(), torch.inference_mode():
            slot = self._slot(name).tensor
            if value.shape != slot.shape or value.dtype != slot.dtype:
                raise InvalidArgumentError(
                    f"state {name!r} is {describe(slot)}, got {describe(value)}"
                )
            slot.copy_(value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots())

    def __len__(self) -> int:
        return len(self._slots())

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Return copies of all state, to be given to :meth:`restore` later."""
        return {name: self[name] for name in self}

    def restore(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Write back what :meth:`snapshot` returned; every name has to be known."""
        for name in saved:
            self._slot(name)
        for name, value in saved.items():
            self[name] = value


def _first_line(error: BaseException | None) -> str:
    """Return what an error of torch says, without the C++ stack that some carry."""
    text = str(error).strip()
    return text.split("\nException raised from")[0].splitlines()[0] if text else repr(error)
