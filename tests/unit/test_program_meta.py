"""MethodMeta and TensorInfo, compared with executorch's, and the text notation of plans."""

from __future__ import annotations

from pathlib import Path

import pytest

from pteron.errors import PteronError
from pteron.format.pte import read_pte
from pteron.format.schema import HOST, Device, DeviceType
from pteron.format.schema import ScalarType as OurScalarType
from pteron.format.source import open_source
from pteron.program.disasm import format_instruction, format_value, format_window
from pteron.program.method_meta import MetadataIndexError, MethodMeta, Tag
from support.plans import (
    ScalarType,
    ex,
    kernel,
    opened,
    plan,
    program,
    tensor,
    write,
    write_example,
)


@pytest.fixture(scope="module")
def metas() -> dict[str, MethodMeta]:
    plans = opened(write_example()).program.execution_plan
    return {entry.name: MethodMeta(entry) for entry in plans}


def test_inputs_and_outputs_are_described(metas: dict[str, MethodMeta]) -> None:
    meta = metas["forward"]
    assert (meta.name(), meta.num_inputs(), meta.num_outputs()) == ("forward", 1, 2)
    info = meta.input_tensor_meta(0)
    assert (info.sizes(), info.dtype(), info.nbytes()) == ((2, 3), OurScalarType.FLOAT, 24)
    assert info.dtype() == 6  # executorch's number
    assert info.is_memory_planned()
    assert not info.is_dynamic()
    assert meta.output_tag(0) is Tag.Tensor
    assert meta.output_tag(1) is Tag.Int
    assert str(Tag.None_) == "None"


def test_named_tensors_are_attributes(metas: dict[str, MethodMeta]) -> None:
    meta = metas["forward"]
    assert meta.num_attributes() == 1
    assert meta.attribute_tensor_meta(0).name() == "state"
    assert metas["branches"].num_attributes() == 0


def test_planned_buffers_have_user_numbers_and_devices(metas: dict[str, MethodMeta]) -> None:
    """P7: the file's entry 0 is reserved; buffers without a tag are on the host."""
    meta = metas["forward"]
    cuda = Device(DeviceType.CUDA, 0)
    assert meta.num_memory_planned_buffers() == 3
    assert meta.planned_buffers() == ((128, HOST), (32, HOST), (32, cuda))
    assert meta.memory_planned_buffer_size(2) == 32
    assert meta.memory_planned_buffer_device(2) == cuda
    assert str(meta.memory_planned_buffer_device(2)) == "cuda:0"
    assert meta.memory_planned_buffer_device(0) == HOST


def test_backends_are_known_without_loading(metas: dict[str, MethodMeta]) -> None:
    assert metas["forward"].uses_backend("DemoBackend")
    assert not metas["branches"].uses_backend("DemoBackend")
    assert metas["forward"].backends() == ("DemoBackend",)


@pytest.mark.parametrize("index", [-1, 3, 10**9])
def test_an_index_too_many_is_an_index_error(metas: dict[str, MethodMeta], index: int) -> None:
    meta = metas["forward"]
    for ask in (
        meta.input_tensor_meta,
        meta.output_tensor_meta,
        meta.attribute_tensor_meta,
        meta.input_tag,
        meta.output_tag,
        meta.memory_planned_buffer_size,
        meta.memory_planned_buffer_device,
    ):
        with pytest.raises(
            MetadataIndexError, match=f" {index} of method 'forward': allowed are 0 to"
        ):
            ask(index)
    with pytest.raises(IndexError) as caught:
        meta.input_tag(index)
    assert isinstance(caught.value, PteronError)
    assert caught.value.code == 0x12


def test_an_output_that_is_no_tensor_says_what_it_is(metas: dict[str, MethodMeta]) -> None:
    with pytest.raises(IndexError, match="output 1 of method 'forward' is Int, not a tensor"):
        metas["forward"].output_tensor_meta(1)


