"""Every operator of ExecuTorch's registry, in a program of one call: pteron against eager torch."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pteron import Runtime
from support.one_op import ProgramBuilder
from support.operator_cases import BEYOND, CASES, NUMBERS, VIEWS, Case
from support.operator_check import RANDOM, UNDEFINED, difference, signature
from support.operator_programs import FORMS, number_program, program_of


@pytest.fixture(autouse=True)
def _warn_always() -> Iterator[None]:
    """Let torch's own code warn each time, not only at the first."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


def run(data: bytes, inputs: list[Any]) -> list[Any]:
    with Runtime.get().load_program(data) as program:
        return program.load_method("forward").execute(inputs)


@pytest.mark.parametrize("name", [*CASES, *BEYOND])
def test_program_agrees_with_eager(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(zlib.crc32(name.encode()))
    found = []
    for number, case in enumerate({**CASES, **BEYOND}[name]()):
        form = FORMS[number % len(FORMS)]
        data, inputs, wanted = program_of(name, case, form, plain=False)
        given = [x.clone() for x in inputs]
        capfd.readouterr()
        try:
            got = run(data, inputs)
        except Exception as error:  # noqa: BLE001 - every case is to run; the text says what did not
            found.append(f"case {number} ({form}): {type(error).__name__} {error}")
            continue
        talk = capfd.readouterr()
        found += [f"case {number} ({form}) prints {line}" for line in (*talk,) if line]
        if len(got) != len(wanted):
            found.append(f"case {number} ({form}): {len(got)} outputs, not {len(wanted)}")
        for index, (result, want) in enumerate(zip(got, wanted, strict=False)):
            if name in UNDEFINED | RANDOM and result.shape == want.shape:
                want = result.to(want.dtype)
            problem = difference(result, want)
            if problem is not None:
                found.append(f"case {number} ({form}): output {index} {problem}")
        unchanged = zip(given, inputs, strict=True) if not signature(name).written else ()
        for before, after in unchanged:
            if difference(after, before, exact=True) is not None:
                found.append(f"case {number} ({form}): an input was changed")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", NUMBERS)
def test_number_agrees_with_python(name: str) -> None:
    oracle, cases = NUMBERS[name]
    found = []
    for case in cases():
        data, inputs = number_program(name, case)
        (got,) = run(data, inputs)
        want = oracle(*case.args)
        if type(got) is not type(want) or got != want:
            found.append(f"{case.args}: {got!r}, not {want!r}")
    assert not found, "\n".join(found)


def view_program(case: Case, *, planned: bool) -> bytes:
    """A view that a copy reads, as exporters leave one where its shape is not static."""
    x, size = case.args
    builder = ProgramBuilder()
    source = builder.tensor(x, role="input")
    want = x.reshape(size)
    view = builder.tensor(want, planned=False, dynamic=True)
    out = builder.tensor(want, role="output", planned=planned)
    builder.call(
        "executorch_prim::et_view.default", source, builder.numbers(size, kind="int"), view
    )
    builder.call("aten::mul.Scalar_out", view, builder.number(3), out, out)
    return builder.finish()


@pytest.mark.parametrize("planned", [True, False])
def test_et_view(planned: bool) -> None:
    for case in VIEWS["executorch_prim::et_view.default"]():
        (got,) = run(view_program(case, planned=planned), [case.args[0]])
        assert difference(got, case.args[0].reshape(case.args[1]) * 3) is None


def copy_index_program(case: Case) -> bytes:
    """Fill every entry up to the case's index, as a map does."""
    to, source, index = case.args
    builder = ProgramBuilder()
    x = builder.tensor(source, role="input")
    out = builder.tensor(to, role="output", dynamic=True)
    for i in range(index + 1):
        builder.call("executorch_prim::et_copy_index.tensor", out, x, builder.number(i))
    return builder.finish()


def test_et_copy_index() -> None:
    for case in VIEWS["executorch_prim::et_copy_index.tensor"]():
        _, source, index = case.args
        data = copy_index_program(case)
        with Runtime.get().load_program(data) as program:
            method = program.load_method("forward")
            for _ in range(2):  # the second run finds the tensor as long as the first left it
                (got,) = method.execute([source])
                want = torch.stack([source] * (index + 1))
                assert difference(got, want) is None
