# ruff: noqa: T201
"""First contact with real hardware: the pieces of ``backends/cuda`` alone, no runtime.

    PYTHONPATH=src:tests python tests/gpu/smoke.py [PART ...]

Each part runs in a process of its own, so that a crash of one is seen and the others still run.
Ends with one line a part and exit code 0 if all passed.
"""

from __future__ import annotations

import faulthandler
import gc
import platform
import subprocess
import sys
import time
import traceback
from typing import Any

from support import cuda_fixtures as fixtures


def main(names: list[str]) -> int:
    results = {}
    for name in names or list(PARTS):
        begin = time.time()
        command = [sys.executable, "-X", "faulthandler", __file__, "--one", name]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=400)
        print(f"===== {name}: exit {done.returncode}, {time.time() - begin:.1f} s")
        print(done.stdout[-6000:], end="")
        if done.stderr.strip():
            print("----- stderr:", done.stderr[-3000:], sep="\n")
        results[name] = done.returncode
    print("===== summary")
    for name, code in results.items():
        print(f"{name:12} {'ok' if code == 0 else f'FAILED ({code})'}")
    return int(any(results.values()))


def load(program: fixtures.OpenProgram, method: str, device: Any = None, **changes: Any) -> Any:
    import torch

    from pteron.backends.cuda import CudaBackend

    device = device or torch.device("cuda:0")
    return CudaBackend().init(program.context(method, device, **changes))


def bound(delegate: Any, inputs: tuple[Any, ...], expected: Any, *, planned: bool = True) -> Any:
    """Return the call, its input tensors and its output tensor."""
    import torch

    device = delegate.device
    given = [tensor.to(device).clone() for tensor in inputs]
    if planned:
        nbytes = expected.numel() * expected.element_size()
        arena = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        output = torch.from_dlpack(arena).view(expected.dtype).view(expected.shape)
    else:
        output = torch.empty(0, dtype=expected.dtype, device=device)
    return delegate.bind([*given, output]), given, output


def part_about() -> None:
    import torch

    from pteron.backends.cuda.elf import read_elf

    print(
        "python", sys.version.split()[0], "torch", torch.__version__, "glibc", platform.libc_ver()
    )
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        print(index, torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index))
        print("  free", f"{free:,}", "of", f"{total:,}")
    print("handles:", [name for name in dir(torch._C._aoti) if "ptr" in name])
    for name in fixtures.NAMES:
        program = fixtures.open_program(name)
        for method, index, payload in program.delegates():
            from pteron.backends.cuda import describe

            code = describe(payload, program.data, method_name=method)
            info = read_elf(program.data.get(code.key).data, where=name)
            has = "AOTInductorGetLastError" in info.defined
            print(name, method, index, code.digest[:12], code.architectures, code.weight_bytes, has)


def part_run() -> None:
    """Run every single-GPU fixture, twice, as slots of a plan."""
    import torch

    for name in fixtures.SINGLE_GPU:
        program = fixtures.open_program(name)
        for method, calls in fixtures.cases(name).items():
            if not program.plan(method).delegates:
                continue
            begin = time.time()
            with fixtures.same_current_device():
                delegate = load(program, method)
            loaded = time.time() - begin
            constants = [
                (c.fqn, c.kind.name, c.folded, c.nbytes) for c in delegate._container.constants
            ]
            print(f"{name}.{method}: loaded in {loaded:.3f} s; constants {constants[:12]}")
            for turn in range(2):
                delegate.reset()
                for case in calls:
                    full = case.expected if case.rows is None else torch.empty(case.inputs[0].shape)
                    call, _, output = bound(delegate, case.inputs, full)
                    with fixtures.same_current_device():
                        call()
                    error = case.compare(output)
                    verdict = "ok" if error <= case.tolerance else "WRONG"
                    print(f"   turn {turn}: error {error:.2e} {verdict}")
                    assert error <= case.tolerance
            begin = time.perf_counter()
            for _ in range(200):
                call()
            host = time.perf_counter() - begin
            torch.cuda.synchronize()
            print(f"   host time of a call {host / 200 * 1e6:.1f} us")
            delegate.close()


