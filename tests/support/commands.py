"""Running the command in this process."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from pteron.cli.main import main

ROOT = Path(__file__).parents[2]
MODULES = Path("tests/fixtures/peer_modules")
"""Small programs of the ExecuTorch project, from the root of the repository."""
DIGITS = Path("demo/digits.pte")


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str


def cli(*words: str | Path, folder: Path = ROOT) -> Done:
    """Run ``pteron`` from the root of the repository, its output captured as by a pipe."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n") for _ in range(2))
    with inside(folder), redirect_stdout(out), redirect_stderr(err):
        code = main([str(word) for word in words])
    return Done(code, _text(out), _text(err))


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode("utf-8")


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Make a folder the current one."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
