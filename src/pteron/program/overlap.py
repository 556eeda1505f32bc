"""Find values that a plan overwrites while they are still needed.

Only straight methods are looked at: with jumps, the order in the file says little about the order
at run time (and exporters let the branches of a cond share memory; see DESIGN, S4).

What the graph says of bytes decides: a value was overwritten if it is read, or returned, after
another value was written over some of its bytes. Exporters let values share bytes on purpose in
these ways, and none of them is reported:

* ``et_view``, in-place operators, operators without effect (``_cat_nop``, ``_slice_copy_nop``): the
  result lies in the memory of an argument;
* a view of planned memory that the emitter left out: a value that is read but never written, inside
  the place of another one or around it; a view of state;
* an instruction that writes its result over an argument that nobody reads afterwards;
* a delegate whose output lies exactly where one of its inputs is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pteron.format.schema import DelegateCall, KernelCall, Tensor
from pteron.program.effects import expand_all
from pteron.program.graph import Graph


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two values over the same bytes, and the instructions between which each is in use.

    Instruction -1 stands for the time before the first; their number, for the time after the last.
    """

    buffer: int
    first_value: int
    first_lifetime: tuple[int, int]
    second_value: int
    second_lifetime: tuple[int, int]


def find_overlaps(graph: Graph) -> Iterator[Overlap]:
    """Yield the pairs of values of a plan that share bytes while both are in use, each once."""
    if not graph.place_reads and not graph.place_writes:
        return
    allowed = _allowed_pairs(graph)
    seen: set[tuple[int, int]] = set()
    for read in graph.place_reads:
        if not read.certain:
            continue
        was_set = _was_set_before(graph, read.value, read.time)
        for owner in read.owners:
            one, other = min(owner, read.value), max(owner, read.value)
            pair = (one, other)
            if one == other or pair in seen or pair in allowed:
                continue
            if was_set or not _nest(graph, one, other):
                seen.add(pair)
                yield _overlap(graph, read.value, owner)
    for write in graph.place_writes:
        pair = (min(write.value, write.argument), max(write.value, write.argument))
        if pair not in seen and pair not in allowed:
            seen.add(pair)
            yield _overlap(graph, write.argument, write.value)


def _was_set_before(graph: Graph, value: int, time: int) -> bool:
    if value in graph.plan.inputs or value in graph.state:
        return True
    written = graph.writers.get(value)
    return written is not None and written[0] < time


def _overlap(graph: Graph, one: int, other: int) -> Overlap:
    first, second = sorted((one, other), key=lambda value: (_lifetime(graph, value), value))
    tensor = graph.plan.values[first]
    assert isinstance(tensor, Tensor)
    assert tensor.allocation_info is not None
    return Overlap(
        tensor.allocation_info.memory_id,
        first,
        _lifetime(graph, first),
        second,
        _lifetime(graph, second),
    )


def _lifetime(graph: Graph, value: int) -> tuple[int, int]:
    if value in graph.state:
        return -1, graph.end
    return graph.first[value], graph.last[value]


def _nest(graph: Graph, one: int, other: int) -> bool:
    (a, b), (c, d) = _span(graph, one), _span(graph, other)
    return (a <= c and d <= b) or (c <= a and b <= d)


def _span(graph: Graph, value: int) -> tuple[int, int]:
    tensor = graph.plan.values[value]
    assert isinstance(tensor, Tensor)
    assert tensor.allocation_info is not None
    begin = tensor.allocation_info.memory_offset
    return begin, begin + tensor.nbytes


def _allowed_pairs(graph: Graph) -> set[tuple[int, int]]:
    """Return the pairs of values that lie over each other on purpose, smaller index first."""
    plan = graph.plan
    without_effect = {n for n, operator in enumerate(plan.operators) if "_nop" in operator.name}
    pairs: set[tuple[int, int]] = set()
    suspects = {index for read in graph.place_reads for index in (read.value, *read.owners)} | {
        index for write in graph.place_writes for index in (write.value, write.argument)
    }
    for instruction, step in zip(plan.instructions, graph.accesses, strict=True):
        if isinstance(instruction, KernelCall) and instruction.op_index in without_effect:
            results = expand_all(plan, instruction.args[-1:])
            pairs.update((min(a, b), max(a, b)) for a in step.reads for b in results)
        elif isinstance(instruction, DelegateCall):
            at: dict[tuple[int, int], list[int]] = {}
            for index in suspects.intersection(step.reads):
                value = plan.values[index]
                place = value.allocation_info if isinstance(value, Tensor) else None
                if place is not None:
                    at.setdefault((place.memory_id, place.memory_offset), []).append(index)
            for members in at.values():
                pairs.update((min(a, b), max(a, b)) for a in members for b in members if a != b)
    return pairs
