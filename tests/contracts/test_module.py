"""Module: arguments and results nested as the exported model had them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from pteron import Module
from pteron.errors import InvalidArgumentError, InvalidStateError, NotFoundError, PteronError
from support import plain_programs, state_programs
from support.programs import Files, edited, export, kept

X, Y = torch.arange(3.0), torch.full((3,), 10.0)


class Nested(nn.Module):
    def forward(
        self, pair: dict[str, Any], items: list[Any], *, scale: torch.Tensor, last: Any = None
    ) -> dict[str, Any]:
        total = pair["a"] + pair["b"] * scale
        return {
            "total": total,
            "parts": (items[0] * 2, [items[1][0] - 1]),
            "none": last,
            "count": 3,
        }


ARGS = ({"a": X, "b": Y}, [X, (Y,)])
KWARGS = {"scale": torch.tensor(2.0), "last": None}
TAKEN = "2 positional arguments and the keyword arguments scale, last"


def forget_containers(program: Any) -> None:
    """Drop the pytree specs, which a file need not have."""
    meta = program.execution_plan[0].container_meta_type
    meta.encoded_inp_str = meta.encoded_out_str = ""


def garble_containers(program: Any) -> None:
    meta = program.execution_plan[0].container_meta_type
    meta.encoded_inp_str = meta.encoded_out_str = '[1, {"type": "no.such.Class"'


@kept
def nested() -> Files:
    return export(Nested(), ARGS, kwargs=KWARGS)


@kept
def without_containers() -> Files:
    return edited(export(plain_programs.Both(), (X, Y)), forget_containers)


@kept
def with_garbled_containers() -> Files:
    return edited(export(plain_programs.Both(), (X, Y)), garble_containers)


def assert_nested(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(got, expected)
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        assert_nested(list(got.values()), list(expected.values()))
    elif isinstance(expected, (list, tuple)):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_nested(one, other)
    else:
        assert got == expected


def test_results_are_nested_as_the_model_returned_them() -> None:
    module = Module(nested().pte)
    for _ in range(2):
        assert_nested(module(*ARGS, **KWARGS), Nested()(*ARGS, **KWARGS))


def test_one_tensor_in_and_out() -> None:
    module = Module(plain_programs.doubled().pte)
    torch.testing.assert_close(module(torch.ones(2, 3)), torch.full((2, 3), 2.0))


def test_keyword_arguments_may_come_in_any_order() -> None:
    swapped = {"last": None, "scale": KWARGS["scale"]}
    assert_nested(Module(nested().pte)(*ARGS, **swapped), Nested()(*ARGS, **KWARGS))


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        (ARGS, {}, f"takes {TAKEN}; scale, last are missing"),
        (ARGS, {"scale": X}, f"takes {TAKEN}; last is missing"),
        (ARGS, {**KWARGS, "more": X}, f"has no keyword argument 'more'; it takes {TAKEN}"),
        (ARGS, {"scal": X}, "has no keyword argument 'scal' (did you mean scale?)"),
        (({"a": X}, ARGS[1]), KWARGS, "argument 0 has the form {'a': *, 'b': *}, got {'a': *}"),
        ((ARGS[0], [X, Y]), KWARGS, "argument 1 has the form [*, (*,)], got [*, *]"),
        ((*ARGS, X), KWARGS, f"takes {TAKEN}; got 3 positional arguments"),
        ((), {}, f"takes {TAKEN}; got no positional arguments"),
    ],
)
def test_arguments_of_another_structure_are_refused(
    args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    with pytest.raises(PteronError) as caught:
        Module(nested().pte)(*args, **kwargs)
    assert f"method 'forward'{':' if words.startswith('argument') else ''} {words}" in str(
        caught.value
    )


def test_a_wrong_leaf_is_refused_as_by_the_method() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"input 1 \(\[0\].b\) takes float32\[3\], got int64\[3\]"
    ):
        Module(nested().pte)({"a": X, "b": Y.long()}, ARGS[1], **KWARGS)


@pytest.mark.parametrize("make", [without_containers, with_garbled_containers])
def test_a_file_without_structure_takes_a_row_and_gives_a_list(make: Any) -> None:
    module = Module(make().pte)
    assert_nested(module(X, Y), [X - Y])
    assert_nested(module(input_1=Y, input_0=X), [X - Y])
    with pytest.raises(NotFoundError, match="has no input 'y'; its inputs are input_0: float32"):
        module(X, y=Y)


def test_methods_are_attributes() -> None:
    module = Module(state_programs.shared_by_plan().pte)
    assert module.method_names == {"forward", "set_state", "zero", "get"}
    ones = torch.ones(4)
    torch.testing.assert_close(module(ones), ones * 8)
    torch.testing.assert_close(module.get(), ones * 4)
    module.set_state(ones * 2)
    torch.testing.assert_close(module.run_method("get"), ones * 2)
    module.reset()
    torch.testing.assert_close(module.get(), ones * 3)


def test_names_that_are_not_there() -> None:
    module = Module(plain_programs.doubled().pte)
    with pytest.raises(AttributeError, match="Module has no attribute or method 'encode'"):
        module.encode  # noqa: B018
    text = "the program has no method 'encode'; it has: forward"
    with pytest.raises(NotFoundError, match=re.escape(text)):
        module.run_method("encode")


def test_a_closed_module_says_so() -> None:
    with Module(plain_programs.doubled().pte) as module:
        assert "doubled" in repr(module)
    with pytest.raises(InvalidStateError, match="the program is closed"):
        module(torch.ones(2, 3))
