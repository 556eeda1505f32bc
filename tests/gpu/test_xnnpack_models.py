"""Programs delegated to XNNPACK, moved to a GPU: the same results as on the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pteron import Runtime
from support.models import ARCHITECTURES
from support.xnnpack_variants import VARIANTS, kept, names

pytestmark = pytest.mark.gpu

STEPS = {"convnext": 7}
"""Steps that results may be apart, if not one: this output spans a seventh of its range."""

TIES = [("detector", "static_int8")]
"""Left away: it sorts boxes by scores of 8 bits, of which one step changes the order."""


def results(name: str, variant: str, device: str) -> list[torch.Tensor]:
    file = kept(name, variant)
    device_map = None if device == "cpu" else {"cpu": device}
    found: list[Any] = []
    with Runtime.get().load_program(file.pte, data_path=file.ptd, device_map=device_map) as program:
        for method, spec in ARCHITECTURES[name].build().items():
            loaded = program.load_method(method)
            for inputs in spec.inputs:
                found += loaded.execute(inputs)
        return [out.cpu() for out in found if isinstance(out, torch.Tensor)]


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        (name, variant)
        for variant in VARIANTS
        for name in names(variant)
        if (name, variant) not in TIES
    ],
)
def test_results_are_those_of_the_host(name: str, variant: str) -> None:
    """Within a step of an output of 8 bits where values are quantized: sums end elsewhere."""
    half = "half" in ARCHITECTURES[name].tags
    for there, here in zip(
        results(name, variant, "cuda"), results(name, variant, "cpu"), strict=True
    ):
        if not here.numel():
            continue
        span = (here.double().max() - here.double().min()).item()
        step = 1.0001 * STEPS.get(name, 1) * span / 255 if variant != "floats" else 0.0
        room = max(step, (2e-2 if half else 1e-4) * here.double().abs().max().item(), 1e-6)
        assert (there.double() - here.double()).abs().max().item() <= room
