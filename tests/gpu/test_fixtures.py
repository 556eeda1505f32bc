"""Programs that ExecuTorch's CUDA backend compiled, run through the public face."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from pteron.errors import NotFoundError, NotSupportedError, PteronError
from support import cuda_fixtures as fixtures

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("name", fixtures.SINGLE_GPU)
def test_numbers_are_eagers_twice_and_in_both_orders(load: Any, name: str, backwards: bool) -> None:
    program = load(name)
    methods = fixtures.cases(name)
    for _ in range(2):
        for method in sorted(methods, reverse=backwards):
            loaded = program.load_method(method)
            loaded.reset()
            for case in methods[method]:
                case.check(loaded.execute(case.inputs))


@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
def test_all_programs_side_by_side(load: Any, backwards: bool) -> None:
    names = sorted(fixtures.SINGLE_GPU, reverse=backwards)
    loaded = [
        (load(name).load_method(method), calls)
        for name in names
        for method, calls in fixtures.cases(name).items()
    ]
    for _ in range(2):
        for method, calls in loaded:
            method.reset()
            for case in calls:
                case.check(method.execute(case.inputs))


@pytest.mark.parametrize("name", fixtures.SMALL)
def test_gpu_tensors_go_in_straight(load: Any, name: str) -> None:
    program = load(name)
    for method, calls in fixtures.cases(name).items():
        loaded = program.load_method(method)
        for case in calls:
            case.check(loaded.execute([x.cuda() for x in case.inputs]))


def test_strided_gpu_tensors_are_read_by_their_values(load: Any) -> None:
    (case,) = fixtures.cases("gpu_resident_io")["forward"]
    method = load("gpu_resident_io").load_method("forward")
    x = case.inputs[0].cuda()
    misaligned = torch.empty(x.numel() + 1, device="cuda")[1:].view_as(x).copy_(x)
    for given in (x.t().contiguous().t(), x.expand(1, *x.shape)[0], misaligned):
        case.check(method.execute([given]))


def test_gpu_in_gpu_out(load: Any) -> None:
    (case,) = fixtures.cases("gpu_resident_io")["forward"]
    method = load("gpu_resident_io").load_method("forward")
    x = case.inputs[0].cuda()
    (first,) = method.execute([x])
    assert first.device == torch.device("cuda:0")
    kept = first.clone()
    (second,) = method.execute([x * 2])
    assert second.data_ptr() != first.data_ptr()
    assert torch.equal(first, kept), "an output that was the caller's has changed"
    case.check([first])


def test_gpu_in_gpu_out_waits_for_nothing(load: Any) -> None:
    (case,) = fixtures.cases("gpu_resident_io")["forward"]
    method = load("gpu_resident_io").load_method("forward")
    x = case.inputs[0].cuda()
    method.execute([x])
    begin = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)  # cycles: about half a second
    begin.record()
    started = time.perf_counter()
    (output,) = method.execute([x])
    took = time.perf_counter() - started
    assert not begin.query(), "the device was done before the call returned"
    assert took < 0.2, f"the call took {took:.3f} s while the device was busy"
    case.check([output])


def test_the_current_stream_is_used(load: Any) -> None:
    (case,) = fixtures.cases("gpu_resident_io")["forward"]
    method = load("gpu_resident_io").load_method("forward")
    source = case.inputs[0].cuda()
    method.execute([source])
    x = torch.zeros_like(source)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        x.copy_(source)
        (output,) = method.execute([x])
        host = output.to("cpu", non_blocking=False)
    case.check([host])


def test_a_cpu_tensor_for_a_gpu_input_is_moved_or_refused_by_place(load: Any) -> None:
    (case,) = fixtures.cases("gpu_resident_io")["forward"]
    method = load("gpu_resident_io").load_method("forward")
    try:
        outputs = method.execute(case.inputs)
    except PteronError as error:
        assert {"cpu", "cuda:0"} <= set(str(error).split()), error  # noqa: PT017
    else:
        case.check(outputs)
        assert outputs[0].device == torch.device("cuda:0")


def test_a_dynamic_batch_grows_shrinks_and_has_a_bound(load: Any) -> None:
    calls = fixtures.cases("dynamic_batch")["forward"]
    method = load("dynamic_batch").load_method("forward")
    for case in [*calls, *reversed(calls), calls[-1], calls[0]]:
        outputs = method.execute(case.inputs)
        assert outputs[0].shape == case.expected.shape
        case.check(outputs)
    with pytest.raises(NotSupportedError, match="17"):
        method.execute([torch.zeros(17, 64)])
    calls[1].check(method.execute(calls[1].inputs))


def test_state_stays_from_call_to_call_and_goes_with_reset(load: Any) -> None:
    calls = fixtures.cases("kv_cache")["forward"]
    method = load("kv_cache").load_method("forward")
    first = method.execute(calls[0].inputs)[0]
    second = method.execute(calls[0].inputs)[0]
    method.execute(calls[1].inputs)
    later = method.execute(calls[0].inputs)[0]
    assert torch.allclose(first, second)
    assert not torch.allclose(first, later), "the cache forgot the second position"
    method.reset()
    for case in calls:
        case.check(method.execute(case.inputs))


def test_two_instances_have_two_states(load: Any) -> None:
    calls = fixtures.cases("kv_cache")["forward"]
    program = load("kv_cache")
    methods = [program.load_method("forward"), program.new_method("forward")]
    for case in calls:
        for method in methods:
            case.check(method.execute(case.inputs))


def test_methods_share_one_copy_of_the_weights(load: Any) -> None:
    """Prefill and decode: every weight that both name is at one address."""
    program = load("prefill_decode")
    methods = [program.load_method(name) for name in ("prefill", "decode")]
    addresses = []
    for method in methods:
        (delegate,) = method._delegates.values()
        tensors = delegate._constants.tensors.values()
        addresses.append({tensor.data_ptr() for tensor in tensors})
    assert len(addresses[0]) == 5
    assert addresses[0] == addresses[1]


def test_two_threads_run_two_methods(load: Any) -> None:
    program = load("prefill_decode")
    calls = fixtures.cases("prefill_decode")
    failures: list[str] = []

    def work(name: str) -> None:
        method = program.load_method(name)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(50):
                for case in calls[name]:
                    if case.compare(method.execute(case.inputs)[0]) > case.tolerance:
                        failures.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_another_thread_runs_while_the_device_method_does(load: Any) -> None:
    """Loading and running hold the interpreter for no more than moments."""
    ticks = [0]
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(0.001):
            ticks[0] += 1

    (case,) = fixtures.cases("mixed_host_cuda")["forward2"]
    program = load("mixed_host_cuda")
    thread = threading.Thread(target=tick)
    begin = time.perf_counter()
    thread.start()
    method = program.load_method("forward2")
    for _ in range(10):
        outputs = method.execute(case.inputs)
    took = time.perf_counter() - begin
    stop.set()
    thread.join()
    case.check(outputs)
    assert ticks[0] > took * 1000 * 0.1, f"{ticks[0]} ticks in {took * 1000:.0f} ms"


def test_native_code_is_refused_where_it_would_run(load: Any) -> None:
    program = load("linear_relu", native_code="refuse")
    with pytest.raises(NotSupportedError, match="c91725690bcc"):
        program.load_method("forward")


def test_a_device_that_is_not_there_is_named(load: Any) -> None:
    program = load("linear_relu", device_map={"cuda": "cuda:63"})
    with pytest.raises(NotFoundError, match="no cuda:63"):
        program.load_method("forward")


def test_a_method_outlives_the_names_of_its_files(load: Any) -> None:
    """Bytes instead of paths: the method keeps what it needs alive."""
    import gc

    from pteron import Runtime

    calls = fixtures.cases("kv_cache")["forward"]
    method = (
        Runtime.get()
        .load_program(
            fixtures.pte_path("kv_cache").read_bytes(),
            data_path=fixtures.ptd_path("kv_cache").read_bytes(),
        )
        .load_method("forward")
    )
    gc.collect()
    for case in calls:
        case.check(method.execute(case.inputs))
    method.reset()
    calls[0].check(method.execute(calls[0].inputs))
