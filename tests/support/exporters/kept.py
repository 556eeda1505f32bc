"""Programs of six exporters, kept in ``tests/fixtures/exporters``, and what eager torch returned.

``PYTHONPATH=src:tests python -m support.exporters.make`` writes them anew.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from support.exporters.more import MORE
from support.exporting import ExportedFile, cache_root
from support.models import ARCHITECTURES, Architecture

FOLDER = Path(__file__).parents[2] / "fixtures" / "exporters"
PACK = FOLDER / "programs.tar.xz"
INDEX = FOLDER / "index.json"

ALL: dict[str, Architecture] = {**ARCHITECTURES, **MORE}
FORMS = ("portable", "xnnpack", "static_int8")
INT8 = ["bert", "vit", "resnet18", "lstm", "two_methods"]
"""The architectures that are quantized as well."""


def names(form: str) -> list[str]:
    """Return the architectures that every exporter is asked for in that form."""
    return INT8 if form == "static_int8" else list(ALL)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a method: its inputs, and the flat results of eager torch."""

    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class KeptProgram:
    """One program of the pack."""

    exporter: str
    architecture: str
    form: str

    @property
    def name(self) -> str:
        return f"{self.exporter}-{self.architecture}-{self.form}"

    @property
    def entry(self) -> Architecture:
        return ALL[self.architecture]

    @property
    def file(self) -> ExportedFile:
        folder = unpacked() / self.exporter / f"{self.architecture}-{self.form}"
        weights = sorted(folder.glob("*.ptd"))
        return ExportedFile(folder / "program.pte", weights[0] if weights else None)

    @property
    def calls(self) -> dict[str, list[Call]]:
        """Return the calls of each method, in order: state goes from one to the next.

        The quantized module is another for each exporter, the module as it is the same for all.
        """
        own = self.file.pte.with_name("calls.pt")
        path = own if own.is_file() else unpacked() / "calls" / f"{self.architecture}.pt"
        stored = torch.load(path, weights_only=True)
        return {
            method: [Call(tuple(call["inputs"]), tuple(call["outputs"])) for call in calls]
            for method, calls in stored.items()
        }


@cache
def index() -> dict[str, Any]:
    """Return what the generator recorded: versions, programs, and exports that failed."""
    return json.loads(INDEX.read_text())


def programs() -> list[KeptProgram]:
    """Return every kept program."""
    return [
        KeptProgram(exporter, architecture, form)
        for exporter, facts in index()["exporters"].items()
        for form in FORMS
        for architecture in facts["programs"][form]
    ]


@cache
def unpacked() -> Path:
    """Return a folder with what the pack holds."""
    stat = PACK.stat()
    folder = cache_root() / f"exporters-{stat.st_size}-{stat.st_mtime_ns}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(str(folder) + ".lock"):
        if not folder.is_dir():
            part = folder.with_name(folder.name + ".part")
            shutil.rmtree(part, ignore_errors=True)
            with tarfile.open(PACK) as pack:
                pack.extractall(part, filter="data")
            part.rename(folder)
    return folder
