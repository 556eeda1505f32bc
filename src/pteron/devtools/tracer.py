"""Trace runs: when each instruction ran, how long it took, and what it wrote.

A trace is kept as ETDump events (:mod:`pteron.format.etdump`), laid out as ExecuTorch's own
runtime lays them out, so that its Inspector reads the file.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, Final, TypeAlias

import torch

from pteron.executor.method import Method
from pteron.format.etdump import (
    NO_DATA,
    DebugEvent,
    ETDump,
    ProfileEvent,
    RunData,
    TracedTensor,
    write_etdump,
)
from pteron.format.schema import (
    DelegateCall,
    ExecutionPlan,
    FreeCall,
    Instruction,
    JumpFalseCall,
    KernelCall,
    MoveCall,
    Operator,
    ScalarType,
)
from pteron.program.effects import access

logger = logging.getLogger("pteron")

LOADING: Final = "Default"
EXECUTION: Final = "Execute"
"""Names of blocks, as ExecuTorch gives them."""

ALIGNMENT: Final = 64
"""Of a tensor's bytes in the debug file."""

_CALLS: Final[dict[type, str]] = {
    KernelCall: "OPERATOR_CALL",
    DelegateCall: "DELEGATE_CALL",
    JumpFalseCall: "JF_CALL",
    MoveCall: "MOVE_CALL",
    FreeCall: "FREE_CALL",
}

_SCALAR_TYPES: Final = {
    getattr(torch, code.torch_name): int(code)
    for code in ScalarType
    if hasattr(torch, code.torch_name)
}


class DebugBuffer:
    """Owns the bytes of traced tensors, up to a number of bytes.

    Tensors on a device are copied to the host. What no longer fits is left out and said so in the
    log, once; the run goes on.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._data = bytearray()
        self._said = False

    def add(self, tensor: torch.Tensor) -> int | None:
        """Keep a tensor's value and return its offset.

        An empty tensor has NO_DATA; for one that is larger than what is left it is None.
        """
        nbytes = tensor.numel() * tensor.element_size()
        offset = -(-len(self._data) // ALIGNMENT) * ALIGNMENT
        if not nbytes:
            return NO_DATA
        if offset + nbytes > self.size:
            if not self._said:
                self._said = True
                logger.warning(
                    "the debug buffer of %d bytes is full: values that do not fit are left out",
                    self.size,
                )
            return None
        flat = tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8)
        self._data += bytes(offset - len(self._data)) + flat.numpy().tobytes()
        return offset

    def clear(self) -> None:
        """Start again from the first byte."""
        self._data.clear()
        self._said = False

    def getvalue(self) -> bytes:
        """Return the whole buffer; what was not used is zero."""
        return bytes(self._data).ljust(self.size, b"\0")


class Tracer:
    """Owns a trace of the methods of one program.

    ``debug_buffer_size`` above 0 keeps also what every instruction wrote, in that many bytes.
    """

    def __init__(self, *, debug_buffer_size: int = 0) -> None:
        self._buffer = DebugBuffer(debug_buffer_size) if debug_buffer_size > 0 else None
        self._runs: list[RunData] = []
        self._taken = False

    @property
    def runs(self) -> Sequence[RunData]:
        """The blocks of events so far."""
        return self._runs

    @property
    def debug_buffer(self) -> bytes | None:
        """The values that the events' offsets count in, or None if they are not kept."""
        return self._buffer.getvalue() if self._buffer is not None else None

    def loaded(self, start: int, end: int) -> None:
        """Take note that a method was loaded between two times (``perf_counter_ns``)."""
        self._begin()
        if not self._runs or self._runs[-1].name != LOADING:
            self._runs.append(RunData(LOADING))
        self._runs[-1].events.append(ProfileEvent("Program::load_method", start, end))

    def execute(
        self, method: Method, plan: ExecutionPlan, inputs: Sequence[Any] | torch.Tensor = ()
    ) -> list[Any]:
        """Run a method on inputs, trace it, and return its outputs."""
        method.set_inputs(inputs)
        self.run(method, plan)
        return method.get_outputs()

    def run(self, method: Method, plan: ExecutionPlan, *, bundled_input: int = -1) -> None:
        """Run a method on the inputs that it has, and trace it."""
        self._begin()
        run = RunData(EXECUTION, bundled_input=bundled_input)
        self._runs.append(run)
        start = perf_counter_ns()
        try:
            method.run(observer=_Watch(run, method, plan, self._buffer))
        finally:
            run.events.append(ProfileEvent("Method::execute", start, perf_counter_ns()))
        for index in plan.outputs:
            self._output(run, method.values[index])

    def _output(self, run: RunData, value: Any) -> None:
        if self._buffer is None:
            return
        kept = traced(value, self._buffer)
        if kept is not None:
            run.events.append(DebugEvent(kept, chain=-1, output=True))

    def _begin(self) -> None:
        """Forget what was handed out before."""
        if self._taken:
            self._taken = False
            self._runs = []
            if self._buffer is not None:
                self._buffer.clear()

    def take(self) -> bytes:
        """Return the trace as an ETDump; the next run begins a new one."""
        self._taken = True
        return write_etdump(ETDump(self._runs))


