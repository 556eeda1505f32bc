"""The command ``pteron``: finds the verb, and turns errors into messages and exit codes."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple, Protocol, cast

from pteron import __version__
from pteron.cli.arguments import EXIT_USAGE, Parser
from pteron.errors import AccessFailedError, PteronError

EXIT_OK: Final = 0
EXIT_REFUSED: Final = 1
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

completion: eval "$(pteron --completion bash)", or zsh
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command with these words (those of the process if None) and return its exit code."""
    words = sys.argv[1:] if argv is None else argv
    try:
        code = _run(words)
        _flush()
    except PteronError as error:
        return _refused(error, as_json="--json" in words)
    except ModuleNotFoundError as error:
        from pteron.errors import missing_package

        missing = missing_package(error, f"pteron {words[0]}")
        if not isinstance(missing, PteronError):
            raise
        return _refused(missing, as_json="--json" in words)
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as stop:  # argparse has said why
        return stop.code if isinstance(stop.code, int) else EXIT_USAGE
    return code


def _flush() -> None:
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        from pteron.cli.page import output_failed

        raise output_failed(error) from None


def _run(words: list[str]) -> int:
    if not words:
        from pteron.cli.page import write

        write(build_parser().format_help())
        return EXIT_OK
    if words[0] == "--completion":
        from pteron.cli.completion import show_completion

        return show_completion(words[1:])
    parser = build_parser(words[0])
    if words[0].startswith("-"):
        _check_option(parser, words)
    else:
        _check_verb(parser, words)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        _refuse_words(args.parser, words[0], unknown)
    return cast("Callable[[argparse.Namespace], int]", args.run)(args)


def _refuse_words(parser: Parser, verb: str, unknown: list[str]) -> None:
    """Refuse words that the parser of a verb did not know."""
    options = [word for word in unknown if word.startswith("-")]
    if not options:
        if verb == "run":
            hint = f"inputs are given with --input: `--input {unknown[0]}`"
        else:
            hint = "`pteron verify` takes several" if verb != "verify" else "put files first"
        parser.fail(f"`pteron {verb}` takes one file; {unknown[0]!r} is one too many", hint)
    from difflib import get_close_matches

    option, _, attached = options[0].partition("=")
    near = get_close_matches(option, parser._option_string_actions, n=1)
    value = attached or next((word for word in unknown if not word.startswith("-")), "")
    if verb == "run" and value and option.startswith("--") and near != ["--input"]:
        parser.fail(
            f"`pteron run` has no option {option}",
            f"to give an input of that name: `--input {option[2:]}={value}`",
        )
    meant = f" (did you mean {near[0]}?)" if near else ""
    parser.error(f"`pteron {verb}` has no option {option}{meant}")


def _check_option(parser: Parser, words: list[str]) -> None:
    """Refuse an option before the verb; only the command's own may stand there."""
    option = words[0].partition("=")[0]
    if option in parser._option_string_actions:
        return
    if option == "-V":
        parser.fail("`pteron` has no option -V", "`pteron --version`")
    names = [verb.name for verb in VERBS]
    verb = next((word for word in words if word in names), "VERB")
    parser.fail(
        f"`pteron` has no option {option}", f"options come after the verb: `pteron {verb} {option}`"
    )


def _check_verb(parser: Parser, words: list[str]) -> None:
    word = words[0]
    names = [verb.name for verb in VERBS]
    if word in names:
        return
    if word == "help" and words[1:2] and words[1] in names:
        parser.fail("'help' is not a verb", f"`pteron {words[1]} --help`")
    if word in ("version", "help"):
        parser.fail(f"{word!r} is not a verb", f"`pteron --{word}`")
    if Path(word).exists() or word.endswith((".pte", ".ptd")):
        parser.fail(f"{word!r} is a file; a verb comes first", f"`pteron inspect {word}`")
    from difflib import get_close_matches

    near = get_close_matches(word, names, n=1)
    meant = f"did you mean {near[0]}? There are" if near else "there are"
    parser.error(f"{word!r} is not a verb; {meant} {', '.join(names)}")


def build_parser(verb: str | None = None) -> Parser:
    """Return the parser. With a known verb, only that verb's module is imported."""
    parser = Parser(
        prog="pteron",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"pteron {__version__}")
    parser.add_argument(
        "--completion",
        metavar="SHELL",
        help="write the completion of commands and options for bash or zsh",
    )
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True, prog="pteron")
    for name, summary in VERBS:
        one = verbs.add_parser(name, help=summary, allow_abbrev=False)
        if verb == name:
            _complete(one, name)
    return parser


def _complete(parser: Parser, name: str) -> None:
    module = cast("VerbModule", import_module(f"pteron.cli.{name}"))
    parser.description = module.HELP
    parser.epilog = module.EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    module.add_arguments(parser)
    parser.refuse_repeats()
    parser.set_defaults(run=module.run, parser=parser)


_AS_OPTIONS: Final = (
    (r"device_map=\{['\"]([\w:]+)['\"]: ['\"]([\w:]+)['\"]\}", r"--device-map \1=\2"),
    (r"\bas data_path\b", "with --data"),
    (r"read it first and hand over the bytes", "copy it to a file first"),
    (r"\bdata_path\b", "--data"),
    (r"native_code=['\"](\w+)['\"]", r"--native-code \1"),
)
"""How a hint names an argument of ``load_program``, and the option that is the same."""


def _refused(error: PteronError, *, as_json: bool) -> int:
    """Report an error on stderr, and with --json on stdout too."""
    if error.hint is not None:
        for pattern, option in _AS_OPTIONS:
            error.hint = re.sub(pattern, option, error.hint)
    try:
        _report(error)
        if as_json and not str(error).startswith("the output cannot be written"):
            _report_json(error)
    except AccessFailedError as failure:  # stdout again
        _report(failure)
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_BROKEN_PIPE
    if isinstance(error, AccessFailedError) and str(error).startswith("the output cannot"):
        _silence_stdout()
    return EXIT_REFUSED


def _report(error: PteronError) -> None:
    from pteron.cli.page import printable, write

    if sys.stderr is None:
        return
    for number, line in enumerate(str(error).splitlines()):
        write(f"{'error: ' if number == 0 else ''}{printable(line)}\n", sys.stderr)


def _report_json(error: PteronError) -> None:
    from pteron.cli.page import show_json

    facts = {
        "kind": type(error).__name__,
        "code": error.code,
        "message": error.message,
        "context": error.context,
        "hint": error.hint,
    }
    show_json({"json_version": 1, "error": facts})
    _flush()


def _silence_stdout() -> None:
    """Keep the interpreter from complaining of the broken pipe once more as it ends."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):  # stdout is closed, or not a file (a test's)
        return
