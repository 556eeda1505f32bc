"""Blobs that are not what a delegate's id says, for backends that only executorch has.

Each program is opened in a subprocess: without the worker that the delegate runs in, executorch's
QNN backend ends the process on the first of them.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("executorch", reason="executorch is not installed")

from pteron import Runtime
from pteron.backends.bridge_program import DelegateProgram, write_program
from pteron.backends.executorch_bridge import ExecutorchBridge
from pteron.errors import BackendMissingError, NotSupportedError
from pteron.format.schema import AllocationDetails, ScalarType, Tensor

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "demo" / "digits.pte"
QNN = "QnnBackend"

needs_qnn = pytest.mark.skipif(
    not ExecutorchBridge(QNN).is_there, reason="this executorch wheel has no QnnBackend"
)

BLOBS = {
    "empty": b"",
    "zeros": bytes(64),
    "noise": random.Random(5).randbytes(64),
    "large": b"\xff" * 3_000_000,
}

SCRIPT = """
import json, sys
import pteron, torch
from pteron import PteronError, Runtime
errors = {}
for path in sys.argv[2:]:
    try:
        Runtime.get().load_program(path).load_method("forward")
    except PteronError as error:
        errors[path] = [type(error).__name__, str(error)]
program = Runtime.get().load_program(sys.argv[1])
method = program.load_method("forward")
meta = method.metadata.input_tensor_meta(0)
results = method.execute([torch.zeros(meta.sizes())])
print(json.dumps([errors, len(results)]))
"""


def program(blob: bytes, backend_id: str = QNN) -> bytes:
    """Return a program that hands one tensor to a delegate and takes one from it."""
    tensor = Tensor(ScalarType.FLOAT, (3,), (0,), allocation_info=AllocationDetails(1, 0))
    return write_program(
        DelegateProgram(backend_id, (), memoryview(blob), {}, (tensor, tensor), (0,), (1,))
    )


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@needs_qnn
def test_a_blob_that_is_not_the_backends_ends_no_process_of_ours(tmp_path: Path) -> None:
    for name, blob in BLOBS.items():
        (tmp_path / name).write_bytes(program(blob))
    done = run("-c", SCRIPT, DIGITS, *(tmp_path / name for name in BLOBS))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    errors, results = json.loads(done.stdout)
    assert results == 1
    assert len(errors) == len(BLOBS)
    for kind, text in errors.values():
        assert kind == "DelegateInvalidCompatibilityError"
        assert "cannot load a delegate of QnnBackend: the process that it ran in ended with" in text
        assert "SIGSEGV" in text
        assert "Deserializing processed data" in text  # what QNN wrote
        assert "delegate 0 (QnnBackend)" in text


@needs_qnn
def test_the_command_says_so(tmp_path: Path) -> None:
    path = tmp_path / "junk.pte"
    path.write_bytes(program(BLOBS["noise"]))
    done = run("-m", "pteron", "run", path, "--input", "[1.0,2.0,3.0]")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: executorch ")
    assert "a delegate of QnnBackend" in done.stderr
    assert "hint: " in done.stderr


@needs_qnn
def test_refused_native_code_starts_nothing() -> None:
    opened = Runtime.get().load_program(program(b"no QNN"), native_code="refuse")
    with pytest.raises(NotSupportedError, match=r"QnnBackend\).*sha256 [0-9a-f]{64}") as error:
        opened.load_method("forward")
    assert 'native_code="allow"' in str(error.value)


@pytest.mark.skipif(
    not ExecutorchBridge("OpenvinoBackend").is_there, reason="this wheel has no OpenvinoBackend"
)
def test_a_backend_whose_library_is_missing_is_named_and_prints_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    registry = Runtime.get().backend_registry
    if registry.is_available("OpenvinoBackend"):
        pytest.skip("the OpenVINO runtime is installed")
    with pytest.raises(NotSupportedError, match="OpenvinoBackend, which is not available") as error:
        Runtime.get().load_program(program(b"x", "OpenvinoBackend")).load_method("forward")
    assert "OpenVINO runtime not found" in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_a_backend_that_executorch_lacks_too_is_missing() -> None:
    with pytest.raises(BackendMissingError, match="NobodysBackend") as error:
        Runtime.get().load_program(program(b"x", "NobodysBackend")).load_method("forward")
    assert "which is installed, cannot run it here either" in str(error.value)
