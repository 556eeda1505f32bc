"""Time CUDA programs and portable ones placed on a GPU, side by side in one run.

    PYTHONPATH=src:tests:. python -m bench.gpu.run [--out FOLDER] [--programs .bench]
                                                   [--only NAME ...] [--no-compile]

Every variant of a case gets the same inputs and hands out the same kind of output, is checked
against the CPU's numbers, and is timed with device events, in turns with the others:

    alone    one call on an idle device, from its first event to its last: what a caller waits
    queued   a call among many that are queued without waiting

Cases whose program copies between host and device (all delegated ones but ``gpu_resident_io``) take
host tensors and give host tensors, in every variant; the row ``aoti, device part`` has no copies.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.gpu.models import EAGER, MODELS, eager
from pteron import Runtime
from pteron.backends.cuda import CudaBackend
from pteron.backends.cuda.backend import current_raw_stream
from support import cuda_fixtures as fixtures

Call = Callable[[], Any]
DEVICE = torch.device("cuda:0")
ROUNDS, CALLS, WARM_UP = 12, 12, 6


# ---- timing ----------------------------------------------------------------------------------


def measure(variants: dict[str, Call]) -> dict[str, dict[str, float]]:
    """Return the median microseconds of each variant, alone and queued."""
    alone: dict[str, list[float]] = {name: [] for name in variants}
    queued: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(ROUNDS):
        for name, call in variants.items():
            for _ in range(2):
                call()
            for _ in range(CALLS):
                torch.cuda.synchronize()
                alone[name].append(_timed(call, 1))
            torch.cuda.synchronize()
            queued[name].append(_timed(call, CALLS))
    return {
        name: {
            "alone_us": statistics.median(alone[name]),
            "alone_p90_us": statistics.quantiles(alone[name], n=10)[8],
            "queued_us": statistics.median(queued[name]),
        }
        for name in variants
    }


def _timed(call: Call, count: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / count


class Cases:
    """Collects results, prints each as it comes, and writes all of them."""

    def __init__(self, out: Path | None) -> None:
        self.out = out
        self.results: dict[str, Any] = {}

    def run(self, name: str, makers: dict[str, Callable[[], Call]], right: Any) -> None:
        """Make the variants of a case, check each, and time those that can be made."""
        variants: dict[str, Call] = {}
        notes: dict[str, str] = {}
        for variant, make in makers.items():
            begin = time.perf_counter()
            try:
                call = make()
                for _ in range(WARM_UP):
                    result = call()
                torch.cuda.synchronize()
                error = right(result)
                notes[variant] = f"off by {error:.1e}, ready in {time.perf_counter() - begin:.1f} s"
                variants[variant] = call
            except Exception as failure:  # noqa: BLE001 - a variant that cannot be is a result too
                text = str(failure).strip().splitlines() or [""]
                notes[variant] = f"not possible: {type(failure).__name__}: {text[0][:150]}"
        times = measure(variants)
        self.results[name] = {"times": times, "notes": notes}
        self._show(name)
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"about": about(), "cases": self.results}, indent=1)
            (self.out / "bench_gpu.json").write_text(text)
        variants.clear()
        gc.collect()
        torch.cuda.empty_cache()

    def _show(self, name: str) -> None:
        case = self.results[name]
        print(f"\n{name}\n  {'':26}{'alone us':>10}{'p90':>10}{'queued us':>11}")
        for variant, note in case["notes"].items():
            t = case["times"].get(variant)
            numbers = " " * 31
            if t is not None:
                numbers = f"{t['alone_us']:>10.1f}{t['alone_p90_us']:>10.1f}{t['queued_us']:>11.1f}"
            print(f"  {variant:26}{numbers}  {note}")
        sys.stdout.flush()

    def ratio(self, name: str, of: str, to: str, kind: str) -> float | None:
        times = self.results.get(name, {}).get("times", {})
        if of not in times or to not in times:
            return None
        return float(times[of][kind] / times[to][kind])


def about() -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name(DEVICE),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "python": sys.version.split()[0],
    }


# ---- programs that the CUDA backend compiled -------------------------------------------------


def delegated(cases: Cases, fixture: str, method: str, *, compile_too: bool) -> None:
    program = fixtures.open_program(fixture)
    case = fixtures.cases(fixture)[method][-1]
    if fixture == "kv_cache":
        case = fixtures.cases(fixture)[method][0]
    resident = fixture == "gpu_resident_io"
    inputs = [x.to(DEVICE) for x in case.inputs] if resident else list(case.inputs)

    def loaded(*, capture: bool) -> Call:
        opened = Runtime.get().load_program(
            fixtures.pte_path(fixture), data_path=fixtures.ptd_path(fixture)
        )
        bound = opened.load_method(method, capture=capture)
        return lambda: bound.execute(inputs)[0]

    def bare() -> Call:
        delegate = CudaBackend().init(program.context(method, DEVICE))
        given = [x.to(DEVICE) for x in case.inputs]
        container, stream = delegate._container, current_raw_stream(DEVICE)
        return _keeping(delegate, lambda: container.run(given, stream())[0])

    def bare_with_copies() -> Call:
        delegate = CudaBackend().init(program.context(method, DEVICE))
        container, stream = delegate._container, current_raw_stream(DEVICE)
        return _keeping(
            delegate,
            lambda: container.run([x.to(DEVICE) for x in inputs], stream())[0].cpu(),
        )

    def bare_graph() -> Call:
        return _graphed(bare())

    def module(*, compiled: bool) -> Call:
        net = eager(fixture, method, program).to(DEVICE)
        run = torch.compile(net, mode="reduce-overhead") if compiled else net
        if resident:
            return _without_gradients(lambda: run(*inputs))
        return _without_gradients(lambda: run(*(x.to(DEVICE) for x in inputs)).cpu())

    makers: dict[str, Callable[[], Call]] = {}
    if compile_too:
        makers["torch.compile"] = lambda: module(compiled=True)
    makers |= {
        "pteron": lambda: loaded(capture=False),
        "pteron, captured": lambda: loaded(capture=True),
        "eager": lambda: module(compiled=False),
        "aoti, device part": bare,
        "aoti graph, device part": bare_graph,
    }
    if not resident:
        makers["aoti with copies"] = bare_with_copies

    def right(output: torch.Tensor) -> float:
        if fixture == "kv_cache":  # the same row again and again: as after the first call
            return fixtures.cases(fixture)[method][0].compare(output)
        return case.compare(output)

    cases.run(f"{fixture}.{method}", makers, right)


# ---- portable programs, placed on the GPU ----------------------------------------------------


def replaced(cases: Cases, model: Any, folder: Path, *, compile_too: bool) -> None:
    path = folder / f"{model.name}.pte"
    inputs = [x.to(DEVICE) for x in model.inputs()]
    net = model.build()
    with torch.no_grad():
        expected = net(*model.inputs())
    net = net.to(DEVICE)

    def loaded(*, capture: bool, borrow: bool = False) -> Call:
        opened = Runtime.get().load_program(path, device_map={"cpu": "cuda"})
        method = opened.load_method("forward", capture=capture)
        return lambda: method.execute(inputs, borrow_outputs=borrow)[0]

    def module(*, compiled: bool) -> Call:
        run = torch.compile(net, mode="reduce-overhead") if compiled else net
        return _without_gradients(lambda: run(*inputs))

    makers: dict[str, Callable[[], Call]] = {}
    if compile_too:  # first: its captures give back the workspaces that other graphs may use
        makers["torch.compile"] = lambda: module(compiled=True)
    makers |= {
        "pteron": lambda: loaded(capture=False),
        "pteron, captured": lambda: loaded(capture=True),
        "pteron, captured, borrowed": lambda: loaded(capture=True, borrow=True),
        "eager": lambda: module(compiled=False),
        "eager graph": lambda: _graphed(module(compiled=False)),
    }

    def right(output: torch.Tensor) -> float:
        return float((output.cpu() - expected).abs().max() / expected.abs().max())

    cases.run(f"{model.name}, portable on CUDA", makers, right)


def _keeping(owner: Any, call: Call) -> Call:
    """Return a call that keeps ``owner`` alive."""

    def run() -> Any:
        assert owner is not None
        return call()

    return run


def _without_gradients(call: Call) -> Call:
    def run() -> Any:
        with torch.inference_mode():
            return call()

    return run


def _graphed(call: Call) -> Call:
    """Capture a call as it is, with nothing around it: the least that a graph of it can take."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call()

    def replay() -> Any:
        graph.replay()
        return output

    return _keeping(call, replay)  # the graph reads the call's inputs where they are


