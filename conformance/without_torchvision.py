"""Lets a test file that imports torchvision be collected: the tests that use its models skip."""

from __future__ import annotations

import sys
import unittest
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import NoReturn


class _Missing(ModuleType):
    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise unittest.SkipTest("torchvision is not installed")


if find_spec("torchvision") is None:
    _stub = _Missing("torchvision")
    _stub.__spec__ = ModuleSpec("torchvision", None)
    sys.modules["torchvision"] = _stub
