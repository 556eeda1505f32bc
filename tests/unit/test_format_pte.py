"""Reading .pte files: the same tables as executorch's reader sees, in every form of the file."""

from __future__ import annotations

import struct
import time
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from pteron import limits
from pteron.errors import InvalidProgramError, OutOfResourcesError, PteronError
from pteron.format import schema
from pteron.format.pte import PteFile, read_pte
from pteron.format.source import open_source
from pteron.program.constants import constant_bytes
from pteron.program.verify import verify_program
from support.plans import (
    MESSAGE,
    ScalarType,
    edited,
    ex,
    example,
    inline,
    kernel,
    opened,
    parsed_by_executorch,
    plan,
    program,
    shared_tables,
    tensor,
    violations,
    write,
    write_example,
)

HEADER = 8


@pytest.fixture(scope="module")
def data() -> bytes:
    return write_example()


# -- against executorch's reader ------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return one of our tables, or one of executorch's, as dicts and lists that can be compared."""
    if value is None or isinstance(value, (str, float)):
        return value
    if isinstance(value, (Enum, int)):
        return int(value)
    if isinstance(value, (bytes, memoryview)):
        return bytes(value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (ex.EValue, ex.Instruction)):
        return plain(value.val if isinstance(value, ex.EValue) else value.instr_args)
    if isinstance(value, schema.Device):
        return {"device_type": int(value.type), "device_index": value.index}
    if isinstance(value, (ex.Buffer, ex.BackendDelegateInlineData)):
        return bytes(value.storage if isinstance(value, ex.Buffer) else value.data)
    assert is_dataclass(value), value
    table = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return {"": type(value).__name__, **_tidy(value, table)}


def _tidy(value: Any, table: dict[str, Any]) -> dict[str, Any]:
    """Even out where the two sides hold the same fact differently."""
    name = type(value).__name__
    if name == "AllocationDetails":
        return {"memory_id": value.memory_id, "memory_offset": value.memory_offset}
    if name in ("ExtraTensorInfo", "NonConstBufferDevice"):
        device = table.pop("device", None)
        return {**table, **(device or {})}
    if name == "FrameList":
        return {"items": table["items"]}
    if name == "Chain":
        frames = table["stacktrace"] or []
        table["stacktrace"] = [f["items"] if isinstance(f, dict) else f for f in frames]
    if name in ("Program", "ExecutionPlan"):
        table = {
            key: [] if entry is None and key in _LISTS else entry for key, entry in table.items()
        }
    if name == "SubsegmentOffsets":
        table["offsets"] = table["offsets"] or []
    return table


_LISTS = ("mutable_data_segments", "named_data", "non_const_buffer_device")


def assert_same_tables(data: bytes, pte: PteFile) -> None:
    ours, theirs = plain(pte.program), plain(parsed_by_executorch(data, pte.flatbuffer_size))
    assert ours.keys() == theirs.keys()
    for key in ours:
        assert ours[key] == theirs[key], key


def test_the_example_reads_as_executorch_reads_it(data: bytes) -> None:
    pte = opened(data)
    assert violations(data) == []
    assert len(pte.program.execution_plan[0].values) == 18
    assert_same_tables(data, pte)


def test_a_file_of_the_old_kind_reads_as_executorch_reads_it() -> None:
    data = inline(example())
    pte = opened(data)
    assert pte.header is None
    assert pte.flatbuffer_size == len(data)
    assert [len(constant) for constant in pte.program.constant_buffer] == [0, 24]
    assert [bytes(blob) for blob in pte.program.backend_delegate_data] == [b"a blob"]
    assert_same_tables(data, pte)


PUBLIC = ("add", "add_model", "linear_inline_constants", "keyword_spotting", "stories260k_qnn")


@pytest.mark.parametrize("name", PUBLIC)
def test_public_files_read_as_executorch_reads_them(name: str, shared: Path) -> None:
    path = shared / "fixtures" / "public" / f"{name}.pte"
    assert_same_tables(path.read_bytes(), read_pte(open_source(path)))


def test_peer_modules_read_as_executorch_reads_them(shared: Path) -> None:
    paths = sorted((shared / "fixtures" / "peer_modules").glob("*.pte"))
    assert len(paths) > 15
    for path in paths:
        assert_same_tables(path.read_bytes(), read_pte(open_source(path)))


# -- where things are -----------------------------------------------------------------------------


def test_segments_are_views_at_their_place(data: bytes) -> None:
    pte = opened(data)
    assert pte.header is not None
    contents = [bytes(pte.segment(at)) for at in range(len(pte.program.segments))]
    assert contents == [bytes(24), bytes(24), b"a blob", b"123", b"45"]
    assert pte.segment(2).obj is pte.source.view.obj
    with pytest.raises(InvalidProgramError, match="segment 5 does not exist; the file has 5"):
        pte.segment(5)


