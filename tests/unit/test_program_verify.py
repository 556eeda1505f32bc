"""Each rule of the verifier: one thing changed in a correct program, and what is said of it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pteron import limits
from pteron.errors import InvalidProgramError, OutOfResourcesError
from pteron.format.pte import read_pte
from pteron.format.source import open_source
from pteron.program.verify import find_violations, verify_method, verify_program
from support.plans import (
    MESSAGE,
    ScalarType,
    edited,
    ex,
    example,
    inline,
    kernel,
    opened,
    plan,
    program,
    tensor,
    violations,
    write,
    write_example,
)

Edit = Callable[[Any], Any]


def forward(root: Any) -> Any:
    return root.execution_plan[0]


def branches(root: Any) -> Any:
    return root.execution_plan[1]


def set_value(index: int, value: Any) -> Edit:
    return lambda root: setattr(forward(root).values[index], "val", value)


def set_step(index: int, step: Any, method: Callable[[Any], Any] = forward) -> Edit:
    return lambda root: setattr(method(root).chains[0].instructions[index], "instr_args", step)


def set_in(method: Callable[[Any], Any], field: str, value: Any) -> Edit:
    return lambda root: setattr(method(root), field, value)


CUDA0 = {"device_type": ex.DeviceType.CUDA, "device_index": 0}
CUDA1 = {"device_type": ex.DeviceType.CUDA, "device_index": 1}
ADD = "method 'forward', instruction 0 (aten::add.out(%0, %1, %3=1, %2, %2))"
X2 = "method 'forward', value %2"

RULES: dict[str, tuple[Edit, str]] = {
    # indices of the method
    "input": (
        set_in(forward, "inputs", [18]),
        "input 0: value 18; the method has 18 values (0 to 17)",
    ),
    "negative output": (
        set_in(forward, "outputs", [4, -1]),
        "output 1: value -1; the method has 18",
    ),
    "chain input": (
        lambda p: setattr(forward(p).chains[0], "inputs", [99]),
        "method 'forward', chain input 0: value 99",
    ),
    "chain output": (
        lambda p: setattr(forward(p).chains[0], "outputs", [0, -2]),
        "method 'forward', chain output 1: value -2",
    ),
    "two chains": (
        lambda p: forward(p).chains.append(forward(p).chains[0]),
        "method 'forward': 2 chains; no exporter writes more than 1",
    ),
    # calls
    "operator": (
        set_step(0, kernel(77, 0, 1)),
        "instruction 0 (operator 77?(%0, %1)): operator 77 does not exist; the method has 5 op",
    ),
    "negative operator": (set_step(0, kernel(-1, 0)), "operator -1 does not exist"),
    "argument": (
        set_step(0, kernel(0, 0, 1, 3, 18, 18)),
        "instruction 0 (aten::add.out(%0, %1, %3=1, %18?, %18?)): argument 3 is value 18;",
    ),
    "negative argument": (set_step(0, kernel(0, 0, 1, 3, -1, 2)), "argument 3 is value -1"),
    "no arguments": (
        set_step(0, kernel(0)),
        "(aten::add.out()): 0 arguments; allowed are 1 to 65536",
    ),
    "copy without an output": (
        set_step(1, kernel(1, 2)),
        "instruction 1 (et_copy::_h2d_copy.out(%2)): 1 arguments; it takes 3",
    ),
    "delegate": (
        set_step(2, ex.DelegateCall(1, [15])),
        "instruction 2 (delegate 1 ?(%15)): delegate 1 does not exist; the method has 1 delegates",
    ),
    "delegate argument": (set_step(2, ex.DelegateCall(0, [15, 99])), "argument 1 is value 99"),
    # control flow
    "move from": (
        set_step(2, ex.MoveCall(5, 3), branches),
        "method 'branches', instruction 2 (move %5? -> %3): the source is value 5; the",
    ),
    "move to": (set_step(2, ex.MoveCall(2, 999), branches), "the target is value 999"),
    "jump target": (
        set_step(0, ex.JumpFalseCall(0, 7), branches),
        "instruction 0 (jump to 7 if not %0): the target is instruction 7; allowed are 0 to 6",
    ),
    "negative jump target": (
        set_step(0, ex.JumpFalseCall(0, -1), branches),
        "the target is instruction -1",
    ),
    "jump condition": (set_step(0, ex.JumpFalseCall(9, 4), branches), "the condition is value 9"),
    "kind of condition": (
        set_step(0, ex.JumpFalseCall(9, 4)),
        "the condition is %9 str 'naïve'; allowed are a bool and a bool tensor",
    ),
    "freed": (set_step(5, ex.FreeCall(5), branches), "what is freed is value 5"),
    "kind of what is freed": (
        set_step(5, ex.FreeCall(4), branches),
        "instruction 5 (free %4=False): what is freed is %4 bool False, not a tensor",
    ),
    # lists
    "list item": (set_value(10, ex.IntList([3, 18])), "value %10 ints [%3=1, %18?]: item %18; the"),
    "negative list item": (
        set_value(10, ex.IntList([-1])),
        "%10 ints [None]: item %-1; the method",
    ),
    "kind of list item": (
        set_value(10, ex.IntList([0])),
        "item %0 float32[2, 3] planned 1+0 is no Int",
    ),
    "tensor list item": (set_value(13, ex.TensorList([3])), "item %3 int 1 is no Tensor"),
    "absent tensor in a list": (set_value(13, ex.TensorList([-1])), "item %-1; the method has 18"),
    "optional tensor list item": (
        set_value(14, ex.OptionalTensorList([-1, 9])),
        "item %9 str 'naïve' is no Tensor or Null",
    ),
    "optional tensor list index": (
        set_value(14, ex.OptionalTensorList([-2])),
        "item %-2; the method",
    ),
    # tensors
    "rank": (set_value(2, tensor(*[1] * 17, at=32)), ": rank 17; allowed are 16 dimensions"),
    "negative size": (set_value(2, tensor(-2, 3, at=32)), ": size -2 is negative"),
    "bytes": (
        set_value(2, tensor(2**31 - 1, 2**31 - 1, constant=1)),
        f": {(2**31 - 1) ** 2 * 4} bytes; allowed are {2**42}",
    ),
    "dim order": (
        set_value(2, tensor(2, 3, at=32, order=[1, 1])),
        "order [1, 1] planned 1+32: dim order [1, 1] is not a permutation of 2 dimensions",
    ),
    "long dim order": (
        set_value(2, tensor(2, 3, at=32, order=[0, 1, 2])),
        "dim order [0, 1, 2] is not a permutation of 2 dimensions",
    ),
    "storage offset": (
        lambda p: setattr(forward(p).values[2].val, "storage_offset", 4),
        f"{X2} float32[2, 3] planned 1+32: storage offset 4; only 0 is allowed",
    ),
    "planned buffer": (
        set_value(2, tensor(2, 3, at=0, buffer=4)),
        f"{X2} float32[2, 3] planned 4+0: planned buffer 4 does not exist; the method has buffers "
        "1 to 3",
    ),
    "reserved buffer": (
        set_value(2, tensor(2, 3, at=0, buffer=0)),
        "planned buffer 0 does not exist",
    ),
    "past the end of the buffer": (
        set_value(2, tensor(2, 3, at=112)),
        "byte 112 + 24 bytes go past the end of planned buffer 1, which has 128",
    ),
    "offset above 32 bits": (
        set_value(2, tensor(2, 3, at=2**40)),
        f"byte {2**40} + 24 bytes go past the end of planned buffer 1",
    ),
    "offset that wraps": (
        set_value(2, tensor(2, 3, at=2**64 - 8)),
        f"byte {2**64 - 8} + 24 bytes go past the end",
    ),
    "constant index": (
        set_value(1, tensor(2, 3, constant=999)),
        "value %1 float32[2, 3] constant 999: constant index 999 does not exist; the file has 2",
    ),
    "constant past its segment": (
        set_value(1, tensor(3, 3, constant=1)),
        "constant 1 (offset 0 + 36 bytes) goes past the end of segment 0, which has 24 bytes",
    ),
    "initial value past its segment": (
        set_value(5, tensor(2, 4, at=0, buffer=2, constant=1)),
        "initial value 1 (offset 0 + 32 bytes) goes past the end of segment 1",
    ),
    "external without a name": (
        set_value(1, tensor(2, 3, location=ex.TensorDataLocation.EXTERNAL)),
        "its data is external, but it has no name",
    ),
    "a result in a constant": (
        set_step(0, kernel(0, 0, 0, 3, 1, 1)),
        "instruction 0 (aten::add.out(%0, %0, %3=1, %1, %1)): it writes to %1 float32[2, 3] "
        "constant 1, which is a constant",
    ),
    "a move to a constant": (set_step(2, ex.MoveCall(0, 1)), "it writes to %1 float32[2, 3] const"),
    "an input that is a constant": (
        set_in(forward, "inputs", [0, 1]),
        "method 'forward', input 1: %1 float32[2, 3] constant 1 is a constant",
    ),
    # buffers and devices
    "negative buffer": (
        set_in(forward, "non_const_buffer_sizes", [0, 128, -32, 32]),
        "method 'forward', planned buffer 2: -32 bytes; allowed are 0 to 4398046511104",
    ),
    "huge buffer": (
        set_in(forward, "non_const_buffer_sizes", [0, 128, 32, 2**62]),
        f"planned buffer 3: {2**62} bytes",
    ),
    "many buffers": (
        set_in(forward, "non_const_buffer_sizes", [0, 128, 32, 32] + [0] * 256),
        "259 planned buffers; allowed are 256",
    ),
    "tag of a buffer that is not there": (
        lambda p: forward(p).non_const_buffer_device.append(
            ex.NonConstBufferDevice(50, ex.DeviceType.CUDA, 0)
        ),
        "device tag cuda:0 of planned buffer 50: the method has buffers 1 to 3",
    ),
    "tag of the reserved buffer": (
        lambda p: forward(p).non_const_buffer_device.append(
            ex.NonConstBufferDevice(0, ex.DeviceType.CUDA, 0)
        ),
        "device tag cuda:0 of planned buffer 0: the method has buffers 1 to 3",
    ),
    "two tags": (
        lambda p: forward(p).non_const_buffer_device.append(
            ex.NonConstBufferDevice(3, ex.DeviceType.CUDA, 1)
        ),
        "device tag cuda:1 of planned buffer 3: the buffer is tagged cuda:0 already",
    ),
    "negative device": (
        lambda p: setattr(forward(p).non_const_buffer_device[0], "device_index", -1),
        "device index -1 is negative",
    ),
    "host tensor in an accelerator buffer": (
        set_value(15, tensor(2, 3, at=0, buffer=3)),
        "value %15 float32[2, 3] planned 3+0 cuda:0: the tensor is tagged cpu, planned buffer 3 is "
        "tagged cuda:0",
    ),
    "other device's tensor in an accelerator buffer": (
        set_value(15, tensor(2, 3, at=0, buffer=3, **CUDA1)),
        "the tensor is tagged cuda:1, planned buffer 3 is tagged cuda:0",
    ),
    # names and delegates
    "operator name": (
        lambda p: setattr(forward(p).operators[0], "name", ""),
        "method 'forward', operator 0: it has no name",
    ),
    "method name": (set_in(forward, "name", ""), "method 0: it has no name"),
    "two methods of one name": (
        set_in(branches, "name", "forward"),
        "method 'forward': 2 methods have this name",
    ),
    "no methods": (lambda p: p.execution_plan.clear(), "the program has no methods"),
    "delegate id": (
        lambda p: setattr(forward(p).delegates[0], "id", ""),
        "method 'forward', delegate 0 '': it has no id",
    ),
    "two target devices": (
        lambda p: (
            forward(p).delegates[0].compile_specs.append(ex.CompileSpec("target_device", b"cuda:1"))
        ),
        "delegate 0 'DemoBackend': compile spec 'target_device' is given 2 times",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_breaking_one_rule_is_reported_once(rule: str) -> None:
    edit, text = RULES[rule]
    root = edited(example(), edit)
    if rule == "no methods":
        root.backend_delegate_data = []
    found = violations(write_example(root))
    matching = [violation for violation in found if text in violation]
    assert matching, found
    followed_by_another = {"argument", "negative buffer", "negative device"}
    assert len(found) == (2 if rule in followed_by_another else 1), found


def test_the_example_breaks_no_rule() -> None:
    verify_program(opened(write_example()))


# -- what is allowed, though it looks odd ---------------------------------------------------------

ALLOWED: dict[str, Edit] = {
    "a jump behind the last instruction": set_step(0, ex.JumpFalseCall(0, 6), branches),
    "a tensor tagged for an accelerator in a host buffer (P1)": set_value(
        2, tensor(2, 3, at=32, **CUDA0)
    ),
    "a tag that names the host": lambda p: forward(p).non_const_buffer_device.append(
        ex.NonConstBufferDevice(2, ex.DeviceType.CPU, 0)
    ),
    "an item that the run makes an integer": lambda p: (
        set_value(10, ex.IntList([6, 3]))(p),
        set_value(6, ex.Null())(p),
    ),
    "an item that is None": set_value(14, ex.OptionalTensorList([6, 2, -1])),
    "an empty tensor at the end of its buffer": set_value(2, tensor(0, 3, at=128)),
    "an unplanned dynamic input without a bound": set_value(
        16, tensor(2**31 - 1, 2**31 - 1, 2**31 - 1, dynamic=True)
    ),
    "no planned buffers and no planned tensors": lambda p: (
        setattr(
            p, "execution_plan", [plan([ex.Int(3)], [], outputs=[0], buffers=[], operators=[])]
        ),
        setattr(p, "backend_delegate_data", []),
    ),
    "no chain": lambda p: (
        setattr(p, "execution_plan", [plan([ex.Int(3)], [], outputs=[0])]),
        setattr(p.execution_plan[0], "chains", []),
        setattr(p, "backend_delegate_data", []),
    ),
    "a constant that is changed in place (state without a place)": lambda p: set_step(
        5, kernel(4, 1, 4, 7, 1)
    )(p),
    "rank 16": set_value(2, tensor(*[1] * 16, at=32)),
    "a delegate without arguments": set_step(2, ex.DelegateCall(0, [])),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_what_is_odd_but_right_is_accepted(case: str) -> None:
    assert violations(write_example(edited(example(), ALLOWED[case]))) == []


# -- the program as a whole -----------------------------------------------------------------------


def patched(old: bytes, new: bytes) -> bytes:
    """Return the example's file with bytes replaced: what the serializer refuses to write."""
    data = write_example()
    assert data.count(old) == 1
    return data.replace(old, new)


