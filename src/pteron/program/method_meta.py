"""Facts about a method that can be read without loading it, with executorch's call shapes."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

from pteron.errors import MetadataIndexError
from pteron.format.schema import (
    HOST,
    Bool,
    BoolList,
    Device,
    Double,
    DoubleList,
    EValue,
    ExecutionPlan,
    Int,
    IntList,
    Null,
    OptionalTensorList,
    ScalarType,
    String,
    Tensor,
    TensorList,
    TensorShapeDynamism,
)

_Item = TypeVar("_Item")


class Tag(IntEnum):
    """The kind of a value (``runtime/core/tag.h``)."""

    None_ = 0
    Tensor = 1
    String = 2
    Double = 3
    Int = 4
    Bool = 5
    ListBool = 6
    ListDouble = 7
    ListInt = 8
    ListTensor = 9
    ListScalar = 10
    ListOptionalTensor = 11

    def __str__(self) -> str:
        return self.name.rstrip("_")


_TAGS: dict[type[EValue], Tag] = {
    Null: Tag.None_,
    Tensor: Tag.Tensor,
    String: Tag.String,
    Double: Tag.Double,
    Int: Tag.Int,
    Bool: Tag.Bool,
    BoolList: Tag.ListBool,
    DoubleList: Tag.ListDouble,
    IntList: Tag.ListInt,
    TensorList: Tag.ListTensor,
    OptionalTensorList: Tag.ListOptionalTensor,
}

# executorch::runtime::toString(ScalarType), where it is not the capitalised name.
_DTYPE_NAMES = {
    ScalarType.BFLOAT16: "BFloat16",
    ScalarType.COMPLEXHALF: "ComplexHalf",
    ScalarType.COMPLEXFLOAT: "ComplexFloat",
    ScalarType.COMPLEXDOUBLE: "ComplexDouble",
    ScalarType.QINT8: "QInt8",
    ScalarType.QUINT8: "QUInt8",
    ScalarType.QINT32: "QInt32",
    ScalarType.QUINT4X2: "QUInt4x2",
    ScalarType.QUINT2X4: "QUInt2x4",
    ScalarType.FLOAT8E5M2: "Float8_e5m2",
    ScalarType.FLOAT8E4M3FN: "Float8_e4m3fn",
    ScalarType.FLOAT8E5M2FNUZ: "Float8_e5m2fnuz",
    ScalarType.FLOAT8E4M3FNUZ: "Float8_e4m3fnuz",
    ScalarType.UINT16: "UInt16",
    ScalarType.UINT32: "UInt32",
    ScalarType.UINT64: "UInt64",
}


class TensorInfo:
    """Views what a program says of one tensor. ``device`` is that of its planned buffer."""

    __slots__ = ("_device", "_tensor")

    def __init__(self, tensor: Tensor, device: Device = HOST) -> None:
        self._tensor = tensor
        self._device = device

    def sizes(self) -> tuple[int, ...]:
        """Return the shape, or its upper bound if the shape is dynamic."""
        return self._tensor.sizes

    def dim_order(self) -> tuple[int, ...]:
        """Return the dimensions from the outermost to the innermost in memory."""
        return self._tensor.dim_order

    def dtype(self) -> ScalarType:
        """Return the element type: an int with executorch's number."""
        return self._tensor.scalar_type

    def is_memory_planned(self) -> bool:
        """Return whether the file gives the tensor memory; constants count as planned."""
        return self._tensor.allocation_info is not None or self._tensor.data_buffer_idx != 0

    def is_dynamic(self) -> bool:
        """Return whether the shape may change from call to call."""
        return self._tensor.shape_dynamism is not TensorShapeDynamism.STATIC

    def nbytes(self) -> int:
        """Return the number of bytes, of the upper bound if the shape is dynamic."""
        return self._tensor.nbytes

    def name(self) -> str:
        """Return the fully qualified name, or "" if the file gives none."""
        return self._tensor.fully_qualified_name or ""

    def device(self) -> Device:
        """Return the device of the tensor's planned buffer, or its own tag if it has none."""
        return self._device

    def __repr__(self) -> str:
        dtype = self.dtype()
        device = "" if self._device.is_host else f", device={self._device}"
        bound = ", is_dynamic=True" if self.is_dynamic() else ""
        return (
            f"TensorInfo(sizes={list(self.sizes())}, "
            f"dtype={_DTYPE_NAMES.get(dtype, dtype.name.capitalize())}, "
            f"is_memory_planned={self.is_memory_planned()}, nbytes={self.nbytes()}{device}{bound})"
        )


