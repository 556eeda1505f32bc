"""Behaviours of ExecuTorch's runtime that only its C++ tests assert, written anew.

``docs/conformance.md`` lists all of them with the test that holds each; these are the ones that no
other test of ours held.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pteron import Program, Runtime
from pteron.errors import InvalidArgumentError, InvalidProgramError, NotFoundError, PteronError
from pteron.kernels import default_registry
from pteron.memory.device_allocator import device_allocator, find_device_allocator
from support.tagged_device import TaggedDevice

MODULES = Path(__file__).parents[1] / "fixtures" / "peer_modules"


def opened(name: str, **facts: Any) -> Program:
    return Runtime.get().load_program(MODULES / f"{name}.pte", **facts)


# -- primitive operators ---------------------------------------------------------------------------


def prim(name: str) -> Any:
    kernel = default_registry().find(f"executorch_prim::{name}")
    assert kernel is not None, name
    return kernel.function


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("add.Scalar", (3, 2), 5),
        ("sub.Scalar", (3, 2.5), 0.5),
        ("mul.Scalar", (3, -2), -6),
        ("floordiv.Scalar", (7, 2), 3),
        ("floordiv.int", (-7, 2), -4),
        ("truediv.Scalar", (3, 4), 0.75),
        ("mod.Scalar", (7, 4), 3),
        ("eq.Scalar", (3, 3.0), True),
        ("gt.Scalar", (3, 4), False),
        ("lt.Scalar", (3, 4), True),
        ("ge.Scalar", (4, 4), True),
        ("le.Scalar", (5, 4), False),
        ("neg.Scalar", (5,), -5),
        ("neg.Scalar", (-0.5,), 0.5),
        ("sym_float.Scalar", (True,), 1.0),
        ("sym_float.Scalar", (3,), 3.0),
        ("sym_int.Scalar", (3.7,), 3),
        ("sym_int.Scalar", (-3.7,), -3),
        ("sym_int.Scalar", (True,), 1),
        ("sym_max.Scalar", (5, 3), 5),
        ("sym_max.Scalar", (5, 7.5), 7.5),
        ("sym_min.Scalar", (5, 3), 3),
        ("sym_min.Scalar", (2.5, 5), 2.5),
        ("sym_not.Scalar", (True,), False),
        ("sym_ite.Scalar", (True, 3, 4), 3),
        ("sym_ite.Scalar", (False, 3, 4.5), 4.5),
        ("ceil.Scalar", (5.1,), 6),
        ("ceil.Scalar", (-5.9,), -5),
        ("round.Scalar", (5.9,), 6),
        ("round.Scalar", (-5.1,), -5),
        ("round.Scalar", (2.5,), 2),
        ("trunc.Scalar", (-5.9,), -5),
    ],
)
def test_operators_on_numbers(name: str, arguments: tuple[Any, ...], expected: Any) -> None:
    result = prim(name)(*arguments)
    assert result == expected
    assert type(result) is type(expected)


def test_dividing_by_zero_is_refused_or_infinite() -> None:
    with pytest.raises(InvalidArgumentError, match="division by zero"):
        prim("floordiv.int")(1, 0)
    assert prim("truediv.Scalar")(-1, 0) == -math.inf


def test_a_number_out_of_a_tensor() -> None:
    kernel = default_registry().find("aten::_local_scalar_dense")
    assert kernel is not None
    assert kernel.function(torch.tensor([7], dtype=torch.int64)) == 7
    with pytest.raises(InvalidArgumentError, match="no elements"):
        kernel.function(torch.empty(0))


def test_copy_index_grows_along_the_first_dimension() -> None:
    out = torch.zeros(0, 2)
    for index in range(3):
        prim("et_copy_index.tensor")(out, torch.full((2,), float(index)), index)
        assert out.shape == (index + 1, 2)
    assert out[:, 0].tolist() == [0.0, 1.0, 2.0]


def test_copy_index_refuses_another_rank() -> None:
    out = torch.zeros(1, 2)
    with pytest.raises(InvalidArgumentError, match="one dimension less"):
        prim("et_copy_index.tensor")(out, torch.zeros(2, 2), 0)
    with pytest.raises(InvalidArgumentError, match="index >= 0"):
        prim("et_copy_index.tensor")(out, torch.zeros(2), -1)


def test_a_view_shares_its_inputs_memory() -> None:
    x = torch.arange(6.0)
    view = prim("et_view.default")(x, [2, -1])
    assert view.shape == (2, 3)
    assert view.data_ptr() == x.data_ptr()
    assert prim("et_view.default")(torch.empty(0, 3), [3, 0]).shape == (3, 0)
    with pytest.raises(RuntimeError, match="invalid for input"):
        prim("et_view.default")(x, [4, 2])


# -- copies between host and device ----------------------------------------------------------------


@pytest.fixture
def device() -> Iterator[TaggedDevice]:
    with device_allocator(TaggedDevice()) as allocator:
        assert isinstance(allocator, TaggedDevice)
        yield allocator


def copies(bound: int, capacity: int, *, index: int = 0) -> Program:
    """Return a program that copies up to ``bound`` floats to a device value and back."""
    plans = pytest.importorskip("support.plans", reason="executorch is not installed")
    ex = plans.ex
    cuda = {"device_type": ex.DeviceType.CUDA, "device_index": index}
    plan = plans.plan(
        [
            plans.tensor(bound, at=0, dynamic=True),
            plans.tensor(capacity, at=0, buffer=2, dynamic=True, **cuda),
            plans.tensor(bound, at=256, dynamic=True),
        ],
        [plans.kernel(0, 0, 1, 1), plans.kernel(1, 1, 2, 2)],
        inputs=[0],
        outputs=[2],
        operators=["et_copy::_h2d_copy.out", "et_copy::_d2h_copy.out"],
        buffers=[0, 512, 256],
        non_const_buffer_device=[ex.NonConstBufferDevice(2, ex.DeviceType.CUDA, index)],
    )
    return Runtime.get().load_program(plans.write(plans.program(plan)))


@pytest.mark.parametrize("index", [0, 1])
def test_a_copy_moves_the_bytes_of_its_source_to_the_devices_index(
    device: TaggedDevice, index: int
) -> None:
    method = copies(8, 8, index=index).load_method()
    assert [block.device for block in device.requests if block.kind == "arena"] == [f"cuda:{index}"]
    for count in (8, 3, 5):  # a larger value is brought down to its source, and up again
        x = torch.arange(float(count))
        device.copies.clear()
        (y,) = method.execute([x])
        assert torch.equal(y, x)
        assert device.copies == [("h2d", 4 * count), ("d2h", 4 * count)]


def test_a_copy_that_outgrows_its_target_is_refused_and_not_made(device: TaggedDevice) -> None:
    method = copies(8, 4).load_method()
    device.copies.clear()
    with pytest.raises(InvalidArgumentError):
        method.execute([torch.arange(8.0)])
    assert device.copies == []
    (y,) = method.execute([torch.arange(4.0)])
    assert y.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_an_unregistered_kind_of_device_has_no_allocator() -> None:
    assert find_device_allocator("no_such_kind") is None


# -- methods ---------------------------------------------------------------------------------------


def test_state_that_the_file_shares_is_seen_by_every_method() -> None:
    """0, 3, 4, 2, after a reset 0 and 3: what the peer's test of shared arenas expects."""
    program = opened("ModuleSharedState")
    names = program.method_names
    assert {"forward", "get_state", "set_state"} <= names
    forward, get, put = (program.load_method(n) for n in ("forward", "get_state", "set_state"))

    def state() -> float:
        return float(get.execute([])[0].flatten()[0])

    def step() -> None:
        meta = forward.metadata
        forward.execute(
            [torch.ones(meta.input_tensor_meta(i).sizes()) for i in range(meta.num_inputs())]
        )

    start = state()
    step()
    one = state()
    step()
    assert state() - one == one - start != 0
    meta = put.metadata
    put.execute([torch.full(meta.input_tensor_meta(0).sizes(), 2.0)] * meta.num_inputs())
    changed = state()
    assert changed != one
    forward.reset()
    assert state() == start


