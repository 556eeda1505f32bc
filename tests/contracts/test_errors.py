"""DESIGN, X1 to X3: errors have ExecuTorch's codes, say what and where, and nothing is printed."""

from __future__ import annotations

import gc
import pickle
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from pteron import PteronError, Runtime, errors
from pteron.backends.interface import Backend, BackendInitContext, DelegateHandle
from pteron.errors import (
    BackendMissingError,
    DelegateInvalidCompatibilityError,
    DelegateInvalidHandleError,
    DelegateMemoryAllocationFailedError,
    InternalError,
    InvalidArgumentError,
    InvalidProgramError,
    MemoryAllocationFailedError,
    NotFoundError,
    OperatorMissingError,
)
from support import device_programs, plain_programs, state_programs
from support.demo_backend import DemoBackend
from support.device_programs import device_partitioner, pair
from support.programs import Files, Kept, edited, export, kept
from support.tagged_device import TaggedDevice

SOURCE = Path(errors.__file__).parent

CODES = {  # runtime/core/error.h
    "Internal": 0x01,
    "InvalidState": 0x02,
    "NotSupported": 0x10,
    "InvalidArgument": 0x12,
    "InvalidType": 0x13,
    "OperatorMissing": 0x14,
    "NotFound": 0x20,
    "MemoryAllocationFailed": 0x21,
    "AccessFailed": 0x22,
    "InvalidProgram": 0x23,
    "InvalidExternalData": 0x24,
    "OutOfResources": 0x25,
    "DelegateInvalidCompatibility": 0x30,
    "DelegateMemoryAllocationFailed": 0x31,
    "DelegateInvalidHandle": 0x32,
}


def opened(kept: Kept, **facts: Any) -> Any:
    return Runtime.get().load_program(kept.pte, **facts)


# ---- X1: the tree --------------------------------------------------------------------------------


def error_classes() -> list[type[PteronError]]:
    return [getattr(errors, name) for name in errors.__all__ if name != "PteronError"]


def test_codes_are_executorchs() -> None:
    for name, code in CODES.items():
        assert getattr(errors, f"{name}Error").code == code
    assert {cls.code for cls in error_classes()} == set(CODES.values())


def test_the_docstring_draws_the_tree() -> None:
    lines = re.findall(r"(\w+Error) +(0x\w\w)(?: +(\w+))?", errors.__doc__ or "")
    drawn = {name: (int(code, 16), python) for name, code, python in lines}
    assert set(drawn) == {cls.__name__ for cls in error_classes()}
    for cls in error_classes():
        code, python = drawn[cls.__name__]
        assert cls.code == code
        if python:
            assert python in {base.__name__ for base in cls.__mro__[1:]}


@pytest.mark.parametrize("cls", error_classes(), ids=lambda cls: cls.__name__)
def test_an_error_shows_message_context_and_hint_and_survives_pickling(
    cls: type[PteronError],
) -> None:
    error = cls("what was found", hint="the way out")
    error.add_context("where")
    text = "what was found\n  where\nhint: the way out"
    assert str(error) == text
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.code) == (cls, text, cls.code)


# ---- X2: what, where, and the way out ------------------------------------------------------------


def unknown_operators(program: Any) -> None:
    """Rename what the program calls to operators that nobody has."""
    for number, operator in enumerate(program.execution_plan[0].operators):
        operator.name = f"nobody::op{number}"


@kept
def two_unknown_operators() -> Files:
    return edited(export(device_programs.Scaled(), pair()), unknown_operators)


def test_all_missing_operators_are_named_together() -> None:
    program = opened(two_unknown_operators())
    with pytest.raises(OperatorMissingError) as caught:
        program.load_method()
    text = str(caught.value)
    names = [op.full_name for op in program._plan("forward").operators]
    assert len(names) >= 2
    for name in names:
        assert name in text
    assert f"method 'forward' calls {len(names)} operator(s) that no kernel implements" in text
    assert "hint: register a Python function for each with pteron.register_kernel" in text


def unknown_backend(program: Any) -> None:
    for delegate in program.execution_plan[0].delegates:
        delegate.id = "NobodysBackend"


@kept
def nobodys_delegate() -> Files:
    files = export(device_programs.Sum(), pair(), partitioner=[device_partitioner()])
    return edited(files, unknown_backend)


