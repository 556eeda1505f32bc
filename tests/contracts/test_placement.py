"""DESIGN, P1 to P7: every planned buffer lives where the file says."""

from __future__ import annotations

import gc
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from pteron import Method, Program, PteronError, Runtime
from pteron.backends.interface import Backend, BackendInitContext, DelegateHandle
from pteron.errors import (
    InvalidArgumentError,
    InvalidProgramError,
    MemoryAllocationFailedError,
    NotFoundError,
    NotSupportedError,
)
from pteron.format.schema import Device, DeviceType
from pteron.memory.device_allocator import (
    HostAllocator,
    find_device_allocator,
    register_device_allocator,
)
from support import device_programs as programs
from support.demo_backend import DemoBackend
from support.device_programs import pair
from support.programs import Kept
from support.state_programs import shared_by_name_with_a_device
from support.tagged_device import TaggedDevice

CUDA0 = Device(DeviceType.CUDA, 0)
HOST = Device(DeviceType.CPU, 0)
PEER = Path(__file__).parents[1] / "fixtures" / "peer_modules"


def opened(kept: Kept, **facts: Any) -> Program:
    return Runtime.get().load_program(kept.pte, **facts)


def scaled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return programs.Scaled()(a, b)


def host_work(a: torch.Tensor) -> torch.Tensor:
    return programs.HostWork()(a)


def planned(method: Method) -> dict[int, tuple[int, torch.Tensor]]:
    """Return buffer number and tensor of every planned value."""
    slots = method._table.memory_plan.slots
    return {index: (slot.buffer, method.values[index]) for index, slot in slots.items()}


# ---- P1: the buffer's tag decides ----------------------------------------------------------------


def test_a_buffer_without_an_entry_is_on_the_host(device: TaggedDevice, demo: DemoBackend) -> None:
    program = opened(programs.device_sum())
    assert program.metadata("forward").planned_buffers() == ((32, HOST), (48, CUDA0))
    method = program.load_method()
    assert [(b.buffer, b.planned_device, b.device) for b in method.memory] == [
        (1, "cpu", "cpu"),
        (2, "cuda:0", "cuda:0"),
    ]


def test_every_value_lies_in_the_memory_of_its_buffer(
    device: TaggedDevice, demo: DemoBackend
) -> None:
    method = opened(programs.device_scaled()).load_method()
    places = {1: "cpu", 2: "cuda:0"}
    found = {index: device.place(tensor) for index, (_, tensor) in planned(method).items()}
    expected = {index: places[buffer] for index, (buffer, _) in planned(method).items()}
    assert found == expected
    assert sorted(found.values()).count("cuda:0") == 3
    # The delegate is handed those very tensors, not copies of them.
    assert [device.place(value) for value in demo.handles[0].args] == ["cuda:0"] * 3


def test_slots_lie_at_their_planned_offsets(device: TaggedDevice, demo: DemoBackend) -> None:
    method = opened(programs.device_sum()).load_method()
    for index, slot in method._table.memory_plan.slots.items():
        block = device.block(method.values[index])
        assert block is not None
        assert method.values[index].data_ptr() - block.begin == slot.offset


def test_a_placed_program_gives_the_right_numbers(device: TaggedDevice, demo: DemoBackend) -> None:
    method = opened(programs.device_scaled()).load_method()
    for _ in range(2):
        a, b = torch.randn(4), torch.randn(4)
        torch.testing.assert_close(method.execute([a, b]), [scaled(a, b)])


def test_a_tensor_that_alone_is_tagged_follows_its_buffer(
    device: TaggedDevice, demo: DemoBackend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="pteron")
    program = opened(programs.tags_without_plan())
    plan = program.pte.program.execution_plan[0]
    assert {value.device for value in plan.values} == {CUDA0}
    assert program.metadata("forward").input_tensor_meta(0).device() == HOST
    method = program.load_method()
    assert [device.place(tensor) for _, tensor in planned(method).values()] == ["cpu"] * 3
    assert device.arenas == []
    torch.testing.assert_close(method.execute(pair()), [sum(pair())])
    (line,) = [r.getMessage() for r in caplog.records if "are tagged" in r.getMessage()]
    assert "'forward'" in line
    assert "cuda:0" in line
    assert "buffer 1" in line


