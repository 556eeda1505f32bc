"""Types of options, and the parser that explains what it does not understand."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Final, NoReturn

EXIT_USAGE: Final = 2


def whole(text: str) -> int:
    """Return a number of at least 0."""
    return _at_least(0, text)


def positive(text: str) -> int:
    """Return a number of at least 1."""
    return _at_least(1, text)


def _at_least(least: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return number


class Parser(argparse.ArgumentParser):
    """Says where help is when the command line is not understood; refuses an option given twice."""

    def error(self, message: str) -> NoReturn:
        self.fail(message, f"`{self.prog} --help` explains the options")

    def fail(self, message: str, hint: str) -> NoReturn:
        """End with a message, and what to do."""
        self.exit(EXIT_USAGE, f"error: {message}\nhint: {hint}\n")

    def refuse_repeats(self) -> None:
        """Refuse a second value of an option that holds one."""
        for action in self._actions:
            if type(action) is argparse._StoreAction and action.option_strings:
                action.__class__ = _StoreOnce


class _StoreOnce(argparse._StoreAction):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        seen: set[str] = namespace.__dict__.setdefault("_seen", set())
        if self.dest in seen:
            parser.error(f"{option_string} is given twice; it takes one value")
        seen.add(self.dest)
        super().__call__(parser, namespace, values, option_string)
