"""ETDump files and the tracer, against executorch's reader, writer and order of events."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from pteron import Runtime
from pteron.devtools.tracer import DebugBuffer, Tracer, kernel_event
from pteron.errors import InvalidArgumentError, PteronError
from pteron.format.etdump import (
    NO_DATA,
    DebugEvent,
    ETDump,
    ProfileEvent,
    RunData,
    TracedTensor,
    read_etdump,
    write_etdump,
)
from pteron.format.schema import KernelCall, Operator
from pteron.format.source import open_source
from pteron.program.effects import operator_name
from support.portable_fixtures import PORTABLE, stored

TENSOR = TracedTensor(6, (2, 0, 3), (3, 3, 1), 64)
DUMP = ETDump(
    [
        RunData("Default", [ProfileEvent("Program::load_method", 5, 1 << 40)]),
        RunData(
            "Execute",
            [
                DebugEvent(TENSOR, 0, 3),
                DebugEvent((TENSOR, TracedTensor(4, (), (), NO_DATA)), 0, 4),
                DebugEvent(True, 0, 5),
                DebugEvent(-7, 0, 5),
                DebugEvent(0.25, 0, 5, delegate_debug_id="gemm"),
                ProfileEvent("OPERATOR_CALL", 10, 20, 0, 3),
                ProfileEvent("", 11, 12, 0, 3, delegate_debug_id=9, delegate_metadata=b"\0\1"),
                DebugEvent(TENSOR, -1, 0, output=True),
            ],
            bundled_input=2,
        ),
        RunData("empty"),
    ]
)


def events(data: bytes | Path) -> ETDump:
    with open_source(data) as source:
        return read_etdump(source)


def test_what_is_written_is_read_back() -> None:
    again = events(write_etdump(DUMP))
    assert list(again.runs) == list(DUMP.runs)
    assert again.version == 0


def test_executorch_reads_what_is_written() -> None:
    serialize = pytest.importorskip(
        "executorch.devtools.etdump.serialize", reason="executorch is not installed"
    )
    found = serialize.deserialize_from_etdump_flatcc(write_etdump(DUMP))
    assert [run.name for run in found.run_data] == ["Default", "Execute", "empty"]
    assert found.run_data[1].bundled_input_index == 2
    first = found.run_data[1].events[0].debug_event
    assert first.debug_entry.tensor.sizes == [2, 0, 3]
    assert first.debug_entry.tensor.offset == 64
    assert [
        t.sizes for t in found.run_data[1].events[1].debug_event.debug_entry.tensor_list.tensors
    ]
    assert found.run_data[1].events[2].debug_event.debug_entry.bool_value.bool_val is True
    assert found.run_data[1].events[3].debug_event.debug_entry.int_value.int_val == -7
    assert found.run_data[1].events[4].debug_event.delegate_debug_id_str == "gemm"
    assert found.run_data[1].events[5].profile_event.end_time == 20
    assert found.run_data[1].events[6].profile_event.delegate_debug_id_int == 9
    assert found.run_data[1].events[7].debug_event.chain_index == (1 << 64) - 1
    assert found.run_data[1].events[7].debug_event.debug_entry.output.bool_val is True


def traced(name: str, tmp_path: Path, *, size: int = 1 << 20) -> tuple[ETDump, bytes]:
    program = Runtime.get().load_program(PORTABLE / name / "program.pte")
    method = program.load_method("forward")
    (plan,) = program.pte.program.execution_plan
    tracer = Tracer(debug_buffer_size=size)
    inputs, expected = stored(name)["calls"]["forward"][0]
    outputs = tracer.execute(method, plan, list(inputs))
    torch.testing.assert_close(outputs, list(expected), rtol=1e-3, atol=1e-3)
    return events(tracer.take()), tracer.debug_buffer or b""


VIEWS = {"executorch_prim::et_view.default"}
"""Views that never change are made once, when a method is loaded: a run does not show them."""


def shape(dump: ETDump, views: set[int]) -> list[tuple[str, int, tuple[int, ...]]]:
    """Return what each event of the last run is, without times and places."""
    rows: list[tuple[str, int, tuple[int, ...]]] = []
    for event in dump.runs[-1].events:
        if event.instruction in views and event.chain == 0:
            continue
        if isinstance(event, ProfileEvent):
            rows.append((event.name, event.instruction, ()))
        elif isinstance(event.value, TracedTensor):
            rows.append(("value", event.instruction, event.value.sizes))
    return rows


@pytest.mark.parametrize(
    ("name", "overload", "event"),
    [
        ("aten::add", "out", "native_call_add.out"),
        ("quantized_decomposed::add", "out", "native_call_add.out"),
        ("llama::gated_delta_rule", "out", "native_call_llama::gated_delta_rule.out"),
        ("own", "", "native_call_own"),
    ],
)
def test_kernels_have_the_names_of_executorchs(name: str, overload: str, event: str) -> None:
    assert kernel_event(Operator(name, overload)) == event


def test_events_are_those_of_executorch_in_its_order(tmp_path: Path) -> None:
    wheel = pytest.importorskip(
        "executorch.extension.pybindings._C", reason="executorch is not installed"
    )
    name = "unet"
    inputs, _ = stored(name)["calls"]["forward"][0]
    program = wheel._load_program(
        str(PORTABLE / name / "program.pte"), enable_etdump=True, debug_buffer_size=1 << 20
    )
    program.load_method("forward")(list(inputs))
    program.write_etdump_result_to_file(str(tmp_path / "wheel.etdp"), str(tmp_path / "wheel.bin"))
    theirs = events(tmp_path / "wheel.etdp")
    ours, buffer = traced(name, tmp_path)
    (plan,) = Runtime.get().load_program(PORTABLE / name / "program.pte").pte.program.execution_plan
    views = {
        number
        for number, step in enumerate(plan.instructions)
        if isinstance(step, KernelCall) and operator_name(plan, step) in VIEWS
    }
    assert shape(ours, views) == shape(theirs, views)
    values = (tmp_path / "wheel.bin").read_bytes()
    for mine, other in zip(steps(ours, views), steps(theirs, views), strict=True):
        if isinstance(mine, DebugEvent) and isinstance(mine.value, TracedTensor):
            assert isinstance(other, DebugEvent)
            assert isinstance(other.value, TracedTensor)
            assert mine.value.scalar_type == other.value.scalar_type
            assert mine.value.strides == other.value.strides
            torch.testing.assert_close(
                value_of(mine.value, buffer), value_of(other.value, values), rtol=2e-2, atol=1e-2
            )


def steps(dump: ETDump, views: set[int]) -> list[ProfileEvent | DebugEvent]:
    return [e for e in dump.runs[-1].events if e.instruction not in views or e.chain]


def value_of(tensor: TracedTensor, buffer: bytes) -> torch.Tensor:
    count = torch.Size(tensor.sizes).numel()
    dtype = {5: torch.float16, 6: torch.float32, 4: torch.int64}[tensor.scalar_type]
    if not count:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(bytearray(buffer), dtype=dtype, count=count, offset=tensor.offset)


def test_a_full_buffer_loses_values_and_not_the_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """ExecuTorch 1.5.1 aborts the process (pytorch/executorch#22095)."""
    with caplog.at_level(logging.WARNING, logger="pteron"):
        dump, buffer = traced("float16", tmp_path, size=8)
    assert len(buffer) == 8
    assert caplog.text.count("the debug buffer of 8 bytes is full") == 1
    assert any(isinstance(e, ProfileEvent) for e in dump.runs[-1].events)
    for event in dump.runs[-1].events:
        if isinstance(event, DebugEvent):  # what has no bytes, or fits into eight
            assert isinstance(event.value, TracedTensor)
            assert event.value.offset in (NO_DATA, 0)


def test_values_are_aligned_and_empty_ones_have_no_data() -> None:
    buffer = DebugBuffer(256)
    assert buffer.add(torch.ones(3)) == 0
    assert buffer.add(torch.ones(0, 3)) == NO_DATA
    assert buffer.add(torch.full((2,), 2.0).expand(4, 2)) == 64
    assert buffer.add(torch.ones(1000)) is None
    assert buffer.getvalue()[64:68] == torch.tensor(2.0).numpy().tobytes()
    assert len(buffer.getvalue()) == 256


def test_a_trace_begins_anew_after_it_was_taken() -> None:
    tracer = Tracer()
    tracer.loaded(1, 2)
    assert len(events(tracer.take()).runs) == 1
    tracer.loaded(3, 4)
    tracer.loaded(5, 6)
    (run,) = events(tracer.take()).runs
    assert [event.start for event in run.events if isinstance(event, ProfileEvent)] == [3, 5]


def test_what_is_no_etdump_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="not an ETDump: bytes 8 to 12 are b''"):
        events(b"short")


def test_damaged_files_raise_and_nothing_else() -> None:
    data = write_etdump(DUMP)
    refused = 0
    for at in range(0, len(data), 3):
        for value in (0xFF, 0x80):
            damaged = data[:at] + bytes([data[at] ^ value]) + data[at + 1 :]
            try:
                events(damaged)
            except PteronError:
                refused += 1
    for end in range(0, len(data), 7):
        with pytest.raises(PteronError):
            events(data[:end])
    assert refused > 20
