"""Exports the architectures with six releases of executorch, and packs them for the tests.

    PYTHONPATH=src:tests python -m support.exporters.make [FOLDER]

downloads the wheels into ``FOLDER`` (default: ``exporters`` in the export cache), runs each
exporter in a process of its own, and writes ``tests/fixtures/exporters``. What ``FOLDER`` holds
already is not made again. All exporters run under the installed torch, so that they differ in
nothing else and one set of eager outputs serves all.
"""

from __future__ import annotations

import copy
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.nn import functional

from support.exporters.kept import ALL, FORMS, INDEX, PACK, names
from support.exporting import (
    ExportedFile,
    cache_root,
    export_method,
    export_portable,
    export_xnnpack,
    exported_once,
    write_program,
)
from support.models import Architecture, MethodSpec

EXPORTERS = ("0.7.0", "1.0.1", "1.2.0", "1.3.1", "1.4.1", "1.5.1")
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": 2}]
"""Four bytes at a time, as most of a program's fields and weights are: 7 % less than without."""

BESIDE = {"0.7.0": ("setuptools<80",)}
"""What an exporter needs and newer releases of it lack: ``pkg_resources``."""


def calls_of(methods: dict[str, MethodSpec]) -> dict[str, list[dict[str, list[torch.Tensor]]]]:
    """Run the input sets in order; return inputs and flat outputs by method."""
    found: dict[str, list[dict[str, list[torch.Tensor]]]] = {}
    for name, spec in methods.items():
        module = copy.deepcopy(spec.module)
        found[name] = []
        for inputs in spec.inputs:
            with torch.no_grad():
                leaves = torch.utils._pytree.tree_leaves(module(*inputs))
            outputs = [leaf.contiguous().clone() for leaf in leaves]
            found[name].append({"inputs": [leaf.clone() for leaf in inputs], "outputs": outputs})
    return found


def static_int8(entry: Architecture) -> ExportedFile:
    """Return the architecture quantized and delegated, with the results of the quantized module."""

    def export(folder: Path) -> None:
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

        from support.xnnpack_variants import symmetric

        quantized: dict[str, MethodSpec] = {}
        for name, spec in entry.build().items():
            module = export_method(spec, symmetric(dynamic=False)).module()
            quantized[name] = MethodSpec(module, spec.example, spec.inputs, spec.dynamic_shapes)
        torch.save(calls_of(quantized), folder / "calls.pt")
        write_program(entry, quantized, folder, partitioner=[XnnpackPartitioner()])

    return exported_once(f"{entry.name}_static_int8_with_calls", export)


EXPORT = {"portable": export_portable, "xnnpack": export_xnnpack, "static_int8": static_int8}


@contextmanager
def strides_said() -> Iterator[None]:
    """Have ``max_pool2d`` give its stride also where it is the default.

    Releases before 1.5 look at that argument, which the torch of their time did not leave out.
    """
    pool = functional.max_pool2d

    def with_stride(x: Any, size: Any, stride: Any = None, *rest: Any, **more: Any) -> torch.Tensor:
        return pool(x, size, size if stride is None else stride, *rest, **more)

    with mock.patch.object(functional, "max_pool2d", with_stride):
        yield


def said(error: BaseException) -> str:
    """Return the first line of the error that all others came from."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    text = str(error.args[0] if error.args else error)  # str() of a KeyError is one line of repr
    return f"{type(error).__name__}: {text}".splitlines()[0][:200]


def export_all(listing: Path) -> None:
    """Export with the executorch that is first on the path; write which files there are."""
    programs: dict[str, dict[str, str]] = {form: {} for form in FORMS}
    failures: dict[str, dict[str, str]] = {form: {} for form in FORMS}
    for form in FORMS:
        for name in names(form):
            try:
                with strides_said():
                    programs[form][name] = str(EXPORT[form](ALL[name]).pte.parent)
            except Exception as error:  # noqa: BLE001 - whatever an exporter raises is recorded
                failures[form][name] = said(error)
    facts = {
        "executorch": version("executorch"),
        "torch": torch.__version__,
        "torchao": version("torchao"),
        "transformers": version("transformers"),
        "programs": programs,
        "failures": failures,
    }
    listing.write_text(json.dumps(facts, indent=1))


def fetched(exporter: str, folder: Path) -> list[str]:
    """Download an exporter and return the folders to put first on the path."""
    if version("executorch") == exporter:
        return []
    place, beside = folder / exporter, folder / f"{exporter}-beside"
    pip = [sys.executable, "-m", "pip", "--quiet"]
    if not place.is_dir():
        wheels = folder / "wheels"
        wanted = f"executorch=={exporter}"
        command = [*pip, "download", "--no-deps", "--only-binary=:all:", "--dest", str(wheels)]
        subprocess.run([*command, wanted], check=True)
        (wheel,) = wheels.glob(f"executorch-{exporter}-*.whl")
        zipfile.ZipFile(wheel).extractall(place)
        (place / "executorch" / "data" / "bin" / "flatc").chmod(0o755)
    if exporter in BESIDE and not beside.is_dir():
        command = [*pip, "install", "--no-deps", "--target", str(beside), *BESIDE[exporter]]
        subprocess.run(command, check=True)
    return [str(path) for path in (place, beside) if path.is_dir()]


def run_exporter(exporter: str, folder: Path) -> dict[str, Any]:
    """Export everything with one release in a process of its own; return its record."""
    listing = folder / f"{exporter}.json"
    if not listing.is_file():
        first = fetched(exporter, folder)
        paths = [*first, os.environ.get("PYTHONPATH", "")]
        tools = [str(Path(path) / "executorch" / "data" / "bin") for path in first]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "PATH": os.pathsep.join([*tools, os.environ["PATH"]]),
        }
        command = [sys.executable, "-W", "ignore", "-m", __spec__.name, "--export", str(listing)]
        subprocess.run(command, check=True, env=environment)
    facts = json.loads(listing.read_text())
    if facts["executorch"] != exporter:
        raise SystemExit(f"executorch {exporter} was asked for, {facts['executorch']} ran")
    return facts


def write_pack(records: dict[str, dict[str, Any]]) -> None:
    """Write the pack and its index.

    One file for all exporters, the programs of an architecture next to each other: the weights
    are the same in most of them, and then take room once.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as pack:

        def add(name: str, content: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            pack.addfile(member, io.BytesIO(content))

        for name, entry in ALL.items():
            calls = io.BytesIO()
            torch.save(calls_of(entry.build()), calls)
            add(f"calls/{name}.pt", calls.getvalue())
            for form in FORMS:
                for exporter, facts in records.items():
                    if name in facts["programs"][form]:
                        for path in sorted(Path(facts["programs"][form][name]).iterdir()):
                            add(f"{exporter}/{name}-{form}/{path.name}", path.read_bytes())
    PACK.parent.mkdir(exist_ok=True)
    PACK.write_bytes(lzma.compress(buffer.getvalue(), filters=FILTERS))
    for facts in records.values():
        facts["programs"] = {form: list(facts["programs"][form]) for form in FORMS}
    INDEX.write_text(json.dumps({"exporters": records}, indent=1) + "\n")


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--export"]:
        export_all(Path(arguments[1]))
        return
    folder = Path(arguments[0]) if arguments else cache_root() / "exporters"
    folder.mkdir(parents=True, exist_ok=True)
    write_pack({exporter: run_exporter(exporter, folder) for exporter in EXPORTERS})


if __name__ == "__main__":
    main(sys.argv[1:])
