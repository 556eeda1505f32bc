"""Files of other kinds, known by their first bytes, and what to do with them."""

from __future__ import annotations

import json
from typing import Final, NamedTuple


class ForeignFile(NamedTuple):
    """What a file is, with its article, and what to do with it."""

    what: str
    hint: str

    @property
    def is_program(self) -> bool:
        """Whether it is a program, which was given for something else."""
        return self is _PROGRAM

    @property
    def is_wrapped(self) -> bool:
        """Whether the file that was meant may be inside of it, or was not fetched."""
        return self.hint.startswith(("unpack", "the download", "run `git"))


_EXPORT: Final = "export the model to a .pte file with executorch"

_PROGRAM: Final = ForeignFile("an ExecuTorch program", "give it as the program")
_DATA: Final = ForeignFile("a data file (.ptd)", "give it as data_path beside its program")
_MAGIC: Final[tuple[tuple[int, bytes, ForeignFile], ...]] = (
    (4, b"ET12", _PROGRAM),
    (4, b"FT01", _DATA),
    (
        4,
        b"BP08",
        ForeignFile(
            "a bundled program (.bpte)",
            "open it with pteron.compat.bundled.BundledModule(path), which runs its test cases",
        ),
    ),
    (4, b"ED00", ForeignFile("an ETDump", "read it with executorch.devtools.Inspector")),
    (4, b"ED01", ForeignFile("an ETDump", "read it with executorch.devtools.Inspector")),
    (4, b"TFL3", ForeignFile("a TensorFlow Lite model", "run it with LiteRT")),
    (0, b"GGUF", ForeignFile("a GGUF model", "run it with llama.cpp")),
    (0, b"\x1f\x8b", ForeignFile("a gzip archive", "unpack it first")),
    (0, b"\xfd7zXZ", ForeignFile("an xz archive", "unpack it first")),
    (0, b"\x28\xb5\x2f\xfd", ForeignFile("a Zstandard archive", "unpack it first")),
    (0, b"BZh", ForeignFile("a bzip2 archive", "unpack it first")),
    (0, b"7z\xbc\xaf\x27\x1c", ForeignFile("a 7-Zip archive", "unpack it first")),
    (257, b"ustar", ForeignFile("a tar archive", "unpack it first")),
    (0, b"\x89HDF", ForeignFile("an HDF5 file", _EXPORT)),
    (0, b"\x93NUMPY", ForeignFile("a numpy array", "give it as an input")),
    (0, b"\x80\x02", ForeignFile("a Python pickle, such as an old torch.save file", _EXPORT)),
    (0, b"\x80\x03", ForeignFile("a Python pickle", _EXPORT)),
    (0, b"\x80\x04", ForeignFile("a Python pickle", _EXPORT)),
    (0, b"\x80\x05", ForeignFile("a Python pickle", _EXPORT)),
    (0, b"\x89PNG", ForeignFile("a picture", "give it as an input")),
    (0, b"\xff\xd8\xff", ForeignFile("a picture", "give it as an input")),
    (0, b"%PDF", ForeignFile("a PDF document", "give the .pte file")),
    (0, b"\x7fELF", ForeignFile("a compiled library or executable", "give the .pte file")),
    (0, b"MZ", ForeignFile("a Windows library or executable", "give the .pte file")),
    (
        0,
        b"version https://git-lfs",
        ForeignFile("a Git LFS pointer, not the file itself", "run `git lfs pull`"),
    ),
)

HEAD_BYTES: Final = 4096
"""How many bytes from the start :func:`recognise` looks at."""


def recognise(head: bytes, size: int) -> ForeignFile | None:
    """Return what a file is by its first bytes, or None; ``size`` is that of the whole file."""
    for at, magic, found in _MAGIC:
        if head[at:].startswith(magic):
            return found
    if head.startswith(b"PK\x03\x04"):
        return _zip(head)
    text = head[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head")):
        return ForeignFile("a web page", "the download may have been refused: fetch the file again")
    if text.startswith(b"<?xml"):
        return ForeignFile(
            "an XML document", "the download may have been refused: fetch the file again"
        )
    if _is_safetensors(head, size):
        return ForeignFile("a safetensors file", "it holds weights and no program; " + _EXPORT)
    if _is_onnx(head):
        return ForeignFile("an ONNX model", "run it with ONNX Runtime, or " + _EXPORT)
    return None


def _zip(head: bytes) -> ForeignFile:
    """Tell apart the zip archives that hold models, by the names of their first entries."""
    if b"Manifest.json" in head or b".mlmodel" in head:
        return ForeignFile("a Core ML package", "run it with Core ML")
    if b"/data.pkl" in head or b"/version" in head[:200] or b".data/serialization_id" in head:
        return ForeignFile("a file of torch.save or torch.jit.save", _EXPORT)
    if b"archive_format" in head or b"models/model.json" in head or b"serialized_exported" in head:
        return ForeignFile("a program of torch.export (.pt2)", "lower it with executorch first")
    if b".npy" in head[:300]:
        return ForeignFile("an archive of numpy arrays (.npz)", "give it as an input")
    return ForeignFile("a zip archive (.zip, .pt2, .mlpackage, ...)", "unpack it, or " + _EXPORT)


def _is_safetensors(head: bytes, size: int) -> bool:
    """Whether a file begins with the length of a JSON header, and the header."""
    length = int.from_bytes(head[:8], "little")
    if not 2 <= length <= size - 8 or head[8:9] != b"{":
        return False
    if length + 8 > len(head):
        return head[9:10] in (b'"', b" ")
    try:
        return isinstance(json.loads(head[8 : 8 + length]), dict)
    except ValueError:
        return False


def _is_onnx(head: bytes) -> bool:
    """Whether a file begins as an ONNX ModelProto: ir_version, then another of its fields."""
    return len(head) > 3 and head[0] == 0x08 and 1 <= head[1] <= 20 and head[2] in _ONNX_FIELDS


_ONNX_FIELDS: Final = frozenset({0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42})
"""The tags of fields 2 to 8 of ``ModelProto`` (``onnx.proto``)."""
