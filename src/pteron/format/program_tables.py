"""Decode the tables of ``program.fbs`` into the dataclasses of :mod:`pteron.format.schema`.

Absent fields get the schema's default. Only what cannot be represented is refused here: offsets
outside the file, an unknown kind of value, instruction, element type or device.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeVar

from pteron import limits
from pteron.errors import PteronError
from pteron.format import program_specs as specs
from pteron.format import schema
from pteron.format.flatbuffer import (
    BOOL,
    FLOAT64,
    INT32,
    INT64,
    UINT8,
    UINT64,
    Decoder,
    Flatbuffer,
    TableSpec,
)
from pteron.format.schema import (
    AllocationDetails,
    BackendDelegate,
    BackendDelegateDataReference,
    Chain,
    CompileSpec,
    ContainerMetadata,
    DataLocation,
    DataSegment,
    DelegateCall,
    Device,
    DeviceType,
    EValue,
    ExecutionPlan,
    ExtraTensorInfo,
    Frame,
    FreeCall,
    Instruction,
    JumpFalseCall,
    KernelCall,
    MoveCall,
    NamedData,
    NonConstBufferDevice,
    Operator,
    Program,
    ScalarType,
    SubsegmentOffsets,
    Tensor,
    TensorDataLocation,
    TensorShapeDynamism,
)

_LARGE_BYTES = 1 << 20
_Enum = TypeVar("_Enum", bound=IntEnum)
_Item = TypeVar("_Item")


def read_program(buffer: Flatbuffer) -> Program:
    """Read the root table of a program's flatbuffer and everything below it."""
    # A large program is a million small objects without a cycle among them: the collector would go
    # through all of them again and again (a third of the time for 100,000 instructions).
    pause = buffer.view.nbytes >= _LARGE_BYTES and gc.isenabled()
    if pause:
        gc.disable()
    reader = _Reader(buffer)
    try:
        return reader.program(buffer.root())
    finally:
        reader.close()
        if pause:
            gc.enable()