def test_a_program_inside_another_file_is_read_in_place(data: bytes) -> None:
    wrapped = b"x" * 64 + data + b"y" * 50
    pte = read_pte(open_source(wrapped), start=64, size=len(data))
    assert bytes(pte.segment(2)) == b"a blob"
    assert pte.program.execution_plan[0].name == "forward"
    broken = bytearray(wrapped)
    broken[64:68] = b"\xff\xff\xff\x7f"
    with pytest.raises(InvalidProgramError, match=r"at offset 0x40 of the file"):
        read_pte(open_source(bytes(broken)), start=64, size=len(data))


def test_compile_specs_and_offsets_above_32_bits() -> None:
    root = example()
    root.execution_plan[0].values[2].val = tensor(2, 3, at=(5 << 32) + 48)
    forward = opened(write_example(root)).program.execution_plan[0]
    value = forward.values[2]
    assert isinstance(value, schema.Tensor)
    assert value.allocation_info == schema.AllocationDetails(1, (5 << 32) + 48)
    assert forward.delegates[0].compile_spec("key") == MESSAGE
    assert forward.delegates[0].compile_spec("absent") is None


# -- the extended header --------------------------------------------------------------------------


def header(data: bytes, **changes: int) -> bytes:
    """Return a file with numbers of its extended header changed."""
    names = ("length", "program_size", "segment_base_offset", "segment_data_size")
    values = dict(zip(names, struct.unpack_from("<IQQQ", data, HEADER + 4), strict=True))
    assert values["length"] == 32
    values.update(changes)
    return data[:12] + struct.pack("<IQQQ", *values.values()) + data[40:]


def test_the_24_byte_form_has_no_segment_size(data: bytes) -> None:
    pte = opened(header(data, length=24, segment_data_size=2**63))
    assert pte.header is not None
    assert pte.header.segment_data_size == 0
    assert bytes(pte.segment(3)) == b"123"


def test_a_longer_header_is_accepted(data: bytes) -> None:
    assert bytes(opened(header(data, length=48)).segment(3)) == b"123"


def test_another_magic_means_no_header(data: bytes) -> None:
    pte = opened(data[:8] + b"eh99" + data[12:])
    assert pte.header is None
    found = violations(data[:8] + b"eh99" + data[12:])
    assert any("no extended header says where segments begin" in text for text in found)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"length": 23}, "the header's length is 23; allowed are 24 and more"),
        ({"length": 0xFFFFFFFF}, "fewer than its header of 4,294,967,303 bytes"),
        ({"program_size": 8}, "the program has 8 bytes, fewer than its header"),
        (
            {"program_size": 2**64 - 1},
            "damaged: its header announces 18,446,744,073,709,551,615 bytes",
        ),
        ({"segment_base_offset": 64}, "segments are said to begin at 64, inside the flatbuffer"),
        (
            {"segment_base_offset": 2**64 - 1},
            r"damaged: .* bytes in all \(segments of .* from offset 0xffffffffffffffff\)",
        ),
        ({"segment_data_size": 2**64 - 1}, "damaged: its header announces"),
    ],
)
def test_headers_that_lie_are_refused(data: bytes, changes: dict[str, int], text: str) -> None:
    with pytest.raises(InvalidProgramError, match=text):
        opened(header(data, **changes))


def test_every_truncation_is_refused(data: bytes) -> None:
    for size in [*range(80), *range(80, len(data), 97), len(data) - 1]:
        with pytest.raises(PteronError):
            opened(data[:size])


def test_truncation_says_how_many_bytes_are_missing(data: bytes) -> None:
    with pytest.raises(InvalidProgramError) as caught:
        opened(data[:-1])
    text = str(caught.value)
    assert f"is cut short: its header announces {len(data):,} bytes in all" in text
    assert f"the file has {len(data) - 1:,} bytes" in text
    assert text.endswith("hint: fetch or write it again")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "is empty\nhint: fetch or write it again"),
        (b"abc", "is cut short: it has 3 bytes, and a program has at least 8"),
        (b"\x10\0\0\0ET11" + bytes(60), "is of version ET11; this reader knows ET12"),
        (
            b"\x10\0\0\0BP08" + bytes(60),
            "it is a bundled program (.bpte)\nhint: open it with pteron.compat.bundled",
        ),
        (b"\x10\0\0\0FT01" + bytes(60), "it is a data file (.ptd)\nhint: give it as data_path"),
        (b"\x10\0\0\0ED00" + bytes(60), "it is an ETDump"),
        (b"PK\x03\x04" + bytes(60), "it is a zip archive"),
        (b"version https://git-lfs.github.com/spec/v1\n", "it is a Git LFS pointer"),
        (b"\x7fELF" + bytes(60), "it is a compiled library"),
        (b"hello world", "bytes 4 to 8 are b'o wo', not b'ET12'"),
    ],
)
def test_files_that_are_no_programs_are_told_apart(data: bytes, text: str) -> None:
    with pytest.raises(InvalidProgramError) as caught:
        opened(data)
    assert text in str(caught.value)
    assert caught.value.code == 0x23


