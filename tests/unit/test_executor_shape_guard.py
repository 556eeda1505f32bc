"""A result that does not fit is refused before a kernel computes it (DESIGN, V2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pteron import Method, Runtime
from pteron.errors import InvalidArgumentError
from pteron.kernels import default_registry
from pteron.kernels.result_sizes import RESULT_SIZES
from support.one_op import ProgramBuilder, one_op

CONVOLUTION = (
    *("Tensor", "Tensor", "Optional[Tensor]", "List[int]", "List[int]", "List[int]"),
    *("bool", "List[int]", "int"),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List what is asked for shapes, and what is computed: ``sizes`` or ``values``."""
    found: list[str] = []
    kernel = default_registry().find("aten::convolution.out")
    assert kernel is not None
    formula, function = kernel.result_sizes, kernel.function
    assert formula is not None

    def sizes(*args: Any) -> Any:
        found.append("sizes")
        return formula(*args)

    def values(*args: Any, **kwargs: Any) -> Any:
        found.append("values")
        return function(*args, **kwargs)

    watched = replace(kernel, result_sizes=sizes, function=values, prepare=None)
    monkeypatch.setitem(default_registry()._kernels, kernel.name, watched)
    return found


def convolution(
    x: torch.Tensor, out: torch.Tensor, padding: int, *, dynamic: bool
) -> tuple[Method, list[torch.Tensor]]:
    weight = torch.ones(1, 1, 3, 3)
    lists = ([1, 1], [padding, padding], [1, 1])
    args = (x, weight, None, *lists, False, [0, 0], 1)
    data, given = one_op("aten::convolution.out", CONVOLUTION, args, [out], dynamic=dynamic)
    return Runtime.get().load_program(data).load_method(), given


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_result_that_cannot_fit_is_not_computed(dynamic: bool, asked: list[str]) -> None:
    small = torch.ones(1, 1, 4, 4)
    method, given = convolution(small, small, 40_000, dynamic=dynamic)  # 25 GB
    for _ in range(2):
        with pytest.raises(InvalidArgumentError) as caught:
            method.execute(given)
        assert "the result has shape (1, 1, 80002, 80002), the program has room for" in str(
            caught.value
        )
        assert asked
        assert "values" not in asked


def test_a_call_that_fits_is_asked_once(asked: list[str]) -> None:
    x = torch.arange(16.0).view(1, 1, 4, 4)
    method, given = convolution(x, x, 1, dynamic=True)
    wanted = torch.conv2d(x, torch.ones(1, 1, 3, 3), padding=1)
    for _ in range(2):
        torch.testing.assert_close(method.execute(given), [wanted])
    assert asked == ["sizes", "values", "values"]


def test_a_call_that_does_not_fit_at_the_upper_bounds_is_asked_in_every_run(
    asked: list[str],
) -> None:
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
        asked.clear()
        (found,) = method.execute([small])
        torch.testing.assert_close(found, torch.conv2d(small, torch.ones(1, 1, 3, 3), padding=1))
        assert "sizes" in asked
        with pytest.raises(InvalidArgumentError, match=r"has shape \(1, 1, 8, 8\)"):
            method.execute([large])


@pytest.mark.parametrize("transposed", [False, True])
def test_the_formula_of_a_convolution_is_torchs(transposed: bool) -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    for _ in range(50):
        spatial, groups = draw(1, 3), draw(1, 3)
        x = torch.zeros([2, 2 * groups] + [draw(5, 9) for _ in range(spatial)])
        weight = torch.zeros(2 * groups, 2, *[draw(1, 4) for _ in range(spatial)])
        stride = [draw(1, 3) for _ in range(spatial)]
        padding, dilation = [draw(0, 2) for _ in range(spatial)], [1] * spatial
        rest = (stride, padding, dilation, transposed, [0] * spatial, groups)
        wanted = torch.convolution(x, weight, None, *rest)
        found = RESULT_SIZES["convolution.out"](tuple(x.shape), tuple(weight.shape), None, *rest)
        assert found == [tuple(wanted.shape)]


def test_the_other_formulas_are_torchs() -> None:
    a, b = torch.ones(3, 1, 4, 2), torch.ones(5, 6, 2)
    image, grid = torch.ones(2, 3, 4, 4), torch.zeros(2, 5, 6, 2)
    for name, args, result in (
        ("_cdist_forward.out", (a, b, 2.0, None), torch.cdist(a, b)),
        ("_pdist_forward.out", (torch.ones(5, 3), 2.0), torch.pdist(torch.ones(5, 3))),
        ("_adaptive_avg_pool2d.out", (image, [2, 7]), torch.nn.AdaptiveAvgPool2d((2, 7))(image)),
        (
            "grid_sampler_2d.out",
            (image, grid, 0, 0, False),
            torch.grid_sampler(image, grid, 0, 0, False),
        ),
    ):
        sizes = [tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in args]
        assert RESULT_SIZES[name](*sizes) == [tuple(result.shape)]
