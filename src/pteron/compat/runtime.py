"""The classes of ``executorch.runtime``, on pteron."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from pteron.compat import portable_lib
from pteron.compat.bindings import ExecuTorchMethod, ExecuTorchProgram
from pteron.program.method_meta import MethodMeta
from pteron.runtime import Verification

__all__ = [
    "BackendRegistry",
    "ExecuTorchMethod",
    "ExecuTorchProgram",
    "Method",
    "MethodMeta",
    "OperatorRegistry",
    "Program",
    "Runtime",
    "Verification",
]


class Method:
    """A method, loaded."""

    def __init__(self, method: ExecuTorchMethod) -> None:
        self._method = method

    def execute(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run on inputs and return the outputs."""
        return self._method(inputs)

    @property
    def metadata(self) -> MethodMeta:
        """What the file says of the method."""
        return self._method.method_meta()


class Program:
    """A program, open; a method is loaded once and kept."""

    def __init__(self, program: ExecuTorchProgram, data: bytes | None = None) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._methods: dict[str, Method | None] = {
            program.get_method_name(index): None for index in range(program.num_methods())
        }

    @property
    def method_names(self) -> set[str]:
        """The names of the methods."""
        return set(self._methods)

    def load_method(self, name: str) -> Method:
        """Load a method; an unknown name raises KeyError, as in executorch."""
        with self._lock:
            method = self._methods[name]
            if method is None:
                method = self._methods[name] = Method(self._program.load_method(name))
            return method

    def metadata(self, method_name: str) -> MethodMeta:
        """Return what the file says of a method, without loading it."""
        return self._program.method_meta(method_name)

    def write_etdump_result_to_file(self, etdump_path: str, debug_buffer_path: str) -> None:
        """Write the trace, and the values that it counts offsets in."""
        self._program.write_etdump_result_to_file(etdump_path, debug_buffer_path)


class BackendRegistry:
    """The backends that run delegates."""

    def __init__(self, legacy_module: ModuleType) -> None:
        self._legacy_module = legacy_module

    @property
    def registered_backend_names(self) -> list[str]:
        """The ids of the backends."""
        names: list[str] = self._legacy_module._get_registered_backend_names()
        return names

    def is_available(self, backend_name: str) -> bool:
        """Return whether a backend can run here."""
        return bool(self._legacy_module._is_available(backend_name))


class OperatorRegistry:
    """The operators that have a kernel."""

    def __init__(self, legacy_module: ModuleType) -> None:
        self._legacy_module = legacy_module

    @property
    def operator_names(self) -> set[str]:
        """The operators' names."""
        return set(self._legacy_module._get_operator_names())


class Runtime:
    """The runtime of this process."""

    @staticmethod
    @functools.lru_cache(maxsize=1)
    def get() -> Runtime:
        """Return the process's runtime."""
        return Runtime(legacy_module=_reachable_bindings())

    def __init__(self, *, legacy_module: ModuleType) -> None:
        self.backend_registry = BackendRegistry(legacy_module)
        self.operator_registry = OperatorRegistry(legacy_module)
        self._legacy_module = legacy_module

    def load_program(
        self,
        data: bytes | bytearray | BinaryIO | Path | str,
        *,
        verification: Verification = Verification.InternalConsistency,
        enable_etdump: bool = False,
        debug_buffer_size: int = 0,
        data_path: Path | str | None = None,
    ) -> Program:
        """Open a program: a path, bytes, or a file object."""
        load = self._legacy_module._load_program_from_buffer
        given: bytes | str
        if isinstance(data, (Path, str)):
            load, given = self._legacy_module._load_program, str(data)
        elif isinstance(data, (bytes, bytearray)):
            given = bytes(data)
        elif hasattr(data, "read"):
            given = data.read()
            if not isinstance(given, (bytes, bytearray)):
                raise TypeError(f"a file-like object has to give bytes, got {type(given).__name__}")
        else:
            raise TypeError(
                "a program is bytes, bytearray, a path or a file-like object, got "
                f"{type(data).__name__}"
            )
        program = load(
            given,
            enable_etdump=enable_etdump,
            debug_buffer_size=debug_buffer_size,
            program_verification=verification,
            data_path=str(data_path) if data_path is not None else None,
        )
        return Program(program)


def _reachable_bindings() -> ModuleType:
    """Return the bindings as code that imports executorch's reaches them, to patch for instance."""
    found = sys.modules.get("executorch.extension.pybindings.portable_lib")
    return found if found is not None and hasattr(found, "__pteron_original__") else portable_lib
