"""Opening: time and memory of files that are small, long, and large."""

from __future__ import annotations

import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.measure import Row, interleaved

LONG = 100_000
LARGE_SIZES = [560, 1024, 1024]
"""2.2 GB of float32."""


def long_program(folder: Path) -> Path:
    """Write a program of 100,000 instructions on three slots."""
    import torch

    from support.one_op import ProgramBuilder

    builder = ProgramBuilder()
    x = builder.tensor(torch.ones(4, 4), role="input")
    slots = [builder.tensor(torch.ones(4, 4)) for _ in range(2)]
    out = builder.tensor(torch.ones(4, 4), role="output")
    before = x
    for number in range(LONG - 1):
        after = slots[number % 2]
        builder.call("aten::neg.out", before, after, after)
        before = after
    builder.call("aten::neg.out", before, out, out)
    path = folder / "long.pte"
    path.write_bytes(builder.finish())
    return path


def large_program(folder: Path) -> Path:
    """Write a program that picks a slice of a 2.2 GB constant; its zeros take no disk space."""
    import torch

    from support.one_op import ProgramBuilder, schema

    marker = 4_096 + 16 * 7
    builder = ProgramBuilder()
    constant = builder.tensor(torch.zeros(marker // 4), role="constant")
    table = builder.values[constant].val
    assert isinstance(table, schema.Tensor)
    table.sizes, table.dim_order = LARGE_SIZES, [0, 1, 2]
    index = builder.tensor(torch.zeros(1, dtype=torch.int64), role="input")
    out = builder.tensor(torch.zeros(1, *LARGE_SIZES[1:]), role="output")
    builder.call("aten::index_select.out", constant, builder.number(0), index, out, out)
    data = bytearray(builder.finish())
    nbytes = 4 * LARGE_SIZES[0] * LARGE_SIZES[1] * LARGE_SIZES[2]
    old, new = struct.pack("<Q", marker), struct.pack("<Q", nbytes)
    base = struct.unpack_from("<Q", data, 24)[0]
    at = data.find(old, 40, base)
    assert at > 0
    data[at : at + 8] = new
    data[32:40] = new
    path = folder / "large.pte"
    with path.open("wb") as file:
        file.write(data)
        file.truncate(base + nbytes)
    return path


def private_bytes() -> int:
    """Return the private memory of this process."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    lines = [line.split() for line in rollup.splitlines()]
    return sum(int(line[1]) * 1024 for line in lines if line[0].startswith("Private_"))


def long_and_large() -> list[Row]:
    """Time opening, loading and running the long and the large program."""
    from executorch.runtime import Runtime as Wheel

    from pteron import Runtime

    mine, theirs = Runtime.get(), Wheel.get()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, path in (
            (f"open and verify {LONG:,} instructions", long_program(folder)),
            ("open and verify 2.2 GB", large_program(folder)),
        ):
            seconds = interleaved(
                {
                    "pteron": lambda p=path: mine.load_program(p),
                    "wheel portable": lambda p=path: theirs.load_program(str(p)),
                },
                seconds=4.0,
                rounds=5,
            )
            before = private_bytes()
            program = mine.load_program(path)
            row = Row(title, seconds, {"private MB": f"{(private_bytes() - before) / 1e6:.1f}"})
            rows.append(row)
            seconds = interleaved(
                {
                    "pteron": lambda p=path: mine.load_program(p).load_method("forward"),
                    "wheel portable": lambda p=path: theirs.load_program(str(p)).load_method(
                        "forward"
                    ),
                },
                seconds=4.0,
                rounds=5,
            )
            before = private_bytes()
            method = program.load_method("forward")
            grown = private_bytes() - before
            planned = sum(buffer.planned_bytes for buffer in method.memory)
            rows.append(
                Row(
                    "  and load its method",
                    seconds,
                    {"private MB": f"{grown / 1e6:.1f}", "planned MB": f"{planned / 1e6:.1f}"},
                )
            )
    return rows


def start_up(repeats: int = 9) -> list[Row]:
    """Time whole processes: the interpreter alone, ``import pteron``, ``pteron inspect``."""
    program = Path(__file__).parents[1] / "demo" / "digits.pte"
    commands: dict[str, list[str]] = {
        "python -c pass": ["-c", "pass"],
        "import pteron": ["-c", "import pteron"],
        "pteron inspect digits.pte": ["-m", "pteron", "inspect", str(program)],
        "pteron memory digits.pte": ["-m", "pteron", "memory", str(program)],
        "import torch": ["-c", "import torch"],
    }
    samples: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, arguments in commands.items():
            begin = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            samples[name].append(time.perf_counter() - begin)
    return [Row(name, {"pteron": statistics.median(taken)}) for name, taken in samples.items()]


def loading(names: tuple[str, ...] = ("mobilenet_v2", "bert")) -> list[Row]:
    """Time opening a model's file and loading its method."""
    from executorch.runtime import Runtime as Wheel

    from pteron import Runtime
    from support.exporting import export_portable
    from support.models import architecture

    rows: list[Row] = []
    mine, theirs = Runtime.get(), Wheel.get()
    for name in names:
        path: Any = export_portable(architecture(name), full=True).pte
        seconds = interleaved(
            {
                "pteron": lambda p=path: mine.load_program(p).load_method("forward"),
                "wheel portable": lambda p=path: theirs.load_program(str(p)).load_method("forward"),
            },
            seconds=2.0,
        )
        rows.append(Row(f"open and load {name}", seconds))
    return rows
