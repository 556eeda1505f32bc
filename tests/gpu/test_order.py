"""Turns hold on the device, and a capture leaves everything else as it was."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from pteron import Runtime
from pteron.errors import InvalidArgumentError, InvalidStateError, NotSupportedError
from support.portable_fixtures import ON_CUDA, open_portable, run_all, stored

pytestmark = pytest.mark.gpu

ORDER = Path(__file__).parents[1] / "fixtures/order"
"""Programs that ``support.order_programs`` makes: this machine may lack executorch."""


def keep_busy(milliseconds: int = 200) -> None:
    """Give the current stream something to do."""
    torch.cuda._sleep(2_000_000 * milliseconds)


class Stalls:
    """Keeps the stream busy after the first instruction."""

    def before(self, instruction: int) -> None:
        pass

    def after(self, instruction: int) -> None:
        if instruction == 0:
            keep_busy()


@pytest.mark.parametrize("capture", [False, True])
def test_a_call_on_another_stream_waits_for_the_one_before(capture: bool) -> None:
    method = (
        Runtime.get()
        .load_program(ORDER / "sums.pte", device_map=ON_CUDA)
        .load_method(capture=capture)
    )
    one, two = (torch.full((1 << 16,), float(n), device="cuda") for n in (1, 2))
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for _ in range(5):
        with torch.cuda.stream(streams[0]):
            if capture:
                keep_busy()
                (first,) = method.execute([one])
            else:
                (first,) = method.execute([one], observer=Stalls())
        with torch.cuda.stream(streams[1]):
            (second,) = method.execute([two])
        torch.cuda.synchronize()
        assert first.unique().tolist() == [2]
        assert second.unique().tolist() == [4]


def test_two_threads_with_a_stream_each() -> None:
    facts = stored("mobilenet_v2")
    with open_portable("mobilenet_v2", device_map=ON_CUDA) as program:
        method = program.load_method("forward")
        (given, _), *_ = facts["calls"]["forward"]
        inputs = [value.cuda() for value in given]
        pairs = [inputs, [value * 2 for value in inputs]]
        wants = [[out.clone() for out in method.execute(values)] for values in pairs]
        torch.cuda.synchronize()
        wrong: list[int] = []

        def work(number: int) -> None:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(100):
                    found = method.execute(pairs[number])
                    torch.cuda.current_stream().synchronize()
                    if not all(map(torch.allclose, found, wants[number])):
                        wrong.append(number)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_a_load_is_finished_when_it_returns() -> None:
    with open_portable("llama_static_cache", device_map=ON_CUDA) as program:
        facts = stored("llama_static_cache")
        program.load_method("forward")
        keep_busy()
        method = program.new_method("forward")
        with torch.cuda.stream(torch.cuda.Stream()):
            run_all(method, facts["calls"]["forward"], max(facts["rtol"], 1e-3), 1e-3)


def test_a_number_of_the_host_is_not_captured() -> None:
    method = (
        Runtime.get()
        .load_program(ORDER / "scaled_by_an_input.pte", device_map=ON_CUDA)
        .load_method()
    )
    with pytest.raises(NotSupportedError, match=r"reads the number %1 .*may change"):
        method.capture()
    x = torch.ones(4)
    assert [method.execute([x, n])[0].unique().tolist() for n in (3, 5)] == [[3], [5]]


def test_a_capture_uses_up_inputs_and_outputs() -> None:
    method = Runtime.get().load_program(ORDER / "sums.pte", device_map=ON_CUDA).load_method()
    x = torch.ones(1 << 16)
    method.execute([x])
    method.set_inputs([x])
    method.capture()
    with pytest.raises(InvalidArgumentError, match="has not been given its inputs"):
        method.run()
    with pytest.raises(InvalidStateError):
        method.get_outputs()
    assert method.execute([x])[0].unique().tolist() == [2]


def looks(x: torch.Tensor) -> torch.Tensor:
    x.sum().item()
    return torch.relu(x)


def test_a_refused_recording_leaves_the_stream_and_the_process() -> None:
    kernels = {"test::looks.out": looks}
    program = Runtime.get().load_program(
        ORDER / "reads_a_value.pte", kernels=kernels, device_map=ON_CUDA
    )
    method = program.load_method()
    before = torch.cuda.current_stream()
    for _ in range(5):
        with pytest.raises(NotSupportedError, match="does what a graph cannot hold"):
            method.capture()
        gc.collect()
        assert torch.cuda.current_stream() == before
        assert torch.arange(8, device="cuda").sum().item() == 28
        assert method.execute([-torch.ones(4)])[0].tolist() == [0] * 4


def test_captures_do_not_pile_up_memory() -> None:
    def free() -> int:
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]

    def cycle() -> None:
        with open_portable("bert", device_map=ON_CUDA) as program:
            method: Any = program.load_method("forward", capture=True)
            method.execute(stored("bert")["calls"]["forward"][0][0])

    cycle()
    before = free()
    for _ in range(10):
        cycle()
    assert before - free() < 32 << 20
