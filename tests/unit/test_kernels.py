"""The registry of kernels, the factory behind it, and what kernels refuse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from pteron import Runtime, register_kernel
from pteron.errors import InvalidArgumentError, OperatorMissingError
from pteron.kernels import (
    Kernel,
    OperatorRegistry,
    Style,
    default_registry,
    kernel_from_function,
)
from support.one_op import ProgramBuilder


def find(name: str) -> Kernel:
    kernel = default_registry().find(name)
    assert kernel is not None, name
    return kernel


# -- a person's own kernels ----------------------------------------------------------------------


def fill(a: Tensor, b: Tensor, *, scale: float, out: Tensor) -> Tensor:
    return out.copy_((a + b) * scale)


def give(a: Tensor, b: Tensor) -> Tensor:
    return a + b


@pytest.mark.parametrize(
    ("name", "function", "facts", "style", "num_args"),
    [
        ("my::op.out", fill, {}, Style.OUT, 5),
        ("my::op.out", give, {}, Style.FUNCTIONAL, 4),
        ("my::op.Tensor_out", give, {}, Style.FUNCTIONAL, 4),
        ("my::op", give, {}, Style.FUNCTIONAL, 3),
        ("my::two.out", give, {"outs": ("sum", "rest")}, Style.FUNCTIONAL, 5),
        ("my::op_", give, {"mutates": 0}, Style.INPLACE, 3),
        ("my::count", give, {"style": Style.VALUE}, Style.VALUE, 3),
    ],
)
def test_a_function_says_how_it_is_called(
    name: str, function: Any, facts: dict[str, Any], style: Style, num_args: int
) -> None:
    kernel = kernel_from_function(name, function, **facts)
    assert (kernel.style, kernel.positional, kernel.num_args) == (style, 2, num_args)


def test_keywords_that_are_no_out_tensors_are_inputs() -> None:
    kernel = kernel_from_function("my::op.out", fill)
    assert (kernel.keywords, kernel.out_names) == (("scale",), ("out",))


@pytest.mark.parametrize(
    ("name", "function", "facts", "text"),
    [
        ("my_op", give, {}, "operator name 'my_op' has no namespace"),
        ("my::op.out", give, {"style": Style.OUT}, "has no out parameter"),
        ("my::op.out", lambda *a: None, {}, "takes *a"),
        ("my::op.out", torch._C._VariableFunctions.add, {}, "no signature that can be read"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused(
    name: str, function: Any, facts: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=text.replace("*", r"\*")):
        kernel_from_function(name, function, **facts)


@pytest.fixture
def my_op() -> Iterator[str]:
    yield "my::op.out"
    default_registry().unregister("my::op.out")


def program_with(name: str) -> bytes:
    builder = ProgramBuilder()
    x = builder.tensor(torch.ones(2, 3), role="input")
    y = builder.tensor(torch.ones(2, 3), role="output")
    builder.call(name, x, x, y, y)
    return builder.finish()


def test_a_registered_function_runs_in_a_program(my_op: str) -> None:
    program = Runtime.get().load_program(program_with(my_op))
    with pytest.raises(OperatorMissingError, match=r"my::op\.out"):
        program.load_method("forward")

    @register_kernel(my_op)
    def double(a: Tensor, b: Tensor) -> Tensor:
        return a + b

    (got,) = program.load_method("forward").execute([torch.ones(2, 3)])
    assert torch.equal(got, torch.full((2, 3), 2.0))
    assert double(torch.ones(1), torch.ones(1)) == 2  # the decorator gives the function back


def test_a_registry_on_top_decides_first() -> None:
    mine = kernel_from_function("aten::add.out", give)
    registry = default_registry().overrides({"aten::add.out": mine})
    assert registry.find("aten::add.out") is mine
    assert registry.find("aten::mul.out") is default_registry().find("aten::mul.out")
    assert default_registry().find("aten::add.out") is not mine


def test_names_come_from_kernels_and_from_factories() -> None:
    registry = OperatorRegistry()
    registry.register_kernel("my::op", give)
    registry.register_factory(lambda name: None, names=lambda: ["my::other"])
    assert registry.operator_names == {"my::op", "my::other"}


# -- operators by their schemas ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "style", "inputs", "outs", "returns"),
    [
        ("aten::add.out", Style.OUT, 3, ("out",), 1),
        ("aten::topk.values", Style.OUT, 5, ("values", "indices"), 1),
        ("aten::split_with_sizes_copy.out", Style.OUT, 3, ("out",), 1),
        ("aten::linalg_inv_ex.inverse", Style.OUT, 2, ("inverse", "info"), 1),
        ("aten::add.Tensor", Style.FUNCTIONAL, 3, ("out",), 0),
        ("aten::max.dim", Style.FUNCTIONAL, 3, ("out0", "out1"), 0),
        ("aten::split.Tensor", Style.OUT, 3, ("out",), 0),
        ("aten::scaled_dot_product_attention.out", Style.FUNCTIONAL, 8, ("out",), 1),
        ("aten::relu_", Style.INPLACE, 1, (), 1),
        ("aten::equal", Style.VALUE, 2, (), 1),
        ("aten::_assert_async.msg", Style.INPLACE, 2, (), 0),
    ],
)
def test_a_schema_says_how_an_operator_is_called(
    name: str, style: Style, inputs: int, outs: tuple[str, ...], returns: int
) -> None:
    kernel = find(name)
    assert (kernel.style, kernel.num_inputs) == (style, inputs)
    assert (kernel.out_names, kernel.returns) == (outs, returns)


def test_an_unknown_operator_has_no_kernel() -> None:
    assert default_registry().find("aten::no_such_operator.out") is None
    assert default_registry().find("aten::add.no_such_overload") is None
    assert default_registry().find("nowhere::add.out") is None


@pytest.mark.parametrize(
    "name",
    [
        "aten::save",
        "aten::from_file",
        "aten::from_file.out",
        "aten::warn",
        "aten::manual_seed",
        "aten::set_grad_enabled",
        "aten::set_.source_Tensor",
        "aten::resize_",
        "aten::t_",
        "aten::_sparse_coo_tensor_unsafe",
        "aten::append.t",
        "prim::Print",
        "profiler::_record_function_enter",
        "_c10d_functional::all_reduce",
    ],
)
def test_a_program_may_not_call_what_is_no_arithmetic(name: str) -> None:
    base, _, overload = name.partition(".")
    torch._C._get_schema(base, overload)  # torch has it
    assert default_registry().find(name) is None


def test_an_assertion_of_a_program_is_an_error() -> None:
    find("aten::_assert_async.msg").function(torch.tensor(True), "sizes agree")
    with pytest.raises(InvalidArgumentError, match="the program asserts: sizes agree"):
        find("aten::_assert_async.msg").function(torch.tensor(False), "sizes agree")
    with pytest.raises(InvalidArgumentError, match="the program asserts: u0 >= 2"):
        find("aten::_assert_scalar").function(0, "u0 >= 2")


def test_an_operator_of_another_library_is_found() -> None:
    library = torch.library.Library("pteron_test_library", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
    kernel = find("pteron_test_library::twice.out")  # the overload that an exporter would write
    assert torch.equal(kernel.function(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("aten::rand.out", "random"),
        ("aten::native_dropout.out", "random"),
        ("aten::bernoulli.out", "random"),
        ("aten::nonzero.out", "data_dependent"),
        ("aten::masked_select.out", "data_dependent"),
        ("aten::unique_consecutive.out", "data_dependent"),
        ("aten::repeat_interleave.Tensor_out", "data_dependent"),
        ("aten::_local_scalar_dense", "data_dependent"),
        ("aten::index.Tensor_out", "masks"),
        ("aten::index_put_", "masks"),
    ],
)
def test_what_must_not_be_folded_or_captured_says_so(name: str, fact: str) -> None:
    assert getattr(find(name), fact)
    assert not getattr(find("aten::add.out"), fact)


def test_inputs_that_a_call_changes_are_named() -> None:
    assert find("aten::copy_").mutated == (0,)
    assert find("aten::_native_batch_norm_legit.out").mutated == (3, 4)
    assert find("executorch_prim::et_copy_index.tensor").mutated == (0,)
    assert find("aten::add.out").mutated == ()


def test_a_dtype_is_given_as_its_number() -> None:
    kernel = find("aten::sum.IntList_out")
    ((position, convert),) = kernel.converters
    assert (position, convert(5), convert(15), convert(None)) == (
        3,
        torch.float16,
        torch.bfloat16,
        None,
    )


# -- what torch would not survive ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("scalar", [False, True])
def test_the_smallest_integer_by_minus_one(dtype: torch.dtype, scalar: bool) -> None:
    code = f"""
