"""executorch's binding surface on pteron: shapes of calls, error classes and texts, lifetimes."""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pteron.compat import executorch as compat
from pteron.errors import PteronError
from pteron.format.etdump import read_etdump
from pteron.format.source import open_source
from support.portable_fixtures import PORTABLE, stored

DIGITS = Path(__file__).parents[2] / "demo" / "digits.pte"
TWO = PORTABLE / "two_methods" / "program.pte"
COUNTER = PORTABLE / "counter" / "program.pte"
EXTERNAL = PORTABLE / "external_weights"

NAMES = {
    "BundledModule",
    "ExecuTorchMethod",
    "ExecuTorchModule",
    "ExecuTorchProgram",
    "MethodMeta",
    "TensorInfo",
    "Verification",
    "_create_profile_block",
    "_dump_profile_results",
    "_get_operator_names",
    "_get_registered_backend_names",
    "_is_available",
    "_load_bundled_program_from_buffer",
    "_load_for_executorch",
    "_load_for_executorch_from_buffer",
    "_load_for_executorch_from_bundled_program",
    "_load_for_executorch_from_data_loader",
    "_load_program",
    "_load_program_from_buffer",
    "_reset_profile_results",
    "_threadpool_get_thread_count",
    "_unsafe_reset_threadpool",
}


@pytest.fixture
def lib() -> Iterator[ModuleType]:
    """Return the binding module as code that was written for executorch imports it."""
    compat.install(out_variants=False)
    try:
        yield importlib.import_module("executorch.extension.pybindings.portable_lib")
    finally:
        compat.uninstall()


def first_call(folder: Path, method: str = "forward") -> tuple[list[torch.Tensor], list[object]]:
    facts = stored(folder.name)
    calls = facts["calls"][method] if "calls" in facts else facts[method]
    inputs, outputs = calls[0]
    return list(inputs), list(outputs)


# -- what is installed ---------------------------------------------------------------------------


def test_every_name_of_the_binding_is_there(lib: ModuleType) -> None:
    assert {name for name in dir(lib) if not name.startswith("__")} == NAMES
    binding = importlib.import_module("executorch.extension.pybindings._C")
    assert {name for name in dir(binding) if not name.startswith("__")} == NAMES
    assert binding._load_program is lib._load_program


def test_every_way_to_import_gives_the_stand_in(lib: ModuleType) -> None:
    from executorch.extension.pybindings import portable_lib  # type: ignore[import-untyped]
    from executorch.runtime import Runtime  # type: ignore[import-untyped]

    assert portable_lib is lib
    assert Runtime.__module__ == "pteron.compat.runtime"
    assert importlib.util.find_spec("executorch.extension.pybindings._C") is not None


def test_uninstall_brings_back_what_was_there() -> None:
    names = list(compat.STAND_INS)
    before = {name: sys.modules.get(name) for name in names}
    compat.install(out_variants=False)
    assert compat.installed()
    compat.uninstall()
    assert not compat.installed()
    assert {name: sys.modules.get(name) for name in names} == before


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", *words], capture_output=True, text=True, check=False
    )


def test_a_script_runs_on_pteron(tmp_path: Path) -> None:
    script = tmp_path / "user.py"
    script.write_text(
        "import sys\n"
        "from executorch.runtime import Runtime\n"
        "program = Runtime.get().load_program(sys.argv[1])\n"
        "print(Runtime.__module__, sorted(program.method_names), __name__)\n"
    )
    done = run("-m", "pteron.compat.executorch", "--", str(script), str(DIGITS))
    assert done.stdout.split() == ["pteron.compat.runtime", "['forward']", "__main__"], done.stderr


def test_no_executorch_is_needed(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'executorch': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "from pteron.compat import executorch\n"
        "executorch.install()\n"
        "from executorch.runtime import Runtime\n"
        "from executorch.extension.pybindings.portable_lib import _load_for_executorch\n"
        "print(_load_for_executorch(sys.argv[1]).method_names())\n"
    )
    done = run("-c", code, str(DIGITS))
    assert done.stdout.strip() == "['forward']", done.stderr


