"""From a method's plan to a method that runs. Undone in reverse order if a step fails."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from pteron.backends.interface import Backend, BackendInitContext, DelegateHandle
from pteron.backends.registry import BackendRegistry
from pteron.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    NotSupportedError,
    PteronError,
)
from pteron.executor.bind import PlanBinder, delegate_failure, method_name
from pteron.executor.evalue import ValueBuilder, ValueTable
from pteron.executor.isolation import isolated
from pteron.executor.load_problems import check_loadable
from pteron.executor.method import Method
from pteron.executor.nodes import ProgramNodes, check_counts
from pteron.executor.passes import PASSES, Lowering
from pteron.format.pte import PteFile
from pteron.format.schema import (
    DelegateCall,
    Device,
    DeviceType,
    ExecutionPlan,
    Tensor,
)
from pteron.format.source import ByteSource
from pteron.kernels.registry import OperatorRegistry
from pteron.memory.device_map import DeviceMap
from pteron.memory.program_memory import ProgramMemory
from pteron.program.constants import constant_bytes, initial_bytes
from pteron.program.data_map import NamedDataMap
from pteron.program.method_meta import MethodMeta
from pteron.program.unwritten import first_unwritten
from pteron.program.verify import Verified, verify_method

logger = logging.getLogger("pteron")

TARGET_DEVICE = "target_device"
"""The compile spec that names a delegate's device (``exir/passes/propagate_device_pass.py``)."""

NATIVE_CODE_VARIABLE = "PTERON_NATIVE_CODE"
"""Environment variable: ``refuse`` keeps this process from running native code out of files."""


OPTIMIZE_VARIABLE = "PTERON_OPTIMIZE"
"""Environment variable: ``0`` binds every instruction as the file has it."""


def optimize_allowed(choice: bool) -> bool:
    """Return whether passes may drop instructions: the argument and the environment both allow."""
    environment = os.environ.get(OPTIMIZE_VARIABLE, "1")
    if environment not in ("0", "1"):
        raise InvalidArgumentError(f"{OPTIMIZE_VARIABLE} is '0' or '1', got {environment!r}")
    return choice and environment == "1"


def native_code_allowed(choice: str) -> bool:
    """Return whether delegates may run native code: the argument and the environment both allow."""
    environment = os.environ.get(NATIVE_CODE_VARIABLE, "allow")
    for name, value in (("native_code", choice), (NATIVE_CODE_VARIABLE, environment)):
        if value not in ("allow", "refuse"):
            raise InvalidArgumentError(f"{name} is 'allow' or 'refuse', got {value!r}")
    return choice == "allow" and environment == "allow"


@dataclass
class LoadContext:
    """What the methods of one program are loaded with. The program owns it."""

    pte: PteFile
    verified: Verified
    nodes: ProgramNodes
    data_map: NamedDataMap
    memory: ProgramMemory
    device_map: DeviceMap
    kernels: OperatorRegistry
    backends: BackendRegistry
    native_code: bool
    optimize: bool = True
    """Whether constants are folded and copies left out at load."""
    constants: dict[Any, torch.Tensor] = field(default_factory=dict)
    device_hint: Callable[[str], str | None] = lambda device: None
    """Says how to do without a device that this machine lacks."""
    shared: dict[Any, Any] = field(default_factory=dict)
    state_domain: dict[Any, Any] = field(default_factory=dict)
    """State that delegates of the program's methods name alike; an independent instance has its
    own (DESIGN, S2)."""

    def check_files(self) -> None:
        """Raise InvalidStateError if a mapped file was written to since it was opened."""
        for source in self.mapped:
            source.check_unchanged()

    @cached_property
    def mapped(self) -> tuple[ByteSource, ...]:
        """The files of which parts are read when they are used."""
        sources = (self.pte.source, *(ptd.source for ptd in self.data_map.ptds))
        return tuple(source for source in sources if source.is_mapped)

    def bytes_of(self, tensor: Tensor) -> memoryview:
        """Return the bytes of a constant, or the initial bytes of a mutable tensor."""
        read = constant_bytes if tensor.is_constant else initial_bytes
        return read(self.pte, self.data_map, tensor)


def load_method(
    context: LoadContext, plan: ExecutionPlan, metadata: MethodMeta, *, private: bool
) -> Method:
    """Allocate, bind and return a method; a failure names the method and leaves nothing behind."""
    delegates: dict[int, DelegateHandle] = {}
    constants = dict(context.constants)
    try:
        with isolated(), context.memory.undone_on_failure():
            return _load(context, plan, metadata, delegates, private=private)
    except BaseException as error:
        for handle in reversed(delegates.values()):
            handle.close()
        context.constants.clear()
        context.constants.update(constants)
        if isinstance(error, PteronError):
            error.add_context(f"while loading method {plan.name!r} of {context.pte.source.name}")
        raise


