"""Runs delegates of ExecuTorch's XNNPACK backend with torch's operators."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import torch

from pteron.backends.interface import Backend, BackendInitContext, DelegateHandle
from pteron.backends.xnnpack import convolution, elementwise, layout, linear, pooling, quantized
from pteron.backends.xnnpack.blob import Blob, read_blob
from pteron.backends.xnnpack.buffers import BufferPool
from pteron.backends.xnnpack.constants import Constants
from pteron.backends.xnnpack.graph import Datatype, Value
from pteron.backends.xnnpack.planner import LATTICE, LOWERINGS, Operand, Perm, Planner
from pteron.backends.xnnpack.tape import Var
from pteron.backends.xnnpack.verify import verify_blob
from pteron.errors import (
    DelegateInvalidHandleError,
    InvalidProgramError,
    NotSupportedError,
    PteronError,
)
from pteron.format.schema import ScalarType, Tensor, TensorShapeDynamism
from pteron.memory.hierarchical_allocator import dense_strides

__all__ = ["XnnpackBackend", "XnnpackDelegate"]

Shapes: TypeAlias = tuple[torch.Size, ...]

MAX_KEPT_PLANS = 8
"""Plans for different input shapes that a dynamic delegate keeps."""

_ELEMENTS: dict[Datatype, frozenset[ScalarType]] = {
    Datatype.FP32: frozenset({ScalarType.FLOAT}),
    Datatype.FP16: frozenset({ScalarType.HALF}),
    Datatype.BF16: frozenset({ScalarType.BFLOAT16}),
    Datatype.QINT8: frozenset({ScalarType.CHAR}),
    Datatype.QUINT8: frozenset({ScalarType.BYTE}),
    Datatype.INT32: frozenset({ScalarType.INT}),
}
_INDICES = frozenset({ScalarType.INT, ScalarType.LONG})

# The modules register what they lower when they are imported.
_KNOWN = frozenset(LOWERINGS)
_MODULES = (convolution, elementwise, layout, linear, pooling, quantized)


class XnnpackBackend(Backend):
    """Makes handles for ``XnnpackBackend`` delegates."""

    id: ClassVar[str] = "XnnpackBackend"

    def init(self, context: BackendInitContext) -> XnnpackDelegate:
        """Check the graph and prepare its constants."""
        where = f"method {context.method_name!r}, delegate {context.delegate_index} (XNNPACK)"
        if context.device.type not in ("cpu", "cuda"):
            raise NotSupportedError(
                f"{where} was sent to {context.device}; it runs on cpu and cuda"
            )
        try:
            blob = read_blob(context.processed)
        except PteronError as error:
            error.add_context(f"{where}: offsets count from where the delegate begins")
            raise
        verify_blob(blob, context.named_data, where=where)
        _check_arguments(context, blob, where)
        return XnnpackDelegate(context, blob, where)


def _check_arguments(context: BackendInitContext, blob: Blob, where: str) -> None:
    """Check that the call's values are what the graph takes and gives."""
    graph = blob.graph
    if graph.num_externs != len(context.args):
        raise InvalidProgramError(
            f"{where}: {len(context.args)} arguments for a graph that takes {graph.num_externs}"
        )
    places = {node.outputs[1] for node in graph.nodes if len(node.outputs) > 1}
    for value in (*graph.inputs, *graph.outputs):
        argument = context.args[value.external_id]
        place = f"{where}: argument {value.external_id}"
        if not isinstance(argument, Tensor):
            raise InvalidProgramError(
                f"{place} is {type(argument).__name__}; the graph takes a tensor ({value})"
            )
        allowed = _ELEMENTS[value.datatype]
        if value.id in places:  # written as the caller's integers, whatever the graph calls them
            allowed = allowed | _INDICES
        if argument.scalar_type not in allowed:
            raise InvalidProgramError(
                f"{place} has type {argument.scalar_type.torch_name}; the graph has {value}"
            )
        dims = physical_sizes(argument) if value.dims else argument.sizes
        fits = len(dims) == len(value.dims)
        if argument.shape_dynamism is TensorShapeDynamism.STATIC and value.is_input:
            fits = dims == value.dims
        if not fits:
            raise InvalidProgramError(
                f"{place} has the dimensions {dims} in memory; the graph has {value}"
            )


def physical_sizes(argument: Tensor) -> tuple[int, ...]:
    """Return a tensor's sizes in the order of memory, as XNNPACK sees it. A scalar is one long."""
    return tuple(argument.sizes[axis] for axis in argument.dim_order) or (1,)


