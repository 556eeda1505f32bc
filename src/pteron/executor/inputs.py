"""A caller's inputs into a method's values."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import dlpack

from pteron.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    NotSupportedShapeError,
)
from pteron.executor.evalue import ValueTable
from pteron.executor.hints import describe, dtype_hint, shape_hint, short
from pteron.executor.signature import ValueInfo
from pteron.format.schema import (
    Bool,
    Double,
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
    is, whatever its strides, unless a reader wants it ``dense``; elsewhere it is copied to where it
    is needed (DESIGN, P10).
    """

    def __init__(self, table: ValueTable, info: ValueInfo, *, bind: bool, dense: bool) -> None:
        index = info.index
        value = table.plan.values[index]
        assert isinstance(value, Tensor)
        self._what = f"method {table.plan.name!r}: {info.label}"
        self._info = info
        self._value = value
        self._dtype = torch_dtype(value)
        self._sizes = torch.Size(value.sizes)
        self._slot: torch.Tensor = table.values[index]
        self._device = table.devices[index]
        self._binds = bind
        self._dense = dense
        self._written = index in table.memory_plan.graph.updated
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
                f"{self._what}: a tensor on {given.device} cannot be copied to {self._device}: "
                f"{error}"
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
            given = self._dense_copy(given)
        elif (self._dense and not self._lies_dense(given)) or (self._written and _overlaps(given)):
            given = self._dense_copy(given)
        self._slot.set_(given.detach())  # type: ignore[call-overload]

    def _lies_dense(self, given: torch.Tensor) -> bool:
        strides = dense_strides(given.shape, self._value.dim_order)
        return all(
            size <= 1 or got == wanted
            for size, got, wanted in zip(given.shape, given.stride(), strides, strict=True)
        )

    def _dense_copy(self, given: torch.Tensor) -> torch.Tensor:
        """Return a copy on the input's device, dense in its dim order."""
        strides = dense_strides(given.shape, self._value.dim_order)
        target = torch.empty_strided(
            given.shape, strides, dtype=self._dtype, device=self._slot.device
        )
        return target.copy_(given)

    def _refuse_unreadable(self, given: torch.Tensor) -> None:
        if isinstance(given, FakeTensor):
            raise InvalidArgumentError(
                f"{self._what} has to be a tensor that holds data; a FakeTensor does not",
                hint="make the tensor outside of FakeTensorMode",
            )
        if given.device.type == "meta" or given.layout is not torch.strided:
            raise InvalidArgumentError(
                f"{self._what} has to be a dense tensor that holds data on {self._device}, got "
                f"layout {given.layout} on {given.device}",
                hint=None if given.layout is torch.strided else "convert it with .to_dense()",
            )

    def _checked(self, value: Any) -> torch.Tensor:
        given: torch.Tensor = value
        if not isinstance(value, torch.Tensor):
            given = as_tensor(value, self._what, self._info.type_text)
        if given.dtype is not self._dtype:
            hints = [dtype_hint(value, self._info), shape_hint(value, given.shape, self._info)]
            raise InvalidArgumentError(
                f"{self._what} takes {self._info.type_text}, got {describe(given)}",
                hint="; ".join(filter(None, hints)),
            )
        if given.device.type == "meta" or isinstance(given, FakeTensor):
            self._refuse_unreadable(given)
        self._check_shape(given, value)
        return given

    def _check_shape(self, given: torch.Tensor, value: Any) -> None:
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
            f"{self._what} takes {self._info.type_text}, got {describe(given)}",
            hint=shape_hint(value, given.shape, self._info),
        )


class ScalarInput:
    """Checks one input that is not a tensor.

    ExecuTorch bakes the value that a number had at export into the program, so another one is
    refused. A number that the program reads itself, and a string, which no program reads, are
    stored as None: any is taken.
    """

    def __init__(self, table: ValueTable, info: ValueInfo, *, is_read: bool) -> None:
        index = info.index
        self._what = f"method {table.plan.name!r}: {info.label}"
        self._table = table
        self._index = index
        self._baked = table.values[index]
        self._kind = type(table.plan.values[index])
        self._also: tuple[type, ...] = (bool, int, float) if is_read else (str,)

    def __call__(self, given: Any) -> None:
        given = python_scalar(given)
        if self._kind is Null:
            if given is None or isinstance(given, self._also):
                self._table.values[self._index] = given
                return
            raise InvalidTypeError(f"{self._what} has to be None, got {short(given)}")
        fits = {
            Int: isinstance(given, int) and not isinstance(given, bool),
            Bool: isinstance(given, bool),
            Double: isinstance(given, (int, float)) and not isinstance(given, bool),
            String: isinstance(given, str),
        }[self._kind]
        if not fits:
            raise InvalidTypeError(
                f"{self._what} has to be {_KINDS[self._kind]}, got {short(given)}",
                hint=f"the program holds {self._baked!r}; {BAKED_HINT}",
            )
        if given != self._baked and not self._is_near(given):
            raise InvalidArgumentError(
                f"{self._what} was exported as the constant {self._baked!r}, got {given!r}",
                hint=BAKED_HINT,
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

BAKED_HINT = "to use another value, export the program again with it, or with a tensor in its place"


def python_scalar(given: Any) -> Any:
    """Return a numpy scalar as the Python number that it holds, and anything else as it is."""
    if isinstance(given, torch.Tensor) or getattr(given, "shape", None) != ():
        return given
    return given.item() if hasattr(given, "__array_interface__") else given


def as_tensor(given: Any, what: str, expected: str) -> torch.Tensor:
    """Return an array of another library as a tensor, or raise InvalidTypeError."""
    if hasattr(given, "__array_interface__") and hasattr(given, "dtype"):
        try:
            if not given.flags.writeable or any(step < 0 for step in given.strides):
                given = given.copy()
            return torch.from_numpy(given) if hasattr(given, "ctypes") else torch.as_tensor(given)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidTypeError(
                f"{what} takes {expected}, got an array of {given.dtype}",
                hint="convert it to an element type that torch has",
            ) from error
    if hasattr(given, "__dlpack__"):
        try:
            return dlpack.from_dlpack(given)
        except (RuntimeError, BufferError, TypeError) as error:
            raise InvalidTypeError(
                f"{what} takes {expected}; the {type(given).__name__} that was given cannot be "
                f"read as a tensor: {error}"
            ) from error
    raise InvalidTypeError(
        f"{what} takes {expected}, got {short(given)}",
        hint="give a tensor or an array"
        + (": torch.tensor(...)" if isinstance(given, (list, tuple, int, float)) else ""),
    )


def _overlaps(given: torch.Tensor) -> bool:
    """Whether several elements of a tensor are one place in memory, as in an expanded one."""
    return any(
        size > 1 and step == 0 for size, step in zip(given.shape, given.stride(), strict=True)
    )


def input_takers(
    table: ValueTable, inputs: tuple[ValueInfo, ...], dense: frozenset[int]
) -> list[Put]:
    """Return one taker for each input; ``dense`` are those that some reader wants dense."""
    steps = table.memory_plan.graph.accesses
    read = frozenset(i for step in steps for i in (*step.reads, *step.updates))
    takers: list[Put] = []
    for info in inputs:
        index = info.index
        if table.is_tensor(index):
            binds = not table.is_planned(index) and index not in table.constants
            takers.append(TensorInput(table, info, bind=binds, dense=index in dense))
        else:
            takers.append(ScalarInput(table, info, is_read=index in read))
    return takers