def test_a_tensor_that_contradicts_its_buffer_is_refused(
    device: TaggedDevice, demo: DemoBackend
) -> None:
    with pytest.raises(InvalidProgramError) as caught:
        opened(programs.contradicting_tags()).load_method()
    assert len(caught.value.violations) == 3
    text = str(caught.value)
    assert "the tensor is tagged cpu, planned buffer 2 is tagged cuda:0" in text
    assert "%2 float32[4]" in text
    assert device.requests == []


# ---- P2: arenas of one method, scratch of several ------------------------------------------------


def test_host_methods_share_scratch_as_large_as_the_largest_user() -> None:
    program = opened(programs.small_host_big_device())
    small, large = program.load_method("small"), program.load_method("large")
    (small_buffer,), (large_buffer,) = small.memory, large.memory
    assert (small_buffer.planned_bytes, large_buffer.planned_bytes) == (48, 272)
    # Not 8192, which the device method plans on the host: it shares nothing and adds nothing.
    assert small_buffer.allocated_bytes == large_buffer.allocated_bytes == 272
    assert small_buffer.shared
    assert large_buffer.shared
    arenas = [m._memory.allocator.arenas[1].memory.data_ptr() for m in (small, large)]
    assert arenas[0] == arenas[1]


def test_a_method_with_a_device_buffer_shares_no_arena(
    device: TaggedDevice, demo: DemoBackend
) -> None:
    program = opened(programs.small_host_big_device())
    placed = program.load_method("device")
    assert [b.shared for b in placed.memory] == [False, False]
    assert [b.allocated_bytes for b in placed.memory] == [8192, 48]
    scratch = program.load_method("large")._memory.allocator.arenas[1].memory
    assert scratch.data_ptr() != placed._memory.allocator.arenas[1].memory.data_ptr()


def test_buffer_numbers_are_local_to_a_method(device: TaggedDevice, demo: DemoBackend) -> None:
    """``forward2`` and ``forward3`` both call theirs 2, on two devices."""
    program = opened(programs.host_and_device())
    methods = [program.load_method(name) for name in ("forward2", "forward3")]
    assert [m.memory[1].device for m in methods] == ["cuda:0", "cuda:1"]
    assert device.arenas == [("cuda:0", 48), ("cuda:1", 48)]
    a, b = torch.randn(4), torch.randn(4)
    for method in methods:
        torch.testing.assert_close(method.execute([a, b]), [scaled(a, b)])


def test_a_new_instance_has_arenas_of_its_own() -> None:
    program = opened(programs.small_host_big_device())
    shared, own = program.load_method("small"), program.new_method("small")
    assert not own.memory[0].shared
    assert own.memory[0].allocated_bytes == 48
    arenas = [m._memory.allocator.arenas[1].memory.data_ptr() for m in (shared, own)]
    assert arenas[0] != arenas[1]


def test_methods_that_share_scratch_take_turns_and_others_do_not(
    device: TaggedDevice, demo: DemoBackend
) -> None:
    program = opened(programs.small_host_big_device())
    small, large = program.load_method("small"), program.load_method("large")
    own, placed = program.new_method("large"), program.load_method("device")
    waiting: dict[str, bool] = {}

    def attempt(name: str, method: Method) -> None:
        free = method._memory.lock.acquire(blocking=False)  # type: ignore[attr-defined]
        waiting[name] = not free
        if free:
            method._memory.lock.release()  # type: ignore[attr-defined]

    with small._memory.lock:
        for name, method in {"large": large, "own": own, "placed": placed}.items():
            thread = threading.Thread(target=attempt, args=(name, method))
            thread.start()
            thread.join()
    assert waiting == {"large": True, "own": False, "placed": False}


