"""Programs written down table by table with executorch's own dataclasses and serializer.

``example()`` has every kind of value and instruction, and is correct: a test of a rule changes one
thing in it, writes it with :func:`write`, and looks at what the verifier says.
"""

from __future__ import annotations

import copy
import struct
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from executorch.exir import schema as ex
    from executorch.exir._serialize._flatbuffer_program import (
        _flatbuffer_to_program,
        _program_to_flatbuffer,
    )
    from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
    from executorch.exir._serialize._program import (
        PTEFile,
        deserialize_pte_binary,
        serialize_pte_binary,
    )
    from executorch.exir._serialize.data_serializer import DataEntry, DataPayload
    from executorch.exir.scalar_type import ScalarType
    from executorch.exir.tensor_layout import TensorLayout
    from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer

from pteron.format.pte import PteFile, read_pte
from pteron.format.source import open_source
from pteron.program.verify import find_violations

__all__ = [
    "MESSAGE",
    "ScalarType",
    "deserialize_pte_binary",
    "edited",
    "ex",
    "example",
    "inline",
    "kernel",
    "layout",
    "opened",
    "parsed_by_executorch",
    "plan",
    "program",
    "serialize_pte_binary",
    "shared_tables",
    "tensor",
    "violations",
    "write",
    "write_example",
    "write_ptd",
]

MESSAGE = b"the settings of a delegate"


def tensor(
    *sizes: int,
    at: int | None = None,
    buffer: int = 1,
    constant: int = 0,
    dtype: Any = ScalarType.FLOAT,
    order: Sequence[int] | None = None,
    dynamic: bool = False,
    **extra: Any,
) -> Any:
    """Return a tensor value at byte ``at`` of a planned buffer, or a constant, or unplanned.

    Keywords that are left over are the fields of its ``extra_tensor_info``.
    """
    return ex.Tensor(
        scalar_type=dtype,
        storage_offset=0,
        sizes=list(sizes),
        dim_order=list(range(len(sizes)) if order is None else order),
        requires_grad=False,
        layout=0,
        data_buffer_idx=constant,
        allocation_info=None
        if at is None
        else ex.AllocationDetails(buffer, at & 0xFFFFFFFF, at >> 32),
        shape_dynamism=ex.TensorShapeDynamism(1 if dynamic else 0),
        extra_tensor_info=ex.ExtraTensorInfo(**extra) if extra else None,
    )


def kernel(op: int, *args: int) -> Any:
    """Return a call of operator number ``op``."""
    return ex.KernelCall(op, list(args))


def plan(
    values: Sequence[Any],
    instructions: Sequence[Any],
    *,
    inputs: Sequence[int] = (),
    outputs: Sequence[int] = (),
    operators: Sequence[str] = ("aten::add.out",),
    buffers: Sequence[int] = (0, 1024),
    name: str = "forward",
    **others: Any,
) -> Any:
    """Return a method; operators are given as ``namespace::name.overload``."""
    return ex.ExecutionPlan(
        name=name,
        container_meta_type=ex.ContainerMetadata("in", "out"),
        values=[ex.EValue(value) for value in values],
        inputs=list(inputs),
        outputs=list(outputs),
        chains=[ex.Chain([], [], [ex.Instruction(step) for step in instructions], None)],
        operators=[ex.Operator(*_split(text)) for text in operators],
        delegates=others.pop("delegates", []),
        non_const_buffer_sizes=list(buffers),
        **others,
    )


def _split(text: str) -> tuple[str, str]:
    namespace, name = text.split("::")
    base, _, overload = name.partition(".")
    return f"{namespace}::{base}", overload


def program(
    *plans: Any, constants: Sequence[bytes] = (), delegate_data: Sequence[bytes] = ()
) -> Any:
    """Return a program of methods; constant 1 is the first of ``constants``."""
    return ex.Program(
        version=0,
        execution_plan=list(plans),
        constant_buffer=[ex.Buffer(b""), *(ex.Buffer(data) for data in constants)],
        backend_delegate_data=[ex.BackendDelegateInlineData(data) for data in delegate_data],
        segments=[],
        constant_segment=ex.SubsegmentOffsets(0, []),
        mutable_data_segments=None,
        named_data=[],
    )


def write(
    root: Any,
    *,
    mutable: Sequence[bytes] = (),
    named: Mapping[str, bytes] | None = None,
    segments: bool = True,
) -> bytes:
    """Serialize a program as executorch does, delegates' data into ``segments`` if asked."""
    names = list(named or {})
    store = NamedDataStoreOutput(
        buffers=[(named or {})[name] for name in names],
        pte_data={name: DataEntry(at, 16, None) for at, name in enumerate(names)},
        external_data={},
    )
    return bytes(
        serialize_pte_binary(
            PTEFile(
                program=root,
                mutable_data=[ex.Buffer(b""), *map(ex.Buffer, mutable)] if mutable else None,
                named_data=store if names else None,
            ),
            extract_delegate_segments=segments,
        )
    )


def inline(root: Any) -> bytes:
    """Serialize a program as files of the old kind were: no segments, constants inside."""
    return bytes(_program_to_flatbuffer(root).data)


def parsed_by_executorch(data: bytes, size: int) -> Any:
    """Return the flatbuffer of a program as executorch's own reader sees it."""
    return _flatbuffer_to_program(data[:size])


