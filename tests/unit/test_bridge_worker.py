"""The worker's frames, and what becomes of workers that misbehave. No executorch is needed."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pteron import limits
from pteron.backends import bridge_process
from pteron.backends.bridge_frames import (
    HEAD,
    FrameError,
    FrameReader,
    is_dense,
    pack,
    pack_tensors,
    unpack_tensors,
)
from pteron.backends.bridge_process import Worker, WorkerEndedError
from pteron.errors import NotSupportedError, OutOfResourcesError
from support.processes import gone

SOURCE = Path(__file__).parents[2] / "src"


def received(data: bytes, step: int = 7, **options: Any) -> tuple[dict[str, Any], torch.Tensor]:
    """Read a frame that arrives in pieces of ``step`` bytes."""
    left = memoryview(data)

    def receive(buffer: memoryview) -> int:
        nonlocal left
        count = min(step, len(left), len(buffer))
        buffer[:count] = left[:count]
        left = left[count:]
        return count

    return FrameReader(max_text_bytes=options.pop("max_text_bytes", None)).read(receive, **options)


@pytest.mark.parametrize("step", [1, 7, 64, 1_000_000])
def test_tensors_come_back_as_they_were_sent(step: int) -> None:
    given = [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.arange(10).reshape(2, 5).t(),
        torch.randn(8, 8)[::2, 1:4],
        torch.tensor(True),
        torch.randn(0, 4),
        torch.randn(5).bfloat16(),
        torch.randn(30_000),
    ]
    data = b"".join(pack_tensors({"key": 1}, given))
    header, payload = received(data, step)
    assert header["key"] == 1
    for here, there in zip(unpack_tensors(header, payload), given, strict=True):
        assert here.dtype == there.dtype
        torch.testing.assert_close(here, there, rtol=0, atol=0)
    first = unpack_tensors(header, payload)[0]
    assert first.stride() == given[0].stride()
    assert first.data_ptr() % 64 == 0


@pytest.mark.parametrize(
    "fact",
    [
        None,
        [],
        ["float32", [2], [1]],
        ["float99", [2], [1], 0],
        [["float32"], [2], [1], 0],
        ["float32", [2], [1], 64],
        ["float32", [17], [1], 0],
        ["float32", [2], [1], 4],
        ["float32", [2], [2], 0],
        ["float32", [2, 2], [1], 0],
        ["float32", [-1], [1], 0],
        ["float32", [2.0], [1], 0],
        ["float32", [True], [1], 0],
        ["float32", ["2"], [1], 0],
        ["float32", [1 << 62, 4], [4, 1], 0],
        ["float32", 2, 1, 0],
        ["float32", [2], [1], None],
    ],
)
def test_a_tensor_that_does_not_lie_in_the_frame_is_refused(fact: Any) -> None:
    with pytest.raises(FrameError, match="describes a tensor"):
        unpack_tensors({"tensors": [fact]}, torch.zeros(64, dtype=torch.uint8))


def test_a_frame_that_is_none_is_refused() -> None:
    with pytest.raises(FrameError, match="names no tensors"):
        unpack_tensors({}, torch.zeros(0, dtype=torch.uint8))
    for text in (b"{", b"[]", b"\xff"):
        with pytest.raises(FrameError, match="it is no JSON"):
            received(HEAD.pack(len(text), 0) + text)
    with pytest.raises(FrameError, match="announced"):
        received(HEAD.pack(5, 1 << 60), max_payload_bytes=100)
    with pytest.raises(FrameError, match="announced"):
        received(HEAD.pack(1 << 60, 0), max_text_bytes=100)
    with pytest.raises(FrameError, match="3 bytes follow it"):
        received(b"".join(pack({})) + b"abc", 100)
    with pytest.raises(EOFError):
        received(HEAD.pack(5, 0) + b"{")


def test_density() -> None:
    assert is_dense((2, 3), (3, 1))
    assert is_dense((2, 3), (1, 2))
    assert is_dense((1, 3), (99, 1))
    assert is_dense((), ())
    assert not is_dense((2, 3), (4, 1))
    assert not is_dense((2, 3), (0, 1))


# -- processes ------------------------------------------------------------------------------------


def fake(monkeypatch: pytest.MonkeyPatch, code: str) -> Worker:
    """Return a worker that runs this code, with ``connection`` at hand."""
    start = "import os, signal, socket, struct, sys, time\n"
    start += "connection = socket.socket(fileno=int(sys.argv[1]))\n"
    monkeypatch.setattr(bridge_process, "_START", start + code)
    return Worker()


ANSWER = "connection.recv(100000); connection.sendall(struct.pack('<QQ', {}, {}) + {})\n"


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("sys.exit(3)", "ended with exit status 3"),
        ("os.kill(os.getpid(), signal.SIGABRT)", "ended with SIGABRT"),
        ("os.kill(os.getpid(), 40)", "ended with signal 40|ended with SIGRT"),
        ("time.sleep(60)", "was stopped after 1 s without an answer"),
        (ANSWER.format(1 << 40, 0, "b''"), "its answer cannot be read"),
        (ANSWER.format(2, 1 << 40, "b'{}'"), "its answer cannot be read"),
        (ANSWER.format(2, 0, "b'[]'"), "its answer cannot be read"),
        (ANSWER.format(9, 0, "b'{}'"), "ended with exit status 0"),
    ],
)
def test_how_a_worker_ended_is_told(monkeypatch: pytest.MonkeyPatch, code: str, how: str) -> None:
    worker = fake(monkeypatch, code)
    for _ in range(2):  # asking again says the same
        with pytest.raises(WorkerEndedError, match=how):
            worker.ask({"do": "load"}, seconds=1 if "sleep" in code else 60)
    assert worker.ended is not None
    assert gone(worker.pid)
    worker.close()


def test_tensors_that_are_not_in_an_answer_end_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b'{"tensors": [["float32", [9], [1], 0]]}'
    worker = fake(monkeypatch, ANSWER.format(len(text), 0, text) + "time.sleep(60)")
    with pytest.raises(WorkerEndedError, match="describes a tensor"):
        worker.run({"do": "run"}, [torch.zeros(3)], 1_000)
    assert gone(worker.pid)


def test_a_worker_that_writes_much_blocks_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code = "print('x' * 5_000_000, flush=True); print('the end', file=sys.stderr, flush=True)\n"
    answer = "n = 0\nwhile n < 8_000_000: n += len(connection.recv(1 << 20))\n"
    answer += "connection.sendall(struct.pack('<QQ', 2, 0) + b'{}'); time.sleep(60)"
    worker = fake(monkeypatch, code + answer)
    assert worker.ask({"do": "load"}, [bytes(8_000_000)], seconds=60) == {}
    assert worker.said().endswith("the end")
    assert len(worker.said()) < 10_000
    worker.close()
    assert capfd.readouterr() == ("", "")


def test_an_interrupted_call_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer would be taken for that of the next call."""
    worker = fake(monkeypatch, "os.kill(os.getppid(), signal.SIGINT); time.sleep(60)")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    try:
        with pytest.raises(KeyboardInterrupt):
            worker.ask({"do": "run"})
    finally:
        signal.signal(signal.SIGINT, before)
    with pytest.raises(WorkerEndedError, match="a call was interrupted"):
        worker.ask({"do": "run"})
    assert gone(worker.pid)


