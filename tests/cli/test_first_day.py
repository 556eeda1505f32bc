"""What a new user meets on the first day, as transcripts in ``first_day``.

A line that begins with ``$ pteron`` is a command; one with ``>>>`` is Python, with ``...`` for the
lines below it. Under it is what it writes: for a command stdout, ``stderr:`` lines, and ``exit:``
if the code is not 0; for Python stdout, or the class and text of its error. Everything runs in a
folder with programs in ``m``, inputs in ``d`` and other tools' files in ``bad``. Set
PTERON_UPDATE_CASES=1 to write the files anew.
"""

from __future__ import annotations

import ast
import gzip
import io
import os
import pickle
import shlex
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from support.commands import ROOT, cli, inside

CASES = sorted(Path(__file__).with_name("first_day").glob("*.txt"))
FILES = Path(__file__).with_name("files")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with programs, inputs and files of other tools."""
    root = tmp_path_factory.mktemp("first_day")
    (root / "m").mkdir()
    for program in FILES.glob("*.pte"):
        shutil.copy(program, root / "m")
    for name in ("ModuleLinearProgram.pte", "ModuleLinearProgram.ptd", "ModuleAddWithDevice.pte"):
        shutil.copy(ROOT / "tests/fixtures/peer_modules" / name, root / "m")
    (root / "d").mkdir()
    _write_inputs(root / "d")
    (root / "bad").mkdir()
    _write_foreign(root / "bad", root / "m")
    return root


def _write_inputs(folder: Path) -> None:
    ids = np.array([[1, 2, 3, 4, 5, 6]])
    mask = np.array([[1, 1, 1, 1, 0, 0]])
    np.savez(folder / "tok.npz", attention_mask=mask, input_ids=ids)
    np.savez(folder / "tok_typo.npz", attention_mask=mask, inputs_ids=ids)
    np.savez(folder / "tok_other.npz", mask=mask, ids=ids)
    np.savez(folder / "tok_hf.npz", attention_mask=mask, input_ids=ids, token_type_ids=ids)
    np.savez(folder / "tok_one.npz", attention_mask=mask)
    np.savez(folder / "tok_range.npz", attention_mask=mask, input_ids=ids * 10)
    np.save(folder / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(folder / "img0.png")
    for suffix in ("npy", "npz", "pt", "safetensors", "png"):
        (folder / f"junk.{suffix}").write_bytes(b"junk\n")
        (folder / f"empty.{suffix}").write_bytes(b"")
    torch.save(torch.nn.Linear(2, 2), folder / "module.pt")
    (folder / "pick.pt").write_bytes(pickle.dumps(print))
    with zipfile.ZipFile(folder / "ts.pt", "w") as archive:
        archive.writestr("ts/constants.pkl", b"")
    (folder / "labels2.txt").write_text("cat\ndog\n")
    (folder / "table.csv").write_text("1,2\n")


def _write_foreign(folder: Path, programs: Path) -> None:
    save_file({"a": torch.zeros(2)}, folder / "w.safetensors")
    (folder / "m.onnx").write_bytes(b"\x08\x08\x12\x07pytorch\x1a\x052.1.0:\x10")
    (folder / "m.tflite").write_bytes(b"\x1c\0\0\0TFL3" + bytes(40))
    (folder / "m.gguf").write_bytes(b"GGUF\x03\0\0\0" + bytes(40))
    (folder / "m.pte.gz").write_bytes(gzip.compress(b"x" * 40, mtime=0))
    (folder / "page.pte").write_bytes(b"\n<!DOCTYPE html><html><body>denied</body></html>")
    (folder / "bundle.bpte").write_bytes(b"\x1c\0\0\0BP08" + bytes(40))
    torch.save({"a": torch.zeros(2)}, folder / "w.pt")
    with zipfile.ZipFile(folder / "m.mlpackage", "w") as archive:
        archive.writestr("Manifest.json", b"{}")
    program = (programs / "classifier.pte").read_bytes()
    (folder / "trunc.pte").write_bytes(program[:900])
    data = (programs / "ModuleLinearProgram.ptd").read_bytes()
    (folder / "trunc.ptd").write_bytes(data[:400])
    (folder / "empty.pte").write_bytes(b"")


def statements(text: str) -> Iterator[str]:
    """Yield the commands and the Python statements of a transcript."""
    statement = ""
    for line in text.splitlines():
        if line.startswith("... ") and statement:
            statement += f"\n{line}"
            continue
        if statement:
            yield statement
        statement = line if line.startswith(("$ pteron", ">>> ", "# ")) else ""
    if statement:
        yield statement


def answer(statement: str, folder: Path, names: dict[str, Any]) -> str:
    """Return what a command or a Python statement writes."""
    if statement.startswith("# "):
        return ""
    if statement.startswith("$ "):
        done = cli(*shlex.split(statement)[2:], folder=folder)
        text = done.out + "".join(f"stderr: {line}\n" for line in done.err.splitlines())
        return text + (f"exit: {done.code}\n" if done.code else "") + "\n"
    code = "\n".join(line[4:] for line in statement.splitlines())
    out = io.StringIO()
    with inside(folder), redirect_stdout(out):
        try:
            tree = ast.parse(code)
            if isinstance(tree.body[-1], ast.Expr):
                value = eval(code, names)
                if value is not None:
                    print(repr(value))  # noqa: T201
            else:
                exec(code, names)
        except Exception as error:  # noqa: BLE001 - the transcript shows it
            print(f"{type(error).__name__}: {error}")  # noqa: T201
    return out.getvalue()


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_transcript(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    expected = path.read_text(encoding="utf-8")
    names: dict[str, Any] = {"torch": torch, "np": np}
    found = (
        "".join(
            f"{statement}\n{answer(statement, folder, names)}" for statement in statements(expected)
        )
        .replace(str(folder), "FOLDER")
        .rstrip("\n")
        + "\n"
    )
    if os.environ.get("PTERON_UPDATE_CASES"):
        path.write_text(found, encoding="utf-8")
    assert found == expected


def test_there_are_transcripts() -> None:
    assert len(CASES) > 20
