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


def test_tables_fit_a_terminal_without_styles(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    styled = show_on(terminal, "inspect", str(DIGITS))
    monkeypatch.setenv("NO_COLOR", "1")
    plain = show_on(Terminal(), "inspect", str(DIGITS))
    assert max(map(len, plain.splitlines())) <= 60
    assert plain == without_styles(styled) != styled


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


# -- streams that fail, and packages that are not there ------------------------------------------


def shell(line: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which ``pteron`` is the command."""
    pteron = f'pteron() {{ "{sys.executable}" -m pteron "$@"; }}\n'
    return subprocess.run(
        ["bash", "-c", pteron + line],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **env},
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("target", "reason"),
    [(">&-", "stdout is closed"), ("> /dev/full", "no space left on device")],
)
def test_output_that_cannot_be_written_is_an_error_in_words(target: str, reason: str) -> None:
    for words in (f"inspect {ADD}", f"verify {ADD} --json"):
        done = shell(f"pteron {words} {target}")
        assert done.stderr == f"error: the output cannot be written: {reason}\n"
        assert done.returncode == 1


WITHOUT = """
import sys
sys.modules.update({name: None for name in NAMES})
from pteron.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def without(packages: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command where some packages are not installed."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.replace("NAMES", repr(packages.split())), *map(str, words)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        timeout=60,
        check=False,
    )


def test_without_torch_a_run_says_what_to_install() -> None:
    done = without("torch", "run", ADD, "--random", "0")
    text = "error: pteron run needs the package torch\nhint: pip install torch\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", text)
    assert without("torch numpy rich", "inspect", ADD).returncode == 0


NO_TORCH = """
import sys
sys.modules["torch"] = None
import pteron
try:
    pteron.Runtime.get().load_program("demo/digits.pte").load_method()
except ImportError as error:
    print(type(error).__name__, error)
try:
    from pteron import Module
except pteron.PteronError as error:
    print(type(error).__name__, error)
"""


def test_without_torch_python_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_TORCH], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout == (
        "PackageMissingError loading a method needs the package torch\nhint: pip install torch\n"
        "PackageMissingError pteron.Module needs the package torch\nhint: pip install torch\n"
    )


@pytest.mark.parametrize(
    ("package", "suffix", "name"), [("PIL", "png", "pillow"), ("safetensors",) * 3]
)
def test_a_missing_package_is_named_alike(
    package: str, suffix: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(b"x")
    monkeypatch.setitem(sys.modules, package, None)
    done = cli("run", DIGITS, "--input", path)
    text = f"error: reading {path} needs the package {package}\nhint: pip install {name}\n"
    assert (done.code, done.err) == (1, text)


def test_verbose_says_what_happens() -> None:
    done = cli("run", DIGITS, "--random", "0", "--verbose")
    assert done.code == 0
    opened, loaded, ran = done.err.splitlines()
    size = (ROOT / DIGITS).stat().st_size
    assert re.fullmatch(rf"opened and verified {DIGITS} \({size:,} bytes\) in \S+ ms", opened)
    assert re.fullmatch(
        r"loaded method 'forward' in \S+ ms: \d+ instructions, \d+ kernels; "
        r"buffer 1 takes 9,216 bytes on cpu",
        loaded,
    )
    assert re.fullmatch(r"ran method 'forward' in \S+ ms", ran)
    assert cli("run", DIGITS, "--random", "0").err == ""


# -- narrow terminals -----------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [40, 60, 80])
@pytest.mark.parametrize("words", [("run", "--random", "0"), ("inspect",)])
def test_tables_never_break_inside_a_word(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, columns: int, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    program = "tests/cli/files/classifier.pte"
    plain = cli(words[0], program, *words[1:]).out
    text = without_styles(show_on(terminal, words[0], program, *words[1:]))
    assert set(text.split()) <= set(plain.split()) | {"..."}
    for kind in ("float32[1, 3, 4, 4]", "float32[1, 4]"):
        if kind in plain:
            assert kind in text
    longest = max(len(word) for word in plain.split())
    assert all(len(line) <= max(columns, longest) for line in text.splitlines())


def test_at_80_columns_an_output_is_one_line(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = ("run", "tests/cli/files/scores.pte", "--random", "0", "--top", "0")
    _, header, row = without_styles(show_on(terminal, *words)).splitlines()
    assert header.split()[-2:] == ["first", "values"]
    assert row.endswith(" ...")
    assert len(row) <= 80


# -- completion -----------------------------------------------------------------------------------


def completed(*lines: tuple[str, ...]) -> list[list[str]]:
    """Return what bash offers for the last word of each command."""
    script = cli("--completion", "bash").out
    for words in lines:
        line = " ".join(f"'{word}'" for word in ("pteron", *words))
        script += f"COMP_WORDS=({line})\nCOMP_CWORD={len(words)}\n_pteron\n"
        script += 'echo "${COMPREPLY[@]}"\n'
    done = shell(script)
    assert done.stderr == ""
    return [line.split() for line in done.stdout.splitlines()]


def test_bash_completes_verbs_options_choices_and_files() -> None:
    lines = (
        ("ins",),
        ("run", "--in"),
        ("run", "x.pte", "--native-code", "r"),
        ("inspect", "demo/dig"),
    )
    assert completed(*lines) == [
        ["inspect"],
        ["--input"],
        ["refuse"],
        ["demo/digits", "demo/digits.pte"],
    ]
    refused = cli("--completion", "fish")
    assert refused.err == "error: --completion takes bash or zsh, got fish\n"
    assert "bashcompinit" in cli("--completion", "zsh").out
