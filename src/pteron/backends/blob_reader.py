"""What can be said of a delegate without running it: the second face of a backend.

``pteron inspect`` and ``pteron verify`` use it, so nothing here imports torch, and neither should
the module of a reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from pteron.format.pte import PteFile
from pteron.format.schema import CompileSpec, ExecutionPlan
from pteron.program.data_map import NamedDataMap

Detail: TypeAlias = "str | int | list[str]"


@dataclass(frozen=True, slots=True)
class DelegateBlob:
    """One delegate as it is in the file. Views the file, which outlives it."""

    backend_id: str
    data: memoryview
    compile_specs: tuple[CompileSpec, ...]
    method_name: str
    delegate_index: int

    @property
    def where(self) -> str:
        """The words that name the delegate in errors."""
        return f"method {self.method_name!r}, delegate {self.delegate_index} ({self.backend_id})"

    def compile_spec_text(self, key: str) -> str | None:
        """Return the first setting called ``key`` as text, or None."""
        for spec in self.compile_specs:
            if spec.key == key:
                return bytes(spec.value).decode("utf-8", "backslashreplace")
        return None


@dataclass(frozen=True, slots=True)
class CallShape:
    """What the calls of a delegate look like."""

    outputs: int
    """How many of the call's last values are outputs."""
    keys: tuple[str, ...]
    """The named data that the delegate reads."""


@dataclass(frozen=True, slots=True)
class NativeCode:
    """Machine code that a delegate runs."""

    key: str | None
    """The named data that holds the code; None if the delegate's blob does."""
    kind: str
    """The container, such as ``ELF``."""
    machine: str | None
    """The processor that it is for, as ``platform.machine()`` names it; None if unknown."""
    size_bytes: int
    sha256: str
    details: Mapping[str, Detail] = field(default_factory=dict)
    """Other facts worth showing, in order; the names become keys of ``--json``."""


class BlobReader:
    """Reads blobs of delegates with one id.

    A subclass answers what it can. What it leaves out is taken for the worst: that the delegate
    keeps state, holds machine code, and may read any value and any named data.
    """

    keeps_state: ClassVar[bool] = True
    """Whether a delegate keeps anything from call to call."""
    may_hold_code: ClassVar[bool] = True
    """Whether a blob may hold machine code."""

    def violations(
        self, blob: DelegateBlob, named_data: NamedDataMap, *, is_complete: bool
    ) -> Sequence[str]:
        """Return what is wrong with a delegate, one line each.

        ``is_complete`` is False if no data file was given, so that a missing key is no violation.
        A PteronError that is raised counts as one violation.
        """
        return ()

    def native_code(self, blob: DelegateBlob, named_data: NamedDataMap) -> NativeCode | None:
        """Describe the machine code that a delegate runs, or raise a PteronError.

        None leaves it to the caller to look at how the blob begins.
        """
        return None

    def call_shape(self, blob: DelegateBlob) -> CallShape | None:
        """Return what calls of a delegate look like; None if only the backend knows.

        Raises a PteronError for a blob that is damaged.
        """
        return None

    def keys(self, blob: DelegateBlob) -> Sequence[str]:
        """Return the named data that a delegate cannot run without, as far as known."""
        shape = self.call_shape(blob)
        return shape.keys if shape is not None else ()


def delegate_blob(pte: PteFile, plan: ExecutionPlan, number: int) -> DelegateBlob:
    """Return one of a method's delegates, as a view of the file."""
    delegate = plan.delegates[number]
    return DelegateBlob(
        delegate.id, pte.delegate_data(delegate), delegate.compile_specs, plan.name, number
    )
