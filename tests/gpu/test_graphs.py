"""CUDA graphs: a static method recorded once, replayed with new inputs, its state still right."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pteron.errors import NotSupportedError
from support import cuda_fixtures as fixtures
from support.portable_fixtures import ON_CUDA, open_portable, run_all, stored

pytestmark = pytest.mark.gpu

STATIC = tuple(name for name in fixtures.SINGLE_GPU if name != "dynamic_batch")
PORTABLE = ("bert", "convnext", "gpt2", "mobilenet_v2", "quantized_conv", "resnet18", "vit")


@pytest.mark.parametrize("name", STATIC)
def test_replays_give_eagers_numbers(load: Any, name: str) -> None:
    program = load(name)
    for method_name, calls in fixtures.cases(name).items():
        if not program.metadata(method_name).uses_backend("CudaBackend"):
            continue
        method = program.load_method(method_name, capture=True)
        assert method.is_captured
        for _ in range(3):
            method.reset()
            for case in calls:
                case.check(method.execute(case.inputs))
                if name != "kv_cache":
                    case.check(method.execute([x.cuda() for x in case.inputs]))


@pytest.mark.parametrize("name", PORTABLE)
def test_a_portable_program_on_the_gpu_replays(name: str) -> None:
    facts = stored(name)
    with open_portable(name, device_map=ON_CUDA) as program:
        method = program.load_method("forward", capture=True)
        for _ in range(2):
            run_all(method, facts["calls"]["forward"], max(facts["rtol"], 1e-4), facts["atol"])


def test_new_inputs_are_seen_and_old_outputs_stay(load: Any) -> None:
    method = load("linear_relu").load_method("forward", capture=True)
    plain = load("linear_relu").load_method("forward")
    kept = []
    for seed in range(6):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(seed))
        (got,), (want,) = method.execute([x]), plain.execute([x])
        torch.testing.assert_close(got, want)
        kept.append((got, got.clone()))
    assert all(torch.equal(now, then) for now, then in kept)


def test_outputs_of_a_captured_gpu_method_are_the_callers_own(load: Any) -> None:
    (case,) = fixtures.cases("gpu_resident_io")["forward"]
    method = load("gpu_resident_io").load_method("forward", capture=True)
    x = case.inputs[0].cuda()
    (first,) = method.execute([x])
    kept = first.clone()
    method.execute([x * 3])
    assert torch.equal(first, kept)
    case.check([first])


def test_capture_keeps_the_state_that_there_was(load: Any) -> None:
    calls = fixtures.cases("kv_cache")["forward"]
    method = load("kv_cache").load_method("forward")
    for case in calls[:2]:
        case.check(method.execute(case.inputs))
    method.capture()
    for case in calls[2:]:
        case.check(method.execute(case.inputs))
    method.reset()
    for case in calls:
        case.check(method.execute(case.inputs))


def test_two_captured_instances_interleave(load: Any) -> None:
    calls = fixtures.cases("kv_cache")["forward"]
    program = load("kv_cache")
    methods = [
        program.load_method("forward", capture=True),
        program.new_method("forward", capture=True),
        program.new_method("forward"),
    ]
    for turn in range(2):
        for case in calls:
            for method in methods:
                case.check(method.execute(case.inputs))
        for method in methods[: turn + 2]:
            method.reset()
        methods = methods[: turn + 2]


def test_a_captured_portable_method_keeps_its_state() -> None:
    facts = stored("llama_static_cache")
    calls = facts["calls"]["forward"]
    with open_portable("llama_static_cache", device_map=ON_CUDA) as program:
        one = program.load_method("forward", capture=True)
        two = program.new_method("forward", capture=True)
        for inputs, expected in calls:
            for method in (one, two):
                outputs = [x.cpu() for x in method.execute(inputs)]
                torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)
        one.reset()
        run_all(one, calls, 1e-4, 1e-5)
        saved = two.state.snapshot()
        first = two.execute(calls[1][0])
        two.state.restore(saved)
        again = two.execute(calls[1][0])
        torch.testing.assert_close(first, again)


def test_a_dynamic_method_is_refused_by_name_or_stays_right(load: Any) -> None:
    calls = fixtures.cases("dynamic_batch")["forward"]
    method = load("dynamic_batch").load_method("forward")
    with pytest.raises(NotSupportedError, match=r"'forward' cannot be captured.*dynamic"):
        method.capture()
    for case in [*calls, *reversed(calls)]:
        case.check(method.execute(case.inputs))


def test_a_decision_cannot_be_captured() -> None:
    with open_portable("cond", device_map=ON_CUDA) as program:
        method = program.load_method("forward")
        with pytest.raises(NotSupportedError, match="decides"):
            method.capture()
        facts = stored("cond")
        run_all(method, facts["calls"]["forward"], 1e-4, 1e-5)


def test_a_shape_that_was_not_captured_is_refused(load: Any) -> None:
    (case,) = fixtures.cases("linear_relu")["forward"]
    method = load("linear_relu").load_method("forward", capture=True)
    for wrong in (torch.zeros(7, 64), torch.zeros(8, 63), torch.zeros(1, 8, 64)):
        with pytest.raises(NotSupportedError, match="input 0"):
            method.execute([wrong])
    case.check(method.execute(case.inputs))


def test_a_host_method_has_nothing_to_capture(load: Any) -> None:
    method = load("mixed_host_cuda").load_method("forward")
    with pytest.raises(NotSupportedError, match="none of its instructions runs on a CUDA device"):
        method.capture()


def test_a_captured_method_works_beside_others(load: Any) -> None:
    """Other methods and torch itself use the device between replays."""
    (case,) = fixtures.cases("small_cnn")["forward"]
    captured = load("small_cnn").load_method("forward", capture=True)
    others = [(load(n).load_method("forward"), fixtures.cases(n)["forward"][0]) for n in
              ("linear_relu", "transformer_block_bf16")]  # fmt: skip
    for _ in range(5):
        case.check(captured.execute(case.inputs))
        junk = [torch.full((1 << 18,), float("nan"), device="cuda") for _ in range(8)]
        for method, call in others:
            call.check(method.execute(call.inputs))
        del junk
        torch.cuda.empty_cache()
        case.check(captured.execute(case.inputs))


def test_a_closed_captured_method_gives_its_memory_back(load: Any) -> None:
    import gc

    program = load("mixed_host_cuda")
    (case,) = fixtures.cases("mixed_host_cuda")["forward2"]
    program.load_method("forward2", capture=True).execute(case.inputs)
    program.close()
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    again = load("mixed_host_cuda")
    again.load_method("forward2", capture=True).execute(case.inputs)
    assert before - torch.cuda.mem_get_info()[0] >= 32 << 20
    again.close()
    gc.collect()
    torch.cuda.empty_cache()
    assert before - torch.cuda.mem_get_info()[0] <= 4 << 20