# ---- P3: arenas when a method is loaded, and refusal ---------------------------------------------


def test_opening_allocates_nothing(device: TaggedDevice, demo: DemoBackend) -> None:
    program = opened(programs.host_and_device())
    assert program.method_names == {"forward", "forward2", "forward3"}
    assert program.metadata("forward2").num_inputs() == 2
    assert device.requests == []
    program.load_method("forward")
    assert device.requests == []
    program.load_method("forward2")
    assert device.arenas == [("cuda:0", 48)]
    program.load_method("forward2")
    assert device.arenas == [("cuda:0", 48)]


def test_a_host_program_never_asks_a_device(device: TaggedDevice) -> None:
    method = opened(programs.host_sum()).load_method()
    torch.testing.assert_close(method.execute(pair()), [sum(pair())])
    assert device.requests == []
    assert device.copies == []


def test_a_device_that_is_not_there_is_refused_by_name(
    no_device: TaggedDevice, demo: DemoBackend
) -> None:
    program = opened(programs.host_and_device())
    assert str(program.metadata("forward2").memory_planned_buffer_device(1)) == "cuda:0"
    host = program.load_method("forward")
    a, b = torch.randn(4), torch.randn(4)
    before = host.execute([a])
    for _ in range(2):
        with pytest.raises(NotFoundError) as caught:
            program.load_method("forward2")
        text = str(caught.value)
        for word in ("'forward2'", "buffer 2", "48 bytes", "cuda:0", "this machine has no cuda:0"):
            assert word in text
        assert "hint:" in text
        assert caught.value.code == 0x20
    assert no_device.requests == []
    assert demo.handles == []
    torch.testing.assert_close(host.execute([a]), before)
    torch.testing.assert_close(before, [host_work(a)])
    torch.testing.assert_close(program.load_method("forward").execute([b]), [host_work(b)])


def test_a_kind_of_device_without_an_allocator_is_refused_by_name(demo: DemoBackend) -> None:
    program = opened(programs.device_sum(), device_map={"cuda": "privateuseone:0"})
    with pytest.raises(NotFoundError, match="no device allocator for device type 'privateuseone'"):
        program.load_method()


def test_a_failed_load_leaves_no_memory_on_a_device(device: TaggedDevice) -> None:
    """Not constants, nor scratch and state that methods share: all are on the device here."""
    backend = OnlyHost()
    program = opened(
        shared_by_name_with_a_device(), device_map={"cpu": "cuda"}, backends={backend.id: backend}
    )
    with pytest.raises(NotSupportedError) as caught:
        program.load_method("placed")
    assert len(device.arenas) >= 4
    del caught
    gc.collect()
    assert device.live == []
    ones = torch.ones(4)
    torch.testing.assert_close(program.load_method("forward").execute([ones]), [ones])
    assert device.live_bytes() > 0


class OnlyHost(Backend):
    """Refuses to run on any accelerator."""

    id: ClassVar[str] = "BackendWithCompilerDemo"

    def init(self, context: BackendInitContext) -> DelegateHandle:
        raise NotSupportedError(f"this delegate runs on the host, it was sent to {context.device}")


# ---- P4: out of memory ---------------------------------------------------------------------------


def test_a_full_device_is_refused_with_the_bytes_asked_for_and_free(
    device: TaggedDevice, demo: DemoBackend
) -> None:
    device.capacity = 40
    program = opened(programs.host_and_device())
    host = program.load_method("forward")
    a, b = torch.randn(4), torch.randn(4)
    with pytest.raises(MemoryAllocationFailedError) as caught:
        program.load_method("forward2")
    text = str(caught.value)
    for word in ("'forward2'", "buffer 2", "48 bytes", "cuda:0", "40 of 40 bytes free"):
        assert word in text
    assert caught.value.code == 0x21
    assert isinstance(caught.value, MemoryError)
    del caught
    gc.collect()
    assert device.live == []
    torch.testing.assert_close(host.execute([a]), [host_work(a)])
    device.capacity = 48
    torch.testing.assert_close(program.load_method("forward2").execute([a, b]), [scaled(a, b)])


