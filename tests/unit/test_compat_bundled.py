"""Bundled programs: read, checked, and verified case by case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pteron.compat import portable_lib
from pteron.errors import InvalidArgumentError, InvalidProgramError, PteronError
from pteron.format.bundled import BundledTensor, is_bundled, read_bundled
from pteron.format.flatbuffer import BOOL, FLOAT64, INT8, INT64, OFFSET, UINT8, UINT32
from pteron.format.flatbuffer_writer import Scalars, Table, write_flatbuffer
from pteron.format.source import open_source
from support.portable_fixtures import PORTABLE, stored

TWO = PORTABLE / "two_methods" / "program.pte"


def tensor_table(x: torch.Tensor) -> Table:
    order = sorted(range(x.dim()), key=lambda d: -x.stride(d))
    flat = x.as_strided((x.numel(),), (1,))
    return Table(
        [
            (0, INT8, {torch.float32: 6, torch.int64: 4}[x.dtype]),
            (1, OFFSET, Scalars("i", x.shape)),
            (2, OFFSET, flat.numpy().tobytes()),
            (3, OFFSET, Scalars("B", order)),
        ]
    )


def value(x: Any) -> Table:
    if isinstance(x, torch.Tensor):
        return Table([(0, UINT8, 1), (1, OFFSET, tensor_table(x))])
    kind, letter = {bool: (3, BOOL), int: (2, INT64), float: (4, FLOAT64)}[type(x)]
    return Table([(0, UINT8, kind), (1, OFFSET, Table([(0, letter, x)]))])


def bundle(program: bytes, suites: dict[str, list[tuple[list[Any], list[Any]]]]) -> bytes:
    tables = [
        Table(
            [
                (0, OFFSET, name),
                (
                    1,
                    OFFSET,
                    [
                        Table(
                            [
                                (0, OFFSET, [value(x) for x in inputs]),
                                (1, OFFSET, [value(x) for x in outputs]),
                            ]
                        )
                        for inputs, outputs in cases
                    ],
                ),
            ]
        )
        for name, cases in suites.items()
    ]
    root = Table([(0, UINT32, 0), (1, OFFSET, tables), (2, OFFSET, program)])
    return write_flatbuffer(root, b"BP08")


@pytest.fixture(scope="module")
def cases() -> dict[str, list[tuple[list[Any], list[Any]]]]:
    facts = stored("two_methods")["calls"]
    return {name: [(list(i), list(o)) for i, o in calls] for name, calls in facts.items()}


@pytest.fixture(scope="module")
def data(cases: dict[str, list[tuple[list[Any], list[Any]]]]) -> bytes:
    return bundle(TWO.read_bytes(), cases)


def test_every_case_passes(data: bytes, cases: dict[str, Any]) -> None:
    module = portable_lib._load_bundled_program_from_buffer(data)
    for name, calls in cases.items():
        for index, (_, expected) in enumerate(calls):
            outputs = module.verify_result_with_bundled_expected_output(name, index, 1e-4, 1e-4)
            torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-4)


def test_outputs_that_differ_are_named(cases: dict[str, Any]) -> None:
    name, ((inputs, expected), *_) = next(iter(cases.items()))
    wrong = [expected[0] + 1.0, *expected[1:]]
    module = portable_lib._load_bundled_program_from_buffer(
        bundle(TWO.read_bytes(), {name: [(inputs, wrong), (inputs, expected[:0])]})
    )
    with pytest.raises(RuntimeError, match=r"Result verification failed, error: 0x12") as caught:
        module.verify_result_with_bundled_expected_output(name, 0)
    assert "output 0 differs by up to 1" in str(caught.value)
    with pytest.raises(RuntimeError, match="gave 1 outputs, the bundle expects 0"):
        module.verify_result_with_bundled_expected_output(name, 1)


def test_nan_equals_nan_and_integers_are_exact() -> None:
    from pteron.compat.bundled import differences

    nan = torch.tensor([float("nan"), 1.0])
    assert not differences([nan], [nan], rtol=0, atol=0)
    one = torch.tensor([100])
    assert differences([one], [one + 1], rtol=0.5, atol=5.0)
    assert differences([one], [one.float()], rtol=0.5, atol=5.0)
    assert differences([3], [4], rtol=1, atol=1)


def test_the_program_in_a_bundle_can_be_loaded(data: bytes, cases: dict[str, Any]) -> None:
    bundled = portable_lib._load_bundled_program_from_buffer(data)
    module = portable_lib._load_for_executorch_from_bundled_program(bundled)
    for name, ((inputs, expected), *_) in cases.items():
        module.load_bundled_input(bundled, name, 0)
        torch.testing.assert_close(module.plan_execute(name), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(module.run_method(name, inputs), expected, rtol=1e-4, atol=1e-4)


def test_unknown_method_and_case(data: bytes, cases: dict[str, Any]) -> None:
    module = portable_lib._load_bundled_program_from_buffer(data)
    name = next(iter(cases))
    with pytest.raises(RuntimeError, match=r"0x12\n.*no test cases for method 'nope'"):
        module.verify_result_with_bundled_expected_output("nope", 0)
    with pytest.raises(RuntimeError, match=r"test case 99 of method"):
        module.verify_result_with_bundled_expected_output(name, 99)


def test_a_program_is_no_bundle() -> None:
    """Through executorch 1.5.1's bindings, bytes that are no bundle end the process."""
    with pytest.raises(RuntimeError, match=r"error: 0x23\n.*is not a bundled program") as caught:
        portable_lib._load_bundled_program_from_buffer(TWO.read_bytes())
    assert "hint: give it as the program" in str(caught.value)
    with pytest.raises(RuntimeError, match="error: 0x23"):
        portable_lib._load_bundled_program_from_buffer(b"garbage")


