"""What a shared object says of itself, read without loading it."""

from __future__ import annotations

import platform
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from pteron.backends.cuda import describe
from pteron.backends.cuda.describe import check_delegate
from pteron.backends.cuda.device_images import DeviceImage
from pteron.backends.cuda.elf import read_elf
from pteron.errors import DelegateInvalidCompatibilityError, InvalidProgramError, NotFoundError
from support import cuda_fixtures as fixtures


def code_of(name: str = "linear_relu", method: str = "forward") -> bytes:
    program = fixtures.open_program(name)
    return bytes(program.data.get(describe(program.payload(method), program.data).key).data)


def read(code: bytes) -> object:
    return read_elf(memoryview(code), where="the object")


def test_a_real_object() -> None:
    info = read(code_of("small_cnn"))
    assert info.machine == "x86_64"
    assert info.needed == (
        "libcuda.so.1", "libgcc_s.so.1", "libc.so.6", "ld-linux-x86-64.so.2",
    )  # fmt: skip
    assert "AOTInductorModelContainerRunSingleThreaded" in info.defined
    assert "aoti_torch_empty_strided" in info.undefined
    assert "__cxa_finalize" in info.undefined_weak
    assert "__cxa_finalize" not in info.undefined
    assert not info.embeds_constants
    kernels = {image.kernel for image in info.images}
    assert len(kernels) == 8
    assert "triton_poi_fused_convolution_0" in kernels or all(k.startswith("tr") for k in kernels)
    assert {image.kind for image in info.images} == {"cubin", "ptx"}


@pytest.mark.parametrize("name", fixtures.NAMES)
def test_the_same_symbols_as_binutils(name: str, tmp_path: Path) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("no readelf")
    code = code_of(name, {"mixed_host_cuda": "forward2", "prefill_decode": "decode",
                          "two_gpus": "on1"}.get(name, "forward"))  # fmt: skip
    copy = tmp_path / "code.so"
    copy.write_bytes(code)
    lines = subprocess.run(
        ["readelf", "-W", "--dyn-syms", str(copy)], capture_output=True, check=True, text=True
    ).stdout
    undefined, defined = set(), set()
    for line in lines.splitlines():
        columns = line.split()
        if len(columns) >= 8 and columns[0].rstrip(":").isdigit():
            symbol = columns[7].partition("@")[0]
            if columns[6] != "UND":
                defined.add(symbol)
            elif columns[4] != "WEAK":
                undefined.add(symbol)
    info = read(code)
    assert set(info.undefined) == undefined
    assert info.defined == defined


def test_this_interpreters_own_extension_modules_can_be_read() -> None:
    import _ctypes

    info = read_elf(memoryview(Path(_ctypes.__file__).read_bytes()), where="_ctypes")
    assert info.machine == platform.machine()
    assert "PyInit__ctypes" in info.defined
    assert info.images == ()


@pytest.mark.parametrize(
    ("image", "capability", "runs"),
    [
        (("cubin", "sm_90a"), (9, 0), True),
        (("cubin", "sm_90a"), (10, 0), False),
        (("ptx", "sm_90a"), (10, 0), False),
        (("ptx", "sm_90"), (10, 0), True),
        (("ptx", "sm_90"), (8, 0), False),
        (("cubin", "sm_80"), (8, 6), True),
        (("cubin", "sm_86"), (8, 0), False),
        (("cubin", "sm_80"), (9, 0), False),
        (("cubin", "sm_100f"), (10, 3), True),
        (("ptx", "sm_100f"), (12, 0), False),
        (("cubin", "sm_120"), (12, 0), True),
    ],
)
def test_which_device_runs_which_code(
    image: tuple[str, str], capability: tuple[int, int], runs: bool
) -> None:
    assert DeviceImage("k", *image).runs_on(capability) is runs


