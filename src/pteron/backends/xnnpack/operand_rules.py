"""Which datatypes and quantizations each kind of node takes: one table for all kinds.

The table follows the checks of XNNPACK's ``src/subgraph/*.c`` and the kernels that it has for each
datatype. It allows more where a file holds all that is needed for the right result:

- a bias that 8-bit and float layers share, with its own datatype and scale;
- 8-bit values that only move (transpose, slice, concatenate, ...) to another scale;
- floats of different widths in one layer.

It allows less where no exporter writes a combination: arithmetic on int32 and conversions of it,
functions from float32 to bfloat16 and back, matrix products of values that are quantized at run
time, TensorFlow's paddings and its old way to resize.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from pteron.backends.xnnpack.graph import (
    CONVOLUTIONS,
    FLAG_ALIGN_CORNERS,
    FLAG_KEEP_DIMS,
    FLAG_TRANSPOSE_A,
    FLAG_TRANSPOSE_WEIGHTS,
    Datatype,
    Node,
    NodeKind,
    PerChannel,
    PerToken,
    Pooling,
    Value,
)

Datatypes: TypeAlias = frozenset[Datatype]

FLOATS: Final[Datatypes] = frozenset({Datatype.FP32, Datatype.FP16, Datatype.BF16})
EIGHT_BITS: Final[Datatypes] = frozenset({Datatype.QINT8, Datatype.QUINT8})
AT_RUN_TIME: Final[Datatypes] = frozenset({Datatype.QDINT8, Datatype.QPINT8})
INTEGER_BIASES: Final[Datatypes] = frozenset({Datatype.QINT32, Datatype.QCINT32})
ARGUMENTS: Final[Datatypes] = FLOATS | EIGHT_BITS | {Datatype.INT32}
"""What a value may be that the caller gives or takes."""

_SIGNED: Final[Datatypes] = frozenset({Datatype.QINT8})
_UNSIGNED: Final[Datatypes] = frozenset({Datatype.QUINT8})
_CHANNELS_OF_8_BITS: Final[Datatypes] = frozenset({Datatype.QCINT8})
_CHANNELS: Final[Datatypes] = _CHANNELS_OF_8_BITS | {Datatype.QCINT4}
_BIASES: Final[Datatypes] = FLOATS | INTEGER_BIASES

_SPEED_FLAGS: Final = 0x10 | 0x20 | 0x1000 | 0x2000
"""Yield workers, make indirection buffers anew, no broadcasting, slow consistent arithmetic."""
_FLOAT_WEIGHTS_FLAGS: Final = 0x8 | 0x80
"""Weights or biases are float32: their datatypes say it, too."""
_PACK_FLAG: Final = 0x100
"""A hint to pack what is quantized for one kind of processor."""

LAYERS: Final = CONVOLUTIONS | {NodeKind.FULLY_CONNECTED}
"""Nodes with a filter and perhaps a bias."""


@dataclass(frozen=True, slots=True)
class Row:
    """One combination: what each operand may be, inputs first. A bias may be left out."""

    inputs: tuple[Datatypes, ...]
    outputs: tuple[Datatypes, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """What one kind of node takes.

    ``names`` are what its inputs are called, ``flags`` the bits that it may have, and ``limits``
    says whether it may have an output range.
    """

    names: tuple[str, ...]
    rows: tuple[Row, ...]
    flags: int = 0
    limits: bool = False


def _same(
    names: tuple[str, ...],
    datatypes: Datatypes,
    *more: Row,
    second: Datatypes | None = None,
    flags: int = 0,
    limits: bool = False,
) -> Rule:
    """Return a rule by which all operands have one datatype, but for a ``second`` output."""
    others = () if second is None else (second,)
    each: list[Datatypes] = [frozenset({datatype}) for datatype in sorted(datatypes)]
    rows = tuple(Row((one,) * len(names), (one, *others)) for one in each)
    return Rule(names, rows + more, flags, limits)


def _layer(
    *, by_floats: Datatypes, by_signed: Datatypes, by_rows: Datatypes, flags: int = 0
) -> Rule:
    """Return the rule of a layer from the filters that go with each kind of input."""
    return Rule(
        ("input", "filter", "bias"),
        (
            Row((FLOATS, by_floats, _BIASES), (FLOATS,)),
            Row((AT_RUN_TIME, by_rows, _BIASES), (FLOATS,)),
            Row((_SIGNED, by_signed, _BIASES), (_SIGNED,)),
            Row((_UNSIGNED, _UNSIGNED, _BIASES), (_UNSIGNED,)),
        ),
        flags,
        limits=True,
    )


_ONE: Final = ("input",)
_TWO: Final = ("first input", "second input")
_FUNCTION: Final = _same(_ONE, FLOATS | EIGHT_BITS)
_OPERATION: Final = _same(_TWO, FLOATS | EIGHT_BITS, limits=True)
_MOVE: Final = _same(_ONE, ARGUMENTS)
_POOLING: Final = _same(_ONE, FLOATS | EIGHT_BITS, flags=FLAG_KEEP_DIMS, limits=True)
_CONVOLUTION: Final = _layer(
    by_floats=FLOATS, by_signed=_SIGNED | _CHANNELS_OF_8_BITS, by_rows=_CHANNELS_OF_8_BITS
)
_PLACES: Final[Datatypes] = frozenset({Datatype.INT32, Datatype.FP32})
"""Whole numbers, whatever exporters call them."""
_PARTS: Final = {
    NodeKind.CONCATENATE_2: 2,
    NodeKind.CONCATENATE_3: 3,
    NodeKind.CONCATENATE_4: 4,
    NodeKind.CONCATENATE_5: 5,
}
_ORDINALS: Final = ("first", "second", "third", "fourth", "fifth")

RULES: Final[dict[NodeKind, Rule]] = {
    NodeKind.ABS: _FUNCTION,
    NodeKind.CEILING: _FUNCTION,
    NodeKind.COS: _FUNCTION,
    NodeKind.ELU: _FUNCTION,
    NodeKind.EXP: _FUNCTION,
    NodeKind.FLOOR: _FUNCTION,
    NodeKind.GELU: _FUNCTION,
    NodeKind.HARDSWISH: _FUNCTION,
    NodeKind.LEAKY_RELU: _FUNCTION,
    NodeKind.LOG: _FUNCTION,
    NodeKind.NEGATE: _FUNCTION,
    NodeKind.RECIPROCAL_SQUARE_ROOT: _FUNCTION,
    NodeKind.SIGMOID: _FUNCTION,
    NodeKind.SIN: _FUNCTION,
    NodeKind.SQUARE: _FUNCTION,
    NodeKind.SQUARE_ROOT: _FUNCTION,
    NodeKind.TANH: _FUNCTION,
    NodeKind.CLAMP: _same(_ONE, FLOATS | EIGHT_BITS, limits=True),
    NodeKind.SOFTMAX: _same(_ONE, FLOATS),
    NodeKind.CONVERT: Rule(
        _ONE,
        (
            Row((FLOATS,), (FLOATS | EIGHT_BITS | AT_RUN_TIME,)),
            Row((EIGHT_BITS,), (FLOATS | EIGHT_BITS,)),
        ),
        _PACK_FLAG,
    ),
    NodeKind.ADD: _OPERATION,
    NodeKind.SUBTRACT: _OPERATION,
    NodeKind.MULTIPLY: _OPERATION,
    NodeKind.DIV: _OPERATION,
    NodeKind.MINIMUM: _OPERATION,
    NodeKind.MAXIMUM: _OPERATION,
    NodeKind.PRELU: _same(("input", "slope"), FLOATS | EIGHT_BITS),
    NodeKind.COPY: _MOVE,
    NodeKind.STATIC_RESHAPE: _MOVE,
    NodeKind.STATIC_SLICE: _MOVE,
    NodeKind.STATIC_TRANSPOSE: _MOVE,
    NodeKind.STATIC_CONSTANT_PAD: _same(_ONE, FLOATS | EIGHT_BITS),
    **{
        kind: _same(tuple(f"{nth} input" for nth in _ORDINALS[:count]), ARGUMENTS)
        for kind, count in _PARTS.items()
    },
    NodeKind.MAX_POOLING_2D: _POOLING,
    NodeKind.GLOBAL_AVG_POOLING_2D: _POOLING,
    NodeKind.AVG_POOLING_2D: _same(_ONE, FLOATS, flags=FLAG_KEEP_DIMS, limits=True),
    NodeKind.ARG_MAX_POOLING_2D: _same(_ONE, FLOATS, second=_PLACES),
    NodeKind.STATIC_RESIZE_BILINEAR_2D: _same(_ONE, FLOATS | EIGHT_BITS, flags=FLAG_ALIGN_CORNERS),
    NodeKind.CONV_2D: _CONVOLUTION,
    NodeKind.DEPTHWISE_CONV_2D: _CONVOLUTION,
    NodeKind.CONV_TRANSPOSE_2D: Rule(
        _CONVOLUTION.names, _CONVOLUTION.rows, _FLOAT_WEIGHTS_FLAGS, limits=True
    ),
    NodeKind.FULLY_CONNECTED: _layer(
        by_floats=FLOATS | _CHANNELS,
        by_signed=_SIGNED | _CHANNELS,
        by_rows=_CHANNELS | {Datatype.QBINT4},
        flags=FLAG_TRANSPOSE_WEIGHTS | _FLOAT_WEIGHTS_FLAGS,
    ),
    NodeKind.BATCH_MATRIX_MULTIPLY: _same(
        _TWO,
        FLOATS | _SIGNED,
        Row((frozenset({Datatype.BF16}),) * 2, (frozenset({Datatype.FP32}),)),
        flags=FLAG_TRANSPOSE_A | FLAG_TRANSPOSE_WEIGHTS,
    ),
    NodeKind.SCALED_DOT_PRODUCT_ATTENTION: _same(
        ("query", "key", "value", "scale", "mask"), FLOATS
    ),
}
"""What each kind of node takes."""


def broken_rules(node: Node, inputs: Sequence[Value], outputs: Sequence[Value]) -> Iterator[str]:
    """Say what is wrong with a node's operands: what was found, and what is allowed."""
    rule = RULES[node.kind]
    yield from _flags(node, rule)
    wrong = _wrong_operand(rule, inputs, outputs)
    if wrong is not None:
        yield wrong
        return  # what follows takes the datatypes for granted
    if node.kind in LAYERS:
        yield from _filter(node, inputs)
        yield from _bias(inputs)
        yield from _rows(node, inputs[0])
    if node.kind is NodeKind.AVG_POOLING_2D:
        yield from _average(node)


