"""GPU code inside a shared object: for which architectures a kernel was compiled.

Fat binaries are read as ``fatbinary`` of the CUDA toolkit writes them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from pteron.backends.machine_code import ELF_HEADER, ELF_MAGIC, EM_CUDA

_FATBIN = struct.Struct("<IHHQ")
_FATBIN_ENTRY = struct.Struct("<HHIQIIHHIIIQ")
_U32 = struct.Struct("<I")

_FATBIN_MAGIC = 0xBA55ED50
_FATBIN_KINDS = {1: "ptx", 2: "cubin"}
_FATBIN_SPECIFIC, _FATBIN_FAMILY = 0x100000, 0x200000
"""Flags of an entry that was made for ``sm_90a`` or ``sm_100f`` rather than ``sm_90``."""


@dataclass(frozen=True, slots=True)
class DeviceImage:
    """Machine code or PTX for one GPU architecture, such as ``sm_90a``."""

    kernel: str
    kind: str
    """``cubin`` (machine code) or ``ptx``."""
    architecture: str

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability that the image is for: (9, 0)."""
        number = int(self.architecture.removeprefix("sm_").rstrip("af"))
        return number // 10, number % 10

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a device of this compute capability can run the image.

        Machine code runs on its own and later minor versions of one major; PTX on all later ones.
        Architecture-specific code (``sm_90a``) runs on its own version alone.
        """
        if self.architecture.endswith("a"):
            return self.capability == capability
        if self.kind == "ptx" and not self.architecture.endswith("f"):
            return self.capability <= capability
        return self.capability[0] == capability[0] and self.capability[1] <= capability[1]


def read_images(kernel: str, code: memoryview) -> Iterator[DeviceImage]:
    """Yield the images of one kernel: a fat binary, a cubin or PTX."""
    if code.nbytes >= 4 and _U32.unpack_from(code)[0] == _FATBIN_MAGIC:
        yield from _fatbin_images(kernel, code)
    elif code.nbytes >= 64 and bytes(code[:4]) == ELF_MAGIC:
        yield from _cubin_image(kernel, code)
    elif (target := bytes(code[:4096]).find(b".target sm_")) >= 0:
        yield DeviceImage(kernel, "ptx", _architecture(code[target + 8 : target + 24]))


def _fatbin_images(kernel: str, code: memoryview) -> Iterator[DeviceImage]:
    if code.nbytes < _FATBIN.size:
        return
    _, _, header, size = _FATBIN.unpack_from(code)
    position, end = header, min(header + size, code.nbytes)
    while position + _FATBIN_ENTRY.size <= end:
        kind, _, header, size, _, _, _, _, number, _, _, flags = _FATBIN_ENTRY.unpack_from(
            code, position
        )
        if header < _FATBIN_ENTRY.size or position + header + size > end:
            return
        suffix = "a" if flags & _FATBIN_SPECIFIC else "f" if flags & _FATBIN_FAMILY else ""
        if kind in _FATBIN_KINDS:
            yield DeviceImage(kernel, _FATBIN_KINDS[kind], f"sm_{number}{suffix}")
        position += header + size


def _cubin_image(kernel: str, code: memoryview) -> Iterator[DeviceImage]:
    ident, _, machine, _, _, _, _, flags, *_ = ELF_HEADER.unpack_from(code)
    if machine != EM_CUDA:
        return
    # The tool notes of a cubin repeat how it was made; its flags hold the number alone.
    noted = bytes(code).find(b"-arch sm_")
    if noted >= 0:
        yield DeviceImage(kernel, "cubin", _architecture(code[noted + 6 : noted + 24]))
    else:
        number = flags >> 8 & 0xFF if ident[8] >= 8 else flags & 0xFF
        yield DeviceImage(kernel, "cubin", f"sm_{number}")


def _architecture(text: memoryview) -> str:
    """Return ``sm_90a`` from text that begins with it."""
    match = re.match(rb"sm_[0-9]+[af]?", text)
    return match.group().decode("ascii") if match else "sm_0"
