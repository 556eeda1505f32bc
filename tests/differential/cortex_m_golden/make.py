"""Make ``cases.npz``: inputs of Cortex-M operators and what CMSIS-NN computes from them.

    git clone https://github.com/ARM-software/CMSIS-NN
    python make.py CMSIS-NN

The C library is built for the host without vector extensions (its documented reference path) and
called through ctypes with the arguments that ExecuTorch's ``backends/cortex_m/ops`` pass to it.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
rng = np.random.default_rng(20240607)
arrays: dict[str, np.ndarray] = {}
cases: list[dict[str, object]] = []


def build(checkout: Path) -> ctypes.CDLL:
    """Compile the int8 functions into a shared library."""
    sources = [
        str(path)
        for path in sorted((checkout / "Source").rglob("*.c"))
        if not any(tag in path.name for tag in ("f16", "f32", "flt"))
    ]
    library = Path(tempfile.mkdtemp()) / "cmsisnn.so"
    include = checkout / "Include"
    flags = ["-O2", "-w", "-fwrapv", "-shared", "-fPIC", f"-I{include}"]
    subprocess.run(["cc", *flags, "-o", str(library), *sources], check=True)
    return ctypes.CDLL(str(library))


def structure(*values: int) -> ctypes.Array[ctypes.c_int32]:
    """Return a C structure of 32-bit integers."""
    return (ctypes.c_int32 * len(values))(*values)


class Context(ctypes.Structure):
    """``cmsis_nn_context``."""

    _fields_ = [("buf", ctypes.c_void_p), ("size", ctypes.c_int32)]


class PerChannel(ctypes.Structure):
    """``cmsis_nn_per_channel_quant_params``."""

    _fields_ = [("multiplier", ctypes.c_void_p), ("shift", ctypes.c_void_p)]


class BatchMatmul(ctypes.Structure):
    """``cmsis_nn_bmm_params``."""

    _fields_ = [
        ("adj_x", ctypes.c_bool),
        ("adj_y", ctypes.c_bool),
        ("fc", ctypes.c_int32 * 5),
    ]


def at(array: np.ndarray) -> ctypes.c_void_p:
    """Return the address of an array's bytes."""
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


def scratch() -> tuple[Context, np.ndarray]:
    """Return a context with plenty of room."""
    room = np.zeros(1 << 20, np.int8)
    return Context(room.ctypes.data, room.size), room