def _flags(node: Node, rule: Rule) -> Iterator[str]:
    allowed = rule.flags | _SPEED_FLAGS
    if node.flags & ~allowed:
        yield f"has flags {node.flags:#x}; supported are {allowed:#x}"
    if node.clamps and not rule.limits:
        yield (
            f"limits its output to {node.output_min} to {node.output_max}; nodes of its kind "
            "have no output range"
        )


def _wrong_operand(rule: Rule, inputs: Sequence[Value], outputs: Sequence[Value]) -> str | None:
    """Return a text on the first operand with which no row of the table is left."""
    rows: list[tuple[Datatypes, ...]] = [
        (*row.inputs[: len(inputs)], *row.outputs) for row in rule.rows
    ]
    names = (*rule.names[: len(inputs)], "output", "second output")
    before: list[str] = []
    for place, (name, value) in enumerate(zip(names, (*inputs, *outputs), strict=False)):
        left = [row for row in rows if value.datatype in row[place]]
        if not left:
            allowed = sorted(set().union(*(row[place] for row in rows)))
            given = f" when {', '.join(before)}" if before else ""
            return (
                f"takes {value} as its {name}; allowed{given}: "
                f"{', '.join(datatype.name.lower() for datatype in allowed)}"
                if place < len(inputs)
                else f"gives {value} as its {name}; allowed{given}: "
                f"{', '.join(datatype.name.lower() for datatype in allowed)}"
            )
        rows = left
        before.append(f"its {name} is {value.datatype.name.lower()}")
    return None