def test_damage_is_named_with_its_offset() -> None:
    code = code_of()
    for broken, text in (
        (b"", "at offset 0x0"),
        (code[:40], "an ELF header of 64 bytes lies outside the object of 40 bytes"),
        (b"MZ" + code[2:], "begins with \\x7fELF"),
        (code[:4] + b"\1" + code[5:], "not 64-bit little-endian"),
        (code[:16] + b"\2\0" + code[18:], "ELF type 2 is not a shared object"),
        (code[:32] + b"\xff" * 8 + code[40:], "a program header of 56 bytes lies outside"),
        (code[:56] + b"\0\0" + code[58:], "has no dynamic section"),
    ):
        with pytest.raises(InvalidProgramError) as refusal:
            read(broken)
        assert text in str(refusal.value)
        assert str(refusal.value).startswith("the object: at offset ")


def test_any_damage_is_an_error_or_another_object_never_a_crash() -> None:
    code = code_of("kv_cache")
    draw = random.Random(11)
    dynamic = 0x1C6C30 if code[0x1C6C30:0x1C6C31] == b"\1" else 0
    regions = [(0, 64 + 11 * 56), (0x2D0, 0x2E0), (0x9F78, 0xA100)]
    if dynamic:
        regions.append((dynamic, dynamic + 27 * 16))
    for _ in range(150):
        data = bytearray(code)
        low, high = draw.choice(regions)
        place = draw.randrange(low, high - 8)
        data[place : place + 8] = draw.choice(
            [b"\xff" * 8, bytes(8), struct.pack("<Q", draw.getrandbits(64)), struct.pack("<Q", 8)]
        )
        try:
            read(bytes(data))
        except InvalidProgramError as error:
            assert "at offset" in str(error)  # noqa: PT017
    for _ in range(50):
        try:
            read(code[: draw.randrange(len(code))])
        except InvalidProgramError as error:
            assert "at offset" in str(error)  # noqa: PT017


def test_an_object_that_is_no_model_is_refused() -> None:
    import _ctypes

    from support.aoti import Blobs, HostDelegate

    library = Path(_ctypes.__file__).read_bytes()
    delegate = HostDelegate(b"", Blobs(so_blob=library, weights_blob=b""), method="")
    with pytest.raises(DelegateInvalidCompatibilityError, match=r"lacks AOTInductorModelContainer"):
        check_delegate(memoryview(b""), delegate.data, method_name="", where="delegate 0")


def test_missing_symbols_are_named_all_at_once() -> None:
    """A torch without CUDA lacks what the code needs, and nothing of it runs."""
    import torch

    if torch.version.cuda is not None:
        pytest.skip("this torch has CUDA: nothing is missing")
    from dataclasses import replace

    from pteron.backends.cuda.shared_object import load_shared_object, missing_symbols

    program = fixtures.open_program("linear_relu")
    checked = check_delegate(
        program.payload("forward"), program.data, method_name="forward", where="delegate 0"
    )
    with pytest.raises(NotFoundError, match=r"needs libcuda\.so\.1") as refusal:
        missing_symbols(checked, where="delegate 0")
    assert "NVIDIA driver" in str(refusal.value)
    needed = tuple(name for name in checked.info.needed if name != "libcuda.so.1")
    checked = replace(checked, info=replace(checked.info, needed=needed))
    missing = missing_symbols(checked, where="delegate 0")
    assert {"aoti_torch_create_cuda_stream_guard", "cudaMalloc", "cuLaunchKernel"} <= set(missing)
    assert not {"aoti_torch_get_data_ptr", "malloc", "__tls_get_addr"} & set(missing)
    with pytest.raises(DelegateInvalidCompatibilityError) as refusal:
        load_shared_object(checked, where="delegate 0")
    text = str(refusal.value)
    assert all(name in text for name in missing)
    assert f"torch {torch.__version__}" in text
    assert "torch build with CUDA" in text


def test_code_for_another_processor_is_refused() -> None:
    from dataclasses import replace

    from pteron.backends.cuda.shared_object import load_shared_object

    program = fixtures.open_program("two_gpus")
    checked = check_delegate(
        program.payload("on1"), program.data, method_name="on1", where="delegate 0"
    )
    checked = replace(checked, info=replace(checked.info, machine="aarch64"))
    with pytest.raises(DelegateInvalidCompatibilityError, match=r"aarch64; this machine is"):
        load_shared_object(checked, where="delegate 0")


def test_describing_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; from support.cuda_fixtures import *; from pteron.backends.cuda import *\n"
        "p = open_program('linear_relu'); describe(p.payload('forward'), p.data)\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