# ---- P5: memory goes back ------------------------------------------------------------------------


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_closing_a_program_returns_its_memory(device: TaggedDevice, demo: DemoBackend) -> None:
    with opened(programs.device_scaled()) as program, without_collector():
        method = program.load_method()
        method.execute(pair())
        assert device.live_bytes() == 48
        program.close()
        assert device.live == []
    assert method.closed


def test_closing_a_method_returns_its_memory(device: TaggedDevice, demo: DemoBackend) -> None:
    program = opened(programs.device_scaled())
    with without_collector(), program.load_method() as method:
        method.execute(pair())
        method.close()
        assert device.live == []
    again = program.load_method()
    assert again is not method
    torch.testing.assert_close(again.execute(pair()), [scaled(*pair())])


def test_dropping_method_and_program_returns_their_memory(
    device: TaggedDevice, demo: DemoBackend
) -> None:
    with without_collector():
        program = opened(programs.device_scaled())
        method = program.load_method()
        outputs = method.execute(pair())
        del program
        torch.testing.assert_close(method.execute(pair()), outputs)
        assert device.live_bytes() == 48
        del method
        demo.handles.clear()
        assert device.live == []
    torch.testing.assert_close(outputs, [scaled(*pair())])


def test_outputs_that_were_handed_over_outlive_the_method(
    device: TaggedDevice, demo: DemoBackend
) -> None:
    program = opened(programs.resident_unplanned())
    (output,) = program.load_method().execute(pair())
    program.close()
    demo.handles.clear()
    gc.collect()
    assert device.live_bytes() == output.nbytes
    torch.testing.assert_close(output, sum(pair()))
    del output
    assert device.live_bytes() == 0


# ---- P6: device map ------------------------------------------------------------------------------


@pytest.mark.parametrize("mapping", [{"cuda": "cpu"}, {"cuda:0": torch.device("cpu")}])
def test_a_device_program_runs_on_the_host(
    mapping: dict[str, Any], no_device: TaggedDevice, demo: DemoBackend
) -> None:
    method = opened(programs.device_scaled(), device_map=mapping).load_method()
    a, b = torch.randn(4), torch.randn(4)
    torch.testing.assert_close(method.execute([a, b]), [scaled(a, b)])
    assert [(b.planned_device, b.device) for b in method.memory] == [
        ("cpu", "cpu"),
        ("cuda:0", "cpu"),
    ]
    assert demo.handles[0].context.device == torch.device("cpu")
    assert no_device.requests == []


def test_a_tag_moves_to_another_device(device: TaggedDevice, demo: DemoBackend) -> None:
    program = opened(programs.device_scaled(), device_map={"cuda:0": "cuda:1"})
    method = program.load_method()
    torch.testing.assert_close(method.execute(pair()), [scaled(*pair())])
    assert device.arenas == [("cuda:1", 48)]
    assert demo.handles[0].context.device == torch.device("cuda:1")


def test_the_exact_tag_wins_over_its_kind(device: TaggedDevice, demo: DemoBackend) -> None:
    program = opened(programs.host_and_device(), device_map={"cuda": "cpu", "cuda:1": "cuda:0"})
    assert program.load_method("forward2").memory[1].device == "cpu"
    assert program.load_method("forward3").memory[1].device == "cuda:0"


def test_a_host_program_moves_to_a_device_with_its_constants(device: TaggedDevice) -> None:
    program = opened(programs.host_and_device(), device_map={"cpu": "cuda"})
    method = program.load_method("forward")
    a = torch.randn(4)
    torch.testing.assert_close(method.execute([a]), [host_work(a)])
    assert ("cuda:0", 272) in device.arenas
    constants = [method.values[index] for index in method._table.constants]
    assert constants
    assert {device.place(constant) for constant in constants} == {"cuda:0"}


