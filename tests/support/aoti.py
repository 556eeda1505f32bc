"""Delegates in the CUDA backend's form, compiled for the host.

AOTInductor's container has one C interface for all devices. So a model compiled for the CPU, with
the payload that ExecuTorch's exporter writes, tries everything of ``backends/cuda`` but the GPU.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from pteron.backends.cuda import CudaBackend
from pteron.backends.interface import BackendInitContext
from pteron.errors import NotFoundError
from pteron.format.schema import CompileSpec
from pteron.program.data_map import DataEntry
from support.exporting import cache_folder

OPTIONS = {
    # As the CUDA backend of ExecuTorch sets them.
    "aot_inductor.link_libtorch": False,
    "aot_inductor.package": True,
    "aot_inductor.package_constants_in_so": False,
    # Quicker to compile; what the code computes is not what is tried.
    "aot_inductor.compile_wrapper_opt_level": "O0",
}


class Cache(torch.nn.Module):
    """A weight, a bias, and a buffer that is written; returns a sum, and a view of the buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(8, 4)
        self.register_buffer("cache", torch.full((3, 4), 0.5))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.cache.index_copy_(0, at, self.project(x))
        return self.cache.sum(0, keepdim=True), self.cache * 1


class Batch(torch.nn.Module):
    """Any number of rows; reads the same cache and the same weight as ``Cache``."""

    def __init__(self, source: Cache) -> None:
        super().__init__()
        self.project = source.project
        self.register_buffer("cache", source.cache)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.project(x) + self.cache.sum()


def model(kind: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], Any]:
    """Return a model with fixed weights, example inputs and dynamic shapes."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        cache = Cache().eval().requires_grad_(requires_grad=False)
    if kind == "cache":
        return cache, (torch.ones(1, 8), torch.tensor([1])), None
    rows = torch.export.Dim("rows", min=1, max=64)
    return Batch(cache).eval(), (torch.ones(5, 8),), ({0: rows},)


class Blobs(dict[str, bytes]):
    """Named data, as a program and its data files would give it."""

    def get(self, key: str) -> DataEntry:  # type: ignore[override]
        if key not in self:
            raise NotFoundError(f"no data is called {key!r} here")
        return DataEntry(memoryview(self[key]).toreadonly(), None, "<test>")


@dataclass
class HostDelegate:
    """A payload and the data that it names."""

    payload: bytes
    data: Blobs
    method: str = "forward"
    spec: tuple[CompileSpec, ...] = field(default=())

    def context(self, **changes: Any) -> BackendInitContext:
        """Return what a backend is told when a method with this delegate is loaded."""
        values: dict[str, Any] = {
            "backend_id": "CudaBackend",
            "processed": memoryview(self.payload).toreadonly(),
            "compile_specs": self.spec,
            "method_name": self.method,
            "delegate_index": 0,
            "named_data": self.data,
            "device": torch.device("cpu"),
            "args": (),
            "native_code": True,
        }
        return BackendInitContext(**{**values, **changes})


class HostBackend(CudaBackend):
    """The CUDA backend, for delegates that were compiled for the host."""

    device_type = "cpu"

    def _check_device(self, context: Any, delegate: Any, where: str) -> None:
        assert context.device.type == "cpu"


def compiled(kind: str, weights: str) -> Path:
    """Return a folder with a model's ``code.so`` and its weights; compiling takes half a minute.

    ``weights`` is AOTInductor's form of them: ``pickle_weights`` or ``binary_blob``.
    """
    folder = cache_folder() / f"aoti-{kind}-{weights}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(str(folder) + ".lock"):
            if not folder.is_dir():
                part = folder.with_name(folder.name + ".part")
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir()
                _compile_elsewhere(kind, weights, part)
                part.rename(folder)
    return folder


def _compile_elsewhere(kind: str, weights: str, folder: Path) -> None:
    """Compile in a process of its own: the compiler logs and warns as it likes."""
    call = f"from support.aoti import _compile; _compile({kind!r}, {weights!r}, {str(folder)!r})"
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", call],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def _compile(kind: str, weights: str, path: str) -> None:
    folder = Path(path)
    module, inputs, dynamic_shapes = model(kind)
    exported = torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes).module()
    options = {**OPTIONS, "aot_inductor.package_constants_on_disk_format": weights}
    for made in torch._inductor.aot_compile(exported, inputs, options=options):
        if isinstance(made, str):
            if made.endswith(".wrapper.so"):
                shutil.copy(made, folder / "code.so")
            elif made.endswith("_weights.blob"):
                shutil.copy(made, folder / "flat.blob")
        else:
            torch.save({fqn: tensor.detach() for fqn, (tensor, _) in made.items()}, folder / "w.pt")


def named_delegate(kind: str) -> HostDelegate:
    """Return a delegate of the structured kind, its payload written by the exporter's own code."""
    from executorch.backends.cuda.cuda_weight_collector import (
        CudaWeightEntry,
        _storage_key,
        encode_cuda_weight_metadata,
    )
    from executorch.exir.tensor import scalar_type_enum

    folder = compiled(kind, "pickle_weights")
    code = (folder / "code.so").read_bytes()
    key = f"{hashlib.sha256(code).hexdigest()}_so_blob"
    data = Blobs({key: code})
    entries = []
    for fqn, tensor in torch.load(folder / "w.pt", weights_only=True).items():
        storage = bytes(tensor.untyped_storage().tolist())
        name = _storage_key(fqn, 0)
        data[name] = storage
        entries.append(
            CudaWeightEntry(
                fqn,
                name,
                len(storage),
                int(scalar_type_enum(tensor.dtype)),
                0,
                tensor.storage_offset(),
                tuple(tensor.shape),
                tuple(tensor.stride()),
            )
        )
    return HostDelegate(encode_cuda_weight_metadata(key, entries), data)


def flat_delegate(kind: str, *, legacy: bool) -> HostDelegate:
    """Return a delegate of one of the two older kinds."""
    folder = compiled(kind, "binary_blob")
    code, blob = (folder / "code.so").read_bytes(), (folder / "flat.blob").read_bytes()
    if legacy:
        data = Blobs({"step_so_blob": code, "step_weights_blob": blob})
        return HostDelegate(b"", data, "step", (CompileSpec("method_name", b"step"),))
    data = Blobs(code_so_blob=code, w_weights_blob=blob)
    return HostDelegate(b"code_so_blob\nw_weights_blob", data)
