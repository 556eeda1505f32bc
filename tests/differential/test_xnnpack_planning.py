"""Graphs of several nodes: memory that is reused, views, shapes that change, shared weights."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import pteron
from pteron.backends.interface import BackendInitContext
from pteron.backends.xnnpack import XnnpackBackend
from pteron.errors import DelegateInvalidHandleError, InvalidArgumentError, InvalidProgramError
from pteron.format.schema import ScalarType, TensorShapeDynamism
from support.xnnpack_check import agree, compare, needs_wheel, wheel
from support.xnnpack_graphs import Affine, Channels, GraphBuilder, Rows

pytestmark = needs_wheel


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_sizes_among_the_arguments_are_passed_over() -> None:
    graph = GraphBuilder()
    graph.size(7)
    source = graph.input((3, 4))
    graph.size(3)
    graph.unary("Negate", source, graph.output((3, 4)))
    x = floats(3, 4)
    (found,) = agree(graph.program(), [x])
    torch.testing.assert_close(found, -x)


# -- random graphs --------------------------------------------------------------------------------


UNARY = {
    "Tanh": torch.tanh,
    "Sigmoid": torch.sigmoid,
    "Negate": torch.neg,
    "Abs": torch.abs,
    "Hardswish": torch.nn.functional.hardswish,
    "Copy": torch.clone,
    "Softmax": lambda x: torch.softmax(x, -1),
}
BINARY = {
    "Add": torch.add,
    "Subtract": torch.sub,
    "Multiply": torch.mul,
    "Maximum": torch.maximum,
}


class Sprout:
    """Grows a random graph, and computes with torch what each value of it has to be.

    (The wheel ends the process on some of these graphs.)
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.graph = GraphBuilder()
        self.ready: list[tuple[int, torch.Tensor]] = []
        self.wanted: list[torch.Tensor] = []
        for index, shape in enumerate(((1, 6, 5, 4), (1, 6, 5, 4), (1, 4, 6, 5))):
            generator = torch.Generator().manual_seed(seed + index)
            numbers = torch.rand(shape, generator=generator) * 2 - 1
            self.ready.append((self.graph.input(shape), numbers))
        self.inputs = [numbers for _, numbers in self.ready]

    def grow(self, count: int, outputs: int) -> bytes:
        for _ in range(count):
            self.step()
        for _ in range(outputs):
            source, numbers = self.random.choice(self.ready[3:])
            self.graph.binary("Add", source, source, self.graph.output(numbers.shape))
            self.wanted.append(numbers + numbers)
        return self.graph.program()

    def step(self) -> None:
        source, numbers = self.random.choice(self.ready[-6:])
        recipes = [self.unary, self.unary, self.binary, self.binary, self.transpose]
        recipes += [self.slice, self.reshape, self.concatenate]
        if numbers.dim() == 4 and numbers.shape[3] == 4:
            recipes += [self.convolve, self.convolve]
        self.random.choice(recipes)(source, numbers)

    def add(self, numbers: torch.Tensor) -> int:
        value = self.graph.value(numbers.shape)
        self.ready.append((value, numbers))
        return value

    def partner(self, numbers: torch.Tensor) -> tuple[int, torch.Tensor]:
        return self.random.choice([x for x in self.ready if x[1].shape == numbers.shape])

    def unary(self, source: int, numbers: torch.Tensor) -> None:
        kind = self.random.choice(list(UNARY))
        self.graph.unary(kind, source, self.add(UNARY[kind](numbers)))

    def binary(self, source: int, numbers: torch.Tensor) -> None:
        other, others = self.partner(numbers)
        kind = self.random.choice(list(BINARY))
        result, low = BINARY[kind](numbers, others), None
        if kind != "Maximum" and self.random.random() < 0.3:
            low = -0.5
            result = result.clamp(min=low)
        self.graph.binary(kind, source, other, self.add(result), low=low)

    def transpose(self, source: int, numbers: torch.Tensor) -> None:
        perm = list(range(numbers.dim()))
        self.random.shuffle(perm)
        target = self.add(numbers.permute(perm).contiguous())
        self.graph.unary("StaticTranspose", source, target, num_dims=len(perm), perm=perm)

    def reshape(self, source: int, numbers: torch.Tensor) -> None:
        flat = numbers.flatten(0, 1) if numbers.dim() > 2 else numbers.unsqueeze(0)
        shape = list(flat.shape)
        target = self.add(flat)
        self.graph.unary("StaticReshape", source, target, num_dims=len(shape), new_shape=shape)

    def slice(self, source: int, numbers: torch.Tensor) -> None:
        axis = self.random.randrange(numbers.dim())
        if numbers.shape[axis] < 3:
            return
        offset = self.random.randrange(2)
        part = numbers.narrow(axis, offset, numbers.shape[axis] - 2)
        offsets = [offset * (index == axis) for index in range(numbers.dim())]
        sizes = list(part.shape)
        target = self.add(part.clone())
        self.graph.unary(
            "StaticSlice", source, target, num_dims=len(sizes), offsets=offsets, sizes=sizes
        )

    def concatenate(self, source: int, numbers: torch.Tensor) -> None:
        if numbers.numel() > 600:
            return
        other, others = self.partner(numbers)
        axis = self.random.randrange(numbers.dim())
        target = self.add(torch.cat([numbers, others], axis))
        ids = {f"input{i}_id": 0xFFFFFFFF for i in (3, 4, 5)}
        self.graph.node(
            "Concatenate2", axis=axis, input1_id=source, input2_id=other, output_id=target, **ids
        )

    def convolve(self, source: int, numbers: torch.Tensor) -> None:
        side = self.random.choice([1, 3])
        weights, bias = floats(4, side, side, 4) * 0.3, floats(4)
        filters, bias_id = self.graph.constant(weights), self.graph.constant(bias)
        image, kernel = numbers.permute(0, 3, 1, 2), weights.permute(0, 3, 1, 2)
        result = torch.conv2d(image, kernel, bias, padding=side // 2).permute(0, 2, 3, 1)
        low = self.random.choice([None, 0.0])
        self.graph.conv(
            "Conv2d",
            (source, filters, bias_id, self.add(result if low is None else result.relu())),
            kernel=(side, side),
            channels=(4, 4),
            padding=(side // 2,) * 4,
            low=low,
        )


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs(seed: int) -> None:
    sprout = Sprout(seed)
    program = sprout.grow(count=14, outputs=3)
    with pteron.Runtime.get().load_program(program) as loaded:
        method = loaded.load_method("forward")
        for _ in range(2):  # the second run begins with what the first left in its buffers
            given = [tensor.clone() for tensor in sprout.inputs]
            compare([out.clone() for out in method.execute(given)], sprout.wanted)
            for tensor, untouched in zip(given, sprout.inputs, strict=True):
                assert torch.equal(tensor, untouched)


# -- one thing at a time --------------------------------------------------------------------------


def test_an_input_may_have_any_strides() -> None:
    graph = GraphBuilder()
    source, target = graph.input((4, 6)), graph.output((6, 4))
    turned = graph.value((6, 4))
    graph.unary("StaticTranspose", source, turned, num_dims=2, perm=[1, 0])
    graph.unary("Exp", turned, target)
    x = floats(6, 4)
    with pteron.Runtime.get().load_program(graph.program()) as loaded:
        method = loaded.load_method("forward")
        torch.testing.assert_close(method.execute([x.t()])[0], x.exp())
        torch.testing.assert_close(method.execute([x.t().contiguous()])[0], x.exp())


def test_arguments_in_channels_last_order() -> None:
    """The graph sees dimensions in the order of memory."""
    graph = GraphBuilder()
    order = (0, 2, 3, 1)
    source = graph.input((2, 5, 6, 3), dim_order=order)
    target = graph.output((2, 5, 6, 3), dim_order=order)
    slope = graph.constant(torch.tensor([0.1, 0.2, 0.3]))
    graph.binary("PReLU", source, slope, target)
    x = floats(2, 3, 5, 6).contiguous(memory_format=torch.channels_last)
    (out,) = agree(graph.program(), [x])
    torch.testing.assert_close(out, torch.nn.functional.prelu(x, torch.tensor([0.1, 0.2, 0.3])))


def test_an_output_that_is_an_input_seen_otherwise() -> None:
    graph = GraphBuilder()
    source, target = graph.input((4, 6)), graph.output((6, 4))
    graph.unary("StaticTranspose", source, target, num_dims=2, perm=[1, 0])
    agree(graph.program(), [floats(4, 6)])


def test_an_output_that_a_later_node_reads() -> None:
    graph = GraphBuilder()
    source, first, second = graph.input((4, 6)), graph.output((4, 6)), graph.output((4, 6))
    graph.unary("Exp", source, first)
    graph.unary("Negate", first, second)
    agree(graph.program(), [floats(4, 6)])


def test_memory_of_a_long_chain_is_that_of_a_short_one() -> None:
    def pool_bytes(length: int) -> int:
        graph = GraphBuilder()
        value = graph.input((64, 64))
        for index in range(length):
            kind = "Add" if index % 2 else "Multiply"
            target = graph.value((64, 64)) if index < length - 1 else graph.output((64, 64))
            graph.binary(kind, value, value, target)
            value = target
        handle, instance = handle_of(graph)
        handle.bind([torch.ones(64, 64), torch.ones(64, 64)])
        (pool,) = instance.values()
        return int(pool.nbytes)

    assert pool_bytes(40) == pool_bytes(4) > 0


# -- shapes that change ---------------------------------------------------------------------------


def dynamic_graph() -> GraphBuilder:
    graph = GraphBuilder()
    source = graph.input((16, 10, 8), dynamic=True)
    weights = graph.constant(floats(12, 8))
    middle, flat = graph.value((16, 10, 12)), graph.value((16, 120))
    target = graph.output((16, 120), dynamic=True)
    graph.linear(source, weights, None, middle, low=0.0)
    graph.unary("StaticReshape", middle, flat, num_dims=2, new_shape=[0, 120])
    graph.unary("Softmax", flat, target)
    return graph


def test_shapes_that_change_from_call_to_call() -> None:
    program = dynamic_graph().program()
    theirs = wheel().load_program(program).load_method("forward")
    with pteron.Runtime.get().load_program(program) as loaded:
        method = loaded.load_method("forward")
        for size in (3, 16, 1, 3, 7):
            x = floats(size, 10, 8)
            (here,) = method.execute([x])
            assert here.shape == (size, 120)
            compare([here], [theirs.execute([x])[0]])


def test_more_shapes_than_plans_are_kept() -> None:
    with pteron.Runtime.get().load_program(dynamic_graph().program()) as loaded:
        method = loaded.load_method("forward")
        first = method.execute([floats(2, 10, 8)])[0].clone()
        for size in range(1, 14):
            method.execute([floats(size, 10, 8)])
        assert torch.equal(method.execute([floats(2, 10, 8)])[0], first)


def test_a_shape_that_a_node_cannot_take_is_named() -> None:
    graph = GraphBuilder()
    source, target = graph.input((4, 8), dynamic=True), graph.output((2, 16), dynamic=True)
    graph.unary("StaticReshape", source, target, num_dims=2, new_shape=[2, 0])
    with pteron.Runtime.get().load_program(graph.program()) as loaded:
        method = loaded.load_method("forward")
        with pytest.raises(InvalidArgumentError, match=r"\(3, 7\) cannot become \(2, 0\)"):
            method.execute([floats(3, 7)])
        assert method.execute([floats(3, 8)])[0].shape == (2, 12)


# -- the backend ----------------------------------------------------------------------------------


class Data:
    """Named data as a program has it."""

    def __init__(self, graph: GraphBuilder) -> None:
        self.entries = {key: memoryview(data) for key, data in graph.named.items()}

    def get(self, key: str) -> Any:
        return type("Entry", (), {"data": self.entries[key]})


def context_of(graph: GraphBuilder, **fields: Any) -> BackendInitContext:
    blob = memoryview(graph.blob())
    settings: dict[str, Any] = {
        "backend_id": "XnnpackBackend",
        "processed": blob,
        "compile_specs": (),
        "method_name": "forward",
        "delegate_index": 0,
        "named_data": Data(graph),
        "device": torch.device("cpu"),
        "args": tuple(graph.args),
        "native_code": True,
    }
    return BackendInitContext(**{**settings, **fields})


def handle_of(graph: GraphBuilder, **fields: Any) -> tuple[Any, dict[Any, Any]]:
    context = context_of(graph, **fields)
    return XnnpackBackend().init(context), context.instance_store


def quantized_graph(rows: int) -> GraphBuilder:
    graph = GraphBuilder()
    source, whole = graph.input((rows, 8)), graph.value((rows, 8), "qdint8", Rows(1))
    generator = torch.Generator().manual_seed(1)
    numbers = torch.randint(-127, 128, (5, 8), generator=generator).to(torch.int8)
    weights = graph.constant(numbers, "qcint8", Channels(torch.full((5,), 0.01)))
    graph.unary("Convert", source, whole)
    graph.linear(whole, weights, None, graph.output((rows, 5)))
    return graph


def test_weights_with_one_name_are_prepared_once() -> None:
    shared: dict[Any, Any] = {}
    prepared = []
    for index, rows in enumerate((3, 7)):
        graph = quantized_graph(rows)
        handle, _ = handle_of(graph, program_store=shared, method_name=f"m{index}")
        with torch.inference_mode():  # as the executor does
            handle.bind([floats(rows, 8), torch.empty(rows, 5)])()
        prepared.append({key: id(value) for key, value in shared.items()})
    assert prepared[0] == prepared[1] != {}
    assert all(key[0] == "XnnpackBackend" for key in shared)


def test_float_weights_stay_in_the_file() -> None:
    graph = GraphBuilder()
    source, weights = graph.input((3, 8)), graph.constant(floats(5, 8))
    graph.linear(source, weights, None, graph.output((3, 5)))
    shared: dict[Any, Any] = {}
    handle, _ = handle_of(graph, program_store=shared)
    out = torch.empty(3, 5)
    handle.bind([floats(3, 8), out])()
    assert shared == {}
    torch.testing.assert_close(out, floats(3, 8) @ floats(5, 8).t())


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "limits", [{}, {"low": 0.0}, {"low": -1.0, "high": 2.0}], ids=["all", "positive", "range"]
)
def test_large_float_weights_are_reordered_once(
    limits: dict[str, float], transposed: bool, biased: bool
) -> None:
    """For the first shape; the others have to come out right with them, too."""
    graph = GraphBuilder()
    source = graph.input((16, 512), dynamic=True)
    numbers, bias = floats(1024, 512) / 20, floats(1024)
    stored = numbers.t().contiguous() if transposed else numbers
    weights = graph.constant(stored)
    added = graph.constant(bias) if biased else None
    target = graph.output((16, 1024), dynamic=True)
    graph.linear(source, weights, added, target, flags=int(transposed), **limits)
    program = graph.program()
    theirs = wheel().load_program(program).load_method("forward")
    with pteron.Runtime.get().load_program(program) as loaded:
        method = loaded.load_method("forward")
        for rows in (16, 5, 1, 16):
            x = floats(rows, 512)
            (here,) = method.execute([x])
            wanted = x.double() @ numbers.double().t() + (bias.double() if biased else 0)
            wanted = wanted.clamp(limits.get("low"), limits.get("high")) if limits else wanted
            torch.testing.assert_close(here.double(), wanted, rtol=1e-5, atol=1e-5)
            compare([here], [theirs.execute([x])[0]])
        (kept,) = (key for key in loaded_weights(graph) if key[0] == "XnnpackBackend")
        assert kept[2] == ("reordered", transposed)


def test_filters_are_packed_once_for_images_of_any_size() -> None:
    graph = GraphBuilder()
    source = graph.input((1, 16, 16, 8), dynamic=True)
    filters = floats(12, 3, 3, 8)
    weights = graph.constant(filters)
    target = graph.output((1, 16, 16, 12), dynamic=True)
    graph.conv(
        *("Conv2d", (source, weights, None, target)),
        kernel=(3, 3),
        channels=(8, 12),
        padding=(1, 1, 1, 1),
    )
    shared: dict[Any, Any] = {}
    handle, _ = handle_of(graph, program_store=shared)
    for size in (16, 5, 9, 1, 16):
        x, out = floats(1, size, size, 8), torch.empty(1, size, size, 12)
        with torch.inference_mode():
            handle.bind([x, out])()
        wanted = torch.nn.functional.conv2d(
            x.permute(0, 3, 1, 2).double(), filters.permute(0, 3, 1, 2).double(), padding=1
        )
        torch.testing.assert_close(out.double(), wanted.permute(0, 2, 3, 1), rtol=1e-5, atol=1e-4)
    assert len(shared) == 1


def loaded_weights(graph: GraphBuilder) -> dict[Any, Any]:
    """Return what the delegate of a graph with dynamic rows keeps after two shapes of input."""
    shared: dict[Any, Any] = {}
    handle, _ = handle_of(graph, program_store=shared)
    for rows in (16, 5):
        with torch.inference_mode():
            handle.bind([floats(rows, 512), torch.empty(rows, 1024)])()
    return shared


def test_a_closed_handle_refuses_to_run() -> None:
    handle, _ = handle_of(quantized_graph(3))
    call = handle.bind([floats(3, 8), torch.empty(3, 5)])
    handle.close()
    assert handle.closed
    with pytest.raises(DelegateInvalidHandleError, match="delegate 0 \\(XNNPACK\\): the delegate"):
        call()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scalar_type": ScalarType.INT}, "argument 0 has type int32; the graph has value 0"),
        ({"sizes": (2, 8)}, r"argument 0 has the dimensions \(2, 8\) in memory; the graph has"),
        ({"sizes": (3, 8, 1), "dim_order": (0, 1, 2)}, r"has the dimensions \(3, 8, 1\)"),
    ],
)
def test_refuses_arguments_that_the_graph_does_not_take(
    change: dict[str, Any], message: str
) -> None:
    from dataclasses import replace

    graph = quantized_graph(3)
    graph.args[0] = replace(graph.args[0], **change)
    with pytest.raises(InvalidProgramError, match=message):
        handle_of(graph)


