"""Bytes of a file as a tensor, without a copy."""

from __future__ import annotations

import ctypes

import torch


class _PyBuffer(ctypes.Structure):
    """``Py_buffer`` of CPython's buffer protocol (``Include/pybuffer.h``)."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def address_of(view: memoryview) -> int:
    """Return where the first byte of a contiguous view is in memory."""
    buffer = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0)
    try:
        return int(buffer.buf or 0)
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))


def flat_tensor(view: memoryview, dtype: torch.dtype) -> torch.Tensor:
    """Return the bytes as a flat tensor. Views and keeps alive the view's owner.

    torch warns when it is given read-only memory, since it cannot protect it. Constants of a
    program are never written: no instruction may name one as its result (``program.verify``).
    """
    if view.nbytes == 0:
        return torch.empty(0, dtype=dtype, device="cpu")
    block = (ctypes.c_ubyte * view.nbytes).from_address(address_of(view))
    block.owner = view  # type: ignore[attr-defined]  # a ctypes array carries attributes
    return torch.frombuffer(block, dtype=dtype)
