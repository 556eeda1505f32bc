"""Kernels that could run an XNNPACK node, side by side: where one is faster, the backend takes it.

Run ``python -m bench.xnnpack_kernels``: one thread, processor time, the least of many calls.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping

import torch

from bench.measure import Row, show
from pteron.backends.xnnpack.integers import Sums, kernel_sums
from pteron.backends.xnnpack.weights import Stored

LARGE = ((1, 768, 3072), (16, 768, 3072), (128, 768, 768), (128, 768, 3072), (128, 768, 50257))
NARROW = ((12544, 32, 16), (3136, 96, 24), (784, 144, 32), (784, 384, 64))
WHOLE = ((128, 256, 256), (196, 576, 96), (128, 768, 768), (128, 3072, 768))


def least(calls: Mapping[str, Callable[[], object]], *, rounds: int = 15) -> dict[str, float]:
    """Return the least processor time of each; they take turns, with cold caches between them."""
    flush = torch.zeros(8 << 20)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 2):
        for name, call in calls.items():
            flush.add_(1)
            begin = time.process_time()
            call()
            samples[name].append(time.process_time() - begin)
    return {name: min(taken[2:]) for name, taken in samples.items()}


def float_products() -> Iterator[Row]:
    """Time float32 products: BLAS, and oneDNN with weights as they are and reordered."""
    onednn = torch.ops.mkldnn._linear_pointwise.default
    for rows, inner, outer in (*LARGE, *NARROW):
        x, weights, bias = torch.randn(rows, inner), torch.randn(outer, inner), torch.randn(outer)
        reordered = torch.ops.mkldnn._reorder_linear_weight(weights, rows)
        columns, out = weights.t(), torch.empty(rows, outer)
        calls: dict[str, Callable[[], object]] = {
            "addmm": lambda x=x, w=columns, b=bias, out=out: torch.addmm(b, x, w, out=out),
            "oneDNN": lambda x=x, w=weights, b=bias: onednn(x, w, b, "none", [], ""),
            "reordered": lambda x=x, w=reordered, b=bias: onednn(x, w, b, "none", [], ""),
        }
        yield Row(f"{rows} x {inner} x {outer}", least(calls))


def whole_products() -> Iterator[Row]:
    """Time products of 8-bit weights: widened before, widened by pieces, and integer kernels."""
    for rows, inner, outer in WHOLE:
        numbers = torch.randint(-127, 128, (outer, inner)).to(torch.int8)
        x, wide, out = torch.randn(rows, inner), numbers.float().t(), torch.empty(rows, outer)
        whole = torch.randint(0, 256, (rows, inner)).to(torch.uint8)
        packed = torch.ops.onednn.qlinear_prepack(numbers, None)
        ones, zeros = torch.ones(outer), torch.zeros(outer, dtype=torch.int32)
        stored = Stored(numbers)

        def by_pieces(
            x: torch.Tensor = x, stored: Stored = stored, out: torch.Tensor = out
        ) -> None:
            for begin, end in stored.pieces():
                piece = stored.numbers[begin:end].float()
                torch.mm(x, piece.t(), out=out[:, begin:end])

        calls: dict[str, Callable[[], object]] = {
            "float32": lambda x=x, wide=wide, out=out: torch.mm(x, wide, out=out),
            "by pieces": by_pieces,
            "integers": lambda x=whole, w=packed, ones=ones, zeros=zeros: (
                torch.ops.onednn.qlinear_pointwise.default(
                    *(x, 1.0, 128, w, ones, zeros, None),
                    *(1.0, 0, torch.float32, "none", [], ""),
                )
            ),
        }
        sums = kernel_sums(rows, inner, outer)
        notes = {} if sums is Sums.EXACT else {"integers": f"add {sums.value}"}
        yield Row(f"{rows} x {inner} x {outer}", least(calls), notes)


def main() -> int:
    """Print the tables."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        show("float32 products", list(float_products()), base="addmm")
        show("products of 8-bit weights", list(whole_products()), base="float32")
    return 0


if __name__ == "__main__":
    sys.exit(main())
