"""Every operator of ExecuTorch's registry, in a program of one call: the executorch wheel.

This holds our oracle and our programs against the reference: where the wheel refuses or differs,
``support.wheel_differences`` names the case and says why.
"""

from __future__ import annotations

import zlib

import pytest
import torch

from support.operator_cases import CASES, NUMBERS
from support.operator_check import RANDOM, UNDEFINED, difference
from support.operator_programs import FORMS, number_program, program_of
from support.wheel_differences import ABORTS, DIFFERS, NUMBERS_DIFFER, REFUSES, named

runtime = pytest.importorskip("executorch.runtime", reason="no executorch wheel")


@pytest.mark.parametrize("name", CASES)
def test_wheel_agrees_with_eager(name: str) -> None:
    torch.manual_seed(zlib.crc32(name.encode()))
    aborts, refuses, differs = (named(table, name) for table in (ABORTS, REFUSES, DIFFERS))
    found = []
    for number, case in enumerate(CASES[name]()):
        if number in aborts:
            continue
        data, inputs, wanted = program_of(name, case, FORMS[number % len(FORMS)], plain=True)
        try:
            got = runtime.Runtime.get().load_program(data).load_method("forward").execute(inputs)
        except RuntimeError as error:
            if number not in refuses:
                found.append(f"case {number}: refused: {error}")
            continue
        if number in refuses:
            found.append(f"case {number}: was refused ({refuses[number]}), and runs now")
            continue
        if name in RANDOM | UNDEFINED:
            wanted = [result.to(want.dtype) for result, want in zip(got, wanted, strict=True)]
        problems = [difference(*pair) for pair in zip(got, wanted, strict=True)]
        problem = next((p for p in problems if p is not None), None)
        if problem is not None and number not in differs:
            found.append(f"case {number}: {problem}")
        if problem is None and number in differs:
            found.append(f"case {number}: differed ({differs[number]}), and agrees now")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", NUMBERS)
def test_wheel_agrees_with_python(name: str) -> None:
    oracle, cases = NUMBERS[name]
    problems, refused = [], named(REFUSES, name)
    for number, case in enumerate(cases()):
        if number in named(ABORTS, name):
            continue
        data, inputs = number_program(name, case)
        try:
            method = runtime.Runtime.get().load_program(data).load_method("forward")
            (got,) = method.execute(inputs)
        except RuntimeError as error:
            if number not in refused:
                problems.append(f"{case.args}: refused: {error}")
            continue
        want = oracle(*case.args)
        if type(got) is not type(want) or got != want:
            problems.append(f"{case.args}: {got!r}, not {want!r}")
    assert bool(problems) == (name in NUMBERS_DIFFER), "\n".join(problems)
