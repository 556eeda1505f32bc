"""Tables in the width of a terminal. Words and types, such as ``float32[1, 3]``, are not broken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

GAP = "  "
_MORE = " ..."


class Table(NamedTuple):
    """Rows under a header; ``right`` tells for each column whether it holds numbers."""

    header: list[str]
    rows: list[list[str]]
    right: list[bool]
    cut: int | None = None
    """The column whose last words may be left out where there is no room."""


def set_out(table: Table) -> list[str]:
    """Return a table as lines, the header first."""
    rows = [table.header, *table.rows]
    widths = _widths(rows)
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, table.right, strict=True)
        ]
        lines.append((GAP + GAP.join(cells)).rstrip())
    return lines


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def fitted(table: Table, width: int) -> list[str] | None:
    """Return a table as lines of at most ``width`` characters; None if words are too long for it.

    The column that may be cut is cut first; then the widest columns are broken between words.
    """
    room = width - len(GAP) * len(table.header)
    rows = [list(row) for row in table.rows]
    if table.cut is not None:
        others = sum(_widths([table.header, *rows])) - _widths([table.header, *rows])[table.cut]
        least = max(len(_shortened(row[table.cut], 0)) for row in rows)
        for row in rows:
            row[table.cut] = _shortened(row[table.cut], max(room - others, least))
    widths = _widths([table.header, *rows])
    least_widths = [
        max(len(word) for cell in column for word in words(cell) or [""])
        for column in zip(table.header, *rows, strict=True)
    ]
    if sum(least_widths) > room:
        return None
    while sum(widths) > room:
        widest = max(range(len(widths)), key=lambda at: (widths[at] > least_widths[at], widths[at]))
        widths[widest] -= 1
    broken: list[list[str]] = []
    for row in rows:
        cells = [wrap(cell, limit) for cell, limit in zip(row, widths, strict=True)]
        height = max(map(len, cells))
        broken += [
            [cell[line] if line < len(cell) else "" for cell in cells] for line in range(height)
        ]
    header = [wrap(title, limit) for title, limit in zip(table.header, widths, strict=True)]
    if any(len(title) > 1 for title in header):
        return None
    return set_out(table._replace(rows=broken))


def records(table: Table, width: int) -> list[str]:
    """Return a table as one block for each row, a line for each cell."""
    name_width = max(len(title) for title in table.header)
    lines = []
    for number, row in enumerate(table.rows):
        if number:
            lines.append("")
        for title, cell in zip(table.header, row, strict=True):
            if not title:
                lines.append(f"{GAP}{cell}")
            if not title or not cell:
                continue
            room = max(width - len(GAP) * 2 - name_width, 1)
            first, *rest = wrap(cell, room)
            lines.append(f"{GAP}{title:{name_width}}{GAP}{first}".rstrip())
            lines += [f"{GAP}{'':{name_width}}{GAP}{line}" for line in rest]
    return lines


def wrapped(text: str, width: int) -> list[str]:
    """Return a line broken between words; the rest is set in two further than the line is."""
    indent = " " * (len(text) - len(text.lstrip(" ")))
    first, *rest = wrap(text.strip(" "), max(width - len(indent) - len(GAP), 1))
    return [indent + first, *(f"{indent}{GAP}{line}" for line in rest)]


def wrap(text: str, width: int) -> list[str]:
    """Return text broken between words; a word that is longer than the width stays whole."""
    lines: list[str] = []
    line = ""
    for word in words(text):
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]


def words(text: str) -> list[str]:
    """Split text at its spaces, except between brackets: ``float32[1, 3]`` is one word."""
    found: list[str] = []
    depth = 0
    for part in text.split(" "):
        if depth > 0:
            found[-1] += f" {part}"
        elif part:
            found.append(part)
        depth = max(depth + part.count("[") - part.count("]"), 0)
    return found


def _shortened(text: str, room: int) -> str:
    """Leave out the last words so that text fits; the first one always stays."""
    if len(text) <= room:
        return text
    kept = [word for word in words(text) if word != _MORE.strip()]
    while len(kept) > 1 and len(" ".join(kept)) + len(_MORE) > room:
        kept.pop()
    return " ".join(kept) + (_MORE if len(words(text)) > 1 else "")
