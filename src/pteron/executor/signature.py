"""A method's inputs and outputs by name: what a caller may give, and how it is put in order."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pteron.errors import InvalidArgumentError, NotSupportedError
from pteron.format.schema import ExecutionPlan
from pteron.program.signature import (
    ValueFacts,
    describe_inputs,
    describe_outputs,
    find,
    stranger,
)


class ValueInfo(ValueFacts):
    """One input or output of a method: its name, element type, shape, kind and device."""

    __slots__ = ()

    @property
    def dtype(self) -> torch.dtype | None:
        """The element type as torch's; None for a value that is not a tensor.

        Raises:
            NotSupportedError: This torch does not have it.

        """
        if self.dtype_name is None:
            return None
        dtype = getattr(torch, self.dtype_name, None)
        if not isinstance(dtype, torch.dtype):
            raise NotSupportedError(
                f"{self.label} is {self.type_text}, an element type that this torch lacks"
            )
        return dtype


class Signature:
    """Views one execution plan: its inputs and outputs, by position and by name."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._what = f"method {plan.name!r}"
        self.inputs = describe_inputs(plan, ValueInfo)
        self.outputs = describe_outputs(plan, ValueInfo)

    def by_name(self, given: Mapping[str, Any]) -> list[Any]:
        """Return values that are given by name in the order of the inputs.

        A number that was baked in at export need not be given.

        Raises:
            NotFoundError: A name is not an input's; with the nearest one.
            InvalidArgumentError: Inputs are missing.

        """
        names = {info.name for info in self.inputs}
        for name in given:
            if name not in names:
                raise stranger(self.inputs, name, self._what)
        return self._filled(
            {info.position: given[info.name] for info in self.inputs if info.name in given}
        )

    def of_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the values of a call, ``method(x, mask=m)``, in the order of the inputs."""
        if len(args) > len(self.inputs):
            raise self.wrong_number(len(args))
        if not kwargs:
            return self._filled(dict(enumerate(args)))
        found = dict(enumerate(args))
        for name, value in kwargs.items():
            info = find(self.inputs, name, self._what)
            if info.position in found:
                raise InvalidArgumentError(
                    f"{self._what}: {info.label} is given twice, by position and by name"
                )
            found[info.position] = value
        return self._filled(found)

    def _filled(self, found: dict[int, Any]) -> list[Any]:
        missing = []
        for info in self.inputs:
            if info.position not in found:
                if info.literal is None:
                    missing.append(info)
                found[info.position] = info.literal
        if missing:
            names = ", ".join(f"{info.name}: {info.type_text}" for info in missing)
            raise InvalidArgumentError(f"{self._what} also needs {names}")
        return [found[position] for position in range(len(self.inputs))]

    def wrong_number(self, number: int) -> InvalidArgumentError:
        """Return the error about too many or too few values in a row."""
        wanted = len(self.inputs)
        names = ", ".join(info.name for info in self.inputs)
        return InvalidArgumentError(
            f"{self._what} takes {wanted} input{'' if wanted == 1 else 's'}"
            f"{f' ({names})' if names else ''}, got {number}"
        )

    def choose(self, outputs: Sequence[str | int]) -> list[int]:
        """Return the positions of chosen outputs, which are given by name or position."""
        if isinstance(outputs, (str, int)):
            outputs = (outputs,)
        return [find(self.outputs, name, self._what).position for name in outputs]

    def example_inputs(self, seed: int = 0) -> list[Any]:
        """Return random inputs that fit; the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        return [example_value(info, generator) for info in self.inputs]

    def python_signature(self) -> inspect.Signature:
        """Return the signature of a call with these inputs."""
        parameters = []
        used: set[str] = set()
        for info in self.inputs:
            name = info.name if is_parameter(info.name) else f"input_{info.position}"
            while name in used:
                name += "_"
            used.add(name)
            parameters.append(parameter(name, info))
        if any(one.default is not one.empty for one in parameters):
            parameters = _with_defaults_last(parameters)
        return inspect.Signature(
            parameters, return_annotation=[_type_text(info) for info in self.outputs]
        )


def example_value(info: ValueInfo, generator: torch.Generator) -> Any:
    """Return random numbers for a tensor, and what the program holds for anything else.

    Floats are normal, 8-bit integers cover their range, wider ones are 0 or 1 (they are often
    indices), and dynamic shapes are at their upper bound.
    """
    dtype, shape = info.dtype, info.shape
    if dtype is None or shape is None:
        return info.literal
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex64 if dtype.is_complex else torch.float32
        return torch.randn(shape, generator=generator, dtype=wide, device="cpu").to(dtype)
    if dtype in (torch.uint8, torch.int8):
        limits = torch.iinfo(dtype)
        return torch.randint(
            limits.min, limits.max + 1, shape, generator=generator, device="cpu"
        ).to(dtype)
    return torch.randint(0, 2, shape, generator=generator, device="cpu").to(dtype)


def is_parameter(name: str) -> bool:
    """Whether Python takes a name for a parameter."""
    return name.isidentifier() and not keyword.iskeyword(name)


class _Annotation(str):
    """A type in the words of the file, which a signature shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _type_text(info: ValueInfo) -> _Annotation:
    return _Annotation(info.type_text)


def parameter(
    name: str, info: ValueInfo, *, kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
) -> inspect.Parameter:
    """Return the parameter of one input; a number that was baked in is its default."""
    default = inspect.Parameter.empty if info.literal is None else info.literal
    return inspect.Parameter(name, kind, default=default, annotation=_type_text(info))


def _with_defaults_last(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """Drop the defaults that stand before a parameter without one, as Python wants it."""
    seen_required = False
    found = []
    for one in reversed(parameters):
        if one.default is one.empty:
            seen_required = True
        elif seen_required:
            one = one.replace(default=one.empty)
        found.append(one)
    return found[::-1]