def test_an_attribute_without_a_place_in_the_plan_is_usable() -> None:
    """Through executorch 1.5.1's bindings, running this program ends the process."""
    method = opened("ModuleStateful").load_method()
    meta = method.metadata
    inputs = [torch.ones(meta.input_tensor_meta(i).sizes()) for i in range(meta.num_inputs())]
    first = method.execute(inputs)
    assert all(isinstance(x, torch.Tensor) for x in first)
    assert len(method.state) >= 1


def test_a_failed_run_does_not_keep_the_next_from_succeeding() -> None:
    calls = []

    def broken(self: torch.Tensor, other: torch.Tensor, *, alpha: float = 1) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("not now")
        return torch.add(self, other, alpha=alpha)

    method = opened("ModuleAdd", kernels={"aten::add.out": broken}).load_method()
    meta = method.metadata
    inputs: list[Any] = []
    for i in range(meta.num_inputs()):
        tag = str(meta.input_tag(i))
        inputs.append(torch.ones(meta.input_tensor_meta(i).sizes()) if tag == "Tensor" else 1.0)
    with pytest.raises(InvalidArgumentError, match="not now"):
        method.execute(inputs)
    assert isinstance(method.execute(inputs)[0], torch.Tensor)


def test_numbers_have_to_be_those_of_the_export() -> None:
    method = opened("ModuleIntBool").load_method()
    tags = [str(method.metadata.input_tag(i)) for i in range(method.metadata.num_inputs())]
    assert {"Int", "Bool"} & set(tags)
    good: list[Any] = []
    for i, tag in enumerate(tags):
        if tag == "Tensor":
            good.append(torch.ones(method.metadata.input_tensor_meta(i).sizes()))
        else:
            good.append(method.values[method._table.plan.inputs[i]])
    method.execute(good)
    for i, tag in enumerate(tags):
        if tag in ("Int", "Bool", "Double"):
            with pytest.raises(PteronError, match=f"input {i}"):
                method.execute([*good[:i], 12345 if tag != "Bool" else not good[i], *good[i + 1 :]])


