"""What the differential tests share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def wheel_operators() -> frozenset[str]:
    """Return the operator names that the executorch wheel has kernels for."""
    runtime = pytest.importorskip("executorch.runtime", reason="no executorch wheel")
    return frozenset(runtime.Runtime.get().operator_registry.operator_names)
