"""What a verb prints: headings, lines and tables, plain in a pipe and set out on a terminal."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TextIO, TypeAlias

from pteron.cli.layout import Table, fitted, records, set_out, wrapped
from pteron.errors import AccessFailedError

_WIDTH = 100
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class Heading(NamedTuple):
    """The title of what follows."""

    text: str


class Line(NamedTuple):
    """Text; ``drawn`` is a drawing, which is never broken."""

    text: str
    drawn: bool = False


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

    def line(self, text: str = "", *, drawn: bool = False) -> None:
        """Add one line; a drawing is not broken on a narrow terminal."""
        self.blocks.append(Line(printable(text), drawn))

    def table(
        self,
        header: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        right: Iterable[int] = (),
        cut: int | None = None,
    ) -> None:
        """Add a table, an empty line between it and one above it.

        Columns without content and tables without rows are left out. On a narrow terminal the cells
        of column ``cut`` lose their last words.
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
                    kept.index(cut) if cut in kept else None,
                )
            )

    def plain(self) -> str:
        """Return the page as text without any style."""
        return "".join(_plain(block) for block in self.blocks)

    def show(self) -> None:
        """Write the page to stdout: with styles and in its width on a terminal, else plain."""
        stream = sys.stdout
        if stream is None or not stream.isatty() or os.environ.get("TERM") == "dumb":
            write(self.plain())
            return
        width = line_width(stream)
        codes = _CODES if is_terminal(stream) else ("", "", "")
        lines = (line for block in self.blocks for line in _styled(block, width, codes))
        write("".join(f"{line}\n" for line in lines))


_CODES = ("\x1b[1m", "\x1b[2m", "\x1b[0m")
"""What begins bold and dim text, and ends both."""


def _styled(block: Block, width: int, codes: tuple[str, str, str]) -> list[str]:
    """Return the lines of a block on a terminal."""
    bold, dim, plain = codes
    if isinstance(block, Heading):
        return [f"{bold}{line}{plain}" for line in wrapped(block.text, width)]
    if isinstance(block, Line):
        return [block.text] if block.drawn else wrapped(block.text, width)
    lines = fitted(block, width)
    if lines is None:
        return records(block, width)
    return [f"{dim}{lines[0]}{plain}", *lines[1:]]


def _plain(block: Block) -> str:
    if not isinstance(block, Table):
        return f"{block.text}\n"
    return "\n".join(set_out(block)) + "\n"


def is_terminal(stream: TextIO) -> bool:
    """Whether styles may be written: a terminal that knows them, and nobody said no."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def line_width(stream: TextIO) -> int:
    """Return the characters in a line of a terminal; 100 for anything else."""
    told = os.environ.get("COLUMNS", "")
    if told.isdigit() and int(told):
        return int(told)
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
    """Write text as it is; a character that the stream cannot encode becomes an escape.

    Raises:
        AccessFailedError: Stdout is closed, or what it leads to is full.

    """
    stream = sys.stdout if stream is None else stream
    if stream is None:
        raise AccessFailedError("the output cannot be written: stdout is closed")
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise output_failed(error) from None


def output_failed(error: OSError) -> AccessFailedError:
    """Return the error about output that cannot be written."""
    reason = (error.strerror or "the device failed").lower()
    return AccessFailedError(f"the output cannot be written: {reason}", errno=error.errno)


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
