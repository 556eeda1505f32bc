"""Delegates in a worker: what their handles and the process have to do with each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, Final

import torch

from pteron import limits
from pteron.backends.bridge_process import Worker, WorkerEndedError
from pteron.backends.bridge_program import METHOD, DelegateProgram, write_program
from pteron.errors import (
    DelegateInvalidCompatibilityError,
    InvalidStateError,
    NotSupportedError,
    PteronError,
)
from pteron.format.schema import Tensor, TensorShapeDynamism

_ROOM_BYTES: Final = 64
"""What the place of each tensor in an answer may take besides its elements."""


class WorkerGroup:
    """Owns the process that runs one method instance's delegates of one id."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._users = 0
        self.keys = count()

    def join(self) -> None:
        """Add a user: the process is kept until the last one leaves."""
        self._users += 1

    def leave(self) -> None:
        """Take a user away."""
        self._users -= 1
        if not self._users and self._worker is not None:
            self._worker.close()

    def worker(self) -> Worker:
        """Return the process, started if it is not there or has ended."""
        if self._worker is None or self._worker.ended is not None:
            self._worker = Worker()
        return self._worker


class Elsewhere:
    """Owns a delegate's program in a process of its own."""

    def __init__(self, program: DelegateProgram, group: WorkerGroup, version: str) -> None:
        self._program, self._group, self._version = program, group, version
        self._id = program.backend_id
        self._request = {"backend_id": self._id, "key": next(group.keys), "method": METHOD}
        self._values = [
            value
            for value in (program.args[position] for position in program.outputs)
            if isinstance(value, Tensor)
        ]
        self._output_bytes = sum(value.nbytes + _ROOM_BYTES for value in self._values)
        self._worker: Worker | None = None
        group.join()
        try:
            self.load()
        except BaseException:
            group.leave()
            raise

    @property
    def has_ended(self) -> bool:
        """Whether the program has to be loaded again before it can run."""
        return self._worker is None or self._worker.ended is not None

    def load(self) -> None:
        """Load the program, in a new process if the one before has ended."""
        self._worker = None
        worker = self._group.worker()
        try:
            answer = worker.ask(
                {"do": "load", **self._request},
                [write_program(self._program)],
                seconds=limits.BRIDGE_LOAD_SECONDS,
            )
        except WorkerEndedError as error:
            raise DelegateInvalidCompatibilityError(
                f"executorch {self._version} cannot load a delegate of {self._id}: the process "
                f"that it ran in {error}{_said(worker)}",
                hint="the delegate may be damaged, of another version, or for hardware that is not "
                "here",
            ) from None
        if answer.get("missing"):
            raise NotSupportedError(
                f"executorch {self._version} has {self._id}, which is not available on this "
                f"machine{_said(worker)}"
            )
        if "error" in answer:
            raise DelegateInvalidCompatibilityError(
                f"executorch {self._version} refuses a delegate of {self._id}: "
                f"{answer['error']}{_said(worker)}",
                hint="the delegate may be damaged, of another version, or for hardware that is not "
                "here",
            )
        self._worker = worker

    def run(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return the outputs for these inputs."""
        worker = self._worker
        if worker is None:
            raise self._ended("it could not be loaded again")
        if worker.ended is not None:
            raise self._ended(f"the process that it ran in {worker.ended}, in an earlier call")
        try:
            answer, results = worker.run({"do": "run", **self._request}, inputs, self._output_bytes)
        except WorkerEndedError as error:
            raise self._ended(f"the process that it ran in {error}{_said(worker)}") from None
        if "error" in answer:
            raise InvalidStateError(
                f"executorch {self._version} failed in a delegate of {self._id}: "
                f"{answer['error']}{_said(worker)}"
            )
        self._check(results)
        return results

    def close(self) -> None:
        """Leave the process, which ends with its last user."""
        self._worker = None
        self._group.leave()

    def _ended(self, how: str) -> PteronError:
        return InvalidStateError(
            f"executorch {self._version} cannot run a delegate of {self._id}: {how}",
            hint="reset() of the method loads it into a new process; state inside of it is lost",
        )

    def _check(self, results: Sequence[torch.Tensor]) -> None:
        """Hold what came back to what the file says of it: slots take nothing else."""
        fits = len(results) == len(self._values) and all(
            str(result.dtype) == f"torch.{value.scalar_type.torch_name}"
            and _shape_fits(tuple(result.shape), value)
            for result, value in zip(results, self._values, strict=True)
        )
        if not fits:
            got = ", ".join(f"{r.dtype} {list(r.shape)}" for r in results)
            want = ", ".join(f"{v.scalar_type.torch_name} {list(v.sizes)}" for v in self._values)
            raise InvalidStateError(
                f"a delegate of {self._id} gave {got or 'nothing'}; the file says {want}"
            )


def _shape_fits(shape: tuple[int, ...], value: Tensor) -> bool:
    if value.shape_dynamism is TensorShapeDynamism.STATIC:
        return shape == tuple(value.sizes)
    numbers: Any = torch.Size(shape).numel()
    return len(shape) == len(value.sizes) and numbers <= torch.Size(value.sizes).numel()


def _said(worker: Worker) -> str:
    said = worker.said()
    return f"; it wrote:{said}" if said else ""
