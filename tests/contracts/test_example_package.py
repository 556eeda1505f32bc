"""A package of another distribution, installed with pip, brings an operator and a delegate.

``docs/extending.md`` points at it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from pteron.backends.bridge_program import DelegateProgram, write_program
from pteron.format.schema import AllocationDetails, ScalarType, Tensor
from support.one_op import one_op

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "tests" / "fixtures" / "example_package"

SCRIPT = """
import json, subprocess, sys, torch
from pteron import PteronError, Runtime
operator, delegate, damaged = sys.argv[1:]
runtime = Runtime.get()
x = torch.tensor([3.0, -2.0, 0.5])
results = [
    runtime.load_program(path).load_method("forward").execute([x])[0].tolist()
    for path in (operator, delegate)
]
try:
    runtime.load_program(damaged).load_method("forward")
except PteronError as error:
    results.append(str(error))
files = [str(path) for path in (delegate, damaged)]
done = subprocess.run(
    [sys.executable, "-m", "pteron", "verify", "--json", *files], capture_output=True, text=True
)
results.append([file["violations"] for file in json.loads(done.stdout)["files"]])
results.append("ExampleBackend" in runtime.backend_registry.registered_backend_names)
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the example into a folder of its own, as a user would install a package."""
    if find_spec("setuptools") is None or find_spec("pip") is None:
        pytest.skip("pip and setuptools are not installed")
    folder = tmp_path_factory.mktemp("example")
    source = folder / "source"  # setuptools writes beside what it builds
    shutil.copytree(EXAMPLE, source)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", *options, "-t", folder / "site", source],
        check=True,
        capture_output=True,
        text=True,
    )
    return folder / "site"


def delegate_program(blob: bytes) -> bytes:
    tensor = Tensor(ScalarType.FLOAT, (3,), (0,), allocation_info=AllocationDetails(1, 0))
    return write_program(
        DelegateProgram("ExampleBackend", (), memoryview(blob), {}, (tensor, tensor), (0,), (1,))
    )


def run(folder: Path, *site: Path) -> list[Any]:
    """Run the three programs in a process that sees ``site``."""
    x = torch.tensor([3.0, -2.0, 0.5])
    data, _ = one_op("example::leaky_square.out", ["Tensor", "float"], [x, 0.5], [x])
    files = {
        "operator.pte": data,
        "delegate.pte": delegate_program(b"\x00\x00\x20\x40"),
        "damaged.pte": delegate_program(b"\x00\x00\x20"),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    paths = os.pathsep.join(map(str, (ROOT / "src", *site)))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *(str(folder / name) for name in files)],
        env={"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def test_operator_and_delegate_of_an_installed_package_run(installed: Path, tmp_path: Path) -> None:
    operator, delegate, refusal, violations, known = run(tmp_path, installed)
    assert operator == [9.0, -1.0, 0.25]
    assert delegate == [7.5, -5.0, 1.25]
    assert "ExampleBackend: 3 bytes and 2 values" in str(refusal)
    (sound, (violation,)) = violations
    assert sound == []
    assert violation["message"] == "the blob has 3 bytes; 4 are expected"
    assert known is True


def test_without_the_package_the_operator_is_named(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"example::leaky_square\.out"):
        run(tmp_path)


def test_the_page_says_what_the_package_says() -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    project = (EXAMPLE / "pyproject.toml").read_text()
    for line in project.splitlines():
        if "entry-points" in line or "pteron_example." in line:
            assert line in page
