"""Programs without delegates, placed by ``device_map``: the architectures, with eager's numbers.

``make_portable.py`` made the programs and the numbers. The cases on the host show that the files
are right; they run everywhere.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support import cuda_fixtures as fixtures
from support.portable_fixtures import NAMES, ON_CUDA, open_portable, run_all, stored


def test_the_architectures_are_there() -> None:
    assert len(NAMES) >= 26


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], ids=["host", "cuda"]
)
@pytest.mark.parametrize("name", NAMES)
def test_the_whole_program_runs_there(name: str, device: str) -> None:
    facts = stored(name)
    # Another device sums in another order: what is exact on the host is not there.
    rtol, atol = max(facts["rtol"], 1e-4), max(facts["atol"], 1e-5)
    with open_portable(name, device_map={"cpu": device}) as program:
        for method_name, calls in facts["calls"].items():
            method = program.load_method(method_name)
            assert {torch.device(r.device).type for r in method.memory} <= {device}
            run_all(method, calls, rtol, atol)
            method.reset()
            run_all(method, calls, rtol, atol)


@pytest.mark.gpu
def test_gpu_tensors_are_taken_and_given_where_the_plan_is() -> None:
    facts = stored("mobilenet_v2")
    (inputs, expected), *_ = facts["calls"]["forward"]
    with open_portable("mobilenet_v2", device_map=ON_CUDA) as program:
        method = program.load_method("forward")
        for given in (inputs, [x.cuda() for x in inputs]):
            (output,) = method.execute(given)
            assert output.device == torch.device("cuda:0")
            torch.testing.assert_close(output.cpu(), expected[0], rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["mixed_host_cuda", "linear_relu", "dynamic_batch"])
def test_a_delegated_program_moves_whole_to_the_gpu(load: Any, name: str) -> None:
    program = load(name, device_map=ON_CUDA)
    for method, calls in fixtures.cases(name).items():
        loaded = program.load_method(method)
        assert {report.device for report in loaded.memory} == {"cuda:0"}
        for case in calls:
            outputs = loaded.execute(case.inputs)
            assert outputs[0].device == torch.device("cuda:0")
            case.check(outputs)


@pytest.mark.gpu
def test_both_gpus_fold_onto_one(load: Any) -> None:
    program = load("two_gpus", device_map={"cuda:1": "cuda:0"})
    calls = fixtures.cases("two_gpus")
    methods = {name: program.load_method(name) for name in calls}
    for _ in range(3):
        for name, method in methods.items():
            assert {r.device for r in method.memory} == {"cpu", "cuda:0"}
            for case in calls[name]:
                case.check(method.execute(case.inputs))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="this machine has cuda:1")
def test_the_other_gpu_is_missed_by_name(load: Any) -> None:
    from pteron.errors import NotFoundError

    program = load("two_gpus")
    (case,) = fixtures.cases("two_gpus")["on0"]
    method = program.load_method("on0")
    with pytest.raises(NotFoundError, match=r"method 'on1'.*no cuda:1"):
        program.load_method("on1")
    case.check(method.execute(case.inputs))