def write_ptd(entries: Mapping[str, tuple[bytes, Any]]) -> bytes:
    """Serialize named data (bytes, layout or None) as a ``.ptd`` file."""
    payload = DataPayload(
        buffers=[data for data, _ in entries.values()],
        named_data={
            key: DataEntry(at, 16, layout) for at, (key, (_, layout)) in enumerate(entries.items())
        },
    )
    return bytes(FlatTensorSerializer().serialize(payload))


def layout(dtype: Any, *sizes: int) -> Any:
    """Return the layout of a contiguous tensor, for :func:`write_ptd`."""
    return TensorLayout(dtype, list(sizes), list(range(len(sizes))))


def opened(data: bytes) -> PteFile:
    """Read a program from bytes."""
    return read_pte(open_source(data))


def violations(data: bytes) -> list[str]:
    """Return what the verifier says of a program."""
    return [str(violation) for violation in find_violations(opened(data))]


def edited(root: Any, edit: Callable[[Any], Any]) -> Any:
    """Return a copy of a program after ``edit`` was called on it."""
    root = copy.deepcopy(root)
    edit(root)
    return root


def shared_tables(*, methods: int, values: int) -> bytes:
    """Write a program by hand whose methods are all one table, and whose values are one too."""
    out = bytearray(struct.pack("<I4s", 0, b"ET12"))

    def vtable(*at: int) -> int:
        start = len(out)
        out.extend(struct.pack(f"<{2 + len(at)}H", 4 + 2 * len(at), 8, *at))
        out.extend(bytes(-len(out) % 4))
        return start

    def same_target(count: int) -> None:
        """Write a vector whose entries all lead to what comes behind it."""
        out.extend(struct.pack(f"<{count + 1}I", count, *range(4 * count, 0, -4)))

    null, value, plan_, root = vtable(), vtable(8, 4), vtable(0, 0, 4), vtable(0, 4)
    out[:4] = struct.pack("<I", len(out))
    out.extend(struct.pack("<iI", len(out) - root, 4))
    same_target(methods)
    out.extend(struct.pack("<iI", len(out) - plan_, 4))
    same_target(values)
    out.extend(struct.pack("<iII", len(out) - value, 8, 1))
    out.extend(struct.pack("<i", len(out) - null))
    return bytes(out)


# -- the example ----------------------------------------------------------------------------------


def example() -> Any:
    """Return a correct program of two methods that has everything the format has."""
    return program(
        _forward(),
        _branches(),
        constants=[bytes(24)],
        delegate_data=[b"a blob"],
    )


def write_example(root: Any = None) -> bytes:
    """Serialize the example, with the data that belong to it."""
    return write(root or example(), mutable=[bytes(24)], named={"weights": b"123", "more": b"45"})


def _forward() -> Any:
    cuda = {"device_type": ex.DeviceType.CUDA, "device_index": 0}
    delegate = ex.BackendDelegate(
        id="DemoBackend",
        processed=ex.BackendDelegateDataReference(ex.DataLocation.INLINE, 0),
        compile_specs=[ex.CompileSpec("target_device", b"cuda:0"), ex.CompileSpec("key", MESSAGE)],
    )
    root = plan(
        [
            tensor(2, 3, at=0),  # 0: input
            tensor(2, 3, constant=1),
            tensor(2, 3, at=32),
            ex.Int(1),
            tensor(2, 3, at=0),  # 4: output, where the input was
            tensor(2, 3, at=0, buffer=2, constant=1, fully_qualified_name="state"),
            ex.Null(),
            ex.Bool(False),
            ex.Double(0.5),
            ex.String("naïve"),
            ex.IntList([3, 3]),
            ex.DoubleList([0.5, -1.0]),
            ex.BoolList([True, False]),
            ex.TensorList([2, 1]),
            ex.OptionalTensorList([-1, 1]),
            tensor(2, 3, at=0, buffer=3, **cuda),
            tensor(2, 3, at=64, order=[1, 0], dynamic=True),
            ex.Int(-(2**62)),
        ],
        [
            kernel(0, 0, 1, 3, 2, 2),
            kernel(1, 2, 15, 15),
            ex.DelegateCall(0, [15]),
            kernel(2, 15, 16, 16),
            kernel(3, 16, 4, 4),
            kernel(4, 5, 4, 7, 5),
        ],
        inputs=[0],
        outputs=[4, 3],
        operators=[
            "aten::add.out",
            "et_copy::_h2d_copy.out",
            "et_copy::_d2h_copy.out",
            "aten::relu.out",
            "aten::copy_",
        ],
        buffers=[0, 128, 32, 32],
        delegates=[delegate],
    )
    root.non_const_buffer_device = [ex.NonConstBufferDevice(3, ex.DeviceType.CUDA, 0)]
    frame = ex.Frame("model.py", 12, "forward", "x + w")
    root.chains[0].stacktrace = [ex.FrameList([frame, frame]), *[ex.FrameList([])] * 5]
    return root


def _branches() -> Any:
    return plan(
        [
            tensor(at=0, dtype=ScalarType.BOOL),  # 0: input, the condition
            tensor(4, at=16),  # 1: input
            tensor(4, at=32),
            tensor(4, at=48),
            ex.Bool(False),
        ],
        [
            ex.JumpFalseCall(0, 4),
            kernel(0, 1, 1, 2, 2),
            ex.MoveCall(2, 3),
            ex.JumpFalseCall(4, 5),
            kernel(0, 1, 1, 3, 3),
            ex.FreeCall(1),
        ],
        inputs=[0, 1],
        outputs=[3],
        operators=["aten::mul.out"],
        buffers=[0, 64],
        name="branches",
    )