def part_unplanned() -> None:
    """Let outputs take over the compiled code's own tensors."""
    for name in ("gpu_resident_io", "dynamic_batch"):
        program = fixtures.open_program(name)
        delegate = load(program, "forward")
        for case in fixtures.cases(name)["forward"]:
            call, given, output = bound(delegate, case.inputs, case.expected, planned=False)
            call()
            first = output.detach()
            given[0].mul_(2)
            call()
            assert case.compare(first) <= case.tolerance, "an earlier result changed"
            assert output.data_ptr() != first.data_ptr()
            print(name, tuple(case.inputs[0].shape), "ok")


def part_state() -> None:
    """Two instances of one method, interleaved; reset; state by name."""
    program = fixtures.open_program("kv_cache")
    calls = fixtures.cases("kv_cache")["forward"]
    shared: dict[Any, Any] = {}
    one = load(program, "forward", program_store=shared)
    two = load(program, "forward", program_store=shared)
    print("state:", {name: (tuple(t.shape), t.data_ptr()) for name, t in one.state.items()})
    same = [
        name
        for name, tensor in one._constants.tensors.items()
        if tensor.data_ptr() == two._constants.tensors[name].data_ptr()
    ]
    print("shared by the two instances:", same)
    assert same, "weights are not shared"
    assert set(same).isdisjoint(one.state), "state is shared by two instances"
    for turn in range(2):
        for case in calls:
            for delegate in (one, two):
                call, _, output = bound(delegate, case.inputs, case.expected)
                call()
                assert case.compare(output) <= case.tolerance, (turn, delegate is one)
        one.reset()
        two.reset()
    print("interleaved, reset, interleaved: ok")


def part_sharing() -> None:
    """Prefill and decode hold one copy of each weight; all of it goes back."""
    import torch

    program = fixtures.open_program("prefill_decode")
    torch.ones(1, device="cuda")
    free = torch.cuda.mem_get_info()[0]
    shared: dict[Any, Any] = {}
    loaded = {m: load(program, m, program_store=shared) for m in ("prefill", "decode")}
    a, b = (d._constants.tensors for d in loaded.values())
    pointers = [{t.data_ptr() for t in tensors.values()} for tensors in (a, b)]
    print("weights", len(a), len(b), "pointers in common", len(pointers[0] & pointers[1]))
    assert pointers[0] == pointers[1]
    for method, delegate in loaded.items():
        for case in fixtures.cases("prefill_decode")[method]:
            call, _, output = bound(delegate, case.inputs, case.expected)
            call()
            assert case.compare(output) <= case.tolerance
    print("taken while loaded", free - torch.cuda.mem_get_info()[0])
    for delegate in loaded.values():
        delegate.close()
    loaded.clear()
    del a, b, delegate, call, output
    gc.collect()
    print("still taken after close", free - torch.cuda.mem_get_info()[0])
    torch.cuda.empty_cache()
    print("still taken after empty_cache", free - torch.cuda.mem_get_info()[0])


def part_delete() -> None:
    """Create and delete containers of many shared objects in every order."""
    import torch

    names = [n for n in fixtures.SMALL if n != "gpu_resident_io"]
    for turn in range(6):
        held = []
        for name in names if turn % 2 else reversed(names):
            program = fixtures.open_program(name)
            for method, calls in fixtures.cases(name).items():
                delegate = load(program, method)
                case = calls[0]
                call, _, output = bound(delegate, case.inputs, case.expected)
                call()
                assert case.compare(output) <= case.tolerance
                held.append((delegate, call, case, output))
        if turn % 3 == 0:
            held.reverse()
        while held:
            delegate, *_ = held.pop()
            delegate.close()
            for other, call, case, output in held:
                other.reset()
                call()
                assert case.compare(output) <= case.tolerance
        torch.cuda.synchronize()
        print("turn", turn, "free", f"{torch.cuda.mem_get_info()[0]:,}")


