"""What a program's own backends may be, and what becomes of an error inside one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import torch

from pteron import PteronError, Runtime
from pteron.backends.bridge_program import DelegateProgram, write_program
from pteron.backends.interface import Backend, BackendInitContext, DelegateHandle
from pteron.errors import (
    DelegateInvalidHandleError,
    DelegateMemoryAllocationFailedError,
    InvalidTypeError,
    NotFoundError,
)
from pteron.format.schema import AllocationDetails, ScalarType, Tensor


def load(*, backends: Any) -> object:
    """Load a method of one delegate, which is for OwnBackend."""
    tensor = Tensor(ScalarType.FLOAT, (3,), (0,), allocation_info=AllocationDetails(1, 0))
    program = write_program(
        DelegateProgram("OwnBackend", (), memoryview(b""), {}, (tensor, tensor), (0,), (1,))
    )
    return Runtime.get().load_program(program, backends=backends).load_method("forward")


class Misbehaving(Backend):
    """Does as its two functions say when it makes a handle and when the handle is bound."""

    id: ClassVar[str] = "OwnBackend"

    def __init__(self, on_init: Callable[[], Any], on_bind: Callable[[], Any]) -> None:
        self.on_init = on_init
        self.on_bind = on_bind

    def init(self, context: BackendInitContext) -> DelegateHandle:
        handle: DelegateHandle | None = self.on_init()
        return MisbehavingHandle(self.on_bind) if handle is None else handle


class MisbehavingHandle(DelegateHandle):
    def __init__(self, on_bind: Callable[[], Any]) -> None:
        self.on_bind = on_bind

    def bind(self, args: Sequence[Any]) -> Callable[[], None]:
        call: Callable[[], None] = self.on_bind()
        return call


def throwing(error: BaseException) -> Callable[[], Any]:
    def throw() -> Any:
        raise error

    return throw


RAISED: list[tuple[Exception, type[PteronError], str]] = [
    (KeyError("mine"), DelegateInvalidHandleError, "raised KeyError: 'mine'"),
    (RuntimeError("odd\nsecond line"), DelegateInvalidHandleError, "raised RuntimeError: odd"),
    (MemoryError("no room"), DelegateMemoryAllocationFailedError, "raised MemoryError: no room"),
    (torch.OutOfMemoryError("GPU"), DelegateMemoryAllocationFailedError, "OutOfMemoryError: GPU"),
]


@pytest.mark.parametrize(("raised", "kind", "text"), RAISED)
@pytest.mark.parametrize("step", ["init", "bind"])
def test_what_a_backend_raises_comes_out_as_a_pteron_error(
    step: str, raised: Exception, kind: type[PteronError], text: str
) -> None:
    backend = Misbehaving(*_at(step, throwing(raised)))
    with pytest.raises(kind) as caught:
        load(backends={backend.id: backend})
    name = {"init": "Misbehaving.init", "bind": "MisbehavingHandle.bind"}[step]
    assert caught.value.message.startswith(f"{__name__}.{name} ")
    assert text in caught.value.message
    assert "second line" not in str(caught.value)
    assert caught.value.__cause__ is raised
    assert _place(step) in str(caught.value)


@pytest.mark.parametrize("step", ["init", "bind"])
def test_an_error_of_ours_passes_through_a_backend(step: str) -> None:
    raised = NotFoundError("own words", hint="own hint")
    backend = Misbehaving(*_at(step, throwing(raised)))
    with pytest.raises(NotFoundError) as caught:
        load(backends={backend.id: backend})
    assert caught.value is raised
    assert caught.value.__cause__ is None
    assert _place(step) in str(caught.value)


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ("init", "Misbehaving.init has to return a DelegateHandle, got int"),
        ("bind", "MisbehavingHandle.bind has to return a callable, got int"),
    ],
)
def test_a_backend_that_returns_something_else_is_named(step: str, text: str) -> None:
    backend = Misbehaving(*_at(step, lambda: 5))
    with pytest.raises(InvalidTypeError) as caught:
        load(backends={backend.id: backend})
    assert text in caught.value.message
    assert _place(step) in str(caught.value)


def test_an_interrupt_of_a_backend_stays_one() -> None:
    backend = Misbehaving(*_at("init", throwing(KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        load(backends={backend.id: backend})


def _at(step: str, function: Callable[[], Any]) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return what a backend does when it makes a handle, and when that is bound."""
    return (function, lambda: None) if step == "init" else (lambda: None, function)


def _place(step: str) -> str:
    """Return what the text of an error says of the delegate."""
    if step == "init":
        return "method 'forward', delegate 0 (OwnBackend)"
    return "method 'forward', instruction 0: delegate 0 'OwnBackend'("


@pytest.mark.parametrize(
    ("backends", "text"),
    [
        (["OwnBackend"], "a mapping from ids to backends, got list"),
        ("executorch", "a mapping from ids to backends, got str"),
        ("", "a mapping from ids to backends, got str"),
        ([], "a mapping from ids to backends, got list"),
        ({5: "executorch"}, "the keys of backends are ids of backends, got 5"),
        ({"OwnBackend": None}, "backends['OwnBackend'] is 'NoneType'; allowed are an"),
        ({"OwnBackend": "nope"}, "backends['OwnBackend'] is 'nope'; allowed are an"),
        ({"OwnBackend": Misbehaving}, "allowed are an instance of a class that derives from"),
        ({"OwnBackend": torch.ones(2)}, "backends['OwnBackend'] is 'Tensor'"),
    ],
)
def test_backends_that_are_none_are_refused(backends: object, text: str) -> None:
    with pytest.raises(InvalidTypeError) as caught:
        load(backends=backends)
    assert text in str(caught.value)
