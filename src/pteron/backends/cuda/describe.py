"""What a CUDA delegate carries, told without running it and without torch.

``inspect`` and ``verify`` show it (DESIGN, V3), and the backend checks the same facts at load.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pteron.backends.cuda.blob import (
    DelegatePayload,
    Generation,
    check_data,
    find_problems,
    parse_payload,
)
from pteron.backends.cuda.elf import SharedObjectInfo, read_elf
from pteron.errors import DelegateInvalidCompatibilityError, InvalidProgramError, PteronError

if TYPE_CHECKING:
    from pteron.backends.blob_reader import DelegateBlob
    from pteron.program.data_map import NamedDataMap

REQUIRED_FUNCTIONS = (
    "AOTInductorModelContainerCreateWithDevice",
    "AOTInductorModelContainerDelete",
    "AOTInductorModelContainerGetConstantName",
    "AOTInductorModelContainerGetConstantOriginalFQN",
    "AOTInductorModelContainerGetNumConstants",
    "AOTInductorModelContainerGetNumInputs",
    "AOTInductorModelContainerGetNumOutputs",
    "AOTInductorModelContainerRunSingleThreaded",
)
"""The entry points without which a shared object cannot be run here."""

_CONTENT_KEY = re.compile(r"^([0-9a-f]{64})_so_blob$")


@dataclass(frozen=True, slots=True)
class NativeCode:
    """The machine code that one delegate carries, and what it asks for."""

    key: str
    digest: str
    """SHA-256 of the shared object, in hexadecimal."""
    code_bytes: int
    generation: Generation
    machine: str
    """The host processor that it is for, as ``platform.machine()`` names it."""
    architectures: tuple[str, ...]
    """The GPU architectures that it holds kernels for, such as ``sm_90a``."""
    kernels: tuple[str, ...]
    libraries: tuple[str, ...]
    undefined: tuple[str, ...]
    """What it expects torch, the CUDA runtime, the driver and the C library to have."""
    keys: tuple[str, ...]
    """All named data that it uses: the code's key, then the weights'."""
    weight_bytes: int

    @property
    def undefined_count(self) -> int:
        """How many functions and variables others have to supply."""
        return len(self.undefined)


@dataclass(frozen=True, slots=True)
class CheckedDelegate:
    """A delegate whose payload, data and code passed every check that needs no device.

    Views the named data that ``code`` is a part of.
    """

    payload: DelegatePayload
    code: memoryview
    digest: str
    info: SharedObjectInfo
    weight_bytes: int
    """Bytes of weights outside the code; 0 for a flat blob that is not there."""

    def describe(self) -> NativeCode:
        """Return the facts that a person is shown."""
        return NativeCode(
            key=self.payload.shared_object_key,
            digest=self.digest,
            code_bytes=self.code.nbytes,
            generation=self.payload.generation,
            machine=self.info.machine,
            architectures=self.info.architectures,
            kernels=tuple(dict.fromkeys(image.kernel for image in self.info.images)),
            libraries=self.info.needed,
            undefined=self.info.undefined,
            keys=self.payload.keys,
            weight_bytes=self.weight_bytes,
        )


def method_name_of(blob: DelegateBlob) -> str:
    """Return the method name that the keys of a delegate's data are made from."""
    name = blob.compile_spec_text("method_name")
    return blob.method_name if name is None else name


def check_delegate(
    processed: memoryview, named_data: NamedDataMap, *, method_name: str, where: str
) -> CheckedDelegate:
    """Check a delegate as far as that goes without a device; raise the first PteronError."""
    payload = parse_payload(processed, method_name=method_name, where=where)
    check_data(payload, named_data, where=where)
    return _check_code(payload, named_data, where)


def describe(
    processed: memoryview,
    named_data: NamedDataMap,
    *,
    method_name: str = "",
    where: str = "CUDA delegate",
) -> NativeCode:
    """Return what a delegate carries; the weights need not be there (no ``.ptd`` was given)."""
    payload = parse_payload(processed, method_name=method_name, where=where)
    return _check_code(payload, named_data, where).describe()


def violations(
    processed: memoryview,
    named_data: NamedDataMap | None,
    *,
    method_name: str = "",
    where: str = "CUDA delegate",
) -> tuple[str, ...]:
    """Return what is wrong with a delegate, one line each, for ``verify``."""
    found = find_problems(processed, named_data, method_name=method_name, where=where)
    if found or named_data is None:
        return found
    try:
        check_delegate(processed, named_data, method_name=method_name, where=where)
    except PteronError as error:
        return (error.message,)
    return ()


def _check_code(payload: DelegatePayload, named_data: NamedDataMap, where: str) -> CheckedDelegate:
    key = payload.shared_object_key
    code = named_data.get(key).data
    digest = hashlib.sha256(code).hexdigest()
    promised = _CONTENT_KEY.match(key)
    if promised and promised[1] != digest:
        raise InvalidProgramError(
            f"{where}: the shared object's key promises SHA-256 {promised[1]}, "
            f"its bytes have {digest}",
            hint="the file is damaged or was changed after the export",
        )
    info = read_elf(code, where=f"{where}, shared object {key!r}")
    lacking = [name for name in REQUIRED_FUNCTIONS if name not in info.defined]
    if lacking:
        raise DelegateInvalidCompatibilityError(
            f"{where}: the shared object is no AOTInductor model: it lacks {', '.join(lacking)}"
        )
    weight_bytes = payload.weight_bytes
    if payload.weights_key is not None and payload.weights_key in named_data:
        weight_bytes = named_data.get(payload.weights_key).data.nbytes
    return CheckedDelegate(payload, code, digest, info, weight_bytes)
