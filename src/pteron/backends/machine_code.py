"""Machine code, recognised by its first bytes. Sources: System V gABI, Mach-O, PE."""

from __future__ import annotations

import struct
from typing import Final

ELF_MAGIC: Final = b"\x7fELF"
ELF_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
"""The header of a 64-bit little-endian ELF file."""
EM_CUDA: Final = 190

_MACHINES: Final = {
    3: "x86",
    40: "arm",
    62: "x86_64",
    164: "hexagon",
    183: "aarch64",
    EM_CUDA: "cuda",
    243: "riscv",
}
_MACH_O_MAGICS: Final = (b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe")
_32_BIT, _64_BIT = 1, 2
_BIG_ENDIAN: Final = 2


def elf_machine(number: int, *, elf_class: int = _64_BIT) -> str:
    """Return the name of an ``e_machine`` as ``platform.machine()`` gives it."""
    name = _MACHINES.get(number, f"machine {number}")
    return name + ("32" if elf_class == _32_BIT else "64") if name == "riscv" else name


def recognise(data: memoryview) -> tuple[str, str | None] | None:
    """Return the kind of machine code that bytes begin with and its processor, if it is any."""
    head = bytes(data[: ELF_HEADER.size])
    if head[:4] == ELF_MAGIC and len(head) >= 20:
        order = ">" if head[5] == _BIG_ENDIAN else "<"
        (number,) = struct.unpack_from(f"{order}H", head, 18)
        return "ELF", elf_machine(number, elf_class=head[4])
    if head[:4] in _MACH_O_MAGICS:
        return "Mach-O", None
    if head[:2] == b"MZ" and len(head) == 64:
        (at,) = struct.unpack_from("<I", head, 60)
        if bytes(data[at : at + 4]) == b"PE\0\0":
            return "PE", None
    return None
