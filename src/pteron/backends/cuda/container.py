"""An AOTInductor model container, called through its C interface.

The functions are those of torch's ``csrc/inductor/aoti_runtime/interface.h``. Tensors cross as
handles: the address of an ``at::Tensor`` on the heap, which ``torch._C._aoti`` makes and takes
back. Inputs are given away by a run, outputs are handed over by it. ctypes lets other Python
threads run during every call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import torch

from pteron.errors import (
    DelegateInvalidCompatibilityError,
    DelegateInvalidHandleError,
    InternalError,
    PteronError,
)

if TYPE_CHECKING:
    from pteron.backends.cuda.shared_object import SharedObject


class ConstantKind(IntEnum):
    """What a constant was in the model (``aoti_runtime/constant_type.h``)."""

    UNKNOWN = 0
    PARAMETER = 1
    BUFFER = 2
    TENSOR_CONSTANT = 3
    FOLDED = 4


_KINDS = {int(kind): kind for kind in ConstantKind}


@dataclass(frozen=True, slots=True)
class ContainerConstant:
    """A constant that a container asks for: by ``name``, and by its name in the model."""

    name: str
    fqn: str
    kind: ConstantKind
    folded: bool
    nbytes: int | None
    """Bytes that it takes up in a flat blob, or None if the container does not say."""


_to_handles = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors
# Its singular (alloc_tensor_by_stealing_from_void_ptr) keeps a reference for ever: each call would
# leak a tensor (seen with torch 2.11 and 2.13).
_from_handles = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class _ConstantMapEntry(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("handle", ctypes.c_void_p))


_SIGNATURES: dict[str, list[Any]] = {
    "CreateWithDevice": [
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_size_t,
        ctypes.c_char_p,
        ctypes.c_char_p,
    ],
    "Delete": [ctypes.c_void_p],
    "GetNumConstants": [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)],
    "GetNumInputs": [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)],
    "GetNumOutputs": [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)],
    "GetConstantName": [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_char_p)],
    "GetConstantOriginalFQN": [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_char_p)],
    "GetConstantType": [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int32)],
    "GetConstantFromFolded": [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_bool)],
    "GetConstantDataSize": [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)],
    "UpdateUserManagedConstantBufferPairs": [
        ctypes.c_void_p,
        ctypes.POINTER(_ConstantMapEntry),
        ctypes.c_size_t,
        ctypes.c_bool,
        ctypes.c_bool,
    ],
    "RunSingleThreaded": [
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_size_t,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ],
}


class Container:
    """Owns one container: a compiled model on one device, with one runner.

    It is always run through ``RunSingleThreaded``: the thread-aware call would wait on the host
    for the run before, and could not be captured into a CUDA graph. Callers take turns.
    """

    def __init__(self, code: SharedObject, device: str, *, where: str) -> None:
        self._code = code
        self._where = where
        self._functions: dict[str, Callable[..., int]] = {}
        self._constant_handles: list[int] = []
        self._handle: ctypes.c_void_p | None = None
        handle = ctypes.c_void_p()
        self._call("CreateWithDevice", ctypes.byref(handle), 1, device.encode(), None)
        self._handle = handle
        try:
            self.num_inputs = self._count("GetNumInputs")
            self.num_outputs = self._count("GetNumOutputs")
            self.constants = self._read_constants()
        except BaseException:
            self.close()
            raise
        self._run = self._function("RunSingleThreaded")
        self._inputs = (ctypes.c_void_p * self.num_inputs)()
        self._outputs = (ctypes.c_void_p * self.num_outputs)()

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._handle is None

    def run(self, inputs: Sequence[torch.Tensor], stream: int | None) -> list[torch.Tensor]:
        """Run on a CUDA stream (None: the host) and return the outputs, as new tensors.

        The outputs may not be there yet: the stream orders them. Not for two threads at a time.
        """
        if self._handle is None:
            raise DelegateInvalidHandleError(f"{self._where}: the delegate is closed")
        handles = _to_handles(list(inputs))
        for index, handle in enumerate(handles):
            self._inputs[index] = _capsule_pointer(handle, None)
        code = self._run(
            self._handle,
            self._inputs,
            self.num_inputs,
            self._outputs,
            self.num_outputs,
            stream,
            None,
        )
        if code != 0:
            raise self._error("run", code)
        return _from_handles([_new_capsule(output, None, None) for output in self._outputs])

    def bind_constants(self, tensors: dict[str, torch.Tensor]) -> None:
        """Give constants, by container name. The tensors are used in place, never copied.

        The container holds addresses: :meth:`close` lets go of the tensors.
        """
        handles = [_capsule_pointer(h, None) for h in _to_handles(list(tensors.values()))]
        self._constant_handles.extend(handles)
        pairs = (_ConstantMapEntry * len(tensors))()
        for index, (name, handle) in enumerate(zip(tensors, handles, strict=True)):
            pairs[index] = _ConstantMapEntry(name.encode(), handle)
        self._call(
            "UpdateUserManagedConstantBufferPairs", self._handle, pairs, len(pairs), False, False
        )

    def load_flat_blob(self, address: int, nbytes: int) -> None:
        """Copy all constants from one blob at a host address, in the container's own order."""
        needed = sum(c.nbytes or 0 for c in self.constants if not c.folded)
        if any(c.nbytes is None for c in self.constants):
            raise DelegateInvalidCompatibilityError(
                f"{self._where}: the compiled code does not say how many bytes of weights it "
                "reads, so a flat blob cannot be checked against it",
                hint="export with torch 2.9 or newer",
            )
        if needed > nbytes:
            raise DelegateInvalidCompatibilityError(
                f"{self._where}: the compiled code reads {needed:,} bytes of weights, "
                f"the blob has {nbytes:,}"
            )
        function = self._code.function("AOTInductorModelUpdateConstantsFromBlob")
        if function is None:
            raise DelegateInvalidCompatibilityError(
                f"{self._where}: the compiled code takes no flat blob of weights",
                hint="export with torch 2.9 or newer",
            )
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        function.restype = ctypes.c_int32
        code = function(self._handle, address)
        if code != 0:
            raise self._error("AOTInductorModelUpdateConstantsFromBlob", code)

    def close(self) -> None:
        """Delete the container, then let go of its constants. No run may be under way."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        self._function("Delete")(handle)
        _from_handles([_new_capsule(handle, None, None) for handle in self._constant_handles])
        self._constant_handles.clear()

    def _function(self, name: str) -> Callable[..., int]:
        function = self._functions.get(name)
        if function is None:
            found = self._code.function(f"AOTInductorModelContainer{name}")
            if found is None:
                raise DelegateInvalidCompatibilityError(
                    f"{self._where}: the compiled code has no AOTInductorModelContainer{name}",
                    hint="export with torch 2.6 or newer",
                )
            # Every container of one library shares its function objects: the types are the same.
            found.argtypes = _SIGNATURES[name]
            found.restype = ctypes.c_int32
            function = self._functions[name] = found
        return function

    def _call(self, name: str, *args: Any) -> None:
        code = self._function(name)(*args)
        if code != 0:
            raise self._error(f"AOTInductorModelContainer{name}", code)

    def _count(self, name: str) -> int:
        value = ctypes.c_size_t()
        self._call(name, self._handle, ctypes.byref(value))
        return value.value

    def _text(self, name: str, index: int) -> str:
        value = ctypes.c_char_p()
        self._call(name, self._handle, index, ctypes.byref(value))
        return (value.value or b"").decode("utf-8", "backslashreplace")

    def _optional(self, name: str, index: int, value: Any) -> Any:
        """Return a fact that older containers do not tell, or None."""
        if self._code.function(f"AOTInductorModelContainer{name}") is None:
            return None
        self._call(name, self._handle, index, ctypes.byref(value))
        return value.value

    def _read_constants(self) -> tuple[ContainerConstant, ...]:
        constants = []
        for index in range(self._count("GetNumConstants")):
            kind = self._optional("GetConstantType", index, ctypes.c_int32()) or 0
            folded = self._optional("GetConstantFromFolded", index, ctypes.c_bool())
            constants.append(
                ContainerConstant(
                    self._text("GetConstantName", index),
                    self._text("GetConstantOriginalFQN", index),
                    _KINDS.get(kind, ConstantKind.UNKNOWN),
                    bool(folded),
                    self._optional("GetConstantDataSize", index, ctypes.c_size_t()),
                )
            )
        return tuple(constants)

    def _error(self, what: str, code: int) -> PteronError:
        text = _last_error(self._code)
        return InternalError(
            f"{self._where}: {what} failed with code {code}: "
            + (text or "the compiled code wrote the reason to stderr and keeps no text of it")
        )


def _last_error(code: SharedObject) -> str:
    """Return what the compiled code says of its last failure; older code has no such function."""
    function = code.function("AOTInductorGetLastError")
    if function is None:
        return ""
    text = ctypes.c_char_p()
    function.argtypes = [ctypes.POINTER(ctypes.c_char_p)]
    function.restype = ctypes.c_int32
    function(ctypes.byref(text))
    return (text.value or b"").decode("utf-8", "backslashreplace")
