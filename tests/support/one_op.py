"""Programs built value by value with executorch's own tables, without exporting a model.

    builder = ProgramBuilder()
    x = builder.tensor(torch.ones(2, 3), role="input")
    y = builder.tensor(torch.ones(2, 3), role="output")
    builder.call("aten::relu.out", x, y, y)
    data = builder.finish()

``one_op`` does that for one operator, from its arguments as Python values.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from support.dense import dim_order

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from executorch.exir import schema
    from executorch.exir._serialize._program import PTEFile, serialize_pte_binary

ALIGNMENT = 16
STATIC = schema.TensorShapeDynamism.STATIC
BOUNDED = schema.TensorShapeDynamism.DYNAMIC_BOUND

SCALAR_TYPES: dict[torch.dtype, int] = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex32: 8,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
}


class ProgramBuilder:
    """Collects the values and instructions of one method."""

    def __init__(self, name: str = "forward") -> None:
        self.name = name
        self.values: list[schema.EValue] = []
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.instructions: list[schema.Instruction] = []
        self.operators: list[schema.Operator] = []
        self.constants: list[schema.Buffer] = [schema.Buffer(storage=b"")]
        self.planned_bytes: int | None = None

    def value(self, value: Any) -> int:
        """Add an EValue's content; return its index."""
        self.values.append(schema.EValue(val=value))
        return len(self.values) - 1

    def tensor(
        self,
        like: torch.Tensor,
        *,
        role: str = "",
        planned: bool = True,
        dynamic: bool = False,
        bound: Sequence[int] | None = None,
    ) -> int:
        """Add a tensor value of ``like``'s dtype, shape (or ``bound``) and dim order.

        ``role`` is ``input``, ``output``, ``constant`` (with ``like``'s values) or empty.
        """
        constant = role == "constant"
        sizes = list(like.shape if bound is None else bound)
        order = dim_order(like)
        count = 1
        for size in sizes:
            count *= size
        buffer = 0
        if constant:
            flat = like.detach().cpu().permute(order).contiguous().reshape(-1)
            if flat.numel():
                raw = bytes(flat.view(torch.uint8).untyped_storage())
                self.constants.append(schema.Buffer(storage=raw))
            else:
                self.constants.append(schema.Buffer(storage=b""))
            buffer = len(self.constants) - 1
        place = None
        if planned and not constant:
            offset = self.planned_bytes or 0
            place = schema.AllocationDetails(1, offset, 0)
            nbytes = count * like.element_size()
            self.planned_bytes = offset + (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        index = self.value(
            schema.Tensor(
                scalar_type=SCALAR_TYPES[like.dtype],  # type: ignore[arg-type]
                storage_offset=0,
                sizes=sizes,
                dim_order=order,
                requires_grad=False,
                layout=0,
                data_buffer_idx=buffer,
                allocation_info=place,
                shape_dynamism=BOUNDED if dynamic else STATIC,
            )
        )
        if role == "input":
            self.inputs.append(index)
        if role == "output":
            self.outputs.append(index)
        return index

    def number(self, value: Any, *, kind: str | None = None) -> int:
        """Add None, a bool, int, float or string; ``kind`` forces one of those."""
        if value is None:
            return self.value(schema.Null())
        if isinstance(value, torch.dtype):
            return self.value(schema.Int(SCALAR_TYPES[value]))
        if isinstance(value, str):
            return self.value(schema.String(value))
        if kind == "float" or (kind is None and isinstance(value, float)):
            return self.value(schema.Double(float(value)))
        if kind == "bool" or (kind is None and isinstance(value, bool)):
            return self.value(schema.Bool(bool(value)))
        return self.value(schema.Int(int(value)))

    def numbers(self, values: Sequence[Any], *, kind: str) -> int:
        """Add a list of ints, floats or bools."""
        if kind == "float":
            return self.value(schema.DoubleList([float(v) for v in values]))
        if kind == "bool":
            return self.value(schema.BoolList([bool(v) for v in values]))
        return self.value(schema.IntList([self.number(int(v)) for v in values]))

    def tensors(self, items: Sequence[int]) -> int:
        """Add a list of tensor values."""
        return self.value(schema.TensorList(list(items)))

    def optional_tensors(self, items: Sequence[int]) -> int:
        """Add a list of tensor values, -1 for None."""
        return self.value(schema.OptionalTensorList(list(items)))

    def call(self, name: str, *args: int) -> None:
        """Add a call of operator ``name`` (``aten::add.out``) on these values."""
        base, _, overload = name.partition(".")
        operator = schema.Operator(name=base, overload=overload)
        if operator not in self.operators:
            self.operators.append(operator)
        index = self.operators.index(operator)
        self.instructions.append(schema.Instruction(schema.KernelCall(index, list(args))))

    def plan(self) -> schema.ExecutionPlan:
        """Return the method."""
        return schema.ExecutionPlan(
            name=self.name,
            container_meta_type=schema.ContainerMetadata("", ""),
            values=self.values,
            inputs=self.inputs,
            outputs=self.outputs,
            chains=[
                schema.Chain(inputs=[], outputs=[], instructions=self.instructions, stacktrace=None)
            ],
            operators=self.operators,
            delegates=[],
            non_const_buffer_sizes=[0] if self.planned_bytes is None else [0, self.planned_bytes],
        )

    def program(self) -> schema.Program:
        """Return a program of this method alone."""
        return schema.Program(
            version=0,
            execution_plan=[self.plan()],
            constant_buffer=self.constants,
            backend_delegate_data=[],
            segments=[],
            constant_segment=schema.SubsegmentOffsets(segment_index=0, offsets=[]),
        )

    def finish(self) -> bytes:
        """Return the program as the bytes of a ``.pte`` file."""
        return bytes(serialize_pte_binary(PTEFile(program=self.program())))


def one_op(
    name: str,
    kinds: Sequence[str],
    args: Sequence[Any],
    outs: Sequence[Any],
    *,
    planned: bool = True,
    dynamic: bool = False,
    bounds: Sequence[Sequence[int]] | None = None,
    returns: str = "repeat",
) -> tuple[bytes, list[torch.Tensor]]:
    """Build a program of one call; return it with the tensors to run it on.

    ``kinds`` are the schema's types of ``args`` (``Tensor``, ``Optional[Tensor]``, ``List[int]``,
    ``number``, ...). ``outs`` are results as they should come out: tensors, or one list of them.
    ``bounds`` are upper bounds of their shapes. ``returns`` says what follows the outs: they
    again (``repeat``), nothing (``none``), or the first argument (``self``).
    """
    builder = ProgramBuilder()
    given: list[torch.Tensor] = []
    known: dict[int, int] = {}

    def take(tensor: torch.Tensor | None) -> int:
        if tensor is None:
            return -1
        if id(tensor) not in known:
            given.append(tensor)
            known[id(tensor)] = builder.tensor(tensor, role="input", planned=planned)
        return known[id(tensor)]

    indices: list[int] = []
    for kind, value in zip(kinds, args, strict=True):
        if isinstance(value, torch.Tensor):
            indices.append(take(value))
        elif value is None:
            indices.append(builder.number(None))
        elif kind == "List[Optional[Tensor]]":
            indices.append(builder.optional_tensors([take(v) for v in value]))
        elif kind == "List[Tensor]":
            indices.append(builder.tensors([take(v) for v in value]))
        elif isinstance(value, (list, tuple)):
            inner = "float" if "float" in kind else "bool" if "bool" in kind else "int"
            indices.append(builder.numbers(value, kind=inner))
        else:
            plain = kind.removeprefix("Optional[").removesuffix("]")
            forced = plain if plain in ("float", "bool") else None
            indices.append(builder.number(value, kind=forced))

    def give(tensor: torch.Tensor, position: int) -> int:
        bound = bounds[position] if bounds is not None else None
        return builder.tensor(tensor, role="output", planned=planned, dynamic=dynamic, bound=bound)

    out_indices: list[int] = []
    repeated: list[int] = []
    for position, out in enumerate(outs):
        if isinstance(out, (list, tuple)):
            items = [give(tensor, position) for tensor in out]
            out_indices.append(builder.tensors(items))
        elif isinstance(out, torch.Tensor):
            out_indices.append(give(out, position))
        else:
            out_indices.append(builder.number(out))
            builder.outputs.append(out_indices[-1])
    if returns == "self":
        repeated = [indices[0]]
        builder.outputs.append(indices[0])
    elif returns == "repeat" and out_indices:
        repeated = [out_indices[0] if len(out_indices) == 1 else builder.tensors(out_indices)]
    builder.call(name, *indices, *out_indices, *repeated)
    return builder.finish(), given
