"""Reading and checking .ptd files."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from pteron.errors import InvalidExternalDataError, PteronError
from pteron.format.ptd import PtdFile, read_ptd
from pteron.format.schema import ScalarType as OurScalarType
from pteron.format.source import open_source
from pteron.program.verify import find_ptd_violations, verify_ptd
from support.plans import ScalarType, example, layout, write, write_example, write_ptd


@pytest.fixture(scope="module")
def data() -> bytes:
    return write_ptd(
        {
            "weight": (bytes(range(24)), layout(ScalarType.FLOAT, 2, 3)),
            "blob": (b"anything", None),
        }
    )


def opened(data: bytes) -> PtdFile:
    return read_ptd(open_source(data))


def test_keys_layouts_and_bytes_are_read(data: bytes) -> None:
    ptd = opened(data)
    verify_ptd(ptd)
    weight, blob = ptd.flat_tensor.named_data
    assert (weight.key, blob.key, blob.tensor_layout) == ("weight", "blob", None)
    assert weight.tensor_layout is not None
    assert weight.tensor_layout.scalar_type is OurScalarType.FLOAT
    assert (weight.tensor_layout.sizes, weight.tensor_layout.dim_order) == ((2, 3), (0, 1))
    assert bytes(ptd.segment(weight.segment_index)) == bytes(range(24))
    assert bytes(ptd.segment(blob.segment_index)) == b"anything"


def test_the_files_of_the_exporter_are_correct(shared: Path) -> None:
    paths = sorted((shared / "fixtures").rglob("*.ptd"))
    assert len(paths) > 5
    for path in paths:
        ptd = read_ptd(open_source(path))
        assert find_ptd_violations(ptd) == ()
        assert all(len(ptd.segment(at)) for at in range(len(ptd.flat_tensor.segments)))


def test_every_truncation_is_refused(data: bytes) -> None:
    for size in (*range(0, 64, 3), *range(64, len(data), 37), len(data) - 1):
        with pytest.raises(InvalidExternalDataError):
            opened(data[:size])


def changed(data: bytes, **changes: int) -> bytes:
    names = ("length", "flatbuffer_offset", "flatbuffer_size", "base", "data_size")
    values = dict(zip(names, struct.unpack_from("<IQQQQ", data, 12), strict=True))
    values.update(changes)
    return data[:12] + struct.pack("<IQQQQ", *values.values()) + data[48:]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"length": 32}, "the header's length is 32; allowed are 40 and more"),
        (
            {"flatbuffer_size": 2**64 - 1},
            "damaged: .* 18,446,744,073,709,551,663 bytes up to the end of the flatbuffer",
        ),
        ({"base": 2**63}, "damaged: .* up to the end of the segments"),
        ({"data_size": 2**64 - 1}, "damaged: .* up to the end of the segments"),
        (
            {"flatbuffer_size": 20},
            "the root table is said to be at offset 0x48; allowed are 0x8 to",
        ),
        ({"flatbuffer_size": 60}, "goes past the end of the data file's flatbuffer"),
    ],
)
def test_headers_that_lie_are_refused(data: bytes, changes: dict[str, int], text: str) -> None:
    with pytest.raises(InvalidExternalDataError, match=text) as caught:
        opened(changed(data, **changes))
    assert caught.value.code == 0x24


def test_segments_past_the_promised_bytes_are_violations(data: bytes) -> None:
    found = find_ptd_violations(opened(changed(data, data_size=30)))
    assert len(found) == 1
    assert "goes past the end of the segments, which have 30 bytes" in str(found[0])
    with pytest.raises(InvalidExternalDataError, match="goes past the end of the segments"):
        verify_ptd(opened(changed(data, data_size=30)))


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (
            (bytes(8), layout(ScalarType.FLOAT, 2, 3)),
            r"float32\[2, 3\] has 24 bytes; its segment has 8",
        ),
        ((bytes(8), layout(ScalarType.FLOAT, -2, 3)), "size -2 is negative"),
        ((bytes(8), layout(ScalarType.FLOAT, *[1] * 17)), "rank 17; allowed are 16 dimensions"),
        ((bytes(8), layout(ScalarType.LONG, 2**31 - 1, 2**31 - 1)), "bytes; its segment has 8"),
    ],
)
def test_layouts_that_cannot_be_are_violations(entry: Any, text: str) -> None:
    with pytest.raises(InvalidExternalDataError, match=text) as caught:
        verify_ptd(opened(write_ptd({"w": entry})))
    assert "named data 0 'w'" in str(caught.value)


def test_a_dim_order_that_is_no_permutation_is_a_violation() -> None:
    wrong = layout(ScalarType.FLOAT, 2, 3)
    wrong.dim_order = [1, 1]
    with pytest.raises(InvalidExternalDataError, match=r"dim order \[1, 1\] is not a permutation"):
        verify_ptd(opened(write_ptd({"w": (bytes(24), wrong)})))


def test_a_program_given_as_data_is_told_apart() -> None:
    with pytest.raises(
        InvalidExternalDataError, match="it is an ExecuTorch program\nhint: give it as the program"
    ):
        opened(write_example())
    with pytest.raises(PteronError, match="is empty"):
        opened(b"")
    with pytest.raises(InvalidExternalDataError, match=r"expected b'FT01'"):
        opened(b"garbage " * 20)


def test_nothing_but_a_header_is_refused() -> None:
    assert write(example(), mutable=[bytes(24)])
    with pytest.raises(InvalidExternalDataError, match="the header is missing"):
        opened(b"\x10\0\0\0FT01" + bytes(80))
