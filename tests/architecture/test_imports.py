"""The import table: a layer imports the layers below it, and no other."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "pteron"

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"errors"}),
    frozenset({"limits", "plugins"}),
    frozenset({"format"}),
    frozenset({"program"}),
    frozenset({"memory"}),
    frozenset({"kernels", "backends"}),  # neither knows the other
    frozenset({"executor"}),
    frozenset({"runtime"}),
    frozenset({"module"}),
    frozenset({"devtools"}),
    frozenset({"compat"}),
    frozenset({"cli"}),
)
"""Lowest first. The parts of one layer do not import each other."""

FACE = frozenset({"__init__", "__main__"})
"""The package's face, which may name every part (lazily: see the test of what loads torch)."""

TORCHLESS = ("errors", "limits", "format", "program")
HEAVY = frozenset({"torch", "numpy"})


def level(part: str) -> int:
    for index, layer in enumerate(LAYERS):
        if part in layer:
            return index
    raise AssertionError(f"pteron.{part} has no place in LAYERS: give it one")


def part_of(path: Path) -> str:
    """Return the layer's name that a source file belongs to: ``format`` or ``errors``."""
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of every import in a file, wherever in it and however spelled."""
    package = ("pteron", *path.relative_to(SOURCE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            name = ".".join((*base, *([node.module] if node.module else [])))
            # `from pteron import format` names a part in its second half.
            for alias in node.names:
                yield node.lineno, f"{name}.{alias.name}"


def parts_imported(path: Path) -> Iterator[tuple[int, str]]:
    for line, name in imported(path):
        words = name.split(".")
        if words[0] == "pteron" and len(words) > 1:
            yield line, words[1]


def test_every_part_has_a_layer() -> None:
    parts = {part_of(path) for path in sources()} - FACE
    assert parts, "no sources found"
    known = frozenset().union(*LAYERS)
    assert parts <= known, f"give these a place in LAYERS: {sorted(parts - known)}"


def test_imports_point_down() -> None:
    wrong = []
    for path in sources():
        here = part_of(path)
        if here in FACE:
            continue
        for line, there in parts_imported(path):
            if there == here or there in FACE or there[0].isupper() or there == "__version__":
                continue
            if level(there) >= level(here):
                wrong.append(f"{path.relative_to(SOURCE)}:{line}: {here} imports {there}")
    assert not wrong, "\n".join(wrong)


def test_inner_parts_do_not_use_the_face() -> None:
    """``from pteron import Runtime`` inside the library would hide which layer is meant."""
    wrong = [
        f"{path.relative_to(SOURCE)}:{line}: {name}"
        for path in sources()
        if part_of(path) not in FACE
        for line, name in imported(path)
        if name.startswith("pteron.") and name.split(".")[1][0].isupper()
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("part", TORCHLESS)
def test_what_reads_files_never_imports_torch(part: str) -> None:
    wrong = [
        f"{path.relative_to(SOURCE)}:{line}: {name}"
        for path in sources()
        if part_of(path) == part
        for line, name in imported(path)
        if name.split(".")[0] in HEAVY
    ]
    assert not wrong, "\n".join(wrong)


def heavy_modules_after(code: str, *arguments: str) -> list[str]:
    """Run code in a fresh interpreter, and return which heavy packages it loaded."""
    report = "import json, sys; print(json.dumps(sorted({'torch', 'numpy'} & set(sys.modules))))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    heavy: list[str] = json.loads(done.stdout.splitlines()[-1])
    return heavy


def test_the_probe_sees_torch() -> None:
    assert heavy_modules_after("import torch") != []


def test_import_pteron_is_light() -> None:
    assert heavy_modules_after("import pteron; dir(pteron)") == []


RUN_CLI = """
from pteron.cli.main import main
code = main()
assert code == 0, code
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("inspect", "{digits}"),
        ("inspect", "--json", "{digits}"),
        ("inspect", "{delegated}"),
        ("verify", "{digits}"),
        ("memory", "{digits}"),
    ],
    ids=" ".join,
)
def test_verbs_that_read_are_light(arguments: tuple[str, ...]) -> None:
    root = SOURCE.parents[1]
    files = {
        "digits": root / "demo" / "digits.pte",
        "delegated": root / "tests/fixtures/peer_modules/ModuleAddWithDevice.pte",
    }
    words = [word.format(**files) for word in arguments]
    assert heavy_modules_after(RUN_CLI, *words) == []
