"""Constants of compiled code on their device: weights once a program, state once an instance.

A weight (a parameter, or a tensor that the exporter lifted) is never written, so all methods and
instances of a program that name its key share one copy. A buffer may be written by the compiled
code, and neither the payload nor the container tells which ones are. So every buffer is state:
methods with one ``state_store`` that name the same key share it, as the file says; others never do.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch

from pteron.backends.cuda.blob import WeightEntry
from pteron.errors import (
    DelegateInvalidCompatibilityError,
    DelegateMemoryAllocationFailedError,
    MemoryAllocationFailedError,
)
from pteron.format.schema import DeviceType
from pteron.memory.host_view import flat_tensor

if TYPE_CHECKING:
    from pteron.backends.cuda.container import ContainerConstant
    from pteron.backends.interface import BackendInitContext

_STORAGES = "CudaBackend.storages"
_LOCK = "CudaBackend.lock"


class Storage:
    """Owns the bytes of one key on one device, and knows what they were at first."""

    __slots__ = ("__weakref__", "bytes", "initial")

    def __init__(self, memory: torch.Tensor, initial: memoryview) -> None:
        self.bytes = memory
        self.initial = initial
        self.reset()

    def reset(self) -> None:
        """Write the first bytes again, in place: addresses stay what they are."""
        if self.bytes.numel():
            self.bytes.copy_(flat_tensor(self.initial, torch.uint8))


class Constants:
    """Owns a share in the storages of one delegate, and its constants as tensors over them."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        """By the container's name."""
        self.state: dict[str, torch.Tensor] = {}
        """Buffers, by the model's name."""
        self._storages: list[Storage] = []
        self._state_storages: list[Storage] = []

    def add(self, constant: ContainerConstant, entry: WeightEntry, storage: Storage) -> None:
        """Take a share in a storage and view it the way the payload says."""
        tensor = _view(entry, storage.bytes)
        self.tensors[constant.name] = tensor
        self._storages.append(storage)
        if may_be_written(constant):
            self.state[constant.fqn] = tensor
            self._state_storages.append(storage)

    def reset(self) -> None:
        """Bring every buffer back to the bytes in the file."""
        for storage in self._state_storages:
            storage.reset()

    def release(self) -> None:
        """Give up the shares; memory that nobody else shares goes back to its device.

        A container never lets go of the tensors it was given (``MaybeOwningAtenTensorHandle`` in
        torch's ``aoti_runtime/utils.h``), so the memory is taken out of them.
        """
        with torch.inference_mode():
            for tensor in self.tensors.values():
                tensor.set_()  # type: ignore[call-overload]
        self.tensors.clear()
        self.state.clear()
        self._storages.clear()
        self._state_storages.clear()


def may_be_written(constant: ContainerConstant) -> bool:
    """Whether compiled code may write a constant: what is no weight for certain counts as state."""
    return constant.kind.name in ("BUFFER", "UNKNOWN")


def place_constants(
    context: BackendInitContext,
    constants: tuple[ContainerConstant, ...],
    entries: tuple[WeightEntry, ...],
    *,
    where: str,
) -> Constants:
    """Put what a container asks for where it asks for it, sharing what may be shared."""
    by_fqn = {entry.fqn: entry for entry in entries}
    wanted = [constant for constant in constants if not constant.folded]
    unknown = [constant.fqn for constant in wanted if constant.fqn not in by_fqn]
    if unknown:
        raise DelegateInvalidCompatibilityError(
            f"{where}: the compiled code asks for {len(unknown)} constants that the payload does "
            f"not name: {', '.join(unknown[:8])}"
        )
    placed = Constants()
    with _lock(context):
        for constant in wanted:
            entry = by_fqn[constant.fqn]
            store = context.state_store if may_be_written(constant) else context.program_store
            placed.add(constant, entry, _storage(context, store, entry, where))
    return placed


def _lock(context: BackendInitContext) -> threading.Lock:
    return context.program_store.setdefault(_LOCK, threading.Lock())  # type: ignore[no-any-return]


def _storage(
    context: BackendInitContext, store: dict[Any, Any], entry: WeightEntry, where: str
) -> Storage:
    """Return the one storage of a key in a store, making it if nobody holds it now."""
    device = context.device if entry.device_type is DeviceType.CUDA else torch.device("cpu")
    storages = store.setdefault(_STORAGES, weakref.WeakValueDictionary())
    key = (str(device), entry.storage_key)
    storage = storages.get(key)
    if storage is None:
        memory = _allocate(context, entry, device, where)
        storage = storages[key] = Storage(memory, context.named_data.get(entry.storage_key).data)
    return storage  # type: ignore[no-any-return]


def _allocate(
    context: BackendInitContext, entry: WeightEntry, device: torch.device, where: str
) -> torch.Tensor:
    try:
        return context.allocate(entry.storage_nbytes, device)
    except MemoryAllocationFailedError as error:
        raise DelegateMemoryAllocationFailedError(
            f"{where}: no memory for constant {entry.fqn!r} of {entry.storage_nbytes:,} bytes: "
            f"{error.message}",
            hint=error.hint,
        ) from error


def _view(entry: WeightEntry, memory: torch.Tensor) -> torch.Tensor:
    dtype = getattr(torch, entry.scalar_type.torch_name)
    tensor = torch.empty(0, dtype=dtype, device=memory.device)
    return tensor.set_(memory.untyped_storage(), entry.storage_offset, entry.sizes, entry.strides)
