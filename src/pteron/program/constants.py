"""Where the bytes of constants and of initial values are.

``program.fbs`` (table Tensor) gives the rule: no ``allocation_info`` means a constant, in
``constant_segment`` or, in files of the old kind, in ``constant_buffer``; with it the bytes are the
initial value of a mutable tensor, in one of ``mutable_data_segments``; ``EXTERNAL`` means by name.
"""

from __future__ import annotations

from collections.abc import Iterable

from pteron.errors import InvalidExternalDataError, InvalidProgramError
from pteron.format.pte import PteFile
from pteron.format.schema import ExecutionPlan, SubsegmentOffsets, Tensor
from pteron.program.data_map import NamedDataMap


def find_constants(plans: Iterable[ExecutionPlan]) -> list[tuple[Tensor, list[str]]]:
    """Return the constants of methods, each once, with the names of the methods that use it."""
    found: dict[object, tuple[Tensor, dict[str, None]]] = {}
    for plan in plans:
        for value in plan.values:
            if isinstance(value, Tensor) and value.is_constant:
                key = value.fully_qualified_name if value.is_external else value.data_buffer_idx
                tensor, methods = found.setdefault((value.is_external, key), (value, {}))
                methods[plan.name] = None
                if value.nbytes > tensor.nbytes:
                    found[value.is_external, key] = (value, methods)
    return [(tensor, list(methods)) for tensor, methods in found.values()]


def constant_bytes(pte: PteFile, data_map: NamedDataMap | None, tensor: Tensor) -> memoryview:
    """Return exactly the bytes of a constant, as a view of the file."""
    if tensor.is_external:
        return _external_bytes(pte, data_map, tensor)
    problem = constant_problem(pte, tensor)
    if problem is not None:
        raise InvalidProgramError(f"{pte.source.name}: {problem}")
    subsegment = pte.program.constant_segment
    if subsegment is None or not subsegment.offsets:
        return pte.program.constant_buffer[tensor.data_buffer_idx][: tensor.nbytes]
    return _slice(pte, subsegment, tensor)


def initial_bytes(pte: PteFile, data_map: NamedDataMap | None, tensor: Tensor) -> memoryview:
    """Return exactly the bytes that a mutable tensor starts with, as a view of the file."""
    if tensor.is_external:
        return _external_bytes(pte, data_map, tensor)
    problem = initial_problem(pte, tensor)
    if problem is not None:
        raise InvalidProgramError(f"{pte.source.name}: {problem}")
    return _slice(pte, pte.program.mutable_data_segments[_mutable_index(tensor)], tensor)


def constant_problem(pte: PteFile, tensor: Tensor) -> str | None:
    """Say why a constant inside the file cannot be read, or return None."""
    program, index = pte.program, tensor.data_buffer_idx
    subsegment = program.constant_segment
    if subsegment is not None and subsegment.offsets:
        return _subsegment_problem(pte, subsegment, tensor, "constant")
    if index >= len(program.constant_buffer):
        return (
            f"constant index {index} does not exist; the file has {len(program.constant_buffer)} "
            "constants"
        )
    size = program.constant_buffer[index].nbytes
    if size < tensor.nbytes:
        return f"constant {index} has {size} bytes; the tensor needs {tensor.nbytes}"
    return None


def initial_problem(pte: PteFile, tensor: Tensor) -> str | None:
    """Say why an initial value inside the file cannot be read, or return None."""
    segments, number = pte.program.mutable_data_segments, _mutable_index(tensor)
    if number >= len(segments):
        return (
            f"its initial value is in mutable data segment {number}; the file has {len(segments)}"
        )
    return _subsegment_problem(pte, segments[number], tensor, "initial value")


def initial_is_missing(pte: PteFile, tensor: Tensor) -> bool:
    """Return whether the file has no initial value with the tensor's number."""
    segments, number = pte.program.mutable_data_segments, _mutable_index(tensor)
    return number >= len(segments) or tensor.data_buffer_idx >= len(segments[number].offsets)


def _mutable_index(tensor: Tensor) -> int:
    info = tensor.extra_tensor_info
    return info.mutable_data_segments_idx if info is not None else 0


def _subsegment_problem(
    pte: PteFile, subsegment: SubsegmentOffsets, tensor: Tensor, what: str
) -> str | None:
    index, offsets = tensor.data_buffer_idx, subsegment.offsets
    if index >= len(offsets):
        return f"{what} index {index} does not exist; the file has {len(offsets)}"
    problem = pte.segment_problem(subsegment.segment_index)
    if problem is not None:
        return problem
    size = pte.program.segments[subsegment.segment_index].size
    if offsets[index] + tensor.nbytes > size:
        return (
            f"{what} {index} (offset {offsets[index]} + {tensor.nbytes} bytes) goes past the end "
            f"of segment {subsegment.segment_index}, which has {size} bytes"
        )
    return None


def _slice(pte: PteFile, subsegment: SubsegmentOffsets, tensor: Tensor) -> memoryview:
    begin = subsegment.offsets[tensor.data_buffer_idx]
    return pte.segment(subsegment.segment_index)[begin : begin + tensor.nbytes]


def _external_bytes(pte: PteFile, data_map: NamedDataMap | None, tensor: Tensor) -> memoryview:
    name = tensor.fully_qualified_name
    if not name:
        raise InvalidProgramError(f"{pte.source.name}: an external tensor has no name")
    entry = (data_map if data_map is not None else NamedDataMap(pte)).get(name)
    layout = entry.layout
    if layout is not None and (layout.scalar_type, layout.sizes, layout.dim_order) != (
        tensor.scalar_type,
        tensor.sizes,
        tensor.dim_order,
    ):
        raise InvalidExternalDataError(
            f"{name!r} in {entry.origin} is {layout.scalar_type.torch_name} "
            f"{list(layout.sizes)}, dim order {list(layout.dim_order)}; the program wants "
            f"{tensor.scalar_type.torch_name} {list(tensor.sizes)}, dim order "
            f"{list(tensor.dim_order)}",
            hint="give the data file that was exported with this program",
        )
    if entry.data.nbytes < tensor.nbytes or (layout and entry.data.nbytes != tensor.nbytes):
        raise InvalidExternalDataError(
            f"{name!r} in {entry.origin} has {entry.data.nbytes} bytes; the program wants "
            f"{tensor.nbytes}"
        )
    return entry.data[: tensor.nbytes]
