"""XNNPACK programs: pteron against the executorch wheel, with as many threads, in one run.

Run ``python -m bench.xnnpack --threads 1``; models are exported at their published size.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from bench.measure import Row, show

MODELS = (
    ("mobilenet_v2", "floats"),
    ("resnet18", "floats"),
    ("bert", "floats"),
    ("gpt2", "floats"),
    ("mobilenet_v2", "static_int8"),
    ("bert", "static_int8"),
    ("bert", "dynamic_int8"),
)
AIMED = ("mobilenet_v2", "resnet18", "bert", "gpt2")
WHEEL = "wheel XNNPACK"


def set_threads(count: int) -> None:
    """Give torch and the wheel's thread pool the same number of threads."""
    from executorch.extension.pybindings import _C

    torch.set_num_threads(count)
    _C._unsafe_reset_threadpool(count)


def in_turns(
    contenders: Mapping[str, Callable[[], object]], *, rounds: int, clock: Callable[[], float]
) -> dict[str, tuple[float, float]]:
    """Return each contender's median and least time of a call; they take turns call by call."""
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for call in contenders.values():
        call()
        call()
    for _ in range(rounds):
        for name, call in contenders.items():
            begin = clock()
            call()
            samples[name].append(clock() - begin)
    return {name: (statistics.median(taken), min(taken)) for name, taken in samples.items()}


def apart(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> float:
    """Return the largest difference, in parts of the largest element."""
    return max(
        float((a.double() - b.double()).abs().max() / b.double().abs().max())
        for a, b in zip(some, others, strict=True)
    )


def model(name: str, variant: str, *, rounds: int, clock: Callable[[], float]) -> Row:
    """Time one model."""
    from executorch.runtime import Runtime as Wheel

    from pteron import Runtime
    from support import xnnpack_variants
    from support.models import architecture

    entry = architecture(name)
    file = getattr(xnnpack_variants, variant)(entry, full=True)
    (spec,) = entry.build(full=True).values()
    inputs = spec.inputs[0]
    with torch.no_grad():
        eager = torch.utils._pytree.tree_leaves(spec.module(*inputs))
    del spec
    mine = Runtime.get().load_program(file.pte).load_method("forward")
    theirs = Wheel.get().load_program(str(file.pte)).load_method("forward")
    calls: dict[str, Callable[[], Any]] = {
        "pteron": lambda: mine.execute(inputs),
        WHEEL: lambda: theirs.execute(inputs),
    }
    results = {who: [out.clone() for out in call()] for who, call in calls.items()}
    taken = in_turns(calls, rounds=rounds, clock=clock)
    least = taken["pteron"][1] / taken[WHEEL][1]
    return Row(
        f"{name}, {variant.replace('_', ' ')}",
        {who: times[0] for who, times in taken.items()},
        {
            "pteron / wheel": f"{taken['pteron'][0] / taken[WHEEL][0]:.2f} (least {least:.2f})",
            "outputs apart": f"{apart(results['pteron'], results[WHEEL]):.1e}",
            "from eager": " and ".join(f"{apart(outs, eager):.1e}" for outs in results.values()),
        },
    )


def rows(*, rounds: int = 21, only: str = "", cpu_time: bool = False) -> list[Row]:
    """Time every model."""
    clock = time.process_time if cpu_time else time.perf_counter
    return [
        model(name, variant, rounds=rounds, clock=clock)
        for name, variant in MODELS
        if only in f"{name} {variant}"
    ]


def geometric_mean(table: list[Row]) -> float:
    """Return how many times longer pteron takes than the wheel."""
    return math.exp(statistics.fmean(math.log(row.ratio("pteron", WHEEL)) for row in table))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.xnnpack", description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--only", default="", help="part of a model's and a variant's name")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="time the process's own processor time: what counts on a machine that is shared",
    )
    options = parser.parse_args()
    set_threads(options.threads)
    table = rows(rounds=options.rounds, only=options.only, cpu_time=options.cpu_time)
    show(f"XNNPACK programs, {options.threads} threads", table)
    print(f"geometric mean: pteron takes {geometric_mean(table):.2f}x as long as the wheel")
    return 0


if __name__ == "__main__":
    sys.exit(main())
