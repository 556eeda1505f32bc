"""A caller's inputs into a method's values."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import dlpack

from pteron.errors import InvalidArgumentError, InvalidTypeError, NotSupportedError
from pteron.executor.evalue import ValueTable
from pteron.format.schema import (
    Bool,
    Double,
    ExecutionPlan,
    Int,
    Null,
    String,
    Tensor,
    TensorShapeDynamism,
)
from pteron.memory.hierarchical_allocator import dense_strides, torch_dtype

FLOAT_ATOL, FLOAT_RTOL = 1e-4, 1e-5
"""How near a float input has to be to the constant (``runtime/executor/method.cpp``)."""


class Put(Protocol):
    """Takes the caller's value of one input and gives it to the method, or raises."""

    def __call__(self, given: Any) -> None:
        """Take the value of one call."""

    def fix(self) -> None:
        """Keep the input in one place from now on."""


class TensorInput:
    """Checks and takes one tensor input.

    A planned input is copied into its slot. An unplanned one on the right device is bound as it
    is, whatever its strides; elsewhere it is copied to where it is needed (DESIGN, P10).
    """

    def __init__(self, table: ValueTable, position: int, index: int, *, bind: bool) -> None:
        value = table.plan.values[index]
        assert isinstance(value, Tensor)
        self._what = f"method {table.plan.name!r}: input {position}"
        self._value = value
        self._dtype = torch_dtype(value)
        self._sizes = torch.Size(value.sizes)
        self._slot: torch.Tensor = table.values[index]
        self._device = table.devices[index]
        self._binds = bind
        self._unbound = value.shape_dynamism is TensorShapeDynamism.DYNAMIC_UNBOUND
        self._static = value.shape_dynamism is TensorShapeDynamism.STATIC

    def __call__(self, given: Any) -> None:
        slot = self._slot
        if (
            type(given) is not torch.Tensor
            or given.dtype is not self._dtype
            or given.shape != slot.shape
            or self._binds
        ):
            given = self._checked(given)
            if self._binds:
                self._bind(given)
                return
            if slot.shape != given.shape:
                strides = dense_strides(given.shape, self._value.dim_order)
                slot.as_strided_(given.shape, strides)
        try:
            slot.copy_(given)
        except (RuntimeError, NotImplementedError) as error:
            raise InvalidArgumentError(
                f"{self._what}: a tensor on {given.device} cannot be read into "
                f"{self._device}: {error}"
            ) from error

    def fix(self) -> None:
        """Copy from now on into memory that stays where it is, also if the input is unplanned."""
        if self._binds:
            self._binds = False
            strides = dense_strides(self._value.sizes, self._value.dim_order)
            with torch.inference_mode(False):
                memory = torch.zeros(self._value.numel, dtype=self._dtype, device=self._slot.device)
                self._slot.set_(memory.as_strided(self._value.sizes, strides))  # type: ignore[call-overload]

    def _bind(self, given: torch.Tensor) -> None:
        if given.is_neg():
            given = given.resolve_neg()
        if given.is_conj():
            given = given.resolve_conj()
        if given.layout is not torch.strided or given.device != self._slot.device:
            self._refuse_unreadable(given)
            target = torch.empty(given.shape, dtype=self._dtype, device=self._slot.device)
            given = target.copy_(given)
        self._slot.set_(given.detach())  # type: ignore[call-overload]

    def _refuse_unreadable(self, given: torch.Tensor) -> None:
        if isinstance(given, FakeTensor):
            raise InvalidArgumentError(
                f"{self._what} has to be a tensor that holds data, got a FakeTensor, which does not",
                hint="make the tensor outside of FakeTensorMode",
            )
        if given.device.type == "meta" or given.layout is not torch.strided:
            raise InvalidArgumentError(
                f"{self._what} has to be a dense tensor that holds data on {self._device}, got "
                f"layout {given.layout} on {given.device}"
            )

    def _checked(self, value: Any) -> torch.Tensor:
        given: torch.Tensor = value
        if not isinstance(value, torch.Tensor):
            given = as_tensor(value, self._what, self._expected)
        if given.dtype is not self._dtype:
            raise InvalidArgumentError(
                f"{self._what} has to be {self._expected}, got {describe(given)}",
                hint=f"convert it with .to(torch.{self._value.scalar_type.torch_name})",
            )
        if given.device.type == "meta" or isinstance(given, FakeTensor):
            self._refuse_unreadable(given)
        self._check_shape(given)
        return given

    def _check_shape(self, given: torch.Tensor) -> None:
        wanted = self._value.sizes
        if self._unbound:
            return
        if given.dim() == len(wanted):
            if given.shape == self._sizes:
                return
            if not self._static and all(
                got <= bound for got, bound in zip(given.shape, wanted, strict=True)
            ):
                return
        raise NotSupportedShapeError(
            f"{self._what} has to be {self._expected}, got {describe(given)}",
            hint=None
            if self._static
            else "the program was exported for these bounds; export it again for larger ones",
        )

    @property
    def _expected(self) -> str:
        kind = "static" if self._static else "at most"
        shape = "any" if self._unbound else f"{kind} {tuple(self._value.sizes)}"
        return f"a {self._value.scalar_type.torch_name} tensor of shape {shape}"


