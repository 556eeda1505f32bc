"""Stand in for executorch's runtime: code that imports it runs on pteron.

    import pteron.compat.executorch
    pteron.compat.executorch.install()              # before the code that imports executorch

    python -m pteron.compat.executorch -- script.py arguments ...
    python -m pteron.compat.executorch -- -m module arguments ...
    python -m pteron.compat.executorch -- -c code arguments ...
    python -m pteron.compat.executorch -- command arguments ...     # a Python script on the PATH
    python -m pytest -p pteron.compat.pytest_plugin ...

In the process, these modules are pteron's: ``executorch.runtime`` and, in
``executorch.extension.pybindings``, ``portable_lib``, ``_C`` and ``data_loader``. Nothing of an
installed executorch package is changed, and none is needed.
"""

from __future__ import annotations

import functools
import logging
import re
import runpy
import shutil
import sys
import threading
import zipfile
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pteron.compat import out_variants as variants

logger = logging.getLogger("pteron")

BINDINGS: Final = "executorch.extension.pybindings"
STAND_INS: Final[dict[str, str]] = {
    f"{BINDINGS}.data_loader": "pteron.compat.data_loader",
    f"{BINDINGS}._C": "pteron.compat.portable_lib",
    f"{BINDINGS}.portable_lib": "pteron.compat.portable_lib",
    "executorch.runtime": "pteron.compat.runtime",
}
"""executorch's modules, and where their names are here."""

QUANTIZED: Final = "executorch.kernels.quantized"
"""Loads a native library that defines what :mod:`pteron.compat.out_variants` has defined."""

_NOTHING: Final = object()
_lock = threading.RLock()
_replaced: dict[str, tuple[ModuleType | None, object]] = {}
"""What was in ``sys.modules``, and in the parent package, before."""


def installed() -> bool:
    """Return whether pteron stands in for executorch in this process."""
    return bool(_replaced)


def install(*, out_variants: bool = True) -> None:
    """Make executorch's runtime modules resolve to pteron; a second call does nothing.

    A module that was imported before and holds names of executorch's runtime keeps them; the log
    says which of the runtime's modules were there. ``out_variants`` defines the out variants of
    ``quantized_decomposed`` that exports without a delegate need.
    """
    with _lock:
        if _replaced:
            return
        there = [name for name in STAND_INS if name in sys.modules]
        if there:
            logger.info("executorch's runtime was imported before: %s", ", ".join(there))
        modules = {name: _stand_in(name, source) for name, source in STAND_INS.items()}
        if out_variants:
            variants.register_out_variants()
        if variants.defined():
            _pass_over_definitions()
        for name, module in modules.items():
            _replace(name, module)
        runtime = import_module(STAND_INS["executorch.runtime"]).Runtime
        if runtime.get()._legacy_module is not modules[f"{BINDINGS}.portable_lib"]:
            runtime.get.cache_clear()


def uninstall() -> None:
    """Bring back what :func:`install` replaced. Names that code imported meanwhile stay.

    Operators that it defined stay, too, and what else defines them is passed over from then on:
    a second definition would end the process.
    """
    with _lock:
        for name, (module, attribute) in reversed(_replaced.items()):
            parent, _, child = name.rpartition(".")
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
            if parent in sys.modules:
                if attribute is _NOTHING:
                    vars(sys.modules[parent]).pop(child, None)
                else:
                    setattr(sys.modules[parent], child, attribute)
        _replaced.clear()


def original_binding() -> ModuleType | None:
    """Return executorch's own binding module, imported past the stand-in; None if there is none.

    pteron hands delegates that it does not know to it.
    """
    with _lock:
        was_installed = installed()
        uninstall()
        try:
            return import_module(f"{BINDINGS}._C")
        except (ImportError, OSError) as error:
            logger.info("there is no executorch binding to fall back on: %s", error)
            return None
        finally:
            if was_installed:
                install(out_variants=False)


@functools.cache
def _stand_in(name: str, source: str) -> ModuleType:
    """Return a module with executorch's name and pteron's content, the same each time."""
    content = import_module(source)
    real = _spec(name)
    module = _empty(name)
    module.__doc__ = content.__doc__
    module.__file__ = content.__file__
    module.__pteron_original__ = original_binding  # type: ignore[attr-defined]
    if real is not None and real.submodule_search_locations:
        module.__path__ = list(real.submodule_search_locations)
    for public in content.__all__:
        setattr(module, public, getattr(content, public))
    return module


