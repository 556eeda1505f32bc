"""Cases of mutable buffers, caches and state that methods share."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pteron import Method, Program, Runtime
from pteron.errors import InvalidProgramError, NotFoundError
from support import state_programs as programs
from support.programs import Files, Kept, export, kept

ONES = torch.ones(4)


def opened(kept: Kept) -> Program:
    return Runtime.get().load_program(kept.pte)


def value(method: Method, *inputs: Any) -> float:
    return float(method.execute(inputs)[0].flatten()[0])


@kept
def entries_not_shared() -> Files:
    store = programs.Store(5.0)
    return export(
        {"forward": programs.Add(store), "get": programs.Get(store)},
        {"forward": (ONES,), "get": ()},
    )


@kept
def three_entries_initialized_not_shared() -> Files:
    """Two methods that write and one that reads, with initial values, and no sharing (F13)."""
    store = programs.Store(5.0)
    return export(
        {
            "forward": programs.Add(store),
            "set_state": programs.Set(store),
            "get_state": programs.Get(store),
        },
        {"forward": (ONES,), "set_state": (ONES,), "get_state": ()},
        passes=[programs.initialized("state")],
        emit_mutable_buffer_names=True,
    )


def test_case_39_entries_see_the_state_that_the_plan_shares() -> None:
    program = opened(programs.shared_by_plan())
    forward, put, zero = (program.load_method(n) for n in ("forward", "set_state", "zero"))
    assert value(forward, ONES) == 8
    put.execute([ONES * 10])
    assert value(forward, ONES) == 22
    zero.execute([ONES])
    assert value(forward, ONES) == 2
    assert [b.shared for b in forward.memory] == [True, True]
    assert [b.buffer for b in forward.memory] == [1, 2]


def test_cases_40_and_f2_only_what_the_file_shares_is_shared() -> None:
    program = opened(programs.not_shared())
    forward, big = program.load_method("forward"), program.load_method("big")
    assert [value(forward, ONES), value(forward, ONES)] == [2, 4]
    big.execute([torch.full((16, 16), 2.0)])
    assert value(forward, ONES) == 6  # 1.5.1 gives 4353 * 2


@pytest.mark.parametrize(
    ("make", "first", "second"),
    [(programs.shared_by_plan, 4, 5), (entries_not_shared, 5, 5)],
)
def test_case_42_a_method_that_only_reads(make: Any, first: float, second: float) -> None:
    """It sees the writes of the others if the file shares; else its buffer is a constant."""
    program = opened(make())
    forward, get = program.load_method("forward"), program.load_method("get")
    forward.execute([ONES])
    assert value(get) == first
    forward.execute([ONES])
    assert value(get) == second


def test_case_43_prefill_and_decode_use_one_cache() -> None:
    program, eager = opened(programs.prefill_decode()), programs.Fill(programs.Cache())
    rows = torch.randn(6, 2)
    calls = [
        ("prefill", torch.arange(4)),
        ("decode", torch.tensor([4])),
        ("decode", torch.tensor([5])),
    ]
    for name, at in calls:
        (out,) = program.load_method(name).execute([rows[at], at])
        torch.testing.assert_close(out, eager(rows[at], at))
    arenas = {
        program.load_method(name)._memory.allocator.arenas[2].memory.data_ptr()
        for name in ("prefill", "decode")
    }
    assert len(arenas) == 1


def test_case_44_state_is_read_written_rolled_back_and_saved(tmp_path: Any) -> None:
    method = opened(programs.counter_from_seven()).load_method()
    assert dict(method.state).keys() == {"count"}
    method.execute([ONES])
    torch.save(method.state.snapshot(), tmp_path / "state.pt")
    method.execute([ONES * 100])
    method.state["count"] = method.state["count"] - 100  # roll back
    assert value(method, ONES) == 9
    method.state.restore(torch.load(tmp_path / "state.pt", weights_only=True))
    assert value(method, ONES) == 9
    with pytest.raises(NotFoundError, match="no state 'k_cache'; it has: count"):
        method.state["k_cache"]


def test_case_45_the_initial_value_is_that_of_the_file_or_zero() -> None:
    without, with_pass = (
        opened(make()).load_method() for make in (programs.counter, programs.counter_from_seven)
    )
    assert [value(without, ONES) for _ in range(3)] == [1, 2, 3]
    assert [value(with_pass, ONES) for _ in range(3)] == [8, 9, 10]
    again = opened(programs.counter_from_seven()).load_method()  # reload = reset
    assert value(again, ONES) == 8


def test_case_47_a_second_prompt_after_a_reset() -> None:
    program = opened(programs.prefill_decode())
    decode = program.load_method("decode")

    def prompt(method: Method, first: int = 0) -> list[float]:
        steps = [method.execute([torch.ones(1, 2), torch.tensor([at])]) for at in range(first, 3)]
        return [float(out[0][0, 0]) for out in steps]

    assert prompt(decode) == [1, 2, 3]
    decode.execute([torch.full((1, 2), 50.0), torch.tensor([0])])
    polluted = [
        float(decode.execute([torch.ones(1, 2), torch.tensor([at])])[0][0, 0]) for at in (1, 2)
    ]
    assert polluted == [51, 52]  # it persists, by design
    decode.reset()
    assert prompt(decode) == [1, 2, 3]
    assert prompt(program.new_method("decode")) == [1, 2, 3]


def test_case_f13_a_method_whose_initial_value_is_missing_does_not_hinder_others() -> None:
    program = opened(three_entries_initialized_not_shared())
    with pytest.raises(InvalidProgramError) as caught:
        program.load_method("set_state")
    text = str(caught.value)
    assert "method 'set_state', value %0" in text
    assert "initial value index 3 does not exist; the file has 2" in text
    forward = program.load_method("forward")
    assert [value(forward, ONES), value(forward, ONES)] == [12, 14]
    assert value(program.load_method("get_state")) == 5
