"""Files with inputs: arrays and tensors, by name where the file has names."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch

from pteron.errors import AccessFailedError, InvalidArgumentError, NotFoundError, missing_package
from pteron.program.signature import nearest

Entries: TypeAlias = "list[tuple[str, Any]]"
"""What a file holds, with the name of each entry ("" if it has none)."""

Reader: TypeAlias = Callable[[Path], Entries]


class _Unreadable(Exception):
    """Says why a file cannot be read, and what to do."""

    def __init__(self, reason: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.hint = hint


def read_file(path: Path, reader: Reader) -> Entries:
    """Return what a file holds, or raise AccessFailedError in plain words."""
    if path.is_dir():
        raise AccessFailedError(f"input file {path} is a folder; give a file", filename=str(path))
    if not path.is_file():
        raise AccessFailedError(f"input file {path} does not exist", filename=str(path))
    try:
        if path.stat().st_size == 0:
            raise _Unreadable("is empty")
        entries = reader(path)
    except _Unreadable as error:
        raise AccessFailedError(
            f"input file {path} {error}", hint=error.hint, filename=str(path)
        ) from error.__cause__
    except OSError as error:
        raise AccessFailedError(
            f"input file {path} cannot be read: {error.strerror or 'it is damaged'}",
            filename=str(path),
            errno=error.errno,
        ) from error
    if not entries:
        raise InvalidArgumentError(f"input file {path} holds nothing")
    return entries


def find_entry(path: Path, entries: Entries, key: str) -> tuple[str, Any]:
    """Return the entry of a name."""
    for name, value in entries:
        if name == key:
            return name, value
    names = [name for name, _ in entries if name]
    near = nearest(key, names)
    meant = f" (did you mean {near}?)" if near is not None else ""
    raise NotFoundError(
        f"{path} has no entry {key!r}{meant}; it has {', '.join(names) or 'no names'}"
    )


_DAMAGED: Final = "is damaged or cut short"


def _read_npy(path: Path) -> Entries:
    import numpy as np

    with path.open("rb") as file:
        if file.read(6) != b"\x93NUMPY":
            raise _Unreadable("is not a numpy array", 'save one with numpy.save("x.npy", array)')
    try:
        return [("", np.load(path, allow_pickle=False))]
    except ValueError as error:
        raise _array_problem(error) from error
    except EOFError as error:
        raise _Unreadable(_DAMAGED) from error


def _array_problem(error: ValueError) -> _Unreadable:
    if "allow_pickle" in str(error) or "Object arrays" in str(error):
        return _Unreadable("holds Python objects, not numbers", "save arrays of numbers")
    return _Unreadable(_DAMAGED)


def _read_npz(path: Path) -> Entries:
    import numpy as np

    if not zipfile.is_zipfile(path):
        raise _Unreadable(
            "is not an archive of numpy arrays", 'save one with numpy.savez("x.npz", name=array)'
        )
    try:
        with np.load(path, allow_pickle=False) as archive:
            return [(name, archive[name]) for name in archive.files]
    except ValueError as error:
        raise _array_problem(error) from error
    except (EOFError, zipfile.BadZipFile) as error:
        raise _Unreadable(_DAMAGED) from error


_SAVE_TENSORS: Final = 'save tensors alone: torch.save({"name": tensor}, "x.pt")'


def _read_pt(path: Path) -> Entries:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            inside = {name.rpartition("/")[2] for name in archive.namelist()}
        if "constants.pkl" in inside:
            raise _Unreadable("holds a TorchScript program, not tensors", _SAVE_TENSORS)
        if "data.pkl" not in inside:
            raise _Unreadable("is a zip archive that torch.save did not write", _SAVE_TENSORS)
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "eights only load failed" in str(error) and zipfile.is_zipfile(path):
            raise _Unreadable(
                "holds Python objects, such as a whole module, and not tensors alone", _SAVE_TENSORS
            ) from error
        raise _Unreadable("is not a file of torch.save", _SAVE_TENSORS) from error
    except Exception as error:  # its reader of old files raises whatever the bytes lead to
        raise _Unreadable("is not a file of torch.save", _SAVE_TENSORS) from error
    if isinstance(loaded, dict):
        return [(str(name), value) for name, value in loaded.items()]
    if isinstance(loaded, (list, tuple)):
        return [("", value) for value in loaded]
    return [("", loaded)]


def _read_safetensors(path: Path) -> Entries:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ModuleNotFoundError as error:
        raise missing_package(error, f"reading {path}") from None
    try:
        return list(load_file(path).items())
    except SafetensorError as error:
        raise _Unreadable("is not a safetensors file, or is cut short") from error


READERS: Final[dict[str, Reader]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".pt": _read_pt,
    ".pth": _read_pt,
    ".safetensors": _read_safetensors,
}
"""What reads a file of each kind."""
