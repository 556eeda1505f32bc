"""Run tests that were written for executorch on pteron: ``-p pteron.compat.pytest_plugin``.

The modules are replaced when the plugin is imported, before any conftest. ``--pteron-backend
package.module:Class`` registers a backend, for delegates that a test brings with it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from pteron.compat import executorch
from pteron.runtime import Runtime

executorch.install()


def pytest_addoption(parser: Any) -> None:
    """Add the options."""
    parser.addoption(
        "--pteron-backend",
        action="append",
        default=[],
        metavar="MODULE:CLASS",
        help="register a pteron backend before tests run; may be given several times",
    )


def pytest_configure(config: Any) -> None:
    """Register the backends that were asked for."""
    for place in config.getoption("--pteron-backend"):
        Runtime.get().backend_registry.register(_backend(place))


def _backend(place: str) -> Any:
    module, _, name = place.partition(":")
    if not module or not name:
        raise pytest.UsageError(f"--pteron-backend takes MODULE:CLASS, got {place!r}")
    try:
        backend = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise pytest.UsageError(f"--pteron-backend {place}: {error}") from error
    return backend()


def pytest_report_header() -> str:
    """Say which runtime the tests reach."""
    return "executorch's runtime modules are pteron's"
