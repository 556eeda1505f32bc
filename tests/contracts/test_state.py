"""DESIGN, S1 to S4: state keeps its value, is shared where the file says, and can be reached."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pteron import Method, Program, Runtime
from pteron.errors import InvalidArgumentError, NotFoundError, NotSupportedError
from support import state_programs as programs
from support.demo_backend import DemoBackend
from support.programs import Kept
from support.tagged_device import TaggedDevice

ONES = torch.ones(4)


def opened(kept: Kept, **facts: Any) -> Program:
    return Runtime.get().load_program(kept.pte, **facts)


def first(method: Method, *inputs: Any) -> float:
    """Return the first element of the first output."""
    return float(method.execute(inputs)[0].flatten()[0])


# ---- S1: a buffer keeps its value ----------------------------------------------------------------


def test_state_keeps_its_value_from_call_to_call() -> None:
    method = opened(programs.counter()).load_method()
    assert [first(method, ONES) for _ in range(3)] == [1, 2, 3]


def test_scratch_of_another_method_never_touches_state() -> None:
    """Issue 17719: activations of ``big`` must not lie over the state of ``forward``."""
    program = opened(programs.not_shared())
    forward, big = program.load_method("forward"), program.load_method("big")
    x = torch.randn(16, 16)
    assert [first(forward, ONES), first(forward, ONES)] == [2, 4]
    torch.testing.assert_close(big.execute([x]), [programs.Chain()(x)])
    assert first(forward, ONES) == 6


def test_state_that_the_file_does_not_share_is_each_methods_own() -> None:
    program = opened(programs.not_shared())
    forward, other = program.load_method("forward"), program.load_method("other")
    assert [first(forward, ONES) for _ in range(3)] == [2, 4, 6]
    assert first(other, ONES) == 2


def test_loading_a_method_again_finds_its_state() -> None:
    program = opened(programs.counter())
    assert first(program.load_method(), ONES) == 1
    assert first(program.load_method(), ONES) == 2


def test_a_refused_call_leaves_state_alone() -> None:
    method = opened(programs.counter()).load_method()
    assert first(method, ONES) == 1
    for wrong in ([torch.ones(5)], [ONES.double()], []):
        with pytest.raises(Exception, match="method 'forward'"):
            method.execute(wrong)
    assert first(method, ONES) == 2


def test_state_without_a_place_in_the_plan() -> None:
    method = opened(programs.counter_without_a_place()).load_method()
    assert [first(method, ONES) for _ in range(3)] == [8, 9, 10]
    method.reset()
    assert first(method, ONES) == 8
    assert first(opened(programs.counter_without_a_place()).load_method(), ONES) == 8


# ---- S2: state that the file shares --------------------------------------------------------------


@pytest.mark.parametrize("make", [programs.shared_by_plan, programs.shared_by_plan_and_name])
def test_entries_that_share_by_plan_see_each_others_writes(make: Any) -> None:
    """Issues 17005, 7458: forward, set, zero and get are one module's entries."""
    program = opened(make())
    forward, put, zero, get = (
        program.load_method(name) for name in ("forward", "set_state", "zero", "get")
    )
    assert first(get) == 3
    assert first(forward, ONES) == 8
    assert first(get) == 4
    put.execute([ONES * 10])
    assert first(get) == 10
    assert first(forward, ONES) == 22
    zero.execute([ONES])
    assert first(get) == 0
    assert first(forward, ONES) == 2


@pytest.mark.parametrize("make", [programs.shared_by_plan, programs.shared_by_plan_and_name])
def test_a_method_that_is_loaded_later_finds_what_was_written(make: Any) -> None:
    program = opened(make())
    assert first(program.load_method("forward"), ONES) == 8
    assert first(program.load_method("get")) == 4
    assert first(program.load_method("forward"), ONES) == 10


def test_entries_share_state_by_its_name() -> None:
    program = opened(programs.shared_by_name())
    forward, put = program.load_method("forward"), program.load_method("set_state")
    put.execute([ONES * 5])
    assert first(forward, ONES) == 12
    torch.testing.assert_close(put.state["store.state"], ONES * 6)


def test_prefill_and_decode_use_one_cache() -> None:
    program = opened(programs.prefill_decode())
    cache = programs.Cache()
    eager = programs.Fill(cache)
    steps = [("prefill", torch.randn(4, 2), torch.arange(4))]
    steps += [("decode", torch.randn(1, 2), torch.tensor([i])) for i in (4, 5, 6)]
    for name, rows, positions in steps:
        expected = eager(rows, positions)
        (got,) = program.load_method(name).execute([rows, positions])
        torch.testing.assert_close(got, expected)
    assert program.load_method("prefill").memory[1].shared


