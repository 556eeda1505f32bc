"""Check the shapes of a call's results before computing them.

A kernel that returns its results allocates them before they meet the memory plan: a file of a
kilobyte can name a convolution padded by thousands, whose result is larger than the machine's
memory. Kernels whose results may be larger than their arguments have a formula for the shapes
(:mod:`pteron.kernels.result_sizes`); for an operator without one, torch's meta kernels are asked,
which imports a large part of torch.

Each call is checked once, with its tensors at their upper bounds. It is checked in every run only
if it would not fit then, or depends on numbers that change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from pteron.errors import InvalidArgumentError
from pteron.executor.interpreter import Call
from pteron.kernels.registry import Kernel, Style

Sizes = tuple[int, ...]
Bounds = Mapping[int, Sizes]
"""The upper bounds of tensors, by ``id``; a tensor that is not in it has its own shape."""


class _State(Enum):
    NEW = 0
    SETTLED = 1
    EVERY_RUN = 2


def needs_guard(kernel: Kernel) -> bool:
    """Whether a kernel allocates results that may be larger than its arguments."""
    if kernel.style is not Style.FUNCTIONAL or kernel.data_dependent or kernel.random:
        return False
    return kernel.result_sizes is not None or (kernel.tells_shapes and not kernel.bounded)


class ShapeGuard:
    """Refuses a call whose results would not fit the slots that the plan has for them."""

    def __init__(
        self,
        predict: Callable[[Bounds], Sequence[Sizes] | None],
        slots: Sequence[torch.Tensor],
        bounds: Bounds,
        *,
        numbers_change: bool,
    ) -> None:
        """Take a function that tells shapes (None: nobody can), and the slots of the results."""
        self._predict, self._slots, self._bounds = predict, slots, bounds
        self._state = _State.EVERY_RUN if numbers_change else _State.NEW

    def guarding(self, call: Call) -> Call:
        """Return ``call``, to be made only when the results fit."""

        def guarded() -> None:
            if self._state is not _State.SETTLED:
                self._check()
            call()

        return guarded

    def _check(self) -> None:
        if self._state is _State.NEW:
            found = self._predict(self._bounds)
            if found is None or (found and not self._too_large(found)):
                self._state = _State.SETTLED
                return
            self._state = _State.EVERY_RUN
        for slot, sizes in self._too_large(self._predict({}) or ()):
            raise InvalidArgumentError(
                f"the result has shape {sizes}, the program has room for {tuple(slot.shape)} "
                f"({slot.untyped_storage().nbytes():,} bytes)",
                hint="the exporter planned memory for smaller shapes: export the program again "
                "with larger upper bounds",
            )

    def _too_large(self, results: Sequence[Sizes]) -> list[tuple[torch.Tensor, Sizes]]:
        found = []
        for slot, sizes in zip(self._slots, results, strict=False):
            nbytes = slot.element_size()
            for size in sizes:
                nbytes *= size
            storage = slot.untyped_storage()
            if not storage.resizable() and nbytes > storage.nbytes():
                found.append((slot, tuple(sizes)))
        return found


def by_formula(
    kernel: Kernel, inputs: Callable[[], Sequence[Any]]
) -> Callable[[Bounds], Sequence[Sizes] | None]:
    """Return a prediction by the kernel's own formula; ``inputs`` gives a call's arguments."""
    formula = kernel.result_sizes
    assert formula is not None

    def predict(bounds: Bounds) -> Sequence[Sizes]:
        values = [
            bounds.get(id(value), tuple(value.shape)) if isinstance(value, torch.Tensor) else value
            for value in inputs()
        ]
        try:
            return formula(*values)
        except (ArithmeticError, IndexError, TypeError, ValueError):
            return ()  # whatever is wrong, the call itself says it better

    return predict


def by_meta_kernel(call: Callable[[], Any]) -> Callable[[Bounds], Sequence[Sizes] | None]:
    """Return a prediction by torch's meta kernels."""

    def predict(bounds: Bounds) -> Sequence[Sizes] | None:
        try:
            with _OnMeta(bounds):
                found = call()
        except NotImplementedError:
            return None  # torch has no meta kernel
        except Exception:  # noqa: BLE001 - whatever is wrong, the call itself says it better
            return ()
        results = found if isinstance(found, (list, tuple)) else [found]
        return [tuple(result.shape) for result in results]

    return predict


class _OnMeta(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives operators tensors without values, at their upper bounds if those are known."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._bounds = bounds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, self._without_values, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _without_values(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "meta":
            return tensor
        sizes = self._bounds.get(id(tensor), tuple(tensor.shape))
        return torch.empty(sizes, dtype=tensor.dtype, device="meta")
