"""Read an XNNPACK delegate's blob: header, flatbuffer (``schema.fbs``), constant data.

offset 0   zero
       4   "XH00"
       8   length of this header (u16), offset and size of the flatbuffer (u32 each),
           offset (u32) and size (u64) of the constant data

Blobs without that header are a flatbuffer that holds its constants. Newer ones keep most
constants outside, in the program's named data. See ``XNNHeader.cpp`` and ``XNNCompiler.cpp``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn

from pteron import limits
from pteron.backends.xnnpack.graph import (
    CONCATENATES,
    NO_VALUE,
    Concatenate,
    ConstantData,
    Convolution,
    Datatype,
    Graph,
    Node,
    NodeKind,
    Options,
    Pad,
    PerBlock,
    PerChannel,
    PerTensor,
    PerToken,
    Pooling,
    Quantization,
    Reshape,
    Resize,
    Slice,
    Slope,
    Transpose,
    Value,
)
from pteron.errors import DelegateInvalidCompatibilityError, InvalidProgramError
from pteron.format.flatbuffer import (
    FLOAT32,
    INT16,
    INT32,
    OFFSET,
    UINT8,
    UINT32,
    UINT64,
    Decoder,
    Field,
    Flatbuffer,
    TableSpec,
    fields,
)

HEADER_MAGIC: Final = b"XH00"
HEADER_BYTES: Final = 30
IDENTIFIERS: Final = (b"XN00", b"XN01")
_HEADER = struct.Struct("<4s4sHIIIQ")

_GRAPH = TableSpec(
    "XNNGraph",
    fields(
        version=OFFSET,
        xnodes=OFFSET,
        xvalues=OFFSET,
        num_externs=UINT32,
        input_ids=OFFSET,
        output_ids=OFFSET,
        constant_buffer=OFFSET,
        mem_buffer_sizes=OFFSET,
        constant_data=OFFSET,
    ),
)
_BUFFER = TableSpec("Buffer", fields(storage=OFFSET))
_CONSTANT = TableSpec("ConstantDataOffset", fields(offset=UINT64, size=UINT64, named_key=OFFSET))
_UNION_VALUE = TableSpec("XValue", (Field(0, UINT8), Field(1, OFFSET)))
_TENSOR = TableSpec(
    "XNNTensorValue",
    fields(
        datatype=INT16,
        num_dims=UINT32,
        dims=OFFSET,
        constant_buffer_idx=UINT32,
        external_id=UINT32,
        flags=UINT32,
        id_out=UINT32,
        dq_datatype=INT16,
    ),
)
_QUANTIZED = TableSpec(
    "XNNQuantizedTensorValue", (Field(0, OFFSET), Field(1, UINT8), Field(2, OFFSET))
)
_PER_CHANNEL = TableSpec(
    "PerChannelQuant",
    fields(scale=OFFSET, channel_dim=INT32, scale_buffer_idx=UINT32, num_scales=UINT32),
)
_PER_TENSOR = TableSpec("PerTensorQuant", fields(scale=FLOAT32, zero_point=INT32))
_PER_TOKEN = TableSpec("PerTokenDynamicQuant", fields(num_nonbatch_dims=INT32))
_PER_BLOCK = TableSpec(
    "PerChannelGroupQuant",
    (
        Field(0, OFFSET),
        Field(1, INT32),
        Field(2, INT32),
        Field(4, UINT32),  # field 3, the scales as 16-bit numbers, is no longer written or read
        Field(5, UINT32),
    ),
)
_NODE = TableSpec("XNode", (Field(0, UINT8), Field(1, OFFSET), Field(2, UINT32), Field(3, OFFSET)))
_MIN_MAX = TableSpec("OutputMinMax", fields(output_min=FLOAT32, output_max=FLOAT32))


def _numbers(name: str, count: int) -> TableSpec:
    return TableSpec(name, tuple(Field(number, UINT32) for number in range(count)))


_UNARY = _numbers("_XNNNode1x1", 3)
_BINARY = _numbers("_XNNNode2x1", 4)
_CAT = _numbers("_XNNCat", 8)
_FULLY_CONNECTED = _numbers("XNNFullyConnected", 5)
_CONV = _numbers("_XNNNodeConv", 20)
_POOL = _numbers("_XNNPooling2D", 13)
_ARG_MAX_POOL = _numbers("XNNArgMaxPooling2d", 10)
_SDPA = _numbers("XNNScaledDotProductAttention", 7)
_RESIZE = _numbers("XNNStaticResizeBilinear2D", 5)
_SLOPE = TableSpec("XNNELU", (Field(0, FLOAT32), *(Field(n, UINT32) for n in (1, 2, 3))))
_SHAPE = TableSpec(
    "XNNStaticReshape", (Field(0, UINT32), Field(1, OFFSET), *(Field(n, UINT32) for n in (2, 3, 4)))
)
_SLICE = TableSpec(
    "XNNStaticSlice",
    (
        *(Field(0, UINT32), Field(1, OFFSET), Field(2, OFFSET)),
        *(Field(n, UINT32) for n in (3, 4, 5)),
    ),
)
_PAD = TableSpec(
    "XNNStaticConstantPad",
    (
        *(Field(0, OFFSET), Field(1, OFFSET), Field(2, FLOAT32)),
        *(Field(n, UINT32) for n in (3, 4, 5)),
    ),
)


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a blob: where its flatbuffer and its constant data are."""

    flatbuffer_offset: int
    flatbuffer_size: int
    constant_data_offset: int
    constant_data_size: int


