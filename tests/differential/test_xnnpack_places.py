"""Kept XNNPACK programs without the wheel: plain kernels, and on a CUDA device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pteron import Runtime

FOLDER = Path(__file__).parents[1] / "fixtures" / "xnnpack"

WANTED = {
    "float": ((2, 12, 12, 4), [-5.0855, -2.0006, 6.8425, 6.5378, -19.3833, -4.8543], 1e-3),
    "int8": ((2, 12, 12, 4), [-17.2, 6.6, 6.6, 11.2, -16.2, -15.8], 0.2),
    "rows": ((3, 64), [0.0026, 0.0026, 0.0022, 0.0028, 0.0088, 0.0022], 1e-4),
}
"""The shape of the input, the first results that the wheel gave, and what they may be apart."""

every_program = pytest.mark.parametrize("name", WANTED)


def run(name: str, device: str = "cpu") -> torch.Tensor:
    shape, _, _ = WANTED[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(9))
    device_map = None if device == "cpu" else {"cpu": device}
    with Runtime.get().load_program(FOLDER / f"{name}.pte", device_map=device_map) as program:
        (out,) = program.load_method("forward").execute([x.to(device)])
        return out.clone()


@every_program
def test_on_the_host(name: str) -> None:
    _, first, apart = WANTED[name]
    out = run(name).flatten()[:6]
    torch.testing.assert_close(out, torch.tensor(first), rtol=0, atol=apart * 1.001)


@every_program
def test_without_onednn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels that other devices use, on the host."""
    with_it = run(name)
    monkeypatch.setattr(torch._C, "_has_mkldnn", False)
    torch.testing.assert_close(run(name), with_it, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@every_program
def test_on_a_cuda_device(name: str) -> None:
    there = run(name, "cuda")
    assert there.device.type == "cuda"
    _, _, apart = WANTED[name]
    torch.testing.assert_close(there.cpu(), run(name), rtol=1e-4, atol=apart * 1.001)
