"""Small programs for contracts and cases, exported once.

    @kept
    def doubled() -> Files:
        return export(Doubled(), (torch.ones(3),))

    doubled().pte        # a path

A program is exported when a test first asks for it, and kept in a folder that test processes
share, under a name that changes with the text that makes it. Those that are in
``tests/fixtures/programs.tar.xz`` are taken from there, so that a fresh clone need not export
them; ``python -m support.programs`` (in ``tests``) writes that file anew.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import io
import os
import shutil
import sys
import tarfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from filelock import FileLock
from torch import nn

TESTS = Path(__file__).parents[1]
PACK = TESTS / "fixtures" / "programs.tar.xz"
FOLDER = Path(os.environ.get("PTERON_EXPORT_CACHE", TESTS.parent / ".export_cache")) / "kept"
PROGRAM = "program.pte"

Files = dict[str, bytes]
"""What an export gives: ``program.pte``, and data files by name."""

KEPT: dict[str, Callable[[], Kept]] = {}
"""Every kept program of the test files that were imported, by name."""


@dataclass(frozen=True)
class Kept:
    """A program on disk, and the data files beside it."""

    pte: Path
    data: tuple[Path, ...] = ()

    def bytes(self) -> bytes:
        """Return the program's bytes."""
        return self.pte.read_bytes()


def kept(make: Callable[[], Files]) -> Callable[[], Kept]:
    """Keep what a function exports, for as long as the text that makes it is the same."""

    @cache
    @wraps(make)
    def get() -> Kept:
        digest = hashlib.sha256("\n".join(sorted(set(_text(make, set())))).encode()).hexdigest()
        return _unpacked(f"{make.__name__}-{digest[:12]}", make)

    KEPT[f"{make.__module__}.{make.__name__}"] = get
    return get


def _text(source: Any, seen: set[int]) -> Iterator[str]:
    """Yield the text of a function or class of the tests, and of all that it is made of."""
    source = inspect.unwrap(source)
    if id(source) in seen:
        return
    seen.add(id(source))
    yield inspect.getsource(source)
    parts = vars(source).values() if inspect.isclass(source) else (source,)
    named = [*getattr(source, "__bases__", ())]
    for function in filter(inspect.isfunction, parts):
        for code in _codes(function.__code__):
            named += _named(code.co_names, function.__globals__)
    for value in named:
        if isinstance(value, (bool, int, float, str, tuple, list, dict, torch.Tensor)):
            yield repr(value)
        elif _is_ours(value):
            yield from _text(value, seen)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code, and that of the functions and classes inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _named(names: Sequence[str], scope: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the values that code names, also those of modules of the tests."""
    for name in names:
        value = scope.get(name)
        if inspect.ismodule(value) and _is_ours(value):
            yield from (vars(value)[inner] for inner in names if inner in vars(value))
        elif not inspect.ismodule(value):
            yield value


def _is_ours(thing: Any) -> bool:
    """Return whether a function, class or module belongs to the tests."""
    try:
        return Path(inspect.getfile(inspect.unwrap(thing))).is_relative_to(TESTS)
    except (TypeError, OSError):
        return False


exports = 0
"""Programs that this process exported; executorch prints and warns while it does."""


def _unpacked(name: str, make: Callable[[], Files]) -> Kept:
    global exports
    folder = FOLDER / name
    if not folder.is_dir():
        exports += 1
        FOLDER.mkdir(parents=True, exist_ok=True)
        with FileLock(str(folder) + ".lock"):
            if not folder.is_dir():
                files = _pack().get(name) or make()
                part = folder.with_name(folder.name + ".part")
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir()
                for file, data in files.items():
                    (part / file).write_bytes(data)
                part.rename(folder)
    return Kept(folder / PROGRAM, tuple(sorted(folder.glob("*.ptd"))))


@cache
def _pack() -> dict[str, Files]:
    programs: dict[str, Files] = {}
    if PACK.is_file():
        with tarfile.open(PACK) as pack:
            for member in pack.getmembers():
                name, _, file = member.name.partition("/")
                content = pack.extractfile(member)
                assert content is not None
                programs.setdefault(name, {})[file] = content.read()
    return programs


def export(
    methods: nn.Module | Mapping[str, nn.Module],
    args: tuple[Any, ...] | Mapping[str, tuple[Any, ...]],
    *,
    kwargs: dict[str, Any] | None = None,
    dynamic_shapes: Any = None,
    partitioner: Any = (),
    constant_methods: dict[str, Any] | None = None,
    check_operators: bool = False,
    **config: Any,
) -> Files:
    """Export modules as one program; ``config`` is that of ``ExecutorchBackendConfig``."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        from executorch.exir import (
            EdgeCompileConfig,
            ExecutorchBackendConfig,
            to_edge_transform_and_lower,
        )

        modules = {"forward": methods} if isinstance(methods, nn.Module) else methods
        examples = args if isinstance(args, Mapping) else dict.fromkeys(modules, args)
        programs = {
            name: torch.export.export(
                module.eval(),
                examples[name],
                kwargs,
                dynamic_shapes=dynamic_shapes[name]
                if isinstance(dynamic_shapes, dict) and name in dynamic_shapes
                else dynamic_shapes,
            )
            for name, module in modules.items()
        }
        lowered = to_edge_transform_and_lower(
            programs,
            partitioner=partitioner if isinstance(partitioner, dict) else list(partitioner),
            constant_methods=constant_methods,
            compile_config=EdgeCompileConfig(_check_ir_validity=check_operators),
        ).to_executorch(ExecutorchBackendConfig(**config))
        files = {PROGRAM: bytes(lowered.buffer)}
        for name, data in lowered._tensor_data.items():
            files[f"{name}.ptd"] = bytes(data)
        return files


def edited(files: Files, change: Callable[[Any], None]) -> Files:
    """Return a program with its tables changed (``executorch.exir.schema``)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from executorch.exir._serialize import _program

        file = _program.deserialize_pte_binary(files[PROGRAM])
        change(file.program)
        return {**files, PROGRAM: bytes(_program.serialize_pte_binary(file))}


def write_pack(programs: Mapping[str, Callable[[], Kept]]) -> int:
    """Write the kept programs into the file that a clone brings; return its bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=9) as pack:
        for name in sorted(programs):
            folder = programs[name]().pte.parent
            for path in sorted(folder.iterdir()):
                member = tarfile.TarInfo(f"{folder.name}/{path.name}")
                member.size = path.stat().st_size
                pack.addfile(member, io.BytesIO(path.read_bytes()))
    PACK.parent.mkdir(parents=True, exist_ok=True)
    PACK.write_bytes(buffer.getvalue())
    return len(buffer.getvalue())


def all_programs() -> dict[str, Callable[[], Kept]]:
    """Import every test file that keeps programs, and return them all by name."""
    for path in sorted((*TESTS.glob("contracts/test_*.py"), *TESTS.glob("cases/test_*.py"))):
        name = f"{path.parent.name}_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    from support import programs  # run as __main__, this file is not the module that tests import

    return programs.KEPT


if __name__ == "__main__":
    found = all_programs()
    sys.stderr.write(f"{PACK}: {len(found)} programs, {write_pack(found):,} bytes\n")
