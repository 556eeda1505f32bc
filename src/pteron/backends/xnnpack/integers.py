"""Products of 8-bit numbers by oneDNN's integer kernels, made exact.

Where a processor has no dot product of bytes (x86 before VNNI), these kernels add two products at
a time in 16 bits, which saturate: 255 * 127 + 255 * 127 does not fit. Weights are split: what lets
no pair go over stays in 8 bits, and the little that is taken away from some of them (under one in
a hundred) is a sparse matrix, multiplied apart. Which kernel does what is not looked up but tried,
for each size of product, with weights that would show it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import prod

import torch

from pteron.backends.xnnpack.graph import Datatype, Node, PerBlock, Value
from pteron.backends.xnnpack.planner import LATTICE, Operand, Planner

PAIR_LIMIT = 128
"""What the positive weights of a pair may add up to, and the negative ones: 255 * 128 fits."""

MIN_ROWS, MIN_INNER, MIN_OUTER, MIN_PRODUCTS = 4, 64, 16, 40_000_000
"""Smaller products are as fast in float32 (``bench/xnnpack_kernels.py``)."""


class Sums(Enum):
    """How a kernel adds products of bytes."""

    WRONG = "in a way that is not known, or not at all"
    PAIRS = "two neighbours in 16 bits, which saturate"
    EXACT = "in 32 bits"


@dataclass(frozen=True, slots=True)
class Packed:
    """Weights for oneDNN, the sum of each output channel's, and what had to be left out."""

    weights: torch.Tensor
    sums: torch.Tensor
    ones: torch.Tensor
    zeros: torch.Tensor
    excess: torch.Tensor | None