SEGMENT_OF_123 = struct.pack("<QQ", 3, 384)  # the size comes first in the table


@pytest.mark.parametrize("offset", [2**64 - 1, 2**63, 4096])
def test_a_segment_past_the_end_is_a_violation(offset: int) -> None:
    data = patched(SEGMENT_OF_123, struct.pack("<QQ", 3, offset))
    found = violations(data)
    assert f"segment 3 (offset {offset} + 3 bytes, from 0x" in found[0]
    assert "goes past the end of the file" in found[0]
    with pytest.raises(InvalidProgramError, match="segment 3"):
        opened(data).segment(3)


def test_a_segment_whose_end_wraps_is_a_violation() -> None:
    data = patched(SEGMENT_OF_123, struct.pack("<QQ", 2**64 - 1, 384))
    assert f"segment 3 (offset 384 + {2**64 - 1} bytes" in violations(data)[0]


def by_hand(**fields: Any) -> bytes:
    """Write a program that has its segment tables already, as executorch's serializer would."""
    root = program(plan([tensor(2, constant=1)], []))
    root.constant_buffer = []
    for name, value in fields.items():
        setattr(root, name, value)
    return inline(root)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"constant_segment": ex.SubsegmentOffsets(3, [0, 0])},
            "constant_segment: segment 3 does not exist; the file has 0",
        ),
        (
            {
                "constant_segment": ex.SubsegmentOffsets(0, [0, 9]),
                "segments": [ex.DataSegment(0, 0)],
            },
            "constant_segment: offset 9 is past the end of segment 0, which has 0 bytes",
        ),
        (
            {
                "constant_segment": ex.SubsegmentOffsets(0, [0, 0]),
                "segments": [ex.DataSegment(0, 0)],
                "constant_buffer": [ex.Buffer(b""), ex.Buffer(bytes(8))],
            },
            "2 are inside the flatbuffer and 2 in a segment; only one of the two is allowed",
        ),
        (
            {"mutable_data_segments": [ex.SubsegmentOffsets(1, [0])]},
            "mutable data segment 0: segment 1 does not exist; the file has 0",
        ),
        (
            {
                "mutable_data_segments": [ex.SubsegmentOffsets(0, [0])] * 2,
                "segments": [ex.DataSegment(0, 0)],
            },
            "mutable data segments: 2 of them are segment 0",
        ),
        (
            {"named_data": [ex.NamedData("k", 4)]},
            "named data 0 'k': segment 4 does not exist; the file has 0",
        ),
        ({"named_data": [ex.NamedData("", 0)]}, "named data 0 '': it has no key"),
        (
            {
                "named_data": [ex.NamedData("k", 0), ex.NamedData("k", 0)],
                "segments": [ex.DataSegment(0, 0)],
            },
            "named data 'k': 2 entries have this key",
        ),
        (
            {"segments": [ex.DataSegment(0, 8)]},
            "segment 0 has 8 bytes, but no extended header says where segments begin",
        ),
    ],
)
def test_tables_of_the_program_that_lie_are_violations(fields: dict[str, Any], text: str) -> None:
    assert any(text in violation for violation in violations(by_hand(**fields)))