def test_refuses_another_number_of_arguments() -> None:
    graph = quantized_graph(3)
    context = context_of(graph, args=(graph.args[0],))
    with pytest.raises(InvalidProgramError, match="1 arguments for a graph that takes 2"):
        XnnpackBackend().init(context)


def test_outputs_that_are_not_planned_may_move() -> None:
    from dataclasses import replace

    graph = GraphBuilder()
    source = graph.input((3, 4), dynamic=True)
    target = graph.output((3, 4), dynamic=True)
    graph.unary("Exp", source, target)
    for index in range(2):
        graph.args[index] = replace(
            graph.args[index],
            allocation_info=None,
            shape_dynamism=TensorShapeDynamism.DYNAMIC_UNBOUND,
        )
    handle, _ = handle_of(graph)
    x, out = floats(3, 4), torch.empty(0)
    call = handle.bind([x, out])
    call()
    torch.testing.assert_close(out, floats(3, 4).exp())
    x.set_(floats(2, 4))
    out.set_(torch.zeros(2, 4))
    call()
    torch.testing.assert_close(out, floats(2, 4).exp())


def test_integers_at_the_edges() -> None:
    graph = GraphBuilder()
    affine = Affine(0.05, -3)
    source = graph.input((4, 6), "qint8", affine)
    turned, target = graph.value((6, 4), "qint8", affine), graph.output((6, 4), "qint8", affine)
    graph.unary("StaticTranspose", source, turned, num_dims=2, perm=[1, 0])
    graph.binary("Add", turned, turned, target)
    x = torch.arange(-12, 12, dtype=torch.int8).view(4, 6) * 10
    agree(graph.program(), [x], step=0)