def test_repr_works_when_an_input_is_none() -> None:
    """Case 111: executorch raises IndexError here."""
    root = plan([ex.Null(), tensor(2, at=0, dtype=ScalarType.BFLOAT16)], [], inputs=[0, 1])
    meta = MethodMeta(opened(write(program(root))).program.execution_plan[0])
    assert repr(meta) == (
        "MethodMeta(name='forward', num_inputs=2, input_tensor_meta=['None', "
        "'TensorInfo(sizes=[2], dtype=BFloat16, is_memory_planned=True, nbytes=4)'], "
        "num_outputs=0, output_tensor_meta=[])"
    )


def test_repr_is_that_of_executorch(shared: Path) -> None:
    from executorch.runtime import Runtime

    folder = shared / "fixtures" / "peer_modules"
    for name in ("ModuleIndex", "ModuleAddMul", "ModuleMultipleEntry", "ModuleKVCacheInputPos"):
        path = folder / f"{name}.pte"
        theirs = Runtime.get().load_program(path)
        for entry in read_pte(open_source(path)).program.execution_plan:
            assert repr(MethodMeta(entry)) == repr(theirs.metadata(entry.name))


# -- the notation ---------------------------------------------------------------------------------


def test_values_are_written_in_one_notation() -> None:
    forward = opened(write_example()).program.execution_plan[0]
    assert [format_value(forward, at) for at in range(18)] == [
        "%0 float32[2, 3] planned 1+0",
        "%1 float32[2, 3] constant 1",
        "%2 float32[2, 3] planned 1+32",
        "%3 int 1",
        "%4 float32[2, 3] planned 1+0",
        "%5 float32[2, 3] planned 2+0 initial 1 'state'",
        "%6 None",
        "%7 bool False",
        "%8 float 0.5",
        "%9 str 'naïve'",
        "%10 ints [%3=1, %3=1]",
        "%11 floats [0.5, -1.0]",
        "%12 bools [True, False]",
        "%13 tensors [%2, %1]",
        "%14 tensors [None, %1]",
        "%15 float32[2, 3] planned 3+0 cuda:0",
        "%16 float32[<=2, <=3] order [1, 0] planned 1+64",
        "%17 int -4611686018427387904",
    ]


def test_instructions_are_written_in_one_notation() -> None:
    forward, branches = opened(write_example()).program.execution_plan
    assert [format_instruction(forward, at) for at in range(6)] == [
        "aten::add.out(%0, %1, %3=1, %2, %2)",
        "et_copy::_h2d_copy.out(%2, %15, %15)",
        "delegate 0 'DemoBackend'(%15)",
        "et_copy::_d2h_copy.out(%15, %16, %16)",
        "aten::relu.out(%16, %4, %4)",
        "aten::copy_(%5, %4, %7=False, %5)",
    ]
    assert format_window(branches, 2) == (
        "  0: jump to 4 if not %0\n"
        "  1: aten::mul.out(%1, %1, %2, %2)\n"
        "> 2: move %2 -> %3\n"
        "  3: jump to 5 if not %4=False\n"
        "  4: aten::mul.out(%1, %1, %3, %3)"
    )
    assert format_window(branches, 5, around=1).splitlines()[-1] == "> 5: free %1"


def test_what_leads_nowhere_can_be_written_too() -> None:
    root = plan(
        [tensor(2, fully_qualified_name="w", location=ex.TensorDataLocation.EXTERNAL)],
        [kernel(7, 0, 99), ex.DelegateCall(3, [-1]), ex.MoveCall(5, 0)],
    )
    found = opened(write(program(root))).program.execution_plan[0]
    assert format_value(found, 4) == "%4?"
    assert format_value(found, 0) == "%0 float32[2] external 'w'"
    assert format_instruction(found, 0) == "operator 7?(%0, %99?)"
    assert format_instruction(found, 1) == "delegate 3 ?(%-1?)"
    assert format_instruction(found, 2) == "move %5? -> %0"
    assert format_instruction(found, 9) == "instruction 9?"


def test_long_lists_and_strings_are_cut_short() -> None:
    root = plan([ex.Int(7), ex.IntList([0] * 100), ex.String("x" * 1000)], [])
    found = opened(write(program(root))).program.execution_plan[0]
    assert "%0=7, ... 68 more ..., %0=7" in format_value(found, 1)
    assert len(format_value(found, 2)) < 80