def test_delegate_data_that_are_not_there_are_violations() -> None:
    def refer(location: Any) -> bytes:
        return inline(
            edited(
                example(),
                lambda p: setattr(
                    forward(p).delegates[0],
                    "processed",
                    ex.BackendDelegateDataReference(location, 7),
                ),
            )
        )

    where = "method 'forward', delegate 0 'DemoBackend': "
    inside, segment = (
        violations(refer(ex.DataLocation.INLINE)),
        violations(refer(ex.DataLocation.SEGMENT)),
    )
    assert f"{where}inline data 7 does not exist; the file has 1" in inside
    assert f"{where}segment 7 does not exist; the file has 0" in segment
    assert MESSAGE


# -- the error ------------------------------------------------------------------------------------


def test_all_violations_are_raised_together() -> None:
    def break_three(root: Any) -> None:
        set_step(0, kernel(77, 0, 1))(root)
        set_value(2, tensor(-2, 3, at=32))(root)
        set_in(branches, "outputs", [5])(root)

    with pytest.raises(InvalidProgramError) as caught:
        verify_program(opened(write_example(edited(example(), break_three))))
    error = caught.value
    assert error.code == 0x23
    assert isinstance(error, ValueError)
    assert len(error.violations) == 3
    lines = str(error).splitlines()
    assert lines[0] == "<bytes> breaks 3 rules:"
    assert [line[:5] for line in lines[1:4]] == ["  1. ", "  2. ", "  3. "]
    assert "size -2 is negative" in error.violations[0]


