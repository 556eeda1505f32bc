"""From words on the command line to the inputs of a method."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from pteron.cli.images import IMAGE_SUFFIXES, load_image
from pteron.cli.input_files import READERS, Entries, find_entry, read_file
from pteron.errors import InvalidArgumentError, InvalidTypeError, NotFoundError
from pteron.executor.signature import ValueInfo, example_value
from pteron.program.signature import nearest


@dataclass(frozen=True, slots=True)
class Given:
    """One value that a word stands for."""

    word: str
    """What was typed behind ``--input``, without ``NAME=``."""
    target: str | None
    """The input that it is for, where the word or the entry says so."""
    entry: str
    """The name of the entry in the file, or ""."""
    value: Any
    """The value; None for a literal or picture, which is read for the input that takes it."""
    is_read: bool


def collect_inputs(
    words: Sequence[str],
    wanted: Sequence[ValueInfo],
    *,
    seed: int | None = None,
    cast: bool = False,
    image_scale: str | None = None,
) -> list[Any]:
    """Return one value for each input of a method; with a seed, random ones for those not given.

    A value with a name goes to the input of that name. If one name fits, all names have to. Values
    without a name go to the first input that has none yet.
    """
    given = _resolve([one for word in words for one in _parse(word, wanted)], wanted)
    found: dict[int, Any] = {}
    for info, one in _assign(given, wanted):
        value = one.value if one.is_read else _read_for(one.word, info, image_scale)
        found[info.position] = _fit(value, info, one.word, cast=cast)
    missing = [info for info in wanted if info.position not in found and info.literal is None]
    if missing and seed is None:
        raise InvalidArgumentError(
            f"{_count(len(missing), 'input')} not given: {_listed(missing)}",
            hint=f"give each with --input, such as --input {missing[0].name}=FILE, or use "
            "--random SEED",
        )
    generator = torch.Generator().manual_seed(seed or 0)
    return [
        found[info.position] if info.position in found else example_value(info, generator)
        for info in wanted
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun} is" if number == 1 else f"{number} {noun}s are"


def _listed(wanted: Sequence[ValueInfo]) -> str:
    return ", ".join(f"{info.name}: {info.type_text}" for info in wanted) or "no inputs"


# -- words ----------------------------------------------------------------------------------------


def _parse(word: str, wanted: Sequence[ValueInfo]) -> list[Given]:
    """Return what a word stands for: several values if it is a file that holds several."""
    name, what = _split_name(word, wanted)
    path, key = _split_key(what)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        return [Given(what, name, "", None, is_read=False)]
    entries: Entries = read_file(path, reader)
    if key is not None:
        entries = [find_entry(path, entries, key)]
    if name is None:
        return [Given(what, None, entry, value, is_read=True) for entry, value in entries]
    if len(entries) > 1:
        names = ", ".join(entry for entry, _ in entries[:8] if entry)
        raise InvalidArgumentError(
            f"--input {word}: {path} holds {len(entries)} values",
            hint=f"choose one with {word}:NAME; there are {names}" if names else None,
        )
    return [Given(what, name, "", entries[0][1], is_read=True)]


def _split_name(word: str, wanted: Sequence[ValueInfo]) -> tuple[str | None, str]:
    """Return the name and the rest of ``image=photo.png``; a name that no input has is refused."""
    for info in sorted(wanted, key=lambda info: -len(info.name)):
        if word.startswith(f"{info.name}="):
            return info.name, word[len(info.name) + 1 :]
    match = re.match(r"([\w.\[\]-]+)=", word)
    takes_text = any(info.kind in ("str", "none") for info in wanted)
    if match is None or takes_text or Path(word).exists():
        return None, word
    raise _stranger(f"--input {word}", match[1], wanted)


def _stranger(
    what: str,
    name: str,
    wanted: Sequence[ValueInfo],
    hint: str | None = None,
    given: Sequence[str] = (),
) -> NotFoundError:
    near = nearest(name, [info.name for info in wanted if info.name not in given])
    meant = f" (did you mean {near}?)" if near is not None else ""
    return NotFoundError(
        f"{what}: the method has no input {name!r}{meant}; it takes {_listed(wanted)}", hint=hint
    )


def _split_key(word: str) -> tuple[Path, str | None]:
    """Return the path and the entry of ``x.npz:mask``."""
    for suffix in READERS:
        path, found, key = word.rpartition(f"{suffix}:")
        if found and key:
            return Path(path + suffix), key
    return Path(word), None


_NUMBERED: Final = re.compile(r"arr_\d+")
"""The names that numpy gives to arrays which were saved without one."""


def _resolve(given: Sequence[Given], wanted: Sequence[ValueInfo]) -> list[Given]:
    """Send each named value to the input of its name; a name that none has is refused.

    Names of entries count if one of them is an input's, or if the file names its inputs. Else the
    entries go in their order.
    """
    names = {info.name for info in wanted}
    by_name = any(one.target or one.entry in names for one in given) or (
        len(wanted) > 1 and any(info.is_named for info in wanted)
    )
    found = []
    for one in given:
        if one.entry in names:
            one = _for_input(one, one.entry)
        elif by_name and one.entry and not _NUMBERED.fullmatch(one.entry):
            raise _stranger_entry(one, given, wanted)
        found.append(one)
    return found


def _for_input(one: Given, name: str) -> Given:
    return Given(one.word, name, one.entry, one.value, is_read=one.is_read)


def _stranger_entry(
    one: Given, given: Sequence[Given], wanted: Sequence[ValueInfo]
) -> NotFoundError:
    """Return the error about an entry that no input is called like, with a command that works."""
    names = [info.name for info in wanted]
    path = _split_key(one.word)[0]
    fitting = [other.entry for other in given if other.word == one.word and other.entry in names]
    near = nearest(one.entry, [name for name in names if name not in fitting])
    if near is not None:
        hint = f"to use it anyway: --input {near}={path}:{one.entry}"
    elif fitting:
        hint = "to use the others alone: " + " ".join(f"--input {path}:{name}" for name in fitting)
    else:
        hint = f"say which input it is for: --input NAME={path}:{one.entry}"
    return _stranger(f"--input {one.word}", one.entry, wanted, hint, fitting)


def _assign(given: Sequence[Given], wanted: Sequence[ValueInfo]) -> list[tuple[ValueInfo, Given]]:
    """Return the input that takes each value."""
    positions = {info.name: info.position for info in wanted}
    taken: dict[int, Given] = {}
    for one in given:
        if one.target is not None:
            position = positions[one.target]
        else:
            free = [info.position for info in wanted if info.position not in taken]
            if not free:
                raise _too_many(one, given, wanted)
            position = free[0]
        if position in taken:
            raise InvalidArgumentError(
                f"{wanted[position].label} is given twice: --input {taken[position].word} and "
                f"--input {one.word}",
                hint="give each value by name, such as --input NAME=FILE",
            )
        taken[position] = one
    return [(wanted[position], one) for position, one in taken.items()]


def _too_many(
    one: Given, given: Sequence[Given], wanted: Sequence[ValueInfo]
) -> InvalidArgumentError:
    siblings = [other.entry for other in given if other.word == one.word]
    takes = f"the method takes {_listed(wanted)}"
    if len(siblings) == 1 or not any(siblings):
        return InvalidArgumentError(f"--input {one.word} is one too many: {takes}")
    names = ", ".join(siblings[:8])
    return InvalidArgumentError(
        f"--input {one.word} holds {len(siblings)} values, but {takes}",
        hint=f"choose one with --input {one.word}:NAME; there are {names}" if names else None,
    )


# -- values ---------------------------------------------------------------------------------------


def _read_for(word: str, info: ValueInfo, image_scale: str | None) -> Any:
    """Return the picture, string, number or list that a word stands for."""
    if Path(word).suffix.lower() in IMAGE_SUFFIXES:
        return load_image(Path(word), info, image_scale)
    if info.kind == "str":
        return _string(word)
    try:
        return _literal(word)
    except (ValueError, RecursionError):
        hint = None
        if Path(word).is_file():
            hint = 'save an array as .npy: numpy.save("x.npy", array)'
        raise InvalidArgumentError(
            f"{info.label}, {info.type_text}, --input {word!r}: {_why_unreadable(word)}", hint=hint
        ) from None


def _why_unreadable(word: str) -> str:
    """Say why a word is neither a value nor a file."""
    known = " ".join(sorted([*READERS, *IMAGE_SUFFIXES]))
    path = Path(word)
    if word.startswith("["):
        opened, closed = word.count("["), word.count("]")
        return "the list is not closed" if opened > closed else "the list cannot be read"
    if word == "-":
        return "inputs are not read from stdin; give a file"
    if not word:
        return "the value is empty"
    if re.match(r"https?://", word):
        return "it is a web address; download the file first"
    if path.is_dir():
        return "it is a folder; give a file"
    if path.is_file():
        return f"files of this kind are not known; known are {known}"
    return (
        f"no such file, and not a value such as 3, -0.5, true, none or [1,2,3]; files are {known}"
    )


_WORDS: Final = {"none": "null", "nan": "NaN", "inf": "Infinity", "infinity": "Infinity"}


def _literal(word: str) -> Any:
    """Return a number, truth value, None or list; also ``nan``, ``inf``, ``True`` and ``None``."""

    def spelled(match: re.Match[str]) -> str:
        lower = match[0].lower()
        return _WORDS.get(lower, lower if lower in ("true", "false", "null") else match[0])

    quoted = '"' in word
    return json.loads(word if quoted else re.sub(r"[A-Za-z]{2,}", spelled, word))


def _string(word: str) -> str:
    if len(word) > 1 and word[0] == word[-1] == '"':
        try:
            return str(json.loads(word))
        except ValueError:
            return word
    return word


def _fit(given: Any, info: ValueInfo, word: str, *, cast: bool) -> Any:
    """Return a value as the method takes it; element types are converted only if asked for."""
    what = f"{info.label}, {info.type_text}, --input {word}"
    dtype = info.dtype
    if dtype is None:
        return given
    if hasattr(given, "__array_interface__"):
        given = _tensor_of_array(given, what)
    if isinstance(given, list):
        given = _tensor_of_list(given, dtype, what)
    elif isinstance(given, (bool, int, float)):
        if info.is_dynamic or any(size != 1 for size in info.shape or ()):
            raise InvalidArgumentError(
                f"{what}: one number is not enough",
                hint="give a file, a list such as [1,2,3], or --random SEED",
            )
        given = _tensor_of_list([given], dtype, what).reshape(info.shape or ())
    if not isinstance(given, torch.Tensor):
        kind = "None" if given is None else f"of type {type(given).__name__}"
        raise InvalidTypeError(f"{what}: the value is {kind}, not a tensor")
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
    except TypeError:
        raise InvalidTypeError(
            f"{what}: it holds {array.dtype}, an element type that torch lacks"
        ) from None


def _tensor_of_list(items: list[Any], dtype: torch.dtype, what: str) -> torch.Tensor:
    """Return a tensor of a type that can hold the numbers as they are written."""
    try:
        found = torch.tensor(items)
        fits = torch.can_cast(found.dtype, dtype) or not items
        tensor = torch.tensor(items, dtype=dtype) if fits else found
    except (TypeError, ValueError, RuntimeError):
        raise InvalidArgumentError(
            f"{what}: the list is not a tensor",
            hint="rows have the same number of numbers, and every number fits the element type",
        ) from None
    if not fits:
        kind = str(found.dtype).removeprefix("torch.")
        raise InvalidArgumentError(f"{what}: the list holds {kind} numbers")
    return tensor
