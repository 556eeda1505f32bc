"""Copies and constants that are left out at load change no number, and are really left out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pteron import Runtime
from pteron.executor.method import Method
from support.one_op import ProgramBuilder
from support.portable_fixtures import NAMES, open_portable


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Bind every instruction, as the file has it."""
    monkeypatch.setenv("PTERON_OPTIMIZE", "0")
    return monkeypatch


def seeded_inputs(method: Method) -> list[Any]:
    torch.manual_seed(0)
    inputs: list[Any] = []
    for index in method._table.plan.inputs:
        value = method._table.values[index]
        if isinstance(value, torch.Tensor):
            tensor = method._table.plan.values[index]
            dtype = getattr(torch, tensor.scalar_type.torch_name)
            drawn = torch.randn(tensor.sizes) if dtype.is_floating_point else None
            inputs.append(
                torch.randint(0, 2, tensor.sizes).to(dtype) if drawn is None else drawn.to(dtype)
            )
        else:
            inputs.append(value)
    return inputs


def results(name: str) -> tuple[dict[str, list[Any]], int]:
    found, left_out = {}, 0
    with open_portable(name) as program:
        for method_name in sorted(program.method_names):
            method = program.load_method(method_name)
            inputs = seeded_inputs(method)
            found[method_name] = [method.execute(inputs) for _ in range(2)]
            left_out += len(method.left_out)
    return found, left_out


@pytest.mark.parametrize("name", NAMES)
def test_what_is_left_out_changes_nothing(name: str, plainly: pytest.MonkeyPatch) -> None:
    plain, nothing = results(name)
    plainly.undo()
    shortened, _ = results(name)
    assert nothing == 0
    torch.testing.assert_close(shortened, plain, rtol=1e-4, atol=1e-5, equal_nan=True)
    for method_name, runs in plain.items():
        for ours, theirs in zip(shortened[method_name][0], runs[0], strict=True):
            if isinstance(ours, torch.Tensor):
                assert ours.stride() == theirs.stride()


def test_most_copies_of_an_attention_block_are_left_out() -> None:
    assert results("bert")[1] >= 60


def permuted(*, between: str = "", output: bool = False) -> bytes:
    """``relu(x)`` is transposed and read again after something happened to its slot."""
    builder = ProgramBuilder()
    x = builder.tensor(torch.ones(3, 4), role="input")
    y = builder.tensor(torch.ones(3, 4))
    copy = builder.tensor(torch.ones(4, 3), role="output" if output else "")
    out = builder.tensor(torch.ones(4, 3), role="output")
    other = builder.tensor(torch.ones(3, 4))
    dims = builder.numbers([1, 0], kind="int")
    builder.call("aten::relu.out", x, y, y)
    builder.call("aten::permute_copy.out", y, dims, copy, copy)
    slots = [builder.values[i].val.allocation_info for i in (y, copy, other)]
    if between == "source":  # something else is written where y was
        slots[2].memory_offset_low = slots[0].memory_offset_low
    if between:
        builder.call("aten::neg.out", x, other, other)
    builder.call("aten::exp.out", copy, out, out)
    return builder.finish()


X = torch.arange(12.0).reshape(3, 4) / 10


def test_a_copy_stays_a_view_where_nothing_is_written() -> None:
    method = Runtime.get().load_program(permuted()).load_method("forward")
    assert 1 in method.left_out
    torch.testing.assert_close(method.execute([X])[0], X.t().exp())


def test_the_source_moves_to_the_copy_where_its_place_is_taken() -> None:
    method = Runtime.get().load_program(permuted(between="source")).load_method("forward")
    assert 1 in method.left_out
    values, plan = method.values, method._table.plan
    source, copy = plan.instructions[1].args[0], plan.instructions[1].args[-1]
    assert values[source].data_ptr() == values[copy].data_ptr()
    for _ in range(2):
        torch.testing.assert_close(method.execute([X])[0], X.t().exp())


def test_an_output_is_no_view() -> None:
    method = Runtime.get().load_program(permuted(output=True)).load_method("forward")
    assert 1 not in method.left_out
    first, _ = method.execute([X])
    assert first.stride() == (3, 1)
    torch.testing.assert_close(first, X.t())


def test_a_view_of_state_does_not_see_what_is_written_later() -> None:
    builder = ProgramBuilder()
    x = builder.tensor(torch.ones(3, 4), role="input")
    state = builder.tensor(torch.ones(3, 4))
    copy = builder.tensor(torch.ones(4, 3))
    out = builder.tensor(torch.ones(4, 3), role="output")
    builder.call("aten::permute_copy.out", state, builder.numbers([1, 0], kind="int"), copy, copy)
    builder.call("aten::copy_", state, x, builder.number(False), state)
    builder.call("aten::neg.out", copy, out, out)
    method = Runtime.get().load_program(builder.finish()).load_method("forward")
    assert method.state
    torch.testing.assert_close(method.execute([X])[0], torch.zeros(4, 3))
    torch.testing.assert_close(method.execute([X + 1])[0], -X.t())
    torch.testing.assert_close(method.execute([X])[0], -(X + 1).t())