class XnnpackDelegate(DelegateHandle):
    """Owns one delegate: its prepared constants and its plans."""

    def __init__(self, context: BackendInitContext, blob: Blob, where: str) -> None:
        self.device = context.device
        self.graph = quantized.split_mixed_rows(blob.graph)
        self._where = where
        self._args = context.args  # some are sizes: the graph does not read them
        self._constants: Constants | None = Constants(
            blob,
            context.named_data,
            context.device,
            context.program_store,
            owner=(context.method_name, context.delegate_index),
        )
        key = (XnnpackBackend.id, "buffers", str(context.device))
        self._pool: BufferPool = context.instance_store.setdefault(key, BufferPool(context.device))

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._constants is None

    def close(self) -> None:
        """Give back constants and plans; calls made from the handle raise from now on."""
        self._constants = None

    def bind(self, args: Sequence[Any]) -> Callable[[], None]:
        """Return a call that runs the graph on these tensors.

        Where shapes are fixed, the plan is made here; otherwise when shapes are first seen.
        """
        call = BoundCall(self, tuple(args))
        if call.is_static:
            call.plan(call.file_shapes())
        return call.run

    def constants(self) -> Constants:
        """Return the constants, or raise if the handle is closed."""
        if self._constants is None:
            raise DelegateInvalidHandleError(f"{self._where}: the delegate is closed")
        return self._constants

    def is_fixed(self, external_id: int) -> bool:
        """Whether an argument keeps its shape and its place in memory."""
        argument = self.argument(external_id)
        static = argument.shape_dynamism is TensorShapeDynamism.STATIC
        return static and argument.allocation_info is not None

    def argument(self, external_id: int) -> Tensor:
        """Return what the file says of an argument of the graph, which is a tensor."""
        argument = self._args[external_id]
        assert isinstance(argument, Tensor)
        return argument

    def new_planner(self) -> Planner:
        """Return a planner for the graph."""
        return Planner(self.graph, self.constants(), self._pool, where=self._where)


class Plan:
    """One graph's calls for one set of input shapes, and the shapes of its outputs."""

    __slots__ = ("output_shapes", "run", "source")

    def __init__(
        self, run: Callable[..., None], output_shapes: tuple[tuple[int, ...], ...], source: str
    ) -> None:
        self.run = run
        self.output_shapes = output_shapes
        self.source = source