class NotSupportedShapeError(NotSupportedError, ValueError):
    """Refuse an input of a shape that the program was not exported for."""


class ScalarInput:
    """Checks one input that is no tensor.

    ExecuTorch bakes the value that a number had at export into the program, so another one is
    refused. A number that the program reads itself, and a string, which no program reads, are
    stored as None: any is taken.
    """

    def __init__(self, table: ValueTable, position: int, index: int, *, is_read: bool) -> None:
        self._what = f"method {table.plan.name!r}: input {position}"
        self._table = table
        self._index = index
        self._baked = table.values[index]
        self._kind = type(table.plan.values[index])
        self._also: tuple[type, ...] = (bool, int, float) if is_read else (str,)

    def __call__(self, given: Any) -> None:
        if self._kind is Null:
            if given is None or isinstance(given, self._also):
                self._table.values[self._index] = given
                return
            raise InvalidTypeError(f"{self._what} has to be None, got {_short(given)}")
        if isinstance(given, torch.Tensor):
            raise InvalidTypeError(
                f"{self._what} has to be {_KINDS[self._kind]}, got {describe(given)}"
            )
        fits = {
            Int: isinstance(given, int) and not isinstance(given, bool),
            Bool: isinstance(given, bool),
            Double: isinstance(given, (int, float)) and not isinstance(given, bool),
            String: isinstance(given, str),
        }[self._kind]
        if not fits:
            raise InvalidTypeError(
                f"{self._what} has to be {_KINDS[self._kind]}, got {_short(given)}"
            )
        if given != self._baked and not self._is_near(given):
            raise InvalidArgumentError(
                f"{self._what} was exported as the constant {self._baked!r}, got {given!r}",
                hint="export the program with this value, or pass it as a tensor",
            )

    def _is_near(self, given: Any) -> bool:
        """Whether a float is the constant but for what a conversion takes away; NaN is NaN."""
        if self._kind is not Double:
            return False
        try:
            if math.isclose(given, self._baked, abs_tol=FLOAT_ATOL, rel_tol=FLOAT_RTOL):
                return True
            return math.isnan(given) and math.isnan(self._baked)
        except OverflowError:  # an int that is larger than any float
            return False

    def fix(self) -> None:
        """Do nothing: a number has no place that could move."""


_KINDS = {Int: "an int", Bool: "a bool", Double: "a float", String: "a string"}


def as_tensor(given: Any, what: str, expected: str) -> torch.Tensor:
    """Return an array of another library as a tensor, or raise InvalidTypeError."""
    if hasattr(given, "__array_interface__") and hasattr(given, "dtype"):
        try:
            if not given.flags.writeable or any(step < 0 for step in given.strides):
                given = given.copy()
            return torch.from_numpy(given) if hasattr(given, "ctypes") else torch.as_tensor(given)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidTypeError(f"{what} has to be {expected}: {error}") from error
    if hasattr(given, "__dlpack__"):
        try:
            return dlpack.from_dlpack(given)
        except (RuntimeError, BufferError, TypeError) as error:
            raise InvalidTypeError(f"{what} has to be {expected}: {error}") from error
    raise InvalidTypeError(f"{what} has to be {expected}, got {_short(given)}")


def describe(tensor: torch.Tensor) -> str:
    """Return a tensor's element type, shape and, if it is elsewhere, device, for a message."""
    place = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
    return (
        f"a {str(tensor.dtype).removeprefix('torch.')} tensor of shape {tuple(tensor.shape)}{place}"
    )


def _short(given: Any) -> str:
    text = repr(given)
    kind = type(given).__name__
    return f"{kind} {text}" if len(text) <= 40 else kind


def input_takers(table: ValueTable) -> list[Put]:
    """Return one taker for each input of a method."""
    plan: ExecutionPlan = table.plan
    steps = table.memory_plan.graph.accesses
    read = frozenset(i for step in steps for i in (*step.reads, *step.updates))
    takers: list[Put] = []
    for position, index in enumerate(plan.inputs):
        if table.is_tensor(index):
            binds = not table.is_planned(index) and index not in table.constants
            takers.append(TensorInput(table, position, index, bind=binds))
        else:
            takers.append(ScalarInput(table, position, index, is_read=index in read))
    return takers
