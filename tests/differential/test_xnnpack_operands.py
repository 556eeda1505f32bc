"""Operands of XNNPACK nodes: every datatype and scale is taken as the file says, or refused.

A part of the combinations in ``support/xnnpack_operands.py``, and cases that once went wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pteron.errors import InvalidProgramError
from support.xnnpack_check import needs_wheel, run_here
from support.xnnpack_graphs import NO_VALUE, Affine, Channels, GraphBuilder, Rows
from support.xnnpack_operands import Case, all_cases, build, check, real_of

pytestmark = needs_wheel

KINDS = tuple(dict.fromkeys(case.kind for case in all_cases()))


def chosen(kind: str) -> list[Case]:
    """Return a part of a kind's cases: of those with one datatype a third, of others few."""
    cases = [case for case in all_cases() if case.kind == kind]
    same = [case for case in cases if len(set(case.datatypes)) == 1]
    return [*same[::3], *cases[7::113]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_is_right_or_refused(kind: str) -> None:
    outcomes = {check(case) for case in chosen(kind)}
    assert "right" in outcomes


def test_the_check_sees_a_result_that_is_two_steps_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from support import xnnpack_operands

    case = Case("Abs", ("qint8", "qint8"))
    program, given, real = build(case)
    step = xnnpack_operands.STEPS["qint8"][0].scale
    monkeypatch.setattr(xnnpack_operands, "build", lambda _: (program, given, real + 2.5 * step))
    with pytest.raises(AssertionError, match="steps apart"):
        check(case)


# -- values that move to another scale ------------------------------------------------------------

FINE, COARSE, SHIFTED = Affine(0.05, 0), Affine(0.1, 0), Affine(0.05, 9)


@pytest.mark.parametrize("after", [COARSE, SHIFTED], ids=["another scale", "another zero point"])
def test_a_transposed_image_takes_the_scale_of_the_output(after: Affine) -> None:
    graph = GraphBuilder()
    source, target = graph.input((1, 1, 4, 4)), graph.output((1, 4, 4, 1))
    fine = graph.value((1, 1, 4, 4), "qint8", FINE)
    moved = graph.value((1, 4, 4, 1), "qint8", after)
    graph.unary("Convert", source, fine)
    graph.unary("StaticTranspose", fine, moved, num_dims=4, perm=[0, 2, 3, 1])
    graph.unary("Convert", moved, target)
    x = torch.linspace(-2, 2, 16).view(1, 1, 4, 4)
    (found,) = run_here(graph.program(), [x])
    wanted = x.permute(0, 2, 3, 1)
    assert (found - wanted).abs().max() <= (FINE.scale + after.scale) / 2 + 1e-6


def test_values_beyond_the_range_of_the_output_end_at_its_ends() -> None:
    graph = GraphBuilder()
    source = graph.input((256,), "qint8", FINE)
    graph.unary("Copy", source, graph.output((256,), "qint8", SHIFTED))
    whole = torch.arange(-128, 128).to(torch.int8)
    (found,) = run_here(graph.program(), [whole])
    assert torch.equal(found, (whole.int() + 9).clamp(max=127).to(torch.int8))


def test_a_concatenation_takes_each_operand_with_its_own_scale() -> None:
    graph = GraphBuilder()
    first = graph.input((3,), "qint8", FINE)
    second = graph.input((3,), "qint8", COARSE)
    target = graph.output((6,), "qint8", COARSE)
    ids = {f"input{i}_id": NO_VALUE for i in (3, 4, 5)}
    graph.node("Concatenate2", axis=0, input1_id=first, input2_id=second, output_id=target, **ids)
    parts = torch.tensor([-100, 2, 50]).to(torch.int8), torch.tensor([-100, 2, 50]).to(torch.int8)
    (found,) = run_here(graph.program(), parts)
    assert found.tolist() == [-50, 1, 25, -100, 2, 50]


# -- biases that layers share ----------------------------------------------------------------------


def shared_bias(kind: str, datatype: str) -> tuple[bytes, torch.Tensor]:
    """Return a program with one bias for a float layer and two 8-bit ones, and its real numbers.

    The inputs of the 8-bit layers have different scales: so would a layer that is called twice.
    """
    graph = GraphBuilder()
    shape, bias_shape = ((2, 4), (6,)) if kind == "FullyConnected" else ((1, 5, 5, 4), (6,))
    inputs = [graph.input(shape), graph.input(shape, "qint8", FINE)]
    inputs.append(graph.input(shape, "qint8", Affine(0.02, -5)))
    filters = torch.randint(-100, 100, (6, 4), generator=torch.Generator().manual_seed(0))
    filters = filters.to(torch.int8) if kind == "FullyConnected" else filters.view(6, 1, 1, 4)
    if kind == "Conv2d":
        filters = filters.repeat(1, 3, 3, 1)
    filters = filters.to(torch.int8)
    each = torch.linspace(0.002, 0.005, 6)
    real_filters = filters * each.view(-1, *[1] * (filters.dim() - 1))
    real = torch.tensor([1.5, -2.0, 0.25, 3.0, -0.125, 2.5])
    if datatype == "fp32":
        bias = graph.constant(real)
    else:
        steps = each * FINE.scale
        whole = (real / steps).round().to(torch.int32)
        bias = graph.constant(whole, "qcint32", Channels(steps))
    outer = (*shape[:-1], 6) if kind == "FullyConnected" else (1, 3, 3, 6)
    weights = [graph.constant(real_filters)]
    weights += [graph.constant(filters, "qcint8", Channels(each))] * 2
    targets = [graph.output(outer)]
    targets += [graph.output(outer, "qint8", Affine(0.05, 3)) for _ in range(2)]
    for source, weight, target in zip(inputs, weights, targets, strict=True):
        if kind == "FullyConnected":
            graph.linear(source, weight, bias, target)
        else:
            ids = (source, weight, bias, target)
            graph.conv("Conv2d", ids, kernel=(3, 3), channels=(4, 6))
    assert bias_shape == tuple(real.shape)
    return graph.program(), real


@pytest.mark.parametrize("datatype", ["fp32", "qcint32"])
@pytest.mark.parametrize("kind", ["FullyConnected", "Conv2d"])
def test_a_shared_bias_is_the_same_real_number_in_every_layer(kind: str, datatype: str) -> None:
    program, real = shared_bias(kind, datatype)
    shape = (2, 4) if kind == "FullyConnected" else (1, 5, 5, 4)
    nothing = [torch.zeros(shape), torch.zeros(shape), torch.full(shape, -5)]
    inputs = [nothing[0], *(tensor.to(torch.int8) for tensor in nothing[1:])]
    floats, *whole = run_here(program, inputs)
    assert (floats - real).abs().max() <= 1e-3
    for result in whole:
        assert (real_of(result, Affine(0.05, 3)) - real).abs().max() <= 0.026


def test_unsigned_weights_beyond_127_are_taken_whole_by_large_products() -> None:
    """Integer kernels take signed bytes; the product is large enough for them."""
    rows, inner, outer = 64, 1024, 640
    generator = torch.Generator().manual_seed(0)
    x, weights = (
        torch.randint(0, 256, (count, inner), generator=generator).to(torch.uint8)
        for count in (rows, outer)
    )
    before, after = Affine(0.01, 128), Affine(0.5, 100)
    graph = GraphBuilder()
    source = graph.input((rows, inner), "quint8", before)
    target = graph.output((rows, outer), "quint8", after)
    graph.linear(source, graph.constant(weights, "quint8", Affine(0.01, 0)), None, target)
    (found,) = run_here(graph.program(), [x])
    real = real_of(x, before) @ real_of(weights, Affine(0.01, 0)).t()
    wanted = (real / after.scale + after.zero_point).round().clamp(0, 255)
    assert (found - wanted).abs().max() <= 1


# -- what is not a number --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Log", "SquareRoot", "ReciprocalSquareRoot"])
def test_a_function_without_a_value_stores_zero_as_xnnpack_does(kind: str) -> None:
    graph = GraphBuilder()
    source = graph.input((4,), "qint8", FINE)
    graph.unary(kind, source, graph.output((4,), "qint8", SHIFTED))
    (found,) = run_here(graph.program(), [torch.tensor([-3, -1, -128, -7]).to(torch.int8)])
    assert found.tolist() == [0, 0, 0, 0]


# -- ranks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", ["fp32", "qint8"])
@pytest.mark.parametrize("kind", ["Negate", "Copy", "Clamp"])
@pytest.mark.parametrize("rank", range(7))
def test_a_node_on_each_element_takes_any_rank(rank: int, kind: str, datatype: str) -> None:
    shape = (1, 2, 3, 1, 2, 2)[:rank]
    graph = GraphBuilder()
    affine = SHIFTED if datatype == "qint8" else None
    source, target = graph.input(shape, datatype, affine), graph.output(shape, datatype, affine)
    graph.unary(kind, source, target, **({"low": -1.0, "high": 1.0} if kind == "Clamp" else {}))
    x = torch.randint(-90, 90, shape, generator=torch.Generator().manual_seed(rank))
    x = x.to(torch.int8 if affine else torch.float32)
    (found,) = run_here(graph.program(), [x])
    real = x.double() if affine is None else real_of(x, affine)
    wanted = {"Negate": -real, "Copy": real, "Clamp": real.clamp(-1, 1)}[kind]
    step = 0.0 if affine is None else affine.scale * 0.51
    assert (found.double() if affine is None else real_of(found, affine)).sub(
        wanted
    ).abs().max() <= (step)


# -- refusals --------------------------------------------------------------------------------------


def bad_filter(graph: GraphBuilder) -> None:
    source, target = graph.input((1, 5, 5, 4)), graph.output((1, 3, 3, 6))
    filters = graph.constant(
        torch.zeros(6, 3, 3, 4, dtype=torch.int8), "qcint8", Channels(torch.ones(6))
    )
    graph.conv("Conv2d", (source, filters, None, target), kernel=(3, 3), channels=(4, 6))


def bad_axis(graph: GraphBuilder) -> None:
    source, target = graph.input((2, 6), "qint8", FINE), graph.output((2, 6), "qint8", FINE)
    weights = graph.constant(
        torch.zeros(6, 6, dtype=torch.int8), "qcint8", Channels(torch.ones(6), 1)
    )
    graph.linear(source, weights, None, target)


def bad_datatype(graph: GraphBuilder) -> None:
    source, target = graph.input((4,), "qint8", FINE), graph.output((4,), "quint8", FINE)
    graph.unary("Copy", source, target)


def bad_bias(graph: GraphBuilder) -> None:
    source, target = graph.input((2, 6), "qint8", FINE), graph.output((2, 6), "qint8", FINE)
    bias = graph.input((6,))
    weights = graph.constant(torch.zeros(6, 6, dtype=torch.int8), "qint8", FINE)
    graph.linear(source, weights, bias, target)


def bad_flags(graph: GraphBuilder) -> None:
    source, target = graph.input((1, 5, 5, 4)), graph.output((1, 3, 3, 6))
    filters = graph.constant(torch.zeros(6, 3, 3, 4))
    ids = (source, filters, None, target)
    graph.conv("Conv2d", ids, kernel=(3, 3), channels=(4, 6), flags=4)


def bad_limits(graph: GraphBuilder) -> None:
    graph.unary("Sigmoid", graph.input((4,)), graph.output((4,)), low=0.0, high=0.5)


def bad_rows(graph: GraphBuilder) -> None:
    source, target = graph.input((1, 5, 5, 4)), graph.output((1, 3, 3, 6))
    rows = graph.value((1, 5, 5, 4), "qdint8", Rows(1))
    filters = graph.constant(
        torch.zeros(6, 3, 3, 4, dtype=torch.int8), "qcint8", Channels(torch.ones(6))
    )
    graph.unary("Convert", source, rows)
    graph.conv("Conv2d", (rows, filters, None, target), kernel=(3, 3), channels=(4, 6))


def bad_average(graph: GraphBuilder) -> None:
    sides: dict[str, Any] = {"padding_top": 1, "padding_bottom": 0}
    sides |= {"padding_left": 0, "padding_right": 0, "dilation_height": 0, "dilation_width": 0}
    graph.node(
        "AvgPooling2d",
        input_id=graph.input((1, 6, 6, 2)),
        output_id=graph.output((1, 3, 3, 2)),
        **dict(pooling_height=2, pooling_width=2, stride_height=2, stride_width=2, **sides),
    )


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (bad_filter, "as its filter; allowed when its input is fp32: fp32, fp16, bf16"),
        (bad_axis, "has its scales along dimension 1; its output channels are dimension 0"),
        (bad_datatype, "as its output; allowed when its input is qint8: qint8"),
        (bad_bias, "as its bias, which is not a constant"),
        (bad_flags, "has flags 0x4; supported are "),
        (bad_limits, "limits its output to 0.0 to 0.5; nodes of its kind have no output range"),
        (bad_rows, "quantized over its last 1 dimensions; a convolution takes one scale for each"),
        (bad_average, "has a padding of 1 above, 0 below"),
    ],
)
def test_a_refusal_says_what_was_found_and_what_is_allowed(
    make: Callable[[GraphBuilder], None], text: str
) -> None:
    graph = GraphBuilder()
    make(graph)
    with pytest.raises(InvalidProgramError) as caught:
        run_here(graph.program(), [])
    assert text in str(caught.value)
