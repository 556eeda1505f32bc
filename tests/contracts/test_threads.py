"""Threads take turns where methods share memory, and run beside each other where they do not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pteron import Program, Runtime
from support import device_programs, plain_programs, state_programs
from support.programs import Files, Kept, export, kept

RUNS = 40


def opened(kept: Kept, **facts: Any) -> Program:
    return Runtime.get().load_program(kept.pte, **facts)


def together(*work: Callable[[], None]) -> None:
    """Run each callable in a thread of its own, all at once, and raise what one of them raised."""
    start = threading.Barrier(len(work))
    errors: list[BaseException] = []

    def go(call: Callable[[], None]) -> None:
        start.wait()
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised again where the test waits
            errors.append(error)

    threads = [threading.Thread(target=go, args=(call,)) for call in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def checking(
    program: Program, name: str, eager: torch.nn.Module, *shape: int
) -> Callable[[], None]:
    method = program.load_method(name)
    inputs = [torch.rand(*shape) + i for i in range(RUNS)]

    def run() -> None:
        for x in inputs:
            torch.testing.assert_close(method.execute([x]), [eager(x)])

    return run


def test_two_methods_that_share_scratch() -> None:
    program = opened(device_programs.small_host_big_device())
    together(
        checking(program, "small", device_programs.Small(), 4),
        checking(program, "large", device_programs.HostWork(), 4),
    )


def test_one_method_from_two_threads() -> None:
    """Issue 18379: two threads, 40 runs each."""
    program = opened(plain_programs.doubled())
    together(*(checking(program, "forward", plain_programs.Doubled(), 2, 3) for _ in range(2)))


def test_state_counts_every_call() -> None:
    method = opened(state_programs.counter()).load_method()
    results: list[float] = []

    def count() -> None:
        for _ in range(RUNS):
            results.append(float(method.execute([torch.ones(4)])[0][0]))

    together(count, count, count)
    assert sorted(results) == list(range(1, 3 * RUNS + 1))


def test_methods_that_share_state() -> None:
    program = opened(state_programs.shared_by_plan())
    forward, get = program.load_method("forward"), program.load_method("get")
    seen: list[float] = []

    def count() -> None:
        for _ in range(RUNS):
            forward.execute([torch.ones(4)])

    def look() -> None:
        for _ in range(RUNS):
            state = get.execute([])[0]
            assert bool((state == state[0]).all())
            seen.append(float(state[0]))

    together(count, look)
    assert seen == sorted(seen)
    assert float(get.execute([])[0][0]) == 3 + RUNS


def test_instances_run_side_by_side() -> None:
    program = opened(state_programs.counter())
    instances = [program.new_method() for _ in range(2)]

    def count(step: float) -> Callable[[], None]:
        method = instances[int(step) - 1]

        def run() -> None:
            for number in range(1, RUNS + 1):
                (out,) = method.execute([torch.full((4,), step)])
                assert float(out[0]) == number * step

        return run

    together(count(1.0), count(2.0))


def test_loading_from_two_threads_loads_once() -> None:
    program = opened(state_programs.shared_by_plan())
    found: list[object] = []
    together(*(lambda: found.append(program.load_method("forward")) for _ in range(4)))
    assert len({id(method) for method in found}) == 1


class Products(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = x @ x
        return x


@kept
def products() -> Files:
    return export(Products(), (torch.ones(768, 768),))


def test_a_long_call_lets_other_threads_run() -> None:
    """Found on 1.5.1 (F4): execute holds the interpreter's lock for its whole run."""
    method = opened(products()).load_method()
    x = torch.eye(768)
    method.execute([x])
    done, ticks = threading.Event(), 0

    def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            time.sleep(0.001)
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        begin, before = time.perf_counter(), ticks
        while time.perf_counter() - begin < 0.5:
            method.execute([x])
        seen = ticks - before
    finally:
        done.set()
        thread.join()
    assert seen > 20, seen


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_any_number_of_torch_threads_gives_one_result(count: int) -> None:
    """Issues 20267, 5714."""
    method = opened(products()).load_method()
    x = torch.rand(768, 768) / 384
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        torch.testing.assert_close(method.execute([x]), [Products()(x)])
    finally:
        torch.set_num_threads(before)
