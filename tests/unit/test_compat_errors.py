"""Errors on their way to another process, and classes of errors on the binding surface."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pteron import errors
from pteron.compat import portable_lib as lib
from pteron.compat.errors import ExecuTorchError
from pteron.errors import InvalidProgramError, PteronError
from pteron.executor.inputs import NotSupportedShapeError
from pteron.program.method_meta import MetadataIndexError

DIGITS = Path(__file__).parents[2] / "demo" / "digits.pte"
X = torch.zeros(1, 1, 8, 8)

KINDS = [*(getattr(errors, name) for name in errors.__all__), MetadataIndexError]
KINDS.append(NotSupportedShapeError)


def copies(error: BaseException) -> list[BaseException]:
    return [pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_pickling(kind: type[PteronError]) -> None:
    error = kind("what was found", hint="the way out")
    error.add_context("where it was")
    for twin in copies(error):
        assert type(twin) is kind
        assert str(twin) == str(error) == "what was found\n  where it was\nhint: the way out"
        assert vars(twin) == vars(error)


def test_violations_survive_pickling() -> None:
    (twin, *_) = copies(InvalidProgramError("two", violations=("one", "another")))
    assert isinstance(twin, InvalidProgramError)
    assert twin.violations == ("one", "another")


def test_an_error_of_the_bindings_survives_pickling() -> None:
    with pytest.raises(ExecuTorchError) as caught:
        lib._load_program("/no/such.pte")
    for twin in copies(caught.value):
        assert isinstance(twin, ExecuTorchError)
        assert (str(twin), twin.code) == (str(caught.value), 0x22)


@pytest.mark.parametrize("given", [None, 3, {}, {"x": X}, {1, 2}, iter([X])])
def test_inputs_that_are_no_sequence_are_a_type_error(given: Any) -> None:
    method = lib._load_program(str(DIGITS)).load_method("forward")
    for call in (lib._load_for_executorch(str(DIGITS)).forward, method):
        with pytest.raises(TypeError, match="are a list or tuple, got"):
            call(given)
    assert len(method((X,))) == 1


def test_a_string_is_no_list_of_inputs() -> None:
    with pytest.raises(RuntimeError, match="The inputs for method forward are a str"):
        lib._load_for_executorch(str(DIGITS)).forward("x")


@pytest.mark.parametrize(
    "call",
    [
        lambda: lib._load_for_executorch(str(DIGITS)).run_method(3, []),
        lambda: lib._load_for_executorch(str(DIGITS)).method_meta(3),
        lambda: lib._load_program(str(DIGITS)).load_method(None),
        lambda: lib._load_program(str(DIGITS)).method_meta(None),
    ],
)
def test_a_name_that_is_no_string_is_a_type_error(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match="the name of a method is a str, got"):
        call()


def test_an_attribute_that_is_not_there_is_not_found() -> None:
    method = lib._load_program(str(DIGITS)).load_method("forward")
    with pytest.raises(ExecuTorchError, match="error: 0x:20") as caught:
        method.get_attribute("nothing")
    assert caught.value.code == 0x20


def test_levels_of_verification_are_numbers() -> None:
    assert [int(level) for level in lib.Verification] == [0, 1]
