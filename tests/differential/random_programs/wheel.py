"""The second oracle: the executorch wheel, in a process of its own that may die.

It has kernels for fewer operators and dtypes, and refuses more. What it does run is compared with
eager torch; where both agree and pteron does not, there is no doubt whose fault it is.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from differential.random_programs.checking import difference
from differential.random_programs.recipe import Recipe, Role

SECONDS = 60.0


def _serve(pipe: Any) -> None:
    """Run programs that come through a pipe."""
    warnings.simplefilter("ignore")
    from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401 - registers kernels
    from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer

    while True:
        data, calls = pipe.recv()
        try:
            program = _load_for_executorch_from_buffer(data)
            found = []
            for given in calls:
                outputs = program.run_method("forward", tuple(given))
                found.append([t.clone() if isinstance(t, Tensor) else t for t in outputs])
            pipe.send(found)
        except Exception as error:  # noqa: BLE001 - whatever it says is the answer
            pipe.send(f"{type(error).__name__}: {str(error)[:160]}")


class Wheel:
    """Owns the process, and starts another when it has died."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._pipe: Any = None

    def run(self, data: bytes, calls: Sequence[Sequence[Tensor]]) -> list[list[Any]] | str:
        """Return the outputs of every call, or what went wrong."""
        if self._process is None or not self._process.is_alive():
            self._pipe, theirs = self._context.Pipe()
            self._process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._pipe.send((data, [[t.contiguous() for t in given] for given in calls]))
            if not self._pipe.poll(SECONDS):
                self._process.kill()
                return "died: no answer"
            found: list[list[Any]] | str = self._pipe.recv()
            return found
        except (EOFError, OSError):
            self._process.join()
            return f"died: {self._process.exitcode}"

    def verdict(self, recipe: Recipe, data: bytes, wanted: Sequence[Sequence[Any]]) -> str:
        """Return ``agrees``, ``refuses``, ``died``, ``unknown`` or how the wheel differs."""
        if any(v.role is Role.STATE and v.data is None for v in recipe.values):
            return "unknown: its state has no value at first"
        slack = [recipe.values[i].slack for i in recipe.outputs]
        return self.compared(data, recipe.calls, wanted, slack)

    def compared(
        self,
        data: bytes,
        calls: Sequence[Sequence[Tensor]],
        wanted: Sequence[Sequence[Any]],
        slack: Sequence[float],
    ) -> str:
        """Do the same for a program whose state has a value at first.

        Kernels of the wheel add in an order of their own, so they get four times the slack.
        """
        found = self.run(data, calls)
        if isinstance(found, str):
            return found if found.startswith("died") else f"refuses: {found}"
        slack = [4 * one for one in slack]
        for outputs, there in zip(found, wanted, strict=True):
            said = difference(outputs[-len(there) :], there, slack)
            if said is not None:
                return f"differs: {said}"
        return "agrees"
