"""Every architecture, exported portable: pteron, and the executorch wheel, against eager torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from pteron import Module, Runtime
from support.exporting import export_portable
from support.models import ARCHITECTURES, Architecture, MethodSpec

pytestmark = pytest.mark.skipif(
    find_spec("executorch") is None, reason="the executorch wheel is not installed"
)

Execute = Callable[[Sequence[Any]], Sequence[Any]]

every_architecture = pytest.mark.parametrize(
    "entry", ARCHITECTURES.values(), ids=ARCHITECTURES.keys()
)


def tagged(tag: str) -> Any:
    entries = [entry for entry in ARCHITECTURES.values() if tag in entry.tags]
    return pytest.mark.parametrize("entry", entries, ids=[entry.name for entry in entries])


def eager(spec: MethodSpec) -> list[list[torch.Tensor]]:
    """Return eager's flat results for each input set, in order, from the module's first state."""
    module = copy.deepcopy(spec.module)
    with torch.no_grad():
        return [
            [leaf.clone() for leaf in torch.utils._pytree.tree_leaves(module(*inputs))]
            for inputs in spec.inputs
        ]


def assert_same(entry: Architecture, got: Any, want: list[torch.Tensor], where: str) -> None:
    assert len(got) == len(want), where
    for index, (here, there) in enumerate(zip(got, want, strict=True)):
        torch.testing.assert_close(
            here,
            there,
            rtol=entry.rtol,
            atol=entry.atol,
            msg=lambda text, index=index: f"{where}, output {index}: {text}\n({entry.reason})",
        )


def check(entry: Architecture, name: str, spec: MethodSpec, execute: Execute) -> None:
    """Run the input sets in order, and, where there is no state, in reverse as well."""
    want = eager(spec)
    order = list(range(len(want)))
    if "state" not in entry.tags:
        order += order[::-1]
    for turn, index in enumerate(order):
        got = [leaf.clone() for leaf in execute(spec.inputs[index])]
        assert_same(entry, got, want[index], f"{entry.name}.{name}, call {turn}, inputs {index}")


@every_architecture
def test_pteron_agrees_with_eager(entry: Architecture) -> None:
    file = export_portable(entry)
    with Runtime.get().load_program(file.pte, data_path=file.ptd) as program:
        methods = entry.build()
        assert program.method_names == set(methods)
        for name, spec in methods.items():
            check(entry, name, spec, program.load_method(name).execute)


@tagged("methods")
def test_methods_take_turns(entry: Architecture) -> None:
    """Methods of one program share scratch memory, and must not spoil each other's results."""
    file = export_portable(entry)
    methods = entry.build()
    want = {name: eager(spec) for name, spec in methods.items()}
    with Runtime.get().load_program(file.pte) as program:
        loaded = {name: program.load_method(name) for name in methods}
        for index in range(2):
            got = {name: loaded[name].execute(methods[name].inputs[index]) for name in methods}
            for name in methods:
                assert_same(entry, got[name], want[name][index], f"{name}, inputs {index}")


@tagged("state")
def test_reset_begins_anew(entry: Architecture) -> None:
    file = export_portable(entry)
    (spec,) = entry.build().values()
    with Runtime.get().load_program(file.pte) as program:
        method = program.load_method("forward")
        for _ in range(2):
            check(entry, "forward", spec, method.execute)
            method.reset()


@tagged("state")
def test_a_new_method_has_state_of_its_own(entry: Architecture) -> None:
    file = export_portable(entry)
    (spec,) = entry.build().values()
    want = eager(spec)
    with Runtime.get().load_program(file.pte) as program:
        one, two = program.load_method("forward"), program.new_method("forward")
        for index, inputs in enumerate(spec.inputs):
            assert_same(entry, one.execute(inputs), want[index], f"the first, call {index}")
            if index:
                late = two.execute(spec.inputs[index - 1])
                assert_same(entry, late, want[index - 1], f"the second, call {index - 1}")


@pytest.mark.parametrize("name", ["bert", "detector", "scan"])
def test_module_returns_what_the_model_returned(name: str) -> None:
    entry = ARCHITECTURES[name]
    (spec,) = entry.build().values()
    got = Module(export_portable(entry).pte)(*spec.inputs[0])
    assert isinstance(got, tuple)
    assert_same(entry, got, eager(spec)[0], name)
