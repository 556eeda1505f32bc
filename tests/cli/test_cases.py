"""Commands and what they print, from the files in ``cases``.

A line that begins with ``$ pteron`` is a command, run from the root of the repository. Below it is
what it writes to stdout, then ``stderr:`` lines, then ``exit:`` if the code is not 0. To write the
files anew after a change that is meant, set PTERON_UPDATE_CASES=1 and read the difference.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from support.commands import cli

CASES = sorted(Path(__file__).with_name("cases").glob("*.txt"))


def commands(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("$ pteron")]


def transcript(command: str) -> str:
    done = cli(*shlex.split(command)[2:])
    text = f"{command}\n{done.out}"
    text += "".join(f"stderr: {line}\n" for line in done.err.splitlines())
    return text + (f"exit: {done.code}\n" if done.code else "")


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pteron.backends.registry.installed_executorch", lambda: "1.5.1")
    expected = path.read_text(encoding="utf-8")
    assert commands(expected), f"{path.name} holds no command"
    found = "\n".join(transcript(command) for command in commands(expected))
    if os.environ.get("PTERON_UPDATE_CASES"):
        path.write_text(found, encoding="utf-8")
    assert found == expected


def test_there_are_cases() -> None:
    assert len(CASES) > 10