@dataclass(frozen=True, slots=True, eq=False)
class Blob:
    """One delegate's blob. Views ``view``, whose owner outlives it.

    ``inline`` are the constants that a blob without a header holds in its flatbuffer.
    """

    view: memoryview
    header: Header | None
    graph: Graph
    inline: tuple[memoryview, ...] = ()

    def constant_bytes(self, index: int) -> memoryview:
        """Return the bytes of a constant that the blob itself holds."""
        if self.header is None:
            return self.inline[index]
        begin = self.header.constant_data_offset + self.graph.constants[index].offset
        return self.view[begin : begin + self.graph.constants[index].size]


def read_blob(view: memoryview) -> Blob:
    """Read a delegate's blob. Offsets in messages count from its beginning."""
    header = read_header(view)
    begin = header.flatbuffer_offset if header else 0
    end = begin + header.flatbuffer_size if header else view.nbytes
    body = view[begin:end]
    identifier = bytes(body[4:8])
    if identifier not in IDENTIFIERS:
        raise DelegateInvalidCompatibilityError(
            f"an XNNPACK graph begins with {_text(IDENTIFIERS[0])} or {_text(IDENTIFIERS[1])}, "
            f"found {_text(identifier)} at offset {begin + 4:#x} of the delegate"
        )
    buffer = Flatbuffer(body, error=InvalidProgramError, what="delegate's flatbuffer", start=begin)
    return _GraphReader(buffer).read(view, header)


def read_header(view: memoryview) -> Header | None:
    """Read and check the header; None if the blob is a bare flatbuffer."""
    if view.nbytes < HEADER_BYTES:
        raise InvalidProgramError(
            f"an XNNPACK delegate has {view.nbytes} bytes; its header alone has {HEADER_BYTES}"
        )
    _, magic, length, at, size, data_at, data_size = _HEADER.unpack_from(view, 0)
    if magic != HEADER_MAGIC:
        return None
    if length < HEADER_BYTES:
        _refuse(f"the header gives its length as {length}; at least {HEADER_BYTES} are needed", 8)
    if size < 8 or at + size > view.nbytes:
        _refuse(
            f"the flatbuffer is said to be at offset {at:#x} with {size} bytes; the delegate has "
            f"{view.nbytes} bytes",
            10,
        )
    if data_at + data_size > view.nbytes:
        _refuse(
            f"the constant data is said to be at offset {data_at:#x} with {data_size} bytes; the "
            f"delegate has {view.nbytes} bytes",
            18,
        )
    if at < length or data_at < at + size:
        _refuse(
            f"header (0 to {length:#x}), flatbuffer ({at:#x} to {at + size:#x}) and constant data "
            f"(from {data_at:#x}) overlap",
            10,
        )
    return Header(at, size, data_at, data_size)


