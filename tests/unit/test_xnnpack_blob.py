"""The reader and the verifier of XNNPACK delegates, on a blob that executorch serialized."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pteron.backends.xnnpack.blob import Blob, Header, read_blob, read_header
from pteron.backends.xnnpack.graph import (
    Concatenate,
    ConstantData,
    Convolution,
    Datatype,
    Graph,
    Node,
    NodeKind,
    PerChannel,
    PerTensor,
    PerToken,
    Reshape,
    Value,
)
from pteron.backends.xnnpack.shapes import ShapeError, infer_shapes
from pteron.backends.xnnpack.verify import find_violations, verify_blob
from pteron.errors import DelegateInvalidCompatibilityError, InvalidProgramError, PteronError

NODES = Path(__file__).parents[1] / "fixtures" / "xnnpack" / "nodes.xnn"
"""Convolution, two changes of datatype, addition, pooling, reshape, a row-quantized product."""


@pytest.fixture(scope="module")
def data() -> bytes:
    return NODES.read_bytes()


@pytest.fixture(scope="module")
def blob(data: bytes) -> Blob:
    return read_blob(memoryview(data))


# -- reading --------------------------------------------------------------------------------------


def test_reads_what_was_written(blob: Blob) -> None:
    graph = blob.graph
    assert [node.kind for node in graph.nodes] == [
        NodeKind.CONV_2D,
        NodeKind.CONVERT,
        NodeKind.CONVERT,
        NodeKind.ADD,
        NodeKind.GLOBAL_AVG_POOLING_2D,
        NodeKind.STATIC_RESHAPE,
        NodeKind.CONVERT,
        NodeKind.FULLY_CONNECTED,
    ]
    conv = graph.nodes[0]
    assert conv.options == Convolution(
        padding=(1, 1, 1, 1),
        kernel=(3, 3),
        stride=(1, 1),
        dilation=(1, 1),
        groups=1,
        group_input_channels=4,
        group_output_channels=6,
        adjustment=(0, 0),
    )
    assert conv.inputs == (0, 1, 2)
    assert (conv.output_min, conv.output_max) == (0.0, float("inf"))
    assert graph.nodes[5].options == Reshape((1, 6))
    assert graph.nodes[7].inputs == (9, 10)  # there is no bias
    assert (graph.num_externs, graph.input_ids, graph.output_ids) == (2, (0,), (11,))
    assert [value.external_id for value in (*graph.inputs, *graph.outputs)] == [0, 1]


def test_reads_values_and_constants(blob: Blob) -> None:
    by_id = blob.graph.by_id
    assert by_id[0] == replace(by_id[0], datatype=Datatype.FP32, dims=(1, 8, 8, 4), flags=1)
    assert by_id[4].quantization == PerTensor(0.125, 3)
    assert by_id[9].quantization == PerToken(1)
    weights = by_id[10]
    assert weights.datatype is Datatype.QCINT8
    assert weights.quantization == PerChannel((), 0, scale_buffer_idx=4, num_scales=5)
    assert blob.graph.constants[0] == ConstantData(0, 0)
    named = blob.graph.constants[weights.constant]
    assert (named.size, len(named.named_key)) == (30, 64)


def test_the_blob_has_no_violation(blob: Blob) -> None:
    assert find_violations(blob, None) == ()


def test_reads_without_torch() -> None:
    code = (
        "import sys; from pteron.backends.xnnpack import blob, verify; "
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_header_is_absent_from_a_bare_flatbuffer(data: bytes, blob: Blob) -> None:
    header = blob.header
    assert header == Header(32, header.flatbuffer_size, header.constant_data_offset, 0)
    bare = data[32 : 32 + header.flatbuffer_size]
    assert read_header(memoryview(bare)) is None
    read = read_blob(memoryview(bare))
    assert read.graph.nodes[1].kind is NodeKind.CONVERT
    assert read.inline == ()


@pytest.mark.parametrize(
    ("offset", "code", "value", "message"),
    [
        (8, "<H", 12, r"length as 12; at least 30 are needed \(at offset 0x8 of the delegate\)"),
        (10, "<I", 1 << 30, "the flatbuffer is said to be at offset 0x40000000"),
        (14, "<I", 1 << 30, r"with 1073741824 bytes; the delegate has \d+ bytes"),
        (18, "<I", 1 << 30, "the constant data is said to be at offset 0x40000000"),
        (22, "<Q", 1 << 40, "with 1099511627776 bytes"),
        (10, "<I", 4, "overlap"),
        (18, "<I", 8, "overlap"),
    ],
)
def test_refuses_a_header(data: bytes, offset: int, code: str, value: int, message: str) -> None:
    broken = bytearray(data)
    struct.pack_into(code, broken, offset, value)
    with pytest.raises(InvalidProgramError, match=message):
        read_blob(memoryview(bytes(broken)))


def test_refuses_what_is_too_short() -> None:
    with pytest.raises(InvalidProgramError, match="has 10 bytes; its header alone has 30"):
        read_blob(memoryview(bytes(10)))


def test_refuses_another_kind_of_flatbuffer(data: bytes) -> None:
    broken = data.replace(b"XN01", b"XN07")
    with pytest.raises(DelegateInvalidCompatibilityError, match=r"found 'XN07' at offset 0x24"):
        read_blob(memoryview(broken))


@pytest.mark.parametrize("keep", [64, 128, 400, 900])
def test_a_flatbuffer_cut_short_says_where(data: bytes, keep: int) -> None:
    broken = bytearray(data[:keep])
    struct.pack_into("<IIQ", broken, 14, keep - 32, keep, 0)
    with pytest.raises(InvalidProgramError, match=r"offset 0x[0-9a-f]+"):
        read_blob(memoryview(bytes(broken)))


def test_mutations_give_an_error_or_a_graph(data: bytes) -> None:
    """2,000 seeded changes of bytes and words: nothing but a PteronError ever comes out."""
    generator = random.Random(20)
    outcomes: set[str] = set()
    for _ in range(2_000):
        broken = bytearray(data)
        for _ in range(generator.choice((1, 1, 2, 4))):
            place = generator.randrange(len(broken))
            if generator.random() < 0.5:
                broken[place] = generator.randrange(256)
            else:
                word = generator.choice((0, 1, 0xFFFFFFFF, 0x7FFFFFFF, generator.randrange(4096)))
                struct.pack_into("<I", broken, place & ~3, word)
        try:
            verify_blob(read_blob(memoryview(bytes(broken))), None, where="a delegate")
            outcomes.add("fine")
        except PteronError as error:
            outcomes.add(type(error).__name__)
    assert {"fine", "InvalidProgramError"} <= outcomes


# -- verifying ------------------------------------------------------------------------------------


def changed(blob: Blob, *, values: dict[int, Any] | None = None, **fields: Any) -> Blob:
    """Return the blob with other values (by id) and other fields of its graph."""
    table = tuple(replace(value, **(values or {}).get(value.id, {})) for value in blob.graph.values)
    graph = replace(blob.graph, values=table, by_id={v.id: v for v in table}, **fields)
    return replace(blob, graph=graph)


def node(blob: Blob, index: int, **fields: Any) -> dict[str, Any]:
    """Return the graph's nodes with one changed."""
    nodes = list(blob.graph.nodes)
    nodes[index] = replace(nodes[index], **fields)
    return {"nodes": tuple(nodes)}