def test_a_bundle_is_no_program(data: bytes) -> None:
    with pytest.raises(RuntimeError, match="0x:23"):
        portable_lib._load_program_from_buffer(data)


def test_values_of_every_kind(tmp_path: Path) -> None:
    image = torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    with open_source(bundle(b"x", {"f": [([image, 3, True, 0.5], [])]})) as source:
        assert is_bundled(source)
        case = read_bundled(source).test_case("f", 0)
        tensor, *rest = case.inputs
        assert isinstance(tensor, BundledTensor)
        assert tensor.dim_order == (0, 2, 3, 1)
        from pteron.compat.bundled import bundled_value

        assert torch.equal(bundled_value(tensor), image)
        assert bundled_value(tensor).is_contiguous(memory_format=torch.channels_last)
        assert rest == [3, True, 0.5]
        with pytest.raises(InvalidArgumentError, match="allowed are 0 to 0"):
            read_bundled(source).test_case("f", 1)


def broken(**fields: Any) -> bytes:
    rows = {
        0: (INT8, 6),
        1: (OFFSET, Scalars("i", [2])),
        2: (OFFSET, bytes(8)),
        3: (OFFSET, Scalars("B", [0])),
    }
    for key, row in fields.items():
        rows[{"dtype": 0, "sizes": 1, "data": 2, "order": 3}[key]] = row
    tensor = Table([(number, kind, given) for number, (kind, given) in rows.items()])
    case = Table([(0, OFFSET, [Table([(0, UINT8, 1), (1, OFFSET, tensor)])]), (1, OFFSET, [])])
    suite = Table([(0, OFFSET, "f"), (1, OFFSET, [case])])
    return write_flatbuffer(Table([(1, OFFSET, [suite]), (2, OFFSET, b"x")]), b"BP08")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": (INT8, 99)}, "element type 99"),
        ({"sizes": (OFFSET, Scalars("i", [-2]))}, r"sizes \(-2,\)"),
        ({"sizes": (OFFSET, Scalars("i", [1] * 17))}, "has sizes"),
        ({"order": (OFFSET, Scalars("B", [1]))}, r"rank 1 has dim order \(1,\)"),
        ({"data": (OFFSET, bytes(7))}, "needs 8 bytes, it has 7"),
    ],
)
def test_tensors_that_cannot_be(fields: dict[str, Any], message: str) -> None:
    with open_source(broken()) as source:
        read_bundled(source)
    with open_source(broken(**fields)) as source, pytest.raises(InvalidProgramError, match=message):
        read_bundled(source)


def test_damaged_bundles_raise_and_nothing_else() -> None:
    data = bundle(b"program", {"f": [([torch.ones(2), 3], [True, 0.5])]})
    for at in range(len(data)):
        for flip in (0xFF, 0x01):
            damaged = data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
            with open_source(damaged) as source:
                try:
                    read_bundled(source)
                except PteronError:
                    continue
    for end in range(0, len(data) - 16, 5):
        with open_source(data[:end]) as source, pytest.raises(PteronError):
            read_bundled(source)
