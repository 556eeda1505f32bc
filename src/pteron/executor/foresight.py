"""What a call would give, told before it is computed.

A kernel that returns its results allocates them before they meet the memory plan: a file of a
kilobyte can name a convolution padded by thousands, whose result is larger than the machine's
memory. torch's meta kernels tell shapes without computing. Asking takes as long as a small kernel,
so a call is asked once, with all its tensors at their upper bounds; only one that would not fit
then, or cannot be asked, or takes numbers that change, is asked in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from pteron.errors import InvalidArgumentError
from pteron.executor.interpreter import Call
from pteron.kernels.registry import Kernel, Style

Sizes = tuple[int, ...]


def can_foresee(kernel: Kernel) -> bool:
    """Whether a kernel allocates results whose shapes torch can tell from those of its inputs."""
    return (
        kernel.style is Style.FUNCTIONAL
        and kernel.tells_shapes
        and not (kernel.data_dependent or kernel.random)
    )


class Foresight:
    """Refuses a call whose results would not fit the slots that the plan has for them."""

    def __init__(
        self,
        call: Callable[[], Any],
        slots: Sequence[torch.Tensor],
        bounds: Mapping[int, Sizes],
        *,
        numbers_change: bool,
    ) -> None:
        """Take a bound call, the slots of its results, and upper bounds by ``id`` of a tensor."""
        self._call, self._slots, self._bounds = call, slots, bounds
        self._settled, self._asked = False, numbers_change

    def guarding(self, call: Call) -> Call:
        """Return ``call``, to be made only when the results fit."""

        def guarded() -> None:
            if not self._settled:
                self._ask()
            call()

        return guarded

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            results = self._results(self._bounds)
            self._settled = bool(results) and not self._too_large(results)
            if self._settled:
                return
        for slot, found in self._too_large(self._results({})):
            raise InvalidArgumentError(
                f"the result has shape {found}, the program has room for {tuple(slot.shape)} "
                f"({slot.untyped_storage().nbytes():,} bytes)",
                hint="the program was exported for smaller shapes",
            )

    def _results(self, bounds: Mapping[int, Sizes]) -> list[torch.Tensor]:
        """Return results without values; none where torch cannot tell, or the call is wrong."""
        try:
            with _OnMeta(bounds):
                found = self._call()
        except NotImplementedError:
            self._settled = True  # torch has no meta kernel
            return []
        except Exception:  # noqa: BLE001 - whatever is wrong, the call itself says it better
            return []
        return list(found) if isinstance(found, (list, tuple)) else [found]

    def _too_large(self, results: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, Sizes]]:
        found = []
        for slot, result in zip(self._slots, results, strict=False):
            storage = slot.untyped_storage()
            if not storage.resizable() and result.numel() * slot.element_size() > storage.nbytes():
                found.append((slot, tuple(result.shape)))
        return found


class _OnMeta(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives operators tensors without values, at their upper bounds if those are known."""

    def __init__(self, bounds: Mapping[int, Sizes]) -> None:
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
