"""``pteron inspect``: what a file holds."""

from __future__ import annotations

import argparse

from pteron.cli.files import (
    add_data,
    add_file,
    find_plan,
    is_data_file,
    open_data,
    read_verified_ptd,
    read_verified_pte,
)
from pteron.cli.inspect_facts import describe_data_file, describe_program
from pteron.cli.inspect_page import page_of_data_file, page_of_program
from pteron.cli.page import show_json
from pteron.errors import InvalidArgumentError
from pteron.format.source import open_source

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
        "--values", action="store_true", help="list every value (default: inputs and outputs only)"
    )
    parser.add_argument(
        "--top",
        metavar="N",
        type=int,
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
    source = open_source(args.file)
    if is_data_file(source):
        if args.data or args.method:
            raise InvalidArgumentError(
                f"{args.file} is a data file: --data and --method are for programs"
            )
        data_file = describe_data_file(read_verified_ptd(source))
        if args.json:
            show_json(data_file)
        else:
            page_of_data_file(data_file, top=args.top).show()
        return 0
    pte = read_verified_pte(source)
    if args.method is not None:
        find_plan(pte, args.method)
    program = describe_program(
        pte,
        open_data(args.data),
        method=args.method,
        instructions=args.instructions,
        values=args.values,
    )
    if args.json:
        show_json(program)
    else:
        page_of_program(program, top=args.top).show()
    return 0
