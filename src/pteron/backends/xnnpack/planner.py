"""Turns a graph, for given shapes, into calls that are ready to run.

Each value of the graph is :class:`Held` as a tensor in the order of dimensions that suits what made
it, so that transposes cost nothing and convolutions see (batch, channels, height, width) over
memory that runs along channels, as the graph's own images do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

import torch

from pteron.backends.xnnpack.buffers import Block, BufferPool, shaped
from pteron.backends.xnnpack.constants import Constants
from pteron.backends.xnnpack.graph import Datatype, Graph, Node, NodeKind, Value
from pteron.backends.xnnpack.shapes import Shape, ShapeError, infer_shapes
from pteron.backends.xnnpack.tape import Tape, Var
from pteron.errors import (
    InvalidArgumentError,
    InvalidProgramError,
    NotSupportedError,
    PteronError,
)

Operand: TypeAlias = torch.Tensor | Var
Perm: TypeAlias = tuple[int, ...]

NCHW: Perm = (0, 3, 1, 2)
"""``x.permute(NCHW)`` gives an image of the graph as (batch, channels, height, width)."""
NHWC: Perm = (0, 2, 3, 1)
"""``x.permute(NHWC)`` undoes that."""

FLOATS = {
    Datatype.FP32: torch.float32,
    Datatype.FP16: torch.float16,
    Datatype.BF16: torch.bfloat16,
}
LATTICE = frozenset({Datatype.QINT8, Datatype.QUINT8})
"""Values held as whole numbers in float32: their elements less the zero point. Arithmetic on them
is exact up to 2^24."""


@dataclass(slots=True)
class Held:
    """Where a value is: ``base.permute(perm)`` has the dimensions that the graph gives it.

    ``scale`` and ``zero`` are set for values that are quantized at run time: the scale and the
    zero point of each row. ``bytes`` and ``turned`` are the same numbers as integer products take
    them, made for the first that needs them; ``extras`` is their memory.
    """

    base: Operand
    shape: Shape
    dtype: torch.dtype
    block: Block
    perm: Perm | None = None
    scale: torch.Tensor | None = None
    zero: torch.Tensor | None = None
    bytes: torch.Tensor | None = None
    turned: torch.Tensor | None = None
    extras: list[Block] = field(default_factory=list)
    views: dict[Perm, Var] = field(default_factory=dict)

    @property
    def is_static(self) -> bool:
        """Whether its memory is known when the plan is made."""
        return isinstance(self.base, torch.Tensor)


Lowering: TypeAlias = "Callable[[Planner, Node], None]"

LOWERINGS: dict[NodeKind, Lowering] = {}
"""How to record each kind of node. The modules beside this one add to it."""


def lowers(*kinds: NodeKind) -> Callable[[Lowering], Lowering]:
    """Register a function that records nodes of these kinds."""

    def register(lowering: Lowering) -> Lowering:
        for kind in kinds:
            LOWERINGS[kind] = lowering
        return lowering

    return register


def compose(first: Perm | None, then: Perm | None) -> Perm | None:
    """Return the permutation that is ``permute(first)`` and after it ``permute(then)``."""
    if first is None or then is None:
        perm = first if then is None else then
    else:
        perm = tuple(first[axis] for axis in then)
    return None if perm is None or perm == tuple(range(len(perm))) else perm


def inverse(perm: Perm | None) -> Perm | None:
    """Return the permutation that undoes another."""
    return None if perm is None else tuple(perm.index(axis) for axis in range(len(perm)))


class Planner:
    """Records the calls of one graph for one set of input shapes."""

    def __init__(self, graph: Graph, constants: Constants, pool: BufferPool, *, where: str) -> None:
        self.graph = graph
        self.constants = constants
        self.device = pool.device
        self.uses_onednn = pool.device.type == "cpu" and torch._C._has_mkldnn
        self.tape = Tape()
        self.where = where
        self.held: dict[int, Held] = {}
        self.shapes: dict[int, Shape] = {}
        self._pool = pool
        self._targets: dict[int, Operand] = {}
        self._consumers: dict[int, list[int]] = {}
        for index, node in enumerate(graph.nodes):
            for number in node.inputs:
                self._consumers.setdefault(number, []).append(index)
        self._left = Counter({number: len(uses) for number, uses in self._consumers.items()})
        self._left.update(value.id for value in graph.outputs)
        self._vars: Counter[Var] = Counter()
        self._views: set[Var] = set()
        self._dense: set[Var] = set()
        self._scratch: list[Block] = []
        self._absorbed: set[int] = set()
        self._also_read: list[int] = []

    # -- the graph -------------------------------------------------------------------------------

    def set_input(
        self, value: Value, base: Operand, perm: Perm | None, shape: Shape, dtype: torch.dtype
    ) -> None:
        """Say where an input is: ``base.permute(perm)`` has the value's dimensions."""
        self.shapes[value.id] = shape
        self._hold(value.id, Held(base, shape, dtype, Block(writable=False), perm))

    def set_target(self, value: Value, target: Operand, *, dense: bool) -> None:
        """Say where a float output has to go: a tensor with the value's dimensions.

        ``dense`` is whether its elements lie in their order.
        """
        self._targets[value.id] = target
        if dense and isinstance(target, Var):
            self._dense.add(target)

    def target(self, number: int) -> Operand | None:
        """Return where an output has to go, if that was said."""
        return self._targets.get(number)

    def run(self) -> None:
        """Record every node."""
        for index, node in enumerate(self.graph.nodes):
            if index in self._absorbed:
                continue
            self._infer(node)
            lowering = LOWERINGS.get(node.kind)
            if lowering is None:
                self.refuse(f"{node}: nodes of this kind are not known")
            first = self.tape.next_number
            self._lower(lowering, node)
            self._end_node(node, range(first, self.tape.next_number))

    def _lower(self, lowering: Lowering, node: Node) -> None:
        """Record one node; numbers that its arithmetic cannot take are the file's."""
        try:
            lowering(self, node)
        except PteronError:
            raise
        except (ArithmeticError, ValueError) as error:
            raise InvalidProgramError(f"{self.where}: {node}: {error}") from error

    def _end_node(self, node: Node, made: range) -> None:
        """Free what only this node needed: last uses of its inputs, and views made for it."""
        for number in (*node.inputs, *self._also_read):
            self._use(number)
        for number in node.outputs:
            if number in self.held and not self._left[number]:
                self._release(number)  # nobody reads it
        self._also_read.clear()
        for block in self._scratch:
            block.release()
        self._scratch.clear()
        kept = self._vars.keys() | self._views
        self.tape.drop(*(var for var in map(Var, made) if var not in kept))

    def finish(self, value: Value, write: Callable[[Operand], None]) -> None:
        """Record the copy of an output to where it has to go, if it is not there."""
        held = self.held[value.id]
        if held.base is not self._targets.get(value.id):
            write(self.x(value.id))
        self._use(value.id)

    def refuse(self, message: str) -> NoReturn:
        """Raise for something that a graph may hold and this backend cannot run."""
        raise NotSupportedError(f"{self.where}: {message}")

    def value(self, number: int) -> Value:
        """Return a value's table."""
        return self.graph.by_id[number]

    def _infer(self, node: Node) -> None:
        for number in node.inputs:
            if number not in self.shapes:
                self.shapes[number] = self.value(number).dims
        try:
            shapes = infer_shapes(node, [self.shapes[number] for number in node.inputs])
        except ShapeError as error:
            raise InvalidArgumentError(f"{self.where}: {node}: {error}") from error
        self.shapes.update(zip(node.outputs, shapes, strict=True))

    # -- nodes that do the work of others ----------------------------------------------------------

    def consumers(self, number: int) -> list[Node]:
        """Return the nodes that read a value."""
        return [self.graph.nodes[index] for index in self._consumers.get(number, [])]

    def only_consumer(self, number: int) -> tuple[int, Node] | None:
        """Return the one node that reads a value which nobody else needs."""
        uses = self._consumers.get(number, [])
        if len(uses) != 1 or self.value(number).is_output:
            return None
        return uses[0], self.graph.nodes[uses[0]]

    def absorb(self, index: int, *, reads: Sequence[int] = ()) -> Node:
        """Take over a later node; ``reads`` are its inputs that the current node does not make."""
        node = self.graph.nodes[index]
        self._absorbed.add(index)
        self._infer(node)
        self._also_read.extend(reads)
        return node

    # -- operands --------------------------------------------------------------------------------

    def x(self, number: int, perm: Perm | None = None) -> Operand:
        """Return an operand that has the value's dimensions, permuted by ``perm``."""
        held = self.find(number)
        wanted = compose(held.perm, perm)
        if wanted is None:
            return held.base
        if isinstance(held.base, torch.Tensor):
            return held.base.permute(wanted)
        if wanted not in held.views:
            view = held.views[wanted] = self.tape.method(held.base, "permute", *wanted)
            self._views.add(view)
        return held.views[wanted]

    def find(self, number: int) -> Held:
        """Return where a value is. A constant is loaded when it is first read."""
        held = self.held.get(number)
        if held is None:
            value = self.value(number)
            tensor = self.constants.plain(value)
            held = Held(tensor, value.dims, tensor.dtype, Block(writable=False))
            self.shapes[number] = value.dims
            self._hold(number, held)
        return held

    def frame(self, *numbers: int) -> Perm | None:
        """Return the order of dimensions in which a node's operands cost the fewest views.

        That of the first one that exists only at run time: tensors that are known already can be
        viewed in any order for nothing.
        """
        for number in numbers:
            held = self.held.get(number)
            if held is not None and not held.is_static:
                return inverse(held.perm)
        return None

    def float_type(self, number: int) -> torch.dtype:
        """Return the type of the tensor that holds a value."""
        datatype = self.value(number).datatype
        return torch.int32 if datatype is Datatype.INT32 else FLOATS.get(datatype, torch.float32)

    # -- results ---------------------------------------------------------------------------------

    def out(self, number: int) -> Operand:
        """Return the tensor that a node has to write its output into, and hold it.

        It is the caller's own, if the output leaves the graph as it is, and otherwise a buffer.
        """
        shape, dtype = self.shapes[number], self.float_type(number)
        target = self._targets.get(number)
        if target is not None:
            self._hold(number, Held(target, shape, dtype, Block()))
            return target
        block, tensor = self._take(shape, dtype)
        self._hold(number, Held(tensor, shape, dtype, block))
        return tensor

    def out_in(self, number: int, frame: Perm | None) -> Operand:
        """Return what :meth:`out` does, with its dimensions permuted by ``frame``."""
        tensor = self.out(number)
        return tensor if frame is None else self.permuted(tensor, frame)

    def over(self, number: int, source: int) -> Operand | None:
        """Return an input's memory to write the output over; None if it is needed or not ours.

        The output is then held as the input was.
        """
        held = self.held.get(source)
        if (
            held is None
            or self._left[source] > 1
            or held.block.users > 1
            or not held.block.writable
            or held.dtype != self.float_type(number)
            or held.shape != self.shapes[number]
            or number in self._targets
        ):
            return None
        self._hold(number, Held(held.base, held.shape, held.dtype, held.block, held.perm))
        return held.base

    def source_and_target(self, node: Node) -> tuple[Operand, Operand]:
        """Return a node's first input, and where its output goes: over the input, if it may."""
        source, target = node.inputs[0], node.outputs[0]
        frame = self.frame(source)
        operand = self.x(source, frame)
        if self.over(target, source) is not None:
            return operand, operand
        return operand, self.out_in(target, frame)

    def two_sources_and_target(self, node: Node) -> tuple[Operand, Operand, Operand]:
        """Return two inputs that broadcast as they are, and where the output goes."""
        first, second = node.inputs
        (target,) = node.outputs
        rank = len(self.shapes[target])
        frame = self.frame(*(n for n in node.inputs if len(self.find(n).shape) == rank))
        a, b = self._aligned(first, rank, frame), self._aligned(second, rank, frame)
        if any(self.over(target, source) is not None for source in node.inputs):
            return a, b, self.x(target, frame)
        return a, b, self.out_in(target, frame)

    def _aligned(self, number: int, rank: int, frame: Perm | None) -> Operand:
        """Return an operand whose dimensions, in the order of ``frame``, are ``rank`` in number."""
        shape = self.find(number).shape
        if frame is None or len(shape) == rank:
            return self.x(number, frame)
        padded = self.reshaped(self.x(number), (1,) * (rank - len(shape)) + shape)
        return self.permuted(padded, frame)

    def result(self, number: int, base: Operand, perm: Perm | None = None) -> None:
        """Say that a call returned a node's output: ``base.permute(perm)``."""
        held = Held(base, self.shapes[number], self.float_type(number), Block(), perm)
        self._hold(number, held)

    def alias(self, number: int, source: int, base: Operand, perm: Perm | None = None) -> None:
        """Say that a node's output, ``base.permute(perm)``, shares memory with an input."""
        held = self.find(source)
        held = Held(base, self.shapes[number], held.dtype, held.block, perm, held.scale, held.zero)
        self._hold(number, held)

    def scratch(self, shape: Shape, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return memory that is needed until the current node is done."""
        block, tensor = self._take(shape, dtype)
        block.users = 1
        self._scratch.append(block)
        return tensor

    def keep(self, number: int, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        """Return memory that is needed as long as a value is."""
        block, tensor = self._take(shape, dtype)
        block.users = 1
        self.held[number].extras.append(block)
        return tensor

    def permuted(self, base: Operand, perm: Perm) -> Operand:
        """Return a view with its dimensions in another order."""
        if isinstance(base, torch.Tensor):
            return base.permute(perm)
        return self.tape.method(base, "permute", *perm)

    def narrowed(self, base: Operand, axis: int, begin: int, size: int) -> Operand:
        """Return a part of a tensor, as a view."""
        if isinstance(base, torch.Tensor):
            return base if base.shape[axis] == size else base.narrow(axis, begin, size)
        return self.tape.method(base, "narrow", axis, begin, size)

    def reshaped(self, base: Operand, shape: Shape) -> Operand:
        """Return the elements in another shape: a view if their order in memory allows it."""
        if not isinstance(base, torch.Tensor):
            return self.tape.method(base, "reshape", list(shape))
        try:
            return base.view(shape)
        except RuntimeError:
            dense = self.scratch(tuple(base.shape), base.dtype)
            self.tape.call(torch.Tensor.copy_, dense, base)
            return dense.view(shape)

    def dense_view(self, base: Operand, shape: Shape) -> Operand | None:
        """Return a view in another shape; None if the elements do not lie in their order."""
        if isinstance(base, torch.Tensor):
            return base.view(shape) if base.is_contiguous() else None
        return self.tape.method(base, "view", list(shape)) if base in self._dense else None

    def shares_memory(self, one: Operand, other: Operand) -> bool:
        """Whether one of the operands that :meth:`dense_view` gives and takes is the other."""
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            return one.data_ptr() == other.data_ptr()
        return not isinstance(one, torch.Tensor) and not isinstance(other, torch.Tensor)

    def _take(self, shape: Shape, dtype: torch.dtype) -> tuple[Block, torch.Tensor]:
        nbytes = dtype.itemsize
        for size in shape:
            nbytes *= size
        memory = self._pool.take(nbytes)
        return Block(self._pool, memory), shaped(memory, shape, dtype)

    def _hold(self, number: int, held: Held) -> None:
        self.held[number] = held
        held.block.users += 1
        if isinstance(held.base, Var):
            self._vars[held.base] += 1

    def _use(self, number: int) -> None:
        self._left[number] -= 1
        if self._left[number] == 0 and number in self.held:
            self._release(number)

    def _release(self, number: int) -> None:
        held = self.held[number]
        for block in (held.block, *held.extras):
            block.release()
        dead = list(held.views.values())
        held.views.clear()
        if isinstance(held.base, Var):
            self._vars[held.base] -= 1
            if not self._vars[held.base]:
                dead.append(held.base)
        self.tape.drop(*dead)
