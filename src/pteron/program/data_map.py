"""Named data of a program and of its data files, under one roof."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pteron.errors import InvalidExternalDataError, NotFoundError
from pteron.format.ptd import PtdFile
from pteron.format.pte import PteFile
from pteron.format.schema import TensorLayout

_COMPARE_BYTES = 1 << 20

_KEYS_SHOWN = 20
"""Keys that an error lists at most."""


@dataclass(frozen=True, slots=True, eq=False)
class DataEntry:
    """One named blob. Views its file; ``layout`` is None if the file does not give one."""

    data: memoryview
    layout: TensorLayout | None
    origin: str


class NamedDataMap:
    """Views the named data of one program and of any number of data files, which outlive it.

    A key that is found twice is one entry if the bytes (and the layouts, where given) are equal;
    otherwise :class:`~pteron.errors.InvalidExternalDataError` names both files (DESIGN, I6).
    """

    def __init__(self, pte: PteFile, ptds: Sequence[PtdFile] = ()) -> None:
        self.ptds = tuple(ptds)
        self._files = (pte.source.name, *(ptd.source.name for ptd in ptds))
        self._entries: dict[str, DataEntry] = {}
        for named in pte.program.named_data:
            self._add(named.key, DataEntry(pte.segment(named.segment_index), None, self._files[0]))
        for ptd in ptds:
            for entry in ptd.flat_tensor.named_data:
                data = ptd.segment(entry.segment_index)
                self._add(entry.key, DataEntry(data, entry.tensor_layout, ptd.source.name))

    def _add(self, key: str, entry: DataEntry) -> None:
        known = self._entries.get(key)
        if known is None:
            self._entries[key] = entry
            return
        both = f"key {key!r} is in {known.origin} and in {entry.origin}"
        if known.origin == entry.origin:
            both = f"key {key!r} is twice in {entry.origin}"
        if not _same_bytes(known.data, entry.data):
            raise InvalidExternalDataError(
                f"{both}, with different bytes ({known.data.nbytes} and {entry.data.nbytes})",
                hint="give only the data files that belong together",
            )
        if known.layout is None:  # a program gives no layouts; the data file's one is worth more
            self._entries[key] = entry
        elif entry.layout is not None and entry.layout != known.layout:
            raise InvalidExternalDataError(
                f"{both}, with different layouts: {known.layout} and {entry.layout}"
            )

    def get(self, key: str) -> DataEntry:
        """Return one blob; NotFoundError names the key and the files that were looked through."""
        entry = self._entries.get(key)
        if entry is None:
            raise self.missing([key])
        return entry

    def missing(self, keys: Sequence[str]) -> NotFoundError:
        """Return the error that names keys which no file has, and the files."""
        shown = ", ".join(map(repr, keys[:_KEYS_SHOWN]))
        if len(keys) > _KEYS_SHOWN:
            shown += f" and {len(keys) - _KEYS_SHOWN:,} more"
        hints = {self._hint(key) for key in keys[:_KEYS_SHOWN]}
        return NotFoundError(
            f"no data is called {shown} in {' or '.join(self._files)}",
            hint=hints.pop() if len(hints) == 1 else None,
        )

    def _hint(self, key: str) -> str:
        from difflib import get_close_matches  # only for an error

        near = get_close_matches(key, self._entries, n=3)
        if near:
            return f"there is {', '.join(map(repr, near))}"
        if len(self._files) == 1:
            return "the program keeps data outside of it: give its .ptd file as data_path"
        return "this data file does not belong to this program"

    def keys(self) -> tuple[str, ...]:
        """Return all keys, the program's own first."""
        return tuple(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"NamedDataMap({len(self)} keys from {', '.join(self._files)})"


def _same_bytes(a: memoryview, b: memoryview) -> bool:
    if a.nbytes != b.nbytes:
        return False
    return all(  # bytes compare with memcmp, memoryviews item by item
        bytes(a[at : at + _COMPARE_BYTES]) == bytes(b[at : at + _COMPARE_BYTES])
        for at in range(0, a.nbytes, _COMPARE_BYTES)
    )
