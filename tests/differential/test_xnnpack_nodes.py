"""Every kind of float node, in graphs made by hand: pteron against the wheel's XNNPACK."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch

from pteron.backends.xnnpack.weights import REORDER_NUMEL
from support.xnnpack_check import agree, compare, needs_wheel, run_here
from support.xnnpack_graphs import GraphBuilder

pytestmark = needs_wheel

FLOATS = {"fp32": (torch.float32, 1e-4), "fp16": (torch.float16, 4e-3)}

both_floats = pytest.mark.parametrize("datatype", FLOATS)


def random(shape: Sequence[int], datatype: str = "fp32", *, low: float = -3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) * 7 + len(shape))
    numbers = torch.rand(tuple(shape), generator=generator) * (3.0 - low) + low
    return numbers.to(FLOATS[datatype][0])


def one_node(
    shapes: Sequence[Sequence[int]],
    result: Sequence[int],
    record: Callable[[GraphBuilder, list[int], int], None],
    datatype: str = "fp32",
    *,
    low: float = -3.0,
) -> torch.Tensor:
    """Compare a graph of one node on random inputs."""
    graph = GraphBuilder()
    sources = [graph.input(shape, datatype) for shape in shapes]
    record(graph, sources, graph.output(result, datatype))
    inputs = [random(shape, datatype, low=low) for shape in shapes]
    (out,) = agree(graph.program(), inputs, rtol=FLOATS[datatype][1])
    return out


UNARY = {
    "Abs": -3.0,
    "Ceiling": -3.0,
    "Cos": -3.0,
    "Exp": -3.0,
    "Floor": -3.0,
    "Gelu": -3.0,
    "Hardswish": -3.0,
    "Log": 0.1,
    "Negate": -3.0,
    "ReciprocalSquareRoot": 0.1,
    "Sigmoid": -3.0,
    "Sin": -3.0,
    "Square": -3.0,
    "SquareRoot": 0.1,
    "Tanh": -3.0,
    "Copy": -3.0,
    "Softmax": -3.0,
}


@both_floats
@pytest.mark.parametrize("kind", UNARY)
def test_unary(kind: str, datatype: str) -> None:
    one_node(
        [(2, 3, 5)],
        (2, 3, 5),
        lambda graph, sources, target: graph.unary(kind, sources[0], target),
        datatype,
        low=UNARY[kind],
    )


@both_floats
@pytest.mark.parametrize(("kind", "field"), [("ELU", "alpha"), ("LeakyReLU", "negative_slope")])
def test_unary_with_a_slope(kind: str, field: str, datatype: str) -> None:
    one_node(
        [(4, 9)],
        (4, 9),
        lambda graph, sources, target: graph.unary(kind, sources[0], target, **{field: 0.7}),
        datatype,
    )


@both_floats
@pytest.mark.parametrize(("low", "high"), [(0.0, None), (-1.0, 1.0), (None, 0.5), (0.0, 6.0)])
def test_clamp(low: float | None, high: float | None, datatype: str) -> None:
    one_node(
        [(2, 40)],
        (2, 40),
        lambda graph, sources, target: graph.unary("Clamp", sources[0], target, low=low, high=high),
        datatype,
    )


SHAPES = [
    ((2, 3, 4), (2, 3, 4), (2, 3, 4)),
    ((2, 3, 4), (4,), (2, 3, 4)),
    ((1,), (2, 3, 4), (2, 3, 4)),
    ((2, 1, 4), (1, 3, 1), (2, 3, 4)),
    ((1, 5, 6, 7), (1, 1, 1, 7), (1, 5, 6, 7)),
]


@both_floats
@pytest.mark.parametrize("kind", ["Add", "Subtract", "Multiply", "Div", "Minimum", "Maximum"])
@pytest.mark.parametrize(("a", "b", "result"), SHAPES)
def test_binary(
    kind: str, a: tuple[int, ...], b: tuple[int, ...], result: tuple[int, ...], datatype: str
) -> None:
    low = 0.5 if kind == "Div" else -3.0
    one_node(
        [a, b],
        result,
        lambda graph, sources, target: graph.binary(kind, *sources, target),
        datatype,
        low=low,
    )


@pytest.mark.parametrize("kind", ["Add", "Subtract", "Multiply"])
def test_binary_with_a_clamp_on_its_output(kind: str) -> None:
    one_node(
        [(3, 50), (3, 50)],
        (3, 50),
        lambda graph, sources, target: graph.binary(kind, *sources, target, low=0.0, high=2.0),
    )


def test_a_value_that_is_both_operands() -> None:
    one_node(
        [(3, 5)],
        (3, 5),
        lambda graph, sources, target: graph.binary("Multiply", sources[0], sources[0], target),
    )


@pytest.mark.parametrize("slope_shape", [(6,), (1,), (1, 1, 1, 6)])
def test_prelu(slope_shape: tuple[int, ...]) -> None:
    graph = GraphBuilder()
    source = graph.input((2, 4, 5, 6))
    slope = graph.constant(random(slope_shape))
    graph.binary("PReLU", source, slope, graph.output((2, 4, 5, 6)))
    agree(graph.program(), [random((2, 4, 5, 6))])


# -- convolutions ----------------------------------------------------------------------------------

CONVOLUTIONS = {
    "plain": {"channels": (4, 6), "kernel": (3, 3)},
    "pointwise": {"channels": (8, 5), "kernel": (1, 1)},
    "strided": {"channels": (4, 6), "kernel": (3, 2), "stride": (2, 1)},
    "padded": {"channels": (4, 6), "kernel": (3, 3), "padding": (1, 1, 1, 1)},
    "padded on one side": {"channels": (4, 6), "kernel": (3, 3), "padding": (0, 2, 1, 1)},
    "dilated": {"channels": (4, 6), "kernel": (3, 3), "dilation": (2, 3)},
    "grouped": {"channels": (2, 3), "kernel": (3, 3), "groups": 4},
    "one channel": {"channels": (1, 5), "kernel": (3, 3)},
    "clamped": {"channels": (4, 6), "kernel": (3, 3), "low": 0.0, "high": 1.0},
    "rectified": {"channels": (4, 6), "kernel": (3, 3), "low": 0.0},
}


def convolution(kind: str, options: dict[str, object], datatype: str, *, bias: bool = True) -> None:
    options = dict(options)
    groups = int(options.get("groups", 1))  # type: ignore[call-overload]
    inner, outer = options["channels"]  # type: ignore[misc]
    height, width = options["kernel"]  # type: ignore[misc]
    top, right, bottom, left = options.get("padding", (0, 0, 0, 0))  # type: ignore[misc]
    sy, sx = options.get("stride", (1, 1))  # type: ignore[misc]
    dy, dx = options.get("dilation", (1, 1))  # type: ignore[misc]
    h, w = 13, 11
    if kind == "ConvTranspose2d":
        ay, ax = options.get("adjustment", (0, 0))  # type: ignore[misc]
        oh = sy * (h - 1) + ay + dy * (height - 1) + 1 - top - bottom
        ow = sx * (w - 1) + ax + dx * (width - 1) + 1 - left - right
    else:
        oh = (h + top + bottom - dy * (height - 1) - 1) // sy + 1
        ow = (w + left + right - dx * (width - 1) - 1) // sx + 1
    graph = GraphBuilder()
    source = graph.input((2, h, w, groups * inner), datatype)
    shape = (groups * outer, height, width, inner)
    if kind == "DepthwiseConv2d":
        shape = (1, height, width, groups * outer)
    filters = graph.constant(random(shape), "fp32")
    bias_id = graph.constant(random((groups * outer,)), "fp32") if bias else None
    target = graph.output((2, oh, ow, groups * outer), datatype)
    graph.conv(kind, (source, filters, bias_id, target), **options)  # type: ignore[arg-type]
    agree(graph.program(), [random((2, h, w, groups * inner), datatype)], rtol=FLOATS[datatype][1])


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str) -> None:
    convolution("Conv2d", CONVOLUTIONS[name], "fp32")


def test_convolution_without_bias() -> None:
    convolution("Conv2d", CONVOLUTIONS["plain"], "fp32", bias=False)


def test_convolution_of_fp16() -> None:
    convolution("Conv2d", CONVOLUTIONS["padded"], "fp16")


@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2)])
def test_depthwise_convolution(multiplier: int, stride: tuple[int, int]) -> None:
    options = {
        "channels": (1, multiplier),
        "groups": 6,
        "kernel": (3, 3),
        "padding": (1, 1, 1, 1),
        "stride": stride,
    }
    convolution("DepthwiseConv2d", options, "fp32")


@pytest.mark.parametrize(
    "options",
    [
        {"channels": (4, 6), "kernel": (3, 3)},
        {"channels": (4, 6), "kernel": (3, 3), "stride": (2, 2), "adjustment": (1, 1)},
        {"channels": (4, 6), "kernel": (4, 4), "stride": (2, 2), "padding": (1, 1, 1, 1)},
        {"channels": (2, 3), "kernel": (3, 3), "groups": 4, "dilation": (2, 2)},
    ],
)
def test_transposed_convolution(options: dict[str, object]) -> None:
    convolution("ConvTranspose2d", options, "fp32")


# -- pooling and sizes -----------------------------------------------------------------------------


def pooling(kind: str, *, padding: tuple[int, int, int, int], flags: int = 0) -> None:
    top, right, bottom, left = padding
    graph = GraphBuilder()
    source = graph.input((2, 12, 10, 5))
    target = graph.output(
        (2, (12 + top + bottom - 3) // 2 + 1, (10 + left + right - 2) // 2 + 1, 5)
    )
    graph.node(
        kind,
        padding_top=top,
        padding_right=right,
        padding_bottom=bottom,
        padding_left=left,
        pooling_height=3,
        pooling_width=2,
        stride_height=2,
        stride_width=2,
        dilation_height=1,
        dilation_width=1,
        input_id=source,
        output_id=target,
        flags=flags,
    )
    agree(graph.program(), [random((2, 12, 10, 5))])


@pytest.mark.parametrize("kind", ["AvgPooling2d", "MaxPooling2d"])
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 1, 1)])
def test_pooling(kind: str, padding: tuple[int, int, int, int]) -> None:
    pooling(kind, padding=padding, flags=64)


def test_max_pooling_padded_on_one_side() -> None:
    pooling("MaxPooling2d", padding=(1, 0, 2, 1))


def test_arg_max_pooling() -> None:
    from pteron.format.schema import ScalarType

    graph = GraphBuilder()
    source = graph.input((2, 8, 6, 3))
    values, places = graph.output((2, 1, 6, 3)), graph.output((2, 1, 6, 3), scalar=ScalarType.LONG)
    graph.node(
        "ArgMaxPooling2d",
        padding_top=0,
        padding_right=0,
        padding_bottom=0,
        padding_left=0,
        pooling_height=8,
        pooling_width=1,
        input_id=source,
        output_value_id=values,
        output_index_id=places,
    )
    x = random((2, 8, 6, 3))
    here = run_here(graph.program(), [x])
    greatest, where = x.max(1, keepdim=True)
    assert torch.equal(here[0], greatest)
    assert torch.equal(here[1], where)


@both_floats
def test_global_average_pooling(datatype: str) -> None:
    one_node(
        [(2, 7, 5, 6)],
        (2, 1, 1, 6),
        lambda graph, sources, target: graph.unary(
            "GlobalAvgPooling2d", sources[0], target, flags=64
        ),
        datatype,
    )


@pytest.mark.parametrize("flags", [0, 8])
@pytest.mark.parametrize("size", [(10, 14), (3, 4), (5, 7)])
def test_bilinear_resize(size: tuple[int, int], flags: int) -> None:
    one_node(
        [(2, 5, 7, 3)],
        (2, *size, 3),
        lambda graph, sources, target: graph.unary(
            "StaticResizeBilinear2D",
            sources[0],
            target,
            new_height=size[0],
            new_width=size[1],
            flags=flags,
        ),
    )


# -- layout ---------------------------------------------------------------------------------------


@both_floats
def test_transpose(datatype: str) -> None:
    one_node(
        [(2, 3, 4, 5)],
        (2, 5, 3, 4),
        lambda graph, sources, target: graph.unary(
            "StaticTranspose", sources[0], target, num_dims=4, perm=[0, 3, 1, 2]
        ),
        datatype,
    )


@pytest.mark.parametrize("shape", [(6, 20), (0, 20), (2, 3, 0, 5)])
def test_reshape(shape: tuple[int, ...]) -> None:
    result = tuple(size or 120 // (20 if len(shape) == 2 else 30) for size in shape)
    one_node(
        [(2, 3, 4, 5)],
        result,
        lambda graph, sources, target: graph.unary(
            "StaticReshape", sources[0], target, num_dims=len(shape), new_shape=list(shape)
        ),
    )


def test_slice() -> None:
    one_node(
        [(2, 9, 4)],
        (2, 3, 2),
        lambda graph, sources, target: graph.unary(
            "StaticSlice", sources[0], target, num_dims=3, offsets=[0, 4, 2], sizes=[0, 3, 2]
        ),
    )


def test_constant_pad() -> None:
    one_node(
        [(2, 3, 4)],
        (3, 3, 9),
        lambda graph, sources, target: graph.unary(
            "StaticConstantPad",
            sources[0],
            target,
            pre_paddings=[1, 0, 2],
            post_paddings=[0, 0, 3],
            padding_value=1.5,
        ),
    )


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_concatenate(count: int) -> None:
    shapes = [(2, 1 + index, 3) for index in range(count)]

    def record(graph: GraphBuilder, sources: list[int], target: int) -> None:
        ids = {f"input{i + 1}_id": sources[i] if i < count else 0xFFFFFFFF for i in range(5)}
        graph.node(f"Concatenate{count}", axis=1, output_id=target, **ids)

    one_node(shapes, (2, sum(shape[1] for shape in shapes), 3), record)


# -- what is no number ----------------------------------------------------------------------------

CLAMPS = {"relu": {"low": 0.0}, "relu6": {"low": 0.0, "high": 6.0}, "from below": {"low": 0.1}}
STRANGE = (float("nan"), float("inf"), float("-inf"), 3e38)


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("clamp", CLAMPS)
def test_a_clamped_convolution_keeps_what_is_no_number(clamp: str, strange: float) -> None:
    graph = GraphBuilder()
    source, target = graph.input((1, 9, 9, 4)), graph.output((1, 7, 7, 6))
    filters, image = random((6, 3, 3, 4)), random((1, 9, 9, 4))
    image[0, 4, 4, 1] = strange
    limits = CLAMPS[clamp]
    ids = (source, graph.constant(filters), None, target)
    graph.conv("Conv2d", ids, channels=(4, 6), kernel=(3, 3), **limits)  # type: ignore[arg-type]
    plain = torch.conv2d(image.permute(0, 3, 1, 2), filters.permute(0, 3, 1, 2))
    wanted = plain.clamp(limits["low"], limits.get("high")).permute(0, 2, 3, 1)
    assert not math.isnan(strange) or bool(wanted.isnan().any())
    compare(run_here(graph.program(), [image]), [wanted], atol=1e-5)


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("clamp", CLAMPS)
def test_a_large_clamped_product_keeps_what_is_no_number(clamp: str, strange: float) -> None:
    graph = GraphBuilder()
    source, target = graph.input((4, 1024)), graph.output((4, 512))
    weights, x = random((512, 1024)), random((4, 1024))
    assert weights.numel() >= REORDER_NUMEL
    x[2, 7] = strange
    limits = CLAMPS[clamp]
    graph.linear(source, graph.constant(weights), None, target, **limits)
    wanted = (x @ weights.t()).clamp(limits["low"], limits.get("high"))
    compare(run_here(graph.program(), [x]), [wanted], atol=1e-3)


# -- matrices -------------------------------------------------------------------------------------


@both_floats
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("flags", [0, 1])
def test_fully_connected(flags: int, bias: bool, datatype: str) -> None:
    graph = GraphBuilder()
    source = graph.input((2, 3, 16), datatype)
    shape = (16, 7) if flags else (7, 16)
    weights = graph.constant(random(shape, datatype), datatype)
    bias_id = graph.constant(random((7,), datatype), datatype) if bias else None
    graph.linear(source, weights, bias_id, graph.output((2, 3, 7), datatype), flags=flags, low=-1.0)
    agree(graph.program(), [random((2, 3, 16), datatype)], rtol=FLOATS[datatype][1])


def test_fully_connected_with_weights_computed_in_the_graph() -> None:
    graph = GraphBuilder()
    source, weights = graph.input((3, 16)), graph.input((7, 16))
    doubled = graph.value((7, 16))
    graph.binary("Add", weights, weights, doubled)
    graph.linear(source, doubled, None, graph.output((3, 7)))
    agree(graph.program(), [random((3, 16)), random((7, 16))])


@both_floats
def test_batch_matrix_multiply(datatype: str) -> None:
    one_node(
        [(3, 4, 8), (3, 8, 5)],
        (3, 4, 5),
        lambda graph, sources, target: graph.binary("BatchMatrixMultiply", *sources, target),
        datatype,
    )


def test_batch_matrix_multiply_with_its_second_operand_transposed() -> None:
    one_node(
        [(3, 4, 8), (3, 5, 8)],
        (3, 4, 5),
        lambda graph, sources, target: graph.binary(
            "BatchMatrixMultiply", *sources, target, flags=1
        ),
    )