def _filter(node: Node, inputs: Sequence[Value]) -> Iterator[str]:
    source, weights = inputs[:2]
    in_the_graph = node.kind is NodeKind.FULLY_CONNECTED and {
        source.datatype,
        weights.datatype,
    } <= set(FLOATS)
    if not weights.is_constant and not in_the_graph:
        yield f"takes {weights} as its filter, which is not a constant"
    if isinstance(weights.quantization, PerChannel):
        axis = 0
        if node.kind is NodeKind.DEPTHWISE_CONV_2D:
            axis = 3
        elif node.kind is NodeKind.FULLY_CONNECTED and node.flags & FLAG_TRANSPOSE_WEIGHTS:
            axis = 1
        found = weights.quantization.channel_dim
        if found != axis:
            yield (
                f"takes {weights} as its filter, which has its scales along dimension {found}; "
                f"its output channels are dimension {axis}"
            )
    if weights.datatype is Datatype.QBINT4 and node.flags & FLAG_TRANSPOSE_WEIGHTS:
        yield f"takes {weights} as its filter, transposed; filters with blocks cannot be"


def _bias(inputs: Sequence[Value]) -> Iterator[str]:
    if len(inputs) < 3:
        return
    source, weights, bias = inputs
    all_floats = {source.datatype, weights.datatype, bias.datatype} <= set(FLOATS)
    if not bias.is_constant and not all_floats:
        yield f"takes {bias} as its bias, which is not a constant"
    if isinstance(bias.quantization, PerChannel):
        axis = bias.quantization.channel_dim
        if axis < len(bias.dims) and bias.dims[axis] != bias.numel:
            yield (
                f"takes {bias} as its bias, which has its scales along dimension {axis}; "
                "each element needs one"
            )


def _rows(node: Node, source: Value) -> Iterator[str]:
    """Check over what a convolution's input is quantized: each image has one scale."""
    quantization = source.quantization
    if not isinstance(quantization, PerToken) or node.kind is NodeKind.FULLY_CONNECTED:
        return
    dims = quantization.num_nonbatch_dims
    if dims != 3 and not node.is_pointwise:
        yield (
            f"takes {source} as its input, which is quantized over its last {dims} dimensions; "
            "a convolution takes one scale for each image (3 dimensions)"
        )


def _average(node: Node) -> Iterator[str]:
    options = node.options
    assert isinstance(options, Pooling)
    top, right, bottom, left = options.padding
    height, width = options.kernel
    if (top, left) != (bottom, right) or 2 * top > height or 2 * left > width:
        yield (
            f"has a padding of {top} above, {bottom} below, {left} on the left and {right} on the "
            f"right for a window of {height} x {width}; an average takes the same on both sides, "
            "at most half of the window"
        )
