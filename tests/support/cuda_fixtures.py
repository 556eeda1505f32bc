"""The CUDA programs in ``tests/fixtures/cuda``: unpacked once, opened, with what they should give.

The files were made with the executorch 1.5.1 exporter on one H200 (torch 2.11, CUDA 13). They are
kept in one archive, since their shared objects repeat two megabytes each.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pteron.backends.interface import BackendInitContext
from pteron.format.ptd import read_ptd
from pteron.format.pte import PteFile, read_pte
from pteron.format.schema import DataLocation, DelegateCall, ExecutionPlan
from pteron.format.source import open_source
from pteron.program.data_map import NamedDataMap

ARCHIVE = Path(__file__).parents[1] / "fixtures" / "cuda" / "fixtures.tar.xz"

NAMES = (
    "dynamic_batch",
    "gpu_resident_io",
    "kv_cache",
    "linear_relu",
    "mixed_host_cuda",
    "prefill_decode",
    "small_cnn",
    "transformer_block_bf16",
    "two_gpus",
)
SINGLE_GPU = tuple(name for name in NAMES if name != "two_gpus")
SMALL = tuple(n for n in SINGLE_GPU if n not in ("mixed_host_cuda", "transformer_block_bf16"))
"""Those that are quick under a memory checker."""


@cache
def folder() -> Path:
    """Return where the programs lie, unpacking them on the first call of this machine."""
    size = ARCHIVE.stat().st_size
    target = Path(tempfile.gettempdir()) / f"pteron-cuda-fixtures-{size}-{os.getuid()}"
    if not target.is_dir():
        with tempfile.TemporaryDirectory(dir=target.parent) as part:
            with tarfile.open(ARCHIVE) as archive:
                archive.extractall(part, filter="data")
            try:
                Path(part).rename(target)
            except OSError:  # another process was quicker
                assert target.is_dir()
            else:
                Path(part).mkdir()
    return target


@dataclass(frozen=True)
class Case:
    """One call of one method: inputs, and eager's float output computed on the CPU."""

    fixture: str
    method: str
    inputs: tuple[Any, ...]
    expected: Any
    rows: tuple[int, ...] | None = None
    """The rows of the output that ``expected`` holds, or None for all."""

    def compare(self, output: Any) -> float:
        """Return how far an output is from eager's, relative to the size of the values."""
        got = output.detach().float().cpu()
        if self.rows is not None:
            got = got[list(self.rows)]
        want = self.expected.detach().float()
        assert got.shape == want.shape, f"{tuple(got.shape)} instead of {tuple(want.shape)}"
        return float((got - want).abs().max() / want.abs().max().clamp(min=1.0))

    def check(self, outputs: list[Any]) -> None:
        """Compare the one output of a call with eager's."""
        (output,) = outputs
        error = self.compare(output)
        assert error <= self.tolerance, f"{self.fixture}.{self.method}: off by {error:.2e}"

    @property
    def tolerance(self) -> float:
        """How far it may be, as a fraction."""
        import torch

        return 2e-2 if self.expected.dtype == torch.bfloat16 else 1e-5


def pte_path(name: str) -> Path:
    """Return a fixture's program."""
    return folder() / name / f"{name}.pte"


def ptd_path(name: str) -> Path:
    """Return a fixture's weights."""
    return folder() / name / "aoti_cuda_blob.ptd"


def cases(name: str) -> dict[str, list[Case]]:
    """Return the calls of each method of a fixture, in the order in which they have to be made."""
    import torch

    stored = torch.load(folder() / name / "io.pt", weights_only=True)
    found: dict[str, list[Case]] = {}
    for method, calls in stored.items():
        if method in ("sd", "forward2_input_seed", "forward2_input_shape", "forward2_output_rows"):
            continue
        found[method] = [Case(name, method, tuple(given), want) for given, want in calls]
    if name == "mixed_host_cuda":
        generator = torch.Generator().manual_seed(stored["forward2_input_seed"])
        x = torch.randn(*stored["forward2_input_shape"], generator=generator)
        rows = tuple(stored["forward2_output_rows"])
        want = torch.stack([stored["forward2_output_rows"][row] for row in rows])
        found["forward2"] = [Case(name, "forward2", (x,), want, rows)]
    return found


@dataclass(frozen=True)
class OpenProgram:
    """A fixture's files, opened but not loaded."""

    pte: PteFile
    data: NamedDataMap

    def plan(self, method: str) -> ExecutionPlan:
        """Return one method."""
        return next(p for p in self.pte.program.execution_plan if p.name == method)

    def delegates(self) -> Iterator[tuple[str, int, memoryview]]:
        """Yield each delegate: method, index, payload."""
        for plan in self.pte.program.execution_plan:
            for index in range(len(plan.delegates)):
                yield plan.name, index, self.payload(plan.name, index)

    def payload(self, method: str, index: int = 0) -> memoryview:
        """Return a delegate's payload."""
        processed = self.plan(method).delegates[index].processed
        if processed.location is DataLocation.SEGMENT:
            return self.pte.segment(processed.index)
        return self.pte.program.backend_delegate_data[processed.index]

    def context(self, method: str, device: Any, **changes: Any) -> BackendInitContext:
        """Return what a backend is told when a method is loaded."""
        plan = self.plan(method)
        call = next(i for i in plan.instructions if isinstance(i, DelegateCall))
        values: dict[str, Any] = {
            "backend_id": plan.delegates[0].id,
            "processed": self.payload(method),
            "compile_specs": plan.delegates[0].compile_specs,
            "method_name": method,
            "delegate_index": 0,
            "named_data": self.data,
            "device": device,
            "args": tuple(plan.values[index] for index in call.args),
            "native_code": True,
        }
        return BackendInitContext(**{**values, **changes})


def open_program(name: str, *, with_data: bool = True) -> OpenProgram:
    """Open a fixture; ``with_data`` False leaves its weights out."""
    pte = read_pte(open_source(pte_path(name)))
    ptds = [read_ptd(open_source(ptd_path(name)))] if with_data else []
    return OpenProgram(pte, NamedDataMap(pte, ptds))


@contextmanager
def same_current_device() -> Iterator[None]:
    """Check that a block leaves the process's current device as it was."""
    import torch

    before = torch.cuda.current_device()
    yield
    assert torch.cuda.current_device() == before
