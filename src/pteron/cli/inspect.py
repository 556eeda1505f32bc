"""``pteron inspect``: what a file holds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import cast

from pteron.cli.arguments import whole
from pteron.cli.bound import BoundInstruction, describe_bound, show_bound
from pteron.cli.files import (
    add_data,
    add_file,
    find_plan,
    is_data_file,
    open_data,
    read_verified_ptd,
    read_verified_pte,
)
from pteron.cli.inspect_facts import DataFile, Program, describe_data_file, describe_program
from pteron.cli.inspect_page import page_of_data_file, page_of_program
from pteron.cli.page import show_json
from pteron.errors import InvalidArgumentError
from pteron.format.source import SourceData, open_source

HELP = """\
Show what a program (.pte) or a data file (.ptd) holds: methods with their inputs, outputs and
operators, delegates, planned memory, weights, state, named data, and machine code.

The file is checked first; nothing in it is run, and no device is needed.
"""

EXAMPLES = """\
examples:
  pteron inspect model.pte
  pteron inspect model.pte --data weights.ptd     with the weights that are kept outside
  pteron inspect model.pte --method forward --instructions
  pteron inspect model.pte --method forward --bound      what runs, what does not, and why
  pteron inspect model.pte --json | jq '.methods[].operators'
  pteron inspect weights.ptd
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_file(parser, "the program (.pte) or data file (.ptd)")
    add_data(parser)
    parser.add_argument(
        "--method",
        metavar="NAME",
        help="show this method only, such as forward (default: all methods)",
    )
    parser.add_argument(
        "--instructions", action="store_true", help="list every instruction (default: counts only)"
    )
    parser.add_argument(
        "--bound",
        action="store_true",
        help="also load --method NAME (or the only method) and say of each instruction whether it "
        "runs, or which pass leaves it out and why; imports torch (default: no)",
    )
    parser.add_argument(
        "--values", action="store_true", help="list every value (default: inputs and outputs only)"
    )
    parser.add_argument(
        "--top",
        metavar="N",
        type=whole,
        default=10,
        help="how many of the largest weights, blobs and segments to list; 0 lists all "
        "(default: 10)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="write everything as JSON, with all weights and blobs (default: text)",
    )


def run(args: argparse.Namespace) -> int:
    """Show the file."""
    facts = describe(
        args.file,
        args.data,
        method=args.method,
        instructions=args.instructions,
        values=args.values,
    )
    bound: list[BoundInstruction] = []
    if args.bound:
        name = _one_method(facts, args.method)
        bound = describe_bound(args.file, args.data, name)
    if args.json:
        show_json({**facts, "bound": bound} if args.bound else facts)
    elif "methods" in facts:
        page = page_of_program(cast("Program", facts), top=args.top)
        if args.bound:
            show_bound(page, name, bound)
        page.show()
    else:
        page_of_data_file(facts, top=args.top).show()
    return 0


def _one_method(facts: Program | DataFile, name: str | None) -> str:
    """Return the method that --bound is about."""
    names = [method["name"] for method in cast("Program", facts).get("methods", ())]
    if not names:
        raise InvalidArgumentError("--bound is about a method; the file has none")
    if name is None and len(names) != 1:
        raise InvalidArgumentError(
            f"--bound is about one method; the file has {', '.join(names)}",
            hint="choose one with --method NAME",
        )
    return names[0] if name is None else name


def inspect(
    path: SourceData,
    data_path: SourceData | Sequence[SourceData] = (),
    *,
    method: str | None = None,
    instructions: bool = False,
    values: bool = False,
) -> Program | DataFile:
    """Return what a program or data file holds: the dict that ``pteron inspect --json`` prints.

    The file is checked completely; nothing in it is run, and torch is not imported.

    Args:
        path: The program (``.pte``) or data file (``.ptd``): a path, bytes or a file object.
        data_path: The data file or files with the weights that the program keeps outside.
        method: Describe this method only (default: all methods).
        instructions: Also list every instruction.
        values: Also list every value.

    """
    data = data_path if isinstance(data_path, (list, tuple)) else (data_path,)
    return describe(path, data, method=method, instructions=instructions, values=values)


def describe(
    path: SourceData,
    data: Sequence[SourceData],
    *,
    method: str | None,
    instructions: bool,
    values: bool,
) -> Program | DataFile:
    """Check a file and return what it holds."""
    source = open_source(path)
    if is_data_file(source):
        if data or method:
            raise InvalidArgumentError(
                f"{source.name} is a data file: --data and --method are for programs"
            )
        return describe_data_file(read_verified_ptd(source))
    pte = read_verified_pte(source)
    if method is not None:
        find_plan(pte, method)
    return describe_program(
        pte, open_data(data), method=method, instructions=instructions, values=values
    )