class MethodMeta:
    """Views one execution plan of a verified program."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._plan = plan
        self._devices = {entry.buffer_idx: entry.device for entry in plan.non_const_buffer_device}
        self._attributes: tuple[Tensor, ...] | None = None

    def name(self) -> str:
        """Return the method's name."""
        return self._plan.name

    def num_inputs(self) -> int:
        """Return how many inputs the method takes, tensors or not."""
        return len(self._plan.inputs)

    def num_outputs(self) -> int:
        """Return how many outputs the method gives, tensors or not."""
        return len(self._plan.outputs)

    def num_attributes(self) -> int:
        """Return how many tensors have a name in the file."""
        return len(self._named_tensors())

    def input_tag(self, index: int) -> Tag:
        """Return the kind of one input."""
        return _TAGS[type(self._value(self._plan.inputs, index, "input"))]

    def output_tag(self, index: int) -> Tag:
        """Return the kind of one output."""
        return _TAGS[type(self._value(self._plan.outputs, index, "output"))]

    def input_tensor_meta(self, index: int) -> TensorInfo:
        """Describe one input; an input that is not a tensor is refused with its kind."""
        return self._tensor_info(self._plan.inputs, index, "input")

    def output_tensor_meta(self, index: int) -> TensorInfo:
        """Describe one output; an output that is not a tensor is refused with its kind."""
        return self._tensor_info(self._plan.outputs, index, "output")

    def attribute_tensor_meta(self, index: int) -> TensorInfo:
        """Describe one named tensor."""
        return self._info(self._at(self._named_tensors(), index, "attribute"))

    def num_memory_planned_buffers(self) -> int:
        """Return how many planned buffers there are; the file's reserved entry 0 is not counted."""
        return max(0, len(self._plan.non_const_buffer_sizes) - 1)

    def memory_planned_buffer_size(self, index: int) -> int:
        """Return the bytes of one planned buffer, counted from 0."""
        return self._at(self._plan.non_const_buffer_sizes[1:], index, "planned buffer")

    def memory_planned_buffer_device(self, index: int) -> Device:
        """Return the device of one planned buffer, counted from 0; no tag means the host."""
        self.memory_planned_buffer_size(index)
        return self._devices.get(index + 1, HOST)

    def planned_buffers(self) -> tuple[tuple[int, Device], ...]:
        """Return bytes and device of every planned buffer in the order of the file."""
        sizes = self._plan.non_const_buffer_sizes[1:]
        return tuple((size, self._devices.get(at, HOST)) for at, size in enumerate(sizes, 1))

    def uses_backend(self, name: str) -> bool:
        """Return whether a part of the method is delegated to the backend with this id."""
        return any(delegate.id == name for delegate in self._plan.delegates)

    def backends(self) -> tuple[str, ...]:
        """Return the ids of all backends that the method needs, each once."""
        return tuple(dict.fromkeys(delegate.id for delegate in self._plan.delegates))

    def _named_tensors(self) -> tuple[Tensor, ...]:
        if self._attributes is None:
            self._attributes = tuple(
                value
                for value in self._plan.values
                if isinstance(value, Tensor) and value.fully_qualified_name is not None
            )
        return self._attributes

    def _at(self, items: tuple[_Item, ...], index: int, what: str) -> _Item:
        if not 0 <= index < len(items):
            allowed = f"allowed are 0 to {len(items) - 1}" if items else "there is none"
            raise MetadataIndexError(f"{what} {index} of method {self.name()!r}: {allowed}")
        return items[index]

    def _value(self, indices: tuple[int, ...], index: int, what: str) -> EValue:
        return self._plan.values[self._at(indices, index, what)]

    def _tensor_info(self, indices: tuple[int, ...], index: int, what: str) -> TensorInfo:
        value = self._value(indices, index, what)
        if not isinstance(value, Tensor):
            raise MetadataIndexError(
                f"{what} {index} of method {self.name()!r} is {_TAGS[type(value)]}, not a tensor"
            )
        return self._info(value)

    def _info(self, tensor: Tensor) -> TensorInfo:
        place = tensor.allocation_info
        device = tensor.device if place is None else self._devices.get(place.memory_id, HOST)
        return TensorInfo(tensor, device)

    def _described(self, indices: tuple[int, ...], what: str) -> list[str]:
        return [
            repr(self._tensor_info(indices, at, what))
            if isinstance(value := self._plan.values[index], Tensor)
            else str(_TAGS[type(value)])
            for at, index in enumerate(indices)
        ]

    def __repr__(self) -> str:
        plan = self._plan
        return (
            f"MethodMeta(name={self.name()!r}, num_inputs={self.num_inputs()}, "
            f"input_tensor_meta={self._described(plan.inputs, 'input')}, "
            f"num_outputs={self.num_outputs()}, "
            f"output_tensor_meta={self._described(plan.outputs, 'output')})"
        )
