"""What ``docs/conformance.md`` names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE))
    assert len(named) > 40
    missing = []
    for path, test in sorted(named):
        file = ROOT / path
        tree = ast.parse(file.read_text(encoding="utf-8")) if file.exists() else ast.parse("")
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        if test not in names:
            missing.append(f"{path}::{test}")
    assert not missing, "\n".join(missing)


def test_the_table_is_the_one_that_the_command_writes() -> None:
    from conformance.__main__ import load
    from conformance.suites import SUITES
    from conformance.table import BEGIN, END, environments, lists, table

    rows = [(suite, load(suite, "wheel"), load(suite, "pteron")) for suite in SUITES]
    written = PAGE.partition(BEGIN)[2].partition(END)[0]
    assert table(rows) in written, "run: python -m conformance --table"
    assert environments(rows) in written, "run: python -m conformance --table"
    assert lists(rows) in written, "run: python -m conformance --table"
    assert any(wheel and pteron for _, wheel, pteron in rows)