# -- absent fields (F83) --------------------------------------------------------------------------


def absent(edit: Any) -> bytes:
    """Return the example without a field: executorch's packer leaves out what is None."""
    return inline(edited(example(), edit))


def forward(root: Any) -> Any:
    return root.execution_plan[0]


HARMLESS = {
    "container_meta_type": lambda p: setattr(forward(p), "container_meta_type", None),
    "encoded_inp_str": lambda p: setattr(forward(p).container_meta_type, "encoded_inp_str", None),
    "chains": lambda p: setattr(forward(p), "chains", None),
    "inputs": lambda p: setattr(forward(p), "inputs", None),
    "segments": lambda p: setattr(p, "segments", None),
    "named_data": lambda p: setattr(p, "named_data", None),
    "constant_segment": lambda p: setattr(p, "constant_segment", None),
    "overload": lambda p: setattr(forward(p).operators[4], "overload", None),
    "sizes and dim_order": lambda p: setattr(
        forward(p).values[2].val, "sizes", setattr(forward(p).values[2].val, "dim_order", None)
    ),
    "list items": lambda p: setattr(forward(p).values[10].val, "items", None),
    "string": lambda p: setattr(forward(p).values[9].val, "string_val", None),
    "stack frame name": lambda p: setattr(
        forward(p).chains[0].stacktrace[0].items[0], "name", None
    ),
    "compile spec key": lambda p: setattr(forward(p).delegates[0].compile_specs[1], "key", None),
    "compile spec value": lambda p: setattr(
        forward(p).delegates[0].compile_specs[1], "value", None
    ),
}

WRONG = {
    "execution_plan": (lambda p: setattr(p, "execution_plan", None), "the program has no methods"),
    "method name": (lambda p: setattr(forward(p), "name", None), "method 0: it has no name"),
    "values": (lambda p: setattr(forward(p), "values", None), "input 0: value 0; the method has 0"),
    "operators": (
        lambda p: setattr(forward(p), "operators", None),
        "operator 0 does not exist; the method has 0 operators",
    ),
    "operator name": (
        lambda p: setattr(forward(p).operators[0], "name", None),
        "operator 0: it has no name",
    ),
    "delegates": (
        lambda p: setattr(forward(p), "delegates", None),
        "delegate 0 does not exist; the method has 0 delegates",
    ),
    "delegate id": (lambda p: setattr(forward(p).delegates[0], "id", None), "it has no id"),
    "inline delegate data": (
        lambda p: setattr(p, "backend_delegate_data", None),
        "inline data 0 does not exist; the file has 0",
    ),
    "sizes": (
        lambda p: setattr(forward(p).values[2].val, "sizes", None),
        "dim order [0, 1] is not a permutation of 0 dimensions",
    ),
    "dim_order": (
        lambda p: setattr(forward(p).values[2].val, "dim_order", None),
        "dim order [] is not a permutation of 2 dimensions",
    ),
    "arguments": (
        lambda p: setattr(forward(p).chains[0].instructions[0].instr_args, "args", None),
        "0 arguments; allowed are 1 to",
    ),
    "non_const_buffer_sizes": (
        lambda p: setattr(forward(p), "non_const_buffer_sizes", None),
        "the method has no planned buffers",
    ),
    "constants": (
        lambda p: setattr(p, "constant_buffer", None),
        "constant index 1 does not exist; the file has 0 constants",
    ),
    "constant's bytes": (
        lambda p: setattr(p.constant_buffer[1], "storage", None),
        "constant 1 has 0 bytes; the tensor needs 24",
    ),
}


@pytest.fixture(scope="module")
def inline_is_clean() -> None:
    """The old form of the example has one flaw: it has no place for the initial value of state."""
    found = violations(inline(example()))
    assert len(found) == 1
    assert "mutable data segment 0; the file has 0" in found[0]


@pytest.mark.usefixtures("inline_is_clean")
@pytest.mark.parametrize("field", HARMLESS)
def test_an_absent_field_has_a_default(field: str) -> None:
    found = [text for text in violations(absent(HARMLESS[field])) if "mutable data" not in text]
    if field == "chains":
        found = [text for text in found if "share bytes" not in text]
    assert found == []


