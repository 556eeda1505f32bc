"""Every kind of quantized node, in graphs made by hand: pteron against the wheel's XNNPACK."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from support.xnnpack_check import agree, compare, needs_wheel, run_here, run_there
from support.xnnpack_graphs import Affine, Blocks, Channels, GraphBuilder, Rows

pytestmark = needs_wheel

IN, OTHER, OUT = Affine(0.043, 7), Affine(0.0213, -30), Affine(0.0871, -11)


def integers(shape: Sequence[int], *, low: int = -128, high: int = 127) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) * 7 + len(shape))
    return torch.randint(low, high + 1, tuple(shape), generator=generator).to(torch.int8)


def floats(shape: Sequence[int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) * 5 + len(shape))
    return torch.randn(tuple(shape), generator=generator)


def same_integers(graph: GraphBuilder, inputs: Sequence[torch.Tensor]) -> None:
    """Within one step everywhere, and the same nearly everywhere."""
    program = graph.program()
    here, there = run_here(program, inputs), run_there(program, inputs)
    compare(here, there, step=1)
    for ours, theirs in zip(here, there, strict=True):
        assert (ours != theirs).double().mean() <= 0.001


def one_node(
    shapes: Sequence[Sequence[int]],
    result: Sequence[int],
    record: Callable[[GraphBuilder, list[int], int], None],
    *,
    quantizations: Sequence[Affine] = (IN, OTHER),
    out: Affine = OUT,
) -> None:
    graph = GraphBuilder()
    pairs = list(zip(shapes, quantizations, strict=False))
    sources = [graph.input(shape, "qint8", affine) for shape, affine in pairs]
    record(graph, sources, graph.output(result, "qint8", out))
    same_integers(graph, [integers(shape) for shape in shapes])


@pytest.mark.parametrize("kind", ["Add", "Subtract", "Multiply"])
@pytest.mark.parametrize("clamp", [None, (-1.0, 2.5)])
def test_binary(kind: str, clamp: tuple[float, float] | None) -> None:
    low, high = clamp or (None, None)
    one_node(
        [(5, 6, 64), (5, 6, 64)],
        (5, 6, 64),
        lambda graph, sources, target: graph.binary(kind, *sources, target, low=low, high=high),
    )


@pytest.mark.parametrize("kind", ["Add", "Multiply"])
def test_binary_with_broadcasting(kind: str) -> None:
    one_node(
        [(5, 6, 64), (64,)],
        (5, 6, 64),
        lambda graph, sources, target: graph.binary(kind, *sources, target),
    )


def test_sums_that_end_halfway_between_two_steps() -> None:
    half = Affine(0.5, 3)
    one_node(
        [(40, 40), (40, 40)],
        (40, 40),
        lambda graph, sources, target: graph.binary("Add", *sources, target),
        quantizations=(half, Affine(0.25, -2)),
        out=Affine(1.0, 1),
    )


@pytest.mark.parametrize("kind", ["Sigmoid", "Tanh", "Negate", "Abs", "Square"])
def test_unary(kind: str) -> None:
    one_node(
        [(16, 16)],
        (16, 16),
        lambda graph, sources, target: graph.unary(kind, sources[0], target),
        out=Affine(0.03, 5),
    )


@pytest.mark.parametrize(("kind", "field"), [("ELU", "alpha"), ("LeakyReLU", "negative_slope")])
def test_unary_with_a_slope(kind: str, field: str) -> None:
    one_node(
        [(16, 16)],
        (16, 16),
        lambda graph, sources, target: graph.unary(kind, sources[0], target, **{field: 0.3}),
    )


def test_clamp() -> None:
    one_node(
        [(16, 16)],
        (16, 16),
        lambda graph, sources, target: graph.unary("Clamp", sources[0], target, low=-1.0, high=2.0),
        out=IN,
    )


@pytest.mark.parametrize("out", [OUT, Affine(0.0215, 3), Affine(0.086, 0)])
def test_change_of_scale(out: Affine) -> None:
    one_node(
        [(16, 16)],
        (16, 16),
        lambda graph, sources, target: graph.unary("Convert", sources[0], target),
        out=out,
    )


def test_quantize_and_dequantize() -> None:
    graph = GraphBuilder()
    source, whole = graph.input((40, 50)), graph.value((40, 50), "qint8", OUT)
    target = graph.output((40, 50))
    graph.unary("Convert", source, whole)
    graph.unary("Convert", whole, target)
    agree(graph.program(), [floats((40, 50)) * 9], atol=1e-6, rtol=0)


def test_quantize_halves_to_even() -> None:
    graph = GraphBuilder()
    source, target = graph.input((64,)), graph.output((64,), "qint8", Affine(0.5, 1))
    graph.unary("Convert", source, target)
    agree(graph.program(), [torch.arange(-32, 32) * 0.25], step=0)


@pytest.mark.parametrize("affine", [Affine(0.0123, 3), Affine(0.00731, -20)])
def test_half_precision_is_quantized_with_scales_in_half_precision(affine: Affine) -> None:
    """Both ways, to the last bit."""
    graph = GraphBuilder()
    source, middle = graph.input((4096,), "fp16"), graph.value((4096,), "qint8", affine)
    graph.unary("Convert", source, middle)
    graph.unary("Convert", middle, graph.output((4096,), "fp16"))
    x = (floats((4096,)) * 60 * affine.scale).half()
    (here,), (there,) = run_here(graph.program(), [x]), run_there(graph.program(), [x])
    assert torch.equal(here, there)


def test_layout_nodes_keep_integers() -> None:
    graph = GraphBuilder()
    source = graph.input((2, 3, 4, 5), "qint8", IN)
    turned = graph.value((2, 4, 5, 3), "qint8", IN)
    flat = graph.value((8, 15), "qint8", IN)
    part = graph.value((8, 6), "qint8", IN)
    joined = graph.value((8, 12), "qint8", IN)
    target = graph.output((9, 14), "qint8", IN)
    graph.unary("StaticTranspose", source, turned, num_dims=4, perm=[0, 2, 3, 1])
    graph.unary("StaticReshape", turned, flat, num_dims=2, new_shape=[8, 15])
    graph.unary("StaticSlice", flat, part, num_dims=2, offsets=[0, 7], sizes=[8, 6])
    ids = {f"input{i}_id": 0xFFFFFFFF for i in (3, 4, 5)}
    graph.node("Concatenate2", axis=1, input1_id=part, input2_id=part, output_id=joined, **ids)
    graph.unary(
        "StaticConstantPad",
        joined,
        target,
        pre_paddings=[1, 0],
        post_paddings=[0, 2],
        padding_value=0.4,
    )
    agree(graph.program(), [integers((2, 3, 4, 5))], step=0)


@pytest.mark.parametrize("size", [(4, 4), (7, 5)])
def test_global_average_pooling(size: tuple[int, int]) -> None:
    one_node(
        [(3, *size, 32)],
        (3, 1, 1, 32),
        lambda graph, sources, target: graph.unary(
            "GlobalAvgPooling2d", sources[0], target, flags=64
        ),
        out=IN,
    )


def test_max_pooling() -> None:
    one_node(
        [(2, 9, 9, 8)],
        (2, 5, 5, 8),
        lambda graph, sources, target: graph.node(
            "MaxPooling2d",
            padding_top=1,
            padding_right=1,
            padding_bottom=1,
            padding_left=1,
            pooling_height=3,
            pooling_width=3,
            stride_height=2,
            stride_width=2,
            dilation_height=1,
            dilation_width=1,
            input_id=sources[0],
            output_id=target,
            flags=64,
        ),
        out=IN,
    )


# -- products -------------------------------------------------------------------------------------


def scales(count: int) -> torch.Tensor:
    return torch.linspace(0.004, 0.02, count)


def weight(
    graph: GraphBuilder, shape: tuple[int, ...], dim: int, *, per_channel: bool
) -> tuple[int, torch.Tensor]:
    """Add weights of 8 bits and return their id and the scale of each channel."""
    numbers = integers(shape, low=-127)
    if per_channel:
        each = scales(shape[dim])
        return graph.constant(numbers, "qcint8", Channels(each, dim)), each
    return graph.constant(numbers, "qint8", Affine(0.01, 0)), torch.tensor([0.01])


def bias(graph: GraphBuilder, count: int, weight_scales: torch.Tensor) -> int:
    """Add a bias of 32 bits, its scale that of input times weights."""
    numbers = (floats((count,)) * 500).int()
    if weight_scales.numel() > 1:
        return graph.constant(numbers, "qcint32", Channels(weight_scales * IN.scale))
    return graph.constant(numbers, "qint32", Affine(float(weight_scales) * IN.scale, 0))


both_weights = pytest.mark.parametrize("per_channel", [True, False])


@both_weights
@pytest.mark.parametrize("low", [None, 0.0])
@pytest.mark.parametrize("inner", [64, 33])
def test_fully_connected(inner: int, low: float | None, per_channel: bool) -> None:
    graph = GraphBuilder()
    source = graph.input((4, 3, inner), "qint8", IN)
    weights, each = weight(graph, (24, inner), 0, per_channel=per_channel)
    target = graph.output((4, 3, 24), "qint8", Affine(0.31, 4))
    graph.linear(source, weights, bias(graph, 24, each), target, low=low)
    same_integers(graph, [integers((4, 3, inner))])


CONVOLUTIONS = {
    "plain": ("Conv2d", (24, 3, 3, 8), 0, {"channels": (8, 24)}, 1),
    "pointwise": ("Conv2d", (24, 1, 1, 8), 0, {"channels": (8, 24), "kernel": (1, 1)}, 1),
    "padded": ("Conv2d", (24, 3, 3, 8), 0, {"channels": (8, 24), "padding": (1, 1, 1, 1)}, 1),
    "grouped": ("Conv2d", (24, 3, 3, 4), 0, {"channels": (4, 12), "groups": 2}, 2),
    "depthwise": (
        "DepthwiseConv2d",
        (1, 3, 3, 8),
        3,
        {"channels": (1, 1), "groups": 8, "padding": (1, 1, 1, 1)},
        8,
    ),
    "transposed": ("ConvTranspose2d", (24, 3, 3, 8), 0, {"channels": (8, 24)}, 1),
}


@both_weights
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str, per_channel: bool) -> None:
    kind, shape, dim, options, groups = CONVOLUTIONS[name]
    options = {"kernel": (3, 3), **options}
    grow = 0 if "padding" in options else options["kernel"][0] - 1  # type: ignore[index]
    size = 9 + grow if kind == "ConvTranspose2d" else 9 - grow
    graph = GraphBuilder()
    channels = groups * options["channels"][1]  # type: ignore[index]
    source = graph.input((2, 9, 9, 8), "qint8", IN)
    filters, each = weight(graph, shape, dim, per_channel=per_channel)
    target = graph.output((2, size, size, channels), "qint8", Affine(0.31, 4))
    bias_id = bias(graph, channels, each)
    graph.conv(kind, (source, filters, bias_id, target), low=-20.0, **options)  # type: ignore[arg-type]
    same_integers(graph, [integers((2, 9, 9, 8))])


def row_product(weights: Callable[[GraphBuilder], int], *, rows: tuple[int, ...] = (5,)) -> None:
    """Compare a fully connected node on values quantized at run time."""
    graph = GraphBuilder()
    source = graph.input((*rows, 64))
    whole = graph.value((*rows, 64), "qdint8", Rows(1))
    target = graph.output((*rows, 16))
    graph.unary("Convert", source, whole)
    bias_id = graph.constant(floats((16,)))
    graph.linear(whole, weights(graph), bias_id, target)
    x = floats((*rows, 64)) * 3
    x[..., 0, :] = 0  # a row without a range
    x[..., 1, :].abs_()
    agree(graph.program(), [x], rtol=1e-5)


@pytest.mark.parametrize("rows", [(5,), (2, 3)])
def test_rows_times_8_bits(rows: tuple[int, ...]) -> None:
    row_product(lambda graph: weight(graph, (16, 64), 0, per_channel=True)[0], rows=rows)


def packed(shape: tuple[int, int]) -> torch.Tensor:
    """Return two 4-bit numbers in each byte."""
    numbers = integers(shape, low=0, high=15).to(torch.uint8)
    return numbers[:, 1::2] << 4 | numbers[:, ::2]


def test_rows_times_4_bits() -> None:
    row_product(
        lambda graph: graph.constant(
            packed((16, 64)), "qcint4", Channels(scales(16)), shape=(16, 64)
        )
    )


def test_rows_times_4_bits_in_blocks() -> None:
    row_product(
        lambda graph: graph.constant(
            packed((16, 64)), "qbint4", Blocks(scales(32).view(16, 2), 32), shape=(16, 64)
        )
    )


def test_pixels_quantized_at_run_time() -> None:
    """XNNPACK quantizes for a pointwise convolution as for a fully connected node."""
    graph = GraphBuilder()
    source = graph.input((2, 8, 8, 4))
    whole = graph.value((2, 8, 8, 4), "qdint8", Rows(3))
    target = graph.output((2, 8, 8, 6))
    graph.unary("Convert", source, whole)
    filters, _ = weight(graph, (6, 1, 1, 4), 0, per_channel=True)
    bias_id = graph.constant(floats((6,)))
    graph.conv("Conv2d", (whole, filters, bias_id, target), kernel=(1, 1), channels=(4, 6))
    agree(graph.program(), [floats((2, 8, 8, 4))], rtol=1e-5)


@pytest.mark.parametrize("kind", ["Conv2d", "ConvTranspose2d"])
def test_images_quantized_at_run_time(kind: str) -> None:
    graph = GraphBuilder()
    source = graph.input((2, 8, 8, 4))
    whole = graph.value((2, 8, 8, 4), "qdint8", Rows(3))
    size = 6 if kind == "Conv2d" else 10
    target = graph.output((2, size, size, 6))
    graph.unary("Convert", source, whole)
    filters, _ = weight(graph, (6, 3, 3, 4), 0, per_channel=True)
    bias_id = graph.constant(floats((6,)))
    graph.conv(kind, (whole, filters, bias_id, target), kernel=(3, 3), channels=(4, 6))
    agree(graph.program(), [floats((2, 8, 8, 4))], rtol=1e-5)


def test_pixels_and_images_quantized_at_run_time_from_one_value() -> None:
    """Each convolution gives what it gives alone; of the second, the wheel gives something else."""

    def outputs(kernels: tuple[int, ...], run: Callable[..., Any]) -> list[torch.Tensor]:
        graph = GraphBuilder()
        source = graph.input((2, 8, 8, 4))
        whole = graph.value((2, 8, 8, 4), "qdint8", Rows(3))
        graph.unary("Convert", source, whole)
        for kernel in kernels:
            size = 9 - kernel
            filters, _ = weight(graph, (6, kernel, kernel, 4), 0, per_channel=True)
            ids = (whole, filters, graph.constant(floats((6,))), graph.output((2, size, size, 6)))
            graph.conv("Conv2d", ids, kernel=(kernel, kernel), channels=(4, 6))
        found: list[torch.Tensor] = run(graph.program(), [floats((2, 8, 8, 4))])
        return found

    together = outputs((1, 3), run_here)
    compare(together, [outputs((kernel,), run_there)[0] for kernel in (1, 3)], rtol=1e-5)
