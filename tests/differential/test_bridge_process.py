"""Delegates in executorch in a process of its own, against eager and the bridge in this process."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("executorch")

from pteron import Runtime
from pteron.backends import bridge_process
from pteron.backends.executorch_bridge import ExecutorchBridge
from pteron.errors import (
    DelegateInvalidCompatibilityError,
    DelegateInvalidHandleError,
    InvalidStateError,
)
from pteron.executor.method import Method
from pteron.runtime import Program
from support import bridge_programs
from support.bridge_programs import channels_last_model, mixed_model
from support.exporting import ExportedFile
from support.processes import gone

XNNPACK = "XnnpackBackend"
HERE = {XNNPACK: "executorch"}


def elsewhere() -> dict[str, Any]:
    return {XNNPACK: ExecutorchBridge(XNNPACK, own_process=True)}


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Note every worker's process; none may be left after the test."""
    pids: list[int] = []
    original = bridge_process.Worker.__init__

    def noted(self: bridge_process.Worker) -> None:
        original(self)
        pids.append(self.pid)

    monkeypatch.setattr(bridge_process.Worker, "__init__", noted)
    yield pids
    gc.collect()
    assert all(gone(pid) for pid in pids)


@pytest.fixture(scope="module")
def mixed() -> ExportedFile:
    return bridge_programs.mixed()


def opened(file: ExportedFile) -> Program:
    return Runtime.get().load_program(file.pte, backends=elsewhere())


def inputs(batch: int) -> list[torch.Tensor]:
    return [torch.randn(batch, 3, 8, 8), torch.randn(batch, 4)]


