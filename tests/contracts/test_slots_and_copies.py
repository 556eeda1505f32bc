"""DESIGN, P8 to P11: slots that hold, copies that are made once, bytes that are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import pytest
import torch

from pteron import Program, Runtime
from pteron.backends.interface import Backend, BackendInitContext, DelegateHandle
from pteron.errors import (
    InvalidArgumentError,
    NotFoundError,
)
from pteron.memory.device_allocator import device_allocator
from pteron.memory.hierarchical_allocator import fixed_slot
from support import device_programs as programs
from support.demo_backend import DemoBackend
from support.device_programs import pair
from support.programs import Kept
from support.tagged_device import TaggedDevice


def opened(kept: Kept, **facts: Any) -> Program:
    return Runtime.get().load_program(kept.pte, **facts)


class Copies:
    """Counts calls of ``Tensor.copy_``. A method switches dispatch modes off."""

    def __enter__(self) -> Copies:
        self.count = 0
        copy = torch._C.TensorBase.copy_

        def counted(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return copy(tensor, source)

        torch.Tensor.copy_ = counted  # type: ignore[assignment, method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        del torch.Tensor.copy_


# ---- P8: slots -----------------------------------------------------------------------------------


def grow(self: torch.Tensor, other: torch.Tensor, *, alpha: float, out: torch.Tensor) -> None:
    """Write more than was planned, as a kernel for another shape would."""
    out.resize_(64).fill_(7.0)


def test_a_kernel_that_outgrows_its_slot_is_stopped_and_its_neighbours_are_whole() -> None:
    program = opened(programs.host_sum(), kernels={"aten::add.out": grow})
    method = program.load_method()
    a, b = pair()
    with pytest.raises(InvalidArgumentError) as caught:
        method.execute([a, b])
    text = str(caught.value)
    assert "a result outgrows the memory that the program plans for it" in text
    assert "resize storage that is not resizable" in text
    assert "method 'forward', instruction 0 failed:" in text
    assert "aten::add.out(" in text
    torch.testing.assert_close(method.values[0], a)
    torch.testing.assert_close(method.values[1], b)


def test_a_delegate_that_outgrows_its_slot_is_stopped(
    device: TaggedDevice, demo: DemoBackend
) -> None:
    method = opened(programs.device_sum()).load_method()
    (handle,) = demo.handles
    a, b, out = handle.args
    method.execute(pair())
    with pytest.raises(RuntimeError, match="not resizable"):
        out.resize_(100)
    torch.testing.assert_close((a, b), pair())


def test_empty_slots_and_whole_arenas_are_slots_too() -> None:
    arena = torch.zeros(64, dtype=torch.uint8)
    assert fixed_slot(arena, 64, 0).numel() == 0
    whole = fixed_slot(arena, 0, 64)
    assert whole.data_ptr() == arena.data_ptr()
    middle = fixed_slot(arena, 16, 16)
    assert middle.data_ptr() == arena.data_ptr() + 16
    for slot in (middle, whole, fixed_slot(arena, 32, 0)):
        with pytest.raises(RuntimeError, match="not resizable"):
            slot.resize_(slot.numel() + 1)


# ---- P9: copies ----------------------------------------------------------------------------------


def test_each_copy_of_the_file_is_made_once(device: TaggedDevice, demo: DemoBackend) -> None:
    method = opened(programs.device_sum()).load_method()
    assert device.copies == []
    for _ in range(2):
        device.copies.clear()
        device.synchronized.clear()
        method.execute(pair())
        assert device.copies == [("h2d", 16), ("h2d", 16), ("d2h", 16)]
        assert device.synchronized == ["cuda:0"]


class SumAndMore(Backend):
    """Fills two outputs from two inputs."""

    id: ClassVar[str] = "BackendWithCompilerDemo"

    def init(self, context: BackendInitContext) -> DelegateHandle:
        return _SumAndMoreHandle()


class _SumAndMoreHandle(DelegateHandle):
    def bind(self, args: Sequence[Any]) -> Callable[[], None]:
        a, b, one, two = args

        def call() -> None:
            one.copy_(a + b)
            two.copy_(a + b + b)

        return call


def test_consecutive_copies_to_the_host_are_waited_for_once(device: TaggedDevice) -> None:
    program = opened(
        programs.device_two_outputs(), backends={"BackendWithCompilerDemo": SumAndMore()}
    )
    a, b = pair()
    torch.testing.assert_close(program.load_method().execute([a, b]), [a + b, a + b + b])
    assert [kind for kind, _ in device.copies] == ["h2d", "h2d", "d2h", "d2h"]
    assert device.synchronized == ["cuda:0"]


@pytest.fixture
def late_device(demo: DemoBackend) -> Iterator[TaggedDevice]:
    """Make ``cuda`` devices that do nothing before the host waits for them."""
    allocator = TaggedDevice(late=True)
    demo.device = allocator
    with device_allocator(allocator):
        yield allocator


def test_a_late_device_gives_the_right_numbers(late_device: TaggedDevice) -> None:
    method = opened(programs.device_scaled()).load_method()
    for _ in range(3):
        a, b = torch.randn(4), torch.randn(4)
        torch.testing.assert_close(method.execute([a, b]), [programs.Scaled()(a, b)])
        assert len(late_device.synchronized) == 1  # where the result comes back, and nowhere else
        late_device.synchronized.clear()


def test_the_next_inputs_wait_for_the_copies_of_the_last(late_device: TaggedDevice) -> None:
    """Nothing comes back to the host, so that no copy to it waits for the device."""
    method = opened(programs.resident_output_unplanned()).load_method()
    pairs = [(torch.randn(4), torch.randn(4)) for _ in range(3)]
    outputs = [method.execute(inputs)[0] for inputs in pairs]
    late_device.synchronize(torch.device("cuda:0"))
    torch.testing.assert_close(outputs, [a + b for a, b in pairs])


@pytest.mark.parametrize(
    "make", [programs.overwritten_source, programs.overwritten_source_after_a_jump]
)
def test_a_source_is_not_overwritten_while_the_device_reads_it(
    make: Callable[[], Kept], late_device: TaggedDevice
) -> None:
    method = opened(make()).load_method()
    slots = method._table.memory_plan.slots
    assert (slots[0].buffer, slots[0].offset) == (slots[3].buffer, slots[3].offset)
    x, y = pair()
    torch.testing.assert_close(method.execute([x, y]), [x, y + y])


def test_each_device_is_waited_for(late_device: TaggedDevice) -> None:
    method = opened(programs.back_from_two_devices()).load_method()
    x, y = pair()
    torch.testing.assert_close(method.execute([x, y]), [x, y])
    assert sorted(late_device.synchronized) == ["cuda:0", "cuda:1"]


def test_a_failed_call_waits_too(late_device: TaggedDevice) -> None:
    def fail(self: Any, other: Any, alpha: Any, *, out: Any) -> None:
        raise RuntimeError("no")

    kernels = {"aten::add.out": fail}
    method = opened(programs.overwritten_source(), kernels=kernels).load_method()
    with pytest.raises(InvalidArgumentError, match="no"):
        method.execute(pair())
    assert late_device.synchronized == ["cuda:0"]


def test_copies_follow_the_real_places(no_device: TaggedDevice, demo: DemoBackend) -> None:
    """With both sides on the host, an h2d copy is a copy on the host."""
    method = opened(programs.device_sum(), device_map={"cuda": "cpu"}).load_method()
    torch.testing.assert_close(method.execute(pair()), [sum(pair())])
    assert no_device.copies == []
    assert no_device.synchronized == []


def test_copies_between_two_buffers_of_one_device_are_the_devices_own(
    device: TaggedDevice, demo: DemoBackend
) -> None:
    method = opened(programs.device_sum(), device_map={"cpu": "cuda:0"}).load_method()
    torch.testing.assert_close(method.execute(pair()), [sum(pair())])
    assert device.copies == []


def test_host_arenas_of_a_device_method_are_pinned(device: TaggedDevice, demo: DemoBackend) -> None:
    program = opened(programs.host_and_device())
    method = program.load_method("forward2")
    assert [(b.device, b.pinned) for b in method.memory] == [("cpu", True), ("cuda:0", False)]
    assert [(b.kind, b.nbytes) for b in device.live] == [("pinned", 80), ("arena", 48)]
    assert [b.pinned for b in program.load_method("forward").memory] == [False]


def test_a_device_that_pins_nothing_takes_any_host_arena(
    device: TaggedDevice, demo: DemoBackend
) -> None:
    device.pins = False
    method = opened(programs.device_sum()).load_method()
    assert [b.pinned for b in method.memory] == [False, False]
    torch.testing.assert_close(method.execute(pair()), [sum(pair())])


# ---- P10: the caller's tensors -------------------------------------------------------------------


def test_a_planned_input_is_copied_once() -> None:
    method = opened(programs.host_sum()).load_method()
    with Copies() as copies:
        method.set_inputs(pair())
    assert copies.count == 2


def test_an_unplanned_input_on_the_right_device_is_not_copied(
    device: TaggedDevice, demo: DemoBackend
) -> None:
    method = opened(programs.resident_unplanned()).load_method()
    a, b = pair()
    with Copies() as copies:
        method.set_inputs([a, b])
    assert copies.count == 0
    assert [value.data_ptr() for value in demo.handles[0].args[:2]] == [a.data_ptr(), b.data_ptr()]
    method.run()
    (output,) = method.get_outputs()
    torch.testing.assert_close(output, a + b)
    assert device.place(output) == "cuda:0"
    assert device.copies == []


def test_an_unplanned_output_is_fresh_memory_each_time(
    device: TaggedDevice, demo: DemoBackend
) -> None:
    method = opened(programs.resident_unplanned()).load_method()
    a, b = pair()
    first, second = method.execute([a, b]), method.execute([b, b])
    torch.testing.assert_close((first, second), ([a + b], [b + b]))


def test_outputs_planned_on_a_device_are_returned_there(
    device: TaggedDevice, demo: DemoBackend
) -> None:
    method = opened(programs.resident_planned()).load_method()
    a, b = pair()
    torch.testing.assert_close(method.execute([a, b]), [a + b])
    (output,) = method.execute([a, b], borrow_outputs=True)
    assert device.place(output) == "cuda:0"
    assert device.copies == []  # the file asks for none


def test_inputs_on_the_device_and_outputs_on_the_host(
    device: TaggedDevice, demo: DemoBackend
) -> None:
    method = opened(programs.resident_input_only()).load_method()
    a, b = pair()
    torch.testing.assert_close(method.execute([a, b]), [a + b])
    assert device.copies == [("d2h", 16)]
    assert [value.data_ptr() for value in demo.handles[0].args[:2]] == [a.data_ptr(), b.data_ptr()]


def test_device_inputs_without_a_plan_need_the_device(
    no_device: TaggedDevice, demo: DemoBackend
) -> None:
    """Its buffers are empty, so that only the tags of inputs and outputs name the device."""
    program = opened(programs.resident_unplanned())
    with pytest.raises(NotFoundError) as caught:
        program.load_method()
    assert "without a place in the plan" in str(caught.value)
    assert "this machine has no cuda:0" in str(caught.value)
    moved = opened(programs.resident_unplanned(), device_map={"cuda": "cpu"}).load_method()
    torch.testing.assert_close(moved.execute(pair()), [sum(pair())])


# ---- P11: planned and allocated ------------------------------------------------------------------


def test_planned_and_allocated_bytes_agree(device: TaggedDevice, demo: DemoBackend) -> None:
    program = opened(programs.host_and_device())
    methods = [program.load_method(name) for name in sorted(program.method_names)]
    report = [line for method in methods for line in method.memory]
    assert [(line.method, line.buffer, line.device, line.planned_bytes) for line in report] == [
        ("forward", 1, "cpu", 272),
        ("forward2", 1, "cpu", 80),
        ("forward2", 2, "cuda:0", 48),
        ("forward3", 1, "cpu", 80),
        ("forward3", 2, "cuda:1", 48),
    ]
    assert all(line.allocated_bytes == line.planned_bytes for line in report)
    for place in ("cuda:0", "cuda:1"):
        assert device.live_bytes(place) == sum(
            line.allocated_bytes for line in report if line.device == place
        )