def _empty(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, loader=None, origin=__file__)
    return module


def _spec(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except (ImportError, ValueError):  # no such package, or something that has no spec
        return None


def _replace(name: str, module: ModuleType) -> None:
    parent_name, _, child = name.rpartition(".")
    parent = _package(parent_name)
    _replaced[name] = (sys.modules.get(name), vars(parent).get(child, _NOTHING))
    sys.modules[name] = module
    setattr(parent, child, module)


def _pass_over_definitions() -> None:
    """Keep executorch from defining the operators that this process has from pteron."""
    variants.skip_native_libraries()
    if QUANTIZED not in sys.modules:
        parent, _, child = QUANTIZED.rpartition(".")
        sys.modules[QUANTIZED] = _empty(QUANTIZED)
        setattr(_package(parent), child, sys.modules[QUANTIZED])


def _package(name: str) -> ModuleType:
    """Return a package, made up if it is not installed."""
    if name not in sys.modules and _spec(name) is None:
        package = _empty(name)
        package.__path__ = []
        sys.modules[name] = package
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(_package(parent), child, package)
    return import_module(name)


_USAGE: Final = """\
usage: python -m pteron.compat.executorch -- script.py arguments ...
       python -m pteron.compat.executorch -- -m module arguments ...
       python -m pteron.compat.executorch -- -c code arguments ...
       python -m pteron.compat.executorch -- command arguments ...

Run a script, a module, code, or a command that is a Python script, with pteron in the place of
executorch's runtime.
"""

_INTERPRETER: Final = re.compile(r"python[\d.]*(\.exe)?")


def main(arguments: Sequence[str] | None = None) -> Any:
    """Run a script, a command that is a Python script, a module or code, on pteron."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["--"]:
        words = words[1:]
    if words[:1] in (["-h"], ["--help"]):
        sys.stdout.write(_USAGE)
        return 0
    if words and _INTERPRETER.fullmatch(Path(words[0]).name):
        words = words[1:]
    if not words or (words[0] in ("-m", "-c") and len(words) < 2):
        return _refused(_USAGE)
    if words[0] == "-m":
        _install()
        sys.argv = words[1:]
        sys.path.insert(0, "")
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return 0
    if words[0] == "-c":
        _install()
        return _run_code(words[1], words[2:])
    if words[0].startswith("-"):
        return _refused(
            f"{words[0]}: options of the interpreter go to the outer python, as in\n"
            f"python {words[0]} -m pteron.compat.executorch -- script.py arguments ...\n"
        )
    return _run_file(words)


def _refused(message: str) -> int:
    sys.stderr.write(message)
    return 2


def _install() -> None:
    # As a main module this file is a second copy; what counts is the one that others import.
    import_module("pteron.compat.executorch").install()


def _run_code(code: str, arguments: list[str]) -> int:
    module = sys.modules["__main__"] = ModuleType("__main__")
    sys.argv = ["-c", *arguments]
    sys.path.insert(0, "")
    exec(compile(code, "<string>", "exec"), vars(module))
    return 0


def _run_file(words: list[str]) -> int:
    here = Path(words[0])
    runs = here.is_file() or (here / "__main__.py").is_file()
    script = words[0] if runs else shutil.which(words[0])
    if script is None:
        return _refused(f"{words[0]}: there is no such script or command\n")
    path = Path(script)
    if not _is_python(path):
        return _refused(f"{script} is no Python script: only those can run on pteron\n")
    _install()
    sys.argv = [script, *words[1:]]
    if path.is_file():  # runpy adds a folder by itself
        sys.path.insert(0, str(path.resolve().parent))
    runpy.run_path(script, run_name="__main__")
    return 0


def _is_python(path: Path) -> bool:
    """Return whether a file says that it is Python, or else can be read as such."""
    if path.is_dir() or path.suffix in (".py", ".pyw", ".pyc") or zipfile.is_zipfile(path):
        return True
    try:
        compile(path.read_bytes(), str(path), "exec")
    except (SyntaxError, ValueError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
