"""The second face of a backend: ``inspect`` and ``verify`` read blobs, also of other packages."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pteron import Runtime
from pteron.backends import readers
from pteron.backends.blob_reader import BlobReader, DelegateBlob
from pteron.backends.bridge_program import DelegateProgram, write_program
from pteron.backends.executorch_bridge import ExecutorchBridge
from pteron.backends.registry import BUILT_IN
from pteron.errors import NotFoundError
from pteron.format.schema import AllocationDetails, CompileSpec, ScalarType, Tensor
from support import cuda_fixtures
from support.commands import cli

READER = """
import struct
from pteron.backends.blob_reader import BlobReader, CallShape, NativeCode
from pteron.errors import InvalidProgramError

class Reader(BlobReader):
    may_hold_code = False

    def violations(self, blob, named_data, *, is_complete):
        if blob.data.nbytes == 0:
            raise InvalidProgramError("the blob is empty")
        (count,) = struct.unpack_from("<H", blob.data)
        if count > 9:
            yield f"{count} layers; at most 9 are allowed"
        if is_complete and "layers" not in named_data:
            yield "its layers are not in the data files"
        if blob.compile_spec_text("target") != "soc":
            yield f"{blob.where} is not for a soc"

    def native_code(self, blob, named_data):
        details = {"cores": ["a", "b"], "layers": blob.data[0], "target_chip": "soc"}
        return NativeCode(None, "firmware", "dsp", blob.data.nbytes, "5" * 64, details)

    def call_shape(self, blob):
        return CallShape(1, ("layers",))

class Lost(BlobReader):
    def native_code(self, blob, named_data):
        return NativeCode("nowhere", "firmware", None, 1, "5" * 64)

five = 5
"""

PROBE = """
import sys
from pteron.cli.main import main
code = main()
heavy = {"torch", "numpy"} & set(sys.modules)
assert not heavy, heavy
sys.exit(code)
"""


def program(blob: bytes, backend_id: str = "TheirBackend") -> bytes:
    tensor = Tensor(ScalarType.FLOAT, (3,), (0,), allocation_info=AllocationDetails(1, 0))
    specs = (CompileSpec("target", b"soc"),)
    return write_program(
        DelegateProgram(backend_id, specs, memoryview(blob), {}, (tensor, tensor), (0,), (1,))
    )


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder that holds another package with a reader, as pip would install it."""
    install(tmp_path, "TheirBackend = their_reader:Reader")
    return tmp_path


def install(folder: Path, line: str) -> None:
    facts = folder / "their_package-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[pteron.blob_readers]\n{line}\n")
    (folder / "their_reader.py").write_text(READER)


