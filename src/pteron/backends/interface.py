"""What a backend is: it turns one delegate's blob into something that runs on bound tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pteron.backends.blob_reader import DelegateBlob

if TYPE_CHECKING:
    import torch

    from pteron.format.schema import CompileSpec, EValue
    from pteron.program.data_map import NamedDataMap


def allocate_on_device(nbytes: int, device: torch.device) -> torch.Tensor:
    """Return a flat uint8 tensor from a device's allocator; NotFoundError if there is no device."""
    from pteron.memory.program_memory import require_allocator

    return require_allocator(device, "a delegate's memory").allocate(nbytes, device)


@dataclass(frozen=True, slots=True)
class BackendInitContext:
    """Everything that a backend may know when a method that uses it is loaded.

    Views ``processed`` and ``named_data``: the program outlives every handle made from it.
    """

    backend_id: str
    processed: memoryview
    """The delegate's blob, as it is in the file."""
    compile_specs: tuple[CompileSpec, ...]
    method_name: str
    delegate_index: int
    named_data: NamedDataMap
    """Blobs by key, of the program and of its data files."""
    device: torch.device
    """Where the delegate has to run: its ``target_device`` compile spec after the device map."""
    args: tuple[EValue, ...]
    """What the file says of the call's values: the inputs, then the outputs."""
    native_code: bool
    """Whether this process may run native code that the file carries (DESIGN, V3)."""
    program_store: dict[Any, Any] = field(default_factory=dict)
    """What all delegates of one program share, such as weights by key. A backend uses keys that
    begin with its own id. It lives as long as the program or one of its methods."""
    instance_store: dict[Any, Any] = field(default_factory=dict)
    """The same for the delegates of one method instance, which no other instance sees."""
    state_store: dict[Any, Any] = field(default_factory=dict)
    """The same for state that the file names: methods that a program keeps have one together, an
    independent instance has its own (DESIGN, S2)."""
    allocate: Callable[[int, torch.device], torch.Tensor] = allocate_on_device
    """Returns a flat uint8 tensor of so many bytes on a device, from the device's allocator."""
    first_unwritten: int = 0
    """Position in ``args`` from which on nothing gave a value a content before the call. All
    before it are inputs; where the outputs begin, at or after it, only the blob says."""

    @property
    def blob(self) -> DelegateBlob:
        """The delegate as the backend's reader takes it."""
        return DelegateBlob(
            self.backend_id,
            self.processed,
            self.compile_specs,
            self.method_name,
            self.delegate_index,
        )


class DelegateHandle(ABC):
    """Owns one delegate, initialised and ready to run."""

    @abstractmethod
    def bind(self, args: Sequence[Any]) -> Callable[[], None]:
        """Return a call that runs the delegate on these values.

        ``args`` are the call's values in file order, inputs first: tensors that stay the same
        objects for the life of the method (their shapes may change between calls if the file says
        so), or Python numbers, strings and None. Outputs are written into their tensors, which are
        resized (``Tensor.resize_``) if their shape is dynamic.
        """

    @property
    def changes(self) -> Sequence[int] | None:
        """Positions of the call's values that a run may write; None if it may be any of them."""
        return None

    def reset(self) -> None:  # noqa: B027 - most delegates hold no state
        """Bring state inside the delegate back to its initial value."""

    def state_tensors(self) -> list[torch.Tensor]:
        """Return the tensors that hold state inside the delegate (they can be read and written)."""
        return []

    @property
    def hides_state(self) -> bool:
        """Whether the delegate holds state that :meth:`state_tensors` cannot give."""
        return False

    def close(self) -> None:  # noqa: B027 - most delegates own nothing but tensors
        """Give back what the delegate owns; further calls raise."""


class Backend(ABC):
    """Makes handles for delegates with one id."""

    id: ClassVar[str]

    @property
    def is_available(self) -> bool:
        """Whether this machine has what the backend needs."""
        return True

    @property
    def runs_native_code(self) -> bool:
        """Whether the blob holds machine code that would run in this process.

        If so, ``init`` has to refuse when the context's ``native_code`` is False, and to name the
        code's digest.
        """
        return False

    @abstractmethod
    def init(self, context: BackendInitContext) -> DelegateHandle:
        """Check the blob and make it ready to run, or raise a PteronError."""
