"""The command ``pteron``: finds the verb, and turns errors into messages and exit codes."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Final, NamedTuple, NoReturn, Protocol, cast

from pteron import __version__
from pteron.errors import PteronError

EXIT_OK: Final = 0
EXIT_REFUSED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141


class Verb(NamedTuple):
    """A verb: its module in this package is imported only when it is needed."""

    name: str
    summary: str


class VerbModule(Protocol):
    """What the module of a verb has."""

    HELP: str
    """What the verb does, for ``pteron VERB --help``."""
    EXAMPLES: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the verb's options."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it and return the exit code."""


VERBS: Final = (
    Verb("inspect", "show what a program or data file holds: methods, operators, weights, code"),
    Verb("verify", "check a file completely and list everything that is wrong with it"),
    Verb("run", "run a method on inputs from files, or on random ones"),
    Verb("memory", "draw a method's memory plan: buffers, devices, slots and their lifetimes"),
)

DESCRIPTION: Final = """\
Look into ExecuTorch programs (.pte files) and run them, on any device that PyTorch knows.
"""

EPILOG: Final = """\
examples:
  pteron inspect model.pte                  what is in the file
  pteron run model.pte --random 0           run it on random inputs
  pteron run model.pte --input photo.png    run it on a picture
  pteron VERB --help                        all options of a verb

exit codes:
  0  all is well
  1  the file, the input or the run was refused; the reason is on stderr
  2  the command line was not understood
  130  interrupted with Ctrl-C
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command with these words (those of the process if None) and return its exit code."""
    words = sys.argv[1:] if argv is None else argv
    try:
        code = _run(words)
        sys.stdout.flush()
    except PteronError as error:
        _report(error)
        return EXIT_REFUSED
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as stop:  # argparse has said why
        return stop.code if isinstance(stop.code, int) else EXIT_USAGE
    return code


def _run(words: list[str]) -> int:
    parser = build_parser(words[0] if words else None)
    if words and not words[0].startswith("-"):
        _check_verb(parser, words[0])
    args, unknown = parser.parse_known_args(words)
    if unknown:
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return cast("Callable[[argparse.Namespace], int]", args.run)(args)


def _check_verb(parser: argparse.ArgumentParser, word: str) -> None:
    names = [verb.name for verb in VERBS]
    if word not in names:
        from difflib import get_close_matches

        near = get_close_matches(word, names, n=1)
        meant = f"did you mean {near[0]}? There are" if near else "there are"
        parser.error(f"{word!r} is no verb; {meant} {', '.join(names)}")


def build_parser(verb: str | None = None) -> argparse.ArgumentParser:
    """Return the parser. With a known verb, only that verb's module is imported."""
    parser = _Parser(
        prog="pteron",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"pteron {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True, prog="pteron")
    for name, summary in VERBS:
        one = verbs.add_parser(name, help=summary, allow_abbrev=False)
        if verb == name:
            _complete(one, name)
    return parser


def _complete(parser: argparse.ArgumentParser, name: str) -> None:
    module = cast("VerbModule", import_module(f"pteron.cli.{name}"))
    parser.description = module.HELP
    parser.epilog = module.EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    module.add_arguments(parser)
    parser.set_defaults(run=module.run, parser=parser)


class _Parser(argparse.ArgumentParser):
    """Says where help is when the command line is not understood."""

    def error(self, message: str) -> NoReturn:
        self.exit(
            EXIT_USAGE, f"error: {message}\nhint: `{self.prog} --help` explains the options\n"
        )


_AS_OPTIONS: Final = (
    (r"device_map=\{['\"]([\w:]+)['\"]: ['\"]([\w:]+)['\"]\}", r"--device-map \1=\2"),
    (r"\bas data_path\b", "with --data"),
    (r"\bdata_path\b", "--data"),
    (r"native_code=['\"](\w+)['\"]", r"--native-code \1"),
)
"""How a hint names an argument of ``load_program``, and the option that is the same."""


def _report(error: PteronError) -> None:
    from pteron.cli.page import printable, write

    if error.hint is not None:
        for pattern, option in _AS_OPTIONS:
            error.hint = re.sub(pattern, option, error.hint)
    for number, line in enumerate(str(error).splitlines()):
        write(f"{'error: ' if number == 0 else ''}{printable(line)}\n", sys.stderr)


def _silence_stdout() -> None:
    """Keep the interpreter from complaining of the broken pipe once more as it ends."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # stdout is no file (a test's)
        return
