"""DESIGN, I5: a program may be anything with bytes, which stay alive as long as they are needed."""

from __future__ import annotations

import gc
import io
import json
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pteron import Runtime
from pteron.errors import InvalidStateError
from support import plain_programs as programs
from support import state_programs
from support.portable_fixtures import PORTABLE
from support.programs import Files, export, kept
from support.xnnpack_variants import kept as kept_xnnpack

X = torch.arange(6.0).view(2, 3)


class Weighted(torch.nn.Module):
    """Large enough that its weights are read from the file, and not kept in a slot."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            self.layer = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


@kept
def weighted() -> Files:
    return export(Weighted(), (torch.ones(1, 64),))


@kept
def weighted_outside() -> Files:
    return export(Weighted(), (torch.ones(1, 64),), external_constants=True)


SOURCES: dict[str, Callable[[bytes, Path], Any]] = {
    "bytes": lambda data, folder: bytes(bytearray(data)),
    "bytearray": lambda data, folder: bytearray(data),
    "memoryview of a bytearray": lambda data, folder: memoryview(bytearray(data)),
    "BytesIO": lambda data, folder: io.BytesIO(data),
    "file object": lambda data, folder: written(data, folder).open("rb"),
    "str": lambda data, folder: str(written(data, folder)),
    "Path": lambda data, folder: written(data, folder),
}


def written(data: bytes, folder: Path) -> Path:
    path = folder / "größe 模型.pte"
    path.write_bytes(data)
    return path


def spoil(source: Any) -> None:
    """Overwrite, close or delete what a program was made of."""
    if isinstance(source, (bytearray, memoryview)):
        source[:] = b"\xff" * len(source)
    elif isinstance(source, io.BytesIO):
        source.seek(0)
        source.write(b"\xff" * len(source.getvalue()))
        source.close()
    elif isinstance(source, io.IOBase):
        source.close()
        Path(source.name).unlink()  # type: ignore[attr-defined]
    elif isinstance(source, (str, Path)):
        Path(source).unlink()


@pytest.mark.parametrize("kind", SOURCES)
def test_the_callers_object_may_go(kind: str, tmp_path: Path) -> None:
    """Issue 10725, and found on 1.5.1 (F1): it segfaults for bytes, bytearray and BytesIO."""
    source = SOURCES[kind](weighted().bytes(), tmp_path)
    method = Runtime.get().load_program(source).load_method()
    spoil(source)
    del source
    gc.collect()
    noise = [bytearray(b"\xee" * 40_000) for _ in range(50)]
    x = torch.randn(1, 64)
    torch.testing.assert_close(method.execute([x]), [Weighted()(x).detach()])
    assert len(noise) == 50


@pytest.mark.parametrize("kind", SOURCES)
def test_data_files_may_be_given_and_go_likewise(kind: str, tmp_path: Path) -> None:
    (data,) = weighted_outside().data
    source = SOURCES[kind](data.read_bytes(), tmp_path)
    method = Runtime.get().load_program(weighted_outside().pte, data_path=source).load_method()
    spoil(source)
    del source
    gc.collect()
    x = torch.randn(1, 64)
    torch.testing.assert_close(method.execute([x]), [Weighted()(x).detach()])


def test_bytes_are_named_in_messages() -> None:
    program = Runtime.get().load_program(programs.doubled().bytes())
    assert "<bytes>" in repr(program)


def test_a_method_keeps_its_program_alive() -> None:
    program = Runtime.get().load_program(weighted().bytes())
    method, alive = program.load_method(), weakref.ref(program._load_context())
    del program
    gc.collect()
    x = torch.randn(1, 64)
    torch.testing.assert_close(method.execute([x]), [Weighted()(x).detach()])
    assert alive() is not None
    del method
    gc.collect()
    assert alive() is None


def test_a_new_instance_outlives_its_program() -> None:
    with Runtime.get().load_program(weighted().pte) as program:
        own, shared = program.new_method(), program.load_method()
    x = torch.randn(1, 64)
    torch.testing.assert_close(own.execute([x]), [Weighted()(x).detach()])
    with pytest.raises(InvalidStateError, match="method 'forward' is closed"):
        shared.execute([x])


def test_what_is_closed_says_so() -> None:
    program = Runtime.get().load_program(state_programs.counter_from_seven().pte)
    method = program.load_method()
    with method:
        pass
    assert method.closed
    uses: list[Callable[[], object]] = [
        lambda: method.execute([torch.ones(4)]),
        lambda: method.set_inputs([torch.ones(4)]),
        method.run,
        method.get_outputs,
        method.reset,
        lambda: method.state["count"],
    ]
    for use in uses:
        with pytest.raises(InvalidStateError, match="method 'forward' is closed") as caught:
            use()
        assert caught.value.code == 0x02
    method.close()  # a second time does nothing
    assert "closed" in repr(method)
    again = program.load_method()  # loaded anew, from the initial value
    torch.testing.assert_close(again.execute([torch.ones(4)]), [torch.full((4,), 8.0)])
    program.close()
    program.close()
    assert program.closed
    with pytest.raises(InvalidStateError, match="the program is closed"):
        program.load_method()
    assert program.metadata("forward").num_inputs() == 1  # what the file says can still be read


# ---- memory of the process -----------------------------------------------------------------------

MEASURE = """
import gc, json, sys
import torch
from pteron import Runtime
import pteron.executor.load, pteron.kernels
pteron.kernels.default_registry()

