"""A program whose methods are planned on different devices, on a machine that has both."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from support import cuda_fixtures as fixtures

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices"),
]

SMALL = 1 << 20


@contextmanager
def current_device(index: int) -> Iterator[None]:
    """Make a device current, and see that a block leaves it so."""
    before = torch.cuda.current_device()
    torch.cuda.set_device(index)
    try:
        yield
        assert torch.cuda.current_device() == index
    finally:
        torch.cuda.set_device(before)


def free() -> list[int]:
    for index in (0, 1):
        torch.cuda.synchronize(index)
    gc.collect()
    torch.cuda.empty_cache()
    return [torch.cuda.mem_get_info(index)[0] for index in (0, 1)]


@pytest.fixture(autouse=True)
def _contexts() -> None:
    """Make the context of both devices: a context takes memory that is no method's."""
    for index in (0, 1):
        torch.ones(8, device=f"cuda:{index}").add_(1)


@pytest.mark.parametrize("current", [0, 1])
def test_each_method_runs_on_its_device(load: Any, current: int) -> None:
    with current_device(current):
        program = load("two_gpus")
        methods = {name: program.load_method(name) for name in ("on0", "on1")}
    for name, method in methods.items():
        assert {r.device for r in method.memory} == {"cpu", f"cuda:{name[-1]}"}
    for _ in range(4):
        for name, method in methods.items():
            for case in fixtures.cases("two_gpus")[name]:
                with current_device(current):
                    case.check(method.execute(case.inputs))


TAKEN = """
import json, sys, torch
from pteron import Runtime
from support import cuda_fixtures as fixtures

def free():
    for index in range(2):
        torch.cuda.synchronize(index)
    return [torch.cuda.mem_get_info(index)[0] for index in range(2)]

name = sys.argv[1]
for index in range(2):  # the contexts are no method's memory
    torch.ones(8, device=f"cuda:{index}").add_(1)
torch.cuda.empty_cache()
(case,) = fixtures.cases("two_gpus")[name]
counts = [free()]
program = Runtime.get().load_program(
    fixtures.pte_path("two_gpus"), data_path=fixtures.ptd_path("two_gpus")
)
counts.append(free())
method = program.load_method(name)
for _ in range(2):
    case.check(method.execute(case.inputs))
counts.append(free())
print(json.dumps(counts))
"""


@pytest.mark.parametrize(("name", "own"), [("on0", 0), ("on1", 1)])
def test_a_method_takes_memory_on_its_own_device_only(name: str, own: int) -> None:
    """In a process of its own: what others left half full would hide a plan this small."""
    paths = os.pathsep.join([*filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", TAKEN, name],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    before, opened, after = json.loads(done.stdout)
    assert opened == before, "opening took device memory"
    assert before[own] > after[own]
    assert before[1 - own] == after[1 - own], "memory was taken on the other device"


def test_two_threads(load: Any) -> None:
    program = load("two_gpus")
    failures: list[str] = []

    def work(name: str) -> None:
        method = program.load_method(name)
        (case,) = fixtures.cases("two_gpus")[name]
        for _ in range(100):
            if case.compare(method.execute(case.inputs)[0]) > case.tolerance:
                failures.append(name)
        if torch.cuda.current_device() != 0:
            failures.append(f"{name} left device {torch.cuda.current_device()} current")

    threads = [threading.Thread(target=work, args=(name,)) for name in ("on0", "on1")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize(
    ("device_map", "places"),
    [
        ({"cuda:1": "cuda:0"}, {"on0": "cuda:0", "on1": "cuda:0"}),
        ({"cuda:0": "cuda:1"}, {"on0": "cuda:1", "on1": "cuda:1"}),
        ({"cuda:0": "cuda:1", "cuda:1": "cuda:0"}, {"on0": "cuda:1", "on1": "cuda:0"}),
    ],
)
def test_a_device_map_moves_methods(
    load: Any, device_map: dict[str, str], places: dict[str, str]
) -> None:
    program = load("two_gpus", device_map=device_map)
    for name, place in places.items():
        method = program.load_method(name)
        assert {r.device for r in method.memory} == {"cpu", place}
        for case in fixtures.cases("two_gpus")[name]:
            case.check(method.execute(case.inputs))
            case.check(method.execute([x.to("cuda:0") for x in case.inputs]))
            case.check(method.execute([x.to("cuda:1") for x in case.inputs]))


def test_both_can_be_captured(load: Any) -> None:
    program = load("two_gpus")
    methods = {name: program.load_method(name, capture=True) for name in ("on0", "on1")}
    for _ in range(3):
        for name, method in methods.items():
            for case in fixtures.cases("two_gpus")[name]:
                case.check(method.execute(case.inputs))
    assert torch.cuda.current_device() == 0


def test_one_program_twice_on_two_devices(load: Any) -> None:
    """One shared object, two containers, one a device."""
    calls = fixtures.cases("small_cnn")["forward"]
    methods = [
        load("small_cnn", device_map={"cuda": f"cuda:{index}"}).load_method("forward")
        for index in (0, 1)
    ]
    for _ in range(3):
        for method in methods:
            for case in calls:
                case.check(method.execute(case.inputs))
