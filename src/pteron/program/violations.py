"""What a verifier found, and a list that stops it when enough was found."""

from __future__ import annotations

from dataclasses import dataclass

from pteron.limits import MAX_VIOLATIONS_REPORTED


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule that a file breaks: what was found, what is allowed, and where.

    ``where`` names the part of the file, as in ``method 'forward', instruction 3 (move %0 -> %1)``.
    ``method`` and ``instruction`` are given where there is one, for those who want to look.
    ``blocks`` is False if only ``method`` cannot be loaded, and the rest of the program can.
    """

    where: str
    message: str
    method: str | None = None
    instruction: int | None = None
    blocks: bool = True

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class EnoughError(Exception):
    """Stop a verifier: as many violations as are reported were found."""


class Findings:
    """Collects violations; raises :class:`EnoughError` when the limit is reached."""

    def __init__(self) -> None:
        self.found: list[Violation] = []

    def add(
        self,
        where: str,
        message: str,
        *,
        method: str | None = None,
        instruction: int | None = None,
        blocks: bool = True,
    ) -> None:
        """Add one violation."""
        self.found.append(Violation(where, message, method, instruction, blocks))
        if len(self.found) >= MAX_VIOLATIONS_REPORTED:
            raise EnoughError