def test_a_command_on_the_path_runs_on_pteron(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "user-command"
    command.write_text(
        f"#!{sys.executable}\nimport sys\nfrom executorch.runtime import Runtime\n"
        "print(Runtime.__module__, sys.argv[1:])\n"
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    done = run("-m", "pteron.compat.executorch", "--", "user-command", "a", "b")
    assert done.stdout.strip() == "pteron.compat.runtime ['a', 'b']", done.stderr
    done = run("-m", "pteron.compat.executorch", "--", "no-such-command")
    assert done.returncode == 2
    assert "no-such-command: there is no such script or command" in done.stderr


def test_usage_without_a_command() -> None:
    done = run("-m", "pteron.compat.executorch")
    assert done.returncode == 2
    assert "usage: python -m pteron.compat.executorch" in done.stderr


def test_the_bridge_sees_past_the_stand_in(lib: ModuleType) -> None:
    pytest.importorskip("executorch.exir", reason="executorch is not installed")
    original = lib.__pteron_original__()
    assert original is not None
    assert original._load_program is not lib._load_program
    assert sys.modules["executorch.extension.pybindings.portable_lib"] is not None
    assert compat.installed()


# -- modules, programs, methods ------------------------------------------------------------------


def test_the_old_and_the_new_path_give_the_same(lib: ModuleType) -> None:
    data = TWO.read_bytes()
    module = lib._load_for_executorch_from_buffer(data)
    program = lib._load_program(str(TWO))
    assert module.method_names() == [program.get_method_name(i) for i in range(2)]
    facts = stored("two_methods")
    for name in module.method_names():
        inputs, expected = facts["calls"][name][0]
        outputs = module.run_method(name, inputs)
        torch.testing.assert_close(outputs, list(expected), rtol=1e-4, atol=1e-4)
        again = program.load_method(name)(inputs)
        torch.testing.assert_close(again, outputs, rtol=0, atol=0)
        parts = program.load_method(name)
        parts.set_inputs(inputs)
        parts.execute()
        torch.testing.assert_close(parts.get_outputs(), outputs, rtol=0, atol=0)


def test_outputs_outlive_their_program(lib: ModuleType) -> None:
    inputs, expected = first_call(PORTABLE / "lstm")
    outputs = lib._load_for_executorch(str(PORTABLE / "lstm" / "program.pte")).forward(inputs)
    gc.collect()
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-4)


def test_outputs_that_are_not_cloned_are_overwritten(lib: ModuleType) -> None:
    module = lib._load_for_executorch(str(PORTABLE / "resnet18" / "program.pte"))
    calls = next(iter(stored("resnet18")["calls"].values()))
    first = module.forward(calls[0][0], clone_outputs=False)[0]
    kept = first.clone()
    second = module.forward([torch.zeros_like(x) for x in calls[0][0]], clone_outputs=False)[0]
    assert first.data_ptr() == second.data_ptr()
    assert not torch.equal(first, kept)


def test_data_files_as_path_and_as_bytes(lib: ModuleType) -> None:
    inputs, expected = first_call(EXTERNAL)
    pte, ptd = EXTERNAL / "program.pte", EXTERNAL / "weights.ptd"
    for module in (
        lib._load_for_executorch(str(pte), str(ptd)),
        lib._load_for_executorch_from_buffer(pte.read_bytes(), ptd.read_bytes()),
    ):
        torch.testing.assert_close(module.forward(inputs), expected, rtol=1e-4, atol=1e-4)
    method = lib._load_program_from_buffer(pte.read_bytes(), data_path=str(ptd)).load_method(
        "forward"
    )
    torch.testing.assert_close(method(inputs), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError, match="Failed to execute method forward, error: 0x20"):
        lib._load_for_executorch(str(pte)).forward(inputs)


def test_a_data_loader_of_ones_own(lib: ModuleType) -> None:
    loader = importlib.import_module("executorch.extension.pybindings.data_loader")
    data = DIGITS.read_bytes()

    class Loader(loader.PyDataLoader):  # type: ignore[misc,name-defined]
        def load(self, offset: int, size: int) -> bytes:
            return data[offset : offset + size]

        def size(self) -> int:
            return len(data)

    module = lib._load_for_executorch_from_data_loader(Loader())
    assert module.method_names() == ["forward"]
    assert module.method_meta("forward").num_inputs() == 1


def test_metadata_outlives_its_program(lib: ModuleType) -> None:
    meta = lib._load_program(str(DIGITS)).method_meta("forward")
    gc.collect()
    info = meta.input_tensor_meta(0)
    assert meta.name() == "forward"
    assert info.dtype() == 6
    assert isinstance(info.sizes(), tuple)
    assert repr(meta).startswith("MethodMeta(name='forward', num_inputs=1, input_tensor_meta=['Te")
    with pytest.raises(IndexError):
        meta.input_tensor_meta(1)


def test_named_state_is_an_attribute_over_the_methods_memory(lib: ModuleType) -> None:
    method = lib._load_program(str(COUNTER)).load_method("forward")
    plan = importlib.import_module("pteron").Runtime.get().load_program(COUNTER)
    names = list(plan.load_method("forward").state)
    if not names[0].startswith("value_"):
        assert isinstance(method.get_attribute(names[0]), torch.Tensor)
    with pytest.raises(RuntimeError, match="Failed to get attribute 'nothing'"):
        method.get_attribute("nothing")


def test_names_of_operators_and_backends(lib: ModuleType) -> None:
    assert "aten::add.out" in lib._get_operator_names()
    assert "XnnpackBackend" in lib._get_registered_backend_names()
    assert lib._is_available("XnnpackBackend")
    assert not lib._is_available("NoSuchBackend")
    assert ("CudaBackend" in lib._get_registered_backend_names()) == torch.cuda.is_available()


def test_threads(lib: ModuleType) -> None:
    before = lib._threadpool_get_thread_count()
    try:
        lib._unsafe_reset_threadpool(2)
        assert lib._threadpool_get_thread_count() == torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_profile_calls_do_what_released_wheels_do(lib: ModuleType) -> None:
    lib._create_profile_block("block")
    assert lib._dump_profile_results() == b""
    lib._reset_profile_results()


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "error: 0x12"),
        ([torch.zeros(1)] * 2, "error: 0x12"),
        ([torch.zeros(3, 5)], "error: 0x10"),
        ([torch.zeros(1, 1, 28, 28, dtype=torch.int64)], "error: 0x12"),
        ([1.5], "error: 0x12"),
        ([[torch.zeros(1)]], "is a list; inputs are passed as a flat list"),
        ([torch.zeros(1, device="meta")], "Input 0 for method forward is on device meta"),
    ],
    ids=["none", "too many", "shape", "dtype", "number", "nested", "meta"],
)
def test_bad_inputs_raise_runtime_error(lib: ModuleType, inputs: object, message: str) -> None:
    module = lib._load_for_executorch(str(DIGITS))
    method = lib._load_program(str(DIGITS)).load_method("forward")
    with pytest.raises(RuntimeError) as caught:
        module.forward(inputs)
    assert message in str(caught.value)
    with pytest.raises(RuntimeError):
        method(inputs)
    sizes = method.method_meta().input_tensor_meta(0).sizes()
    assert len(method([torch.zeros(sizes)])) == 1  # the method stays usable


