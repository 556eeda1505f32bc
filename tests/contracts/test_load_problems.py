"""A method that lacks several things is refused once, with all of them (DESIGN, X2)."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("executorch.exir", reason="executorch's own tables write the programs")

from pteron import Program, PteronError, Runtime
from pteron.backends import readers, registry
from pteron.backends.blob_reader import BlobReader, DelegateBlob
from pteron.errors import (
    BackendMissingError,
    DeviceMissingError,
    InvalidExternalDataError,
    NotFoundError,
    OperatorMissingError,
)
from support.commands import cli
from support.plans import (
    ScalarType,
    deserialize_pte_binary,
    ex,
    kernel,
    layout,
    plan,
    program,
    tensor,
    write,
    write_ptd,
)
from support.tagged_device import TaggedDevice

DEVICE, BACKEND, OPERATOR, DATA = "device", "backend", "operator", "data"
ORDER = (DEVICE, BACKEND, OPERATOR, DATA)
CLASSES: dict[str, type[PteronError]] = {
    DEVICE: DeviceMissingError,
    BACKEND: BackendMissingError,
    OPERATOR: OperatorMissingError,
    DATA: NotFoundError,
}
MESSAGES = {
    DEVICE: "method 'forward': planned buffer 2 (64 bytes on device cuda:0): "
    "this machine has no cuda:0",
    BACKEND: "method 'forward' (1 delegate call) needs backend 'NobodysBackend'",
    OPERATOR: "method 'forward' calls 1 operator(s) that no kernel implements: nobody::op.out",
    DATA: "no data is called 'weight' in program.pte",
}


def external(name: str, *sizes: int) -> Any:
    return tensor(*sizes, fully_qualified_name=name, location=ex.TensorDataLocation.EXTERNAL)


def lacking(what: Sequence[str], *, weights: Sequence[str] = ("weight",)) -> bytes:
    """Return a program of one method that lacks these things, and has the others."""
    values = [
        tensor(2, at=0),
        tensor(2, at=16),
        ex.Int(1),
        tensor(2, at=0, buffer=2, device_type=ex.DeviceType(int(DEVICE in what)), device_index=0),
    ]
    steps = [kernel(0, 0, 0, 2, 1, 1)]
    if BACKEND in what:
        steps.append(ex.DelegateCall(0, [0, 1]))
    if OPERATOR in what:
        steps.append(kernel(1, 0, 1, 1))
    if DATA in what:
        for name in weights:
            steps.append(kernel(0, 0, len(values), 2, 1, 1))
            values.append(external(name, 2))
    place = ex.BackendDelegateDataReference(ex.DataLocation.INLINE, 0)
    method = plan(
        values,
        steps,
        inputs=[0],
        outputs=[1],
        operators=["aten::add.out", "nobody::op.out"],
        buffers=[0, 32, 64],
        delegates=[ex.BackendDelegate("NobodysBackend", place, [])],
    )
    if DEVICE in what:
        method.non_const_buffer_device = [ex.NonConstBufferDevice(2, ex.DeviceType.CUDA, 0)]
    return write(program(method, delegate_data=[b"a blob"]))


@pytest.fixture
def opened(tmp_path: Any, no_device: TaggedDevice, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that opens a program, on a machine without devices."""
    monkeypatch.setattr(registry, "default_backends", registry.BackendRegistry())

    def open_(data: bytes, *ptds: bytes) -> Program:
        path = tmp_path / "program.pte"
        path.write_bytes(data)
        monkeypatch.chdir(tmp_path)
        return Runtime.get().load_program("program.pte", data_path=list(ptds))

    return open_


def refusal(opened: Program) -> PteronError:
    with pytest.raises(PteronError) as caught:
        opened.load_method()
    return caught.value


def test_a_method_that_lacks_nothing_loads(opened: Any) -> None:
    opened(lacking(())).load_method()


