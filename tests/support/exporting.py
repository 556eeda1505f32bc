"""Programs of the architectures, exported once and kept in a folder that processes share."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from support.models import Architecture, MethodSpec

SOURCES = ("models.py", "nets.py", "exporting.py")
"""A change in one of these files makes every kept program stale."""


@dataclass(frozen=True)
class ExportedFile:
    """A program on disk, and its weights file if it has one."""

    pte: Path
    ptd: Path | None = None

    @property
    def data_path(self) -> str | None:
        """The weights file as the runtimes take it."""
        return None if self.ptd is None else str(self.ptd)


def cache_folder() -> Path:
    """Return the folder of programs for this mix of versions (``PTERON_EXPORT_CACHE`` moves it)."""
    return cache_root() / fingerprint()


def cache_root() -> Path:
    """Return the folder for everything that tests keep."""
    root = os.environ.get("PTERON_EXPORT_CACHE")
    return Path(root) if root else Path(__file__).parents[2] / ".export_cache"


@cache
def fingerprint() -> str:
    """Name what an export depends on: versions, and the text of the models."""
    digest = hashlib.sha256(sys.version.encode())
    for package in ("torch", "executorch", "transformers"):
        digest.update(version(package).encode())
    for name in SOURCES:
        digest.update(Path(__file__).with_name(name).read_bytes())
    return digest.hexdigest()[:16]


def exported_once(name: str, export: Callable[[Path], None]) -> ExportedFile:
    """Return the program kept as ``name``, made by ``export(folder)`` if there is none.

    ``export`` writes ``program.pte``, and ``.ptd`` files beside it if it likes.
    """
    folder = cache_folder() / name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(str(folder) + ".lock"):
            if not folder.is_dir():
                part = folder.with_name(folder.name + ".part")
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir()
                with quiet():
                    export(part)
                part.rename(folder)
    weights = sorted(folder.glob("*.ptd"))
    return ExportedFile(folder / "program.pte", weights[0] if weights else None)


@contextmanager
def quiet() -> Iterator[None]:
    """Let the exporter warn of its own deprecations, on which our tests have no say."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def export_portable(entry: Architecture, *, full: bool = False) -> ExportedFile:
    """Return the architecture's program with no delegate."""
    return exported_once(
        f"{entry.name}{'_full' if full else ''}_portable",
        lambda folder: write_program(entry, entry.build(full=full), folder),
    )


def export_xnnpack(
    entry: Architecture,
    *,
    full: bool = False,
    variant: str = "",
    partitioner: Callable[[], list[Any]] | None = None,
    quantizer: Callable[[], Any] | None = None,
) -> ExportedFile:
    """Return the architecture's program delegated to XNNPACK, quantized first if asked.

    ``variant`` names a partitioner or quantizer that is not the default, for the cache.
    """

    def partitioners() -> list[Any]:
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

        return [XnnpackPartitioner()]

    if (partitioner or quantizer) and not variant:
        raise ValueError("a partitioner or quantizer of one's own needs a variant name")
    name = f"{entry.name}{'_full' if full else ''}_xnnpack{'_' + variant if variant else ''}"
    return exported_once(
        name,
        lambda folder: write_program(
            entry,
            entry.build(full=full),
            folder,
            partitioner=(partitioner or partitioners)(),
            quantizer=quantizer() if quantizer else None,
        ),
    )


def write_program(
    entry: Architecture,
    methods: dict[str, MethodSpec],
    folder: Path,
    *,
    partitioner: list[Any] | None = None,
    quantizer: Any = None,
) -> None:
    """Export the methods as one program into ``folder``."""
    from executorch.exir import (
        EdgeCompileConfig,
        ExecutorchBackendConfig,
        to_edge_transform_and_lower,
    )
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

    with torch.no_grad():
        exported = {name: export_method(spec, quantizer) for name, spec in methods.items()}
        edge = to_edge_transform_and_lower(
            exported,
            partitioner=partitioner or [],
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
        )
        program = edge.to_executorch(
            ExecutorchBackendConfig(
                external_constants=entry.external_weights,
                passes=[InitializedMutableBufferPass(list(entry.initialized_buffers))],
            )
        )
    (folder / "program.pte").write_bytes(program.buffer)
    if entry.external_weights:
        program.write_tensor_data_to_file(str(folder))


def export_method(spec: MethodSpec, quantizer: Any = None) -> torch.export.ExportedProgram:
    """Export one method; with a quantizer, calibrate on its input sets and convert it first."""
    if quantizer is not None:
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

        graph = torch.export.export(
            spec.module, spec.example, dynamic_shapes=spec.dynamic_shapes
        ).module()
        prepared = prepare_pt2e(graph, quantizer)
        for inputs in spec.inputs:
            prepared(*inputs)
        spec = MethodSpec(convert_pt2e(prepared), spec.example, spec.inputs, spec.dynamic_shapes)
    return torch.export.export(spec.module, spec.example, dynamic_shapes=spec.dynamic_shapes)