import torch
from pteron.kernels import default_registry
dtype = {dtype}
low = torch.iinfo(dtype).min
a, out = torch.tensor([low, 7, low], dtype=dtype), torch.empty(3, dtype=dtype)
other = -1 if {scalar} else torch.tensor([-1, -2, 1], dtype=dtype)
name = "aten::div.Scalar_mode_out" if {scalar} else "aten::div.out_mode"
default_registry().find(name).function(a, other, rounding_mode="trunc", out=out)
assert out.tolist() == ([low, -7, low] if {scalar} else [low, -3, low]), out
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def call(name: str, *args: Any, **outs: Tensor) -> Any:
    return find(name).function(*args, **outs)


def test_gradients_of_a_pool_go_where_the_image_is() -> None:
    x, y = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 2, 2)
    window = ([2, 2], [2, 2], [0, 0], [1, 1], False)
    indices = torch.full((1, 1, 2, 2), 1 << 40)
    with pytest.raises(InvalidArgumentError, match="an image of 4 by 4 has none of them"):
        call(
            "aten::max_pool2d_with_indices_backward.grad_input",
            *(y, x, *window, indices),
            grad_input=torch.empty_like(x),
        )


@pytest.mark.parametrize(
    ("size", "stride", "offset"), [([4], [1], 3), ([2], [-1], 1), ([1], [1], -1), ([3], [5], None)]
)
def test_a_strided_view_stays_in_its_tensor(
    size: list[int], stride: list[int], offset: int | None
) -> None:
    memory = torch.arange(100.0)
    with pytest.raises(InvalidArgumentError, match="leaves the tensor of shape"):
        call(
            "aten::as_strided_copy.out",
            *(memory[10:16], size, stride, offset),
            out=torch.empty(size),
        )


