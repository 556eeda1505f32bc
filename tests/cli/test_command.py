"""The command as a whole: exit codes, streams, styles, and what it costs to start."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import pteron.cli.main as cli_main
from pteron.cli import inspect as inspect_verb
from pteron.cli import page
from pteron.errors import InvalidProgramError
from support.commands import DIGITS, MODULES, ROOT, cli

ADD = MODULES / "ModuleAdd.pte"


class Terminal(io.TextIOWrapper):
    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="\n")

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode("utf-8")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Return a terminal on which :func:`show_on` shows a command's output."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(ROOT)
    return Terminal()


def show_on(terminal: Terminal, *words: str) -> str:
    with redirect_stdout(terminal):
        assert cli_main.main(list(words)) == 0
    return terminal.text


def in_process(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pteron", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        timeout=120,
        check=False,
    )


def test_python_dash_m_is_the_command() -> None:
    done = in_process("inspect", str(ADD))
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout == cli("inspect", ADD).out


# -- exit codes and streams ----------------------------------------------------------------------


def test_a_refused_file_has_a_message_and_no_traceback() -> None:
    done = cli("run", "no/such.pte")
    assert done.code == 1
    assert done.out == ""
    assert done.err.startswith("error: no/such.pte does not exist\nhint: ")
    assert "Traceback" not in done.err


def test_every_verb_explains_itself() -> None:
    for verb in cli_main.VERBS:
        done = cli(verb.name, "--help")
        assert done.code == 0
        assert done.err == ""
        assert "examples:" in done.out
        for line in done.out.splitlines():  # each option says what, and its default
            if line.startswith("  --"):
                assert "(default" in option_text(done.out, line.split()[0]), line


def option_text(help_text: str, option: str) -> str:
    """Return the help of one option, on one line."""
    begin = help_text.index(f"\n  {option}")
    end = min(
        at for at in (help_text.find("\n  -", begin + 1), help_text.find("\n\n", begin)) if at > 0
    )
    return " ".join(help_text[begin:end].split())


def test_the_bare_command_shows_the_overview() -> None:
    done = cli()
    assert (done.code, done.err) == (0, "")
    assert done.out == cli("--help").out


def test_the_overview_names_every_verb_and_exit_code() -> None:
    done = cli("--help")
    assert done.code == 0
    assert all(f"\n    {verb.name} " in done.out for verb in cli_main.VERBS)
    codes = (
        cli_main.EXIT_OK,
        cli_main.EXIT_REFUSED,
        cli_main.EXIT_USAGE,
        cli_main.EXIT_INTERRUPTED,
    )
    assert all(f"\n  {code}  " in done.out for code in codes)


def test_interrupting_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(inspect_verb, "run", interrupted)
    done = cli("inspect", ADD)
    assert (done.code, done.out, done.err) == (130, "", "")


def test_a_hint_names_the_option_and_not_the_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(args: object) -> int:
        raise InvalidProgramError(
            "no",
            hint="give it as data_path, or device_map={'cuda': 'cpu'}, or native_code='allow'",
        )

    monkeypatch.setattr(inspect_verb, "run", refused)
    assert cli("inspect", ADD).err == (
        "error: no\nhint: give it with --data, or --device-map cuda=cpu, or --native-code allow\n"
    )


def test_a_reader_that_goes_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pteron", "inspect", str(DIGITS), "--json"],
            stdout=write,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            timeout=60,
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (cli_main.EXIT_BROKEN_PIPE, b"")


# -- styles ---------------------------------------------------------------------------------------


def test_a_terminal_gets_styles_and_the_same_words(terminal: Terminal) -> None:
    text = show_on(terminal, "inspect", str(DIGITS))
    assert "\x1b[1m" in text
    assert without_styles(text).split() == cli("inspect", DIGITS).out.split()


def without_styles(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_styles_can_be_refused(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert show_on(terminal, "inspect", str(DIGITS)) == cli("inspect", DIGITS).out


def test_a_name_in_a_file_cannot_steer_the_terminal(tmp_path: Path) -> None:
    data = (ROOT / ADD).read_bytes()
    evil = tmp_path / "evil.pte"
    evil.write_bytes(data.replace(b"aten::add", b"a\x1b[2Jdd\n\r"))
    for words in (("inspect",), ("inspect", "--instructions"), ("inspect", "--json"), ("memory",)):
        done = cli(*words, evil)
        assert done.code == 0
        assert "\x1b" not in done.out
        assert "\r" not in done.out
    assert r"a\x1b[2Jdd\n\r" in cli("inspect", evil).out


def test_ascii_streams_get_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.chdir(ROOT)
    assert cli_main.main(["memory", str(DIGITS)]) == 0
    stream.flush()
    text = stream.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert "######" in text
    page.write("é%\n", stream)
    stream.flush()
    assert stream.buffer.getvalue().endswith(b"\\xe9%\n")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1,023 bytes"),
        (1024, "1,024 bytes (1.0 KiB)"),
        (5 << 30, "5,368,709,120 bytes (5.0 GiB)"),
        (1 << 74, f"{1 << 74:,} bytes (16384.0 EiB)"),
    ],
)
def test_sizes(nbytes: int, text: str) -> None:
    assert page.size(nbytes) == text


def test_json_has_no_numbers_that_json_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    page.show_json({"a": [float("nan"), float("inf"), 1.5], "b": (None, True)})
    assert json.loads(capsys.readouterr().out) == {"a": ["nan", "inf", 1.5], "b": [None, True]}


# -- the cost of starting ------------------------------------------------------------------------

PROBE = """
import sys
from pteron.cli.main import main
code = main(sys.argv[1:])
heavy = sorted({"torch", "numpy", "rich", "typer", "PIL", "safetensors"} & set(sys.modules))
print(f"loaded {heavy}, exit code {code}")
"""


EXTERNAL = (
    str(MODULES / "ModuleLinearProgram.pte"),
    "--data",
    str(MODULES / "ModuleLinearProgram.ptd"),
)
LIGHT = [
    ("--help",),
    ("--version",),
    ("run", "--help"),
    ("inspect", *EXTERNAL),
    ("verify", *EXTERNAL),
    ("memory", str(DIGITS), "--json"),
]


@pytest.mark.parametrize("words", LIGHT, ids=lambda words: words[0].strip("-"))
def test_what_only_reads_loads_nothing_heavy(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "loaded [], exit code 0"


def cost(run: Callable[[], object]) -> float:
    """Return the processor time that child processes take."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_inspect_costs_less_than_a_quarter_of_a_second() -> None:
    """On a machine that imports some of the standard library in an eighth of one.

    Slower or shared ones have longer in proportion. Processor time, the best of five each.
    """
    library = "import asyncio, email.message, http.client, unittest.mock, xml.dom.minidom"
    command = [sys.executable, "-c", library]
    costs, others = [], []
    for _ in range(5):
        costs.append(cost(lambda: in_process("inspect", str(DIGITS)).check_returncode()))
        others.append(cost(lambda: subprocess.run(command, check=True)))
    assert min(costs) < 0.25 * max(1.0, min(others) / 0.125)


def test_long_work_shows_progress_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from pteron.cli.progress import steps, working

    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with steps(3, "running") as rounds:
            assert list(rounds) == [0, 1, 2]
        with working("checking"):
            time.sleep(0.02)
        text = stream.text if isinstance(stream, Terminal) else stream.getvalue()
        assert ("running" in text and "checking" in text) == shown
        assert shown or text == ""
