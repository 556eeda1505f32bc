"""Entry points that do not work: what needs them says so, and nothing else is disturbed."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pteron import Runtime, kernels
from pteron.backends import registry
from pteron.backends.bridge_program import DelegateProgram, write_program
from pteron.backends.interface import Backend, BackendInitContext, DelegateHandle
from pteron.backends.registry import BackendRegistry
from pteron.errors import BackendMissingError, OperatorMissingError
from pteron.format.schema import AllocationDetails, ScalarType, Tensor
from support.commands import ROOT, cli
from support.one_op import one_op

DIGITS = ROOT / "demo" / "digits.pte"
XNNPACK = ROOT / "tests" / "fixtures" / "xnnpack" / "float.pte"

MODULE = """
import sys
import pteron
from pteron.backends.interface import Backend

five = 5
pteron_kernel = lambda x: x * 2

def boom(*args):
    raise RuntimeError("boom\\nsecond line")

def leave(*args):
    sys.exit(3)

def half(registry):
    registry.register_kernel("plug::half.out", pteron_kernel)
    registry.unregister("aten::relu.out")
    registry.register_factory(lambda name: None)
    boom()

def whole(registry):
    registry.register_kernel("plug::whole.out", pteron_kernel)

class Raises(Backend):
    id = "PlugBackend"
    def __init__(self):
        raise ZeroDivisionError("in the constructor")
    def init(self, context):
        raise NotImplementedError

class Abstract(Backend):
    id = "PlugBackend"

class Works(Backend):
    id = "PlugBackend"
    def init(self, context):
        raise NotImplementedError
"""

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that installs a package with these lines of one group of entry points.

    What the process has loaded so far is forgotten, before and after.
    """
    monkeypatch.setattr(kernels, "_default", [])
    monkeypatch.setattr(kernels, "_broken", [])
    monkeypatch.setattr(registry, "_broken", {})
    monkeypatch.setattr(registry, "default_backends", BackendRegistry())
    monkeypatch.setattr(registry, "installed_executorch", lambda: None)

    def install(group: str, *lines: str, package: str = "adv-plug", module: str = MODULE) -> Path:
        site = tmp_path / package
        facts = site / f"{package.replace('-', '_')}-1.0.dist-info"
        facts.mkdir(parents=True)
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text("\n".join((f"[{group}]", *lines)))
        # A name of its own for each test, since imported modules stay.
        name = f"plug_{abs(hash(site))}"
        (site / f"{name}.py").write_text(textwrap.dedent(module))
        entries = facts / "entry_points.txt"
        entries.write_text(entries.read_text().replace("MODULE", name))
        monkeypatch.syspath_prepend(site)
        return facts

    return install


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def runs(path: Path) -> bool:
    method = Runtime.get().load_program(path).load_method("forward")
    meta = method.metadata
    shapes = [meta.input_tensor_meta(i).sizes() for i in range(meta.num_inputs())]
    return bool(method.execute([torch.zeros(shape) for shape in shapes]))


def unary(name: str) -> bytes:
    x = torch.ones(3)
    return one_op(name, ["Tensor"], [x], [x])[0]


# -- operators ------------------------------------------------------------------------------------

BROKEN_KERNELS = [
    ("ex = no_such_module.kernels:register", "ModuleNotFoundError: No module named"),
    ("ex = MODULE:nothing", "AttributeError: module"),
    ("ex = MODULE:boom", "RuntimeError: boom"),
    ("ex = MODULE:leave", "SystemExit: 3"),
    ("ex = MODULE:five", "TypeError: 'int' object is not callable"),
    ("ex = MODULE", "TypeError: 'module' object is not callable"),
]


