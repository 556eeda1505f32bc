"""The CUDA backend on code that AOTInductor compiled for the host: all of it but the GPU."""

from __future__ import annotations

import gc
import os
import shutil
import threading
import weakref
from pathlib import Path

import pytest
import torch

from pteron.backends.cuda.container import ConstantKind
from pteron.errors import (
    DelegateInvalidCompatibilityError,
    DelegateInvalidHandleError,
    DelegateMemoryAllocationFailedError,
    InternalError,
    InvalidProgramError,
    NotFoundError,
    NotSupportedError,
)
from pteron.memory.host_view import flat_tensor
from support.aoti import Blobs, HostBackend, HostDelegate, flat_delegate, model, named_delegate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler"),
]


@pytest.fixture(scope="module")
def cache() -> HostDelegate:
    return named_delegate("cache")


@pytest.fixture(scope="module")
def batch() -> HostDelegate:
    return named_delegate("batch")


def slot(tensor: torch.Tensor) -> torch.Tensor:
    """Return memory of a tensor's shape that cannot be resized, as a plan's slot."""
    arena = torch.full((tensor.numel() * tensor.element_size(),), 255, dtype=torch.uint8)
    return torch.from_dlpack(arena).view(tensor.dtype).view(tensor.shape)


def cache_outputs() -> tuple[torch.Tensor, torch.Tensor]:
    return slot(torch.empty(1, 4)), slot(torch.empty(3, 4))


STEPS = [(torch.arange(8.0).view(1, 8) * step, torch.tensor([step % 3])) for step in range(5)]


def run_steps(delegate: object, expected: torch.nn.Module) -> None:
    x, at = torch.empty(1, 8), torch.empty(1, dtype=torch.int64)
    outputs = cache_outputs()
    call = delegate.bind([x, at, *outputs])
    for given_x, given_at in STEPS:
        x.copy_(given_x)
        at.copy_(given_at)
        call()
        torch.testing.assert_close(list(outputs), list(expected(given_x, given_at)))


def test_runs_and_keeps_state_from_call_to_call(cache: HostDelegate) -> None:
    delegate = HostBackend().init(cache.context())
    run_steps(delegate, model("cache")[0])
    delegate.close()


def test_reset_brings_the_first_values_back_in_place(cache: HostDelegate) -> None:
    delegate = HostBackend().init(cache.context())
    address = delegate.state["cache"].data_ptr()
    run_steps(delegate, model("cache")[0])
    assert not (delegate.state["cache"] == 0.5).all()
    delegate.reset()
    assert (delegate.state["cache"] == 0.5).all()
    assert delegate.state["cache"].data_ptr() == address
    run_steps(delegate, model("cache")[0])


def test_state_is_named_and_can_be_written(cache: HostDelegate) -> None:
    delegate = HostBackend().init(cache.context())
    assert set(delegate.state) == {"cache"}
    delegate.state["cache"].fill_(3.0)
    outputs = cache_outputs()
    delegate.bind([torch.zeros(1, 8), torch.tensor([0]), *outputs])()
    assert (outputs[1][1:] == 3.0).all()


def test_the_container_tells_weights_from_buffers(cache: HostDelegate) -> None:
    delegate = HostBackend().init(cache.context())
    kinds = {c.fqn: c.kind for c in delegate._container.constants}
    assert kinds["cache"] is ConstantKind.BUFFER
    assert kinds["project.weight"] is ConstantKind.PARAMETER


def test_two_instances_share_weights_and_no_state(cache: HostDelegate) -> None:
    shared: dict = {}
    one, two = (HostBackend().init(cache.context(program_store=shared)) for _ in range(2))
    for name, tensor in one._constants.tensors.items():
        other = two._constants.tensors[name]
        assert (tensor.data_ptr() == other.data_ptr()) == (tensor.shape != (3, 4)), name
    expected = [model("cache")[0], model("cache")[0]]
    run_steps(one, expected[0])
    run_steps(two, expected[1])
    run_steps(one, expected[0])


def test_methods_with_one_state_store_share_the_state_that_they_name(
    cache: HostDelegate, batch: HostDelegate
) -> None:
    stores: dict = {"program_store": {}, "state_store": {}}
    writer = HostBackend().init(cache.context(**stores))
    reader = HostBackend().init(batch.context(**stores))
    assert writer.state_tensors()[0].data_ptr() == reader.state_tensors()[0].data_ptr()
    expected_writer = model("cache")[0]
    run_steps(writer, expected_writer)
    expected_reader = model("batch")[0]
    expected_reader.cache.copy_(expected_writer.cache)
    output = slot(torch.empty(2, 4))
    reader.bind([torch.ones(2, 8), output])()
    torch.testing.assert_close(output, expected_reader(torch.ones(2, 8)))