def test_shared_state_that_is_planned_apart_is_refused(device: TaggedDevice) -> None:
    program = opened(programs.shared_by_plan_on_two_devices())
    with pytest.raises(NotSupportedError) as caught:
        program.load_method("forward")
    text = str(caught.value)
    for word in ("buffer 2", "state that methods share", "forward on cpu", "set_state on cuda:0"):
        assert word in text
    assert "hint: bring both to one device with device_map" in text
    together = opened(programs.shared_by_plan_on_two_devices(), device_map={"cuda": "cpu"})
    together.load_method("set_state").execute([ONES * 4])
    assert first(together.load_method("get")) == 4


def test_one_name_for_two_sizes_is_refused_and_an_instance_of_its_own_is_not() -> None:
    program = opened(programs.one_name_two_sizes())
    assert first(program.load_method("forward"), ONES) == 2
    text = (
        "method 'short': state 'store.state' has 8 bytes on cpu, in another method 16 bytes on cpu"
    )
    with pytest.raises(NotSupportedError, match=text):
        program.load_method("short")
    assert first(program.new_method("short"), ONES[:2]) == 2
    assert first(program.load_method("forward"), ONES) == 4


def test_a_host_method_and_a_device_method_share_state(
    device: TaggedDevice, demo: DemoBackend
) -> None:
    program = opened(programs.shared_by_name_with_a_device())
    put, placed = program.load_method("forward"), program.load_method("placed")
    assert {b.device for b in placed.memory} == {"cpu", "cuda:0"}
    put.execute([ONES * 5])
    assert first(placed, ONES) == 11
    torch.testing.assert_close(put.state["store.state"], ONES * 10)
    put.execute([ONES])
    assert first(placed, ONES) == 3


# ---- S3: initial value, reset, names, instances --------------------------------------------------


def test_state_starts_with_the_value_in_the_file() -> None:
    method = opened(programs.counter_from_seven()).load_method()
    assert [first(method, ONES) for _ in range(2)] == [8, 9]


def test_state_without_a_value_in_the_file_starts_at_zero() -> None:
    assert first(opened(programs.counter()).load_method(), ONES) == 1


@pytest.mark.parametrize(
    ("make", "start"),
    [(programs.counter, 1), (programs.counter_from_seven, 8), (programs.shared_by_plan, 8)],
)
def test_reset_brings_the_initial_value_back(make: Any, start: float) -> None:
    method = opened(make()).load_method()
    for _ in range(2):
        assert first(method, ONES) == start
        first(method, ONES)
        method.reset()


def test_named_state_is_read_and_written() -> None:
    method = opened(programs.counter_from_seven()).load_method()
    assert list(method.state) == ["count"]
    assert len(method.state) == 1
    read = method.state["count"]
    torch.testing.assert_close(read, ONES * 7)
    read.zero_()  # a copy: the state is not touched
    assert first(method, ONES) == 8
    method.state["count"] = ONES * 100
    assert first(method, ONES) == 101


def test_state_without_a_name_is_known_by_its_value() -> None:
    method = opened(programs.counter()).load_method()
    assert list(method.state) == ["value_0"]
    method.state["value_0"] = ONES * 2
    assert first(method, ONES) == 3


def test_wrong_names_and_values_of_state_are_refused() -> None:
    state = opened(programs.counter_from_seven()).load_method().state
    with pytest.raises(NotFoundError, match="method 'forward' has no state 'total'; it has: count"):
        state["total"]
    with pytest.raises(
        InvalidArgumentError, match=r"state .count. takes float32.* got float32\[5\]"
    ):
        state["count"] = torch.ones(5)
    with pytest.raises(InvalidArgumentError, match=r"got int64\[4\]"):
        state["count"] = torch.ones(4, dtype=torch.int64)
    torch.testing.assert_close(state["count"], ONES * 7)


def test_state_is_saved_and_restored() -> None:
    method = opened(programs.counter_from_seven()).load_method()
    first(method, ONES)
    saved = method.state.snapshot()
    first(method, ONES)
    assert first(method, ONES) == 10
    method.state.restore(saved)
    assert first(method, ONES) == 9
    other = opened(programs.counter_from_seven()).load_method()
    other.state.restore(saved)
    assert first(other, ONES) == 9
    with pytest.raises(NotFoundError, match="no state 'gone'"):
        other.state.restore({"count": ONES, "gone": ONES})
    torch.testing.assert_close(other.state["count"], ONES * 9)  # nothing was half restored


def test_a_new_instance_has_state_of_its_own() -> None:
    program = opened(programs.shared_by_plan_and_name())
    shared = program.load_method("forward")
    own, another = program.new_method("forward"), program.new_method("forward")
    assert [first(shared, ONES) for _ in range(2)] == [8, 10]
    assert first(own, ONES) == 8
    assert first(another, ONES * 2) == 10
    assert first(own, ONES) == 10
    assert first(program.load_method("get")) == 5


def test_two_programs_of_one_file_are_apart() -> None:
    one, two = (opened(programs.counter()).load_method() for _ in range(2))
    assert [first(one, ONES), first(one, ONES), first(two, ONES)] == [1, 2, 1]
