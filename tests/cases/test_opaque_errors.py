"""Cases of opaque errors, noise on stderr, and checks that are lowered quietly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pteron import PteronError, Runtime, Verification
from pteron.errors import InvalidArgumentError
from support import plain_programs
from support.programs import Files, export, kept


class Grouped(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x.view(-1, 4) + 1, x.shape[0] * 2


@kept
def in_fours() -> Files:
    quarter = torch.export.Dim("quarter", min=1, max=4)
    return export(Grouped(), (torch.ones(8),), dynamic_shapes=({0: 4 * quarter},))


def test_case_36_a_view_that_does_not_fit_is_an_exception() -> None:
    method = Runtime.get().load_program(in_fours().pte).load_method()
    with pytest.raises(InvalidArgumentError) as caught:
        method.execute([torch.ones(6)])
    text = str(caught.value)
    assert "method 'forward', instruction" in text
    assert "is input 0: float32[6]" in text
    rows, twice = method.execute([torch.ones(16)])
    assert (tuple(rows.shape), twice) == ((4, 4), 32)


def test_case_37_planned_outputs_in_a_loop_print_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    method = Runtime.get().load_program(plain_programs.doubled().pte).load_method()
    capfd.readouterr()
    for _ in range(20):
        method.execute([torch.ones(2, 3)])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("level", list(Verification))
def test_cases_80_84_and_f10_every_level_of_verification_checks_everything(
    level: Verification,
) -> None:
    data = plain_programs.lookup().bytes()
    Runtime.get().load_program(data, verification=level)
    refused = 0
    for at in range(0, 1000, 4):
        damaged = bytearray(data)
        damaged[at : at + 4] = b"\xff\xff\xff\xff"
        try:
            Runtime.get().load_program(bytes(damaged), verification=level)
        except PteronError as error:
            refused += 1
            assert "<bytes>" in str(error)  # noqa: PT017
    assert refused > 150