def part_graph() -> None:
    """Capture calls into a CUDA graph; new inputs; state and reset stay right."""
    import torch

    for name in ("linear_relu", "small_cnn", "transformer_block_bf16", "kv_cache"):
        program = fixtures.open_program(name)
        calls = fixtures.cases(name)["forward"]
        delegate = load(program, "forward")
        call, given, output = bound(delegate, calls[0].inputs, calls[0].expected)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        for turn in range(2):
            delegate.reset()
            for case in calls:
                for slot, value in zip(given, case.inputs, strict=True):
                    slot.copy_(value)
                output.zero_()
                graph.replay()
                error = case.compare(output)
                assert error <= case.tolerance, (name, turn, error)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        times = {}
        for label, run in (("loop", call), ("graph", graph.replay)):
            run()
            begin.record()
            for _ in range(100):
                run()
            end.record()
            torch.cuda.synchronize()
            times[label] = begin.elapsed_time(end) * 10
        print(name, "captured and right;", {k: f"{v:.1f} us" for k, v in times.items()})
        del graph
        delegate.close()


def part_threads() -> None:
    """Let another Python thread run while code loads and runs (no GIL in the calls)."""
    import threading

    import torch

    program = fixtures.open_program("mixed_host_cuda")
    (case,) = fixtures.cases("mixed_host_cuda")["forward2"]
    torch.ones(1, device="cuda")
    ticks, stop = [0], threading.Event()

    def tick() -> None:
        while not stop.wait(0.0005):
            ticks[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    begin = time.perf_counter()
    delegate = load(program, "forward2")
    call, _, output = bound(delegate, case.inputs, torch.empty(case.inputs[0].shape))
    call()
    assert case.compare(output) <= case.tolerance
    passed = time.perf_counter() - begin
    stop.set()
    thread.join()
    print(f"{ticks[0]} ticks of 0.5 ms in {passed * 1e3:.0f} ms")
    assert ticks[0] > 2


def part_errors() -> None:
    """Read the refusals that only a machine with a GPU gives."""
    import torch

    from pteron.errors import PteronError

    program = fixtures.open_program("linear_relu")
    for label, changes in (
        ("refused", {"native_code": False}),
        ("to the host", {"device": torch.device("cpu")}),
        ("no such GPU", {"device": torch.device("cuda:63")}),
    ):
        try:
            load(program, "forward", **changes)
        except PteronError as error:
            print(f"{label}: {type(error).__name__}: {error}")
        else:
            raise AssertionError(label)

    def no_memory(nbytes: int, device: torch.device) -> torch.Tensor:
        from pteron.memory.device_allocator import find_device_allocator

        return find_device_allocator("cuda").allocate(1 << 50, device)

    try:
        load(program, "forward", allocate=no_memory)
    except PteronError as error:
        print(f"no memory: {type(error).__name__}: {error}")
    else:
        raise AssertionError("no memory")
    delegate = load(program, "forward")
    (case,) = fixtures.cases("linear_relu")["forward"]
    call, _, output = bound(delegate, case.inputs, case.expected)
    call()
    assert case.compare(output) <= case.tolerance
    print("and it still runs")
    # What does a failing run say? Give the code an input of a shape it was not compiled for.
    wrong = torch.ones(3, device="cuda")
    bad = delegate.bind([wrong, torch.empty(0, device="cuda")])
    try:
        bad()
        torch.cuda.synchronize()
        print("a wrong shape went through without a word (the executor has to check)")
    except (PteronError, RuntimeError) as error:
        print(f"a wrong shape: {type(error).__name__}: {error}")


PARTS = {
    name.removeprefix("part_"): function
    for name, function in list(globals().items())
    if name.startswith("part_")
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        faulthandler.enable()
        try:
            PARTS[sys.argv[2]]()
        except BaseException:  # noqa: BLE001 - the parent reads the trace
            traceback.print_exc(file=sys.stdout)
            sys.exit(1)
        sys.exit(0)
    sys.exit(main(sys.argv[1:]))
