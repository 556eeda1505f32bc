"""What the differential tests share."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

LIST_OPERATORS = """
import json
from executorch.runtime import Runtime
print(json.dumps(sorted(Runtime.get().operator_registry.operator_names)))
"""


@pytest.fixture(scope="session")
def wheel_operators() -> frozenset[str]:
    """Return the operator names that the executorch wheel has kernels for.

    A fresh process is asked: other tests add to this one's registry (quantized, language model).
    """
    if find_spec("executorch") is None:
        pytest.skip("the executorch wheel is not installed")
    done = subprocess.run(
        [sys.executable, "-c", LIST_OPERATORS],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return frozenset(json.loads(done.stdout.splitlines()[-1]))
