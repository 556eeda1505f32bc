"""The tables of an XNNPACK delegate's graph, as frozen dataclasses.

Names and numbers are those of ``backends/xnnpack/serialization/schema.fbs`` in ExecuTorch.
Nothing here is checked against anything else: that is :mod:`pteron.backends.xnnpack.verify`'s task.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from math import inf, prod
from typing import Final, TypeAlias

NO_VALUE: Final = 0xFFFFFFFF
"""``XNN_INVALID_VALUE_ID``: no bias, or a value that is inside the graph."""

MAX_RANK: Final = 6
"""``XNN_MAX_TENSOR_DIMS``."""

EXTERNAL_INPUT: Final = 1
EXTERNAL_OUTPUT: Final = 2

FLAG_TRANSPOSE_WEIGHTS: Final = 0x1
"""Fully connected: the filter is (in, out). Batch matrix multiply: the second operand."""
FLAG_TRANSPOSE_A: Final = 0x2
FLAG_ALIGN_CORNERS: Final = 0x8
FLAG_KEEP_DIMS: Final = 0x40


class Datatype(IntEnum):
    """The element type of a value (``XNNDatatype``)."""

    INVALID = 0
    FP32 = 1
    FP16 = 2
    QINT8 = 3
    QUINT8 = 4
    QINT32 = 5
    QCINT8 = 6
    QCINT32 = 7
    QCINT4 = 8
    QDINT8 = 9
    QBINT4 = 10
    QPINT8 = 11
    INT32 = 12
    PFP32 = 13
    BF16 = 14

    @property
    def bits(self) -> int:
        """Bits of one element where it is stored."""
        return _BITS[self]

    @property
    def is_float(self) -> bool:
        """Whether elements are stored as floating-point numbers."""
        return self in (Datatype.FP32, Datatype.FP16, Datatype.BF16)


_BITS: dict[Datatype, int] = {
    Datatype.INVALID: 0,
    Datatype.FP32: 32,
    Datatype.FP16: 16,
    Datatype.QINT8: 8,
    Datatype.QUINT8: 8,
    Datatype.QINT32: 32,
    Datatype.QCINT8: 8,
    Datatype.QCINT32: 32,
    Datatype.QCINT4: 4,
    Datatype.QDINT8: 8,
    Datatype.QBINT4: 4,
    Datatype.QPINT8: 8,
    Datatype.INT32: 32,
    Datatype.PFP32: 32,
    Datatype.BF16: 16,
}


class NodeKind(IntEnum):
    """What a node computes: its place in the union ``XNodeUnion``."""

    ADD = 1
    FULLY_CONNECTED = 2
    SOFTMAX = 3
    SIGMOID = 4
    STATIC_TRANSPOSE = 5
    CLAMP = 6
    CONV_2D = 7
    DIV = 8
    STATIC_RESIZE_BILINEAR_2D = 9
    STATIC_CONSTANT_PAD = 10
    AVG_POOLING_2D = 11
    MINIMUM = 12
    DEPTHWISE_CONV_2D = 13
    MAX_POOLING_2D = 14
    MULTIPLY = 15
    SUBTRACT = 16
    FLOOR = 17
    CONVERT = 18
    GLOBAL_AVG_POOLING_2D = 19
    STATIC_RESHAPE = 20
    ARG_MAX_POOLING_2D = 21
    SQUARE_ROOT = 22
    CEILING = 23
    HARDSWISH = 24
    LEAKY_RELU = 25
    MAXIMUM = 26
    NEGATE = 27
    SQUARE = 28
    ELU = 29
    ABS = 30
    PRELU = 31
    CONCATENATE_2 = 32
    CONCATENATE_3 = 33
    CONCATENATE_4 = 34
    STATIC_SLICE = 35
    SCALED_DOT_PRODUCT_ATTENTION = 36
    BATCH_MATRIX_MULTIPLY = 37
    CONCATENATE_5 = 38
    CONV_TRANSPOSE_2D = 39
    RECIPROCAL_SQUARE_ROOT = 40
    LOG = 41
    GELU = 42
    TANH = 43
    EXP = 44
    SIN = 45
    COPY = 46
    COS = 47


CONVOLUTIONS: Final = frozenset(
    {NodeKind.CONV_2D, NodeKind.DEPTHWISE_CONV_2D, NodeKind.CONV_TRANSPOSE_2D}
)
CONCATENATES: Final = frozenset(
    {
        NodeKind.CONCATENATE_2,
        NodeKind.CONCATENATE_3,
        NodeKind.CONCATENATE_4,
        NodeKind.CONCATENATE_5,
    }
)
BINARY: Final = frozenset(
    {
        NodeKind.ADD,
        NodeKind.SUBTRACT,
        NodeKind.MULTIPLY,
        NodeKind.DIV,
        NodeKind.MINIMUM,
        NodeKind.MAXIMUM,
        NodeKind.PRELU,
    }
)


@dataclass(frozen=True, slots=True)
class PerTensor:
    """One scale and zero point for all elements."""

    scale: float
    zero_point: int


@dataclass(frozen=True, slots=True)
class PerChannel:
    """One scale for each index of dimension ``channel_dim``; the zero point is 0 (8 for int4).

    The scales are ``scale``, or constant ``scale_buffer_idx`` (float32) if that is not 0.
    """

    scale: tuple[float, ...]
    channel_dim: int
    scale_buffer_idx: int = 0
    num_scales: int = 0


@dataclass(frozen=True, slots=True)
class PerBlock:
    """One scale for each ``group_size`` elements of a row (``PerChannelGroupQuant``).

    The scales are ``scale``, or constant ``scale_buffer_idx`` (bfloat16) if that is not 0.
    """

    scale: tuple[float, ...]
    channel_dim: int
    group_size: int
    scale_buffer_idx: int = 0
    num_scales: int = 0


@dataclass(frozen=True, slots=True)
class PerToken:
    """Scale and zero point chosen at run time over the last ``num_nonbatch_dims`` dimensions."""

    num_nonbatch_dims: int


Quantization: TypeAlias = PerTensor | PerChannel | PerBlock | PerToken


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the graph. ``dims`` is its shape, or the upper bound if it is dynamic.

    ``at`` is where the table is in the delegate's blob.
    """

    id: int
    datatype: Datatype
    dims: tuple[int, ...]
    constant: int = 0
    """Index of its constant data; 0 if it has none."""
    external_id: int = NO_VALUE
    """Position among the delegate call's arguments, inputs first."""
    flags: int = 0
    quantization: Quantization | None = None
    at: int = 0

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.dims)

    @property
    def is_input(self) -> bool:
        """Whether the caller gives it."""
        return bool(self.flags & EXTERNAL_INPUT)

    @property
    def is_output(self) -> bool:
        """Whether the caller takes it."""
        return bool(self.flags & EXTERNAL_OUTPUT)

    @property
    def is_constant(self) -> bool:
        """Whether the file gives its data."""
        return self.constant != 0

    @property
    def nbytes(self) -> int:
        """Bytes of its constant data. Rows of 4-bit elements begin at a byte."""
        if self.datatype.bits == 4 and self.dims:
            return prod(self.dims[:-1]) * ((self.dims[-1] + 1) // 2)
        return self.numel * self.datatype.bits // 8

    @property
    def affine(self) -> PerTensor:
        """The scale and zero point of a value that has one of each."""
        assert isinstance(self.quantization, PerTensor)
        return self.quantization

    def __str__(self) -> str:
        shape = "x".join(map(str, self.dims)) or "scalar"
        return f"value {self.id} ({self.datatype.name.lower()} {shape})"


@dataclass(frozen=True, slots=True)
class Convolution:
    """Padding is (top, right, bottom, left); the others are (height, width)."""

    padding: tuple[int, int, int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    group_input_channels: int
    group_output_channels: int
    adjustment: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Pooling:
    """Padding is (top, right, bottom, left); the others are (height, width)."""

    padding: tuple[int, int, int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Reshape:
    """A 0 in ``new_shape`` is the dimension that follows from the others."""

    new_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Transpose:
    """Output dimension ``i`` is input dimension ``perm[i]``."""

    perm: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """The part at ``offsets``. Size 0 at offset 0 is all of a dimension.

    A dynamic dimension may be shorter than the file's upper bound; what is beyond it is left out.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pad:
    """Elements of ``value`` before and after each dimension."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    value: float


@dataclass(frozen=True, slots=True)
class Resize:
    """The new height and width."""

    size: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Concatenate:
    """The dimension along which inputs are put side by side."""

    axis: int


@dataclass(frozen=True, slots=True)
class Slope:
    """``alpha`` of ELU, ``negative_slope`` of leaky ReLU."""

    value: float


Options: TypeAlias = (
    Convolution | Pooling | Reshape | Transpose | Slice | Pad | Resize | Concatenate | Slope
)


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. ``inputs`` and ``outputs`` are value ids; an absent bias is left out.

    ``at`` is where the table is in the delegate's blob.
    """

    kind: NodeKind
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Options | None = None
    flags: int = 0
    output_min: float = -inf
    output_max: float = inf
    debug_handle: int = 0
    at: int = 0

    @property
    def clamps(self) -> bool:
        """Whether the output is limited to a range."""
        return self.output_min != -inf or self.output_max != inf

    @property
    def is_pointwise(self) -> bool:
        """Whether it is a convolution that is one product of matrices, its rows the pixels.

        XNNPACK makes a fully connected node of these (``xnn_define_convolution_2d``).
        """
        options = self.options
        return (
            isinstance(options, Convolution)
            and self.kind is NodeKind.CONV_2D
            and options.kernel == options.stride == (1, 1)
            and options.groups == 1
            and not any(options.padding)
            and options.group_input_channels + options.group_output_channels > 2
        )

    def __str__(self) -> str:
        return (
            f"{self.kind.name.lower()}({', '.join(map(str, self.inputs))}) -> "
            f"{', '.join(map(str, self.outputs))}"
        )


@dataclass(frozen=True, slots=True)
class ConstantData:
    """Where one constant's bytes are: ``named_key`` in named data, or ``offset`` in the blob."""

    offset: int
    size: int
    named_key: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """The graph of one delegate. Entry 0 of ``constants`` is reserved."""

    version: str
    nodes: tuple[Node, ...]
    values: tuple[Value, ...]
    num_externs: int
    input_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    constants: tuple[ConstantData, ...]
    by_id: dict[int, Value] = field(default_factory=dict, compare=False, repr=False)

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that the caller gives, in the order of its arguments."""
        return tuple(sorted((v for v in self.values if v.is_input), key=_external_id))

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The values that the caller takes, in the order of its arguments."""
        return tuple(sorted((v for v in self.values if v.is_output), key=_external_id))


def _external_id(value: Value) -> int:
    return value.external_id