def _load(
    context: LoadContext,
    plan: ExecutionPlan,
    metadata: MethodMeta,
    delegates: dict[int, DelegateHandle],
    *,
    private: bool,
) -> Method:
    """Load a method; ``delegates`` is filled as it goes, so that the caller can close them."""
    context.check_files()
    verify_method(context.pte, context.verified, plan.name)
    check_loadable(context, plan)
    nodes = context.nodes.of(plan.name)
    check_counts(plan, nodes)
    _log_stray_tags(plan)
    memory = context.memory.allocate(plan.name, private=private)
    with torch.inference_mode():
        table = ValueBuilder(
            context.memory.plan(plan.name),
            memory,
            context.memory,
            context.bytes_of,
            context.device_map,
            context.constants,
            private=private,
        ).build()
        _initialise_state(context, table)
        _init_delegates(context, table, delegates, private=private)
        lowering = Lowering(table, nodes, memory.allocator, delegates)
        for run_pass in PASSES if context.optimize else ():
            run_pass(lowering)
        bound = PlanBinder(lowering, delegates).bind()
    if table.shares_state:
        memory.lock = context.memory.lock
    return Method(metadata, table, bound, memory, delegates, context)


def _log_stray_tags(plan: ExecutionPlan) -> None:
    """Log once if tensors are tagged for a device and lie in buffers that are on the host.

    Older exporters tag tensors alone. The buffer decides (DESIGN, P1).
    """
    tagged = {entry.buffer_idx for entry in plan.non_const_buffer_device}
    stray = [
        (index, value.device, value.allocation_info.memory_id)
        for index, value in enumerate(plan.values)
        if isinstance(value, Tensor)
        and value.allocation_info is not None
        and not value.device.is_host
        and value.allocation_info.memory_id not in tagged
    ]
    if stray:
        index, device, buffer = stray[0]
        logger.info(
            "method %r: %d tensor(s) are tagged for a device, but their buffers are on the host, "
            "where they stay (the first: value %d, tagged %s, in buffer %d)",
            plan.name,
            len(stray),
            index,
            device,
            buffer,
        )


def _initialise_state(context: LoadContext, table: ValueTable) -> None:
    for index, slot in table.state.items():
        if slot.shared:
            value = table.plan.values[index]
            assert isinstance(value, Tensor)
            place = value.allocation_info
            key = slot.name or (place.memory_id, place.memory_offset) if place else slot.name
            if context.memory.first_use(key):
                slot.reset()
        else:
            slot.reset()


def _init_delegates(
    context: LoadContext,
    table: ValueTable,
    delegates: dict[int, DelegateHandle],
    *,
    private: bool,
) -> None:
    plan = table.plan
    instance_store: dict[Any, Any] = {}
    state_store: dict[Any, Any] = {} if private else context.state_domain
    unwritten = first_unwritten(plan, table.memory_plan.graph.accesses)
    for instruction in plan.instructions:
        if not isinstance(instruction, DelegateCall) or instruction.delegate_index in delegates:
            continue
        number = instruction.delegate_index
        delegate = plan.delegates[number]
        backend = context.backends.require(delegate.id, f"method {plan.name!r}")
        device = _delegate_device(context, delegate.compile_spec(TARGET_DEVICE))
        init = BackendInitContext(
            backend_id=delegate.id,
            processed=context.pte.delegate_data(delegate),
            compile_specs=delegate.compile_specs,
            method_name=plan.name,
            delegate_index=number,
            named_data=context.data_map,
            device=device,
            args=tuple(plan.values[index] for index in instruction.args),
            native_code=context.native_code,
            program_store=context.shared,
            instance_store=instance_store,
            state_store=state_store,
            first_unwritten=unwritten[number],
        )
        try:
            delegates[number] = _init_delegate(backend, init)
        except PteronError as error:
            error.add_context(f"method {plan.name!r}, delegate {number} ({delegate.id})")
            raise


def _init_delegate(backend: Backend, context: BackendInitContext) -> DelegateHandle:
    try:
        handle = backend.init(context)
    except PteronError:
        raise
    except Exception as error:
        raise delegate_failure(error, backend, "init") from error
    if not isinstance(handle, DelegateHandle):
        raise InvalidTypeError(
            f"{method_name(backend, 'init')} has to return a DelegateHandle, got "
            f"{type(handle).__name__}"
        )
    return handle


def _delegate_device(context: LoadContext, spec: bytes | None) -> torch.device:
    """Return where a delegate has to run: its compile spec, moved by the device map."""
    if spec is None:
        return context.device_map(Device())
    text = bytes(spec).decode("ascii", "replace").strip("\0 ")
    kind, _, index = text.partition(":")
    try:
        tag = Device(DeviceType[kind.upper()], int(index or 0))
    except (KeyError, ValueError):
        raise NotSupportedError(
            f"compile spec {TARGET_DEVICE} is {text!r}; known are cpu, cuda and cuda:N"
        ) from None
    return context.device_map(tag)
