"""``pteron verify``: what it finds, and what it says of what it cannot check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support import cuda_fixtures
from support.commands import DIGITS, MODULES, ROOT, cli

LINEAR = ROOT / MODULES / "ModuleLinearProgram.pte"
LINEAR_DATA = ROOT / MODULES / "ModuleLinearProgram.ptd"


def verify_json(*words: str | Path) -> tuple[int, list[Any]]:
    done = cli("verify", *words, "--json")
    assert done.err == ""
    return done.code, json.loads(done.out)["files"]


def test_one_bad_file_among_good_ones_is_code_1(tmp_path: Path) -> None:
    cut = tmp_path / "cut.pte"
    cut.write_bytes((ROOT / DIGITS).read_bytes()[:-1])
    code, (good, bad) = verify_json(ROOT / DIGITS, cut)
    assert code == 1
    assert (good["ok"], good["violations"]) == (True, [])
    assert not bad["ok"]
    assert "cut short" in bad["violations"][0]["message"]


def test_a_missing_file_is_reported_and_the_others_are_checked() -> None:
    done = cli("verify", ROOT / DIGITS, "no.pte", ROOT / DIGITS)
    assert (done.code, done.err) == (1, "")
    ok = f"{ROOT / DIGITS}: ok\n"
    assert done.out == f"{ok}no.pte: cannot be read\n  1. no.pte does not exist\n{ok}"


def test_a_damaged_data_file_is_listed(tmp_path: Path) -> None:
    data = bytearray(LINEAR_DATA.read_bytes())
    at = data.index((3).to_bytes(4, "little") * 2)  # the sizes of linear.weight
    data[at : at + 4] = (30).to_bytes(4, "little")
    damaged = tmp_path / "damaged.ptd"
    damaged.write_bytes(data)
    code, (report,) = verify_json(damaged)
    assert (code, report["kind"]) == (1, "data")
    (violation,) = report["violations"]
    assert violation["where"] == "named data 0 'linear.weight'"
    assert violation["message"] == "float32[30, 3] has 360 bytes; its segment has 36"


def test_external_weights_are_checked_against_the_data_file(tmp_path: Path) -> None:
    assert verify_json(LINEAR, "--data", LINEAR_DATA)[0] == 0
    data = LINEAR_DATA.read_bytes().replace(
        (3).to_bytes(4, "little") * 2, bytes([9, 0, 0, 0, 1]) + bytes(3)
    )
    other = tmp_path / "other.ptd"
    other.write_bytes(data)
    code, (report,) = verify_json(LINEAR, "--data", other)
    assert code == 1
    (violation,) = report["violations"]
    assert violation["method"] == "forward"
    assert "float32 [9, 1]" in violation["message"]
    assert "float32 [3, 3]" in violation["message"]


@pytest.mark.parametrize("with_data", [True, False])
def test_changed_native_code_is_found(with_data: bool, tmp_path: Path) -> None:
    folder = cuda_fixtures.folder() / "linear_relu"
    data = (folder / "linear_relu.pte").read_bytes()
    changed = tmp_path / "changed.pte"
    at = data.index(b"\x7fELF") + 5000
    changed.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    words = ("--data", folder / "aoti_cuda_blob.ptd") if with_data else ()
    code, (report,) = verify_json(changed, *words)
    assert code == 1
    (violation,) = report["violations"]
    assert violation["where"] == "method 'forward', delegate 0 (CudaBackend)"
    assert "SHA-256" in violation["message"]


def test_the_weights_of_a_delegate_are_looked_for_if_a_data_file_is_given() -> None:
    program = cuda_fixtures.folder() / "linear_relu" / "linear_relu.pte"
    assert verify_json(program)[0] == 0
    code, (report,) = verify_json(program, "--data", LINEAR_DATA)
    assert code == 1
    assert "l.weight" in report["violations"][0]["message"]


def test_a_blob_that_is_not_what_its_backend_reads(tmp_path: Path) -> None:
    data = (ROOT / MODULES / "ModuleAddWithDevice.pte").read_bytes()
    old, new = b"BackendWithCompilerDemo", b"XnnpackBackend"
    prefixes = [len(name).to_bytes(4, "little") for name in (old, new)]
    changed = tmp_path / "changed.pte"
    changed.write_bytes(data.replace(prefixes[0] + old, prefixes[1] + new.ljust(len(old), b"\0")))
    code, (report,) = verify_json(changed)
    assert code == 1
    (violation,) = report["violations"]
    assert violation["where"] == "method 'forward', delegate 0 (XnnpackBackend)"
    assert "XNNPACK" in violation["message"]