VALUES: list[tuple[int, dict[str, Any], str]] = [
    (3, {"datatype": Datatype.INVALID}, "has no datatype"),
    (3, {"dims": (1,) * 7}, "has 7 dimensions; allowed are 6"),
    (3, {"dims": (1 << 31, 1 << 31)}, "is larger than"),
    (3, {"flags": 4}, "has flags 0x4; known are 1 and 2"),
    (0, {"flags": 3}, "is both an input and an output"),
    (0, {"external_id": 5}, "is argument 5 of 2"),
    (0, {"external_id": 1}, "is argument 1, as another value is"),
    (0, {"constant": 1}, "is a constant and an argument of the call"),
    (3, {"id": 4}, "its id is given twice"),
    (4, {"quantization": None}, "parameters none; its datatype takes PerTensor"),
    (3, {"quantization": PerTensor(1.0, 0)}, "parameters PerTensor; its datatype takes none"),
    (4, {"quantization": PerTensor(0.0, 0)}, "has the scale 0.0; a scale is finite and at least"),
    (4, {"quantization": PerTensor(1e-40, 0)}, "has the scale 1e-40; a scale is finite and at"),
    (4, {"quantization": PerTensor(float("nan"), 0)}, "has the scale nan"),
    (4, {"quantization": PerTensor(0.1, 200)}, "has zero point 200; allowed are -128 to 127"),
    (9, {"quantization": PerToken(3)}, "is quantized over 3 dimensions"),
    (10, {"quantization": PerChannel((), 2, 4, 5)}, "is quantized along dimension 2"),
    (10, {"quantization": PerChannel((1.0,), 0)}, "has 1 scales for 5 channels"),
    (10, {"quantization": PerChannel((), 0, 77, 5)}, "refers to constant 77 of 5"),
    (10, {"constant": 50}, "refers to constant 50 of 5"),
]


@pytest.mark.parametrize(("number", "fields", "message"), VALUES)
def test_refuses_a_value(blob: Blob, number: int, fields: dict[str, Any], message: str) -> None:
    found = find_violations(changed(blob, values={number: fields}), None)
    assert any(message in str(violation) for violation in found), found