def test_errors_keep_pterons_words_and_cause(lib: ModuleType) -> None:
    with pytest.raises(RuntimeError) as caught:
        lib._load_for_executorch(str(DIGITS)).forward([torch.zeros(3, 5)])
    assert str(caught.value).startswith("Failed to execute method forward, error: 0x10\n")
    assert "input 0 takes float32[1, 1, 8, 8]" in str(caught.value)
    assert caught.value.code == 0x10  # type: ignore[attr-defined]
    assert isinstance(caught.value.__cause__, PteronError)


def test_a_bad_file_fails_when_the_old_path_first_needs_it(lib: ModuleType) -> None:
    module = lib._load_for_executorch_from_buffer(b"garbage")
    with pytest.raises(RuntimeError, match="error: 0x23"):
        module.method_names()
    with pytest.raises(RuntimeError, match="error: 0x23"):
        module.forward([])
    with pytest.raises(RuntimeError, match="Failed to load program, error: 0x:23"):
        lib._load_program_from_buffer(b"garbage")


def test_a_missing_file_fails_at_once(lib: ModuleType, tmp_path: Path) -> None:
    for load in (lib._load_for_executorch, lib._load_program):
        with pytest.raises(RuntimeError, match="does not exist"):
            load(str(tmp_path / "no.pte"))