def test_outputs_take_the_shape_of_the_call(batch: HostDelegate) -> None:
    delegate = HostBackend().init(batch.context())
    expected = model("batch")[0]
    x, output = slot(torch.empty(64, 8)), slot(torch.empty(64, 4))
    call = delegate.bind([x, output])
    for rows in (64, 1, 7, 64):
        x.resize_(rows, 8).copy_(torch.randn(rows, 8))
        call()
        torch.testing.assert_close(output, expected(x))


def test_an_output_without_a_place_takes_over_the_result(batch: HostDelegate) -> None:
    delegate = HostBackend().init(batch.context())
    x, output = torch.randn(3, 8), torch.empty(0)
    call = delegate.bind([x, output])
    call()
    first = output.detach()
    kept = first.clone()
    x.mul_(2)
    call()
    assert output.data_ptr() != first.data_ptr()
    torch.testing.assert_close(first, kept)
    torch.testing.assert_close(output, model("batch")[0](x))


def test_an_output_whose_place_was_fixed_later_is_copied_to(batch: HostDelegate) -> None:
    delegate = HostBackend().init(batch.context())
    x, output = torch.randn(3, 8), torch.empty(0)
    call = delegate.bind([x, output])
    call()
    output.set_(slot(torch.empty(3, 4)))
    address = output.data_ptr()
    call()
    assert output.data_ptr() == address
    torch.testing.assert_close(output, model("batch")[0](x))


def test_a_result_belongs_to_its_taker_alone(batch: HostDelegate) -> None:
    delegate = HostBackend().init(batch.context())
    (result,) = delegate._container.run([torch.randn(3, 8)], None)
    assert result._use_count() == 1, "a reference is left behind: every call would leak"