def test_a_missing_backend_is_named_with_its_calls(device: TaggedDevice) -> None:
    program = opened(nobodys_delegate())
    with pytest.raises(BackendMissingError) as caught:
        program.load_method()
    text = str(caught.value)
    assert "method 'forward' (1 delegate call) needs backend 'NobodysBackend'" in text
    assert "XnnpackBackend" in text  # what there is
    assert "hint: " in text
    assert device.requests == []


def test_a_failed_instruction_is_shown_with_its_neighbours_and_operands() -> None:
    method = opened(plain_programs.lookup()).load_method()
    for wrong in (4, -5, 144115196571280365):
        with pytest.raises(InvalidArgumentError) as caught:
            method.execute([torch.tensor([0, wrong, 1])])
        text = str(caught.value)
        assert "index out of range" in text
        assert "method 'forward', instruction 0 failed:" in text
        assert "> 0: aten::embedding.out(%0, %1" in text
        assert (
            f"%1 is input 0: int64[3], strides [1], values {min(wrong, 0)} to {max(wrong, 1)}"
            in text
        )
        assert isinstance(caught.value.__cause__, IndexError)
    expected = plain_programs.Lookup()(torch.tensor([3, 0, 1])).detach()
    torch.testing.assert_close(method.execute([torch.tensor([3, 0, 1])]), [expected])