Kept: TypeAlias = "TracedTensor | tuple[TracedTensor, ...] | bool | int | float"


def traced(value: Any, buffer: DebugBuffer) -> Kept | None:
    """Keep a value and describe it; None if it does not fit or is of a kind that is not traced."""
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, list):
        items = [traced(item, buffer) for item in value if isinstance(item, torch.Tensor)]
        kept = tuple(item for item in items if isinstance(item, TracedTensor))
        return kept if kept and len(kept) == len(items) else None
    if not isinstance(value, torch.Tensor):
        return None
    dense = value.detach().contiguous()
    offset = buffer.add(dense)
    if offset is None:
        return None
    return TracedTensor(
        _SCALAR_TYPES[value.dtype], tuple(dense.shape), tuple(dense.stride()), offset
    )


def kernel_event(operator: Operator) -> str:
    """Name a kernel's event as executorch's kernels do.

    Generated kernels leave the namespace away (``codegen/gen.py``), those for language models,
    written by hand, do not (``extension/llm/custom_ops/op_sdpa.cpp``).
    """
    namespace, _, name = operator.name.rpartition("::")
    kept = operator.name if namespace == "llama" else name
    return f"native_call_{kept}" + (f".{operator.overload}" if operator.overload else "")


class _Watch:
    """Is told of each instruction of one run. Views the method and the run."""

    def __init__(
        self, run: RunData, method: Method, plan: ExecutionPlan, buffer: DebugBuffer | None
    ) -> None:
        self._events = run.events
        self._values = method.values
        self._plan = plan
        self._buffer = buffer
        self._start = 0

    def before(self, instruction: int) -> None:
        self._start = perf_counter_ns()

    def after(self, instruction: int) -> None:
        end = perf_counter_ns()
        step = self._plan.instructions[instruction]
        if self._buffer is not None:
            self._keep(step, instruction, self._buffer)
        if isinstance(step, KernelCall):
            name = kernel_event(self._plan.operators[step.op_index])
            event = ProfileEvent(name, self._start, end, 0, instruction)
            self._events.append(event)
        name = _CALLS[type(step)]
        self._events.append(ProfileEvent(name, self._start, end, 0, instruction))

    def _keep(self, step: Instruction, number: int, buffer: DebugBuffer) -> None:
        """Add what an instruction wrote; of a delegate, all that it was given."""
        if isinstance(step, DelegateCall):
            indices: Sequence[int] = step.args
        elif isinstance(step, KernelCall):
            done = access(self._plan, step)
            changed = () if done.assumed else done.updates
            indices = tuple(dict.fromkeys((*done.writes, *changed)))
        else:
            return
        for index in indices:
            kept = traced(self._values[index], buffer)
            if kept is not None:
                self._events.append(DebugEvent(kept, 0, number))
