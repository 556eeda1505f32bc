"""What a verb prints: headings, lines and tables, plain in a pipe and set out on a terminal."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TextIO, TypeAlias

_GAP = "  "
_WIDTH = 100
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class Heading(NamedTuple):
    """The title of what follows."""

    text: str


class Line(NamedTuple):
    """Text that stays as it is."""

    text: str


class Table(NamedTuple):
    """Rows under a header; ``right`` tells for each column whether it holds numbers."""

    header: list[str]
    rows: list[list[str]]
    right: list[bool]


Block: TypeAlias = "Heading | Line | Table"


class Page:
    """Collects blocks; text from a file may hold anything, and is made printable here."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    def heading(self, text: str) -> None:
        """Add a title, with an empty line above it."""
        if self.blocks:
            self.blocks.append(Line(""))
        self.blocks.append(Heading(printable(text)))

    def line(self, text: str = "") -> None:
        """Add one line."""
        self.blocks.append(Line(printable(text)))

    def table(
        self, header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()
    ) -> None:
        """Add a table, an empty line between it and one above it.

        Columns without content and tables without rows are left out.
        """
        cells = [[printable(cell) for cell in row] for row in rows]
        kept = [at for at in range(len(header)) if any(row[at] for row in cells)]
        if kept:
            if self.blocks and isinstance(self.blocks[-1], Table):
                self.line()
            self.blocks.append(
                Table(
                    [header[at] for at in kept],
                    [[row[at] for at in kept] for row in cells],
                    [at in right for at in kept],
                )
            )

    def plain(self) -> str:
        """Return the page as text without any style."""
        return "".join(_plain(block) for block in self.blocks)

    def show(self) -> None:
        """Write the page to stdout: with styles and folded cells on a terminal, else plain."""
        if is_terminal(sys.stdout):
            self._show_styled()
        else:
            write(self.plain())

    def _show_styled(self) -> None:
        # Imported here: it costs as much as all the rest of `pteron inspect`.
        from rich.console import Console
        from rich.padding import Padding
        from rich.table import Table as RichTable
        from rich.text import Text

        console = Console(highlight=False, markup=False, emoji=False)
        for block in self.blocks:
            if isinstance(block, Heading):
                console.print(Text(block.text, style="bold"), soft_wrap=True)
            elif isinstance(block, Line):
                console.print(Text(block.text), soft_wrap=True)
            else:
                table = RichTable(
                    box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0)
                )
                for title, right in zip(block.header, block.right, strict=True):
                    table.add_column(title, justify="right" if right else "left", overflow="fold")
                for row in block.rows:
                    table.add_row(*map(Text, row))
                console.print(Padding(table, (0, 0, 0, 2)))


def _plain(block: Block) -> str:
    if not isinstance(block, Table):
        return f"{block.text}\n"
    rows = [block.header, *block.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(block.header))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, block.right, strict=True)
        ]
        lines.append((_GAP + _GAP.join(cells)).rstrip())
    return "\n".join(lines) + "\n"


def is_terminal(stream: TextIO) -> bool:
    """Whether styles may be written: a terminal that knows them, and nobody said no."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def line_width(stream: TextIO) -> int:
    """Return the characters in a line of a terminal; 100 for anything else."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or _WIDTH
    except (OSError, ValueError, AttributeError):
        return _WIDTH


def is_unicode(stream: TextIO) -> bool:
    """Whether the stream can show more than ASCII."""
    return (getattr(stream, "encoding", None) or "ascii").lower().startswith("utf")


def printable(text: str) -> str:
    """Return text with everything a terminal would obey written as an escape."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii")
        for c in text
    )


def write(text: str, stream: TextIO | None = None) -> None:
    """Write text as it is; a character that the stream cannot encode becomes an escape."""
    stream = sys.stdout if stream is None else stream
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def show_json(facts: Any) -> None:
    """Write dicts, lists and plain values as JSON; numbers that JSON lacks become strings."""
    write(json.dumps(_jsonable(facts), indent=2, allow_nan=False) + "\n")


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def count(number: int, noun: str) -> str:
    """Return ``1 method`` or ``2 methods``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(nbytes: int) -> str:
    """Return bytes exactly, and rounded if there are many: ``29,352 bytes (28.7 KiB)``."""
    exact = count(nbytes, "byte")
    if nbytes < 1024:
        return exact
    power = min((nbytes.bit_length() - 1) // 10, len(_UNITS))
    return f"{exact} ({nbytes / 1024**power:.1f} {_UNITS[power - 1]})"
