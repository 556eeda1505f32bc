"""What a process has set for itself, such as torch's default dtype, does not reach a program."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import pteron
from pteron import Runtime
from support.models import ARCHITECTURES
from support.portable_fixtures import NAMES, open_portable, stored
from support.xnnpack_variants import kept

SOURCES = Path(pteron.__file__).parent
FACTORIES = frozenset({"arange", "empty", "full", "ones", "rand", "randint", "tensor", "zeros"})


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "float64": lambda: default_dtype(torch.float64),
    "on meta": lambda: torch.device("meta"),
    "gradients": torch.enable_grad,
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("variant", ["static_int8", "dynamic_int8", "rows_by_4_bits"])
def test_a_quantized_delegate_gives_the_same_numbers(variant: str, setting: str) -> None:
    file, spec = kept("bert", variant), ARCHITECTURES["bert"].build()["forward"]
    with Runtime.get().load_program(file.pte, data_path=file.ptd) as program:
        wanted = program.load_method().execute(spec.inputs[0])
        with SETTINGS[setting]():
            found = program.new_method().execute(spec.inputs[0])
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", NAMES)
def test_a_portable_program_gives_the_same_numbers(name: str, setting: str) -> None:
    for method, calls in stored(name)["calls"].items():
        with open_portable(name) as program:
            wanted = [program.load_method(method).execute(inputs) for inputs, _ in calls]
        with open_portable(name) as program, SETTINGS[setting]():
            found = [program.load_method(method).execute(inputs) for inputs, _ in calls]
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_whatever_makes_a_tensor_says_of_what_type_and_where() -> None:
    found = []
    for path in sorted(SOURCES.rglob("*.py")):
        if path.parent.name == "cli":  # a process of its own
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr in FACTORIES and ast.unparse(node.func.value) == "torch":
                given = {keyword.arg for keyword in node.keywords}
                counts = node.func.attr in ("arange", "full", "randint")  # whole numbers here
                if "device" not in given or not ("dtype" in given or counts):
                    found.append(f"{path.relative_to(SOURCES)}:{node.lineno}")
    assert not found, found
