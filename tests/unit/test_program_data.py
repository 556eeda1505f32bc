"""Constants, initial values and named data: the right bytes, as views, or a named reason."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pteron.errors import InvalidExternalDataError, InvalidProgramError, NotFoundError
from pteron.format.ptd import PtdFile, read_ptd
from pteron.format.pte import PteFile
from pteron.format.schema import Tensor
from pteron.format.source import open_source
from pteron.program.constants import constant_bytes, initial_bytes
from pteron.program.data_map import NamedDataMap
from support.plans import (
    ScalarType,
    ex,
    inline,
    layout,
    opened,
    plan,
    program,
    tensor,
    write,
    write_ptd,
)

ONE, TWO = bytes(range(8)), bytes(range(100, 112))
EXTERNAL = {"location": ex.TensorDataLocation.EXTERNAL}


def value(pte: PteFile, index: int) -> Tensor:
    found = pte.program.execution_plan[0].values[index]
    assert isinstance(found, Tensor)
    return found


def data_file(entries: Mapping[str, tuple[bytes, Any]], folder: Path, name: str) -> PtdFile:
    path = folder / name
    path.write_bytes(write_ptd(entries))
    return read_ptd(open_source(path))


def constants() -> Any:
    values = [
        tensor(2, constant=1),
        tensor(3, constant=2),
        tensor(3, at=0, constant=2),
        tensor(2, 3, fully_qualified_name="w", **EXTERNAL),
        tensor(2, 3, at=16, fully_qualified_name="w", **EXTERNAL),
        tensor(3, constant=1),
        tensor(2, constant=9),
        tensor(2, at=0, constant=9),
        tensor(2, at=0, constant=1, mutable_data_segments_idx=1),
        tensor(0, constant=1),
        tensor(2, **EXTERNAL),
    ]
    return program(plan(values, []), constants=[ONE, TWO])


@pytest.fixture(scope="module")
def pte() -> PteFile:
    return opened(write(constants(), mutable=[ONE, TWO], named={"inside": b"abc"}))


def test_constants_are_views_of_exactly_their_bytes(pte: PteFile) -> None:
    found = constant_bytes(pte, None, value(pte, 1))
    assert bytes(found) == TWO
    assert found.obj is pte.source.view.obj
    assert found.readonly
    assert bytes(constant_bytes(pte, None, value(pte, 0))) == ONE
    assert constant_bytes(pte, None, value(pte, 9)).nbytes == 0


def test_constants_inside_the_flatbuffer_are_found() -> None:
    old = opened(inline(constants()))
    assert bytes(constant_bytes(old, None, value(old, 0))) == ONE
    assert bytes(constant_bytes(old, None, value(old, 1))) == TWO


def test_initial_values_have_numbers_of_their_own(pte: PteFile) -> None:
    assert bytes(initial_bytes(pte, None, value(pte, 2))) == TWO


@pytest.mark.parametrize(
    ("read", "index", "text"),
    [
        (constant_bytes, 6, "constant index 9 does not exist; the file has 3"),
        (initial_bytes, 7, "initial value index 9 does not exist; the file has 3"),
        (initial_bytes, 8, "its initial value is in mutable data segment 1; the file has 1"),
        (constant_bytes, 10, "an external tensor has no name"),
    ],
)
def test_what_is_not_there_is_named(pte: PteFile, read: Any, index: int, text: str) -> None:
    with pytest.raises(InvalidProgramError, match=text):
        read(pte, None, value(pte, index))


def test_a_constant_does_not_reach_past_its_segment(pte: PteFile) -> None:
    big = Tensor(value(pte, 1).scalar_type, (40,), (0,), data_buffer_idx=2)
    with pytest.raises(
        InvalidProgramError, match=r"constant 2 \(offset 16 \+ 160 bytes\) goes past"
    ):
        constant_bytes(pte, None, big)


def test_named_data_of_the_program_and_of_files_are_one_map(pte: PteFile, tmp_path: Path) -> None:
    ptd = data_file({"w": (bytes(24), layout(ScalarType.FLOAT, 2, 3))}, tmp_path, "w.ptd")
    data_map = NamedDataMap(pte, [ptd])
    assert data_map.keys() == ("inside", "w") == tuple(data_map)
    assert len(data_map) == 2
    assert "inside" in data_map
    assert "other" not in data_map
    assert bytes(data_map.get("inside").data) == b"abc"
    assert data_map.get("inside").layout is None
    assert data_map.get("w").origin == str(tmp_path / "w.ptd")
    assert bytes(constant_bytes(pte, data_map, value(pte, 3))) == bytes(24)
    assert bytes(initial_bytes(pte, data_map, value(pte, 4))) == bytes(24)


def test_a_missing_key_names_what_was_looked_through(pte: PteFile, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no data is called 'w' in <bytes>") as caught:
        constant_bytes(pte, NamedDataMap(pte), value(pte, 3))
    assert "hint: the program keeps data outside of it: give its .ptd file" in str(caught.value)
    assert isinstance(caught.value, LookupError)
    other = data_file({"weight": (b"1", None)}, tmp_path, "other.ptd")
    with pytest.raises(NotFoundError, match=r"in <bytes> or .*other\.ptd") as caught:
        NamedDataMap(pte, [other]).get("weights")
    assert "hint: there is 'weight'" in str(caught.value)
    with pytest.raises(NotFoundError, match="does not belong to this program"):
        NamedDataMap(pte, [other]).get("something else")


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ((bytes(24), layout(ScalarType.INT, 2, 3)), r"is int32 \[2, 3\].*wants float32 \[2, 3\]"),
        ((bytes(24), layout(ScalarType.FLOAT, 3, 2)), r"is float32 \[3, 2\], dim order \[0, 1\]"),
        ((bytes(20), None), "has 20 bytes; the program wants 24"),
    ],
)
def test_data_of_another_shape_are_refused(
    pte: PteFile, tmp_path: Path, entry: Any, text: str
) -> None:
    ptd = data_file({"w": entry}, tmp_path, "w.ptd")
    with pytest.raises(InvalidExternalDataError, match=text):
        constant_bytes(pte, NamedDataMap(pte, [ptd]), value(pte, 3))


def test_another_dim_order_is_refused(pte: PteFile, tmp_path: Path) -> None:
    turned = layout(ScalarType.FLOAT, 2, 3)
    turned.dim_order = [1, 0]
    ptd = data_file({"w": (bytes(24), turned)}, tmp_path, "w.ptd")
    with pytest.raises(InvalidExternalDataError, match=r"dim order \[1, 0\]; the program wants"):
        constant_bytes(pte, NamedDataMap(pte, [ptd]), value(pte, 3))


def test_a_key_twice_with_the_same_bytes_is_one(pte: PteFile, tmp_path: Path) -> None:
    """Delegates of several methods share a blob, in the program and in its data file (I6)."""
    entries = {"inside": (b"abc", layout(ScalarType.BYTE, 3)), "w": (b"12", None)}
    ptds = [data_file(entries, tmp_path, name) for name in ("a.ptd", "b.ptd")]
    data_map = NamedDataMap(pte, ptds)
    assert len(data_map) == 2
    assert data_map.get("inside").layout is not None  # the program knows none


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ((b"abd", None), "is in <bytes> and in .*a.ptd, with different bytes"),
        ((b"abcd", None), r"with different bytes \(3 and 4\)"),
    ],
)
def test_a_key_twice_with_other_bytes_is_refused(
    pte: PteFile, tmp_path: Path, other: Any, text: str
) -> None:
    with pytest.raises(InvalidExternalDataError, match=text):
        NamedDataMap(pte, [data_file({"inside": other}, tmp_path, "a.ptd")])


def test_a_key_twice_with_other_layouts_is_refused(pte: PteFile, tmp_path: Path) -> None:
    ptds = [
        data_file({"k": (bytes(8), layout(dtype, 2))}, tmp_path, f"{at}.ptd")
        for at, dtype in enumerate((ScalarType.FLOAT, ScalarType.INT))
    ]
    with pytest.raises(InvalidExternalDataError, match="with different layouts"):
        NamedDataMap(pte, ptds)


def test_a_difference_at_the_end_of_large_data_is_seen(pte: PteFile, tmp_path: Path) -> None:
    large = bytes(3 << 20)
    ptds = [
        data_file({"k": (data, None)}, tmp_path, f"{at}.ptd")
        for at, data in enumerate((large, large[:-1] + b"\1"))
    ]
    with pytest.raises(InvalidExternalDataError, match="different bytes"):
        NamedDataMap(pte, ptds)