# ---- all of it -------------------------------------------------------------------------------


def aims(cases: Cases) -> None:
    """Print how the numbers stand to what was aimed at."""
    print("\naims (ratio of medians)")
    for fixture, method in EAGER:
        name = f"{fixture}.{method}"
        to = "aoti, device part" if fixture == "gpu_resident_io" else "aoti with copies"
        for kind in ("alone_us", "queued_us"):
            ratio = cases.ratio(name, "pteron, captured", to, kind)
            if ratio is not None:
                verdict = "met" if ratio <= 1.05 else "MISSED"
                print(f"  {name:36}{kind:10} captured / {to}: {ratio:5.2f} (<= 1.05: {verdict})")
    for model in MODELS:
        name = f"{model.name}, portable on CUDA"
        for other in ("eager", "torch.compile"):
            for kind in ("alone_us", "queued_us"):
                ratio = cases.ratio(name, other, "pteron, captured", kind)
                if ratio is not None:
                    print(f"  {name:36}{kind:10} {other} / captured: {ratio:5.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for bench_gpu.json")
    parser.add_argument("--programs", type=Path, default=Path(".bench"))
    parser.add_argument("--only", nargs="*", default=[], help="fixtures and models to run")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    print(json.dumps(about()))
    cases = Cases(options.out)
    for model in MODELS:
        if options.only and model.name not in options.only:
            continue
        if not (options.programs / f"{model.name}.pte").exists():
            print(f"no {model.name}.pte in {options.programs}: run bench.gpu.make_programs")
            continue
        replaced(cases, model, options.programs, compile_too=not options.no_compile)
    for fixture, method in EAGER:
        if not options.only or fixture in options.only:
            delegated(cases, fixture, method, compile_too=not options.no_compile)
    aims(cases)


if __name__ == "__main__":
    main()