def int8(*shape: int) -> np.ndarray:
    """Return random int8 values, the limits among them."""
    values = rng.integers(-128, 128, shape).astype(np.int8)
    values.flat[:: max(1, values.size // 7)] = rng.choice([-128, 127])
    return values


def factors(count: int, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """Return multipliers in [2**30, 2**31) and shifts in [low, high]."""
    return (
        rng.integers(1 << 30, 1 << 31, count).astype(np.int32),
        rng.integers(low, high + 1, count).astype(np.int32),
    )


def keep(operator: str, arguments: list[object], expected: np.ndarray) -> None:
    """Store one case; arrays are stored beside it and named in its arguments."""
    name = f"{len(cases):03d}"
    stored: list[object] = []
    for position, value in enumerate(arguments):
        if isinstance(value, np.ndarray):
            arrays[f"{name}.{position}"] = value
            stored.append({"array": f"{name}.{position}"})
        else:
            stored.append(value)
    arrays[f"{name}.out"] = expected
    cases.append({"operator": operator, "args": stored, "out": f"{name}.out"})


def check(status: int) -> None:
    """Refuse a case that the library refuses."""
    assert status == 0, status


def convolutions(lib: ctypes.CDLL) -> None:
    """Plain, grouped, 1x1, strided, dilated and padded convolutions."""
    for n, h, w, cin, cout, kh, kw, s, p, d, groups in (
        (1, 7, 6, 5, 8, 3, 3, 1, 1, 1, 1),
        (2, 9, 8, 16, 12, 3, 2, 2, 1, 1, 1),
        (1, 6, 6, 64, 20, 1, 1, 1, 0, 1, 1),
        (1, 12, 11, 4, 6, 3, 3, 1, 2, 2, 1),
        (1, 8, 8, 8, 6, 3, 3, 1, 0, 1, 2),
        (1, 5, 5, 300, 3, 3, 3, 1, 1, 1, 1),
        (1, 1, 20, 6, 7, 1, 5, 1, 0, 1, 1),
    ):
        x, weight = int8(n, h, w, cin), int8(cout, kh, kw, cin // groups)
        bias = rng.integers(-20000, 20000, cout).astype(np.int32)
        multiplier, shift = factors(cout, -11, -6)
        in_off, out_off = int(rng.integers(-127, 129)), int(rng.integers(-128, 128))
        lo, hi = -120, 117
        oh = (h + 2 * p - d * (kh - 1) - 1) // s + 1
        ow = (w + 2 * (p if kw > 1 else 0) - d * (kw - 1) - 1) // s + 1
        pw = p if kw > 1 else 0
        out = np.zeros((n, oh, ow, cout), np.int8)
        params = structure(in_off, out_off, s, s, pw, p, d, d, lo, hi)
        context, _room = scratch()
        check(
            lib.arm_convolve_wrapper_s8(
                ctypes.byref(context),
                params,
                ctypes.byref(PerChannel(multiplier.ctypes.data, shift.ctypes.data)),
                structure(n, h, w, cin),
                at(x),
                structure(cout, kh, kw, cin // groups),
                at(weight),
                structure(1, 1, 1, cout),
                at(bias),
                structure(n, oh, ow, cout),
                at(out),
            )
        )
        keep(
            "quantized_conv2d_nhwc",
            [x, weight, bias, [s, s], [p, pw], [d, d], in_off, out_off, multiplier, shift, lo, hi],
            out,
        )


def depthwise(lib: ctypes.CDLL) -> None:
    """Depthwise convolutions, with and without a depth multiplier."""
    for h, w, cin, mult, kh, kw, s, p in (
        (7, 7, 8, 1, 3, 3, 1, 1),
        (9, 6, 5, 3, 3, 3, 2, 1),
        (49, 10, 1, 16, 10, 4, 2, 1),
        (8, 8, 16, 1, 5, 3, 1, 0),
    ):
        cout = cin * mult
        x, weight = int8(1, h, w, cin), int8(1, kh, kw, cout)
        bias = rng.integers(-5000, 5000, cout).astype(np.int32)
        multiplier, shift = factors(cout, -9, -5)
        in_off, out_off = int(rng.integers(-127, 129)), int(rng.integers(-128, 128))
        lo, hi = -128, 127
        oh, ow = (h + 2 * p - kh) // s + 1, (w + 2 * p - kw) // s + 1
        out = np.zeros((1, oh, ow, cout), np.int8)
        context, _room = scratch()
        check(
            lib.arm_depthwise_conv_wrapper_s8(
                ctypes.byref(context),
                structure(in_off, out_off, mult, s, s, p, p, 1, 1, lo, hi),
                ctypes.byref(PerChannel(multiplier.ctypes.data, shift.ctypes.data)),
                structure(1, h, w, cin),
                at(x),
                structure(1, kh, kw, cout),
                at(weight),
                structure(1, 1, 1, cout),
                at(bias),
                structure(1, oh, ow, cout),
                at(out),
            )
        )
        rest = [[s, s], [p, p], [1, 1], mult, in_off, out_off, multiplier, shift, lo, hi]
        keep("quantized_depthwise_conv2d_nhwc", [x, weight, bias, *rest], out)


def transposed(lib: ctypes.CDLL) -> None:
    """Transposed convolutions."""
    for h, w, cin, cout, k, s, p, op in (
        (4, 5, 6, 4, 3, 2, 1, 1),
        (5, 4, 3, 5, 2, 2, 0, 0),
        (6, 6, 20, 4, 4, 2, 1, 0),
    ):
        x, weight = int8(1, h, w, cin), int8(cout, k, k, cin)
        bias = rng.integers(-5000, 5000, cout).astype(np.int32)
        multiplier, shift = factors(cout, -10, -6)
        in_off, out_off = int(rng.integers(-127, 129)), int(rng.integers(-128, 128))
        oh, ow = (h - 1) * s - 2 * p + k + op, (w - 1) * s - 2 * p + k + op
        out = np.zeros((1, oh, ow, cout), np.int8)
        first, _room = scratch()
        second, _more = scratch()
        check(
            lib.arm_transpose_conv_wrapper_s8(
                ctypes.byref(first),
                ctypes.byref(second),
                structure(in_off, out_off, s, s, p, p, op, op, 1, 1, -128, 127),
                ctypes.byref(PerChannel(multiplier.ctypes.data, shift.ctypes.data)),
                structure(1, h, w, cin),
                at(x),
                structure(cout, k, k, cin),
                at(weight),
                structure(1, 1, 1, cout),
                at(bias),
                structure(1, oh, ow, cout),
                at(out),
            )
        )
        rest = [[s, s], [p, p], [op, op], [1, 1], in_off, out_off, multiplier, shift, -128, 127]
        keep("quantized_transpose_conv2d_nhwc", [x, weight, bias, *rest], out)


def linear(lib: ctypes.CDLL) -> None:
    """Fully connected layers."""
    for batch, k, n, filter_offset, biased in (
        (1, 64, 12, 0, True),
        (5, 33, 10, 0, True),
        (3, 600, 9, 7, True),
        (2, 17, 4, -3, False),
    ):
        x, weight = int8(batch, k), int8(n, k)
        bias = rng.integers(-20000, 20000, n).astype(np.int32)
        (multiplier,), (shift,) = factors(1, -11, -7)
        in_off, out_off = int(rng.integers(-127, 129)), int(rng.integers(-128, 128))
        out = np.zeros((batch, n), np.int8)
        context, _room = scratch()
        check(
            lib.arm_fully_connected_s8(
                ctypes.byref(context),
                structure(in_off, filter_offset, out_off, -128, 127),
                structure(int(multiplier), int(shift)),
                structure(batch, 1, 1, k),
                at(x),
                structure(k, 1, 1, n),
                at(weight),
                structure(1, 1, 1, n),
                at(bias) if biased else None,
                structure(batch, 1, 1, n),
                at(out),
            )
        )
        given = bias if biased else None
        rest = [in_off, filter_offset, out_off, [int(multiplier)], [int(shift)], 127, -128]
        keep("quantized_linear", [x, weight, given, None, *rest], out)


def matmul(lib: ctypes.CDLL) -> None:
    """Batched matrix products."""
    for batch, m, k, n in ((1, 3, 8, 5), (3, 4, 70, 6), (2, 1, 300, 2)):
        lhs, rhs = int8(batch, m, k), int8(batch, n, k)
        (multiplier,), (shift,) = factors(1, -11, -8)
        left, right, out_off = (int(v) for v in rng.integers(-100, 100, 3))
        out = np.zeros((batch, m, n), np.int8)
        context, _room = scratch()
        params = BatchMatmul(False, False, (ctypes.c_int32 * 5)(left, right, out_off, -128, 127))
        check(
            lib.arm_batch_matmul_s8(
                ctypes.byref(context),
                ctypes.byref(params),
                structure(int(multiplier), int(shift)),
                structure(1, batch, m, k),
                at(lhs),
                structure(1, batch, n, k),
                at(rhs),
                structure(1, batch, m, n),
                at(out),
            )
        )
        args = [lhs, left, rhs, right, out_off, int(multiplier), int(shift)]
        keep("quantized_batch_matmul", args, out)


def elementwise(lib: ctypes.CDLL) -> None:
    """Sums and products."""
    for count in (1, 17, 256):
        a, b = int8(count), int8(count)
        za, zb, zo = (int(v) for v in rng.integers(-128, 128, 3))
        multiplier, shift = factors(3, -3, 0)
        shift[2] = -19
        out = np.zeros(count, np.int8)
        m, s = multiplier.tolist(), shift.tolist()
        check(
            lib.arm_elementwise_add_s8(
                at(a), at(b), -za, m[0], s[0], -zb, m[1], s[1], 20, at(out), zo, m[2], s[2],
                -128, 127, count,
            )
        )  # fmt: skip
        rest = [b, zb, m[1], s[1], zo, m[2], s[2], -128, 127]
        keep("quantized_add", [a, za, m[0], s[0], *rest], out)
        out = np.zeros(count, np.int8)
        left = int(rng.integers(-8, -4))
        check(
            lib.arm_elementwise_mul_s8(
                at(a), at(b), -za, -zb, at(out), zo, m[0], left, -128, 127, count
            )
        )
        keep("quantized_mul", [a, za, b, zb, zo, m[0], left], out)


def pools(lib: ctypes.CDLL) -> None:
    """Average and maximum pools."""
    for n, h, w, c, kh, kw, s, p in (
        (1, 6, 6, 5, 2, 2, 2, 0),
        (2, 7, 5, 3, 3, 3, 2, 1),
        (1, 25, 5, 16, 24, 5, 24, 0),
    ):
        x = int8(n, h, w, c)
        oh, ow = (h + 2 * p - kh) // s + 1, (w + 2 * p - kw) // s + 1
        for kind, lo, hi in (("avg", -128, 127), ("max", -90, 100)):
            out = np.zeros((n, oh, ow, c), np.int8)
            context, _room = scratch()
            call = lib.arm_avgpool_s8 if kind == "avg" else lib.arm_max_pool_s8
            check(
                call(
                    ctypes.byref(context),
                    structure(s, s, p, p, lo, hi),
                    structure(n, h, w, c),
                    at(x),
                    structure(1, kh, kw, 1),
                    structure(n, oh, ow, c),
                    at(out),
                )
            )
            window = [[kh, kw], [s, s], [p, p]]
            rest = [False, -3, 1 << 30, 0] if kind == "avg" else [[1, 1], False, 4, 4, lo, hi]
            keep(f"quantized_{kind}_pool2d_nhwc", [x, *window, *rest], out)


def softmaxes(lib: ctypes.CDLL) -> None:
    """Softmax over rows, with steep and with flat inputs."""
    for rows, columns, shift, diff_min in ((1, 12, 23, -248), (4, 100, 21, -128), (3, 7, 26, -31)):
        x = int8(rows, columns)
        multiplier = int(rng.integers(1 << 30, (1 << 31) - 1))
        out = np.zeros((rows, columns), np.int8)
        lib.arm_softmax_s8(at(x), rows, columns, multiplier, shift, diff_min, at(out))
        keep("softmax", [x, -1, 5, -128, multiplier, shift, diff_min], out)


def main() -> None:
    """Build the library, compute all cases and write them."""
    lib = build(Path(sys.argv[1]))
    for family in (
        convolutions,
        depthwise,
        transposed,
        linear,
        matmul,
        elementwise,
        pools,
        softmaxes,
    ):
        family(lib)
    arrays["cases"] = np.frombuffer(json.dumps(cases).encode(), np.uint8)
    np.savez_compressed(HERE / "cases.npz", **arrays)


if __name__ == "__main__":
    main()
