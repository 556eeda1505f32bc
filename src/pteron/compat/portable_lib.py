"""The functions of ``executorch.extension.pybindings.portable_lib``, on pteron.

The 22 names of the binding module (``_C``) are in ``__all__``.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from pteron.compat.bindings import (
    ExecuTorchMethod,
    ExecuTorchModule,
    ExecuTorchProgram,
    LoadedProgram,
)
from pteron.compat.bundled import BundledModule
from pteron.compat.data_loader import PyDataLoader
from pteron.program.method_meta import MethodMeta, TensorInfo
from pteron.runtime import Runtime, Verification

__all__ = [
    "BundledModule",
    "ExecuTorchMethod",
    "ExecuTorchModule",
    "ExecuTorchProgram",
    "MethodMeta",
    "TensorInfo",
    "Verification",
    "_create_profile_block",
    "_dump_profile_results",
    "_get_operator_names",
    "_get_registered_backend_names",
    "_is_available",
    "_load_bundled_program_from_buffer",
    "_load_for_executorch",
    "_load_for_executorch_from_buffer",
    "_load_for_executorch_from_bundled_program",
    "_load_for_executorch_from_data_loader",
    "_load_program",
    "_load_program_from_buffer",
    "_reset_profile_results",
    "_threadpool_get_thread_count",
    "_unsafe_reset_threadpool",
]

_DEFAULT_POOL_BYTES = 16 * 1024


def _load_for_executorch(
    program_path: str,
    data_path: str | None = None,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
    program_verification: Verification = Verification.InternalConsistency,
) -> ExecuTorchModule:
    """Return a module over a file; it is read when a method is first asked for."""
    return ExecuTorchModule(
        LoadedProgram(
            program_path,
            data_path,
            enable_etdump=enable_etdump,
            debug_buffer_size=debug_buffer_size,
        )
    )


def _load_for_executorch_from_buffer(
    buffer: bytes,
    data_map_buffer: bytes | None = None,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
    program_verification: Verification = Verification.InternalConsistency,
) -> ExecuTorchModule:
    """Return a module over bytes."""
    return ExecuTorchModule(
        LoadedProgram(
            _bytes_of(buffer),
            data_map_buffer,
            enable_etdump=enable_etdump,
            debug_buffer_size=debug_buffer_size,
        )
    )


def _load_for_executorch_from_bundled_program(
    ptr: BundledModule,
    data_map_buffer: bytes | str | None = None,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
    *,
    data_path: str | None = None,
) -> ExecuTorchModule:
    """Return a module over the program in a bundle; data are bytes, or a path."""
    return ExecuTorchModule(
        LoadedProgram(
            ptr.bundle.program,
            data_map_buffer if data_map_buffer is not None else data_path,
            enable_etdump=enable_etdump,
            debug_buffer_size=debug_buffer_size,
        )
    )


def _load_bundled_program_from_buffer(
    buffer: bytes, non_const_pool_size: int = _DEFAULT_POOL_BYTES
) -> BundledModule:
    """Return a bundled program; no pool is needed."""
    return BundledModule(_bytes_of(buffer))


def _load_for_executorch_from_data_loader(
    loader: PyDataLoader,
    data_path: str | None = None,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
) -> ExecuTorchModule:
    """Return a module over what a data loader gives."""
    return ExecuTorchModule(
        LoadedProgram(
            bytes(loader.load(0, loader.size())),
            data_path,
            enable_etdump=enable_etdump,
            debug_buffer_size=debug_buffer_size,
        )
    )


def _load_program(
    path: str,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
    program_verification: Verification = Verification.Minimal,
    data_path: str | None = None,
) -> ExecuTorchProgram:
    """Open a file."""
    return ExecuTorchProgram(
        LoadedProgram(
            path, data_path, enable_etdump=enable_etdump, debug_buffer_size=debug_buffer_size
        )
    )


def _load_program_from_buffer(
    buffer: bytes,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
    program_verification: Verification = Verification.Minimal,
    data_path: str | None = None,
) -> ExecuTorchProgram:
    """Open bytes."""
    return ExecuTorchProgram(
        LoadedProgram(
            _bytes_of(buffer),
            data_path,
            enable_etdump=enable_etdump,
            debug_buffer_size=debug_buffer_size,
        )
    )


def _bytes_of(buffer: Any) -> Any:
    """Return a buffer; a path is for the functions that open files."""
    if isinstance(buffer, (str, os.PathLike)):
        raise TypeError(f"a buffer is the bytes of a program, got {type(buffer).__name__}")
    return buffer


def _get_operator_names() -> list[str]:
    """Return the names of the operators that have a kernel."""
    return sorted(Runtime.get().operator_registry.operator_names)


def _get_registered_backend_names() -> list[str]:
    """Return the ids of the backends that this machine can run."""
    registry = Runtime.get().backend_registry
    return [name for name in registry.registered_backend_names if registry.is_available(name)]


def _is_available(backend_name: str) -> bool:
    """Return whether a backend is there and this machine has what it needs."""
    return Runtime.get().backend_registry.is_available(backend_name)


def _create_profile_block(name: str) -> None:
    """Do nothing: as in the released wheels there is no profiler; an ETDump holds the times."""


def _dump_profile_results() -> bytes:
    """Return no bytes: as in the released wheels there is no profiler."""
    return b""


def _reset_profile_results() -> None:
    """Do nothing."""


def _unsafe_reset_threadpool(num_threads: int) -> None:
    """Set how many threads torch uses; 0 stands for all."""
    torch.set_num_threads(num_threads or os.cpu_count() or 1)


def _threadpool_get_thread_count() -> int:
    """Return how many threads torch uses."""
    return torch.get_num_threads()