class _Reader:
    """Decodes one flatbuffer. Every method takes the position of its table."""

    def __init__(self, buffer: Flatbuffer) -> None:
        self.buffer = buffer
        self._decoders: dict[TableSpec, Decoder] = {}
        self._devices: dict[tuple[int, int], Device] = {}
        self._value_readers = self._make_value_readers()
        self._instruction_readers = self._make_instruction_readers()

    def close(self) -> None:
        """Let go of the functions that hold this reader, and with it the file, in a cycle."""
        self._value_readers.clear()
        self._instruction_readers.clear()

    def _decode(self, spec: TableSpec, position: int) -> tuple[Any, ...]:
        decoder = self._decoders.get(spec)
        if decoder is None:
            decoder = self._decoders[spec] = self.buffer.decoder(spec)
        return decoder(position)

    def _each(
        self, position: int, what: str, limit: int, read: Callable[[int], _Item]
    ) -> tuple[_Item, ...]:
        """Read a vector of tables; an error says in which entry."""
        positions = self.buffer.tables(position, what, limit)
        items: list[_Item] = []
        try:
            for at in positions:
                items.append(read(at))  # noqa: PERF401 - the count tells where it went wrong
        except PteronError as error:
            error.add_context(f"in entry {len(items)} of {what}")
            raise
        return tuple(items)

    def _member(self, kind: type[_Enum], number: int, position: int) -> _Enum:
        member = kind._value2member_map_.get(number)
        if member is None:
            known = ", ".join(f"{one.value} {one.name}" for one in kind)
            self.buffer.fail(f"{kind.__name__} {number} is not known; known are {known}", position)
        return member  # type: ignore[return-value]

    def _device(self, type_number: int, index: int, position: int) -> Device:
        device = self._devices.get((type_number, index))
        if device is None:
            device = Device(self._member(DeviceType, type_number, position), index)
            self._devices[type_number, index] = device
        return device

    # -- program ----------------------------------------------------------------------------------

    def program(self, pos: int) -> Program:
        (
            version,
            plans,
            plans_at,
            constants,
            constants_at,
            delegate_data,
            delegate_data_at,
            segments,
            segments_at,
            constant_segment,
            constant_segment_at,
            mutable,
            mutable_at,
            named,
            named_at,
        ) = self._decode(specs.PROGRAM, pos)
        return Program(
            version=version,
            execution_plan=self._each(
                plans and pos + plans_at + plans, "the methods", limits.MAX_METHODS, self.plan
            ),
            constant_buffer=self._each(
                constants and pos + constants_at + constants,
                "constant_buffer",
                limits.MAX_SEGMENTS,
                self.inline_data,
            ),
            backend_delegate_data=self._each(
                delegate_data and pos + delegate_data_at + delegate_data,
                "backend_delegate_data",
                limits.MAX_SEGMENTS,
                self.inline_data,
            ),
            segments=self._each(
                segments and pos + segments_at + segments,
                "the segments",
                limits.MAX_SEGMENTS,
                lambda at: DataSegment(*self._decode(specs.SEGMENT, at)),
            ),
            constant_segment=(
                self.subsegment(pos + constant_segment_at + constant_segment)
                if constant_segment
                else None
            ),
            mutable_data_segments=self._each(
                mutable and pos + mutable_at + mutable,
                "mutable_data_segments",
                limits.MAX_SEGMENTS,
                self.subsegment,
            ),
            named_data=self._each(
                named and pos + named_at + named,
                "named_data",
                limits.MAX_NAMED_DATA,
                self.named_data,
            ),
        )

    def inline_data(self, pos: int) -> memoryview:
        """Read a Buffer or BackendDelegateInlineData table: both hold one byte vector."""
        data, at = self._decode(specs.BUFFER, pos)
        return self.buffer.data(data and pos + at + data, "inline data")

    def subsegment(self, pos: int) -> SubsegmentOffsets:
        index, offsets, at = self._decode(specs.SUBSEGMENT, pos)
        return SubsegmentOffsets(
            index, self.buffer.scalars(offsets and pos + at + offsets, UINT64, "offsets")
        )

    def named_data(self, pos: int) -> NamedData:
        key, at, index = self._decode(specs.NAMED_DATA, pos)
        return NamedData(self.buffer.name(key and pos + at + key, "a named data key"), index)

    # -- plan -------------------------------------------------------------------------------------

    def plan(self, pos: int) -> ExecutionPlan:
        row = self._decode(specs.PLAN, pos)
        (
            name,
            container,
            values,
            inputs,
            outputs,
            chains,
            operators,
            delegates,
            sizes,
            devices,
        ) = (raw and pos + at + raw for raw, at in zip(row[::2], row[1::2], strict=True))
        buffer = self.buffer
        method = buffer.name(name, "the name of a method")
        where = f"method {method!r}"
        return ExecutionPlan(
            name=method,
            container_meta_type=self.container(container) if container else None,
            values=self.values(values, f"the values of {where}"),
            inputs=buffer.scalars(inputs, INT32, f"the inputs of {where}"),
            outputs=buffer.scalars(outputs, INT32, f"the outputs of {where}"),
            chains=self._each(chains, f"the chains of {where}", limits.MAX_METHODS, self.chain),
            operators=self._each(
                operators,
                f"the operators of {where}",
                limits.MAX_OPERATORS_PER_METHOD,
                self.operator,
            ),
            delegates=self._each(
                delegates,
                f"the delegates of {where}",
                limits.MAX_DELEGATES_PER_METHOD,
                self.delegate,
            ),
            non_const_buffer_sizes=buffer.scalars(
                sizes, INT64, f"non_const_buffer_sizes of {where}"
            ),
            non_const_buffer_device=self._each(
                devices,
                f"non_const_buffer_device of {where}",
                limits.MAX_PLANNED_BUFFERS,
                self.buffer_device,
            ),
        )

    def container(self, pos: int) -> ContainerMetadata:
        inp, inp_at, out, out_at = self._decode(specs.CONTAINER, pos)
        string = self.buffer.string
        return ContainerMetadata(
            string(inp and pos + inp_at + inp), string(out and pos + out_at + out)
        )

    def operator(self, pos: int) -> Operator:
        name, name_at, overload, overload_at = self._decode(specs.OPERATOR, pos)
        read = self.buffer.name
        return Operator(
            read(name and pos + name_at + name, "the name of an operator"),
            read(overload and pos + overload_at + overload, "the overload of an operator"),
        )

    def delegate(self, pos: int) -> BackendDelegate:
        row = self._decode(specs.DELEGATE, pos)
        name, name_at, reference, reference_at, settings, settings_at = row
        if not reference:
            self.buffer.fail("a delegate does not say where its data is (no 'processed')", pos)
        at = pos + reference_at + reference
        location, index = self._decode(specs.REFERENCE, at)
        return BackendDelegate(
            self.buffer.name(name and pos + name_at + name, "the id of a delegate"),
            BackendDelegateDataReference(self._member(DataLocation, location, at), index),
            self._each(
                settings and pos + settings_at + settings,
                "the compile specs of a delegate",
                limits.MAX_DELEGATES_PER_METHOD,
                self.compile_spec,
            ),
        )

    def compile_spec(self, pos: int) -> CompileSpec:
        key, key_at, value, value_at = self._decode(specs.COMPILE_SPEC, pos)
        data = self.buffer.data(value and pos + value_at + value, "a compile spec's value")
        self.buffer.charge(data.nbytes >> 3, pos)
        return CompileSpec(
            self.buffer.name(key and pos + key_at + key, "a compile spec's key"), bytes(data)
        )

    def buffer_device(self, pos: int) -> NonConstBufferDevice:
        index, type_number, device_index = self._decode(specs.BUFFER_DEVICE, pos)
        return NonConstBufferDevice(index, self._device(type_number, device_index, pos))

    # -- values -----------------------------------------------------------------------------------

    def values(self, position: int, what: str) -> tuple[EValue, ...]:
        decode = self.buffer.decoder(specs.EVALUE)
        readers = self._value_readers
        found: list[EValue] = []
        try:
            for pos in self.buffer.tables(position, what, limits.MAX_VALUES_PER_METHOD):
                kind, raw, at = decode(pos)
                if kind not in readers or not (raw or kind == 1):
                    self.bad_union("value", kind, len(readers), raw, pos)
                found.append(readers[kind](pos + at + raw))
        except PteronError as error:
            error.add_context(f"in value {len(found)} of {what}")
            raise
        return tuple(found)

    def bad_union(self, what: str, kind: int, known: int, raw: int, pos: int) -> None:
        if 1 <= kind <= known:
            self.buffer.fail(f"a {what} of kind {kind} has no content", pos)
        self.buffer.fail(f"{what} kind {kind} is not known; known are 1 to {known}", pos)

    def _make_value_readers(self) -> dict[int, Callable[[int], EValue]]:
        """Return the readers by number in the union ``KernelTypes``."""
        buffer = self.buffer
        string, scalars = buffer.string, buffer.scalars
        decode_int, decode_bool = buffer.decoder(specs.INT), buffer.decoder(specs.BOOL_VALUE)
        decode_double, decode_list = buffer.decoder(specs.DOUBLE), buffer.decoder(specs.LIST)
        null = schema.Null()

        def read_string(pos: int) -> EValue:
            raw, at = decode_list(pos)
            return schema.String(string(raw and pos + at + raw))

        def items(kind: str, make: Callable[[tuple[Any, ...]], EValue]) -> Callable[[int], EValue]:
            def read(pos: int) -> EValue:
                raw, at = decode_list(pos)
                return make(scalars(raw and pos + at + raw, kind, "the items of a list"))

            return read

        return {
            1: lambda _: null,
            2: lambda pos: schema.Int(decode_int(pos)[0]),
            3: lambda pos: schema.Bool(decode_bool(pos)[0]),
            4: lambda pos: schema.Double(decode_double(pos)[0]),
            5: self._tensor_reader(),
            6: read_string,
            7: items(INT64, schema.IntList),
            8: items(FLOAT64, schema.DoubleList),
            9: items(BOOL, schema.BoolList),
            10: items(INT32, schema.TensorList),
            11: items(INT32, schema.OptionalTensorList),
        }

    def _tensor_reader(self) -> Callable[[int], Tensor]:
        decode = self.buffer.decoder(specs.TENSOR)
        decode_allocation = self.buffer.decoder(specs.ALLOCATION)
        scalars = self.buffer.scalars
        scalar_types = {int(kind): kind for kind in ScalarType}
        dynamisms = {int(kind): kind for kind in TensorShapeDynamism}
        shared: dict[tuple[int, ...], tuple[int, ...]] = {}

        def read(pos: int) -> Tensor:
            (
                scalar_type,
                storage_offset,
                sizes,
                sizes_at,
                order,
                order_at,
                requires_grad,
                buffer_index,
                plan,
                plan_at,
                layout,
                dynamism,
                extra,
                extra_at,
            ) = decode(pos)
            if scalar_type not in scalar_types:
                self._member(ScalarType, scalar_type, pos)
            if dynamism not in dynamisms:
                self._member(TensorShapeDynamism, dynamism, pos)
            shape = scalars(sizes and pos + sizes_at + sizes, INT32, "the sizes of a tensor")
            dims = scalars(order and pos + order_at + order, UINT8, "the dim_order of a tensor")
            allocation = None
            if plan:
                memory_id, low, high = decode_allocation(pos + plan_at + plan)
                allocation = AllocationDetails(memory_id, high << 32 | low)
            return Tensor(
                scalar_types[scalar_type],
                shared.setdefault(shape, shape),
                shared.setdefault(dims, dims),
                buffer_index,
                allocation,
                dynamisms[dynamism],
                self.extra_tensor_info(pos + extra_at + extra) if extra else None,
                storage_offset,
                requires_grad,
                layout,
            )

        return read

    def extra_tensor_info(self, pos: int) -> ExtraTensorInfo:
        index, name, name_at, location, device_type, device_index = self._decode(specs.EXTRA, pos)
        return ExtraTensorInfo(
            index,
            self.buffer.name(pos + name_at + name, "the name of a tensor") if name else None,
            self._member(TensorDataLocation, location, pos),
            self._device(device_type, device_index, pos),
        )

    # -- instructions -----------------------------------------------------------------------------

    def chain(self, pos: int) -> Chain:
        row = self._decode(specs.CHAIN, pos)
        inputs, outputs, instructions, stacktrace = (
            raw and pos + at + raw for raw, at in zip(row[::2], row[1::2], strict=True)
        )
        scalars = self.buffer.scalars
        return Chain(
            scalars(inputs, INT32, "the inputs of a chain"),
            scalars(outputs, INT32, "the outputs of a chain"),
            self.instructions(instructions),
            self._each(
                stacktrace,
                "the stack traces of a chain",
                limits.MAX_INSTRUCTIONS_PER_METHOD,
                self.frames,
            ),
        )

    def instructions(self, position: int) -> tuple[Instruction, ...]:
        decode = self.buffer.decoder(specs.INSTRUCTION)
        readers = self._instruction_readers
        what = "the instructions of a chain"
        found: list[Instruction] = []
        try:
            for pos in self.buffer.tables(position, what, limits.MAX_INSTRUCTIONS_PER_METHOD):
                kind, raw, at = decode(pos)
                if kind not in readers or not raw:
                    self.bad_union("instruction", kind, len(readers), raw, pos)
                found.append(readers[kind](pos + at + raw))
        except PteronError as error:
            error.add_context(f"in instruction {len(found)} of a chain")
            raise
        return tuple(found)

    def _make_instruction_readers(self) -> dict[int, Callable[[int], Instruction]]:
        """Return the readers by number in the union ``InstructionArguments``."""
        scalars = self.buffer.scalars
        decode_call, decode_pair = self.buffer.decoder(specs.CALL), self.buffer.decoder(specs.PAIR)
        decode_free = self.buffer.decoder(specs.FREE)

        def kernel_call(pos: int) -> KernelCall:
            index, raw, at = decode_call(pos)
            return KernelCall(index, scalars(raw and pos + at + raw, INT32, "arguments"))

        def delegate_call(pos: int) -> DelegateCall:
            index, raw, at = decode_call(pos)
            return DelegateCall(index, scalars(raw and pos + at + raw, INT32, "arguments"))

        return {
            1: kernel_call,
            2: delegate_call,
            3: lambda pos: MoveCall(*decode_pair(pos)),
            4: lambda pos: JumpFalseCall(*decode_pair(pos)),
            5: lambda pos: FreeCall(*decode_free(pos)),
        }

    def frames(self, pos: int) -> tuple[Frame, ...]:
        raw, at = self._decode(specs.FRAME_LIST, pos)
        return self._each(
            raw and pos + at + raw, "a stack trace", limits.MAX_INSTRUCTIONS_PER_METHOD, self.frame
        )

    def frame(self, pos: int) -> Frame:
        file, file_at, line, name, name_at, context, context_at = self._decode(specs.FRAME, pos)
        string = self.buffer.string
        return Frame(
            string(file and pos + file_at + file),
            line,
            string(name and pos + name_at + name),
            string(context and pos + context_at + context),
        )
