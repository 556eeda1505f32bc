"""``python -m pteron.compat.executorch``, the pytest plugin, and what installing leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from unittest import mock

import pytest

from pteron.compat import executorch as compat

SCRIPT = """
import sys
from executorch.runtime import Runtime
print(Runtime.__module__, sys.argv[1:], __name__)
"""


def on_pteron(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "pteron.compat.executorch", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )


def main(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return what a command that runs nothing returns and writes."""
    code = compat.main(words)
    return (code, *capsys.readouterr())


def test_a_script_may_be_named_like_an_interpreter(tmp_path: Path) -> None:
    (tmp_path / "python_demo.py").write_text(SCRIPT)
    done = on_pteron("--", "python3.11", "python_demo.py", "a", cwd=tmp_path)
    assert done.stdout.strip() == "pteron.compat.runtime ['a'] __main__", done.stderr
    done = on_pteron("--", "python_demo.py", "a", cwd=tmp_path)
    assert done.stdout.strip() == "pteron.compat.runtime ['a'] __main__", done.stderr


@pytest.mark.parametrize("word", ["python", "python3", "python3.11", "python.exe"])
def test_an_interpreter_alone_is_no_command(capsys: pytest.CaptureFixture[str], word: str) -> None:
    code, out, err = main(capsys, "--", word)
    assert (code, out) == (2, "")
    assert err.startswith("usage: ")


def test_code_runs_on_pteron() -> None:
    done = on_pteron("--", "python", "-c", SCRIPT, "a", "b")
    assert done.stdout.strip() == "pteron.compat.runtime ['a', 'b'] __main__", done.stderr


def test_a_folder_does_not_hide_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "user-command"
    command.write_text(f"#!{sys.executable}\n{SCRIPT}")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    folder = tmp_path / "user-command"
    folder.mkdir()
    done = on_pteron("--", "user-command", cwd=tmp_path)
    assert done.stdout.strip() == "pteron.compat.runtime [] __main__", done.stderr
    (folder / "__main__.py").write_text("import sys; print('folder', sys.path[0])")
    done = on_pteron("--", "user-command", cwd=tmp_path)
    assert done.stdout.strip() == "folder user-command", done.stderr


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--", "--help"]])
def test_help_is_what_was_asked_for(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    code, out, err = main(capsys, *words)
    assert (code, err) == (0, "")
    assert out.startswith("usage: python -m pteron.compat.executorch -- script.py")


def test_options_of_the_interpreter_go_to_the_outer_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = main(capsys, "--", "python", "-u", "script.py")
    assert (code, out) == (2, "")
    assert "-u: options of the interpreter go to the outer python" in err
    assert "python -u -m pteron.compat.executorch -- script.py" in err


@pytest.mark.parametrize("content", [b"\x7fELF\0\0", b"#!/bin/sh\nset -e; echo $1\n"])
def test_a_command_that_is_no_python_script_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes
) -> None:
    command = tmp_path / "command"
    command.write_bytes(content)
    code, out, err = main(capsys, "--", str(command))
    assert (code, out) == (2, "")
    assert err == f"{command} is no Python script: only those can run on pteron\n"
    assert not compat.installed()


# -- the plugin ----------------------------------------------------------------------------------


PLUGIN = """
import sys, pytest
for place in sys.argv[2:]:
    given = ["-p", "pteron.compat.pytest_plugin", "-p", "no:cacheprovider"]
    print(int(pytest.main([*given, "--pteron-backend", place, "--rootdir", sys.argv[1]])))
"""


def test_a_backend_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    places = ["support.demo_backend", ":Demo", "no_such_module:Demo", "support.demo_backend:NoSuch"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PLUGIN, str(tmp_path), *places],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.split() == ["4"] * 4, done.stderr
    assert [line for line in done.stderr.splitlines() if line] == [
        "ERROR: --pteron-backend takes MODULE:CLASS, got 'support.demo_backend'",
        "ERROR: --pteron-backend takes MODULE:CLASS, got ':Demo'",
        "ERROR: --pteron-backend no_such_module:Demo: No module named 'no_such_module'",
        "ERROR: --pteron-backend support.demo_backend:NoSuch: "
        "module 'support.demo_backend' has no attribute 'NoSuch'",
    ]


# -- what is installed ---------------------------------------------------------------------------


def test_a_patch_of_the_bindings_reaches_the_runtime() -> None:
    name = "executorch.extension.pybindings.portable_lib"
    import_module("pteron.compat.runtime").Runtime.get()  # one that knows no stand-in
    for _ in range(2):  # the second time finds the same modules
        compat.install(out_variants=False)
        try:
            runtime = import_module("executorch.runtime").Runtime.get()
            with mock.patch(f"{name}._get_registered_backend_names", return_value=["Mine"]):
                assert runtime.backend_registry.registered_backend_names == ["Mine"]
            assert runtime.backend_registry.registered_backend_names != ["Mine"]
            assert runtime is import_module("executorch.runtime").Runtime.get()
        finally:
            compat.uninstall()