def test_the_instructions_around_the_first_violation_are_shown() -> None:
    with pytest.raises(InvalidProgramError) as caught:
        verify_program(opened(write_example(edited(example(), set_step(3, kernel(2, 15, 99, 16))))))
    assert str(caught.value) == (
        "<bytes> breaks a rule: method 'forward', instruction 3 "
        "(et_copy::_d2h_copy.out(%15, %99?, %16)): argument 1 is value 99; the method has 18 "
        "values (0 to 17)\n"
        "    1: et_copy::_h2d_copy.out(%2, %15, %15)\n"
        "    2: delegate 0 'DemoBackend'(%15)\n"
        "  > 3: et_copy::_d2h_copy.out(%15, %99?, %16)\n"
        "    4: aten::relu.out(%16, %4, %4)\n"
        "    5: aten::copy_(%5, %4, %7=False, %5)"
    )


def test_the_report_has_a_limit() -> None:
    root = program(plan([tensor(-1, at=0) for _ in range(200)], []))
    with pytest.raises(InvalidProgramError, match="breaks at least 50 rules") as caught:
        verify_program(opened(write(root)))
    assert len(caught.value.violations) == limits.MAX_VIOLATIONS_REPORTED == 50


def test_calls_that_name_too_many_values_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few calls with long lists unroll to more than a verifier or a runtime can go through."""
    monkeypatch.setattr(limits, "MAX_ARGUMENTS_PER_METHOD", 100)
    values = [tensor(2, at=0), ex.TensorList([0] * 30)]
    with pytest.raises(OutOfResourcesError, match=r"its calls name 124 values.*allowed are 100"):
        violations(write(program(plan(values, [kernel(0, 1, 1), kernel(0, 1, 1)]))))
    assert violations(write(program(plan(values, [kernel(0, 1, 0)])))) == []


def test_values_that_lie_over_each_other_without_end_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = [tensor(4, at=16 * at) for at in range(20)]
    values = [*small, tensor(80, at=0)]
    steps = [kernel(0, *range(20)), kernel(0, 20, 0), kernel(0, 20, 0)]
    data = write(program(plan(values, steps, inputs=list(range(19)))))
    violations(data)
    monkeypatch.setattr(limits, "MAX_ARGUMENTS_PER_METHOD", 30)
    with pytest.raises(OutOfResourcesError, match="more ways than 30"):
        violations(data)


def test_long_names_do_not_make_long_messages() -> None:
    root = plan([tensor(-1, at=0, order=range(255))] * 49, [], name="n" * 60_000)
    assert all(len(text) < 400 for text in violations(write(program(root))))


def test_a_missing_initial_value_blocks_its_method_only() -> None:
    """F13: executorch writes such a file, of which the other methods are good."""
    root = edited(example(), set_value(5, tensor(2, 3, at=0, buffer=2, constant=2)))
    pte = opened(write_example(root))
    found = find_violations(pte)
    assert [violation.blocks for violation in found] == [False]
    assert "initial value index 2 does not exist; the file has 2" in str(found[0])
    verified = verify_program(pte)
    first, second = pte.program.execution_plan
    verify_method(pte, verified, second.name)
    with pytest.raises(InvalidProgramError, match="initial value index 2 does not exist"):
        verify_method(pte, verified, first.name)


# -- every file that an exporter wrote is correct -------------------------------------------------


def test_the_files_of_exporters_are_correct(shared: Path) -> None:
    paths = sorted((shared / "fixtures").rglob("*.pte"))
    assert len(paths) > 30
    for path in paths:
        assert find_violations(read_pte(open_source(path))) == (), path.name


def test_scalar_types_of_any_width_are_counted() -> None:
    for dtype, size in ((ScalarType.DOUBLE, 8), (ScalarType.BOOL, 1), (ScalarType.HALF, 2)):
        good = program(plan([tensor(3, at=0, dtype=dtype)], [], buffers=[0, 3 * size]))
        bad = program(plan([tensor(3, at=0, dtype=dtype)], [], buffers=[0, 3 * size - 1]))
        assert violations(write(good)) == []
        assert "go past the end" in violations(write(bad))[0]