def private():
    with open("/proc/self/status") as status:
        return sum(int(l.split()[1]) for l in status if l.startswith("RssAnon")) * 1024

warm = Runtime.get().load_program(sys.argv[2]).load_method().execute([torch.ones(2, 3)])
gc.collect()
before = private()
program = Runtime.get().load_program(sys.argv[1])
opened = private() - before
method = program.load_method()
loaded = private() - before
(out,) = method.execute([torch.tensor([5])])
ran = private() - before
print(json.dumps([opened, loaded, ran, out.flatten()[:2].tolist()]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc: not Linux")
def test_private_memory_grows_by_the_arenas_not_by_the_constants(tmp_path: Path) -> None:
    pytest.importorskip("executorch.exir", reason="exports a large program")
    table = torch.nn.Embedding(1 << 14, 1 << 10)
    with torch.no_grad():
        table.weight.copy_(torch.arange(1 << 14)[:, None])
    path = tmp_path / "large.pte"
    path.write_bytes(export(table, (torch.tensor([0]),))["program.pte"])
    assert path.stat().st_size > 64 << 20
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path), str(programs.doubled().pte)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    opened, loaded, ran, first = json.loads(done.stdout)
    assert first == [5.0, 5.0]
    assert max(opened, loaded, ran) < 4 << 20, (opened, loaded, ran)


@pytest.mark.parametrize("ending", ["dropped", "closed"])
@pytest.mark.parametrize("name", ["portable", "xnnpack", "with weights apart"])
def test_a_file_is_let_go_at_once(name: str, ending: str) -> None:
    """Nothing of a program waits for the garbage collector: a file can be gigabytes."""
    if name == "xnnpack":
        files = [kept_xnnpack("mobilenet_v2", "static_int8").pte]
    else:
        folder = PORTABLE / ("external_weights" if name == "with weights apart" else "mobilenet_v2")
        files = [folder / "program.pte", *folder.glob("*.ptd")]
    held = [file.read_bytes() for file in files]

    def use() -> None:
        program = Runtime.get().load_program(held[0], data_path=held[1:])
        for method in sorted(program.method_names):
            program.load_method(method)
        if ending == "closed":
            program.close()

    use()
    gc.collect()
    before = [sys.getrefcount(data) for data in held]
    gc.disable()
    try:
        use()
        assert [sys.getrefcount(data) for data in held] == before
    finally:
        gc.enable()