def check(method: Method, batch: int) -> None:
    given = inputs(batch)
    for got, want in zip(method.execute(given), mixed_model()(*given), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_results_are_those_of_this_process_and_of_eager(
    mixed: ExportedFile,
    workers: list[int],
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two delegates, in one process, and shapes that change."""
    with caplog.at_level(logging.INFO, logger="pteron"):
        method = opened(mixed).load_method("forward")
    told = [r.getMessage() for r in caplog.records if "runs in executorch" in r.getMessage()]
    assert len(told) == 2
    assert all(text.endswith(", in a process of its own") for text in told)
    assert len(workers) == 1
    for batch in (6, 1, 4, 6):
        check(method, batch)
    method.close()
    assert gone(workers[0])
    assert capfd.readouterr() == ("", "")
    given = inputs(3)
    same = Runtime.get().load_program(mixed.pte, backends=HERE).load_method("forward")
    again = opened(mixed).load_method("forward")
    for here, there in zip(same.execute(given), again.execute(given), strict=True):
        assert torch.equal(here, there)


def test_channels_last_tensors_of_changing_size(workers: list[int]) -> None:
    method = opened(bridge_programs.channels_last()).load_method("forward")
    for batch in (1, 6, 3):
        x = torch.randn(batch, 3, 6, 5)
        for given in (x, x.to(memory_format=torch.channels_last)):
            (got,) = method.execute([given])
            torch.testing.assert_close(got, channels_last_model()(x), rtol=1e-4, atol=1e-5)
    assert len(workers) == 1


def test_instances_have_processes_of_their_own(mixed: ExportedFile, workers: list[int]) -> None:
    program = opened(mixed)
    first, second = program.new_method("forward"), program.new_method("forward")
    assert len(set(workers)) == 2
    model = mixed_model()  # made once: seeding is the process's, not a thread's
    cases = [(given, model(*given)) for given in map(inputs, (1, 5, 2, 6))]
    right: list[bool] = []

    def work(method: Method) -> None:
        for _ in range(20):
            for given, expected in cases:
                pairs = zip(method.execute(given), expected, strict=True)
                right.append(all(torch.allclose(a, b, rtol=1e-5, atol=1e-5) for a, b in pairs))

    threads = [threading.Thread(target=work, args=(method,)) for method in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert right == [True] * (2 * 20 * len(cases))
    first.reset()
    assert len(workers) == 2
    first.close()
    with pytest.raises(InvalidStateError, match="closed"):
        first.execute(inputs(1))
    check(second, 2)


def test_a_worker_that_ended_is_named_until_the_method_is_reset(
    mixed: ExportedFile, workers: list[int]
) -> None:
    program = opened(mixed)
    method = program.load_method("forward")
    check(method, 2)
    os.kill(workers[0], signal.SIGKILL)
    with pytest.raises(InvalidStateError, match=r"XnnpackBackend: the process .*SIGKILL") as error:
        method.execute(inputs(2))
    assert "reset()" in str(error.value)
    with pytest.raises(InvalidStateError, match="SIGKILL, in an earlier call"):
        method.execute(inputs(2))
    method.reset()
    for batch in (2, 6):
        check(method, batch)
    assert len(workers) == 2  # one for both delegates again
    os.kill(workers[1], signal.SIGKILL)
    method.close()
    check(program.load_method("forward"), 3)


def test_what_executorch_refuses_is_an_error_with_what_it_wrote(
    mixed: ExportedFile, workers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A blob that only executorch can judge: its version is one that pteron does not know."""
    from pteron.backends import bridge_group

    write = bridge_group.write_program

    def damaged(program: Any) -> bytes:
        data = write(program)
        return data.replace(b"XH00", b"XH99").replace(b"XN01", b"XN99")

    monkeypatch.setattr(bridge_group, "write_program", damaged)
    with pytest.raises(DelegateInvalidCompatibilityError, match=r"refuses.*0x") as error:
        opened(mixed).load_method("forward")
    assert "it wrote:\n  " in str(error.value)
    assert gone(workers[0])


def test_loading_has_a_time_limit(
    mixed: ExportedFile, workers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pteron.limits.BRIDGE_LOAD_SECONDS", 0.05)
    with pytest.raises(DelegateInvalidCompatibilityError, match=r"stopped after 0\.05 s"):
        opened(mixed).load_method("forward")
    assert gone(workers[0])


def test_a_reset_that_fails_leaves_a_clear_error(
    mixed: ExportedFile, workers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = opened(mixed).load_method("forward")
    os.kill(workers[0], signal.SIGKILL)
    with monkeypatch.context() as patch:
        patch.setattr("pteron.limits.BRIDGE_LOAD_SECONDS", 0.05)
        with pytest.raises(InvalidStateError):
            method.execute(inputs(2))
        with pytest.raises(DelegateInvalidCompatibilityError):
            method.reset()
    with pytest.raises(InvalidStateError, match=r"it could not be loaded again|in an earlier call"):
        method.execute(inputs(2))
    method.reset()
    check(method, 2)


SCRIPT = """
import os, signal, sys, torch
from pteron import Runtime
from pteron.backends.executorch_bridge import ExecutorchBridge
from pteron.backends import bridge_process
original = bridge_process.Worker.__init__
def noted(self):
    original(self)
    print(self.pid, flush=True)
bridge_process.Worker.__init__ = noted
backends = {"XnnpackBackend": ExecutorchBridge("XnnpackBackend", own_process=True)}
method = Runtime.get().load_program(sys.argv[1], backends=backends).load_method("forward")
method.execute([torch.zeros(2, 3, 8, 8), torch.zeros(2, 4)])
if sys.argv[2] == "fork":
    child = os.fork()
    if child == 0:
        try:
            method.execute([torch.zeros(2, 3, 8, 8), torch.zeros(2, 4)])
        except Exception as error:
            print(error, flush=True)
        sys.exit(0)
    os.waitpid(child, 0)
    method.execute([torch.zeros(2, 3, 8, 8), torch.zeros(2, 4)])
    print("runs", flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["exit", "killed", "fork"])
def test_no_process_outlives_ours(mixed: ExportedFile, end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", SCRIPT, str(mixed.pte), end],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == (-signal.SIGKILL if end == "killed" else 0)
    pid, *words = done.stdout.splitlines()
    assert gone(int(pid))
    if end == "fork":
        assert "which forked this one" in words[0]
        assert words[-1] == "runs"


def test_a_closed_delegate_refuses(mixed: ExportedFile, workers: list[int]) -> None:
    method = opened(mixed).load_method("forward")
    handle = next(iter(method._delegates.values()))
    run = handle.bind([torch.zeros(1)] * 4)
    handle.close()
    with pytest.raises(DelegateInvalidHandleError, match="closed"):
        run()
    assert not gone(workers[0], 0.2)  # the other delegate has it still