@pytest.mark.parametrize(("line", "cause"), BROKEN_KERNELS)
def test_a_broken_entry_point_for_kernels_disturbs_no_other_program(
    install: Install, line: str, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    install("pteron.kernels", line, "good = MODULE:whole")
    assert all(runs(DIGITS) for _ in range(2))
    (warning,) = warnings_of(caplog)
    assert warning.startswith("entry point 'ex' (")
    assert f") of adv-plug 1.0 failed with {cause}" in warning
    assert "group pteron.kernels" in warning
    assert "second line" not in warning
    assert [str(plugin) in warning for plugin in kernels.broken_plugins()] == [True]
    assert kernels.default_registry().find("plug::whole.out") is not None


def test_an_operator_that_is_missing_names_the_plugins_that_failed(install: Install) -> None:
    install("pteron.kernels", "ex = MODULE:boom")
    with pytest.raises(OperatorMissingError) as caught:
        Runtime.get().load_program(unary("plug::whole.out")).load_method("forward")
    assert "plug::whole.out" in caught.value.message
    hint = str(caught.value.hint)
    assert "pteron.register_kernel, or repair what may bring them: entry point 'ex' (" in hint
    assert hint.endswith(":boom) of adv-plug 1.0 failed with RuntimeError: boom")


def test_what_a_plugin_registered_before_it_failed_is_taken_out(install: Install) -> None:
    install("pteron.kernels", "ex = MODULE:half", "good = MODULE:whole")
    found = kernels.default_registry()
    assert found.find("plug::half.out") is None
    assert found.find("aten::relu.out") is not None
    assert found.find("plug::whole.out") is not None


def test_a_plugin_may_register_process_wide_when_its_module_is_imported(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    module = """
    import pteron

    @pteron.register_kernel("plug::early.out")
    def early(x):
        return x + 1

    def register(registry):
        registry.register_kernel("plug::late.out", early)
    """
    install("pteron.kernels", "ex = MODULE:register", module=module)
    for name in ("plug::early.out", "plug::late.out"):
        method = Runtime.get().load_program(unary(name)).load_method("forward")
        assert method.execute([torch.ones(3)])[0].tolist() == [2.0, 2.0, 2.0]
    assert warnings_of(caplog) == []


def test_a_package_whose_metadata_is_damaged_too_is_reported(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    facts = install("pteron.kernels", "ex = MODULE:boom")
    (facts / "METADATA").unlink()
    assert runs(DIGITS)
    (warning,) = warnings_of(caplog)
    assert ":boom) failed with RuntimeError: boom" in warning


# -- backends -------------------------------------------------------------------------------------

BROKEN_BACKENDS = [
    ("no_such_module.backend:Backend", "ModuleNotFoundError: No module named 'no_such_module'"),
    ("MODULE:nothing", "AttributeError: module"),
    ("MODULE:Raises", "ZeroDivisionError: in the constructor"),
    ("MODULE:Abstract", "TypeError: Can't instantiate abstract class Abstract"),
    ("MODULE:five", "InvalidTypeError: 5 is not a pteron.backends.interface.Backend"),
    ("MODULE:boom", "is not a pteron.backends.interface.Backend"),
]


def plug_program() -> bytes:
    tensor = Tensor(ScalarType.FLOAT, (3,), (0,), allocation_info=AllocationDetails(1, 0))
    return write_program(
        DelegateProgram("PlugBackend", (), memoryview(b""), {}, (tensor, tensor), (0,), (1,))
    )


@pytest.mark.parametrize(("value", "cause"), BROKEN_BACKENDS)
def test_a_broken_backend_is_not_there_and_says_why(
    install: Install, value: str, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    install("pteron.backends", f"PlugBackend = {value}")
    backends = Runtime.get().backend_registry
    assert runs(XNNPACK)
    assert warnings_of(caplog) == []  # nobody asked for it yet
    assert backends.find("PlugBackend") is None
    assert not backends.is_available("PlugBackend")
    assert backends.registered_backend_names == ["CudaBackend", "XnnpackBackend"]
    for _ in range(2):
        with pytest.raises(BackendMissingError) as caught:
            Runtime.get().load_program(plug_program()).load_method("forward")
        text = caught.value.message
        assert "method 'forward' (1 delegate call) needs backend 'PlugBackend'" in text
        assert "entry point 'PlugBackend' (" in text
        assert ") of adv-plug 1.0 failed with " in text
        assert cause in text
        assert caught.value.hint == "repair or uninstall that package"
        assert type(caught.value.__cause__).__name__ in text
    (warning,) = warnings_of(caplog)
    assert cause in warning


def test_a_broken_package_does_not_hand_its_delegates_to_executorch_silently(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("pteron.backends", "PlugBackend = MODULE:five")
    monkeypatch.setattr(registry, "installed_executorch", lambda: "9.9")
    monkeypatch.setattr(registry, "_bridge", lambda *_, **__: pytest.fail("executorch was asked"))
    with pytest.raises(BackendMissingError) as caught:
        Runtime.get().backend_registry.require("PlugBackend", "a test")
    assert "backends={'PlugBackend': 'executorch'}" in str(caught.value.hint)


@pytest.mark.parametrize(("value", "cause"), BROKEN_BACKENDS)
def test_a_broken_package_for_a_built_in_id_leaves_the_built_in(
    install: Install, value: str, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    install("pteron.backends", f"XnnpackBackend = {value}")
    assert all(runs(XNNPACK) for _ in range(2))
    (warning,) = warnings_of(caplog)
    assert cause in warning
    assert registry.runtime_of("XnnpackBackend") == "pteron; adv-plug 1.0 does not load"


def test_another_package_with_the_same_id_is_taken(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install("pteron.backends", "PlugBackend = MODULE:Works", package="second")
    install("pteron.backends", "PlugBackend = MODULE:Raises", package="first")
    backend = Runtime.get().backend_registry.require("PlugBackend", "a test")
    assert type(backend).__name__ == "Works"
    (warning,) = warnings_of(caplog)
    assert "of first 1.0 failed with ZeroDivisionError" in warning


def test_a_backend_that_cannot_say_whether_it_is_available_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Unsure(Backend):
        id = "UnsureBackend"

        @property
        def is_available(self) -> bool:
            raise OSError("no driver")

        def init(self, context: BackendInitContext) -> DelegateHandle:
            raise NotImplementedError

    backends = BackendRegistry()
    backends.register(Unsure())
    assert [backends.is_available("UnsureBackend") for _ in range(2)] == [False, False]
    (warning,) = warnings_of(caplog)
    assert "'UnsureBackend' cannot say whether it is available: OSError: no driver" in warning


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("MODULE:Works", "adv-plug 1.0 if it loads"),
        ("no_such_module:Backend", "nothing here; adv-plug 1.0 does not load"),
        ("pteron.no_such_module:Backend", "nothing here; adv-plug 1.0 does not load"),
    ],
)
def test_inspect_does_not_promise_that_a_package_works(
    install: Install, value: str, told: str, tmp_path: Path
) -> None:
    install("pteron.backends", f"PlugBackend = {value}")
    program = tmp_path / "plug.pte"
    program.write_bytes(plug_program())
    done = cli("inspect", program)
    assert (done.code, done.err) == (0, "")
    assert told in done.out


def test_inspect_needs_no_plugin_that_the_file_does_not_name(install: Install) -> None:
    install("pteron.backends", "PlugBackend = no_such_module:Backend")
    done = cli("inspect", XNNPACK)
    assert (done.code, done.err) == (0, "")
    assert "does not load" not in done.out
