"""A result that does not fit is refused before a kernel computes it (DESIGN, V2)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pteron import Method, Runtime
from pteron.errors import InvalidArgumentError
from support.one_op import ProgramBuilder, one_op

CONVOLUTION = (
    *("Tensor", "Tensor", "Optional[Tensor]", "List[int]", "List[int]", "List[int]"),
    *("bool", "List[int]", "int"),
)


class Computed(TorchDispatchMode):
    """Lists the operators that torch computes; telling shapes is not computing."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.asked = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(isinstance(a, torch.Tensor) and a.device.type == "meta" for a in args):
            self.asked += 1
        else:
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def convolution(
    x: torch.Tensor, out: torch.Tensor, padding: int, *, dynamic: bool
) -> tuple[Method, list[torch.Tensor]]:
    weight = torch.ones(1, 1, 3, 3)
    lists = ([1, 1], [padding, padding], [1, 1])
    args = (x, weight, None, *lists, False, [0, 0], 1)
    data, given = one_op("aten::convolution.out", CONVOLUTION, args, [out], dynamic=dynamic)
    return Runtime.get().load_program(data).load_method(), given


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_result_that_cannot_fit_is_not_computed(dynamic: bool) -> None:
    small = torch.ones(1, 1, 4, 4)
    method, given = convolution(small, small, 40_000, dynamic=dynamic)  # 25 GB
    for _ in range(2):
        with Computed() as computed, pytest.raises(InvalidArgumentError) as caught:
            method.execute(given)
        assert "the result has shape (1, 1, 80002, 80002), the program has room for" in str(
            caught.value
        )
        assert computed.asked
        assert not any("convolution" in name for name in computed.names)


def test_a_call_that_fits_is_asked_once() -> None:
    x = torch.arange(16.0).view(1, 1, 4, 4)
    method, given = convolution(x, x, 1, dynamic=True)
    wanted = torch.conv2d(x, torch.ones(1, 1, 3, 3), padding=1)
    with Computed() as first:
        torch.testing.assert_close(method.execute(given), [wanted])
    with Computed() as second:
        torch.testing.assert_close(method.execute(given), [wanted])
    assert (first.asked, second.asked) == (1, 0)


def test_a_call_that_does_not_fit_at_the_upper_bounds_is_asked_in_every_run() -> None:
    small, large = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 8, 8)
    builder = ProgramBuilder()
    x = builder.tensor(large, role="input", dynamic=True)
    weight = builder.tensor(torch.ones(1, 1, 3, 3), role="constant")
    out = builder.tensor(small, role="output", dynamic=True)
    none, no, one = builder.number(None), builder.number(False), builder.number(1)
    ones, zeros = (builder.numbers([n, n], kind="int") for n in (1, 0))
    call = (x, weight, none, ones, ones, ones, no, zeros, one, out, out)
    builder.call("aten::convolution.out", *call)
    method = Runtime.get().load_program(builder.finish()).load_method()
    for _ in range(2):
        with Computed() as computed:
            (found,) = method.execute([small])
        torch.testing.assert_close(found, torch.conv2d(small, torch.ones(1, 1, 3, 3), padding=1))
        assert computed.asked
        with pytest.raises(InvalidArgumentError, match=r"has shape \(1, 1, 8, 8\)"):
            method.execute([large])