def test_unknown_methods(lib: ModuleType) -> None:
    module, program = lib._load_for_executorch(str(DIGITS)), lib._load_program(str(DIGITS))
    with pytest.raises(RuntimeError, match="error: 0x12"):
        module.run_method("nope", [])
    with pytest.raises(RuntimeError, match="0x12"):
        module.method_meta("nope")
    with pytest.raises(RuntimeError, match="0x:12"):
        program.load_method("nope")
    with pytest.raises(RuntimeError, match="0x:12"):
        program.method_meta("nope")
    with pytest.raises(RuntimeError):
        program.get_method_name(1)


# -- executorch.runtime --------------------------------------------------------------------------


def test_runtime_takes_paths_bytes_and_files(lib: ModuleType) -> None:
    runtime = importlib.import_module("executorch.runtime").Runtime.get()
    data = DIGITS.read_bytes()
    with DIGITS.open("rb") as file:
        for given in (DIGITS, str(DIGITS), data, bytearray(data), file):
            assert runtime.load_program(given).method_names == {"forward"}
    with pytest.raises(TypeError, match="file-like object, got int"):
        runtime.load_program(3)


def test_runtime_keeps_the_methods_that_it_loaded(lib: ModuleType) -> None:
    module = importlib.import_module("executorch.runtime")
    program = module.Runtime.get().load_program(DIGITS, verification=module.Verification.Minimal)
    method = program.load_method("forward")
    assert program.load_method("forward") is method
    assert method.metadata.name() == program.metadata("forward").name() == "forward"
    (output,) = method.execute([torch.zeros(method.metadata.input_tensor_meta(0).sizes())])
    assert output.shape == torch.Size(method.metadata.output_tensor_meta(0).sizes())
    registry = module.Runtime.get().operator_registry
    assert "aten::add.out" in registry.operator_names


# -- traces --------------------------------------------------------------------------------------


def test_traces_are_written_on_both_paths(lib: ModuleType, tmp_path: Path) -> None:
    traced = {"enable_etdump": True, "debug_buffer_size": 1 << 16}
    module = lib._load_for_executorch(str(DIGITS), **traced)
    program = lib._load_program_from_buffer(DIGITS.read_bytes(), **traced)
    sizes = module.method_meta("forward").input_tensor_meta(0).sizes()
    module.forward([torch.zeros(sizes)])
    program.load_method("forward")([torch.zeros(sizes)])
    runs = []
    for owner in (module, program):
        assert owner.has_etdump()
        etdump, values = tmp_path / "run.etdp", tmp_path / "run.bin"
        owner.write_etdump_result_to_file(str(etdump), str(values))
        assert values.stat().st_size == 1 << 16
        with open_source(etdump) as source:
            runs.append(read_etdump(source).runs)
    assert [run.name for run in runs[0]] == ["Default", "Execute"]
    assert len(runs[0][1].events) == len(runs[1][1].events) > 10


def test_a_trace_that_was_not_asked_for_is_refused(lib: ModuleType, tmp_path: Path) -> None:
    module = lib._load_for_executorch(str(DIGITS))
    assert not module.has_etdump()
    with pytest.raises(RuntimeError, match="No etdump found: load the program with enable_etdump"):
        module.write_etdump_result_to_file(str(tmp_path / "run.etdp"))