@pytest.mark.parametrize("what", ORDER)
def test_one_problem_is_raised_as_it_is(opened: Any, what: str) -> None:
    error = refusal(opened(lacking([what])))
    assert type(error) is CLASSES[what]
    assert error.message.startswith(MESSAGES[what])
    assert error.hint
    assert error.context == ["while loading method 'forward' of program.pte"]
    assert error.problems == ()


@pytest.mark.parametrize(
    "what", [ORDER[at:] for at in range(3)] + [(DEVICE, DATA), (DEVICE, BACKEND), (OPERATOR, DATA)]
)
def test_several_problems_are_raised_together(
    opened: Any, what: tuple[str, ...], no_device: TaggedDevice
) -> None:
    error = refusal(opened(lacking(what)))
    assert type(error) is CLASSES[what[0]]
    assert error.code == CLASSES[what[0]].code
    lines = str(error).splitlines()
    assert lines[0] == f"method 'forward' cannot be loaded, for {len(what)} reasons:"
    for number, name in enumerate(what, 1):
        assert lines[number].startswith(f"  {number}. {MESSAGES[name]}")
    assert lines[len(what) + 1] == "  while loading method 'forward' of program.pte"
    assert [type(problem) for problem in error.problems] == [CLASSES[name] for name in what]
    assert all(str(problem.hint) in str(error.hint) for problem in error.problems)
    assert str(error.hint).startswith("(1) ")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert no_device.requests == []


def test_all_missing_keys_are_one_problem(opened: Any) -> None:
    names = [f"weight.{number}" for number in range(23)]
    error = refusal(opened(lacking([DATA], weights=names)))
    assert isinstance(error, NotFoundError)
    shown = ", ".join(map(repr, names[:20]))
    assert error.message == f"no data is called {shown} and 3 more in program.pte"
    assert str(error.hint).endswith("give its .ptd file as data_path")


def test_data_of_delegates_is_listed_if_something_else_is_missing_too(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reader(BlobReader):
        def keys(self, blob: DelegateBlob) -> list[str]:
            if bytes(blob.data) != b"a blob":
                raise ValueError(blob.data)
            return ["of the delegate"]

    monkeypatch.setitem(readers._readers, "NobodysBackend", Reader())
    missing = refusal(opened(lacking((BACKEND, DATA)))).problems[1]
    assert missing.message == "no data is called 'weight', 'of the delegate' in program.pte"


def test_data_that_does_not_fit_is_listed_beside_data_that_is_missing(opened: Any) -> None:
    data = write_ptd(
        {
            "short": (bytes(4), layout(ScalarType.FLOAT, 1)),
            "other": (bytes(8), layout(ScalarType.INT, 2)),
            "right": (bytes(8), layout(ScalarType.FLOAT, 2)),
        }
    )
    file = lacking([DATA], weights=["short", "lost", "right", "other", "gone", "other"])
    missing, short, other = refusal(opened(file, data)).problems
    assert "'lost', 'gone'" in missing.message
    assert isinstance(short, InvalidExternalDataError)
    assert short.message.startswith("'short' in ")
    assert other.message.startswith("'other' in ")


def test_a_refused_method_leaves_the_others_loadable(opened: Any) -> None:
    bad, good = (deserialize_pte_binary(lacking(what)).program for what in (ORDER, ()))
    good.execution_plan[0].name = "good"
    bad.execution_plan += good.execution_plan
    both = opened(write(bad))
    assert len(refusal(both).problems) == 4
    both.load_method("good")


def test_the_command_shows_all_problems_and_its_own_options(opened: Any, tmp_path: Any) -> None:
    opened(lacking(ORDER))
    done = cli("run", tmp_path / "program.pte", "--random", "0")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: method 'forward' cannot be loaded, for 4 reasons:\n  1. ")
    assert "hint: (1) " in done.err
    assert "--device-map cuda=cpu" in done.err
    assert "give its .ptd file with --data" in done.err