def _refuse(message: str, position: int) -> NoReturn:
    raise InvalidProgramError(f"{message} (at offset {position:#x} of the delegate)")


def _text(identifier: bytes) -> str:
    return repr(identifier)[1:]


class _GraphReader:
    """Reads the tables of one graph."""

    def __init__(self, buffer: Flatbuffer) -> None:
        self.buffer = buffer
        self._decoders: dict[TableSpec, Decoder] = {}

    def read(self, view: memoryview, header: Header | None) -> Blob:
        buffer = self.buffer
        root = buffer.root()
        row = self.table(_GRAPH, root)
        version, version_at, nodes, nodes_at, values, values_at, num_externs = row[:7]
        inputs, inputs_at, outputs, outputs_at, inline, inline_at, _, _, data, data_at = row[7:]
        inline_data: tuple[memoryview, ...] = ()
        constants: tuple[ConstantData, ...]
        if header is None:
            inline_data = tuple(map(self.inline, self.positions(root, inline, inline_at)))
            constants = tuple(ConstantData(0, blob.nbytes) for blob in inline_data)
        else:
            constants = tuple(map(self.constant, self.positions(root, data, data_at)))
        read_values = tuple(
            value
            for position in self.positions(root, values, values_at)
            for value in self.value(position)
        )
        graph = Graph(
            version=buffer.string(at(root, version, version_at)),
            nodes=tuple(
                node
                for position in self.positions(root, nodes, nodes_at)
                for node in (self.node(position),)
            ),
            values=read_values,
            num_externs=num_externs,
            input_ids=buffer.scalars(at(root, inputs, inputs_at), UINT32, "input_ids"),
            output_ids=buffer.scalars(at(root, outputs, outputs_at), UINT32, "output_ids"),
            constants=constants,
            by_id={value.id: value for value in read_values},
        )
        return Blob(view, header, graph, inline_data)

    def table(self, spec: TableSpec, position: int) -> tuple[Any, ...]:
        decoder = self._decoders.get(spec)
        if decoder is None:
            decoder = self._decoders[spec] = self.buffer.decoder(spec)
        return decoder(position)

    def positions(self, table: int, raw: int, offset: int) -> list[int]:
        return self.buffer.tables(
            at(table, raw, offset), "a vector of the graph", limits.MAX_VALUES_PER_METHOD
        )

    def dims(self, table: int, raw: int, offset: int, what: str) -> tuple[int, ...]:
        return self.buffer.scalars(at(table, raw, offset), UINT32, what)

    def sub_table(self, table: int, raw: int, offset: int, what: str) -> int:
        if not raw:
            self.buffer.fail(f"{what} is absent", table)
        return table + offset + raw

    # -- constants -------------------------------------------------------------------------------

    def inline(self, position: int) -> memoryview:
        storage, storage_at = self.table(_BUFFER, position)
        return self.buffer.data(at(position, storage, storage_at), "constant data")

    def constant(self, position: int) -> ConstantData:
        offset, size, key, key_at = self.table(_CONSTANT, position)
        name = self.buffer.name(at(position, key, key_at), "the key of a constant")
        return ConstantData(0 if name else offset, size, name)

    # -- values ----------------------------------------------------------------------------------

    def value(self, position: int) -> tuple[Value, ...]:
        kind, union, union_at = self.table(_UNION_VALUE, position)
        if kind not in (1, 2):
            self.buffer.fail(f"a value is of kind {kind}; known are 1 and 2", position)
        body = self.sub_table(position, union, union_at, "the union of a value")
        if kind == 1:
            return self.tensor(body, None)
        tensor, tensor_at, quant_kind, quant, quant_at = self.table(_QUANTIZED, body)
        inner = self.sub_table(body, tensor, tensor_at, "the tensor of a quantized value")
        params = self.sub_table(body, quant, quant_at, "the parameters of a quantized value")
        return self.tensor(inner, self.quantization(quant_kind, params))

    def tensor(self, position: int, quantization: Quantization | None) -> tuple[Value, ...]:
        row = self.table(_TENSOR, position)
        datatype, _, dims, dims_at, constant, external_id, flags, id_out, dynamic = row
        try:
            element = Datatype(datatype)
        except ValueError:
            self.buffer.fail(
                f"a value has datatype {datatype}; known are 1 to {max(Datatype)}", position
            )
        if dynamic:
            self.buffer.fail(
                "a value is quantized as it enters the graph (dq_datatype), a form that exporters "
                "wrote until 2023",
                position,
            )
        return (
            Value(
                id=id_out,
                datatype=element,
                dims=self.dims(position, dims, dims_at, "the dims of a value"),
                constant=constant,
                external_id=external_id,
                flags=flags,
                quantization=quantization,
                at=self.buffer.start + position,
            ),
        )

    def quantization(self, kind: int, position: int) -> Quantization:
        buffer = self.buffer
        if kind == 1:
            scale, scale_at, channel, index, count = self.table(_PER_CHANNEL, position)
            scales = buffer.scalars(at(position, scale, scale_at), FLOAT32, "scales")
            return PerChannel(scales, channel, index, count)
        if kind == 2:
            return PerTensor(*self.table(_PER_TENSOR, position))
        if kind == 3:
            return PerToken(*self.table(_PER_TOKEN, position))
        if kind == 4:
            scale, scale_at, channel, group, index, count = self.table(_PER_BLOCK, position)
            scales = buffer.scalars(at(position, scale, scale_at), FLOAT32, "scales")
            return PerBlock(scales, channel, group, index, count)
        return buffer.fail(f"a value is quantized in way {kind}; known are 1 to 4", position)

    # -- nodes -----------------------------------------------------------------------------------

    def node(self, position: int) -> Node:
        kind, union, union_at, debug_handle, limits_raw, limits_at = self.table(_NODE, position)
        try:
            node_kind = NodeKind(kind)
        except ValueError:
            self.buffer.fail(f"a node is of kind {kind}; known are 1 to {max(NodeKind)}", position)
        body = self.sub_table(position, union, union_at, "the union of a node")
        inputs, outputs, options, flags = self.node_body(node_kind, body)
        clamp = {}
        if limits_raw:
            low, high = self.table(_MIN_MAX, position + limits_at + limits_raw)
            clamp = {"output_min": low, "output_max": high}
        return Node(
            node_kind,
            inputs,
            outputs,
            options,
            flags,
            debug_handle=debug_handle,
            at=self.buffer.start + position,
            **clamp,
        )

    def node_body(
        self, kind: NodeKind, position: int
    ) -> tuple[tuple[int, ...], tuple[int, ...], Options | None, int]:
        read = _BODIES.get(kind)
        if read is not None:
            return read(self, position)
        if kind in CONCATENATES:
            return _read_concatenate(self, position, _CAT_INPUTS[kind])
        source, target, flags = self.table(_UNARY, position)
        return (source,), (target,), None, flags


