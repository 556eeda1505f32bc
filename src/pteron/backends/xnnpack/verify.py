"""Check an XNNPACK graph before anything is allocated or run from it (DESIGN, V1).

Reading (:mod:`pteron.backends.xnnpack.blob`) makes sure that every table lies inside the blob. This
is about what the tables mean: ids, constants, quantization, and shapes that go together.
"""

from __future__ import annotations

from contextlib import suppress
from math import isfinite, isnan, prod
from operator import itemgetter
from typing import TYPE_CHECKING

from pteron import limits
from pteron.backends.xnnpack.blob import Blob
from pteron.backends.xnnpack.graph import (
    EXTERNAL_INPUT,
    EXTERNAL_OUTPUT,
    MAX_RANK,
    Datatype,
    Graph,
    Node,
    PerBlock,
    PerChannel,
    PerTensor,
    PerToken,
    Value,
)
from pteron.backends.xnnpack.operand_rules import ARGUMENTS, LAYERS, RULES, broken_rules
from pteron.backends.xnnpack.shapes import Shape, ShapeError, infer_shapes
from pteron.errors import InvalidProgramError, NotFoundError
from pteron.program.violations import EnoughError, Findings, Violation

if TYPE_CHECKING:
    from pteron.program.data_map import NamedDataMap

_QUANTIZED: dict[Datatype, type] = {
    Datatype.QINT8: PerTensor,
    Datatype.QUINT8: PerTensor,
    Datatype.QINT32: PerTensor,
    Datatype.QCINT8: PerChannel,
    Datatype.QCINT32: PerChannel,
    Datatype.QCINT4: PerChannel,
    Datatype.QBINT4: PerBlock,
    Datatype.QDINT8: PerToken,
    Datatype.QPINT8: PerToken,
}
_ZERO_POINTS: dict[Datatype, range] = {
    Datatype.QINT8: range(-128, 128),
    Datatype.QUINT8: range(256),
    Datatype.QINT32: range(1),
}
_LEAST_SCALE = 2.0**-126
"""The least normal float32; XNNPACK refuses scales below it."""
_FIRST = itemgetter(0)


def verify_blob(blob: Blob, named_data: NamedDataMap | None, *, where: str) -> None:
    """Raise InvalidProgramError with everything that is wrong with a delegate's graph."""
    found = find_violations(blob, named_data)
    if found:
        first = found[0] if len(found) == 1 else f"{len(found)} violations, the first: {found[0]}"
        raise InvalidProgramError(f"{where}: {first}", violations=tuple(map(str, found)))


def find_violations(blob: Blob, named_data: NamedDataMap | None) -> tuple[Violation, ...]:
    """Return everything that is wrong with a delegate's graph.

    Without ``named_data``, constants outside the blob are not looked at.
    """
    findings = Findings()
    verifier = _Verifier(blob, named_data, findings)
    with suppress(EnoughError):
        verifier.run()
    return tuple(findings.found)


