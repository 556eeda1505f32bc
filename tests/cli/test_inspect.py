"""``pteron inspect``: facts beyond what the text cases show."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import pytest
import torch.utils._pytree as pytree

from pteron.backends import registry
from pteron.cli import inspect_facts, memory, run_outputs, verify
from pteron.cli.native_code import find_native_code
from pteron.format.pte import read_pte
from pteron.format.source import open_source
from pteron.program.data_map import NamedDataMap
from pteron.program.signature import names_of
from support import cuda_fixtures
from support.commands import DIGITS, MODULES, ROOT, cli

DEVICE = ROOT / MODULES / "ModuleAddWithDevice.pte"


def inspect_json(*words: str | Path) -> Any:
    done = cli("inspect", *words, "--json")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


# -- JSON -----------------------------------------------------------------------------------------

ROOTS = {
    "pteron inspect PROGRAM": inspect_facts.Program,
    "pteron inspect DATA": inspect_facts.DataFile,
    "pteron memory": memory.Plans,
    "pteron verify": verify.Reports,
    "pteron run": run_outputs.Summary,
}


def parts_of(hint: Any) -> list[Any]:
    return [hint, *(part for arg in get_args(hint) for part in parts_of(arg))]


def key_lines(kind: Any, indent: str = "") -> list[str]:
    """Return the keys below a type, one a line, with their types."""
    lines = []
    for name, hint in get_type_hints(kind).items():
        shown = re.sub(r"pteron\.cli\.\w+\.", "", str(hint) if get_args(hint) else hint.__name__)
        inner = next((part for part in parts_of(hint) if is_typeddict(part)), None)
        shown = shown.replace("typing.Any", "any").replace("Any", "any").replace("NoneType", "null")
        lines.append(f"{indent}{name}: {shown.replace('None', 'null')}")
        if inner is not None and inner is not inspect_facts.DataFile:
            lines += key_lines(inner, indent + "  ")
    return lines


@pytest.mark.parametrize("command", ROOTS)
def test_every_key_is_documented(command: str) -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    begin = text.index(f"### `{command} --json`")
    documented = text[begin:].split("```")[1].strip("\n").splitlines()
    assert documented == key_lines(ROOTS[command])


def check_keys(kind: Any, found: Any) -> None:
    """Check that a JSON object has the keys of a TypedDict, all the way down."""
    if is_typeddict(kind):
        hints = get_type_hints(kind)
        assert list(found) == list(hints), kind
        for name, hint in hints.items():
            check_keys(hint, found[name])
    elif get_origin(kind) is list:
        for item in found:
            check_keys(get_args(kind)[0], item)
    elif found is not None:
        for arg in get_args(kind):
            if is_typeddict(arg) or get_origin(arg) is list:
                check_keys(arg, found)


def test_the_keys_are_those_of_the_types() -> None:
    folder = cuda_fixtures.folder() / "linear_relu"
    words = (folder / "linear_relu.pte", "--data", folder / "aoti_cuda_blob.ptd", "--instructions")
    check_keys(inspect_facts.Program, inspect_json(*words))
    check_keys(inspect_facts.DataFile, inspect_json(folder / "aoti_cuda_blob.ptd"))
    check_keys(memory.Plans, json.loads(cli("memory", DEVICE, "--json").out))
    check_keys(verify.Reports, json.loads(cli("verify", DEVICE, DIGITS, "--json").out))


def test_instructions_and_values_are_listed_if_asked_for() -> None:
    (method,) = inspect_json(DEVICE)["methods"]
    assert method["instructions"] is None
    assert method["values"] is None
    (method,) = inspect_json(DEVICE, "--instructions", "--values")["methods"]
    assert len(method["instructions"]) == method["num_instructions"] == 4
    assert len(method["values"]) == method["num_values"] == 6
    assert method["instructions"][2] == "delegate 0 'BackendWithCompilerDemo'(%2, %3, %4)"


def test_the_plan_is_told_by_device() -> None:
    (method,) = inspect_json(DEVICE)["methods"]
    assert method["planned_bytes"] == {"cpu": 32, "cuda:0": 48}
    (delegate,) = method["delegates"]
    assert (delegate["id"], delegate["calls"], delegate["blob_bytes"]) == (
        "BackendWithCompilerDemo",
        1,
        81,
    )
    assert delegate["compile_specs"][1] == {
        "key": "target_device",
        "size_bytes": 6,
        "text": "cuda:0",
        "hex": b"cuda:0".hex(),
    }


# -- names ----------------------------------------------------------------------------------------


class Point(tuple):  # type: ignore[type-arg]
    """A node that torch has no serialised form for; stands for one that we cannot read."""


def spec_of(*args: Any, **kwargs: Any) -> str:
    return pytree.treespec_dumps(pytree.tree_structure((args, kwargs)))


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        (spec_of(1, 2), ("[0]", "[1]")),
        (spec_of(1, mask=2, past=[3, (4,)]), ("[0]", "mask", "past[0]", "past[1][0]")),
        (spec_of({"ids": 1, "deep": {"a": 2}}), ("[0].ids", "[0].deep.a")),
        (spec_of({3: 1, 4: 2}), ("[0].3", "[0].4")),
        (spec_of(), ()),
        ("", None),
        ("T2#1#0(T1#1($),D0())", None),
        ("[2, {}]", None),
        ('[1, {"type": "x"}]', None),
        ("[1, " + '{"type":"t","context":"null","children_spec":[' * 100_000, None),
        ("[" * 100_000, None),
    ],
)
def test_names_of_arguments(spec: str, names: tuple[str, ...] | None) -> None:
    assert names_of(spec, inputs=True) == names


def test_names_of_a_dataclass() -> None:
    leaf = {"type": None, "context": None, "children_spec": []}
    tree = {"type": "Out", "context": '[["logits"], ["loss"]]', "children_spec": [leaf]}
    assert names_of(json.dumps([1, tree])) == ("logits",)


def test_a_single_result_has_no_name() -> None:
    assert names_of(pytree.treespec_dumps(pytree.tree_structure(1))) == ("",)


# -- native code ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("installed", "told"),
    [("1.5.1", "executorch 1.5.1 if it has it"), (None, "nothing here; pip install executorch")],
)
def test_what_runs_a_delegate_is_told(
    installed: str | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pteron.backends.registry.installed_executorch", lambda: installed)
    assert told in cli("inspect", DEVICE).out
    (method,) = inspect_json(DEVICE)["methods"]
    assert method["delegates"][0]["runtime"] == told


def test_delegates_of_our_own_and_of_packages_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        registry,
        "entry_points",
        lambda group: [EntryPoint("Theirs", "pteron.backends.interface:Backend", group)],
    )
    assert registry.runtime_of("XnnpackBackend") == "pteron"
    assert registry.runtime_of("Theirs") == "pteron.backends.interface:Backend if it loads"


def test_cuda_delegates_are_described() -> None:
    folder = cuda_fixtures.folder() / "two_gpus"
    program = folder / "two_gpus.pte"
    codes = inspect_json(program)["native_code"]
    assert [code["used_by"] for code in codes] == [
        ["delegate 0 (CudaBackend) of method on0"],
        ["delegate 0 (CudaBackend) of method on1"],
    ]
    pte = read_pte(open_source(program))
    for code, entry in zip(codes, pte.program.named_data, strict=True):
        blob = pte.segment(entry.segment_index)
        assert code["place"] == f"named data {entry.key!r}"
        assert code["sha256"] == hashlib.sha256(blob).hexdigest()
        assert code["size_bytes"] == len(blob)
        assert (code["kind"], code["machine"], code["problem"]) == ("ELF", "x86_64", None)
        assert code["details"]["gpu_architectures"] == ["sm_90a"]
    text = cli("verify", program).out
    assert all(code["sha256"] in text for code in codes)


ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 3, 183)
PE = b"MZ" + bytes(58) + struct.pack("<I", 64) + b"PE\0\0"


@pytest.mark.parametrize(
    ("head", "kind", "machine"),
    [(ELF, "ELF", "aarch64"), (PE, "PE", None), (b"\xcf\xfa\xed\xfe", "Mach-O", None)],
)
def test_code_in_a_blob_of_any_backend_is_found(
    head: bytes, kind: str, machine: str | None, tmp_path: Path
) -> None:
    data = bytearray(DEVICE.read_bytes())
    pte = read_pte(open_source(bytes(data)))
    segment = pte.program.segments[1]
    begin = pte.segment_base_offset + segment.offset
    data[begin : begin + len(head)] = head
    changed = tmp_path / "code.pte"
    changed.write_bytes(data)
    (code,) = inspect_json(changed)["native_code"]
    assert (code["kind"], code["machine"]) == (kind, machine)
    assert code["place"] == "segment 1 (BackendWithCompilerDemo)"
    assert code["sha256"] == hashlib.sha256(data[begin : begin + segment.size]).hexdigest()


def test_a_damaged_cuda_delegate_is_told_and_not_raised() -> None:
    program = cuda_fixtures.folder() / "linear_relu" / "linear_relu.pte"
    data = program.read_bytes().replace(b"ETCUDAFQN3", b"ETCUDAFQN9")
    pte = read_pte(open_source(data))
    sniffed, described = find_native_code(pte, NamedDataMap(pte))
    assert (sniffed["kind"], sniffed["used_by"]) == ("ELF", [])
    assert described["problem"] is not None
    assert "ETCUDAFQN9" in described["problem"]
    assert described["used_by"] == ["delegate 0 (CudaBackend) of method forward"]
