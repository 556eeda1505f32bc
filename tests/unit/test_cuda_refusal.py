"""CUDA programs where there is no GPU: they open, verify and inspect; device methods are refused.

The same on a machine with one: there, the refusals are for a device that it has not (``cuda:63``).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pteron import Runtime
from pteron.errors import MemoryAllocationFailedError, NotFoundError, NotSupportedError, PteronError
from pteron.memory.device_allocator import CudaAllocator, device_allocator
from support import cuda_fixtures as fixtures

DEVICE_METHODS = [
    ("dynamic_batch", "forward", 2, 6_144),
    ("kv_cache", "forward", 2, 272),
    ("linear_relu", "forward", 2, 3_072),
    ("mixed_host_cuda", "forward2", 2, 33_554_432),
    ("prefill_decode", "decode", 2, 416),
    ("prefill_decode", "prefill", 2, 6_528),
    ("small_cnn", "forward", 2, 24_656),
    ("transformer_block_bf16", "forward", 2, 262_144),
    ("two_gpus", "on0", 2, 3_072),
    ("two_gpus", "on1", 2, 3_072),
]
MISSING = "cuda:63"
"""A device that no machine has, so that these tests also mean something on one with GPUs."""


def open_program(name: str, **settings: object) -> object:
    settings = {"device_map": {"cuda": MISSING}, **settings}
    return Runtime.get().load_program(
        fixtures.pte_path(name), data_path=fixtures.ptd_path(name), **settings
    )


def refusal(kind: type[PteronError], name: str, method: str, **settings: object) -> PteronError:
    """Return the error with which loading a method has to end."""
    with open_program(name, **settings) as program, pytest.raises(kind) as caught:
        program.load_method(method)
    return caught.value


def host_call() -> fixtures.Case:
    return fixtures.cases("mixed_host_cuda")["forward"][0]


@pytest.mark.parametrize("name", fixtures.NAMES)
def test_every_program_opens_and_its_metadata_reads(name: str) -> None:
    info = json.loads((fixtures.folder() / name / "info.json").read_text())
    with open_program(name) as program:
        assert program.method_names == set(info["methods"])
        for method, facts in info["methods"].items():
            meta = program.metadata(method)
            assert meta.name() == method
            assert meta.num_memory_planned_buffers() == len(facts["sizes"]) - 1
            for index, nbytes in enumerate(facts["sizes"][1:]):
                assert meta.memory_planned_buffer_size(index) == nbytes
                tags = {b: f"cuda:{i}" for b, _, i in facts["devices"]}
                assert str(meta.memory_planned_buffer_device(index)) == tags.get(index + 1, "cpu")
            assert meta.uses_backend("CudaBackend") == bool(facts["delegates"])


@pytest.mark.parametrize(("name", "method", "buffer", "nbytes"), DEVICE_METHODS)
def test_a_device_method_is_refused_by_name(
    name: str, method: str, buffer: int, nbytes: int
) -> None:
    with open_program(name) as program, pytest.raises(NotFoundError) as caught:
        program.load_method(method)
    text = str(caught.value)
    assert f"method '{method}'" in text
    assert f"planned buffer {buffer}" in text
    assert f"{nbytes:,} bytes" in text
    assert f"has no {MISSING}" in text
    assert caught.value.code == 0x20


def test_a_method_that_takes_gpu_tensors_is_refused_by_name() -> None:
    text = str(refusal(NotFoundError, "gpu_resident_io", "forward"))
    assert "method 'forward'" in text
    assert f"has no {MISSING}" in text


def test_the_tags_name_the_device_without_a_map() -> None:
    if torch.cuda.device_count() > 1:
        pytest.skip("this machine has cuda:1")
    text = str(refusal(NotFoundError, "two_gpus", "on1", device_map=None))
    assert "method 'on1'" in text
    assert "has no cuda:1" in text


def test_the_host_method_runs_before_and_after_a_refusal() -> None:
    case = host_call()
    with open_program("mixed_host_cuda") as program:
        method = program.load_method("forward")
        assert case.compare(method.execute(case.inputs)[0]) <= case.tolerance
        for _ in range(2):
            with pytest.raises(NotFoundError, match="forward2"):
                program.load_method("forward2")
            assert case.compare(method.execute(case.inputs)[0]) <= case.tolerance
        assert program.load_method("forward") is method


def test_out_of_device_memory_is_the_same_kind_of_refusal() -> None:
    """P4, without a GPU: an allocator that has little."""

    class Small(CudaAllocator):
        def is_available(self, device: torch.device) -> bool:
            return True

        def allocate_pinned(self, nbytes: int) -> None:
            return None

        def allocate(self, nbytes: int, device: torch.device) -> torch.Tensor:
            raise MemoryAllocationFailedError(f"{device} has 7 bytes free, not {nbytes:,}")

    case = host_call()
    with device_allocator(Small()), open_program("mixed_host_cuda") as program:
        with pytest.raises(MemoryAllocationFailedError) as caught:
            program.load_method("forward2")
        assert "has 7 bytes free, not 33,554,432" in str(caught.value)
        assert "forward2" in str(caught.value)
        assert "buffer 2" in str(caught.value)
        method = program.load_method("forward")
        assert case.compare(method.execute(case.inputs)[0]) <= case.tolerance


@pytest.mark.parametrize("name", ["linear_relu", "small_cnn", "kv_cache"])
def test_a_delegate_cannot_be_mapped_to_the_host(name: str) -> None:
    error = refusal(NotSupportedError, name, "forward", device_map={"cuda": "cpu"})
    assert "compiled for CUDA and was sent to cpu" in str(error)


def test_native_code_is_refused_with_its_digest() -> None:
    settings = {"device_map": {"cuda": "cpu"}, "native_code": "refuse"}
    text = str(refusal(NotSupportedError, "linear_relu", "forward", **settings))
    assert "native code" in text
    assert "c91725690bcc94b9fe63f48b39ea1acd12073a9593d30fda57d9b927dbac4475" in text
    assert "native_code" in text.partition("hint:")[2]


def test_the_environment_refuses_native_code_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTERON_NATIVE_CODE", "refuse")
    error = refusal(NotSupportedError, "linear_relu", "forward", device_map={"cuda": "cpu"})
    assert "native code" in str(error)


def test_weights_that_were_not_given_are_named() -> None:
    program = Runtime.get().load_program(
        fixtures.pte_path("linear_relu"), device_map={"cuda": "cpu"}
    )
    with program, pytest.raises(NotFoundError) as caught:
        program.load_method("forward")
    assert "cuda_fqn_weight:cuda:l.weight" in str(caught.value)
    assert "data_path" in str(caught.value)


def test_a_delegate_alone_names_the_device_that_is_missing() -> None:
    from pteron.backends.cuda import CudaBackend

    program = fixtures.open_program("linear_relu")
    with pytest.raises(NotFoundError) as caught:
        CudaBackend().init(program.context("forward", torch.device(MISSING)))
    assert f"runs on {MISSING}, and there is none" in str(caught.value)
    assert f"sees {torch.cuda.device_count()} CUDA device" in str(caught.value)


@pytest.mark.parametrize("verb", ["verify", "inspect"])
@pytest.mark.parametrize("name", fixtures.NAMES)
def test_the_command_line_reads_every_program(name: str, verb: str) -> None:
    source = Path(__file__).parents[2] / "src"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pteron", verb, str(fixtures.pte_path(name))),
            *("--data", str(fixtures.ptd_path(name))),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": f"{source}", "PATH": ""},
    )
    assert (done.returncode, done.stderr) == (0, "")
    program = fixtures.open_program(name)
    for key in program.data.keys():  # noqa: SIM118 - it is no mapping
        if key.endswith("_so_blob"):
            assert key.removesuffix("_so_blob") in done.stdout
