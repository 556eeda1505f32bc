"""What ``docs/versions.md`` says was exported is what the fixtures hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.exporters.kept import FORMS, index, names

PAGE = (Path(__file__).parents[2] / "docs" / "versions.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("exporter", index()["exporters"])
def test_table_counts_the_programs(exporter: str) -> None:
    facts = index()["exporters"][exporter]
    for form in FORMS:
        made = f"{len(facts['programs'][form])} of {len(names(form))}"
        assert f"| {exporter} | {form} | {made} |" in PAGE
    assert facts["torch"].partition("+")[0] in PAGE
