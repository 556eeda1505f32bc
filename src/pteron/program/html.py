"""Programs and methods as HTML, which notebooks show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from pteron.program.signature import ValueFacts


def values_table(values: Iterable[ValueFacts]) -> str:
    """Return a table of inputs and outputs."""
    rows = [
        (
            f"{value.role} {value.position}",
            value.name,
            value.type_text,
            value.device or "",
        )
        for value in values
    ]
    return table(("", "name", "type", "device"), rows)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; text is escaped."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def heading(text: str) -> str:
    """Return a line above a table."""
    return f"<p><b>{escape(text)}</b></p>"
