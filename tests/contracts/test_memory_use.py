"""What a caller gives and takes is intact when it is used, or the call says what overwrote it."""

from __future__ import annotations

import itertools
import os
import threading
from typing import Any

import numpy as np
import pytest
import torch

from pteron import Program, Runtime
from pteron.errors import InvalidStateError, PteronError
from support.one_op import ProgramBuilder
from support.programs import Files, export, kept


class Encoder(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.relu(x), torch.tanh(x), x * 3


class Decoder(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return a - 2 * b + 5 * c


X = torch.arange(64.0).reshape(8, 8) / 16 - 2


@kept
def encoder_and_decoder() -> Files:
    """Two methods that share scratch memory."""
    return export(
        {"encode": Encoder(), "decode": Decoder()},
        {"encode": (X,), "decode": (X, X + 1, X + 2)},
    )


@pytest.fixture
def program() -> Program:
    return Runtime.get().load_program(encoder_and_decoder().pte)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("kind", ["tensor", "array", "view"])
def test_borrowed_outputs_are_inputs_of_another_method(
    program: Program, order: tuple[int, ...], kind: str
) -> None:
    outputs = program.load_method("encode").execute([X], borrow_outputs=True)
    given: list[Any] = [outputs[i] for i in order]
    want = Decoder()(*[tensor.clone() for tensor in given])
    if kind == "array":
        given = [tensor.numpy() for tensor in given]
    if kind == "view":
        given = [tensor.t().t() for tensor in given]
    (got,) = program.load_method("decode").execute(given)
    torch.testing.assert_close(got, want)


def test_inputs_that_another_method_overwrote_are_not_run_on(program: Program) -> None:
    encode, decode = program.load_method("encode"), program.load_method("decode")
    encode.set_inputs([X])
    decode.execute([X, X, X])
    with pytest.raises(InvalidStateError, match="overwritten by method 'decode'"):
        encode.run()
    torch.testing.assert_close(encode.execute([X]), list(Encoder()(X)))


def test_outputs_that_another_method_overwrote_are_not_given(program: Program) -> None:
    encode, decode = program.load_method("encode"), program.load_method("decode")
    encode.set_inputs([X])
    encode.run()
    torch.testing.assert_close(encode.get_outputs(), list(Encoder()(X)))
    decode.execute([X, X, X])
    with pytest.raises(InvalidStateError, match="outputs have been overwritten by method"):
        encode.get_outputs()


def reusing(*, reuse: bool) -> bytes:
    """Return ``exp(relu(x))``, where the result of ``exp`` may take the place of ``x``."""
    builder = ProgramBuilder()
    x = builder.tensor(torch.ones(4), role="input")
    y = builder.tensor(torch.ones(4))
    z = builder.tensor(torch.ones(4), role="output")
    if reuse:
        first = builder.values[x].val.allocation_info
        builder.values[z].val.allocation_info.memory_offset_low = first.memory_offset_low
    builder.call("aten::relu.out", x, y, y)
    builder.call("aten::exp.out", y, z, z)
    return builder.finish()


def test_a_second_run_on_the_same_inputs() -> None:
    ones = torch.ones(4)
    method = Runtime.get().load_program(reusing(reuse=False)).load_method()
    method.set_inputs([ones])
    for _ in range(2):
        method.run()
        torch.testing.assert_close(method.get_outputs(), [ones.exp()])
    method = Runtime.get().load_program(reusing(reuse=True)).load_method()
    method.set_inputs([ones])
    method.run()
    with pytest.raises(InvalidStateError, match="the last run has overwritten its inputs"):
        method.run()
    torch.testing.assert_close(method.get_outputs(), [ones.exp()])


class CallsInside:
    """An observer that runs another method after each instruction."""

    def __init__(self, method: Any) -> None:
        self.method = method

    def before(self, instruction: int) -> None:
        pass

    def after(self, instruction: int) -> None:
        self.method.execute([torch.ones(8, 8)] * 3)


def test_a_run_inside_a_run_is_refused_unless_it_has_memory_of_its_own(program: Program) -> None:
    encode = program.load_method("encode")
    with pytest.raises(InvalidStateError, match="called inside a run of method 'encode'"):
        encode.execute([X], observer=CallsInside(program.load_method("decode")))
    apart = CallsInside(program.new_method("decode"))
    torch.testing.assert_close(encode.execute([X], observer=apart), list(Encoder()(X)))


def test_a_borrowed_constant_is_a_copy() -> None:
    builder = ProgramBuilder()
    weight = builder.tensor(torch.ones(2, 3), role="constant")
    turned = builder.tensor(torch.ones(3, 2), role="output")
    dims = builder.numbers([1, 0], kind="int")
    builder.call("aten::permute_copy.out", weight, dims, turned, turned)
    builder.outputs.append(weight)
    data = builder.finish()
    before = bytes(data)
    method = Runtime.get().load_program(data).load_method()
    for output in method.execute([], borrow_outputs=True):
        output.fill_(7)
    assert data == before
    for output in method.execute([]):
        assert output.unique().tolist() == [1]


def test_a_program_is_closed_while_another_thread_has_a_turn(program: Program) -> None:
    method = program.load_method("encode")
    inside, go_on = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        with method.turn():
            inside.set()
            go_on.wait(5)
            try:
                program.load_method("decode")
            except InvalidStateError as error:
                errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    inside.wait(5)
    closer = threading.Thread(target=program.close)
    closer.start()
    closer.join(0.2)
    go_on.set()
    for thread in (worker, closer):
        thread.join(5)
        assert not thread.is_alive()
    assert program.closed
    assert [str(error) for error in errors] == ["the program is closed"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_a_thread_that_it_lacks(program: Program) -> None:
    method = program.load_method("encode")
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with method.turn():
            held.set()
            done.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(5)
    child = os.fork()
    if child == 0:
        right = torch.equal(method.execute([X])[0], torch.relu(X))
        os._exit(0 if right else 1)
    done.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("given", [np.float32(1), object(), "x", 3, None, {}, [1.0], np.ones(2)])
def test_wrong_inputs_are_refused_in_words(program: Program, given: Any) -> None:
    with pytest.raises(PteronError):
        program.load_method("encode").execute([given])
