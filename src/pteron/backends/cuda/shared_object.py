"""Compiled code from memory into the process: no file that another user could swap."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import platform
import sys
import threading
from pathlib import Path

import torch

from pteron.backends.cuda.describe import CheckedDelegate
from pteron.errors import (
    DelegateInvalidCompatibilityError,
    NotFoundError,
    NotSupportedError,
)

logger = logging.getLogger("pteron")

TORCH_LIBRARIES = ("libtorch_cuda.so", "libtorch_cpu.so", "libc10_cuda.so", "libc10.so")
"""Where the ``aoti_torch_*`` functions live. A CPU build of torch has not all of them."""

_MFD_EXEC = 0x10
"""Linux 6.3 and newer: the memory may be mapped executable even if the default says otherwise."""


class SharedObject:
    """Owns one loaded library, for as long as the process lives.

    A library that exports unique symbols, as these do, is never unloaded by the loader. The
    descriptor of its memory stays open too: its number is the name under which the loader knows
    the library, and a second library of that name would be taken for the first.
    """

    __slots__ = ("descriptor", "digest", "library")

    def __init__(self, digest: str, descriptor: int, library: ctypes.CDLL) -> None:
        self.digest = digest
        self.descriptor = descriptor
        self.library = library

    def function(self, name: str) -> ctypes._NamedFuncPointer | None:
        """Return an exported function, or None if the library has it not."""
        try:
            return getattr(self.library, name)  # type: ignore[no-any-return]
        except AttributeError:
            return None


_loaded: dict[str, SharedObject] = {}
_lock = threading.Lock()
_torch_is_global = False


def load_shared_object(delegate: CheckedDelegate, *, where: str) -> SharedObject:
    """Load a delegate's code, once per process and digest.

    Before anything of it runs, its processor and every symbol that it lacks are checked; what is
    missing is named all at once.
    """
    with _lock:
        known = _loaded.get(delegate.digest)
        if known is None:
            _check_host(delegate, where)
            missing = missing_symbols(delegate, where=where)
            if missing:
                raise _missing_error(missing, where)
            known = _loaded[delegate.digest] = _load(delegate, where)
        return known


def missing_symbols(delegate: CheckedDelegate, *, where: str) -> tuple[str, ...]:
    """Return the symbols that the code needs and that nothing in this process has."""
    _make_torch_global()
    libraries = [ctypes.CDLL(None), *(_needed(name, where) for name in delegate.info.needed)]
    return tuple(
        name
        for name in delegate.info.undefined
        if not any(_exports(library, name) for library in libraries)
    )


def _needed(name: str, where: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        driver = "libcuda.so.1 comes with the NVIDIA driver"
        raise NotFoundError(
            f"{where}: the compiled code needs {name}: {error}",
            hint=driver if name.startswith("libcuda.") else None,
        ) from error


def _exports(library: ctypes.CDLL, name: str) -> bool:
    try:
        library[name]
    except AttributeError:
        return False
    return True


def _missing_error(missing: tuple[str, ...], where: str) -> DelegateInvalidCompatibilityError:
    has_cuda = torch.version.cuda is not None
    build = f"torch {torch.__version__}"
    hint = f"export with a torch that is no newer than this one ({torch.__version__})"
    if not has_cuda:
        hint = "install a torch build with CUDA"
    elif not any(name.startswith("aoti_torch_") for name in missing):
        hint = "the program was compiled on a newer system than this one"
    return DelegateInvalidCompatibilityError(
        f"{where}: {len(missing)} symbols that the compiled code needs are neither in {build} nor "
        f"in the system's libraries: {', '.join(missing)}",
        hint=hint,
    )


def _check_host(delegate: CheckedDelegate, where: str) -> None:
    if not sys.platform.startswith("linux") or not hasattr(os, "memfd_create"):
        raise NotSupportedError(
            f"{where}: the compiled code is a Linux shared object; this is {sys.platform}"
        )
    machine = platform.machine()
    if delegate.info.machine != machine:
        raise DelegateInvalidCompatibilityError(
            f"{where}: the compiled code is for {delegate.info.machine}; this machine is {machine}",
            hint="export the program on a machine of this kind",
        )


def _make_torch_global() -> None:
    """Let libraries that are loaded later find torch's symbols, as a C++ program's would be."""
    global _torch_is_global
    if _torch_is_global:
        return
    folder = Path(torch.__file__).parent / "lib"
    for name in TORCH_LIBRARIES:
        path = folder / name
        if path.exists():
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    _torch_is_global = True


def _load(delegate: CheckedDelegate, where: str) -> SharedObject:
    descriptor = _sealed_memory(delegate.code, f"pteron-{delegate.digest[:16]}", where)
    try:
        library = ctypes.CDLL(f"/proc/self/fd/{descriptor}", mode=ctypes.RTLD_LOCAL)
    except OSError as error:
        os.close(descriptor)
        raise DelegateInvalidCompatibilityError(
            f"{where}: the system's loader refuses the compiled code: {error}"
        ) from error
    logger.debug("loaded %d bytes of native code, sha256 %s", delegate.code.nbytes, delegate.digest)
    return SharedObject(delegate.digest, descriptor, library)


def _sealed_memory(code: memoryview, name: str, where: str) -> int:
    """Return a descriptor of anonymous memory that holds the code and can no longer change."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        try:
            descriptor = os.memfd_create(name, flags | _MFD_EXEC)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            descriptor = os.memfd_create(name, flags)
        try:
            written = 0
            while written < code.nbytes:
                written += os.write(descriptor, code[written:])
            seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        raise NotSupportedError(
            f"{where}: the system gives no memory to load compiled code from: {error}",
            hint="look at the sysctl vm.memfd_noexec",
        ) from error
    return descriptor
