"""XNNPACK graphs by hand, through executorch's own serializer, as programs that run anywhere.

An exporter writes few of the combinations that the format allows. These are for the others, and for
small ones that need no export.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from pteron.backends.bridge_program import DelegateProgram, write_program
from pteron.format.schema import (
    AllocationDetails,
    Int,
    ScalarType,
    Tensor,
    TensorShapeDynamism,
)

NO_VALUE = 0xFFFFFFFF
NOT_INLINE = 0xFFFFFFFFFFFFFFFF

SCALARS = {
    "fp32": ScalarType.FLOAT,
    "fp16": ScalarType.HALF,
    "bf16": ScalarType.BFLOAT16,
    "qint8": ScalarType.CHAR,
    "quint8": ScalarType.BYTE,
    "int32": ScalarType.INT,
}


@dataclass(frozen=True)
class Affine:
    """One scale and zero point."""

    scale: float
    zero_point: int


@dataclass(frozen=True)
class Channels:
    """One scale for each index of a dimension."""

    scales: torch.Tensor
    dim: int = 0


@dataclass(frozen=True)
class Blocks:
    """One scale for each block of a row: (rows, blocks), in bfloat16."""

    scales: torch.Tensor
    size: int


@dataclass(frozen=True)
class Rows:
    """A scale and zero point for each row, at run time."""

    dims: int = 1


Quantization = Affine | Channels | Blocks | Rows | None


@dataclass
class GraphBuilder:
    """Builds one graph. Inputs have to be made before outputs."""

    values: list[Any] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    named: dict[str, bytes] = field(default_factory=dict)
    args: list[Tensor | Int] = field(default_factory=list)
    input_ids: list[int] = field(default_factory=list)
    output_ids: list[int] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    @cached_property
    def schema(self) -> Any:
        from executorch.backends.xnnpack.serialization import xnnpack_graph_schema

        return xnnpack_graph_schema

    def value(
        self,
        shape: Sequence[int],
        datatype: str = "fp32",
        quantization: Quantization = None,
        *,
        constant: int = 0,
        external: int = NO_VALUE,
        flags: int = 0,
    ) -> int:
        """Add a value and return its id."""
        number = len(self.values)
        tensor = self.schema.XNNTensorValue(
            datatype=getattr(self.schema.XNNDatatype, f"xnn_datatype_{datatype}"),
            num_dims=len(shape),
            dims=list(shape),
            external_id=external,
            constant_buffer_idx=constant,
            flags=flags,
            id_out=number,
        )
        union = tensor
        if quantization is not None:
            union = self.schema.XNNQuantizedTensorValue(tensor, self._quantization(quantization))
        self.values.append(self.schema.XValue(union))
        return number

    def _quantization(self, quantization: Quantization) -> Any:
        schema = self.schema
        if isinstance(quantization, Affine):
            return schema.PerTensorQuant(quantization.scale, quantization.zero_point)
        if isinstance(quantization, Channels):
            scales = quantization.scales.float()
            return schema.PerChannelQuant(
                scale=[],
                channel_dim=quantization.dim,
                scale_buffer_idx=self.data(scales),
                num_scales=scales.numel(),
            )
        if isinstance(quantization, Blocks):
            scales = quantization.scales.bfloat16()
            return schema.PerChannelGroupQuant(
                scale=[],
                channel_dim=0,
                group_size=quantization.size,
                scale_buffer_idx=self.data(scales),
                num_scales=scales.numel(),
            )
        assert isinstance(quantization, Rows)
        return schema.PerTokenDynamicQuant(quantization.dims)

    def data(self, tensor: torch.Tensor) -> int:
        """Keep bytes under the hash of them and return the index of the constant."""
        if not self.constants:
            self.constants.append(self.schema.ConstantDataOffset(0, 0))
        content = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        key = hashlib.sha256(content).hexdigest()
        self.named[key] = content
        self.constants.append(self.schema.ConstantDataOffset(NOT_INLINE, len(content), key))
        return len(self.constants) - 1

    def constant(
        self,
        tensor: torch.Tensor,
        datatype: str = "fp32",
        quantization: Quantization = None,
        *,
        shape: Sequence[int] | None = None,
    ) -> int:
        """Add a constant; ``shape`` is its own if the tensor holds two elements in a byte."""
        index = self.data(tensor)
        dims = shape or tensor.shape
        return self.value(dims, datatype, quantization, constant=index)

    def _external(
        self,
        shape: Sequence[int],
        datatype: str,
        quantization: Quantization,
        flags: int,
        *,
        dim_order: Sequence[int] | None,
        dynamic: bool,
        scalar: ScalarType | None,
    ) -> int:
        number = self.value(shape, datatype, quantization, external=len(self.args), flags=flags)
        order = tuple(dim_order or range(len(shape)))
        sizes = [0] * len(shape)
        for size, axis in zip(shape, order, strict=True):
            sizes[axis] = size
        dynamism = TensorShapeDynamism.DYNAMIC_BOUND if dynamic else TensorShapeDynamism.STATIC
        self.args.append(
            Tensor(
                scalar or SCALARS[datatype],
                tuple(sizes),
                order,
                allocation_info=AllocationDetails(1, 0),
                shape_dynamism=dynamism,
            )
        )
        return number

    def input(
        self,
        shape: Sequence[int],
        datatype: str = "fp32",
        quantization: Quantization = None,
        *,
        dim_order: Sequence[int] | None = None,
        dynamic: bool = False,
    ) -> int:
        """Add an input, with its dimensions in the order of memory."""
        number = self._external(
            *(shape, datatype, quantization, 1),
            dim_order=dim_order,
            dynamic=dynamic,
            scalar=None,
        )
        self.input_ids.append(number)
        return number

    def size(self, number: int) -> None:
        """Add an argument that is a number: exporters pass sizes which the graph does not read."""
        self.args.append(Int(number))

    def output(
        self,
        shape: Sequence[int],
        datatype: str = "fp32",
        quantization: Quantization = None,
        *,
        dim_order: Sequence[int] | None = None,
        dynamic: bool = False,
        scalar: ScalarType | None = None,
    ) -> int:
        """Add an output, with its dimensions in the order of memory."""
        number = self._external(
            *(shape, datatype, quantization, 2),
            dim_order=dim_order,
            dynamic=dynamic,
            scalar=scalar,
        )
        self.output_ids.append(number)
        return number

    def node(
        self, kind: str, *, low: float | None = None, high: float | None = None, **fields: Any
    ) -> None:
        """Add a node: ``kind`` is the name of its table without XNN."""
        clamp = None
        if low is not None or high is not None:
            clamp = self.schema.OutputMinMax(
                "-inf" if low is None else low, "+inf" if high is None else high
            )
        union = getattr(self.schema, f"XNN{kind}")(flags=fields.pop("flags", 0), **fields)
        self.nodes.append(self.schema.XNode(union, len(self.nodes), clamp))

    def unary(self, kind: str, source: int, target: int, **fields: Any) -> None:
        """Add a node with one input."""
        self.node(kind, input_id=source, output_id=target, **fields)

    def binary(self, kind: str, first: int, second: int, target: int, **fields: Any) -> None:
        """Add a node with two inputs."""
        self.node(kind, input1_id=first, input2_id=second, output_id=target, **fields)

    def linear(
        self, source: int, weights: int, bias: int | None, target: int, **fields: Any
    ) -> None:
        """Add a fully connected node."""
        self.node(
            "FullyConnected",
            input1_id=source,
            filter_id=weights,
            bias_id=NO_VALUE if bias is None else bias,
            output_id=target,
            **fields,
        )

    def conv(
        self,
        kind: str,
        ids: tuple[int, int, int | None, int],
        *,
        kernel: tuple[int, int],
        channels: tuple[int, int],
        groups: int = 1,
        padding: tuple[int, int, int, int] = (0, 0, 0, 0),
        stride: tuple[int, int] = (1, 1),
        dilation: tuple[int, int] = (1, 1),
        adjustment: tuple[int, int] = (0, 0),
        **fields: Any,
    ) -> None:
        """Add a convolution; ``channels`` are those of one group."""
        top, right, bottom, left = padding
        self.node(
            kind,
            **dict(zip(("padding_top", "padding_right"), (top, right), strict=True)),
            **dict(zip(("padding_bottom", "padding_left"), (bottom, left), strict=True)),
            **dict(zip(("kernel_height", "kernel_width"), kernel, strict=True)),
            **dict(zip(("subsampling_height", "subsampling_width"), stride, strict=True)),
            **dict(zip(("dilation_height", "dilation_width"), dilation, strict=True)),
            **dict(zip(("adjustment_height", "adjustment_width"), adjustment, strict=True)),
            group_input_channels=channels[0],
            group_output_channels=channels[1],
            groups=groups,
            input1_id=ids[0],
            filter_id=ids[1],
            bias_id=NO_VALUE if ids[2] is None else ids[2],
            output_id=ids[3],
            **fields,
        )

    def blob(self) -> bytes:
        """Return the delegate's bytes."""
        from executorch.backends.xnnpack.serialization import xnnpack_graph_serialize as module

        graph = self.schema.XNNGraph(
            version="0",
            xnodes=self.nodes,
            xvalues=self.values,
            num_externs=len(self.args),
            input_ids=self.input_ids,
            output_ids=self.output_ids,
            constant_data=self.constants or [self.schema.ConstantDataOffset(0, 0)],
        )
        return module.serialize_xnnpack_binary(graph, bytearray())

    def program(self) -> bytes:
        """Return a program that calls the graph and does nothing else."""
        tensors = [place for place, arg in enumerate(self.args) if isinstance(arg, Tensor)]
        inputs = len(self.input_ids)
        return write_program(
            DelegateProgram(
                backend_id="XnnpackBackend",
                compile_specs=(),
                processed=memoryview(self.blob()),
                named_data={key: memoryview(data) for key, data in self.named.items()},
                args=tuple(self.args),
                inputs=tuple(tensors[:inputs]),
                outputs=tuple(tensors[inputs:]),
            )
        )
