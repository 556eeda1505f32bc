"""The tables of a program, as frozen dataclasses.

Field names, enumerations and their numbers are those of ExecuTorch's ``schema/program.fbs``,
``schema/scalar_type.fbs`` and ``extension/flat_tensor/serialize/flat_tensor.fbs``. Nothing here
is checked against anything else: that is ``program.verify``'s task.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import TypeAlias


class ScalarType(IntEnum):
    """The element type of a tensor (``scalar_type.fbs``)."""

    BYTE = 0
    CHAR = 1
    SHORT = 2
    INT = 3
    LONG = 4
    HALF = 5
    FLOAT = 6
    DOUBLE = 7
    COMPLEXHALF = 8
    COMPLEXFLOAT = 9
    COMPLEXDOUBLE = 10
    BOOL = 11
    QINT8 = 12
    QUINT8 = 13
    QINT32 = 14
    BFLOAT16 = 15
    QUINT4X2 = 16
    QUINT2X4 = 17
    BITS16 = 22
    FLOAT8E5M2 = 23
    FLOAT8E4M3FN = 24
    FLOAT8E5M2FNUZ = 25
    FLOAT8E4M3FNUZ = 26
    UINT16 = 27
    UINT32 = 28
    UINT64 = 29

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEM_BYTES[self]

    @property
    def torch_name(self) -> str:
        """The name torch gives this type, such as ``float32``."""
        return _TORCH_NAMES[self]


_ITEM_BYTES: dict[ScalarType, int] = {
    ScalarType.BYTE: 1,
    ScalarType.CHAR: 1,
    ScalarType.SHORT: 2,
    ScalarType.INT: 4,
    ScalarType.LONG: 8,
    ScalarType.HALF: 2,
    ScalarType.FLOAT: 4,
    ScalarType.DOUBLE: 8,
    ScalarType.COMPLEXHALF: 4,
    ScalarType.COMPLEXFLOAT: 8,
    ScalarType.COMPLEXDOUBLE: 16,
    ScalarType.BOOL: 1,
    ScalarType.QINT8: 1,
    ScalarType.QUINT8: 1,
    ScalarType.QINT32: 4,
    ScalarType.BFLOAT16: 2,
    ScalarType.QUINT4X2: 1,
    ScalarType.QUINT2X4: 1,
    ScalarType.BITS16: 2,
    ScalarType.FLOAT8E5M2: 1,
    ScalarType.FLOAT8E4M3FN: 1,
    ScalarType.FLOAT8E5M2FNUZ: 1,
    ScalarType.FLOAT8E4M3FNUZ: 1,
    ScalarType.UINT16: 2,
    ScalarType.UINT32: 4,
    ScalarType.UINT64: 8,
}

_TORCH_NAMES: dict[ScalarType, str] = {
    ScalarType.BYTE: "uint8",
    ScalarType.CHAR: "int8",
    ScalarType.SHORT: "int16",
    ScalarType.INT: "int32",
    ScalarType.LONG: "int64",
    ScalarType.HALF: "float16",
    ScalarType.FLOAT: "float32",
    ScalarType.DOUBLE: "float64",
    ScalarType.COMPLEXHALF: "complex32",
    ScalarType.COMPLEXFLOAT: "complex64",
    ScalarType.COMPLEXDOUBLE: "complex128",
    ScalarType.BOOL: "bool",
    ScalarType.QINT8: "qint8",
    ScalarType.QUINT8: "quint8",
    ScalarType.QINT32: "qint32",
    ScalarType.BFLOAT16: "bfloat16",
    ScalarType.QUINT4X2: "quint4x2",
    ScalarType.QUINT2X4: "quint2x4",
    ScalarType.BITS16: "bits16",
    ScalarType.FLOAT8E5M2: "float8_e5m2",
    ScalarType.FLOAT8E4M3FN: "float8_e4m3fn",
    ScalarType.FLOAT8E5M2FNUZ: "float8_e5m2fnuz",
    ScalarType.FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
    ScalarType.UINT16: "uint16",
    ScalarType.UINT32: "uint32",
    ScalarType.UINT64: "uint64",
}


class TensorShapeDynamism(IntEnum):
    """How a tensor's shape may change from call to call."""

    STATIC = 0
    DYNAMIC_BOUND = 1
    DYNAMIC_UNBOUND = 2


class TensorDataLocation(IntEnum):
    """Where the bytes of a constant are."""

    SEGMENT = 0
    EXTERNAL = 1


