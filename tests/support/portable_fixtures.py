"""The programs in ``tests/fixtures/portable``: no delegates, with eager's outputs.

``tests/gpu/make_portable.py`` made them. They are run on any device, where executorch need not be.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pteron import Runtime

PORTABLE = Path(__file__).parents[1] / "fixtures" / "portable"
NAMES = sorted(path.parent.name for path in PORTABLE.glob("*/program.pte"))
ON_CUDA = {"cpu": "cuda"}


def open_portable(name: str, **settings: Any) -> Any:
    """Open a program, with its weights file if it has one."""
    weights = PORTABLE / name / "weights.ptd"
    return Runtime.get().load_program(
        PORTABLE / name / "program.pte",
        data_path=weights if weights.exists() else None,
        **settings,
    )


def stored(name: str) -> dict[str, Any]:
    """Return calls by method (inputs, expected outputs), and how near one has to be."""
    facts: dict[str, Any] = torch.load(PORTABLE / name / "io.pt", weights_only=True)
    return facts


def run_all(method: Any, calls: Any, rtol: float, atol: float) -> None:
    """Make the calls in order and compare each."""
    for inputs, expected in calls:
        outputs = [x.cpu() if isinstance(x, torch.Tensor) else x for x in method.execute(inputs)]
        torch.testing.assert_close(outputs, expected, rtol=rtol, atol=atol)
