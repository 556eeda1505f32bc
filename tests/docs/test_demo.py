"""The demo recognises its digits, and agrees with the executorch wheel on how sure it is."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from pteron import Runtime

DEMO = Path(__file__).parents[2] / "demo"

pytestmark = pytest.mark.skipif(find_spec("PIL") is None, reason="pillow is not installed")


def pixels(digit: int) -> torch.Tensor:
    import numpy
    from PIL import Image

    grey = numpy.array(Image.open(DEMO / "digits" / f"{digit}.png"))
    assert grey.shape == (8, 8)
    return torch.from_numpy(grey).reshape(1, 1, 8, 8).float() / 255


def test_the_script_recognises_every_digit() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(DEMO / "recognise.py")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "10 of 10 right"


@pytest.mark.parametrize("digit", range(10))
def test_the_program_agrees_with_the_wheel(digit: int) -> None:
    if find_spec("executorch") is None:
        pytest.skip("the executorch wheel is not installed")
    from executorch.runtime import Runtime as Wheel

    program = DEMO / "digits.pte"
    (here,) = Runtime.get().load_program(program).load_method("forward").execute([pixels(digit)])
    (there,) = Wheel.get().load_program(program).load_method("forward").execute([pixels(digit)])
    torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-6)
    assert int(here.argmax()) == digit