def raising(error: BaseException) -> Callable[..., Any]:
    def kernel(self: Any, other: Any, alpha: Any, *, out: Any) -> Any:
        raise error

    return kernel


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (RuntimeError("kernel\nsecond line"), InvalidArgumentError, "kernel"),
        (ValueError(), InvalidArgumentError, "ValueError()"),
        (ZeroDivisionError("by zero"), InvalidArgumentError, "by zero"),
        (MemoryError("no room"), MemoryAllocationFailedError, "no room"),
        (torch.OutOfMemoryError("no room there"), MemoryAllocationFailedError, "no room there"),
        (OSError("odd"), InternalError, "OSError: odd"),
        (NotFoundError("own words", hint="own hint"), NotFoundError, "own words"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_what_a_kernel_raises_comes_out_as_a_pteron_error(
    raised: Exception, kind: type[PteronError], text: str
) -> None:
    program = opened(device_programs.host_sum(), kernels={"aten::add.out": raising(raised)})
    method = program.load_method()
    with pytest.raises(kind) as caught:
        method.execute(pair())
    assert str(caught.value).startswith(text + "\n  method 'forward', instruction 0 failed:")
    assert "second line" not in str(caught.value)
    if isinstance(raised, PteronError):
        assert caught.value is raised
        assert caught.value.__cause__ is None
        assert str(caught.value).endswith("\nhint: own hint")
    else:
        assert caught.value.__cause__ is raised


def test_an_interrupt_is_not_an_error_of_a_kernel() -> None:
    interrupt = raising(KeyboardInterrupt())
    method = opened(device_programs.host_sum(), kernels={"aten::add.out": interrupt}).load_method()
    with pytest.raises(KeyboardInterrupt):
        method.execute(pair())


def failing(self: Any, other: Any, alpha: Any, *, out: Any) -> Any:
    raise RuntimeError("fresh")


def failing_in_our_words(self: Any, other: Any, alpha: Any, *, out: Any) -> Any:
    raise NotFoundError("fresh")


@pytest.mark.parametrize("kernel", [failing, failing_in_our_words])
def test_a_failed_call_keeps_nothing_alive(kernel: Callable[..., Any]) -> None:
    """No cycle of error, traceback and method: memory goes back without the collector."""
    method = opened(device_programs.host_sum(), kernels={"aten::add.out": kernel}).load_method()
    alive = weakref.ref(method)
    gc.collect()
    gc.disable()
    try:
        try:
            method.execute(pair())
        except PteronError as error:
            assert "fresh" in str(error)  # noqa: PT017
        del method
        assert alive() is None
    finally:
        gc.enable()


def other_version(program: Any) -> None:
    for blob in program.backend_delegate_data:
        blob.data = blob.data.replace(b"version:0#", b"version:7#")


@kept
def delegate_of_version_seven() -> Files:
    files = export(
        device_programs.Sum(),
        pair(),
        partitioner=[device_partitioner()],
        extract_delegate_segments=False,
    )
    return edited(files, other_version)


def test_a_delegate_of_another_version_is_refused(device: TaggedDevice, demo: DemoBackend) -> None:
    program = opened(delegate_of_version_seven())
    with pytest.raises(DelegateInvalidCompatibilityError) as caught:
        program.load_method()
    text = str(caught.value)
    assert "the demo backend reads version 0, the blob has version 7" in text
    assert "method 'forward', delegate 0 (BackendWithCompilerDemo)" in text
    del caught
    gc.collect()
    assert device.live == []


def test_a_closed_delegate_is_refused_where_it_is_called(
    device: TaggedDevice, demo: DemoBackend
) -> None:
    method = opened(device_programs.device_sum()).load_method()
    demo.handles[0].close()
    with pytest.raises(DelegateInvalidHandleError) as caught:
        method.execute(pair())
    assert "the demo delegate is closed" in str(caught.value)
    assert "instruction 2 failed:" in str(caught.value)
    assert "delegate 0 'BackendWithCompilerDemo'" in str(caught.value)


class TwoDelegates(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ((a + b) * 3).exp() + b


@kept
def two_delegates() -> Files:
    return export(TwoDelegates(), pair(), partitioner=[device_partitioner()])


class SecondFails(Backend):
    """Makes one handle, and raises when it is asked for another."""

    id: ClassVar[str] = "BackendWithCompilerDemo"

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.handles: list[PlainHandle] = []

    def init(self, context: BackendInitContext) -> DelegateHandle:
        if self.handles:
            raise self.error
        self.handles.append(PlainHandle())
        return self.handles[0]


class PlainHandle(DelegateHandle):
    closed = False

    def bind(self, args: Sequence[Any]) -> Callable[[], None]:
        raise AssertionError

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    "error", [DelegateMemoryAllocationFailedError("no room for weights"), RuntimeError("odd")]
)
def test_a_failed_load_closes_what_it_had_begun(error: Exception, device: TaggedDevice) -> None:
    backend = SecondFails(error)
    program = opened(two_delegates(), backends={backend.id: backend})
    with pytest.raises(PteronError) as caught:
        program.load_method()
    assert [handle.closed for handle in backend.handles] == [True]
    assert str(error) in str(caught.value)
    assert "method 'forward', delegate 1" in str(caught.value)
    error.with_traceback(None)
    del caught
    gc.collect()
    assert device.live == []


def test_a_method_that_is_not_there_is_named_with_those_that_are() -> None:
    program = opened(state_programs.not_shared())
    text = "the program has no method 'main'; it has: big, forward, other"
    for ask in (program.load_method, program.new_method, program.metadata):
        with pytest.raises(NotFoundError, match=re.escape(text)):
            ask("main")


def test_violations_are_collected(device: TaggedDevice) -> None:
    with pytest.raises(InvalidProgramError) as caught:
        opened(device_programs.contradicting_tags())
    assert len(caught.value.violations) == 3
    assert caught.value.code == 0x23


# ---- X3: nothing is printed ----------------------------------------------------------------------

SCRIPT = """
import sys
import torch
from pteron import Module, PteronError, Runtime
for path in sys.argv[1:]:
    try:
        program = Runtime.get().load_program(path)
        for name in sorted(program.method_names):
            method = program.load_method(name)
            repr(method.metadata), repr(method)
            meta = program.metadata(name)
            shapes = [meta.input_tensor_meta(i).sizes() for i in range(meta.num_inputs())]
            inputs = [torch.ones(shape) for shape in shapes]
            for _ in range(3):
                method.execute(inputs)
            method.execute([None])
    except (PteronError, ValueError):
        pass
"""


def test_nothing_is_printed() -> None:
    """Issues 3515, 3425: not a word on stdout or stderr, also when calls fail."""
    makers = (
        plain_programs.doubled,
        plain_programs.doubled_unplanned,
        plain_programs.both,
        state_programs.counter,
        state_programs.shared_by_plan,
        device_programs.host_and_device,
        device_programs.tags_without_plan,
        device_programs.contradicting_tags,
        two_unknown_operators,
        nobodys_delegate,
    )
    paths = [str(make().pte) for make in makers]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, *paths, "no/such/file.pte"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_there_is_one_logger() -> None:
    names = {
        match
        for path in SOURCE.rglob("*.py")
        for match in re.findall(r"getLogger\((.*?)\)", path.read_text(encoding="utf-8"))
    }
    assert names == {'"pteron"'}
