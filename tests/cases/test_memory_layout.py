"""Cases of memory layout: dim order, strides, channels last."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from pteron import Method, Runtime
from support import plain_programs
from support.programs import Files, Kept, export, kept

LAST = torch.channels_last


def loaded(kept: Kept) -> Method:
    return Runtime.get().load_program(kept.pte).load_method()


def image(*shape: int) -> torch.Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return torch.randn(*shape)


class PlusOne(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class ConvMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(4)
            self.conv = nn.Conv2d(5, 11, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).sigmoid().mean((2, 3))


class Means(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.mean((2, 3)), x.mean((2, 3), keepdim=True)


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(image(2, 5, 3, 7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.p


class OneChannel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(6)
            self.conv = nn.Conv2d(1, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


class MixedOrders(nn.Module):
    """Operands of different dim orders in one operator."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.contiguous(memory_format=torch.contiguous_format)
        table = torch.arange(96.0).reshape(2, 3, 4, 4)
        return torch.cat([x, y], 1), x + table, x.to(memory_format=LAST) * 2


@kept
def plus_one() -> Files:
    return export(PlusOne(), (torch.ones(3, 4),))


@kept
def doubled_line() -> Files:
    return export(plain_programs.Doubled(), (torch.ones(1, 3, 1, 4),))


@kept
def doubled_video() -> Files:
    return export(plain_programs.Doubled(), (torch.ones(1, 1, 3, 8, 8),))


@kept
def doubled_channels_last() -> Files:
    return export(plain_programs.Doubled(), (image(2, 3, 4, 4).to(memory_format=LAST),))


@kept
def conv_mean() -> Files:
    return export(ConvMean(), (image(2, 5, 13, 7).to(memory_format=LAST),))


@kept
def means() -> Files:
    return export(Means(), (image(2, 5, 13, 7).to(memory_format=LAST),))


@kept
def weighted_channels_last() -> Files:
    return export(Weighted().to(memory_format=LAST), (image(2, 5, 3, 7),))


@kept
def one_channel() -> Files:
    return export(OneChannel(), (image(1, 1, 7, 5).to(memory_format=LAST),))


@kept
def mixed_orders() -> Files:
    return export(MixedOrders(), (image(2, 3, 4, 4).to(memory_format=LAST),))


def both_layouts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x, x.to(memory_format=LAST)


@pytest.mark.parametrize(
    ("make", "shape"), [(plain_programs.doubled_image, (1, 3, 2, 2)), (doubled_line, (1, 3, 1, 4))]
)
def test_case_1_channels_last_given_to_a_contiguous_method(
    make: Callable[[], Kept], shape: tuple[int, ...]
) -> None:
    x = torch.arange(12.0).view(shape)
    method = loaded(make())
    for given in both_layouts(x):
        torch.testing.assert_close(method.execute([given]), [x * 2], check_stride=False)


@pytest.mark.parametrize(
    "x",
    [image(4, 3).t(), image(3, 8)[:, ::2], image(4).expand(3, 4)],
    ids=["transposed", "strided", "expanded"],
)
def test_case_2_permuted_and_expanded_inputs(x: torch.Tensor) -> None:
    torch.testing.assert_close(loaded(plus_one()).execute([x]), [x + 1], check_stride=False)


def test_case_3_video_with_channels_innermost() -> None:
    inner = image(1, 1, 8, 8, 3).permute(0, 1, 4, 2, 3)
    last = image(1, 1, 3, 8, 8).to(memory_format=torch.channels_last_3d)
    method = loaded(doubled_video())
    for x in (inner, last):
        torch.testing.assert_close(method.execute([x]), [x * 2], check_stride=False)


def test_case_5_conv_sigmoid_mean_exported_channels_last() -> None:
    method = loaded(conv_mean())
    for x in both_layouts(image(2, 5, 13, 7)):
        torch.testing.assert_close(method.execute([x]), [ConvMean()(x).detach()])


def test_case_6_means_whose_output_has_another_dim_order() -> None:
    method = loaded(means())
    for x in both_layouts(image(2, 5, 13, 7)):
        outputs = tuple(method.execute([x]))
        torch.testing.assert_close(outputs, Means()(x), check_stride=False)


def test_case_7_a_parameter_of_a_channels_last_module() -> None:
    method, eager = loaded(weighted_channels_last()), Weighted()
    for x in both_layouts(image(2, 5, 3, 7)):
        torch.testing.assert_close(method.execute([x]), [eager(x).detach()], check_stride=False)


def test_case_9_one_channel_is_both_layouts() -> None:
    method = loaded(one_channel())
    for x in both_layouts(image(1, 1, 7, 5)):
        expected = OneChannel()(x).detach()
        torch.testing.assert_close(method.execute([x]), [expected], check_stride=False)


def test_case_12_operands_of_different_dim_orders() -> None:
    method = loaded(mixed_orders())
    for x in both_layouts(image(2, 3, 4, 4)):
        outputs = tuple(method.execute([x]))
        torch.testing.assert_close(outputs, MixedOrders()(x), check_stride=False)


def test_case_f15_times_two_exported_channels_last() -> None:
    method = loaded(doubled_channels_last())
    for x in both_layouts(image(2, 3, 4, 4)):
        (output,) = method.execute([x])
        torch.testing.assert_close(output, x * 2, check_stride=False)
        assert output.is_contiguous(memory_format=LAST)  # as the file plans it
