"""Quantization scales in an XNNPACK delegate that no arithmetic can take."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from pteron import PteronError, Runtime
from pteron.backends.xnnpack.graph import Node, NodeKind
from pteron.backends.xnnpack.planner import LOWERINGS, Planner
from pteron.errors import InvalidProgramError, NotSupportedError

INT8 = Path(__file__).parents[1] / "fixtures" / "xnnpack" / "int8.pte"
SUM = struct.pack("<f", 0.12)
"""The scale of the sum and of what is pooled from it, in the order of the file's values."""
PLACE = "method 'forward', delegate 0 (XNNPACK)"


def scaled(*scales: float) -> bytes:
    """Return the program with other scales, for the first of those that are 0.12."""
    data = bytearray(INT8.read_bytes())
    place = 0
    for scale in scales:
        place = data.index(SUM, place)
        struct.pack_into("<f", data, place, scale)
    return bytes(data)


@pytest.mark.parametrize(
    ("scale", "text"),
    [
        (1e-40, "; a scale is finite and at least 2^-126"),
        (3.4e38, "takes value "),
        (float("inf"), "has the scale inf; a scale is finite"),
    ],
)
def test_a_scale_out_of_range_is_refused_by_name(scale: float, text: str) -> None:
    with pytest.raises(InvalidProgramError) as caught:
        Runtime.get().load_program(scaled(scale)).load_method("forward")
    assert text in str(caught.value)
    assert PLACE in str(caught.value)


@pytest.mark.parametrize("scale", [2.0**-126, 1e-30, 1e-10, 1e10, 1e30, 3.4e38])
@pytest.mark.parametrize("count", [1, 4])
def test_any_scale_gives_an_error_of_ours_or_runs(scale: float, count: int) -> None:
    try:
        method = Runtime.get().load_program(scaled(*[scale] * count)).load_method("forward")
        (output,) = method.execute([torch.ones(method.metadata.input_tensor_meta(0).sizes())])
    except PteronError:
        return
    assert output.shape == (2, 5)


@pytest.mark.parametrize(
    "raised",
    [OverflowError("too large"), ZeroDivisionError("by zero"), ValueError("cannot convert NaN")],
)
def test_arithmetic_that_fails_when_a_node_is_lowered_names_the_node(
    raised: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lower(planner: Planner, node: Node) -> None:
        raise raised

    monkeypatch.setitem(LOWERINGS, NodeKind.ADD, lower)
    with pytest.raises(InvalidProgramError) as caught:
        Runtime.get().load_program(INT8).load_method("forward")
    assert caught.value.message == f"{PLACE}: add(2, 8) -> 11: {raised}"
    assert caught.value.__cause__ is raised


def test_a_refusal_of_ours_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def lower(planner: Planner, node: Node) -> None:
        planner.refuse("not this one")

    monkeypatch.setitem(LOWERINGS, NodeKind.ADD, lower)
    with pytest.raises(NotSupportedError, match="not this one"):
        Runtime.get().load_program(INT8).load_method("forward")
