"""What the README shows can be typed as it stands, and its links lead somewhere.

Blocks marked ``python`` or ``console`` run here, on files of this repository; what needs a file of
the reader's own stands in an indented block.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = ("README.md", "CONTRIBUTING.md", "docs/glossary.md", "docs/api.md")
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def blocks(language: str, page: str = README) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    assert found, f"the README has no {language} block"
    return found


def run(*words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("code", [*blocks("python"), "\n".join(blocks("python", API))])
def test_python(code: str) -> None:
    done = run(sys.executable, "-W", "error", "-c", code)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "line", [line[2:] for block in blocks("console") for line in block.splitlines()]
)
def test_command(line: str) -> None:
    if ".png" in line and find_spec("PIL") is None:
        pytest.skip("pillow is not installed")
    command, *words = shlex.split(line)
    assert command == "pteron"
    done = run(sys.executable, "-W", "error", "-m", "pteron", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


@pytest.mark.parametrize("page", PAGES)
def test_links(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8"))
    missing = [
        link
        for link in links
        if not link.startswith("https://") and not (path.parent / link.partition("#")[0]).exists()
    ]
    assert not missing


def test_every_source_folder_is_in_the_layout() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = {path.name for path in (ROOT / "src" / "pteron").iterdir() if path.is_dir()}
    tests = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    hidden = {"__pycache__"}
    assert [name for name in sorted(folders - hidden) if f"`{name}/`" not in table] == []
    assert [name for name in sorted(tests - hidden) if f"`tests/{name}/`" not in table] == []
