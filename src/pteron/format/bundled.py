"""Read bundled programs (``.bpte``): a program with inputs and expected outputs for its methods.

A file is a flatbuffer with the identifier "BP08" (``bundled_program_schema.fbs``); the program is a
byte vector in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Final, TypeAlias

from pteron import limits
from pteron.errors import InvalidArgumentError, InvalidProgramError, PteronError
from pteron.format.flatbuffer import (
    BOOL,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    OFFSET,
    UINT8,
    UINT32,
    Flatbuffer,
    TableSpec,
    fields,
)
from pteron.format.foreign import HEAD_BYTES, recognise
from pteron.format.schema import ScalarType
from pteron.format.source import ByteSource

IDENTIFIER: Final = b"BP08"
TENSOR, INT, BOOL_, DOUBLE = 1, 2, 3, 4

_BUNDLE = TableSpec("BundledProgram", fields(version=UINT32, suites=OFFSET, program=OFFSET))
_SUITE = TableSpec("BundledMethodTestSuite", fields(method_name=OFFSET, test_cases=OFFSET))
_CASE = TableSpec("BundledMethodTestCase", fields(inputs=OFFSET, expected_outputs=OFFSET))
_VALUE = TableSpec("Value", fields(val_type=UINT8, val=OFFSET))
_TENSOR = TableSpec("Tensor", fields(scalar_type=INT8, sizes=OFFSET, data=OFFSET, dim_order=OFFSET))
_NUMBERS = {
    INT: TableSpec("Int", fields(val=INT64)),
    BOOL_: TableSpec("Bool", fields(val=BOOL)),
    DOUBLE: TableSpec("Double", fields(val=FLOAT64)),
}


@dataclass(frozen=True, slots=True, eq=False)
class BundledTensor:
    """A tensor's value. Views the file."""

    scalar_type: ScalarType
    sizes: tuple[int, ...]
    dim_order: tuple[int, ...]
    data: memoryview


BundledValue: TypeAlias = "BundledTensor | int | bool | float"


@dataclass(frozen=True, slots=True, eq=False)
class BundledCase:
    """The inputs of one call and what it has to give."""

    inputs: tuple[BundledValue, ...]
    expected_outputs: tuple[BundledValue, ...]


@dataclass(frozen=True, slots=True, eq=False)
class BundledProgram:
    """A program and the test cases of its methods. Views ``source``, which outlives it."""

    source: ByteSource
    version: int
    suites: dict[str, tuple[BundledCase, ...]]
    program: memoryview

    def test_case(self, method_name: str, index: int) -> BundledCase:
        """Return one test case, or raise InvalidArgumentError that says which there are."""
        cases = self.suites.get(method_name)
        if cases is None:
            known = ", ".join(self.suites) or "none"
            raise InvalidArgumentError(
                f"{self.source.name} has no test cases for method {method_name!r}; it has: {known}"
            )
        if not 0 <= index < len(cases):
            raise InvalidArgumentError(
                f"test case {index} of method {method_name!r}: allowed are 0 to {len(cases) - 1}"
            )
        return cases[index]


def is_bundled(source: ByteSource) -> bool:
    """Return whether a file says that it is a bundled program."""
    return bytes(source.view[4:8]) == IDENTIFIER


def read_bundled(source: ByteSource) -> BundledProgram:
    """Read and check a bundled program; the program in it is checked when it is loaded."""
    found = bytes(source.view[4:8])
    if found != IDENTIFIER:
        foreign = recognise(bytes(source.view[:HEAD_BYTES]), source.size)
        if foreign is not None:
            raise InvalidProgramError(
                f"{source.name} is not a bundled program; it is {foreign.what}", hint=foreign.hint
            )
        raise InvalidProgramError(
            f"{source.name} is not a bundled program: bytes 4 to 8 are {found!r}, expected "
            f"{IDENTIFIER!r}"
        )
    buffer = Flatbuffer(source.view, error=InvalidProgramError, what="bundled program")
    try:
        return _Reader(buffer, source).bundle()
    except PteronError as error:
        error.add_context(f"in {source.name}")
        raise


class _Reader:
    """Views a buffer and decodes its tables."""

    def __init__(self, buffer: Flatbuffer, source: ByteSource) -> None:
        self._buffer = buffer
        self._source = source
        specs = (_BUNDLE, _SUITE, _CASE, _VALUE, _TENSOR, *_NUMBERS.values())
        self._decode = {spec.name: buffer.decoder(spec) for spec in specs}

    def _row(self, spec: TableSpec, position: int) -> Iterator[Any]:
        """Yield a table's fields: numbers as they are, offsets as absolute positions or 0."""
        row = iter(self._decode[spec.name](position))
        for one in spec.fields:
            value = next(row)
            if one.kind == OFFSET:
                at = next(row)
                yield position + at + value if value else 0
            else:
                yield value

    def bundle(self) -> BundledProgram:
        version, suites, program = self._row(_BUNDLE, self._buffer.root())
        if not program:
            self._buffer.fail("there is no program in the bundle", self._buffer.root())
        found: dict[str, tuple[BundledCase, ...]] = {}
        for position in self._buffer.tables(suites, "the test suites", limits.MAX_METHODS):
            name, cases = self._row(_SUITE, position)
            method = self._buffer.name(name, "a method's name")
            if method in found:
                self._buffer.fail(f"method {method!r} has two test suites", position)
            found[method] = tuple(
                self._case(case)
                for case in self._buffer.tables(cases, "the test cases", limits.MAX_TABLES)
            )
        data = self._buffer.data(program, "the program")
        return BundledProgram(self._source, version, found, data)

    def _case(self, position: int) -> BundledCase:
        inputs, outputs = self._row(_CASE, position)
        limit = limits.MAX_ARGUMENTS_PER_CALL
        return BundledCase(
            tuple(self._value(at) for at in self._buffer.tables(inputs, "the inputs", limit)),
            tuple(self._value(at) for at in self._buffer.tables(outputs, "the outputs", limit)),
        )

    def _value(self, position: int) -> BundledValue:
        kind, target = self._row(_VALUE, position)
        if kind == TENSOR and target:
            return self._tensor(target)
        if kind not in _NUMBERS or not target:
            self._buffer.fail(f"a bundled value of unknown kind {kind}", position)
        (number,) = self._row(_NUMBERS[kind], target)
        return number  # type: ignore[no-any-return]

    def _tensor(self, position: int) -> BundledTensor:
        code, sizes_at, data_at, order_at = self._row(_TENSOR, position)
        fail = self._buffer.fail
        try:
            scalar_type = ScalarType(code)
        except ValueError:
            fail(f"a bundled tensor has element type {code}, which is not known", position)
        sizes = self._buffer.scalars(sizes_at, INT32, "a bundled tensor's sizes")
        order = self._buffer.scalars(order_at, UINT8, "a bundled tensor's dim order")
        data = self._buffer.data(data_at, "a bundled tensor's data")
        if len(sizes) > limits.MAX_TENSOR_RANK or any(size < 0 for size in sizes):
            fail(f"a bundled tensor has sizes {sizes[: limits.MAX_TENSOR_RANK + 1]}", position)
        if sorted(order) != list(range(len(sizes))):
            fail(f"a bundled tensor of rank {len(sizes)} has dim order {order}", position)
        needed = prod(sizes) * scalar_type.itemsize
        if data.nbytes != needed:
            fail(f"a bundled tensor needs {needed} bytes, it has {data.nbytes}", position)
        return BundledTensor(scalar_type, sizes, order, data)
