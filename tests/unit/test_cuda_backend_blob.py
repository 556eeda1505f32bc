"""The CUDA delegate's payload: three generations, checked against the data that it names."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from pteron import limits
from pteron.backends.cuda import describe, violations
from pteron.backends.cuda.blob import (
    MAGIC,
    Generation,
    check_data,
    find_problems,
    parse_payload,
)
from pteron.errors import (
    DelegateInvalidCompatibilityError,
    InvalidExternalDataError,
    InvalidProgramError,
    NotFoundError,
    PteronError,
)
from pteron.format.schema import DeviceType, ScalarType
from pteron.program.data_map import DataEntry
from support import cuda_fixtures as fixtures

DELEGATES = [
    ("dynamic_batch", "forward", "52cf6a100c1d", 2, 8_320),
    ("gpu_resident_io", "forward", "928f9e6f2134", 2, 8_320),
    ("kv_cache", "forward", "2d37aa95a680", 3, 6_272),
    ("linear_relu", "forward", "c91725690bcc", 2, 8_320),
    ("mixed_host_cuda", "forward2", "08f5691c9ebc", 2, 4_198_400),
    ("prefill_decode", "decode", "f89f94e753d5", 5, 68_240),
    ("prefill_decode", "prefill", "7bab39ddb1f5", 5, 68_240),
    ("small_cnn", "forward", "8a3b1a3fbac4", 10, 21_928),
    ("transformer_block_bf16", "forward", "efa5aaf11f3e", 12, 6_304_768),
    ("two_gpus", "on0", "928f9e6f2134", 2, 8_320),
    ("two_gpus", "on1", "a2b461c7ad42", 2, 8_320),
]


class Data(dict[str, bytes]):
    def get(self, key: str) -> DataEntry:  # type: ignore[override]
        return DataEntry(memoryview(self[key]), None, "data.ptd")


def entry(
    fqn: str = "l.weight",
    key: str = "k",
    nbytes: int = 24,
    dtype: int = 6,
    device: int = 1,
    offset: int = 0,
    sizes: tuple[int, ...] = (2, 3),
    strides: tuple[int, ...] = (3, 1),
    rank: int | None = None,
) -> bytes:
    packed = b"".join(struct.pack("<I", len(s)) + s.encode() for s in (fqn, key))
    rank = len(sizes) if rank is None else rank
    return packed + struct.pack(
        f"<QiiqI{len(sizes)}q{len(strides)}q", nbytes, dtype, device, offset, rank, *sizes, *strides
    )


def payload(*entries: bytes, key: str = "code", count: int | None = None) -> bytes:
    head = MAGIC + struct.pack("<I", len(key)) + key.encode()
    return head + struct.pack("<I", len(entries) if count is None else count) + b"".join(entries)


def parse(data: bytes, method: str = "forward") -> Any:
    return parse_payload(memoryview(data), method_name=method, where="delegate 0")


@pytest.mark.parametrize(("name", "method", "digest", "weights", "nbytes"), DELEGATES)
def test_every_fixture_is_described(
    name: str, method: str, digest: str, weights: int, nbytes: int
) -> None:
    program = fixtures.open_program(name)
    code = describe(program.payload(method), program.data, method_name=method)
    assert code.digest.startswith(digest)
    assert code.key == f"{code.digest}_so_blob"
    assert code.generation is Generation.NAMED
    assert code.machine == "x86_64"
    assert code.architectures == ("sm_90a",)
    assert len(code.keys) == 1 + weights
    assert code.weight_bytes == nbytes
    assert code.libraries[0] == "libcuda.so.1"
    assert "aoti_torch_get_data_ptr" in code.undefined
    assert "cudaMalloc" in code.undefined
    assert 160 < code.undefined_count < 180
    assert violations(program.payload(method), program.data, method_name=method) == ()


def test_every_delegate_of_the_fixtures_is_in_the_table() -> None:
    found = [
        (name, method)
        for name in fixtures.NAMES
        for method, _, _ in fixtures.open_program(name).delegates()
    ]
    assert found == [(name, method) for name, method, *_ in DELEGATES]


def test_methods_name_the_same_keys_for_the_same_weights() -> None:
    program = fixtures.open_program("prefill_decode")
    parsed = [parse(bytes(program.payload(m))) for m in ("prefill", "decode")]
    keys = [{e.storage_key for e in p.entries} for p in parsed]
    assert keys[0] == keys[1]
    assert parsed[0].shared_object_key != parsed[1].shared_object_key


def test_a_weight_is_read_whole() -> None:
    parsed = parse(payload(entry(offset=1, sizes=(2, 2), strides=(2, 1), nbytes=20, dtype=15)))
    (weight,) = parsed.entries
    assert (weight.fqn, weight.storage_key, weight.storage_nbytes) == ("l.weight", "k", 20)
    assert (weight.scalar_type, weight.device_type) == (ScalarType.BFLOAT16, DeviceType.CUDA)
    assert (weight.storage_offset, weight.sizes, weight.strides) == (1, (2, 2), (2, 1))
    assert weight.required_bytes == 10
    assert parsed.keys == ("code", "k")
    assert parsed.weight_bytes == 20


def test_a_weight_without_elements_needs_no_bytes() -> None:
    assert parse(payload(entry(sizes=(0, 3), nbytes=0))).entries[0].required_bytes == 0


def test_two_keys_one_a_line() -> None:
    parsed = parse(b"abc_so_blob\nabc_weights_blob")
    assert parsed.generation is Generation.KEYED
    assert (parsed.shared_object_key, parsed.weights_key) == ("abc_so_blob", "abc_weights_blob")
    assert parse(b"abc_so_blob\nabc_weights_blob\n") == parsed


@pytest.mark.parametrize(
    ("method", "keys"),
    [("step", ("step_so_blob", "step_weights_blob")), ("", ("so_blob", "weights_blob"))],
)
def test_an_empty_payload_takes_its_keys_from_the_method(
    method: str, keys: tuple[str, str]
) -> None:
    parsed = parse(b"", method)
    assert parsed.generation is Generation.LEGACY
    assert parsed.keys == keys


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"only_one_key", "two keys, one a line; found b'only_one_key'"),
        (b"\nweights", "two keys"),
        (b"code\n", "two keys"),
        (b"a\nb\nc", "two keys"),
        (b"a\xff\nb", "byte 1 is 0xff"),
        (b"a" * (2 * limits.MAX_NAME_BYTES + 2), "no pair of keys"),
        (payload(entry())[:-1], "weight 0's strides takes 16 bytes, 15 are left"),
        (payload(entry(), count=2), "the length of weight 1's name takes 4 bytes, 0 are left"),
        (payload(count=limits.MAX_NAMED_DATA + 1), "1,000,001 weights"),
        (MAGIC + struct.pack("<I", 1 << 31), "key of 2,147,483,648 bytes"),
        (payload(entry(rank=17)), "has 17 dimensions (at most 16)"),
        (payload(entry(fqn="a\0b")), "holds a NUL"),
    ],
)
def test_a_payload_that_cannot_be_read_is_refused_with_its_place(data: bytes, text: str) -> None:
    with pytest.raises(InvalidProgramError) as refusal:
        parse(data)
    assert text in str(refusal.value)
    assert str(refusal.value).startswith("delegate 0: ")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (payload(entry(dtype=99)), "scalar type 99 is unknown"),
        (payload(entry(device=7)), "device type 7"),
        (payload(entry(offset=-1)), "negative storage offset, -1"),
        (payload(entry(sizes=(-2, 3))), "negative sizes [-2, 3]"),
        (payload(entry(strides=(3, -1))), "negative sizes [2, 3] or strides [3, -1]"),
        (payload(entry(nbytes=23)), "reach 24 bytes into a storage of 23"),
        (payload(entry(strides=(1 << 62, 1))), "bytes into a storage of 24"),
        (payload(entry(sizes=(1 << 40, 1 << 40), strides=(0, 0))), "elements"),
        (payload(entry(nbytes=1 << 50)), "a storage of 1,125,899,906,842,624 bytes"),
        (payload(entry(), entry(key="other")), "weight 'l.weight' is named twice"),
        (payload(entry(), entry(fqn="b", nbytes=32)), "key 'k' is given two sizes"),
        (payload(entry()) + b"xx", "2 bytes follow the last weight"),
        (payload(key=""), "shared object's key is empty"),
    ],
)
def test_a_payload_that_makes_no_sense_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(InvalidProgramError) as refusal:
        parse(data)
    assert text in str(refusal.value)


def test_all_problems_are_told_together() -> None:
    with pytest.raises(InvalidProgramError) as refusal:
        parse(payload(entry(dtype=99), entry(fqn="b", offset=-1), entry(fqn="b", key="c")) + b"x")
    assert len(refusal.value.violations) == 4
    assert "(and 3 more)" in str(refusal.value)


def test_a_later_generation_is_called_so() -> None:
    with pytest.raises(DelegateInvalidCompatibilityError, match="ETCUDAFQN4") as refusal:
        parse(b"ETCUDAFQN4" + payload()[len(MAGIC) :])
    assert refusal.value.hint


def test_missing_data_is_named_all_at_once() -> None:
    program = fixtures.open_program("small_cnn", with_data=False)
    parsed = parse(bytes(program.payload("forward")))
    with pytest.raises(NotFoundError) as refusal:
        check_data(parsed, program.data, where="delegate 0")
    assert "10 of 11 keys" in str(refusal.value)
    assert "'cuda_fqn_weight:cuda:0.weight'" in str(refusal.value)
    assert "data_path" in str(refusal.value)


def test_data_of_another_size_is_named() -> None:
    parsed = parse(payload(entry()))
    with pytest.raises(InvalidExternalDataError, match=r"'k' has 20 bytes in data.ptd, .* 24"):
        check_data(parsed, Data(code=b"", k=bytes(20)), where="delegate 0")


def test_code_that_is_not_what_its_key_promises_is_refused() -> None:
    program = fixtures.open_program("linear_relu")
    code = describe(program.payload("forward"), program.data)
    data = Data({key: bytes(program.data.get(key).data) for key in code.keys})
    data[code.key] = data[code.key][:-1] + b"\1"
    (problem,) = violations(program.payload("forward"), data)
    assert f"promises SHA-256 {code.digest}" in problem
    with pytest.raises(InvalidProgramError):
        describe(program.payload("forward"), data)


def test_what_is_described_needs_no_weights() -> None:
    program = fixtures.open_program("linear_relu", with_data=False)
    assert describe(program.payload("forward"), program.data).digest.startswith("c91725690bcc")
    (problem,) = violations(program.payload("forward"), program.data)
    assert "2 of 3 keys" in problem


def test_every_truncation_is_an_error_with_a_place() -> None:
    whole = bytes(fixtures.open_program("kv_cache").payload("forward"))
    for length in range(1, len(whole)):
        problems = find_problems(
            memoryview(whole[:length]), None, method_name="forward", where="delegate 0"
        )
        assert problems, length
        assert all(p.startswith("delegate 0: ") for p in problems)


def test_damage_is_an_error_or_another_payload_never_a_crash() -> None:
    draw = random.Random(7)
    wholes = [bytes(p) for n in fixtures.NAMES for _, _, p in fixtures.open_program(n).delegates()]
    for _ in range(3000):
        data = bytearray(draw.choice(wholes))
        for _ in range(draw.randint(1, 3)):
            place = draw.randrange(len(data) - 8)
            if draw.random() < 0.5:
                data[place] = draw.randrange(256)
            else:
                data[place : place + 8] = draw.choice(
                    [b"\xff" * 8, bytes(8), struct.pack("<Q", 1 << draw.randrange(64))]
                )
        try:
            parse(bytes(data))
        except PteronError as error:
            assert "delegate 0" in str(error)  # noqa: PT017