# -- programs and data files -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ModuleAddMulProgram", "ModuleLinearProgram"])
def test_a_program_that_needs_data_says_so_and_takes_them(name: str) -> None:
    with pytest.raises(NotFoundError):
        opened(name).load_method()
    other = {"ModuleAddMulProgram": "ModuleLinearProgram"}.get(name, "ModuleAddMulProgram")
    with pytest.raises(PteronError):
        opened(name, data_path=MODULES / f"{other}.ptd").load_method()
    method = opened(name, data_path=MODULES / f"{name}.ptd").load_method()
    sizes = method.metadata.input_tensor_meta(0).sizes()
    assert method.execute([torch.ones(sizes)])[0].isfinite().all()


def test_an_old_program_with_its_constants_inside_runs() -> None:
    """The 1.5.1 wheel refuses such files with 0x23."""
    plans = pytest.importorskip("support.plans", reason="executorch is not installed")
    plan = plans.plan(
        [
            plans.tensor(2, at=0),
            plans.tensor(2, constant=1),
            plans.ex.Int(1),
            plans.tensor(2, at=64),
        ],
        [plans.kernel(0, 0, 1, 2, 3, 3)],
        inputs=[0],
        outputs=[3],
    )
    constant = torch.tensor([10.0, 20.0]).numpy().tobytes()
    method = (
        Runtime.get()
        .load_program(plans.inline(plans.program(plan, constants=[constant])))
        .load_method()
    )
    assert method.execute([torch.tensor([1.0, 2.0])])[0].tolist() == [11.0, 22.0]


def test_the_version_in_the_file_has_to_be_known() -> None:
    data = bytearray((MODULES / "ModuleAdd.pte").read_bytes())
    data[4:8] = b"ET99"
    with pytest.raises(InvalidProgramError, match="ET99"):
        Runtime.get().load_program(bytes(data))
