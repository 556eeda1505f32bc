"""The programs that a clone brings are what the exporter makes of the text beside them."""

from __future__ import annotations

import inspect
from importlib.metadata import version

import pytest

from support import device_programs, plain_programs, programs


@pytest.mark.parametrize("name", ["plain_programs.doubled_upto", "device_programs.device_sum"])
def test_a_kept_program_is_what_the_exporter_makes(name: str) -> None:
    pytest.importorskip("executorch.exir", reason="exports a program")
    if version("executorch") != "1.5.1" or not version("torch").startswith("2.13."):
        pytest.skip("the kept programs were exported with executorch 1.5.1 and torch 2.13")
    module, _, function = name.partition(".")
    kept = getattr(
        {"plain_programs": plain_programs, "device_programs": device_programs}[module], function
    )
    assert inspect.unwrap(kept)()[programs.PROGRAM] == kept().bytes()


def test_text_that_changes_makes_another_program() -> None:
    one = set(programs._text(inspect.unwrap(plain_programs.doubled), set()))
    other = set(programs._text(inspect.unwrap(plain_programs.both), set()))
    assert any("class Doubled" in text for text in one)
    assert any("def export(" in text for text in one)
    assert any("class Both" in text for text in other - one)
