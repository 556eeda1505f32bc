"""A recipe as the bytes of a ``.pte`` file, without an exporter."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from differential.random_programs.operators import ROWS
from differential.random_programs.own_delegates import PREFIX, RowBackend
from differential.random_programs.planning import places
from differential.random_programs.recipe import (
    Arg,
    Branch,
    Call,
    Recipe,
    Ref,
    Role,
    Step,
    Tensors,
    root,
)
from support.one_op import BOUNDED, SCALAR_TYPES, STATIC, ProgramBuilder

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from executorch.exir import schema


class Assembler:
    """Writes one recipe with the tables of executorch."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._builder = ProgramBuilder()
        self._places = places(recipe)
        self._index: dict[int, int] = {}
        """Value of the file by value of the recipe."""
        self._literals: dict[tuple[type, Any], int] = {}
        self._delegates: list[str] = []
        self._data: dict[int, int] = {}
        self._initial: list[schema.Buffer] = [schema.Buffer(storage=b"")]

    def finish(self) -> bytes:
        """Return the file."""
        builder, recipe = self._builder, self._recipe
        for index, value in enumerate(recipe.values):
            if value.role is Role.NUMBER:
                self._index[index] = builder.number(0)
            else:
                self._index[index] = self._tensor(index)
        builder.inputs = [self._index[i] for i in recipe.inputs]
        builder.outputs = [self._index[i] for i in recipe.outputs]
        self._steps(recipe.steps)
        program = builder.program()
        sizes: dict[int, int] = {}
        for place in self._places.values():
            sizes[place.buffer] = max(sizes.get(place.buffer, 0), place.offset + place.nbytes)
        count = max(sizes, default=0)
        program.execution_plan[0].non_const_buffer_sizes = [
            0,
            *(-(-max(sizes.get(n, 0), 16) // 16) * 16 for n in range(1, count + 1)),
        ]
        program.execution_plan[0].delegates = [
            schema.BackendDelegate(
                RowBackend.id,
                schema.BackendDelegateDataReference(schema.DataLocation.INLINE, number),
                [],
            )
            for number in range(len(self._delegates))
        ]
        program.backend_delegate_data = [
            schema.BackendDelegateInlineData(name.encode()) for name in self._delegates
        ]
        from executorch.exir._serialize._program import PTEFile, serialize_pte_binary

        initial = self._initial if len(self._initial) > 1 else None
        return bytes(serialize_pte_binary(PTEFile(program=program, mutable_data=initial)))

    # -- values ------------------------------------------------------------------------------------

    def _tensor(self, index: int) -> int:
        value, recipe = self._recipe.values[index], self._recipe
        owner = root(recipe.values, index)
        place = self._places.get(owner)
        buffer, name = 0, None
        if value.data is not None:
            initial = place is not None
            buffer = self._bytes(value.data, value.order, initial=initial)
            self._data[index] = buffer
        same = index == owner or value.silent  # exporters write what state has to its views, too
        if recipe.values[owner].role is Role.STATE and same:
            buffer = self._data.get(owner, 0)
            name = f"state{owner}" if recipe.layout.state_named else None
        extra = None
        if name is not None:
            extra = schema.ExtraTensorInfo(fully_qualified_name=name)
        allocation = None
        if place is not None:
            allocation = schema.AllocationDetails(place.buffer, place.offset, 0)
        return self._builder.value(
            schema.Tensor(
                scalar_type=SCALAR_TYPES[value.dtype],  # type: ignore[arg-type]
                storage_offset=0,
                sizes=list(value.shape),
                dim_order=list(value.order),
                requires_grad=False,
                layout=0,
                data_buffer_idx=buffer,
                allocation_info=allocation,
                shape_dynamism=BOUNDED if value.dynamic else STATIC,
                extra_tensor_info=extra,
            )
        )

    def _bytes(self, data: torch.Tensor, order: tuple[int, ...], *, initial: bool) -> int:
        """Add the bytes of a constant, or of the initial value of planned state."""
        flat = data.permute(order).contiguous().reshape(-1)
        raw = bytes(flat.view(torch.uint8).untyped_storage()) if flat.numel() else b""
        held = self._initial if initial else self._builder.constants
        held.append(schema.Buffer(storage=raw))
        return len(held) - 1

    # -- steps -------------------------------------------------------------------------------------

    def _steps(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            if isinstance(step, Branch):
                self._branch(step)
            else:
                self._call(step)

    def _branch(self, step: Branch) -> None:
        lines = self._builder.instructions
        to_else = schema.JumpFalseCall(self._index[step.predicate], 0)
        lines.append(schema.Instruction(to_else))
        self._steps(step.then)
        for out, then, _ in step.results:
            lines.append(schema.Instruction(schema.MoveCall(self._index[then], self._index[out])))
        to_end = schema.JumpFalseCall(self._builder.number(False), 0)
        lines.append(schema.Instruction(to_end))
        to_else.destination_instruction = len(lines)
        self._steps(step.otherwise)
        for out, _, otherwise in step.results:
            move = schema.MoveCall(self._index[otherwise], self._index[out])
            lines.append(schema.Instruction(move))
        to_end.destination_instruction = len(lines)

    def _call(self, step: Call) -> None:
        row, builder = ROWS[step.op], self._builder
        given = step.args[: len(step.args) - row.hidden]
        args = [self._arg(arg, step.op, at) for at, arg in enumerate(given)]
        outs = [self._index[i] for i in step.outs]
        if row.returns in ("out", "ignored"):
            again = outs if len(outs) == 1 else [builder.tensors(outs)]
            args += [*outs, *again]
        elif row.returns == "list":
            args += [builder.tensors(outs)] * 2
        elif row.returns in ("plain", "view", "number"):
            args += outs
        elif row.returns == "self":
            args.append(args[0])
        if step.op.startswith(PREFIX):
            self._delegate(step.op, args)
        else:
            builder.call(step.op, *args)

    def _delegate(self, name: str, args: list[int]) -> None:
        number = len(self._delegates)
        self._delegates.append(name)
        call = schema.DelegateCall(number, args)
        self._builder.instructions.append(schema.Instruction(call))

    def _arg(self, arg: Arg, op: str, at: int) -> int:
        builder = self._builder
        if isinstance(arg, Ref):
            return self._index[arg.index]
        if isinstance(arg, Tensors):
            items = [-1 if item is None else self._index[item] for item in arg.items]
            return builder.optional_tensors(items) if arg.optional else builder.tensors(items)
        if isinstance(arg, tuple):
            items = [self._arg(item, op, at) for item in arg]
            return builder.value(schema.IntList(items))
        key = (type(arg), arg)
        if key not in self._literals:
            self._literals[key] = builder.number(arg)
        return self._literals[key]


def assemble(recipe: Recipe) -> bytes:
    """Return a recipe as a program."""
    return Assembler(recipe).finish()