class _Verifier:
    """Walks one graph."""

    def __init__(self, blob: Blob, named_data: NamedDataMap | None, findings: Findings) -> None:
        self.blob = blob
        self.graph: Graph = blob.graph
        self.named_data = named_data
        self.findings = findings
        self.shapes: dict[int, Shape] = {}

    def run(self) -> None:
        self.externals()
        seen: set[int] = set()
        for value in self.graph.values:
            if value.id in seen:
                self.report(value, "its id is given twice")
            seen.add(value.id)
            self.value(value)
        for node in self.graph.nodes:
            self.node(node)
        for value in self.graph.outputs:
            if value.id not in self.shapes:
                self.report(value, "is an output of the graph that no node computes")

    def report(self, thing: Value | Node, message: str) -> None:
        self.findings.add(f"{thing} at offset {thing.at:#x} of the delegate", message)

    # -- values ----------------------------------------------------------------------------------

    def externals(self) -> None:
        used = [v for v in self.graph.values if v.is_input or v.is_output]
        count = self.graph.num_externs
        if count > limits.MAX_ARGUMENTS_PER_CALL:
            self.findings.add(
                "the graph",
                f"takes {count} arguments; allowed are {limits.MAX_ARGUMENTS_PER_CALL}",
            )
        places: set[int] = set()
        for value in used:
            if value.is_input and value.is_output:
                self.report(value, "is both an input and an output")
            if value.is_constant:
                self.report(value, "is a constant and an argument of the call")
            if value.datatype not in ARGUMENTS:
                allowed = ", ".join(datatype.name.lower() for datatype in sorted(ARGUMENTS))
                self.report(value, f"is an argument of the call; those are {allowed}")
            if value.external_id >= count:
                self.report(value, f"is argument {value.external_id} of {count}")
            elif value.external_id in places:
                self.report(value, f"is argument {value.external_id}, as another value is")
            places.add(value.external_id)

    def value(self, value: Value) -> None:
        if value.datatype is Datatype.INVALID:
            self.report(value, "has no datatype")
        if len(value.dims) > MAX_RANK:
            self.report(value, f"has {len(value.dims)} dimensions; allowed are {MAX_RANK}")
        if value.numel * max(value.datatype.bits, 8) // 8 > limits.MAX_TENSOR_BYTES:
            self.report(value, f"is larger than {limits.MAX_TENSOR_BYTES} bytes")
        if value.flags & ~(EXTERNAL_INPUT | EXTERNAL_OUTPUT):
            self.report(value, f"has flags {value.flags:#x}; known are 1 and 2")
        self.quantization(value)
        if value.is_constant:
            self.constant(value, value.constant, value.nbytes)
            if value.datatype is Datatype.QDINT8:
                self.report(value, "is quantized at run time and has constant data")
        if value.is_constant or value.is_input:
            self.shapes[value.id] = value.dims

    def quantization(self, value: Value) -> None:
        quantization = value.quantization
        wanted = _QUANTIZED.get(value.datatype, type(None))
        if not isinstance(quantization, wanted):
            found = "none" if quantization is None else type(quantization).__name__
            name = "none" if wanted is type(None) else wanted.__name__
            self.report(value, f"has quantization parameters {found}; its datatype takes {name}")
        elif isinstance(quantization, PerTensor):
            self.scales(value, (quantization.scale,))
            allowed = _ZERO_POINTS[value.datatype]
            if quantization.zero_point not in allowed:
                self.report(
                    value,
                    f"has zero point {quantization.zero_point}; allowed are {allowed.start} to "
                    f"{allowed.stop - 1}",
                )
        elif isinstance(quantization, PerChannel):
            self.per_channel(value, quantization)
        elif isinstance(quantization, PerBlock):
            self.per_block(value, quantization)
        elif isinstance(quantization, PerToken):
            if not 1 <= quantization.num_nonbatch_dims <= len(value.dims):
                self.report(value, f"is quantized over {quantization.num_nonbatch_dims} dimensions")

    def scales(self, value: Value, scales: tuple[float, ...]) -> None:
        wrong = next((s for s in scales if not (isfinite(s) and s >= _LEAST_SCALE)), None)
        if wrong is not None:
            self.report(value, f"has the scale {wrong}; a scale is finite and at least 2^-126")

    def per_channel(self, value: Value, quantization: PerChannel) -> None:
        if not 0 <= quantization.channel_dim < len(value.dims):
            self.report(value, f"is quantized along dimension {quantization.channel_dim}")
            return
        channels = value.dims[quantization.channel_dim]
        if quantization.scale_buffer_idx:
            self.constant(value, quantization.scale_buffer_idx, 4 * channels)
        elif len(quantization.scale) != channels:
            self.report(value, f"has {len(quantization.scale)} scales for {channels} channels")
        self.scales(value, quantization.scale)

    def per_block(self, value: Value, quantization: PerBlock) -> None:
        group = quantization.group_size
        if len(value.dims) != 2 or quantization.channel_dim != 0:
            self.report(value, "is quantized in blocks; that takes a matrix, along dimension 0")
            return
        if group < 1 or value.dims[1] % group:
            self.report(value, f"has rows of {value.dims[1]} elements in blocks of {group}")
            return
        count = value.numel // group
        if quantization.scale_buffer_idx:
            self.constant(value, quantization.scale_buffer_idx, 2 * count)
        elif len(quantization.scale) != count:
            self.report(value, f"has {len(quantization.scale)} scales for {count} blocks")
        self.scales(value, quantization.scale)

    def constant(self, value: Value, index: int, nbytes: int) -> None:
        """Check that constant ``index`` has at least ``nbytes`` bytes."""
        constants = self.graph.constants
        if index >= len(constants):
            self.report(value, f"refers to constant {index} of {len(constants)}")
            return
        constant = constants[index]
        have = constant.size
        if constant.named_key:
            if self.named_data is None:
                return
            try:
                have = self.named_data.get(constant.named_key).data.nbytes
            except NotFoundError as error:
                self.report(value, error.message)
                return
        elif self.blob.header is not None:
            room = self.blob.header.constant_data_size
            if constant.offset + constant.size > room:
                self.report(
                    value,
                    f"has constant data at {constant.offset:#x} with {constant.size} bytes; there "
                    f"are {room} bytes",
                )
                return
        if have < nbytes:
            self.report(value, f"needs {nbytes} bytes of constant data; there are {have}")

    # -- nodes -----------------------------------------------------------------------------------

    def node(self, node: Node) -> None:
        if isnan(node.output_min) or isnan(node.output_max) or node.output_min > node.output_max:
            self.report(node, f"is limited to {node.output_min} to {node.output_max}")
        self.ratios(node)
        known = counted = self.input_count(node)
        for number in node.inputs:
            if number not in self.graph.by_id:
                self.report(node, f"reads value {number}, which does not exist")
                known = False
            elif number not in self.shapes:
                self.report(node, f"reads value {number} before any node computes it")
                known = False
        written = [self.graph.by_id.get(number) for number in node.outputs]
        for number, value in zip(node.outputs, written, strict=True):
            if value is None:
                self.report(node, f"writes value {number}, which does not exist")
            elif value.is_constant or value.is_input or number in self.shapes:
                self.report(node, f"writes {value}, which has its value already")
        if counted:
            self.operands(node)
        shapes: tuple[Shape, ...] = ()
        if known:
            try:
                shapes = infer_shapes(node, [self.shapes[number] for number in node.inputs])
            except ShapeError as error:
                self.report(node, str(error))
        for number, value in zip(node.outputs, written, strict=True):
            if value is not None:
                self.shapes.setdefault(number, value.dims)
        for number, shape in zip(node.outputs, shapes, strict=False):  # none if not known
            self.shapes[number] = shape
            value = self.graph.by_id.get(number)
            if value is not None and prod(shape) > value.numel:
                self.report(node, f"computes a result of shape {shape} into {value}")
            if len(shape) > MAX_RANK or prod(shape) * 4 > limits.MAX_TENSOR_BYTES:
                self.report(node, f"computes a value of shape {shape}")

    def ratios(self, node: Node) -> None:
        """Check that float32 holds the ratio of a node's scales: lowering computes with it."""
        values = [self.graph.by_id.get(number) for number in (*node.inputs, *node.outputs)]
        scales = [
            (value.quantization.scale, value)
            for value in values
            if value is not None and isinstance(value.quantization, PerTensor)
        ]
        if not scales:
            return
        (low, least), (high, most) = min(scales, key=_FIRST), max(scales, key=_FIRST)
        if low < high * _LEAST_SCALE:
            self.report(
                node,
                f"takes {least} with scale {low} and {most} with scale {high}; the ratio of the "
                "two has to be at least 2^-126, as float32 can hold it",
            )

    def operands(self, node: Node) -> None:
        """Check a node's operands against the table of what its kind takes."""
        values = self.graph.by_id
        inputs = [values[number] for number in node.inputs if number in values]
        outputs = [values[number] for number in node.outputs if number in values]
        if len(inputs) == len(node.inputs) and len(outputs) == len(node.outputs):
            for text in broken_rules(node, inputs, outputs):
                self.report(node, text)

    def input_count(self, node: Node) -> bool:
        most = len(RULES[node.kind].names)
        least = most - 1 if node.kind in LAYERS else most
        if not least <= len(node.inputs) <= most:
            self.report(node, f"has {len(node.inputs)} inputs; its kind takes {most}")
            return False
        return True