def test_a_worker_that_nobody_has_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = fake(monkeypatch, "time.sleep(60)")
    pid = worker.pid
    assert not gone(pid, 0.2)
    del worker
    gc.collect()
    assert gone(pid)


def test_a_broken_pipe_is_no_signal_to_us(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a program that does not ignore SIGPIPE."""
    worker = fake(monkeypatch, "")
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        with pytest.raises(WorkerEndedError, match="exit status 0"):
            worker.ask({"do": "load"}, [bytes(8_000_000)])
    finally:
        signal.signal(signal.SIGPIPE, before)


def test_a_worker_that_cannot_start_is_an_error_and_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.collect()
    before = len([*Path("/dev/fd").iterdir()])
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(OutOfResourcesError, match=r"cannot be started: .*/nowhere/python"):
        Worker()
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(NotSupportedError, match=r"sys\.executable is not set"):
        Worker()
    assert len([*Path("/dev/fd").iterdir()]) == before


END_WITH_THE_PARENT = """
import sys
from pteron.backends.bridge_worker import _end_with_the_parent
_end_with_the_parent(int(sys.argv[1]))
print("ready", flush=True)
sum(range(10**15))  # holds the interpreter's lock and looks at nothing
"""


def test_a_worker_that_hangs_ends_with_the_parent() -> None:
    theirs, lifeline = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", END_WITH_THE_PARENT, str(theirs)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        pass_fds=(theirs,),
    ) as process:
        os.close(theirs)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.close(lifeline)
        try:
            assert process.wait(20) == -signal.SIGIO
        finally:
            process.kill()


def test_the_limits_are_named() -> None:
    assert limits.BRIDGE_LOAD_SECONDS >= 60
    assert limits.MAX_BRIDGE_ANSWER_BYTES >= 1 << 16