def test_constants_are_placed_once_for_all_methods(device: TaggedDevice, demo: DemoBackend) -> None:
    program = opened(programs.host_and_device(), device_map={"cpu": "cuda"})
    placed = [
        {m._table.values[i].data_ptr() for i in m._table.constants}
        for m in (program.load_method(name) for name in ("forward2", "forward3"))
    ]
    assert placed[0] == placed[1]


class OnlyCuda(Backend):
    """Refuses to run anywhere else."""

    id: ClassVar[str] = "BackendWithCompilerDemo"

    def init(self, context: BackendInitContext) -> DelegateHandle:
        if context.device.type != "cuda":
            raise NotSupportedError(f"this delegate runs on cuda, it was sent to {context.device}")
        raise AssertionError


def test_a_delegate_says_at_load_that_it_cannot_run_where_it_was_sent() -> None:
    program = opened(
        programs.device_scaled(),
        device_map={"cuda": "cpu"},
        backends={"BackendWithCompilerDemo": OnlyCuda()},
    )
    with pytest.raises(NotSupportedError) as caught:
        program.load_method()
    text = str(caught.value)
    assert "runs on cuda, it was sent to cpu" in text
    assert "method 'forward', delegate 0 (BackendWithCompilerDemo)" in text


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        ({"gpu": "cpu"}, "device_map: 'gpu' is not a tag that a program can have"),
        ({"cuda:x": "cpu"}, "device_map: 'cuda:x' is not a tag"),
        ({"cuda": "nowhere"}, "device_map: 'nowhere' is not a device that torch knows"),
    ],
)
def test_a_wrong_device_map_is_refused(mapping: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(text)):
        opened(programs.host_sum(), device_map=mapping).load_method()


# ---- P7: sizes and devices in bulk ---------------------------------------------------------------


def test_all_buffers_are_told_in_bulk() -> None:
    meta = opened(programs.device_sum()).metadata("forward")
    assert meta.num_memory_planned_buffers() == 2
    one_by_one = tuple(
        (meta.memory_planned_buffer_size(i), meta.memory_planned_buffer_device(i)) for i in (0, 1)
    )
    assert meta.planned_buffers() == one_by_one == ((32, HOST), (48, CUDA0))
    for ask in (meta.memory_planned_buffer_size, meta.memory_planned_buffer_device):
        for index in (2, -1):
            with pytest.raises(IndexError, match=f"planned buffer {index} of method 'forward'"):
                ask(index)


def test_the_peers_own_device_program(device: TaggedDevice, demo: DemoBackend) -> None:
    """``ModuleAddWithDevice.pte``: 32 bytes on the host, 48 on cuda:0, allocated once."""
    program = Runtime.get().load_program(PEER / "ModuleAddWithDevice.pte")
    meta = program.metadata("forward")
    assert [(size, str(place)) for size, place in meta.planned_buffers()] == [
        (32, "cpu"),
        (48, "cuda:0"),
    ]
    method = program.load_method("forward")
    assert device.arenas == [("cuda:0", 48)]
    places = [device.place(tensor) for _, tensor in planned(method).values()]
    assert sorted(places) == ["cpu"] * 3 + ["cuda:0"] * 3
    a, b = (torch.randn(meta.input_tensor_meta(i).sizes()) for i in (0, 1))
    torch.testing.assert_close(method.execute([a, b]), [a + b])
    program.close()
    assert device.live == []


# ---- allocators ----------------------------------------------------------------------------------


def test_a_kind_of_device_has_one_allocator(device: TaggedDevice) -> None:
    with pytest.raises(InvalidArgumentError, match="device type 'cpu' already has an allocator"):
        register_device_allocator(HostAllocator())
    assert find_device_allocator("cuda") is device
    assert find_device_allocator("warp_drive") is None


def test_errors_of_placement_are_pteron_errors() -> None:
    assert issubclass(MemoryAllocationFailedError, (PteronError, MemoryError))
    assert issubclass(NotFoundError, LookupError)
