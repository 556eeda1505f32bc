"""Cases of device placement. See also ``contracts/test_placement.py`` and ``tests/gpu``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from pteron import Program, Runtime
from pteron.errors import InvalidArgumentError
from pteron.memory.device_allocator import device_allocator
from support import device_programs as programs
from support import plain_programs
from support.demo_backend import DemoBackend, demo_backend
from support.device_programs import device_partitioner, pair, planning, skipping
from support.programs import Files, Kept, export, kept
from support.tagged_device import TaggedDevice


@pytest.fixture
def demo() -> Iterator[DemoBackend]:
    with demo_backend() as backend:
        yield backend


@pytest.fixture
def device() -> Iterator[TaggedDevice]:
    allocator = TaggedDevice()
    with device_allocator(allocator):
        yield allocator


ONES = torch.ones(4)


def opened(kept: Kept, **facts: Any) -> Program:
    return Runtime.get().load_program(kept.pte, **facts)


class StateInDelegate(nn.Module):
    """A buffer that a delegate reads, and that is written back after it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x)
        return self.seen * 2


def host_partitioner() -> Any:
    from executorch.exir.backend.test.device_util import CpuOnlyPartitioner

    return CpuOnlyPartitioner()


@kept
def state_in_delegate() -> Files:
    return export(StateInDelegate(), (ONES,), partitioner=[host_partitioner()])


@kept
def copied_unplanned() -> Files:
    """Copies at the border, and inputs and outputs that the plan does not place."""
    return export(
        programs.Sum(),
        pair(),
        partitioner=[device_partitioner()],
        memory_planning_pass=planning(alloc_graph_input=False, alloc_graph_output=False),
    )


@kept
def resident_output_only() -> Files:
    return export(
        programs.Sum(),
        pair(),
        partitioner=[device_partitioner()],
        propagate_device_config=skipping(inputs=False, outputs=True),
    )


def test_cases_55_and_63_planned_device_memory_is_run_from_python(
    device: TaggedDevice, demo: DemoBackend
) -> None:
    a, b = torch.randn(4), torch.randn(4)
    method = opened(programs.device_scaled()).load_method()
    torch.testing.assert_close(method.execute([a, b]), [programs.Scaled()(a, b)])
    assert device.arenas == [("cuda:0", 48)]


def test_case_56_every_way_of_loading_places_alike(device: TaggedDevice, demo: DemoBackend) -> None:
    kept = programs.device_sum()
    for source in (kept.pte, kept.bytes(), str(kept.pte)):
        program = Runtime.get().load_program(source)
        for method in (program.load_method(), program.new_method()):
            assert [b.device for b in method.memory] == ["cpu", "cuda:0"]
            torch.testing.assert_close(method.execute(pair()), [sum(pair())])


FLAGS: dict[str, tuple[Callable[[], Kept], list[str]]] = {
    "copied, planned": (programs.device_sum, ["h2d", "h2d", "d2h"]),
    "copied, unplanned": (copied_unplanned, ["h2d", "h2d", "d2h"]),
    "resident, planned": (programs.resident_planned, []),
    "resident, unplanned": (programs.resident_unplanned, []),
    "resident inputs": (programs.resident_input_only, ["d2h"]),
    "resident outputs": (resident_output_only, ["h2d", "h2d"]),
}


@pytest.mark.parametrize("flags", FLAGS)
def test_cases_57_and_58_every_mix_of_flags_runs(
    flags: str, device: TaggedDevice, demo: DemoBackend
) -> None:
    make, copies = FLAGS[flags]
    method = opened(make()).load_method()
    for _ in range(2):
        device.copies.clear()
        a, b = torch.randn(4), torch.randn(4)
        torch.testing.assert_close(method.execute([a, b]), [a + b])
        assert [kind for kind, _ in device.copies] == copies


def test_case_59_a_tensor_that_cannot_be_read_is_refused_with_its_device() -> None:
    method = opened(plain_programs.doubled()).load_method()
    with pytest.raises(InvalidArgumentError, match="on meta"):
        method.execute([torch.ones(2, 3, device="meta")])


def test_case_61_a_tag_without_a_plan_is_no_device_memory(
    device: TaggedDevice, demo: DemoBackend
) -> None:
    method = opened(programs.tags_without_plan()).load_method()
    torch.testing.assert_close(method.execute(pair()), [sum(pair())])
    assert device.requests == []


def test_case_64_the_operators_of_a_delegated_program_are_there() -> None:
    names = {op.full_name for op in opened(programs.device_scaled())._plan("forward").operators}
    assert names == {
        "aten::mul.out",
        "dim_order_ops::_to_dim_order_copy.out",
        "et_copy::_h2d_copy.out",
        "et_copy::_d2h_copy.out",
    }
    assert names <= Runtime.get().operator_registry.operator_names


def test_case_65_state_that_a_delegate_takes_keeps_its_address(demo: DemoBackend) -> None:
    method = opened(state_in_delegate()).load_method()
    eager = StateInDelegate()
    places = set()
    for _ in range(3):
        x = torch.randn(4)
        torch.testing.assert_close(method.execute([x]), [eager(x)])
        places.add(demo.handles[0].args[0].data_ptr())
    assert places == {slot.tensor.data_ptr() for slot in method._table.state.values()}
    method.reset()
    torch.testing.assert_close(method.execute([ONES]), [ONES * 2])
