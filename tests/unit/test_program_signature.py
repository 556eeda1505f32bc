"""Names of inputs and outputs, where a file's own are missing, doubled or odd."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from pteron.errors import NotFoundError
from pteron.format.schema import Int
from pteron.program.signature import ValueFacts, describe_inputs, find, nearest


def leaf() -> dict[str, Any]:
    return {"type": None, "context": None, "children_spec": []}


def spec(args: int, kwargs: list[str]) -> str:
    """Return the pytree spec of a call with so many positional arguments, and these names."""
    positional = {"type": "builtins.tuple", "context": "null", "children_spec": [leaf()] * args}
    named = {
        "type": "builtins.dict",
        "context": json.dumps(kwargs),
        "children_spec": [leaf() for _ in kwargs],
    }
    root = {"type": "builtins.tuple", "context": "null", "children_spec": [positional, named]}
    return json.dumps([1, root])


def inputs_of(args: int, kwargs: list[str]) -> tuple[ValueFacts, ...]:
    number = args + len(kwargs)
    plan: Any = SimpleNamespace(
        values=[Int(0)] * number,
        inputs=tuple(range(number)),
        non_const_buffer_device=(),
        container_meta_type=SimpleNamespace(encoded_inp_str=spec(args, kwargs)),
    )
    return describe_inputs(plan, ValueFacts)


@pytest.mark.parametrize(
    ("args", "kwargs", "names"),
    [
        (2, [], ["input_0", "input_1"]),
        (1, ["mask"], ["input_0", "mask"]),
        (1, ["input_0"], ["[0]", "input_0"]),  # the stand-in gives way to a name in the file
        (0, ["a", "a"], ["input_0", "input_1"]),  # a name that two have is nobody's
        (0, ["7", "x y"], ["7", "x y"]),
        (0, ["", "b"], ["input_0", "b"]),
    ],
)
def test_each_input_has_one_name_of_its_own(args: int, kwargs: list[str], names: list[str]) -> None:
    found = inputs_of(args, kwargs)
    assert [value.name for value in found] == names
    assert len(set(names)) == len(names)
    for position, name in enumerate(names):
        assert find(found, name, "method 'forward'").position == position
        assert find(found, position, "method 'forward'").name == name


def test_a_stranger_is_refused_with_the_nearest_name() -> None:
    found = inputs_of(0, ["image", "temperature"])
    for name, near in (("imgae", "image"), ("Temp", "temperature")):
        with pytest.raises(NotFoundError, match=f"no input '{name}' .did you mean {near}?"):
            find(found, name, "method 'forward'")
    for other in (2, -1, True, "zzz"):
        with pytest.raises(NotFoundError, match="its inputs are image: int 0, temperature: int 0"):
            find(found, other, "method 'forward'")
    assert nearest("zzz", ["image"]) is None