class BoundCall:
    """Runs one delegate on tensors that stay the same objects."""

    def __init__(self, delegate: XnnpackDelegate, args: tuple[torch.Tensor, ...]) -> None:
        self._delegate = delegate
        self._args = args
        graph = delegate.graph
        self._inputs = [args[value.external_id] for value in graph.inputs]
        self._outputs = [
            (args[value.external_id], delegate.argument(value.external_id).dim_order)
            for value in graph.outputs
        ]
        # Tensors that may move are given to the plan at each call.
        self._moving = [v for v in (*graph.inputs, *graph.outputs) if not self._is_fixed(v)]
        self._given = [args[value.external_id] for value in self._moving]
        self.is_static = all(
            delegate.argument(value.external_id).shape_dynamism is TensorShapeDynamism.STATIC
            for value in (*graph.inputs, *graph.outputs)
        )
        self._plans: OrderedDict[Shapes, Plan] = OrderedDict()
        self._last: Shapes | None = None
        self._run: Callable[..., None] = _never

    @property
    def run(self) -> Callable[[], None]:
        """The call. Not kept here: a cycle would hold the file until it is collected."""
        return self._run_static if self.is_static else self._run_dynamic

    def shapes(self) -> Shapes:
        """Return the shapes of the inputs as they are now."""
        return tuple(tensor.shape for tensor in self._inputs)

    def file_shapes(self) -> Shapes:
        """Return the shapes that the file gives the inputs."""
        graph, delegate = self._delegate.graph, self._delegate
        return tuple(torch.Size(delegate.argument(v.external_id).sizes) for v in graph.inputs)

    def _run_static(self) -> None:
        self._delegate.constants()
        self._run(*self._given)

    def _run_dynamic(self) -> None:
        self._delegate.constants()
        shapes = self.shapes()
        if shapes != self._last:
            self.plan(shapes)
        self._run(*self._given)

    def plan(self, shapes: Shapes) -> None:
        """Make ready for these input shapes: find or make the plan, and fit the outputs."""
        plan = self._plans.pop(shapes, None)
        if plan is None:
            with torch.inference_mode():
                plan = self._new_plan(shapes)
        self._plans[shapes] = plan
        if len(self._plans) > MAX_KEPT_PLANS:
            self._plans.popitem(last=False)
        for (tensor, dim_order), shape in zip(self._outputs, plan.output_shapes, strict=True):
            fit(tensor, shape, dim_order)
        self._run = plan.run
        self._last = shapes

    def _is_fixed(self, value: Value) -> bool:
        return self._delegate.is_fixed(value.external_id) and (
            self._args[value.external_id].device == self._delegate.device
        )

    def _new_plan(self, shapes: Shapes) -> Plan:
        planner = self._delegate.new_planner()
        graph, tape = planner.graph, planner.tape
        parameters = [tape.new_var() for _ in self._moving]
        given = {value.id: var for value, var in zip(self._moving, parameters, strict=True)}
        for value, shape in zip(graph.inputs, shapes, strict=True):
            self._set_input(planner, value, given.get(value.id), shape)
        for value in graph.outputs:
            self._set_target(planner, value, given.get(value.id))
        planner.run()
        for value in graph.outputs:
            target = self._target(planner, value, given.get(value.id))
            planner.finish(value, _writer(planner, value, target))
        results = tuple(self._logical_shape(value, planner) for value in graph.outputs)
        return Plan(tape.function(parameters), results, tape.source)

    def _logical_shape(self, value: Value, planner: Planner) -> tuple[int, ...]:
        """Return an output's shape with its dimensions in the caller's order."""
        order = self._delegate.argument(value.external_id).dim_order
        shape = planner.shapes[value.id]
        return tuple(shape[order.index(axis)] for axis in range(len(order)))

    def _set_input(
        self, planner: Planner, value: Value, var: Var | None, shape: torch.Size
    ) -> None:
        tensor = self._args[value.external_id]
        base, perm = self._as_graph_sees(planner, value, var)
        sizes = [shape[axis] for axis in perm] if perm else tuple(shape) or value.dims
        if tensor.device != planner.device:
            base = planner.tape.value(torch.Tensor.to, base, planner.device)
        if value.datatype in LATTICE:
            planner.shapes[value.id] = tuple(sizes)
            quantized.read(planner, value, base if perm is None else planner.permuted(base, perm))
        else:
            planner.set_input(value, base, perm, tuple(sizes), tensor.dtype)

    def _as_graph_sees(
        self, planner: Planner, value: Value, var: Var | None
    ) -> tuple[Operand, Perm | None]:
        """Return an argument and the permutation that gives it the value's dimensions."""
        argument = self._delegate.argument(value.external_id)
        base: Operand = self._args[value.external_id] if var is None else var
        if not argument.sizes:
            return planner.reshaped(base, value.dims), None
        order = argument.dim_order
        return base, None if order == tuple(range(len(order))) else order

    def _set_target(self, planner: Planner, value: Value, var: Var | None) -> None:
        tensor = self._args[value.external_id]
        if tensor.device != planner.device or tensor.dtype != planner.float_type(value.id):
            return
        if value.datatype in LATTICE:
            return
        order = self._delegate.argument(value.external_id).dim_order
        dense = order == tuple(range(len(order)))
        planner.set_target(value, self._target(planner, value, var), dense=dense)

    def _target(self, planner: Planner, value: Value, var: Var | None) -> Operand:
        known = planner.target(value.id)
        if known is not None:
            return known
        base, perm = self._as_graph_sees(planner, value, var)
        return base if perm is None else planner.permuted(base, perm)


def _writer(planner: Planner, value: Value, target: Operand) -> Callable[[Operand], None]:
    def write(result: Operand) -> None:
        if value.datatype in LATTICE:
            quantized.write(planner, value, target, result)
        else:
            planner.tape.call(torch.Tensor.copy_, target, result)

    return write


def _never(*_: Any) -> None:
    raise AssertionError("a delegate ran before it was planned")


def fit(tensor: torch.Tensor, shape: tuple[int, ...], dim_order: tuple[int, ...]) -> None:
    """Give a tensor a shape, dense in the order of ``dim_order``; it grows if it has to."""
    strides = dense_strides(shape, dim_order)
    if tuple(tensor.shape) == shape and tensor.stride() == tuple(strides):
        return
    if tensor.untyped_storage().nbytes() < _bytes_of(shape, tensor.itemsize):
        tensor.resize_(shape)
    tensor.as_strided_(shape, strides)


def _bytes_of(shape: tuple[int, ...], itemsize: int) -> int:
    for size in shape:
        itemsize *= size
    return itemsize
