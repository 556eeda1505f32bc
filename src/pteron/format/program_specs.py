"""The tables of ``program.fbs``: field names and their order are the schema's."""

from __future__ import annotations

from pteron.format.flatbuffer import (
    BOOL,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    OFFSET,
    UINT8,
    UINT32,
    UINT64,
    TableSpec,
    fields,
)


def _spec(name: str, /, **kinds: str) -> TableSpec:
    return TableSpec(name, fields(**kinds))


PROGRAM = _spec(
    "Program",
    version=UINT32,
    execution_plan=OFFSET,
    constant_buffer=OFFSET,
    backend_delegate_data=OFFSET,
    segments=OFFSET,
    constant_segment=OFFSET,
    mutable_data_segments=OFFSET,
    named_data=OFFSET,
)
PLAN = _spec(
    "ExecutionPlan",
    name=OFFSET,
    container_meta_type=OFFSET,
    values=OFFSET,
    inputs=OFFSET,
    outputs=OFFSET,
    chains=OFFSET,
    operators=OFFSET,
    delegates=OFFSET,
    non_const_buffer_sizes=OFFSET,
    non_const_buffer_device=OFFSET,
)
CONTAINER = _spec("ContainerMetadata", encoded_inp_str=OFFSET, encoded_out_str=OFFSET)
EVALUE = _spec("EValue", val_type=UINT8, val=OFFSET)
TENSOR = _spec(
    "Tensor",
    scalar_type=INT8,
    storage_offset=INT32,
    sizes=OFFSET,
    dim_order=OFFSET,
    requires_grad=BOOL,
    data_buffer_idx=UINT32,
    allocation_info=OFFSET,
    layout=INT8,
    shape_dynamism=INT8,
    extra_tensor_info=OFFSET,
)
EXTRA = _spec(
    "ExtraTensorInfo",
    mutable_data_segments_idx=UINT64,
    fully_qualified_name=OFFSET,
    location=INT8,
    device_type=INT8,
    device_index=INT8,
)
ALLOCATION = _spec(
    "AllocationDetails", memory_id=UINT32, memory_offset_low=UINT32, memory_offset_high=UINT32
)
INT = _spec("Int", int_val=INT64)
BOOL_VALUE = _spec("Bool", bool_val=BOOL)
DOUBLE = _spec("Double", double_val=FLOAT64)
STRING = _spec("String", string_val=OFFSET)
LIST = _spec("list", items=OFFSET)
OPERATOR = _spec("Operator", name=OFFSET, overload=OFFSET)
INSTRUCTION = _spec("Instruction", instr_args_type=UINT8, instr_args=OFFSET)
CALL = _spec("call", index=INT32, args=OFFSET)
PAIR = _spec("instruction", first=INT32, second=INT32)
FREE = _spec("FreeCall", value_index=INT32)
CHAIN = _spec("Chain", inputs=OFFSET, outputs=OFFSET, instructions=OFFSET, stacktrace=OFFSET)
FRAME_LIST = _spec("FrameList", items=OFFSET)
FRAME = _spec("Frame", filename=OFFSET, lineno=INT32, name=OFFSET, context=OFFSET)
DELEGATE = _spec("BackendDelegate", id=OFFSET, processed=OFFSET, compile_specs=OFFSET)
REFERENCE = _spec("BackendDelegateDataReference", location=INT8, index=UINT32)
COMPILE_SPEC = _spec("CompileSpec", key=OFFSET, value=OFFSET)
BUFFER_DEVICE = _spec("NonConstBufferDevice", buffer_idx=INT32, device_type=INT8, device_index=INT8)
BUFFER = _spec("Buffer", storage=OFFSET)
SEGMENT = _spec("DataSegment", offset=UINT64, size=UINT64)
SUBSEGMENT = _spec("SubsegmentOffsets", segment_index=UINT32, offsets=OFFSET)
NAMED_DATA = _spec("NamedData", key=OFFSET, segment_index=UINT32)
