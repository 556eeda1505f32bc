"""Delegates in the installed executorch package, against that package on its own."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import warnings
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("executorch")

from pteron import Runtime
from pteron.backends import executorch_bridge
from pteron.backends.bridge_program import DelegateProgram, plain_dim_order, write_program
from pteron.backends.executorch_bridge import ExecutorchBridge
from pteron.backends.interface import BackendInitContext, DelegateHandle
from pteron.errors import (
    BackendMissingError,
    DelegateInvalidCompatibilityError,
    DelegateInvalidHandleError,
    InvalidProgramError,
    NotSupportedError,
)
from pteron.format.pte import read_pte
from pteron.format.schema import (
    AllocationDetails,
    Bool,
    CompileSpec,
    DelegateCall,
    Double,
    Int,
    IntList,
    Null,
    ScalarType,
    String,
    Tensor,
    TensorShapeDynamism,
)
from pteron.format.source import open_source
from pteron.program.data_map import NamedDataMap
from pteron.program.verify import verify_program
from support import bridge_programs
from support.bridge_programs import channels_last_model, mixed_model
from support.exporting import ExportedFile
from support.models import ARCHITECTURES, Architecture
from support.xnnpack_variants import kept

BRIDGED = {"XnnpackBackend": "executorch"}
ENTRIES = [ARCHITECTURES[n] for n in ("mobilenet_v2", "dynamic_shapes", "lstm", "float16")]


def wheel_results(path: Path, inputs: Sequence[Any]) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from executorch.runtime import Runtime as WheelRuntime

        method = WheelRuntime.get().load_program(path).load_method("forward")
        assert method is not None
        return list(method.execute(list(inputs)))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_architecture_agrees_with_the_wheel(entry: Architecture) -> None:
    file = kept(entry.name, "floats")
    spec = entry.build()["forward"]
    method = Runtime.get().load_program(file.pte, backends=BRIDGED).load_method("forward")
    for inputs in spec.inputs:
        flat = torch.utils._pytree.tree_leaves(inputs)
        got = method.execute(flat)
        want = wheel_results(file.pte, flat)
        for here, there in zip(got, want, strict=True):
            torch.testing.assert_close(here, there, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def mixed() -> ExportedFile:
    return bridge_programs.mixed()


@pytest.mark.parametrize("inputs_known", [True, False])
def test_dynamic_shapes_in_any_order(
    mixed: ExportedFile, inputs_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the blob does not tell where a call's inputs end."""
    if not inputs_known:
        monkeypatch.setattr(executorch_bridge, "call_shape", lambda blob: None)
    method = Runtime.get().load_program(mixed.pte, backends=BRIDGED).load_method("forward")
    model = mixed_model()
    for batch in (6, 1, 4, 6):
        inputs = [torch.randn(batch, 3, 8, 8), torch.randn(batch, 4)]
        for got, want in zip(method.execute(inputs), model(*inputs), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_channels_last_tensors_of_changing_size() -> None:
    file = bridge_programs.channels_last()
    method = Runtime.get().load_program(file.pte, backends=BRIDGED).load_method("forward")
    for batch in (1, 6, 3):
        x = torch.randn(batch, 3, 6, 5)
        (got,) = method.execute([x])
        torch.testing.assert_close(got, channels_last_model()(x), rtol=1e-4, atol=1e-5)


def test_instances_do_not_share_results(mixed: ExportedFile) -> None:
    program = Runtime.get().load_program(mixed.pte, backends=BRIDGED)
    first, second = program.new_method("forward"), program.new_method("forward")
    model = mixed_model()
    a = [torch.randn(2, 3, 8, 8), torch.randn(2, 4)]
    b = [torch.randn(3, 3, 8, 8), torch.randn(3, 4)]
    results = first.execute(a), second.execute(b)
    first.reset()
    for got, inputs in ((*results[:1], a), (*results[1:], b), (first.execute(a), a)):
        torch.testing.assert_close(got[0], model(*inputs)[0], rtol=1e-5, atol=1e-5)


def test_only_the_extension_is_imported(mixed: ExportedFile) -> None:
    """executorch's Python modules cost seconds and are not needed."""
    script = (
        "import json, sys, torch\n"
        "from pteron import Runtime\n"
        f"program = Runtime.get().load_program({str(mixed.pte)!r}, backends={BRIDGED!r})\n"
        "program.load_method('forward').execute([torch.zeros(2, 3, 8, 8), torch.zeros(2, 4)])\n"
        "print(json.dumps([m for m in sys.modules if m.startswith('executorch.')]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(name.startswith("executorch.extension") for name in json.loads(done.stdout))


def context(**changes: Any) -> BackendInitContext:
    """Return what a delegate of ``mixed`` would be initialised with, changed."""
    empty = open_source(write_program(small()))
    facts: dict[str, Any] = {
        "backend_id": "XnnpackBackend",
        "processed": memoryview(b"no blob at all" * 4),
        "compile_specs": (),
        "method_name": "forward",
        "delegate_index": 0,
        "named_data": NamedDataMap(read_pte(empty)),
        "device": torch.device("cpu"),
        "args": (tensor(2, 3), tensor(2, 3)),
        "native_code": True,
    }
    return BackendInitContext(**(facts | changes))


def tensor(*sizes: int, order: tuple[int, ...] | None = None) -> Tensor:
    return Tensor(
        scalar_type=ScalarType.FLOAT,
        sizes=sizes,
        dim_order=order or tuple(range(len(sizes))),
        allocation_info=AllocationDetails(1, 0),
        shape_dynamism=TensorShapeDynamism.DYNAMIC_BOUND,
    )


def small(**changes: Any) -> DelegateProgram:
    facts: dict[str, Any] = {
        "backend_id": "SomeBackend",
        "compile_specs": (CompileSpec("level", b"\x01\x02"), CompileSpec("empty", b"")),
        "processed": memoryview(b"the blob"),
        "named_data": {"first": memoryview(b"1234"), "second": memoryview(b"x" * 100)},
        "args": (tensor(2, 3), Int(7), Bool(True), Double(0.5), String("s"), Null(), tensor(4)),
        "inputs": (0,),
        "outputs": (6,),
    }
    return DelegateProgram(**(facts | changes))


def test_the_program_that_is_written_holds_what_it_was_given() -> None:
    given = small()
    pte = read_pte(open_source(write_program(given)))
    verify_program(pte)
    (plan,) = pte.program.execution_plan
    assert plan.inputs == (0,)
    assert plan.outputs == (6,)
    assert plan.values[1:6] == given.args[1:6]
    assert plan.values[0].allocation_info is None
    assert plan.values[6].allocation_info == AllocationDetails(1, 0)
    assert plan.values[6].shape_dynamism is TensorShapeDynamism.DYNAMIC_BOUND
    (delegate,) = plan.delegates
    assert delegate.id == "SomeBackend"
    assert [(s.key, bytes(s.value)) for s in delegate.compile_specs] == [
        ("level", b"\x01\x02"),
        ("empty", b""),
    ]
    assert bytes(pte.segment(delegate.processed.index)) == b"the blob"
    named = NamedDataMap(pte)
    assert {key: bytes(named.get(key).data) for key in named} == {
        "first": b"1234",
        "second": b"x" * 100,
    }


def test_executorch_reads_the_program_that_is_written() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from executorch.exir._serialize._program import deserialize_pte_binary

        read = deserialize_pte_binary(write_program(small()))
    (plan,) = read.program.execution_plan
    assert plan.delegates[0].id == "SomeBackend"
    assert plan.chains[0].instructions[0].instr_args.args == list(range(7))
    assert plan.non_const_buffer_sizes == [0, 16]


def test_a_list_cannot_be_handed_over() -> None:
    with pytest.raises(NotSupportedError, match="IntList"):
        write_program(small(args=(IntList((0,)),), inputs=(), outputs=()))


@pytest.mark.parametrize(
    ("sizes", "order", "plain"),
    [
        ((1, 1, 49, 10), (0, 2, 1, 3), (0, 1, 2, 3)),
        ((2, 3, 4, 5), (0, 2, 3, 1), (0, 2, 3, 1)),
        ((2, 1, 4, 5), (0, 2, 3, 1), (0, 1, 2, 3)),
        ((2, 3), (0, 1), (0, 1)),
    ],
)
def test_dim_order_is_the_one_that_strides_show(
    sizes: tuple[int, ...], order: tuple[int, ...], plain: tuple[int, ...]
) -> None:
    assert plain_dim_order(tensor(*sizes, order=order)) == plain


def test_a_delegate_on_another_device_is_refused() -> None:
    with pytest.raises(NotSupportedError, match=r"delegate 0 \(XnnpackBackend\).*cuda:0"):
        ExecutorchBridge("XnnpackBackend").init(context(device=torch.device("cuda:0")))


def test_a_backend_that_executorch_lacks_is_not_available() -> None:
    bridge = ExecutorchBridge("NoSuchBackend")
    assert not bridge.is_available
    with pytest.raises(NotSupportedError, match="NoSuchBackend"):
        bridge.init(context(backend_id="NoSuchBackend"))


def test_a_damaged_blob_is_refused_before_executorch_sees_it(mixed: ExportedFile) -> None:
    pte = read_pte(open_source(mixed.pte))
    plan = pte.program.execution_plan[0]
    blob = bytearray(pte.segment(plan.delegates[0].processed.index))
    blob[10:14] = b"\xff\xff\xff\x7f"
    with pytest.raises(InvalidProgramError):
        ExecutorchBridge("XnnpackBackend").init(context(processed=memoryview(bytes(blob))))


def test_what_executorch_refuses_is_an_error_with_its_text() -> None:
    with pytest.raises(DelegateInvalidCompatibilityError, match=r"executorch .* refuses.*0x") as e:
        ExecutorchBridge("XnnpackBackend").init(context())
    assert "stderr" in str(e.value)


def handle_of(path: Path) -> tuple[DelegateHandle, tuple[Any, ...]]:
    """Return the first delegate of a file, initialised, and what the file says of its values."""
    program = Runtime.get().load_program(path)
    plan = program.pte.program.execution_plan[0]
    call = next(i for i in plan.instructions if isinstance(i, DelegateCall))
    args = tuple(plan.values[index] for index in call.args)
    delegate = plan.delegates[call.delegate_index]
    handle = ExecutorchBridge("XnnpackBackend").init(
        context(
            processed=program.pte.segment(delegate.processed.index),
            named_data=program.data_map,
            args=args,
        )
    )
    return handle, args


def test_a_resized_output_keeps_its_dim_order() -> None:
    file = bridge_programs.channels_last()
    handle, (given, taken) = handle_of(file.pte)
    x = torch.randn(3, *given.sizes[1:]).to(memory_format=torch.channels_last)
    out = torch.zeros(taken.sizes).to(memory_format=torch.channels_last)
    handle.bind([x, out])()
    assert out.shape == (3, *taken.sizes[1:])
    assert out.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(out, channels_last_model()(x), rtol=1e-4, atol=1e-5)


def test_a_closed_delegate_refuses_and_is_let_go(mixed: ExportedFile) -> None:
    handle, args = handle_of(mixed.pte)
    run = handle.bind([torch.zeros(arg.sizes) for arg in args if isinstance(arg, Tensor)])
    run()
    handle.close()
    with pytest.raises(DelegateInvalidHandleError, match="closed"):
        run()
    gone = weakref.ref(handle)
    del handle, run
    gc.collect()
    assert gone() is None


def test_without_executorch_the_error_names_delegate_and_package(
    mixed: ExportedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pteron.backends.registry.installed_executorch", lambda: None)
    with pytest.raises(BackendMissingError, match="XnnpackBackend") as error:
        Runtime.get().load_program(mixed.pte, backends=BRIDGED).load_method("forward")
    assert "pip install executorch" in str(error.value)