NODE_CHANGES: list[tuple[int, dict[str, Any], str]] = [
    (3, {"inputs": (5, 99)}, "reads value 99, which does not exist"),
    (3, {"inputs": (5, 11)}, "reads value 11 before any node computes it"),
    (3, {"inputs": (5,)}, "has 1 inputs; its kind takes 2"),
    (3, {"outputs": (99,)}, "writes value 99, which does not exist"),
    (3, {"outputs": (0,)}, "which has its value already"),
    (3, {"outputs": (1,)}, "which has its value already"),
    (3, {"output_min": 2.0, "output_max": 1.0}, "is limited to 2.0 to 1.0"),
    (3, {"output_max": float("nan")}, "is limited to"),
    (3, {"inputs": (5, 1)}, "(1, 8, 8, 6) and (6, 3, 3, 4) do not go together"),
    (5, {"options": Reshape((7,))}, "(1, 1, 1, 6) cannot become (7)"),
    (5, {"outputs": (3,)}, "which has its value already"),
    (7, {"inputs": (9, 1)}, "a filter (6, 3, 3, 4)"),
]


@pytest.mark.parametrize(("index", "fields", "message"), NODE_CHANGES)
def test_refuses_a_node(blob: Blob, index: int, fields: dict[str, Any], message: str) -> None:
    found = find_violations(changed(blob, **node(blob, index, **fields)), None)
    assert any(message in str(violation) for violation in found), found


@pytest.mark.parametrize("scale", [3.4e38, 2.0**-126])
def test_refuses_scales_of_one_node_whose_ratio_float32_does_not_hold(
    blob: Blob, scale: float
) -> None:
    before = {"datatype": Datatype.QINT8, "quantization": PerTensor(1.5, 0)}
    after = {"quantization": PerTensor(scale, 0)}
    found = find_violations(changed(blob, values={3: before, 4: after}), None)
    (text,) = (str(violation) for violation in found if str(violation).startswith("convert(3)"))
    assert "takes value " in text
    assert f"with scale {scale}" in text


def test_refuses_a_result_that_is_larger_than_the_file_says(blob: Blob) -> None:
    found = find_violations(changed(blob, values={4: {"dims": (1, 1, 1, 6)}}), None)
    assert "computes a result of shape (1, 8, 8, 6) into value 4" in str(found[0])


def test_refuses_an_output_that_no_node_computes(blob: Blob) -> None:
    found = find_violations(changed(blob, nodes=blob.graph.nodes[:-1]), None)
    assert "is an output of the graph that no node computes" in str(found[0])


def test_collects_violations(blob: Blob) -> None:
    broken = changed(blob, values={3: {"flags": 8}, 4: {"flags": 8}})
    with pytest.raises(InvalidProgramError, match="m, delegate 2: 2 violations, the first: ") as e:
        verify_blob(broken, None, where="m, delegate 2")
    assert len(e.value.violations) == 2
    assert f"at offset {blob.graph.by_id[3].at:#x} of the delegate" in e.value.violations[0]


def test_checks_constants_inside_the_blob(blob: Blob) -> None:
    inside = tuple(ConstantData(0, 16) for _ in blob.graph.constants)
    found = find_violations(changed(blob, constants=inside), None)
    assert "has constant data at 0x0 with 16 bytes; there are 0 bytes" in str(found[0])
    room = replace(blob.header, constant_data_size=16)
    found = find_violations(replace(changed(blob, constants=inside), header=room), None)
    assert "needs 864 bytes of constant data; there are 16" in str(found[0])


# -- shapes ---------------------------------------------------------------------------------------


def test_an_old_file_with_two_externals_and_no_nodes_has_no_output() -> None:
    value = Value(0, Datatype.FP32, (2,), external_id=0, flags=2)
    graph = Graph("0", (), (value,), 1, (), (0,), (ConstantData(0, 0),), {0: value})
    found = find_violations(Blob(memoryview(b""), None, graph), None)
    assert "no node computes" in str(found[0])


@pytest.mark.parametrize(
    ("shapes", "axis", "message"),
    [
        ([(2, 3), (2, 4)], 0, r"shapes \(2, 3\) and \(2, 4\) differ beside dimension 0"),
        ([(2, 3), (2,)], 0, "differ"),
        ([(2, 3), (2, 3)], 2, r"\(2, 3\) has no dimension 2"),
    ],
)
def test_concatenation_says_what_does_not_fit(
    shapes: list[tuple[int, ...]], axis: int, message: str
) -> None:
    concatenate = Node(NodeKind.CONCATENATE_2, (0, 1), (2,), Concatenate(axis))
    with pytest.raises(ShapeError, match=message):
        infer_shapes(concatenate, shapes)