@pytest.mark.parametrize("field", WRONG)
def test_an_absent_field_is_a_violation(field: str) -> None:
    edit, text = WRONG[field]
    found = violations(absent(edit))
    assert any(text in violation for violation in found), found


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda p: setattr(forward(p).delegates[0], "processed", None), "no 'processed'"),
        (lambda p: setattr(forward(p).values[2], "val", None), "value kind 0 is not known"),
        (
            lambda p: setattr(forward(p).chains[0].instructions[1], "instr_args", None),
            "instruction kind 0 is not known; known are 1 to 5",
        ),
        (
            lambda p: setattr(forward(p).values[2].val, "scalar_type", 99),
            "ScalarType 99 is not known",
        ),
        (
            lambda p: setattr(forward(p).values[2].val, "shape_dynamism", 7),
            "Dynamism 7 is not known",
        ),
    ],
)
def test_what_no_table_can_hold_is_refused_with_its_place(edit: Any, text: str) -> None:
    with pytest.raises(InvalidProgramError) as caught:
        opened(absent(edit))
    message = str(caught.value)
    assert text in message
    assert "at offset 0x" in message
    assert "of method 'forward'" in message or "of the methods" in message


def test_a_value_is_named_in_the_context() -> None:
    with pytest.raises(InvalidProgramError, match="in value 2 of the values of method 'forward'"):
        opened(absent(lambda p: setattr(forward(p).values[2].val, "scalar_type", 99)))


# -- limits (V2) ----------------------------------------------------------------------------------


def test_too_many_methods_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_METHODS", 3)
    data = inline(program(*(plan([], [], name=f"m{at}") for at in range(4))))
    with pytest.raises(OutOfResourcesError, match="the methods: 4 entries; allowed are 3"):
        opened(data)


def test_shared_tables_are_not_unrolled_for_ever() -> None:
    with pytest.raises(OutOfResourcesError, match="its tables share entries"):
        opened(shared_tables(methods=1000, values=300_000))


def test_the_number_of_arguments_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ARGUMENTS_PER_CALL", 4)
    root = plan([tensor(2, at=0)], [kernel(0, 0, 0, 0, 0), ex.DelegateCall(0, [0] * 5)])
    root.delegates = [ex.BackendDelegate("B", ex.BackendDelegateDataReference(0, 0), [])]
    found = violations(write(program(root, delegate_data=[b"1"])))
    assert len(found) == 1
    assert "5 arguments; allowed are 0 to 4" in found[0]
    root.chains[0].instructions[0].instr_args.args.append(0)
    found = violations(write(program(root, delegate_data=[b"1"])))
    assert len(found) == 2
    assert "5 arguments; allowed are 1 to 4" in found[0]


def test_scalar_kinds_keep_their_python_types() -> None:
    root = plan([ex.Bool(False), ex.Bool(True), ex.Double(0.0), ex.Int(0), ex.BoolList([True])], [])
    values = opened(write(program(root))).program.execution_plan[0].values
    assert values == (
        schema.Bool(False),
        schema.Bool(True),
        schema.Double(0.0),
        schema.Int(0),
        schema.BoolList((True,)),
    )
    assert [type(getattr(v, v.__slots__[0])) for v in values[:4]] == [bool, bool, float, int]
    assert ScalarType.FLOAT == schema.ScalarType.FLOAT


# -- large files ----------------------------------------------------------------------------------


def test_a_file_of_two_gigabytes_opens_at_once(tmp_path: Path) -> None:
    """Case 73: a constant above 2**31 bytes, here a hole in a sparse file."""
    numel = 560 * 1024 * 1024
    small = bytearray(write(program(plan([tensor(123, constant=1)], []), constants=[bytes(492)])))
    header = struct.unpack_from("<IQQQ", small, HEADER + 4)
    for old, new in (
        (struct.pack("<Q", 492), struct.pack("<Q", 4 * numel)),  # of the header and of the segment
        (struct.pack("<II", 1, 123), struct.pack("<II", 1, numel)),  # the tensor's sizes
    ):
        assert small[: header[1]].count(old) in (1, 2)
        small = small.replace(old, new)
    path = tmp_path / "large.pte"
    with path.open("wb") as file:
        file.write(small)
        file.truncate(header[2] + 4 * numel)
    began = time.process_time()
    pte = read_pte(open_source(path))
    verify_program(pte)
    assert time.process_time() - began < 0.2
    value = pte.program.execution_plan[0].values[0]
    assert isinstance(value, schema.Tensor)
    data = constant_bytes(pte, None, value)
    assert data.nbytes == 4 * numel == value.nbytes > 2**31
    assert data[-1] == 0