@lru_cache(maxsize=1024)
def kernel_sums(rows: int, inner: int, outer: int) -> Sums:
    """Find out how the kernel for products of this size adds, by trying it."""
    even = torch.arange(inner, device="cpu") % 2 == 0
    one, other = even * 126 + 1, ~even * 126 + 1
    full = torch.full((inner,), 127, device="cpu")
    patterns = torch.stack([one, other, -one, -other, full, -full])
    weights = patterns[torch.arange(outer, device="cpu") % len(patterns)].to(torch.int8)
    generator = torch.Generator(device="cpu").manual_seed(0)
    x = torch.randint(0, 256, (rows, inner), generator=generator, device="cpu").to(torch.uint8)
    x[: (rows + 1) // 2] = 255
    try:
        packed = _pack(weights, None)
        found = _multiply(x, 128, packed, None)
    except (RuntimeError, AttributeError, NotImplementedError):
        return Sums.WRONG
    wanted = (x.double() - 128) @ patterns.double().t()
    right = [bool((found[:, i :: len(patterns)] == wanted[:, i : i + 1]).all()) for i in range(6)]
    if not all(right[:4]):
        return Sums.WRONG
    return Sums.EXACT if all(right) else Sums.PAIRS


def packed_weights(planner: Planner, node: Node, rows: int) -> Packed | None:
    """Return a node's weights for integer kernels; None where they are of no use."""
    value = planner.value(node.inputs[1])
    outer, inner = value.dims[0], value.dims[-1]
    if (
        not planner.uses_onednn
        or node.flags  # transposed weights
        or isinstance(value.quantization, PerBlock)
        or value.datatype.bits > 8
        or value.datatype is Datatype.QUINT8  # goes beyond signed bytes
        or has_wide_rows(planner, node.inputs[0])
        or not value.is_constant
        or rows < MIN_ROWS
        or inner < MIN_INNER
        or outer < MIN_OUTER
        or rows * inner * outer < MIN_PRODUCTS
        or getattr(value.quantization, "zero_point", 0)
    ):
        return None
    sums = kernel_sums(rows, inner, outer)
    if sums is Sums.WRONG:
        return None
    return planner.constants.prepared(
        ("integers", sums), (value,), lambda: _prepare(planner, value, sums)
    )


def has_wide_rows(planner: Planner, number: int) -> bool:
    """Whether a value was quantized at run time with one scale for several of its rows."""
    step = planner.find(number).scale
    return step is not None and step.numel() != prod(planner.shapes[number][:-1])


def _prepare(planner: Planner, value: Value, sums: Sums) -> Packed:
    numbers = planner.constants.whole(value).to(torch.int8).view(value.dims[0], value.dims[-1])
    if sums is Sums.EXACT:
        return _pack(numbers, None)
    safe = without_excess(numbers)
    excess = numbers.float() - safe.float()
    return _pack(safe, excess if bool(excess.any()) else None)


def without_excess(weights: torch.Tensor) -> torch.Tensor:
    """Return (out, in) weights nearer to zero, so that no pair of neighbours goes over."""
    outer, inner = weights.shape
    pairs = torch.nn.functional.pad(weights.to(torch.int16), (0, inner % 2))
    pairs = pairs.view(outer, -1, 2)
    for sign in (1, -1):
        side = (pairs * sign).clamp_(min=0)
        over = (side.sum(-1) - PAIR_LIMIT).clamp_(min=0)
        larger = side.argmax(-1, keepdim=True)
        pairs.scatter_add_(-1, larger, (over * -sign).unsqueeze(-1).to(torch.int16))
    return pairs.view(outer, -1)[:, :inner].to(torch.int8).contiguous()


def _pack(numbers: torch.Tensor, excess: torch.Tensor | None) -> Packed:
    sparse = None
    if excess is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls its sparse matrices a beta
            csr = excess.to_sparse_csr()
            sparse = torch.sparse_csr_tensor(
                csr.crow_indices().int(), csr.col_indices().int(), csr.values(), csr.shape
            )
    return Packed(
        weights=torch.ops.onednn.qlinear_prepack(numbers, None),
        sums=numbers.sum(1, dtype=torch.int32).float(),
        ones=torch.ones(numbers.shape[0], dtype=torch.float32, device="cpu"),
        zeros=torch.zeros(numbers.shape[0], dtype=torch.int32, device="cpu"),
        excess=sparse,
    )


def _multiply(
    x: torch.Tensor, shift: int, packed: Packed, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return ``(x - shift) @ weights + bias`` in float32."""
    result: torch.Tensor = torch.ops.onednn.qlinear_pointwise.default(
        *(x, 1.0, shift, packed.weights, packed.ones, packed.zeros, bias),
        *(1.0, 0, torch.float32, "none", [], ""),
    )
    return result


def record_product(
    planner: Planner, node: Node, matrix: Operand, packed: Packed, bias: torch.Tensor | None
) -> Operand:
    """Record the product of a node's whole numbers with its weights, and return the result.

    ``matrix`` is its input as rows, less its zero point.
    """
    tape, source = planner.tape, node.inputs[0]
    held, value = planner.find(source), planner.value(source)
    shape = planner.shapes[source]
    size = (prod(shape[:-1]), shape[-1])
    zero, shift = 0, 128
    if value.datatype in LATTICE:
        # An unsigned value is moved down into the range of a signed byte, and up again.
        zero = value.affine.zero_point - (128 if value.datatype is Datatype.QUINT8 else 0)
        shift = zero + 128
    if held.bytes is None:
        held.bytes = planner.keep(source, size, torch.uint8)
        tape.call(as_bytes, matrix, zero if held.zero is None else held.zero, held.bytes)
    result = tape.value(_multiply, held.bytes, shift, packed, bias)
    if held.zero is not None:
        tape.call(torch.Tensor.addr_, result, held.zero.flatten(), packed.sums, alpha=-1)
    if packed.excess is not None:
        if held.turned is None:
            held.turned = planner.keep(source, size[::-1], torch.float32)
            tape.call(torch.Tensor.copy_, held.turned, planner.permuted(matrix, (1, 0)))
        room = planner.scratch((packed.ones.numel(), size[0]))
        tape.call(add_excess, result, packed.excess, held.turned, room)
    return result


def as_bytes(matrix: torch.Tensor, zero: int | torch.Tensor, into: torch.Tensor) -> None:
    """Write whole numbers as bytes, 128 more than with their zero point.

    By way of signed ones, to which torch converts floats several times faster.
    """
    into.view(torch.int8).copy_(matrix + zero)
    into.bitwise_xor_(128)


def add_excess(
    result: torch.Tensor, excess: torch.Tensor, turned: torch.Tensor, room: torch.Tensor
) -> None:
    """Add the product with the weights that were left out."""
    torch.addmm(room, excess, turned, beta=0, out=room)
    result.add_(room.t())