class DeviceType(IntEnum):
    """The kind of device that a tag names (``runtime/core/portable_type/device.h``)."""

    CPU = 0
    CUDA = 1


class DataLocation(IntEnum):
    """Where a delegate's bytes are: in the flatbuffer, or in a segment."""

    INLINE = 0
    SEGMENT = 1


@dataclass(frozen=True, slots=True)
class Device:
    """A device tag: ``cpu``, ``cuda:0``, ``cuda:1``, ..."""

    type: DeviceType = DeviceType.CPU
    index: int = 0

    @property
    def is_host(self) -> bool:
        """Whether the tag names the host."""
        return self.type is DeviceType.CPU

    def __str__(self) -> str:
        return "cpu" if self.is_host else f"{self.type.name.lower()}:{self.index}"


HOST = Device()


@dataclass(frozen=True, slots=True)
class AllocationDetails:
    """Where in the memory plan a tensor lies: buffer ``memory_id`` (1-based), byte offset."""

    memory_id: int
    memory_offset: int


@dataclass(frozen=True, slots=True)
class ExtraTensorInfo:
    """What few tensors have: a name, a place outside the file, a device tag."""

    mutable_data_segments_idx: int = 0
    fully_qualified_name: str | None = None
    location: TensorDataLocation = TensorDataLocation.SEGMENT
    device: Device = HOST


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor value. ``sizes`` is the shape, or its upper bound if the shape is dynamic."""

    scalar_type: ScalarType
    sizes: tuple[int, ...]
    dim_order: tuple[int, ...]
    data_buffer_idx: int = 0
    allocation_info: AllocationDetails | None = None
    shape_dynamism: TensorShapeDynamism = TensorShapeDynamism.STATIC
    extra_tensor_info: ExtraTensorInfo | None = None
    storage_offset: int = 0
    requires_grad: bool = False
    layout: int = 0

    @property
    def numel(self) -> int:
        """Number of elements (of the upper bound, if the shape is dynamic)."""
        return prod(self.sizes)

    @property
    def nbytes(self) -> int:
        """Number of bytes (of the upper bound, if the shape is dynamic)."""
        return prod(self.sizes) * self.scalar_type.itemsize

    @property
    def fully_qualified_name(self) -> str | None:
        """The name of the parameter or buffer, if the file gives one."""
        info = self.extra_tensor_info
        return info.fully_qualified_name if info is not None else None

    @property
    def is_external(self) -> bool:
        """Whether the bytes are found by name in a data file."""
        info = self.extra_tensor_info
        return info is not None and info.location is TensorDataLocation.EXTERNAL

    @property
    def is_constant(self) -> bool:
        """Whether the value is constant: bytes from a file, and no place in the plan."""
        return self.allocation_info is None and (self.data_buffer_idx > 0 or self.is_external)

    @property
    def has_initial_value(self) -> bool:
        """Whether the value is mutable and the file gives the bytes that it starts with."""
        return self.allocation_info is not None and (self.data_buffer_idx > 0 or self.is_external)

    @property
    def device(self) -> Device:
        """The tensor's own device tag; the tag of its buffer decides (DESIGN, P1)."""
        info = self.extra_tensor_info
        return info.device if info is not None else HOST


@dataclass(frozen=True, slots=True)
class Null:
    """None."""


@dataclass(frozen=True, slots=True)
class Int:
    """A 64-bit integer."""

    int_val: int


@dataclass(frozen=True, slots=True)
class Bool:
    """A truth value."""

    bool_val: bool


@dataclass(frozen=True, slots=True)
class Double:
    """A 64-bit float."""

    double_val: float


@dataclass(frozen=True, slots=True)
class String:
    """A string."""

    string_val: str


@dataclass(frozen=True, slots=True)
class IntList:
    """A list of integers, held as indices of ``Int`` values, which may change during a run."""

    items: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DoubleList:
    """A list of 64-bit floats, held as they are."""

    items: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BoolList:
    """A list of truth values, held as they are."""

    items: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class TensorList:
    """A list of tensors, held as indices of ``Tensor`` values."""

    items: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OptionalTensorList:
    """A list of tensors or None, held as value indices; -1 is None."""

    items: tuple[int, ...]