def at(table: int, raw: int, offset: int) -> int:
    """Return where an offset points, or 0 if it is absent."""
    return table + offset + raw if raw else 0


_Body = tuple["tuple[int, ...]", "tuple[int, ...]", "Options | None", int]


def _present(*ids: int) -> tuple[int, ...]:
    return tuple(value for value in ids if value != NO_VALUE)


def _read_binary(reader: _GraphReader, position: int) -> _Body:
    first, second, target, flags = reader.table(_BINARY, position)
    return (first, second), (target,), None, flags


def _read_concatenate(reader: _GraphReader, position: int, count: int) -> _Body:
    axis, *sources, target, flags, fifth = reader.table(_CAT, position)
    return (*sources, fifth)[:count], (target,), Concatenate(axis), flags


def _read_fully_connected(reader: _GraphReader, position: int) -> _Body:
    source, weights, bias, target, flags = reader.table(_FULLY_CONNECTED, position)
    return _present(source, weights, bias), (target,), None, flags


def _read_conv(reader: _GraphReader, position: int) -> _Body:
    n = reader.table(_CONV, position)
    options = Convolution(
        padding=(n[0], n[1], n[2], n[3]),
        kernel=(n[4], n[5]),
        stride=(n[6], n[7]),
        dilation=(n[8], n[9]),
        group_input_channels=n[10],
        group_output_channels=n[11],
        groups=n[12],
        adjustment=(n[13], n[14]),
    )
    return _present(n[15], n[16], n[17]), (n[18],), options, n[19]


