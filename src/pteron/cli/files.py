"""Opening what a verb was given, and checking it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from pteron.cli import progress
from pteron.errors import NotFoundError
from pteron.format.ptd import PtdFile, read_ptd
from pteron.format.pte import PteFile, read_pte
from pteron.format.schema import ExecutionPlan
from pteron.format.source import ByteSource, SourceData, open_source
from pteron.program.signature import nearest
from pteron.program.verify import verify_program, verify_ptd

DATA_MAGIC: Final = b"FT01"
BIG_FILE_BYTES: Final = 2 << 20


def add_file(parser: argparse.ArgumentParser, what: str = "the program, a .pte file") -> None:
    """Add the argument FILE."""
    parser.add_argument("file", metavar="FILE", help=what)


def add_data(parser: argparse._ActionsContainer) -> None:
    """Add the option --data."""
    parser.add_argument(
        "--data",
        metavar="PTD",
        action="append",
        default=[],
        help="a .ptd file with weights that the program keeps outside; may be given several "
        "times (default: none)",
    )


def is_data_file(source: ByteSource) -> bool:
    """Whether the bytes are those of a ``.ptd`` file, whatever its name."""
    return bytes(source.view[4:8]) == DATA_MAGIC


def open_program(path: str) -> PteFile:
    """Open a program and check all of it."""
    return read_verified_pte(open_source(path))


def read_verified_pte(source: ByteSource) -> PteFile:
    """Read a program and check all of it."""
    with working(source):
        pte = read_pte(source)
        verify_program(pte)
    return pte


def working(source: ByteSource) -> AbstractContextManager[object]:
    """Show on a terminal that a large file is being checked."""
    if source.size < BIG_FILE_BYTES:
        return nullcontext()
    return progress.working(f"checking {source.name}")


def open_data(paths: Sequence[SourceData]) -> tuple[PtdFile, ...]:
    """Open data files and check all of them."""
    return tuple(read_verified_ptd(open_source(path)) for path in paths)


def read_verified_ptd(source: ByteSource) -> PtdFile:
    """Read a data file and check all of it."""
    ptd = read_ptd(source)
    verify_ptd(ptd)
    return ptd


def find_plan(pte: PteFile, name: str) -> ExecutionPlan:
    """Return the plan of a method, or raise NotFoundError with the names there are."""
    plans = {plan.name: plan for plan in pte.program.execution_plan}
    if name not in plans:
        near = nearest(name, plans)
        meant = f" (did you mean {near}?)" if near is not None else ""
        known = ", ".join(plans) or "none"
        raise NotFoundError(f"{pte.source.name} has no method {name!r}{meant}; it has: {known}")
    return plans[name]