def test_a_strided_view_counts_from_its_tensor() -> None:
    memory, out = torch.arange(100.0), torch.empty(2)
    call("aten::as_strided_copy.out", memory[10:16], [2], [2], 1, out=out)
    assert out.tolist() == [11.0, 13.0]


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("aten::_fft_r2c.out", (torch.ones(3, 4), [7], 0, True)),
        ("aten::_fft_r2c.out", (torch.ones(3, 4), [1, 1], 0, True)),
        ("aten::_fft_c2r.out", (torch.ones(3, 4, dtype=torch.complex64), [1 << 40], 0, 6)),
        ("aten::_fft_c2r.out", (torch.ones(3, 4, dtype=torch.complex64), [1], 0, 600)),
        ("aten::replication_pad2d.out", (torch.ones(1, 1, 4, 5), [-3, -2, 1, 1 << 31])),
        ("aten::repeat.out", (torch.ones(2, 3), [2])),
        ("aten::constant_pad_nd.out", (torch.ones(2, 3), [-4, 0], 0)),
        ("aten::constant_pad_nd.out", (torch.ones(3), [1, 1, 1, 1], 0)),
        ("aten::select_scatter.out", (torch.ones(2, 3), torch.ones(1), 0, 0)),
        ("aten::embedding.out", (torch.ones(3), torch.tensor([0]))),
        ("aten::upsample_nearest2d.vec_out", (torch.ones(1, 1, 2, 2), None, None)),
    ],
)
def test_arguments_that_make_no_sense_are_refused(name: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"\w{5}"):
        call(name, *args, out=torch.empty(0))


def test_a_batch_norm_has_a_statistic_for_each_channel() -> None:
    x, few, outs = torch.ones(2, 3, 4), torch.ones(2), torch.empty(0)
    name = "aten::_native_batch_norm_legit_no_training.out"
    with pytest.raises(InvalidArgumentError, match=r"statistic of shape \(2,\); expected one"):
        call(name, x, few, few, few, few, 0.1, 1e-5, out0=outs, out1=outs, out2=outs)
    name = "aten::_native_batch_norm_legit.no_stats_out"
    with pytest.raises(InvalidArgumentError, match="has to be in training"):
        call(name, x, None, None, False, 0.1, 1e-5, out=outs, save_mean=outs, save_invstd=outs)


def test_a_result_that_is_too_large_for_its_slot_is_refused() -> None:
    arena = torch.zeros(64, dtype=torch.uint8)
    slot = torch.from_dlpack(arena[16:32]).view(torch.float32)
    slot.resize_(0)
    with pytest.raises(RuntimeError, match="not resizable"):
        call("aten::repeat.out", torch.ones(2, 3), [2, 2], out=slot)
    assert arena.sum() == 0


@pytest.mark.parametrize("name", ["floordiv.Scalar", "floordiv.int", "mod.Scalar", "mod.int"])
def test_a_division_by_zero_names_its_numbers(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="of 7 by 0: division by zero"):
        call(f"executorch_prim::{name}", 7, 0)
