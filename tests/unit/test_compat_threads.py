"""Calls from several threads, on executorch's binding surface, as if each were one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pteron.compat import bindings, bundled
from pteron.compat import portable_lib as lib
from pteron.compat import runtime as stand_in
from pteron.executor.method import Method
from support import plain_programs

DIGITS = Path(__file__).parents[2] / "demo" / "digits.pte"
X = [torch.zeros(1, 1, 8, 8)]


def in_a_thread(task: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(task()))
    thread.start()
    thread.join()
    return results[0]


def held(lock: Any) -> bool:
    """Return whether another thread would have to wait for a lock."""

    def took() -> bool:
        if took := lock.acquire(blocking=False):
            lock.release()
        return bool(took)

    return not in_a_thread(took)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Return, by call, whether the method's turn was held when the call began."""
    found: dict[str, bool] = {}

    def watch(name: str) -> None:
        real = getattr(Method, name)

        def watched(self: Method, *args: Any, **kwargs: Any) -> Any:
            found[name] = held(self.turn())
            return real(self, *args, **kwargs)

        monkeypatch.setattr(Method, name, watched)

    for name in ("set_inputs", "run", "get_outputs"):
        watch(name)
    return found


def load(**facts: Any) -> Any:
    return lib._load_for_executorch(str(DIGITS), **facts)


def runtime_method() -> Any:
    return stand_in.Runtime.get().load_program(DIGITS).load_method("forward")


@pytest.mark.parametrize(
    "call",
    [
        lambda: load().forward(X),
        lambda: load(enable_etdump=True).run_method("forward", X),
        lambda: lib._load_program(str(DIGITS)).load_method("forward")(X),
        lambda: runtime_method().execute(X),
    ],
    ids=["module", "traced module", "method", "runtime"],
)
def test_a_call_holds_the_methods_turn_from_inputs_to_outputs(
    turns: dict[str, bool], call: Callable[[], Any]
) -> None:
    call()
    assert turns == {"set_inputs": True, "run": True, "get_outputs": True}


def test_a_run_on_inputs_that_stay_holds_the_turn(turns: dict[str, bool]) -> None:
    module = lib._load_for_executorch(str(plain_programs.doubled().pte))
    module.forward([torch.ones(2, 3)])
    turns.clear()
    module.plan_execute("forward")
    assert turns == {"run": True, "get_outputs": True}


def test_a_bundles_case_holds_the_turn(
    turns: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = SimpleNamespace(inputs=X, expected_outputs=load().forward(X))
    turns.clear()

    class Bundle:
        program = DIGITS.read_bytes()

        def test_case(self, name: str, index: int) -> Any:
            return case

    monkeypatch.setattr(bundled, "read_bundled", lambda source: Bundle())
    monkeypatch.setattr(bundled, "bundled_value", lambda value: value)
    lib._load_bundled_program_from_buffer(b"").verify_result_with_bundled_expected_output(
        "forward", 0
    )
    assert turns == {"set_inputs": True, "run": True, "get_outputs": True}


def test_runs_that_are_traced_together_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = bindings.LoadedProgram(str(DIGITS), None, enable_etdump=True)
    method = bindings.ExecuTorchProgram(loaded).load_method("forward")
    method.set_inputs(X)
    waits = []
    real = Method.run

    def run(self: Method, **kwargs: Any) -> None:
        waits.append(held(loaded._lock))
        real(self, **kwargs)

    monkeypatch.setattr(Method, "run", run)
    method.execute()
    method(X)
    assert waits == [True, True]


def together(tasks: list[Callable[[], Any]]) -> list[Any]:
    """Run tasks at once and return what they gave."""
    results: list[Any] = []
    start = threading.Barrier(len(tasks))

    def run(task: Callable[[], Any]) -> None:
        start.wait()
        results.append(task())

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


class Maker:
    """Makes things so slowly that two threads that may make one at a time both do."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.made = 0
        self._make = make
        self._both = threading.Barrier(2)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.made += 1
        with suppress(threading.BrokenBarrierError):
            self._both.wait(0.2)
        return self._make(*args, **kwargs)


def test_a_program_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    maker = Maker(bindings.Program)
    monkeypatch.setattr(bindings, "Program", maker)
    module = load()
    together([module.method_names] * 2)
    assert maker.made == 1


def test_a_method_is_loaded_once_for_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load()
    maker = Maker(module._loaded.method)
    monkeypatch.setattr(module._loaded, "method", maker)
    outputs = together([lambda: module.forward(X)] * 2)
    assert maker.made == 1
    assert torch.equal(outputs[0][0], outputs[1][0])


def test_a_method_is_loaded_once_for_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    program = stand_in.Runtime.get().load_program(DIGITS)
    maker = Maker(program._program.load_method)
    monkeypatch.setattr(program._program, "load_method", maker)
    first, second = together([lambda: program.load_method("forward")] * 2)
    assert maker.made == 1
    assert first is second
