"""A program's constants as tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch

from pteron.errors import NotFoundError
from pteron.format.pte import PteFile
from pteron.format.schema import ExecutionPlan, Tensor
from pteron.memory.hierarchical_allocator import dense_strides, torch_dtype
from pteron.memory.host_view import flat_tensor
from pteron.program.constants import constant_bytes, find_constants
from pteron.program.data_map import NamedDataMap
from pteron.program.signature import nearest


class Constants(Mapping[str, torch.Tensor]):
    """Views a program's files; each constant is copied when it is asked for."""

    def __init__(
        self, pte: PteFile, data_map: NamedDataMap, plans: Iterable[ExecutionPlan]
    ) -> None:
        self._pte = pte
        self._data_map = data_map
        self._tensors: dict[str, Tensor] = {}
        for tensor, _ in find_constants(plans):
            name = tensor.fully_qualified_name or ""
            if not name or name in self._tensors:
                name = f"constant_{tensor.data_buffer_idx}"
            self._tensors[name] = tensor

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            near = nearest(str(name), self._tensors)
            meant = f" (did you mean {near}?)" if near else ""
            raise NotFoundError(f"{self._pte.source.name} has no constant {name!r}{meant}")
        data = bytearray(constant_bytes(self._pte, self._data_map, tensor))
        dtype = torch_dtype(tensor)
        strides = dense_strides(tensor.sizes, tensor.dim_order)
        if not data:
            return torch.empty(tensor.sizes, dtype=dtype, device="cpu")
        return flat_tensor(memoryview(data), dtype).to(dtype).as_strided(tensor.sizes, strides)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"<{len(self)} constants of {self._pte.source.name!r}: {', '.join(self)}>"
