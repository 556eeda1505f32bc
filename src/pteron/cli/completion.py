"""Completion of verbs, options and files in a shell, written out once: starting costs nothing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import Final, cast

from pteron.cli.arguments import Parser
from pteron.cli.page import write
from pteron.errors import InvalidArgumentError

_SCRIPT: Final = """\
{prefix}_pteron() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" options=""
    COMPREPLY=()
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{verbs} --help --version" -- "$word"))
        return
    fi
    case "${{COMP_WORDS[1]}} $before" in
{choices}
    esac
    if [[ "$word" == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$word"))
    else
        COMPREPLY=($(compgen -f -- "$word"))
    fi
}}
complete -o filenames -F _pteron pteron
"""

_PREFIX: Final = {"bash": "", "zsh": "autoload -U +X bashcompinit && bashcompinit\n"}


def show_completion(words: Sequence[str]) -> int:
    """Write the script for a shell."""
    if len(words) != 1 or words[0] not in _PREFIX:
        raise InvalidArgumentError(
            f"--completion takes {' or '.join(_PREFIX)}, got {' '.join(words) or 'nothing'}"
        )
    write(script(words[0]))
    return 0


def script(shell: str) -> str:
    """Return the text for a shell to evaluate."""
    from pteron.cli.main import VERBS, VerbModule

    cases, choices = [], []
    for name, _ in VERBS:
        parser = Parser(prog=f"pteron {name}")
        cast("VerbModule", import_module(f"pteron.cli.{name}")).add_arguments(parser)
        options = " ".join(option for action in parser._actions for option in action.option_strings)
        cases.append(f'        {name}) options="{options}" ;;')
        choices += [
            f'        "{name} {option}") '
            f'COMPREPLY=($(compgen -W "{" ".join(map(str, action.choices))}" -- "$word")); '
            "return ;;"
            for action in parser._actions
            for option in action.option_strings
            if _has_choices(action) and action.choices is not None
        ]
    return _SCRIPT.format(
        prefix=_PREFIX[shell],
        cases="\n".join(cases),
        choices="\n".join(choices),
        verbs=" ".join(name for name, _ in VERBS),
    )


def _has_choices(action: argparse.Action) -> bool:
    return bool(action.choices) and bool(action.option_strings)
