"""What ``pteron inspect`` tells: the keys of these dicts are the keys of ``--json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TypedDict

from pteron.cli.native_code import (
    NativeCode,
    find_native_code,
    native_code_of_data,
)
from pteron.cli.value_facts import Value, describe_inputs, describe_outputs
from pteron.format.ptd import IDENTIFIER as PTD_IDENTIFIER
from pteron.format.ptd import PtdFile
from pteron.format.pte import IDENTIFIER as PTE_IDENTIFIER
from pteron.format.pte import PteFile
from pteron.format.schema import (
    CompileSpec,
    DataLocation,
    DataSegment,
    DelegateCall,
    ExecutionPlan,
    KernelCall,
    Tensor,
    TensorLayout,
)
from pteron.program.constants import find_constants
from pteron.program.data_map import NamedDataMap
from pteron.program.disasm import format_instruction, format_value
from pteron.program.memory_plan import MemoryPlan

JSON_VERSION = 2
"""Raised when a key of ``--json`` changes its meaning or goes; new keys do not raise it."""

_SPEC_SHOWN_BYTES = 64


class Header(TypedDict):
    """The extended header of a program, or the header of a data file."""

    length: int
    flatbuffer_bytes: int
    segment_base_offset: int
    segment_data_bytes: int


class Segment(TypedDict):
    """One segment; ``offset`` counts from the start of the file."""

    index: int
    offset: int
    size_bytes: int
    holds: list[str]


class FileFacts(TypedDict):
    """The file around the tables."""

    path: str
    identifier: str
    size_bytes: int
    schema_version: int
    flatbuffer_bytes: int
    header: Header | None
    segments: list[Segment]


class OperatorCount(TypedDict):
    """How many instructions call an operator."""

    name: str
    calls: int


class Spec(TypedDict):
    """A compile spec: ``text`` if it is printable text, and the first bytes as ``hex``."""

    key: str
    size_bytes: int
    text: str | None
    hex: str


class Delegate(TypedDict):
    """One compiled part of a method."""

    index: int
    id: str
    runtime: str
    """What runs it on this machine; whether executorch has it shows only when it is loaded."""
    calls: int
    blob_bytes: int
    blob_location: str
    """``inline`` or ``segment``."""
    blob_index: int
    compile_specs: list[Spec]


class Buffer(TypedDict):
    """One planned buffer."""

    index: int
    device: str
    size_bytes: int
    holds_state: bool


class State(TypedDict):
    """A tensor that keeps its value from call to call."""

    name: str | None
    value: int
    dtype: str
    sizes: list[int]
    size_bytes: int
    buffer: int | None
    offset: int | None
    initial: str
    """``file``, ``external`` (in a data file) or ``zero``."""


class Method(TypedDict):
    """One method."""

    name: str
    num_instructions: int
    num_values: int
    inputs: list[Value]
    outputs: list[Value]
    operators: list[OperatorCount]
    other_instructions: dict[str, int]
    """How many ``move``, ``jump`` and ``free`` instructions there are."""
    delegates: list[Delegate]
    planned_buffers: list[Buffer]
    planned_bytes: dict[str, int]
    """By device."""
    state: list[State]
    instructions: list[str] | None
    """The disassembly, if it was asked for."""
    values: list[str] | None
    """All values, if they were asked for."""


class Constant(TypedDict):
    """A constant; one that several methods use is told once."""

    name: str | None
    dtype: str
    sizes: list[int]
    size_bytes: int
    place: str
    """``segment`` or ``inline`` (in the program), or ``external``."""
    index: int | None
    file: str | None
    """The file that holds the bytes; None if none of those given does."""
    methods: list[str]


class NamedBlob(TypedDict):
    """Bytes with a name. A data file may say which tensor they are."""

    key: str
    size_bytes: int
    segment: int
    dtype: str | None
    sizes: list[int] | None
    dim_order: list[int] | None


class DataFile(TypedDict):
    """A data file (``.ptd``)."""

    json_version: int
    kind: str
    file: FileFacts
    named_data: list[NamedBlob]
    named_data_bytes: int
    native_code: list[NativeCode]


class Program(TypedDict):
    """A program (``.pte``) and the data files that were given with it."""

    json_version: int
    kind: str
    file: FileFacts
    methods: list[Method]
    constants: list[Constant]
    constant_bytes: int
    named_data: list[NamedBlob]
    named_data_bytes: int
    native_code: list[NativeCode]
    data_files: list[DataFile]


def describe_program(
    pte: PteFile,
    ptds: Sequence[PtdFile] = (),
    *,
    method: str | None = None,
    instructions: bool = False,
    values: bool = False,
) -> Program:
    """Return what a verified program holds; with ``method``, that method and its constants only."""
    data_map = NamedDataMap(pte, ptds)
    plans = [plan for plan in pte.program.execution_plan if method in (None, plan.name)]
    constants = list(_constants(pte, data_map, plans))
    named = [
        _named_blob(entry.key, pte.segment(entry.segment_index), entry.segment_index, None)
        for entry in pte.program.named_data
    ]
    return Program(
        json_version=JSON_VERSION,
        kind="program",
        file=_program_file(pte),
        methods=[_method(pte, plan, instructions=instructions, values=values) for plan in plans],
        constants=constants,
        constant_bytes=sum(constant["size_bytes"] for constant in constants),
        named_data=named,
        named_data_bytes=sum(blob["size_bytes"] for blob in named),
        native_code=find_native_code(pte, data_map, ptds),
        data_files=[describe_data_file(ptd) for ptd in ptds],
    )


def describe_data_file(ptd: PtdFile) -> DataFile:
    """Return what a verified data file holds."""
    named = [
        _named_blob(
            entry.key, ptd.segment(entry.segment_index), entry.segment_index, entry.tensor_layout
        )
        for entry in ptd.flat_tensor.named_data
    ]
    return DataFile(
        json_version=JSON_VERSION,
        kind="data",
        file=_data_file(ptd),
        named_data=named,
        named_data_bytes=sum(blob["size_bytes"] for blob in named),
        native_code=native_code_of_data(ptd),
    )


def _named_blob(key: str, blob: memoryview, segment: int, layout: TensorLayout | None) -> NamedBlob:
    return NamedBlob(
        key=key,
        size_bytes=blob.nbytes,
        segment=segment,
        dtype=layout.scalar_type.torch_name if layout is not None else None,
        sizes=list(layout.sizes) if layout is not None else None,
        dim_order=list(layout.dim_order) if layout is not None else None,
    )


# -- files ----------------------------------------------------------------------------------------


def _program_file(pte: PteFile) -> FileFacts:
    header = pte.header
    return FileFacts(
        path=pte.source.name,
        identifier=PTE_IDENTIFIER.decode("ascii"),
        size_bytes=pte.size,
        schema_version=pte.program.version,
        flatbuffer_bytes=pte.flatbuffer_size,
        header=None
        if header is None
        else Header(
            length=header.length,
            flatbuffer_bytes=header.program_size,
            segment_base_offset=header.segment_base_offset,
            segment_data_bytes=header.segment_data_size,
        ),
        segments=_segments(
            pte.program.segments, pte.start + pte.segment_base_offset, _segment_users(pte)
        ),
    )


def _data_file(ptd: PtdFile) -> FileFacts:
    header = ptd.header
    return FileFacts(
        path=ptd.source.name,
        identifier=PTD_IDENTIFIER.decode("ascii"),
        size_bytes=ptd.source.size,
        schema_version=ptd.flat_tensor.version,
        flatbuffer_bytes=header.flatbuffer_size,
        header=Header(
            length=header.length,
            flatbuffer_bytes=header.flatbuffer_size,
            segment_base_offset=header.segment_base_offset,
            segment_data_bytes=header.segment_data_size,
        ),
        segments=_segments(
            ptd.flat_tensor.segments,
            header.segment_base_offset,
            ((e.segment_index, f"named data {e.key!r}") for e in ptd.flat_tensor.named_data),
        ),
    )


def _segment_users(pte: PteFile) -> Iterator[tuple[int, str]]:
    program = pte.program
    if program.constant_segment is not None and len(program.constant_segment.offsets) > 1:
        yield program.constant_segment.segment_index, "constants"
    for mutable in program.mutable_data_segments:
        yield mutable.segment_index, "initial values"
    for entry in program.named_data:
        yield entry.segment_index, f"named data {entry.key!r}"
    for plan in program.execution_plan:
        for number, delegate in enumerate(plan.delegates):
            if delegate.processed.location is DataLocation.SEGMENT:
                user = f"delegate {number} ({delegate.id}) of {plan.name}"
                yield delegate.processed.index, user


def _segments(
    segments: Sequence[DataSegment], base: int, users: Iterable[tuple[int, str]]
) -> list[Segment]:
    holds: dict[int, list[str]] = {}
    for index, what in users:
        holds.setdefault(index, []).append(what)
    return [
        Segment(
            index=index,
            offset=base + segment.offset,
            size_bytes=segment.size,
            holds=holds.get(index, []),
        )
        for index, segment in enumerate(segments)
    ]


# -- methods --------------------------------------------------------------------------------------


def _method(pte: PteFile, plan: ExecutionPlan, *, instructions: bool, values: bool) -> Method:
    memory = MemoryPlan(plan)
    kinds = Counter(type(instruction).__name__ for instruction in plan.instructions)
    planned: Counter[str] = Counter()
    for buffer in memory.buffers:
        planned[str(buffer.device)] += buffer.nbytes
    return Method(
        name=plan.name,
        num_instructions=len(plan.instructions),
        num_values=len(plan.values),
        inputs=describe_inputs(plan),
        outputs=describe_outputs(plan),
        operators=list(_operators(plan)),
        other_instructions={
            "move": kinds["MoveCall"],
            "jump": kinds["JumpFalseCall"],
            "free": kinds["FreeCall"],
        },
        delegates=list(_delegates(pte, plan)),
        planned_buffers=[
            Buffer(
                index=buffer.index,
                device=str(buffer.device),
                size_bytes=buffer.nbytes,
                holds_state=buffer.index in memory.state_buffers,
            )
            for buffer in memory.buffers
        ],
        planned_bytes=dict(planned),
        state=list(_state(memory)),
        instructions=[format_instruction(plan, i) for i in range(len(plan.instructions))]
        if instructions
        else None,
        values=[format_value(plan, i) for i in range(len(plan.values))] if values else None,
    )


def _operators(plan: ExecutionPlan) -> Iterator[OperatorCount]:
    """Yield the operators that are called, the most frequent first."""
    calls: Counter[str] = Counter(
        plan.operators[instruction.op_index].full_name
        for instruction in plan.instructions
        if isinstance(instruction, KernelCall)
    )
    for name, number in sorted(calls.items(), key=lambda item: (-item[1], item[0])):
        yield OperatorCount(name=name, calls=number)


def _delegates(pte: PteFile, plan: ExecutionPlan) -> Iterator[Delegate]:
    calls = Counter(
        instruction.delegate_index
        for instruction in plan.instructions
        if isinstance(instruction, DelegateCall)
    )
    if not plan.delegates:
        return
    from pteron.backends.registry import runtime_of  # it looks at the installed packages

    for index, delegate in enumerate(plan.delegates):
        yield Delegate(
            index=index,
            id=delegate.id,
            runtime=runtime_of(delegate.id),
            calls=calls[index],
            blob_bytes=pte.delegate_data(delegate).nbytes,
            blob_location=delegate.processed.location.name.lower(),
            blob_index=delegate.processed.index,
            compile_specs=[_spec(spec) for spec in delegate.compile_specs],
        )


def _spec(spec: CompileSpec) -> Spec:
    value = bytes(spec.value)
    try:
        text = value.rstrip(b"\0").decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    return Spec(
        key=spec.key,
        size_bytes=len(value),
        text=text if text and text.isprintable() else None,
        hex=value[:_SPEC_SHOWN_BYTES].hex() + ("..." if len(value) > _SPEC_SHOWN_BYTES else ""),
    )


def _state(memory: MemoryPlan) -> Iterator[State]:
    for index in memory.state:
        tensor = memory.plan.values[index]
        assert isinstance(tensor, Tensor)
        place = tensor.allocation_info
        initial = "zero"
        if tensor.has_initial_value:
            initial = "external" if tensor.is_external else "file"
        yield State(
            name=tensor.fully_qualified_name,
            value=index,
            dtype=tensor.scalar_type.torch_name,
            sizes=list(tensor.sizes),
            size_bytes=tensor.nbytes,
            buffer=place.memory_id if place is not None else None,
            offset=place.memory_offset if place is not None else None,
            initial=initial,
        )


# -- constants ------------------------------------------------------------------------------------


def _constants(
    pte: PteFile, data_map: NamedDataMap, plans: Sequence[ExecutionPlan]
) -> Iterator[Constant]:
    """Yield the constants, the largest first."""
    found = sorted(find_constants(plans), key=lambda item: -item[0].nbytes)
    for tensor, methods in found:
        yield _constant(pte, data_map, tensor, methods)


def _constant(pte: PteFile, data_map: NamedDataMap, tensor: Tensor, methods: list[str]) -> Constant:
    segment = pte.program.constant_segment
    place = "segment" if segment is not None and segment.offsets else "inline"
    file: str | None = pte.source.name
    name = tensor.fully_qualified_name
    if tensor.is_external:
        place = "external"
        file = data_map.get(name).origin if name is not None and name in data_map else None
    return Constant(
        name=name,
        dtype=tensor.scalar_type.torch_name,
        sizes=list(tensor.sizes),
        size_bytes=tensor.nbytes,
        place=place,
        index=None if tensor.is_external else tensor.data_buffer_idx,
        file=file,
        methods=methods,
    )
