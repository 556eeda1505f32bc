"""Every operator of ExecuTorch's registry: pteron's kernel, on slots, against eager torch."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest
import torch

from pteron.kernels import Style, default_registry
from support.operator_cases import BEYOND, CASES, NUMBERS, VIEWS
from support.operator_check import expected, full_args, kernel_problems


@pytest.fixture(autouse=True)
def _warn_always() -> Iterator[None]:
    """Let torch's own code warn each time, not only at the first."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


def test_the_cases_cover_the_registry(wheel_operators: frozenset[str]) -> None:
    assert {*CASES, *NUMBERS, *VIEWS} == wheel_operators
    assert wheel_operators <= default_registry().operator_names


@pytest.mark.parametrize("name", CASES)
def test_there_are_at_least_three_cases(name: str) -> None:
    assert len(list(CASES[name]())) >= 3


@pytest.mark.parametrize("name", [*CASES, *BEYOND])
def test_kernel_agrees_with_eager(name: str) -> None:
    torch.manual_seed(zlib.crc32(name.encode()))
    kernel = default_registry().find(name)
    assert kernel is not None
    found = []
    for number, case in enumerate({**CASES, **BEYOND}[name]()):
        if kernel.style is not Style.INPLACE:
            found += kernel_problems(name, number, case, dynamic=True)
        found += kernel_problems(name, number, case, dynamic=False)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", CASES)
def test_view_has_the_values_and_mostly_the_memory(name: str) -> None:
    kernel = default_registry().find(name)
    assert kernel is not None
    if kernel.view is None:
        return
    shared = []
    for case in CASES[name]():
        args = full_args(name, case)
        view = kernel.view(*args)
        (want,), _ = expected(name, case)
        assert torch.equal(view, want), case
        if view.numel():
            shared.append(view.untyped_storage().data_ptr() == args[0].untyped_storage().data_ptr())
    assert sum(shared) >= 2
