"""Cases of missing kernels, out variants and backends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pteron import Runtime, register_kernel
from pteron.errors import BackendMissingError
from pteron.kernels import default_registry
from support.device_programs import Sum, device_partitioner, pair
from support.programs import Files, Kept, edited, export, kept


def ran(kept: Kept, *inputs: Any) -> list[Any]:
    return Runtime.get().load_program(kept.pte).load_method().execute(inputs)


class Spectrum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x).abs()


class Buckets(nn.Module):
    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.bucketize(x, edges), x.sort(0)[0], x.sort(0)[1], x.cumprod(0)


class Bits(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(torch.int32)


class Loops(nn.Module):
    def forward(self, rows: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        from torch._higher_order_ops.map import map as torch_map
        from torch._higher_order_ops.scan import scan

        def step(carry: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            carry = carry + x
            return carry, carry * 1

        _, sums = scan(step, y * 0, rows)
        return torch_map(lambda x, by: x + by, rows, y), sums


@kept
def spectrum() -> Files:
    return export(Spectrum(), (torch.ones(16),))


@kept
def buckets() -> Files:
    return export(Buckets(), (torch.rand(5), torch.tensor([0.2, 0.5, 0.8])))


@kept
def bits() -> Files:
    return export(Bits(), (torch.ones(4),))


@kept
def loops() -> Files:
    return export(Loops(), (torch.ones(4, 3), torch.ones(3)))


def nobodys(program: Any) -> None:
    program.execution_plan[0].delegates[0].id = "NeuronBackend"


@kept
def for_a_phone() -> Files:
    files = export(
        Sum(),
        pair(),
        partitioner=[device_partitioner("cpu")],
        enable_non_cpu_memory_planning=False,
    )
    return edited(files, nobodys)


def own(program: Any) -> None:
    (operator,) = program.execution_plan[0].operators
    operator.name, operator.overload = "my::op", "out"


@kept
def my_op() -> Files:
    return edited(export(Sum(), pair()), own)


def test_case_92_rfft() -> None:
    x = torch.randn(16)
    torch.testing.assert_close(ran(spectrum(), x), [Spectrum()(x)])


def test_case_93_bucketize_sort_and_cumprod() -> None:
    x, edges = torch.rand(5), torch.tensor([0.2, 0.5, 0.8])
    torch.testing.assert_close(tuple(ran(buckets(), x, edges)), Buckets()(x, edges))


def test_case_96_a_view_as_another_type() -> None:
    x = torch.randn(4)
    torch.testing.assert_close(ran(bits(), x), [Bits()(x)])


def test_cases_97_and_98_a_missing_backend_says_which_and_what_to_do() -> None:
    program = Runtime.get().load_program(for_a_phone().pte)
    assert program.metadata("forward").backends() == ("NeuronBackend",)
    assert program.metadata("forward").uses_backend("NeuronBackend")
    with pytest.raises(BackendMissingError) as caught:
        program.load_method()
    text = str(caught.value)
    assert "method 'forward' (1 delegate call) needs backend 'NeuronBackend'" in text
    assert "which is not registered; there are: " in text
    assert "hint: " in text


def test_case_103_map_and_scan() -> None:
    rows, y = torch.randn(4, 3), torch.randn(3)
    mapped, sums = ran(loops(), rows, y)
    torch.testing.assert_close(mapped, rows + y)
    torch.testing.assert_close(sums, rows.cumsum(0))


def test_case_104_a_python_function_runs_an_operator() -> None:
    register_kernel("my::op.out", lambda a, b, alpha: (a - b).abs() * alpha)
    try:
        a, b = pair()
        torch.testing.assert_close(ran(my_op(), a, b), [(a - b).abs()])
        kernel = default_registry().find("my::op.out")
        assert kernel is not None
        torch.testing.assert_close(kernel.function(a, b, 2), (a - b).abs() * 2)
    finally:
        default_registry().unregister("my::op.out")
