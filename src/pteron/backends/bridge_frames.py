"""What a process and the worker that runs delegates for it say to each other.

A frame is two lengths, a JSON object and raw bytes. Tensors lie in the bytes, each at a multiple of
64; the object says their element types, shapes and strides. Nothing is pickled: neither side can
make the other run anything by what it sends.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import torch

HEAD: Final = struct.Struct("<QQ")
"""Bytes of the JSON object, bytes of the tensors."""

PIECES: Final = 64
"""Buffers that one ``sendmsg`` is given; systems take some 1,000."""

_ALIGNMENT: Final = 64
_START_BYTES: Final = 1 << 16
"""What is received at once of a frame, before it is known how long it is."""


class FrameError(Exception):
    """Report a frame that does not say what it should."""


def pack(header: dict[str, Any], blobs: Sequence[memoryview | bytes] = ()) -> list[memoryview]:
    """Return the pieces of a frame, in order; the blobs are not copied."""
    text = json.dumps(header).encode()
    total = sum(len(blob) for blob in blobs)
    first = memoryview(HEAD.pack(len(text), total) + text)
    return [first, *(view for blob in blobs if (view := memoryview(blob)).nbytes)]


def drop(pieces: list[memoryview], sent: int) -> None:
    """Take from the front of a frame what was sent of it."""
    done = 0
    while done < len(pieces) and sent >= len(pieces[done]):
        sent -= len(pieces[done])
        done += 1
    del pieces[:done]
    if sent:
        pieces[0] = pieces[0][sent:]


class FrameReader:
    """Reads frames, of which never more than one is under way."""

    def __init__(self, *, max_text_bytes: int | None = None) -> None:
        self._max_text_bytes = max_text_bytes
        self._start = memoryview(bytearray(_START_BYTES))

    def read(
        self, receive: Callable[[memoryview], int], *, max_payload_bytes: int | None = None
    ) -> tuple[dict[str, Any], torch.Tensor]:
        """Return the next frame's object and tensor bytes, or raise EOFError or FrameError.

        ``receive`` fills some of a buffer and returns how much; 0 is the end of the connection.
        """
        start = self._start
        have = _fill(receive, start, HEAD.size, 0)
        text_bytes, payload_bytes = HEAD.unpack_from(start)
        if _above(text_bytes, self._max_text_bytes) or _above(payload_bytes, max_payload_bytes):
            raise FrameError(f"{text_bytes} and {payload_bytes} bytes are announced")
        at = HEAD.size + text_bytes
        if at > len(start):
            longer = memoryview(bytearray(at))
            longer[:have] = start[:have]
            start = longer
        have = _fill(receive, start, at, have)
        payload = torch.empty(payload_bytes, dtype=torch.uint8, device="cpu")  # torch aligns it
        view = payload.numpy().data
        early = have - at
        if early > payload_bytes:
            raise FrameError(f"{early - payload_bytes} bytes follow it")
        view[:early] = start[at:have]
        _fill(receive, view, payload_bytes, early)
        try:
            header = json.loads(bytes(start[HEAD.size : at]))
        except ValueError as error:
            raise FrameError("it is no JSON") from error
        if not isinstance(header, dict):
            raise FrameError("it is no JSON object")
        return header, payload


def _fill(receive: Callable[[memoryview], int], buffer: memoryview, need: int, have: int) -> int:
    """Receive until the buffer has what is needed; it may get more. Return what it has."""
    while have < need:
        got = receive(buffer[have:])
        if not got:
            raise EOFError
        have += got
    return have


def _above(number: int, limit: int | None) -> bool:
    return limit is not None and number > limit


def pack_tensors(header: dict[str, Any], tensors: Sequence[torch.Tensor]) -> list[memoryview]:
    """Return the pieces of a frame that holds tensors. Views the tensors' memory."""
    facts: list[list[Any]] = []
    blobs: list[memoryview | bytes] = []
    at = 0
    for tensor in tensors:
        if not is_dense(tensor.shape, tensor.stride()):
            tensor = tensor.contiguous()
        flat = tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
        name = str(tensor.dtype).removeprefix("torch.")
        facts.append([name, list(tensor.shape), list(tensor.stride()), at])
        pad = -flat.numel() % _ALIGNMENT
        blobs += [flat.numpy().data, bytes(pad)]
        at += flat.numel() + pad
    return pack({**header, "tensors": facts}, blobs)


def unpack_tensors(header: dict[str, Any], payload: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors of a frame. Views ``payload``; what does not lie in it is refused."""
    facts = header.get("tensors")
    if not isinstance(facts, list):
        raise FrameError("it names no tensors")
    return [_tensor(fact, payload) for fact in facts]


def _tensor(fact: Any, payload: torch.Tensor) -> torch.Tensor:
    try:
        name, sizes, strides, at = fact
        dtype = _dtypes()[name]
        numbers = (*sizes, *strides, at)
    except (TypeError, ValueError, KeyError) as error:
        raise FrameError(f"it describes a tensor as {str(fact)[:100]}") from error
    count = 1
    for size in sizes:
        count *= size if type(size) is int else 0
    end = at + count * dtype.itemsize if type(at) is int else -1
    if (
        not all(type(number) is int and number >= 0 for number in numbers)
        or not is_dense(sizes, strides)
        or at % _ALIGNMENT
        or end > payload.numel()
    ):
        raise FrameError(f"it describes a tensor as {str(fact)[:100]}")
    return payload[at:end].view(dtype).as_strided(sizes, strides)


def is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor fills the memory from its first element on, in some order of dimensions."""
    if len(sizes) != len(strides):
        return False
    if 0 in sizes:
        return True
    expected = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(strides, sizes, strict=True) if size != 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True


@cache
def _dtypes() -> dict[str, torch.dtype]:
    found = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return {str(dtype).removeprefix("torch."): dtype for dtype in found}
