"""The programs in ``tests/fixtures/order``: ``python -m support.order_programs`` writes them."""

from __future__ import annotations

from pathlib import Path

import torch

from support.one_op import ProgramBuilder

FOLDER = Path(__file__).parents[1] / "fixtures/order"


def sums() -> bytes:
    """Return ``relu(x) + x``: its memory is used again by the next call."""
    builder = ProgramBuilder()
    x = builder.tensor(torch.ones(1 << 16), role="input")
    y = builder.tensor(torch.ones(1 << 16))
    z = builder.tensor(torch.ones(1 << 16), role="output")
    builder.call("aten::relu.out", x, y, y)
    builder.call("aten::add.out", y, x, builder.number(1), z, z)
    return builder.finish()


def scaled_by_an_input() -> bytes:
    """Return ``x * n`` for a number ``n`` that the caller gives."""
    builder = ProgramBuilder()
    x = builder.tensor(torch.ones(4), role="input")
    n = builder.number(None)
    builder.inputs.append(n)
    y = builder.tensor(torch.ones(4), role="output")
    builder.call("aten::mul.Scalar_out", x, n, y, y)
    return builder.finish()


def reads_a_value() -> bytes:
    """Return ``relu(x)`` by a kernel that looks at a value on the host."""
    builder = ProgramBuilder()
    x = builder.tensor(torch.ones(4), role="input")
    y = builder.tensor(torch.ones(4), role="output")
    builder.call("test::looks.out", x, y, y)
    return builder.finish()


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for make in (sums, scaled_by_an_input, reads_a_value):
        (FOLDER / f"{make.__name__}.pte").write_bytes(make())


if __name__ == "__main__":
    main()
