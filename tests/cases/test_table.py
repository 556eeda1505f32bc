"""``docs/cases.md`` names tests that exist, and every test of a case."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = TESTS.parent / "docs" / "cases.md"


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def named() -> set[tuple[Path, str]]:
    found = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", TABLE.read_text(encoding="utf-8"))
    folders = {"contracts": TESTS, "tests": TESTS.parent}
    return {
        (folders.get(path.split("/")[0], Path(__file__).parent) / path, name)
        for path, name in found
    }


def test_the_table_names_tests_that_exist() -> None:
    wrong = [
        f"{path.name}::{name}"
        for path, name in sorted(named())
        if not path.is_file() or (name and name not in functions(path))
    ]
    assert wrong == []


def test_every_test_of_a_case_is_in_the_table() -> None:
    known = {name for _, name in named()}
    numbers = set(re.findall(r"F?\d+", TABLE.read_text(encoding="utf-8")))
    missing = []
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for name in functions(path):
            cases = re.match(r"test_cases?_((?:f?\d+_(?:and_)?)+)", name)
            if cases and name not in known:
                told = {word.upper() for word in re.findall(r"f?\d+", cases[1])}
                missing += [] if told <= numbers else [name]
    assert missing == []
