"""A shared object's bytes to the facts that matter before it is loaded.

Only headers, the dynamic section and the dynamic symbols are read, and every offset is checked
against the object's size: the object comes from a file. Layouts: System V gABI, GNU hash section.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pteron.backends.cuda.device_images import DeviceImage, read_images
from pteron.backends.machine_code import ELF_HEADER, ELF_MAGIC, elf_machine
from pteron.errors import InvalidProgramError

MAX_DYNAMIC_ENTRIES = 4_096
MAX_SYMBOLS = 4_000_000
MAX_DEVICE_IMAGES = 65_536

_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_U32 = struct.Struct("<I")
_PAIR = struct.Struct("<QQ")
_QUAD = struct.Struct("<IIII")

_ET_DYN = 3
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ = 1, 4, 5, 6, 10
_DT_GNU_HASH = 0x6FFFFEF5
_STB_GLOBAL, _STB_WEAK, _STB_GNU_UNIQUE = 1, 2, 10


@dataclass(frozen=True, slots=True)
class SharedObjectInfo:
    """What a shared object says of itself."""

    machine: str
    needed: tuple[str, ...]
    """Libraries that the loader brings in with it."""
    undefined: tuple[str, ...]
    """Functions and data that something else in the process must have."""
    undefined_weak: tuple[str, ...]
    """The same, but it loads without them."""
    defined: frozenset[str]
    images: tuple[DeviceImage, ...]
    embeds_constants: bool
    """Whether an AOTInductor model keeps its weights in the object itself."""

    @property
    def architectures(self) -> tuple[str, ...]:
        """The GPU architectures for which there is code, each once."""
        return tuple(sorted({image.architecture for image in self.images}))


def read_elf(data: memoryview, *, where: str) -> SharedObjectInfo:
    """Return what a 64-bit little-endian shared object says of itself.

    ``where`` names the object in errors. Raises InvalidProgramError if it is no such object, or
    if anything that is read lies outside it.
    """
    return _Reader(data, where).read()


class _Reader:
    """Reads one object; every access is checked and every error names the offset."""

    def __init__(self, data: memoryview, where: str) -> None:
        self.data = data
        self.where = where
        self.loads: list[tuple[int, int, int]] = []

    def fail(self, text: str, offset: int) -> InvalidProgramError:
        return InvalidProgramError(f"{self.where}: at offset {offset:#x}: {text}")

    def unpack(self, layout: struct.Struct, offset: int, what: str) -> tuple[Any, ...]:
        if offset < 0 or offset + layout.size > self.data.nbytes:
            raise self.fail(
                f"{what} of {layout.size} bytes lies outside the object "
                f"of {self.data.nbytes:,} bytes",
                offset,
            )
        return layout.unpack_from(self.data, offset)

    def u32(self, offset: int, what: str) -> int:
        return int(self.unpack(_U32, offset, what)[0])

    def read(self) -> SharedObjectInfo:
        machine, program_headers = self.header()
        dynamic: dict[int, list[int]] = {}
        dynamic_offset = -1
        for kind, offset, address, size in program_headers:
            if kind == _PT_LOAD:
                self.loads.append((address, offset, size))
            elif kind == _PT_DYNAMIC:
                dynamic_offset = offset
        if dynamic_offset < 0:
            raise self.fail("the object has no dynamic section", 0)
        for tag, value in self.dynamic_entries(dynamic_offset):
            dynamic.setdefault(tag, []).append(value)
        strings = self.strings(dynamic)
        needed = tuple(strings.get(value) for value in dynamic.get(_DT_NEEDED, ()))
        undefined: list[str] = []
        weak: list[str] = []
        defined: dict[str, int] = {}
        for name, binding, section, value in self.symbols(dynamic, strings):
            if section != 0:
                defined[name] = value
            elif binding == _STB_WEAK:
                weak.append(name)
            elif binding in (_STB_GLOBAL, _STB_GNU_UNIQUE):
                undefined.append(name)
        return SharedObjectInfo(
            machine,
            needed,
            tuple(sorted(undefined)),
            tuple(sorted(weak)),
            frozenset(defined),
            tuple(self.device_images(defined)),
            # Without them there is one byte, or the size that a file outside has to have.
            defined.get("_binary_constants_bin_end", 0)
            - defined.get("_binary_constants_bin_start", 0)
            > 8,
        )

    def header(self) -> tuple[str, list[tuple[int, int, int, int]]]:
        ident, kind, machine, _, _, table, _, _, _, entry_size, count, *_ = self.unpack(
            ELF_HEADER, 0, "an ELF header"
        )
        if ident[:4] != ELF_MAGIC:
            raise self.fail(f"found {ident[:4]!r} where a shared object begins with \\x7fELF", 0)
        if ident[4:6] != b"\x02\x01":
            raise self.fail("the object is not 64-bit little-endian", 4)
        if kind != _ET_DYN:
            raise self.fail(f"ELF type {kind} is not a shared object (3)", 16)
        if count and entry_size != _PROGRAM_HEADER.size:
            raise self.fail(f"program headers of {entry_size} bytes, not 56", 54)
        headers = []
        for index in range(count):
            fields = self.unpack(_PROGRAM_HEADER, table + index * entry_size, "a program header")
            headers.append((fields[0], fields[2], fields[3], fields[5]))
        return elf_machine(machine), headers

    def dynamic_entries(self, offset: int) -> Iterator[tuple[int, int]]:
        for index in range(MAX_DYNAMIC_ENTRIES):
            tag, value = self.unpack(_PAIR, offset + index * 16, "a dynamic entry")
            if tag == 0:
                return
            yield tag, value
        raise self.fail(f"more than {MAX_DYNAMIC_ENTRIES:,} dynamic entries", offset)

    def file_offset(self, address: int, what: str) -> int:
        for start, offset, size in self.loads:
            if start <= address < start + size:
                return address - start + offset
        raise self.fail(f"{what} is at address {address:#x}, which no segment holds", 0)

    def strings(self, dynamic: dict[int, list[int]]) -> _Strings:
        if _DT_STRTAB not in dynamic or _DT_STRSZ not in dynamic:
            raise self.fail("the dynamic section has no string table", 0)
        offset = self.file_offset(dynamic[_DT_STRTAB][0], "the string table")
        size = dynamic[_DT_STRSZ][0]
        if offset + size > self.data.nbytes:
            raise self.fail(f"the string table of {size:,} bytes lies outside the object", offset)
        return _Strings(bytes(self.data[offset : offset + size]), self, offset)

    def symbols(
        self, dynamic: dict[int, list[int]], strings: _Strings
    ) -> Iterator[tuple[str, int, int, int]]:
        if _DT_SYMTAB not in dynamic:
            raise self.fail("the dynamic section has no symbol table", 0)
        offset = self.file_offset(dynamic[_DT_SYMTAB][0], "the symbol table")
        count = self.symbol_count(dynamic)
        if count > MAX_SYMBOLS or offset + count * _SYMBOL.size > self.data.nbytes:
            raise self.fail(f"{count:,} symbols do not fit into the object", offset)
        for index in range(1, count):
            name, info, _, section, value, _ = _SYMBOL.unpack_from(
                self.data, offset + index * _SYMBOL.size
            )
            if name:
                yield strings.get(name), info >> 4, section, value

    def symbol_count(self, dynamic: dict[int, list[int]]) -> int:
        """Return the number of dynamic symbols, which only the hash tables tell."""
        if _DT_HASH in dynamic:
            return self.u32(self.file_offset(dynamic[_DT_HASH][0], "the hash table") + 4, "a count")
        if _DT_GNU_HASH not in dynamic:
            raise self.fail("the dynamic section has no hash table", 0)
        offset = self.file_offset(dynamic[_DT_GNU_HASH][0], "the GNU hash table")
        buckets, first, bloom, _ = self.unpack(_QUAD, offset, "the GNU hash table")
        table = offset + 16 + bloom * 8
        if table + buckets * 4 > self.data.nbytes:
            raise self.fail(f"{buckets:,} hash buckets do not fit into the object", table)
        last = max(
            (int(v) for (v,) in _U32.iter_unpack(self.data[table : table + buckets * 4])), default=0
        )
        if last < first:
            return int(first)
        chains = table + buckets * 4
        while last - first < MAX_SYMBOLS:
            if self.u32(chains + (last - first) * 4, "a hash chain") & 1:
                return last + 1
            last += 1
        raise self.fail(f"more than {MAX_SYMBOLS:,} symbols", chains)

    def device_images(self, defined: dict[str, int]) -> Iterator[DeviceImage]:
        """Yield the GPU code that AOTInductor embeds as ``__NAME_start`` to ``__NAME_end``."""
        found = 0
        for symbol, start in sorted(defined.items()):
            if not (symbol.startswith("__") and symbol.endswith("_start")):
                continue
            kernel = symbol.removeprefix("__").removesuffix("_start")
            end = defined.get(f"__{kernel}_end")
            if end is None or end <= start:
                continue
            offset = self.file_offset(start, f"kernel {kernel}")
            for image in read_images(kernel, self.data[offset : offset + end - start]):
                found += 1
                if found > MAX_DEVICE_IMAGES:
                    raise self.fail(f"more than {MAX_DEVICE_IMAGES:,} device images", offset)
                yield image


class _Strings:
    """Views one string table."""

    def __init__(self, table: bytes, reader: _Reader, offset: int) -> None:
        self.table = table
        self.reader = reader
        self.offset = offset

    def get(self, index: int) -> str:
        end = self.table.find(b"\0", index)
        if index >= len(self.table) or end < 0:
            raise self.reader.fail(f"string {index:#x} does not end inside its table", self.offset)
        return self.table[index:end].decode("utf-8", "backslashreplace")