@pytest.mark.parametrize("kind", ["transposed", "strided", "misaligned"])
def test_inputs_that_are_not_as_compiled_are_read_by_their_values(
    batch: HostDelegate, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    values = torch.randn(3, 8)
    x = {
        "transposed": values.t().contiguous().t(),
        "strided": torch.zeros(3, 16)[:, ::2].copy_(values),
        "misaligned": torch.zeros(25)[1:].view(3, 8).copy_(values),
    }[kind]
    output = torch.empty(0)
    HostBackend().init(batch.context()).bind([x, output])()
    torch.testing.assert_close(output, model("batch")[0](values))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("legacy", [False, True])
def test_flat_weights_run_and_reset(legacy: bool) -> None:
    delegate = HostBackend().init(flat_delegate("cache", legacy=legacy).context())
    assert delegate.hides_state
    assert delegate.state_tensors() == []
    run_steps(delegate, model("cache")[0])
    before = delegate._container
    delegate.reset()
    assert delegate._container is not before
    assert before.closed
    run_steps(delegate, model("cache")[0])


def test_a_flat_blob_that_is_too_short_is_refused() -> None:
    flat = flat_delegate("cache", legacy=False)
    data = Blobs({**flat.data, "w_weights_blob": flat.data["w_weights_blob"][:-64]})
    with pytest.raises(DelegateInvalidCompatibilityError, match=r"reads \d+ bytes .* has \d+"):
        HostBackend().init(HostDelegate(flat.payload, data).context())


def test_flat_weights_that_are_not_there_are_named() -> None:
    flat = flat_delegate("cache", legacy=False)
    data = Blobs({"code_so_blob": flat.data["code_so_blob"]})
    with pytest.raises(NotFoundError, match="w_weights_blob"):
        HostBackend().init(HostDelegate(flat.payload, data).context())


def test_constants_that_the_payload_does_not_name_are_refused(cache: HostDelegate) -> None:
    payload = cache.payload.replace(b"project.weight", b"project.weighs")
    data = Blobs({k.replace("weight:cpu:project.weight", "weight:cpu:project.weighs"): v
                  for k, v in cache.data.items()})  # fmt: skip
    with pytest.raises(DelegateInvalidCompatibilityError, match=r"project\.weight"):
        HostBackend().init(HostDelegate(payload, data).context())


def test_native_code_is_refused_with_its_digest(cache: HostDelegate) -> None:
    digest = cache.payload[14:78].decode()
    with pytest.raises(NotSupportedError, match=digest) as refusal:
        HostBackend().init(cache.context(native_code=False))
    assert "native_code" in str(refusal.value)


def test_memory_goes_when_the_last_share_goes(cache: HostDelegate) -> None:
    shared: dict = {}
    one, two = (HostBackend().init(cache.context(program_store=shared)) for _ in range(2))
    storages = [weakref.ref(s) for d in (one, two) for s in d._constants._storages]
    one.close()
    gc.collect()
    assert sum(s() is not None for s in storages) == len(storages) - 1, "its state alone is free"
    two.close()
    gc.collect()
    assert all(s() is None for s in storages)


def test_weights_come_from_the_allocator_that_is_given(cache: HostDelegate) -> None:
    asked: list[tuple[int, torch.device]] = []

    def allocate(nbytes: int, device: torch.device) -> torch.Tensor:
        asked.append((nbytes, device))
        return torch.empty(nbytes, dtype=torch.uint8, device=device)

    delegate = HostBackend().init(cache.context(allocate=allocate))
    assert sorted(n for n, _ in asked) == sorted(
        len(v) for k, v in cache.data.items() if k.startswith("cuda_fqn")
    )
    run_steps(delegate, model("cache")[0])


def test_no_memory_for_weights_leaves_nothing_behind(cache: HostDelegate) -> None:
    from pteron.errors import MemoryAllocationFailedError

    held: list[weakref.ref] = []

    def allocate(nbytes: int, device: torch.device) -> torch.Tensor:
        if held:
            raise MemoryAllocationFailedError(f"no {nbytes} bytes", hint="buy some")
        tensor = torch.empty(nbytes, dtype=torch.uint8)
        held.append(weakref.ref(tensor))
        return tensor

    with pytest.raises(DelegateMemoryAllocationFailedError, match=r"constant '.*' of \d+ bytes"):
        HostBackend().init(cache.context(allocate=allocate))
    gc.collect()
    assert held[0]() is None


def test_a_closed_delegate_says_so(cache: HostDelegate) -> None:
    delegate = HostBackend().init(cache.context())
    call = delegate.bind([*STEPS[0], *cache_outputs()])
    delegate.close()
    delegate.close()
    assert delegate.closed
    for use in (call, delegate.reset, lambda: delegate.bind([])):
        with pytest.raises(DelegateInvalidHandleError, match="closed"):
            use()


def test_a_wrong_number_of_arguments_is_refused(cache: HostDelegate) -> None:
    delegate = HostBackend().init(cache.context())
    with pytest.raises(InvalidProgramError, match=r"3 arguments .* 2 inputs and 2 outputs"):
        delegate.bind([*STEPS[0], torch.empty(1, 4)])


def test_an_argument_that_is_no_tensor_is_refused(cache: HostDelegate) -> None:
    delegate = HostBackend().init(cache.context())
    with pytest.raises(NotSupportedError, match="argument 1 is 7"):
        delegate.bind([STEPS[0][0], 7, *cache_outputs()])


def test_an_argument_elsewhere_is_refused_with_both_places(cache: HostDelegate) -> None:
    delegate = HostBackend().init(cache.context())
    x = torch.empty(1, 8, device="meta")
    with pytest.raises(NotSupportedError, match=r"argument 0 is on meta.* on cpu"):
        delegate.bind([x, STEPS[0][1], *cache_outputs()])


def test_a_result_of_another_type_is_refused(batch: HostDelegate) -> None:
    delegate = HostBackend().init(batch.context())
    call = delegate.bind([torch.ones(2, 8), slot(torch.empty(2, 4, dtype=torch.int32))])
    with pytest.raises(DelegateInvalidCompatibilityError, match=r"torch.int32 .* torch.float32"):
        call()


def test_a_failing_call_of_the_container_gives_its_text(
    cache: HostDelegate, capfd: pytest.CaptureFixture[str]
) -> None:
    from pteron.backends.cuda.container import Container
    from pteron.backends.cuda.describe import check_delegate
    from pteron.backends.cuda.shared_object import load_shared_object

    checked = check_delegate(
        memoryview(cache.payload), cache.data, method_name="forward", where="test"
    )
    code = load_shared_object(checked, where="test")
    with pytest.raises(InternalError, match=r"CreateWithDevice failed .*Invalid device: toaster"):
        Container(code, "toaster", where="test")
    capfd.readouterr()  # the compiled code speaks to stderr itself


def test_code_is_loaded_once_and_cannot_be_swapped(cache: HostDelegate) -> None:
    one, two = (HostBackend().init(cache.context()) for _ in range(2))
    assert one._code is two._code
    link = str(Path(f"/proc/self/fd/{one._code.descriptor}").readlink())
    assert link.startswith("/memfd:"), link
    with pytest.raises(PermissionError):
        os.pwrite(one._code.descriptor, b"x", 0)


def test_two_libraries_are_not_taken_for_each_other(
    cache: HostDelegate, batch: HostDelegate
) -> None:
    one, two = HostBackend().init(cache.context()), HostBackend().init(batch.context())
    assert one._container.num_inputs == 2
    assert two._container.num_inputs == 1


def test_other_threads_run_while_compiled_code_does(batch: HostDelegate) -> None:
    delegate = HostBackend().init(batch.context())
    x = torch.randn(64, 8)
    failures: list[str] = []
    expected = model("batch")[0](x)

    def work() -> None:
        output = torch.empty(0)
        call = delegate.bind([x, output])
        for _ in range(200):
            call()
        if not torch.allclose(output, expected):
            failures.append("wrong")

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_the_bytes_of_a_view_are_where_they_are() -> None:
    assert flat_tensor(memoryview(b"abc"), torch.uint8).tolist() == [97, 98, 99]