def _read_pool(reader: _GraphReader, position: int) -> _Body:
    n = reader.table(_POOL, position)
    options = Pooling((n[0], n[1], n[2], n[3]), (n[4], n[5]), (n[6], n[7]), (n[8], n[9]))
    return (n[10],), (n[11],), options, n[12]


def _read_arg_max_pool(reader: _GraphReader, position: int) -> _Body:
    n = reader.table(_ARG_MAX_POOL, position)
    kernel = (n[4], n[5])
    options = Pooling((n[0], n[1], n[2], n[3]), kernel, kernel, (1, 1))
    return (n[6],), (n[7], n[8]), options, n[9]


def _read_slope(reader: _GraphReader, position: int) -> _Body:
    slope, source, target, flags = reader.table(_SLOPE, position)
    return (source,), (target,), Slope(slope), flags


def _read_shape(
    make: type[Reshape] | type[Transpose], reader: _GraphReader, position: int
) -> _Body:
    _, shape, shape_at, source, target, flags = reader.table(_SHAPE, position)
    numbers = reader.dims(position, shape, shape_at, "the shape of a node")
    return (source,), (target,), make(numbers), flags


def _read_slice(reader: _GraphReader, position: int) -> _Body:
    _, offsets, offsets_at, sizes, sizes_at, source, target, flags = reader.table(_SLICE, position)
    options = Slice(
        reader.dims(position, offsets, offsets_at, "the offsets of a slice"),
        reader.dims(position, sizes, sizes_at, "the sizes of a slice"),
    )
    return (source,), (target,), options, flags


def _read_pad(reader: _GraphReader, position: int) -> _Body:
    before, before_at, after, after_at, value, source, target, flags = reader.table(_PAD, position)
    options = Pad(
        reader.dims(position, before, before_at, "the paddings of a node"),
        reader.dims(position, after, after_at, "the paddings of a node"),
        value,
    )
    return (source,), (target,), options, flags


def _read_resize(reader: _GraphReader, position: int) -> _Body:
    height, width, source, target, flags = reader.table(_RESIZE, position)
    return (source,), (target,), Resize((height, width)), flags


def _read_sdpa(reader: _GraphReader, position: int) -> _Body:
    *sources, target, flags = reader.table(_SDPA, position)
    return tuple(sources), (target,), None, flags


_CAT_INPUTS = {
    NodeKind.CONCATENATE_2: 2,
    NodeKind.CONCATENATE_3: 3,
    NodeKind.CONCATENATE_4: 4,
    NodeKind.CONCATENATE_5: 5,
}
_BODIES: dict[NodeKind, Callable[[_GraphReader, int], _Body]] = {
    NodeKind.ADD: _read_binary,
    NodeKind.SUBTRACT: _read_binary,
    NodeKind.MULTIPLY: _read_binary,
    NodeKind.DIV: _read_binary,
    NodeKind.MINIMUM: _read_binary,
    NodeKind.MAXIMUM: _read_binary,
    NodeKind.PRELU: _read_binary,
    NodeKind.BATCH_MATRIX_MULTIPLY: _read_binary,
    NodeKind.FULLY_CONNECTED: _read_fully_connected,
    NodeKind.CONV_2D: _read_conv,
    NodeKind.DEPTHWISE_CONV_2D: _read_conv,
    NodeKind.CONV_TRANSPOSE_2D: _read_conv,
    NodeKind.AVG_POOLING_2D: _read_pool,
    NodeKind.MAX_POOLING_2D: _read_pool,
    NodeKind.ARG_MAX_POOLING_2D: _read_arg_max_pool,
    NodeKind.LEAKY_RELU: _read_slope,
    NodeKind.ELU: _read_slope,
    NodeKind.STATIC_RESHAPE: partial(_read_shape, Reshape),
    NodeKind.STATIC_TRANSPOSE: partial(_read_shape, Transpose),
    NodeKind.STATIC_SLICE: _read_slice,
    NodeKind.STATIC_CONSTANT_PAD: _read_pad,
    NodeKind.STATIC_RESIZE_BILINEAR_2D: _read_resize,
    NodeKind.SCALED_DOT_PRODUCT_ATTENTION: _read_sdpa,
}
