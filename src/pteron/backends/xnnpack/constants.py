"""A graph's constants as tensors: views of the file, or prepared for a kernel and kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from pteron.backends.xnnpack.blob import Blob
from pteron.backends.xnnpack.graph import Datatype, PerBlock, PerChannel, PerTensor, Value
from pteron.memory.host_view import flat_tensor

if TYPE_CHECKING:
    from pteron.program.data_map import NamedDataMap

T = TypeVar("T")

INT4_ZERO_POINT = 8
"""4-bit weights are stored as 0 to 15."""

_DTYPES = {
    Datatype.FP32: torch.float32,
    Datatype.PFP32: torch.float32,
    Datatype.FP16: torch.float16,
    Datatype.BF16: torch.bfloat16,
    Datatype.QINT8: torch.int8,
    Datatype.QUINT8: torch.uint8,
    Datatype.QINT32: torch.int32,
    Datatype.INT32: torch.int32,
    Datatype.QCINT8: torch.int8,
    Datatype.QCINT32: torch.int32,
    Datatype.QCINT4: torch.uint8,
    Datatype.QBINT4: torch.uint8,
}


class Constants:
    """Views a delegate's constants; the program's files outlive it.

    What is prepared for a kernel is kept in ``shared``, which all delegates of the program have in
    common, under the name of the data: two methods with one weight prepare it once.
    """

    def __init__(
        self,
        blob: Blob,
        named_data: NamedDataMap,
        device: torch.device,
        shared: dict[Any, Any],
        *,
        owner: Hashable,
    ) -> None:
        self.device = device
        self._blob = blob
        self._named_data = named_data
        self._shared = shared
        self._owner = owner

    def prepared(self, recipe: Hashable, values: tuple[Value, ...], make: Callable[[], T]) -> T:
        """Return what ``make`` makes of these constants, from an earlier call if there was one.

        ``recipe`` says all that the result depends on beside the constants' data and tables.
        """
        key = ("XnnpackBackend", str(self.device), recipe, *map(self._identity, values))
        if key not in self._shared:
            self._shared[key] = make()
        kept: T = self._shared[key]
        return kept

    def raw(self, value: Value) -> torch.Tensor:
        """Return a constant's elements as they are stored, with its dimensions.

        Two 4-bit elements are one: the last dimension is half as long.
        """
        dims = value.dims
        if value.datatype.bits == 4:
            dims = (*dims[:-1], (dims[-1] + 1) // 2)
        view = self._bytes(value.constant)[: value.nbytes]
        return flat_tensor(view, _DTYPES[value.datatype]).view(dims)

    def plain(self, value: Value) -> torch.Tensor:
        """Return a constant as the planner holds values: floats, or 8-bit ones as whole numbers.

        The numbers of an 8-bit constant are less its zero point, in float32.
        """
        if value.datatype in (Datatype.QINT8, Datatype.QUINT8):
            return self.prepared("whole", (value,), lambda: self.whole(value))
        if self.device.type == "cpu":
            return self.raw(value)
        return self.prepared("plain", (value,), lambda: self.raw(value).to(self.device))

    def whole(self, value: Value) -> torch.Tensor:
        """Return a quantized constant's whole numbers, less the zero point, in float32."""
        raw = self.raw(value)
        if value.datatype.bits == 4:
            low, high = raw & 0xF, raw >> 4
            raw = torch.stack((low, high), -1).flatten(-2)[..., : value.dims[-1]]
            return (raw.float() - INT4_ZERO_POINT).to(self.device)
        whole = raw.float()
        if isinstance(value.quantization, PerTensor) and value.quantization.zero_point:
            whole -= value.quantization.zero_point
        return whole.to(self.device)

    def scales(self, value: Value) -> torch.Tensor:
        """Return a constant's scales in float32: one, one a channel, or (rows, blocks of a row)."""
        quantization = value.quantization
        if isinstance(quantization, PerTensor):
            return torch.tensor([quantization.scale], dtype=torch.float32, device=self.device)
        assert isinstance(quantization, (PerChannel, PerBlock))
        if isinstance(quantization, PerChannel):
            count = value.dims[quantization.channel_dim]
            if quantization.scale_buffer_idx:
                stored = self._bytes(quantization.scale_buffer_idx)[: 4 * count]
                return flat_tensor(stored, torch.float32).to(self.device)
            return torch.tensor(quantization.scale, dtype=torch.float32, device=self.device)
        shape = (value.dims[0], value.dims[1] // quantization.group_size)
        if quantization.scale_buffer_idx:
            stored = self._bytes(quantization.scale_buffer_idx)[: 2 * shape[0] * shape[1]]
            scales = flat_tensor(stored, torch.bfloat16).float()
        else:
            scales = _rounded_to_bf16(
                torch.tensor(quantization.scale, dtype=torch.float32, device="cpu")
            )
        return scales.view(shape).to(self.device)

    def _bytes(self, index: int) -> memoryview:
        key = self._blob.graph.constants[index].named_key
        if key:
            return self._named_data.get(key).data
        return self._blob.constant_bytes(index)

    def _identity(self, value: Value) -> Hashable:
        """Return what tells this constant's data and table from every other's."""
        names = self._blob.graph.constants
        scale = getattr(value.quantization, "scale_buffer_idx", 0)
        keys = names[value.constant].named_key, names[scale].named_key if scale else ""
        if not keys[0] or (scale and not keys[1]):
            return (self._owner, value.id)
        quantization = value.quantization if not scale else type(value.quantization).__name__
        axis = getattr(value.quantization, "channel_dim", 0)
        return (*keys, value.datatype, value.dims, quantization, axis)


def _rounded_to_bf16(scales: torch.Tensor) -> torch.Tensor:
    """Round float32 scales as ExecuTorch does before it gives them to XNNPACK.

    ``convertF32TensorToBF16`` of ``XNNCompiler.cpp``: scaled a little up, then cut off.
    """
    bits = (scales * 1.00389105).view(torch.int32)
    return (bits & ~0xFFFF).view(torch.float32)
