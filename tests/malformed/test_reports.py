"""Every reported way to harm a runtime with a file, each as the smallest file that shows it.

The numbers are those of the public advisories (CVE) and of the reports in the project's case log.
What only shows when a method runs is in the tests of execution.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from pteron.errors import InvalidProgramError, OutOfResourcesError, PteronError
from support.mutations import open_and_verify
from support.plans import (
    ScalarType,
    edited,
    ex,
    example,
    inline,
    kernel,
    plan,
    program,
    shared_tables,
    tensor,
    write,
    write_example,
)

VIEW, COPY_INDEX = "executorch_prim::et_view.default", "executorch_prim::et_copy_index.tensor"


def one(*values: Any, steps: tuple[Any, ...] = (), **others: Any) -> bytes:
    return write(program(plan(values, steps, **others)))


def changed(edit: Callable[[Any], Any]) -> bytes:
    return write_example(edited(example(), edit))


def forward(root: Any) -> Any:
    return root.execution_plan[0]


def long_vector() -> bytes:
    """Give a list of integers the length 2**32 - 1."""
    data = bytearray(one(*[ex.Int(7)] * 12, ex.IntList(list(range(12)))))
    items = struct.pack("<I12q", 12, *range(12))
    at = data.index(items)
    data[at : at + 4] = b"\xff\xff\xff\xff"
    return bytes(data)


ADVISORIES: dict[str, tuple[Callable[[], bytes], str]] = {
    "CVE-2025-30402 sizes whose product wraps": (
        lambda: one(tensor(2**31 - 1, 2**31 - 1, 4, 2, at=0, dtype=ScalarType.DOUBLE)),
        r"bytes; allowed are 4398046511104",
    ),
    "CVE-2025-30402 the element size makes it wrap": (
        lambda: one(tensor(2**30, 2**30, 2, at=0, dtype=ScalarType.DOUBLE)),
        r"18446744073709551616 bytes; allowed are 4398046511104",
    ),
    "CVE-2025-30404 a request so large that its end wraps": (
        lambda: one(tensor(2, at=0), buffers=[0, 2**63 - 1]),
        r"planned buffer 1: 9223372036854775807 bytes; allowed are 0 to 4398046511104",
    ),
    "CVE-2025-30405 a place whose end wraps": (
        lambda: one(tensor(4, at=2**64 - 8)),
        r"byte 18446744073709551608 \+ 16 bytes go past the end of planned buffer 1, which has",
    ),
    "CVE-2025-54949 a copy with an index where a tensor belongs": (
        lambda: one(
            *(tensor(2, at=0), ex.Int(0)), steps=(kernel(0, 0, 1),), operators=(COPY_INDEX,)
        ),
        r"et_copy_index\.tensor\(%0, %1=0\)\): 2 arguments; it takes 3",
    ),
    "CVE-2025-54950 a primitive with fewer arguments than it reads": (
        lambda: one(tensor(2, at=0), steps=(kernel(0, 0),), operators=(VIEW,)),
        r"et_view\.default\(%0\)\): 1 arguments; it takes 3",
    ),
    "CVE-2025-54950 an operator with no arguments": (
        lambda: one(tensor(2, at=0), steps=(kernel(0),)),
        r"aten::add\.out\(\)\): 0 arguments",
    ),
    "CVE-2025-54951 a rank above the limit": (
        lambda: one(tensor(*[1] * 17, at=0)),
        r"rank 17; allowed are 16 dimensions",
    ),
    "CVE-2025-54952 a list whose size in bytes wraps": (
        long_vector,
        r"the items of a list of 4294967295 items goes past the end",
    ),
}

REPORTS: dict[str, tuple[Callable[[], bytes], str]] = {
    "F11 operator 77": (
        lambda: changed(lambda p: setattr(step(p, 0), "op_index", 77)),
        r"operator 77 does not exist; the method has 5 operators",
    ),
    "F11 input 999": (
        lambda: changed(lambda p: setattr(forward(p), "inputs", [999])),
        r"input 0: value 999; the method has 18 values",
    ),
    "F11 output -1": (
        lambda: changed(lambda p: setattr(forward(p), "outputs", [-1])),
        r"output 0: value -1; the method has 18 values",
    ),
    "F11 an arena of 2**62 bytes": (
        lambda: changed(
            lambda p: setattr(forward(p), "non_const_buffer_sizes", [0, 2**62, 32, 32])
        ),
        r"planned buffer 1: 4611686018427387904 bytes",
    ),
    "F11 two methods of one name": (
        lambda: changed(lambda p: setattr(p.execution_plan[1], "name", "forward")),
        r"method 'forward': 2 methods have this name",
    ),
    "F11 a device tag for buffer 50": (
        lambda: changed(lambda p: setattr(forward(p).non_const_buffer_device[0], "buffer_idx", 50)),
        r"device tag cuda:0 of planned buffer 50: the method has buffers 1 to 3",
    ),
    "81 constant 999": (
        lambda: changed(lambda p: setattr(forward(p).values[1].val, "data_buffer_idx", 999)),
        r"value %1 float32\[2, 3\] constant 999: constant index 999 does not exist; the file has 2",
    ),
    "85 a constant whose end is past its segment": (
        lambda: changed(lambda p: setattr(forward(p).values[1].val, "sizes", [2, 4])),
        r"constant 1 \(offset 0 \+ 32 bytes\) goes past the end of segment 0",
    ),
    "86 a negative size": (lambda: one(tensor(-2, 4, at=0)), r"size -2 is negative"),
    "86 a product that wraps": (
        lambda: one(tensor(2**31 - 1, 2**31 - 1, at=0)),
        r"18446744056529682436 bytes; allowed",
    ),
    "86 a dim order with a dimension twice": (
        lambda: one(tensor(2, 2, at=0, order=[1, 1])),
        r"dim order \[1, 1\] is not a permutation of 2 dimensions",
    ),
    "86 a dim order longer than the rank": (
        lambda: one(tensor(2, 2, at=0, order=[0, 1, 2])),
        r"dim order \[0, 1, 2\] is not a permutation of 2 dimensions",
    ),
    "86 an element type that does not exist": (
        lambda: one(tensor(2, at=0, dtype=99)),
        r"ScalarType 99 is not known; known are 0 BYTE",
    ),
    "89 a call with arguments too many": (
        lambda: changed(lambda p: step(p, 1).args.extend([2, 2])),
        r"et_copy::_h2d_copy\.out\(%2, %15, %15, %2, %2\)\): 5 arguments; it takes 3",
    ),
    "89 a move to 999": (
        lambda: changed(
            lambda p: setattr(
                p.execution_plan[1].chains[0].instructions[2].instr_args, "move_to", 999
            )
        ),
        r"the target is value 999; the method has 5 values",
    ),
    "89 no inline delegate data": (
        lambda: inline(edited(example(), lambda p: setattr(p, "backend_delegate_data", None))),
        r"inline data 0 does not exist; the file has 0",
    ),
    "83 no name of a method": (
        lambda: changed(lambda p: setattr(forward(p), "name", None)),
        r"method 0: it has no name",
    ),
    "90 a tensor of 10,000 dimensions": (
        lambda: one(tensor(*[1] * 10_000, at=0, order=[0] * 10_000)),
        r"rank 10000; allowed are 16",
    ),
}


def step(root: Any, index: int) -> Any:
    return forward(root).chains[0].instructions[index].instr_args


@pytest.mark.parametrize("name", [*ADVISORIES, *REPORTS])
def test_the_file_is_refused_and_the_reason_named(name: str) -> None:
    make, text = {**ADVISORIES, **REPORTS}[name]
    with pytest.raises(InvalidProgramError, match=text) as caught:
        open_and_verify(make())
    assert caught.value.code == 0x23


@pytest.mark.parametrize("number", [2**64 - 1, 2**63])
@pytest.mark.parametrize("field", [0, 1])
def test_85_a_segment_whose_offset_or_size_wraps(field: int, number: int) -> None:
    data = write_example()
    old = struct.pack("<QQ", 3, 384)  # size and offset of the named data "weights"
    assert data.count(old) == 1
    new = [3, 384]
    new[field] = number
    with pytest.raises(InvalidProgramError, match=r"segment 3 .* goes past the end of the file"):
        open_and_verify(data.replace(old, struct.pack("<QQ", *new)))


def test_89_each_word_set_to_all_ones() -> None:
    """An offset of 0xffffffff must not lead anywhere, wherever it is."""
    data = write_example()
    size = len(inline(example()))
    outcomes = []
    for at in range(0, size, 4):
        try:
            open_and_verify(data[:at] + b"\xff\xff\xff\xff" + data[at + 4 :])
        except PteronError as error:
            outcomes.append(type(error))
    assert len(outcomes) > size // 4 // 3
    assert InvalidProgramError in outcomes


@pytest.mark.parametrize(("methods", "values"), [(100_000, 0), (1000, 400_000), (1, 5_000_000)])
def test_90_counts_without_end_take_bounded_time(methods: int, values: int) -> None:
    data = shared_tables(methods=methods, values=values)
    began = time.process_time()
    with pytest.raises(OutOfResourcesError, match=r"allowed are|its tables share entries"):
        open_and_verify(data)
    assert time.process_time() - began < 2.0


def test_many_good_methods_are_accepted() -> None:
    """The limits are not in the way of what is honest."""
    data = inline(
        program(*(plan([ex.Int(at)], [], outputs=[0], name=f"m{at}") for at in range(500)))
    )
    assert len(open_and_verify(data)[0].program.execution_plan) == 500
