"""From words on the command line to the inputs of a method."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final, TypeAlias
from zipfile import BadZipFile

import torch

from pteron.cli.images import IMAGE_SUFFIXES, load_image
from pteron.cli.inspect_page import value_text
from pteron.cli.value_facts import Value
from pteron.errors import (
    AccessFailedError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
    NotSupportedError,
)

Entries: TypeAlias = "list[tuple[str, Any]]"
"""What a file holds, with the name of each entry ("" if it has none)."""


def collect_inputs(
    words: Sequence[str],
    wanted: Sequence[Value],
    *,
    seed: int | None = None,
    cast: bool = False,
    image_scale: str | None = None,
) -> list[Any]:
    """Return one value for each input of a method; with a seed, random ones for those not given."""
    inputs: list[Any] = []
    for word in words:
        left = wanted[len(inputs) :]
        if not left:
            raise InvalidArgumentError(
                f"--input {word} is one too many: the method takes {_listed(wanted)}"
            )
        given = _read(word, left, image_scale)
        if len(given) > len(left):
            raise InvalidArgumentError(
                f"--input {word} holds {len(given)} values, but the method takes {_listed(wanted)}",
                hint=f"choose one with --input {word}:NAME; there are "
                f"{', '.join(name for name, _ in given[:8])}"
                if given[0][0]
                else None,
            )
        for value, (_, given_value) in zip(left, _by_name(given, left), strict=False):
            inputs.append(_fit(given_value, value, word, cast=cast))
    missing = wanted[len(inputs) :]
    if missing and seed is None:
        raise InvalidArgumentError(
            f"{len(missing)} input(s) not given: the method takes {_listed(wanted)}",
            hint="give each with --input, or use --random SEED",
        )
    if missing:
        generator = torch.Generator().manual_seed(seed or 0)
        inputs += [random_value(value, generator) for value in missing]
    return inputs


def _listed(wanted: Sequence[Value]) -> str:
    if not wanted:
        return "no inputs"
    return ", ".join(
        f"{value['position']}: {value_text(value)}"
        + (f" ({value['name']})" if value["name"] else "")
        for value in wanted
    )


def random_value(value: Value, generator: torch.Generator) -> Any:
    """Return random numbers for a tensor, and what the program holds for anything else."""
    if value["kind"] != "tensor":
        return value["literal"]
    dtype, sizes = _dtype(value), value["sizes"] or []
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex64 if dtype.is_complex else torch.float32
        return torch.randn(sizes, generator=generator, dtype=wide).to(dtype)
    if dtype in (torch.uint8, torch.int8):
        limits = torch.iinfo(dtype)
        return torch.randint(limits.min, limits.max + 1, sizes, generator=generator).to(dtype)
    return torch.randint(0, 2, sizes, generator=generator).to(dtype)


def _dtype(value: Value) -> torch.dtype:
    dtype = getattr(torch, str(value["dtype"]), None)
    if not isinstance(dtype, torch.dtype):
        raise NotSupportedError(
            f"input {value['position']} is {value_text(value)}, which this torch does not have"
        )
    return dtype


# -- words ----------------------------------------------------------------------------------------


def _read(word: str, left: Sequence[Value], image_scale: str | None) -> Entries:
    """Return what a word stands for; ``left`` are the inputs that are not given yet."""
    path, key = _split_key(word)
    suffix = path.suffix.lower()
    if suffix in IMAGE_SUFFIXES:
        return [("", load_image(path, left[0], image_scale))]
    reader = _READERS.get(suffix)
    if reader is not None:
        entries = _read_file(path, reader)
        return entries if key is None else [_entry(path, entries, key)]
    if left[0]["kind"] == "str":
        return [("", _string(word))]
    try:
        return [("", _literal(word))]
    except (ValueError, RecursionError):
        known = " ".join(sorted([*_READERS, *IMAGE_SUFFIXES]))
        raise InvalidArgumentError(
            f"--input {word} is neither a value (3, -0.5, true, none, [1,2,3]) nor a file of a "
            f"known kind ({known})"
        ) from None


def _split_key(word: str) -> tuple[Path, str | None]:
    """Return the path and the entry of ``x.npz:mask``."""
    for suffix in _READERS:
        path, found, key = word.rpartition(f"{suffix}:")
        if found and key:
            return Path(path + suffix), key
    return Path(word), None


def _literal(word: str) -> Any:
    spelled = {"none": "null"}.get(word.lower(), word)
    return json.loads(spelled.lower() if spelled.lower() in ("true", "false", "null") else spelled)


def _string(word: str) -> str:
    if len(word) > 1 and word[0] == word[-1] == '"':
        try:
            return str(json.loads(word))
        except ValueError:
            return word
    return word


def _entry(path: Path, entries: Entries, key: str) -> tuple[str, Any]:
    for name, value in entries:
        if name == key:
            return name, value
    known = ", ".join(name for name, _ in entries if name) or "no names"
    raise NotFoundError(f"{path} has no entry {key!r}; it has {known}")


def _by_name(given: Entries, left: Sequence[Value]) -> Entries:
    """Put entries in the order of the inputs that they are named after, if all of them are."""
    labels = [value["name"] or f"input_{value['position']}" for value in left[: len(given)]]
    found = dict(given)
    if len(found) == len(given) and found.keys() == set(labels):
        return [(label, found[label]) for label in labels]
    return given


# -- files ----------------------------------------------------------------------------------------


def _read_file(path: Path, reader: Callable[[Path], Entries]) -> Entries:
    if not path.is_file():
        raise AccessFailedError(f"input file {path} does not exist")
    try:
        entries = reader(path)
    except (OSError, ValueError, RuntimeError, EOFError, BadZipFile, UnpicklingError) as error:
        raise AccessFailedError(
            f"input file {path} cannot be read: {str(error).strip().splitlines()[0]}"
        ) from error
    if not entries:
        raise InvalidArgumentError(f"input file {path} holds nothing")
    return entries


def _read_npy(path: Path) -> Entries:
    import numpy as np

    return [("", np.load(path, allow_pickle=False))]


def _read_npz(path: Path) -> Entries:
    import numpy as np

    with np.load(path, allow_pickle=False) as archive:
        return [(name, archive[name]) for name in archive.files]


def _read_pt(path: Path) -> Entries:
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(loaded, dict):
        return [(str(name), value) for name, value in loaded.items()]
    if isinstance(loaded, (list, tuple)):
        return [("", value) for value in loaded]
    return [("", loaded)]


def _read_safetensors(path: Path) -> Entries:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise NotSupportedError(
            f"{path} needs the package safetensors", hint="pip install safetensors"
        ) from None
    try:
        return list(load_file(path).items())
    except SafetensorError as error:
        raise ValueError(str(error)) from error


_READERS: Final[dict[str, Callable[[Path], Entries]]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".pt": _read_pt,
    ".pth": _read_pt,
    ".safetensors": _read_safetensors,
}


# -- values ---------------------------------------------------------------------------------------


def _fit(given: Any, value: Value, word: str, *, cast: bool) -> Any:
    """Return a value as the method takes it; element types are converted only if asked for."""
    what = f"input {value['position']} ({value_text(value)}), --input {word}"
    if value["kind"] != "tensor":
        return given
    dtype = _dtype(value)
    if hasattr(given, "__array_interface__"):
        given = _tensor_of_array(given, what)
    if isinstance(given, list):
        given = _tensor_of_list(given, dtype, what)
    elif isinstance(given, (bool, int, float)):
        if value["dynamic"] or any(size != 1 for size in value["sizes"] or []):
            raise InvalidArgumentError(
                f"{what}: one number is not enough",
                hint="give a file, a list such as [1,2,3], or --random SEED",
            )
        given = _tensor_of_list([given], dtype, what).reshape(value["sizes"] or [])
    if not isinstance(given, torch.Tensor):
        raise InvalidTypeError(f"{what}: a {type(given).__name__} is not a tensor")
    if given.dtype != dtype:
        if not cast:
            raise InvalidArgumentError(
                f"{what}: it holds {str(given.dtype).removeprefix('torch.')}",
                hint="--cast converts it",
            )
        given = given.to(dtype)
    return given


def _tensor_of_array(array: Any, what: str) -> torch.Tensor:
    import numpy as np

    try:
        return torch.from_numpy(np.array(array))
    except TypeError as error:
        raise InvalidTypeError(f"{what}: {error}") from None


def _tensor_of_list(items: list[Any], dtype: torch.dtype, what: str) -> torch.Tensor:
    """Return a tensor of a type that can hold the numbers as they are written."""
    try:
        found = torch.tensor(items)
        fits = torch.can_cast(found.dtype, dtype) or not items
        tensor = torch.tensor(items, dtype=dtype) if fits else found
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(f"{what}: {error}") from None
    if not fits:
        kind = str(found.dtype).removeprefix("torch.")
        raise InvalidArgumentError(f"{what}: the list holds {kind} numbers")
    return tensor