EValue: TypeAlias = (
    Null
    | Int
    | Bool
    | Double
    | Tensor
    | String
    | IntList
    | DoubleList
    | BoolList
    | TensorList
    | OptionalTensorList
)


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator that a plan calls: ``aten::add`` and ``out``."""

    name: str
    overload: str

    @property
    def full_name(self) -> str:
        """The name under which a kernel is registered: ``aten::add.out``."""
        return f"{self.name}.{self.overload}" if self.overload else self.name


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Call operator ``op_index`` on values ``args``: the schema's arguments, then its returns."""

    op_index: int
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DelegateCall:
    """Call delegate ``delegate_index`` on values ``args``: its inputs, then its outputs."""

    delegate_index: int
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MoveCall:
    """Give value ``move_to`` the value of ``move_from``."""

    move_from: int
    move_to: int


@dataclass(frozen=True, slots=True)
class JumpFalseCall:
    """Go to ``destination_instruction`` if value ``cond_value_index`` is false."""

    cond_value_index: int
    destination_instruction: int


@dataclass(frozen=True, slots=True)
class FreeCall:
    """Give back the memory of value ``value_index``."""

    value_index: int


Instruction: TypeAlias = KernelCall | DelegateCall | MoveCall | JumpFalseCall | FreeCall


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of the source stack of an instruction."""

    filename: str
    lineno: int
    name: str
    context: str


@dataclass(frozen=True, slots=True)
class CompileSpec:
    """One setting that a delegate was compiled with."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class BackendDelegateDataReference:
    """Where a delegate's bytes are: entry ``index`` of the inline list or of the segments."""

    location: DataLocation
    index: int


@dataclass(frozen=True, slots=True)
class BackendDelegate:
    """A compiled part of the program, and the id of the backend that runs it."""

    id: str
    processed: BackendDelegateDataReference
    compile_specs: tuple[CompileSpec, ...]

    def compile_spec(self, key: str) -> bytes | None:
        """Return the first setting called ``key``, or None."""
        return next((spec.value for spec in self.compile_specs if spec.key == key), None)


@dataclass(frozen=True, slots=True)
class Chain:
    """A sequence of instructions. Exporters write one chain per plan."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    stacktrace: tuple[tuple[Frame, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerMetadata:
    """The pytree specs (torch's JSON) of what the model took and returned."""

    encoded_inp_str: str
    encoded_out_str: str


@dataclass(frozen=True, slots=True)
class NonConstBufferDevice:
    """The device tag of planned buffer ``buffer_idx`` (index into ``non_const_buffer_sizes``)."""

    buffer_idx: int
    device: Device


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """One method."""

    name: str
    container_meta_type: ContainerMetadata | None
    values: tuple[EValue, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    chains: tuple[Chain, ...]
    operators: tuple[Operator, ...]
    delegates: tuple[BackendDelegate, ...]
    non_const_buffer_sizes: tuple[int, ...]
    non_const_buffer_device: tuple[NonConstBufferDevice, ...]

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """The instructions of the only chain (empty if there is none)."""
        return self.chains[0].instructions if self.chains else ()


@dataclass(frozen=True, slots=True)
class DataSegment:
    """Bytes behind the flatbuffer: offset from the segment base, and size."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class SubsegmentOffsets:
    """Byte offsets into segment ``segment_index``, one per tensor; entry 0 is reserved."""

    segment_index: int
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NamedData:
    """A name for segment ``segment_index``."""

    key: str
    segment_index: int


@dataclass(frozen=True, slots=True)
class Program:
    """The root table of a ``.pte`` file.

    ``constant_buffer`` and ``backend_delegate_data`` are views of the file.
    """

    version: int
    execution_plan: tuple[ExecutionPlan, ...]
    constant_buffer: tuple[memoryview, ...]
    backend_delegate_data: tuple[memoryview, ...]
    segments: tuple[DataSegment, ...]
    constant_segment: SubsegmentOffsets | None
    mutable_data_segments: tuple[SubsegmentOffsets, ...]
    named_data: tuple[NamedData, ...]


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Element type, shape and dim order of a tensor in a ``.ptd`` file."""

    scalar_type: ScalarType
    sizes: tuple[int, ...]
    dim_order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FlatTensorNamedData:
    """A name for segment ``segment_index`` of a ``.ptd`` file; tensors have a layout."""

    key: str
    segment_index: int
    tensor_layout: TensorLayout | None


@dataclass(frozen=True, slots=True)
class FlatTensor:
    """The root table of a ``.ptd`` file."""

    version: int
    segments: tuple[DataSegment, ...]
    named_data: tuple[FlatTensorNamedData, ...]