def run(site: Path, verb: str, blob: bytes, *options: str) -> tuple[int, Any]:
    """Run the command in a process that sees the package, and check that torch stays out."""
    path = site / "program.pte"
    path.write_bytes(program(blob))
    source = Path(readers.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", PROBE, verb, path, "--json", *options],
        env={"PYTHONPATH": f"{source}:{site}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("blob", "expected"),
    [
        (b"\x05\x00", []),
        (b"\x0a\x00", ["10 layers; at most 9 are allowed"]),
        (b"", ["the blob is empty"]),
        (
            b"\x01",
            [
                "their_reader.Reader.violations raised error: "
                "unpack_from requires a buffer of at least 2 bytes for unpacking 2 bytes at offset "
                "0 (actual buffer size is 1)"
            ],
        ),
    ],
)
def test_verify_uses_the_reader_of_another_package(
    site: Path, blob: bytes, expected: list[str]
) -> None:
    code, found = run(site, "verify", blob)
    violations = found["files"][0]["violations"]
    assert [violation["message"] for violation in violations] == expected
    assert code == (1 if expected else 0)
    where = "method 'forward', delegate 0 (TheirBackend)"
    assert {violation["where"] for violation in violations} <= {where}


def test_verify_looks_for_data_if_data_files_are_given(site: Path) -> None:
    data = "tests/fixtures/peer_modules/ModuleLinearProgram.ptd"
    path = Path(__file__).parents[2] / data
    code, found = run(site, "verify", b"\x05\x00", "--data", str(path))
    (violation,) = found["files"][0]["violations"]
    assert (code, violation["message"]) == (1, "its layers are not in the data files")


def test_inspect_uses_the_reader_of_another_package(site: Path) -> None:
    code, found = run(site, "inspect", b"\x05\x00")
    (native,) = found["native_code"]
    assert code == 0
    assert native["details"] == {"cores": ["a", "b"], "layers": 5, "target_chip": "soc"}
    assert (native["kind"], native["machine"], native["sha256"]) == ("firmware", "dsp", "5" * 64)
    assert native["used_by"] == ["delegate 0 (TheirBackend) of method forward"]


@pytest.fixture
def here(site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the package known in this process."""
    monkeypatch.setattr(readers, "_readers", {})
    monkeypatch.syspath_prepend(site)
    return site


def test_the_page_shows_details(here: Path) -> None:
    path = here / "program.pte"
    path.write_bytes(program(b"\x05\x00"))
    text = cli("inspect", path).out
    for line in ("firmware for dsp, 2 bytes", "cores        a, b", "target chip  soc"):
        assert line in text


def test_code_in_data_that_is_not_there_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "TheirBackend = their_reader:Lost")
    monkeypatch.setattr(readers, "_readers", {})
    monkeypatch.delitem(sys.modules, "their_reader", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "program.pte"
    path.write_bytes(program(b"\x05\x00"))
    done = cli("inspect", path, "--json")
    (native,) = json.loads(done.out)["native_code"]
    assert "no data is called 'nowhere'" in native["problem"]


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ("their_reader:five", "InvalidTypeError: 5 is not a pteron.backends.blob_reader"),
        ("their_reader:nothing", "AttributeError: "),
        ("no_such_module:Reader", "ModuleNotFoundError: "),
    ],
)
def test_a_reader_that_does_not_load_is_logged_and_not_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    value: str,
    cause: str,
) -> None:
    install(tmp_path, f"TheirBackend = {value}")
    monkeypatch.setattr(readers, "_readers", {})
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        assert type(readers.reader_of("TheirBackend")) is BlobReader
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert cause in warning
    assert "of their-package 1.0" in warning


def test_what_nobody_reads_is_taken_for_the_worst() -> None:
    reader = readers.reader_of("NobodysBackend")
    assert reader.keeps_state
    assert reader.may_hold_code
    assert ExecutorchBridge("NobodysBackend").runs_native_code
    blob = DelegateBlob("NobodysBackend", memoryview(b"?"), (), "forward", 0)
    assert readers.call_shape(blob) is None


def test_the_bridge_asks_the_reader(here: Path) -> None:
    assert not ExecutorchBridge("TheirBackend").runs_native_code
    blob = DelegateBlob("TheirBackend", memoryview(b"?"), (), "forward", 0)
    shape = readers.call_shape(blob)
    assert shape is not None
    assert (shape.outputs, shape.keys) == (1, ("layers",))


@pytest.mark.parametrize("backend_id", BUILT_IN)
def test_every_backend_of_this_package_has_a_reader(backend_id: str) -> None:
    reader = readers.reader_of(backend_id)
    assert type(reader) is not BlobReader
    assert type(reader).__module__.startswith("pteron.backends.")


def test_text_of_a_compile_spec_is_never_lost() -> None:
    specs = (CompileSpec("name", b"a\xff"), CompileSpec("name", b"second"))
    blob = DelegateBlob("Any", memoryview(b""), specs, "forward", 0)
    assert blob.compile_spec_text("name") == "a\\xff"
    assert blob.compile_spec_text("other") is None


def test_a_device_that_is_missing_and_data_that_is_missing_are_told_together() -> None:
    program = Runtime.get().load_program(
        cuda_fixtures.pte_path("linear_relu"), device_map={"cuda": "cuda:63"}
    )
    with pytest.raises(NotFoundError) as caught:
        program.load_method()
    *devices, data = caught.value.problems
    assert devices
    assert all("this machine has no cuda:63" in device.message for device in devices)
    assert data.message.startswith("no data is called 'cuda_fqn_weight:cuda:l.weight', ")
    assert "'cuda_fqn_weight:cuda:l.bias' in " in data.message


def test_a_flat_blob_of_weights_may_be_inside_the_code() -> None:
    blob = DelegateBlob("CudaBackend", memoryview(b"code\nweights"), (), "forward", 0)
    assert readers.keys_of(blob) == ["code"]
