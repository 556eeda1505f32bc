"""One plan's dataflow, worked out once: who writes and reads each value, and each planned byte.

The graph speaks of bytes as well as of values: exporters drop a view of planned memory without
leaving an instruction, so a value may be read that nothing wrote, at the place of another one. It
then reads what was last written to those bytes.

Times are instruction numbers: -1 is before the first instruction, and the number of instructions is
after the last. In a method with jumps (not :attr:`Graph.straight`) they follow the file's order,
which is not that of execution; what is said of bytes is then only what holds in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from pteron.format.schema import (
    DelegateCall,
    ExecutionPlan,
    JumpFalseCall,
    MoveCall,
    Tensor,
)
from pteron.program.byte_owners import ByteOwners
from pteron.program.effects import Access, accesses, expand_all
from pteron.program.unwritten import Unwritten, find_unwritten

UNUSED = -2
"""The time of a value that no instruction, input or output names."""


@dataclass(frozen=True, slots=True)
class PlaceRead:
    """A value that is read at ``time`` and finds what other values left in its bytes."""

    time: int
    value: int
    owners: tuple[int, ...]
    """The values that the bytes were last written through; ``value`` itself may be among them."""
    whole: bool
    """Whether each of its bytes was written."""
    certain: bool
    """False: the value may be a result of a delegate, which is not read."""


@dataclass(frozen=True, slots=True)
class PlaceWrite:
    """A value that an instruction writes over part of the bytes of one of its own arguments."""

    time: int
    value: int
    argument: int


class Graph:
    """Views one plan: its accesses and what follows from them."""

    def __init__(self, plan: ExecutionPlan, touched: Sequence[Access] | None = None) -> None:
        """Take a plan whose indices were checked, and what its instructions touch.

        ``touched`` comes from the kernels where there are any (``executor.nodes``), else from the
        table of :mod:`pteron.program.effects`.
        """
        self.plan = plan
        self.accesses: tuple[Access, ...] = accesses(plan) if touched is None else tuple(touched)
        self.end = len(plan.instructions)
        self.outputs = expand_all(plan, plan.outputs)

    @cached_property
    def straight(self) -> bool:
        """Whether instructions run in the file's order, each once, and none re-points a value."""
        return not any(isinstance(i, (JumpFalseCall, MoveCall)) for i in self.plan.instructions)

    # -- values ------------------------------------------------------------------------------------

    @cached_property
    def _times(self) -> tuple[list[int], list[int]]:
        first, last = [UNUSED] * len(self.plan.values), [UNUSED] * len(self.plan.values)
        for index in self.plan.inputs:
            first[index] = last[index] = -1
        for number, step in enumerate(self.accesses):
            for indices in (step.reads, step.writes, step.updates):
                for index in indices:
                    last[index] = number
                    if first[index] == UNUSED:
                        first[index] = number
        for index in self.outputs:
            last[index] = self.end
            if first[index] == UNUSED:
                first[index] = self.end
        return first, last

    @property
    def first(self) -> list[int]:
        """When each value is first named; :data:`UNUSED` for never."""
        return self._times[0]

    @property
    def last(self) -> list[int]:
        """When each value is last named."""
        return self._times[1]

    @cached_property
    def writers(self) -> dict[int, list[int]]:
        """The instructions that write or change each value; a delegate may write what it gets."""
        found: dict[int, list[int]] = {}
        for number, step in enumerate(self.accesses):
            for index in (*step.writes, *step.updates):
                found.setdefault(index, []).append(number)
            if isinstance(self.plan.instructions[number], DelegateCall):
                for index in step.reads:
                    found.setdefault(index, []).append(number)
        return found

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """The instructions that read each value, or change what it held."""
        found: dict[int, list[int]] = {}
        for number, step in enumerate(self.accesses):
            for index in (*step.reads, *step.updates):
                found.setdefault(index, []).append(number)
        return found

    @cached_property
    def updated(self) -> frozenset[int]:
        """The values that some kernel changes in place."""
        return frozenset(index for step in self.accesses for index in step.updates)

    @cached_property
    def in_delegates(self) -> frozenset[int]:
        """The values that delegates are given."""
        return frozenset(
            index
            for instruction, step in zip(self.plan.instructions, self.accesses, strict=True)
            if isinstance(instruction, DelegateCall)
            for index in step.reads
        )

    @cached_property
    def repeats(self) -> dict[int, int]:
        """Values that stand for another one: what an in-place operator returns is its argument."""
        found: dict[int, int] = {}
        written: set[int] = set(self.plan.inputs)
        for step in self.accesses:
            written.update((*step.writes, *step.updates))
        for step in self.accesses:
            for value, argument in step.repeats:
                if (
                    value not in written
                    and value != argument
                    and found.setdefault(value, argument) != argument
                ):
                    written.add(value)
        return {v: a for v, a in found.items() if v not in written}

    @cached_property
    def scalars_written(self) -> frozenset[int]:
        """The values that are no tensors and change while the method runs."""
        values = self.plan.values
        changed = {
            index
            for step in self.accesses
            for index in (*step.writes, *step.updates)
            if not isinstance(values[index], Tensor)
        }
        return frozenset(changed | _numbers_of_delegates(self))

    # -- state -------------------------------------------------------------------------------------

    @cached_property
    def _unwritten(self) -> Unwritten:
        return find_unwritten(self.plan, self.accesses, self.repeats)

    @property
    def state(self) -> tuple[int, ...]:
        """The tensors that keep their value from call to call, planned or not."""
        return self._unwritten.state

    @property
    def silent_views(self) -> tuple[int, ...]:
        """The tensors that read, by their place alone, what was written to another value."""
        return self._unwritten.aliases

    @cached_property
    def silently_viewed(self) -> frozenset[int]:
        """The planned tensors that lie over bytes of a silent view."""
        spans: dict[int, ByteOwners] = {}
        for index in self.silent_views:
            place = _place(self.plan, index)
            if place is not None:
                spans.setdefault(place[0], ByteOwners()).write(place[1], place[2], index)
        found = set()
        for index in range(len(self.plan.values)) if spans else ():
            place = _place(self.plan, index)
            if place is not None and place[0] in spans:
                owners, _ = spans[place[0]].read(place[1], place[2])
                if any(owner != index for owner in owners):
                    found.add(index)
        return frozenset(found)

    @cached_property
    def shadowed(self) -> frozenset[int]:
        """The tensors at whose place a delegate may read: another value there, that nothing set.

        Such a value is a silent view or a result of the delegate; the file does not say which.
        """
        places = {}
        written = set(self.plan.inputs)
        for instruction, step in zip(self.plan.instructions, self.accesses, strict=True):
            if not isinstance(instruction, DelegateCall):
                written.update((*step.writes, *step.updates))
        for index in self.in_delegates - written:
            place = _place(self.plan, index)
            if place is not None:
                places[place] = index
        return frozenset(
            index
            for index in range(len(self.plan.values))
            if places and places.get(_place(self.plan, index) or (0, 0, 0), index) != index
        )

    # -- bytes -------------------------------------------------------------------------------------

    @cached_property
    def _places(self) -> _Places:
        places = _Places(self)
        if self.straight:
            places.follow()
        return places

    @property
    def place_reads(self) -> tuple[PlaceRead, ...]:
        """The reads that find what another value left, in order; none if not ``straight``."""
        return tuple(self._places.reads)

    @property
    def place_writes(self) -> tuple[PlaceWrite, ...]:
        """The results that lie over part of an argument; none if not ``straight``."""
        return tuple(self._places.writes)

    @cached_property
    def surviving_inputs(self) -> frozenset[int]:
        """The planned inputs whose bytes a run leaves as they were."""
        planned = {i for i in self.plan.inputs if _place(self.plan, i) is not None}
        if self.straight:
            return frozenset(i for i in planned if self._places.is_untouched(i))
        spans: dict[int, ByteOwners] = {}
        given = set(self.plan.inputs) - self.updated
        for index in self.writers:
            place = None if index in given else _place(self.plan, index)
            if place is not None:
                spans.setdefault(place[0], ByteOwners()).write(place[1], place[2], index)
        return frozenset(
            index
            for index in planned
            if (place := _place(self.plan, index)) is not None
            and not (place[0] in spans and spans[place[0]].read(place[1], place[2])[0])
        )

    @cached_property
    def last_needed(self) -> list[int]:
        """When what was written through each value is last read, through whichever value."""
        last = list(self.last)
        for value, owner in self._places.joined.items():
            last[owner] = max(last[owner], last[value])
        for read in self.place_reads:
            for owner in read.owners:
                last[owner] = max(last[owner], read.time)
        for value, argument in self.repeats.items():
            last[argument] = max(last[argument], last[value])
        for step in reversed(self.accesses):
            if step.aliases and step.reads:
                source, view = step.reads[0], step.writes[0]
                last[source] = max(last[source], last[view])
        return last

    @cached_property
    def read_by_place(self) -> dict[int, tuple[PlaceRead, ...]]:
        """The reads through other values, by the value that the bytes were written through."""
        found: dict[int, list[PlaceRead]] = {}
        for read in self.place_reads:
            for owner in read.owners:
                if owner != read.value:
                    found.setdefault(owner, []).append(read)
        return {owner: tuple(reads) for owner, reads in found.items()}

    @cached_property
    def view_sources(self) -> dict[int, int]:
        """The value that each silent view reads, where all its reads find that one value's bytes.

        Both have the same place, and nothing but kernels uses the view.
        """
        found: dict[int, int | None] = {}
        for read in self.place_reads:
            source = read.owners[0] if read.certain and read.whole and len(read.owners) == 1 else -1
            if found.setdefault(read.value, source) != source:
                found[read.value] = None
        reads = {index: len(numbers) for index, numbers in self.readers.items()}
        counted: dict[int, int] = {}
        for read in self.place_reads:
            counted[read.value] = counted.get(read.value, 0) + 1
        return {
            view: source
            for view, source in found.items()
            if source is not None
            and source >= 0
            and source != view
            and counted[view] == reads.get(view, 0)
            and view not in self.writers
            and view not in self.in_delegates
            and view not in self.outputs
            and self._have_one_place(view, source)
        }

    def _have_one_place(self, one: int, other: int) -> bool:
        a, b = self.plan.values[one], self.plan.values[other]
        return (
            isinstance(a, Tensor)
            and isinstance(b, Tensor)
            and a.allocation_info == b.allocation_info
            and a.nbytes == b.nbytes
        )

    def may_be_read_by_place(self, index: int) -> bool:
        """Whether what is written to a planned tensor may be read through another value.

        Reads through the views of :attr:`view_sources` do not count.
        """
        if self.straight:
            return any(
                self.view_sources.get(read.value) != index
                for read in self.read_by_place.get(index, ())
            )
        return index in self._touched_elsewhere

    @cached_property
    def _touched_elsewhere(self) -> frozenset[int]:
        """Planned tensors with bytes of a value that is not written in each block it is read in."""
        open_reads = self._read_before_written_in_a_block()
        found: set[int] = set()
        spans: dict[int, ByteOwners] = {}
        for index in open_reads:
            place = _place(self.plan, index)
            if place is not None:
                spans.setdefault(place[0], ByteOwners()).write(place[1], place[2], index)
        for index in range(len(self.plan.values)):
            place = _place(self.plan, index)
            if place is not None and place[0] in spans:
                owners, _ = spans[place[0]].read(place[1], place[2])
                if any(owner != index for owner in owners):
                    found.add(index)
        return frozenset(found)

    def _read_before_written_in_a_block(self) -> set[int]:
        instructions = self.plan.instructions
        leaders = {0}
        for number, instruction in enumerate(instructions):
            if isinstance(instruction, JumpFalseCall):
                leaders.update((number + 1, instruction.destination_instruction))
        found: set[int] = set(self.outputs)
        written: set[int] = set()
        for number, (instruction, step) in enumerate(zip(instructions, self.accesses, strict=True)):
            if number in leaders:
                written = set()
            found.update(i for i in (*step.reads, *step.updates) if i not in written)
            if not isinstance(instruction, DelegateCall):
                written.update(step.writes)
        return found


def _numbers_of_delegates(graph: Graph) -> set[int]:
    values = graph.plan.values
    return {index for index in graph.in_delegates if not isinstance(values[index], Tensor)}


def _place(plan: ExecutionPlan, index: int) -> tuple[int, int, int] | None:
    """Return buffer, begin and end of a planned tensor that has bytes."""
    value = plan.values[index]
    if not isinstance(value, Tensor) or value.allocation_info is None:
        return None
    nbytes = value.nbytes
    if not nbytes:
        return None
    begin = value.allocation_info.memory_offset
    return value.allocation_info.memory_id, begin, begin + nbytes


class _Places:
    """Goes through a straight plan, with the value that each byte was last written through."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._plan = graph.plan
        self._owners: dict[int, ByteOwners] = {}
        self._spans: list[tuple[int, int, int] | None] = [
            _place(graph.plan, index) for index in range(len(graph.plan.values))
        ]
        self._same = dict(graph.repeats)
        self.reads: list[PlaceRead] = []
        self.writes: list[PlaceWrite] = []
        self.joined: dict[int, int] = {}
        """Silent views that something may write to: what is written is written to the owner."""

    def follow(self) -> None:
        graph = self._graph
        known = bytearray(len(self._plan.values))
        for index in (*graph.state, *self._plan.inputs):
            self._write(index)
            known[index] = 1
        self._join_state()
        for number, (instruction, step) in enumerate(
            zip(self._plan.instructions, graph.accesses, strict=True)
        ):
            if isinstance(instruction, DelegateCall):
                self._delegate(number, step.reads, known)
                continue
            for index in step.reads:
                self._read(number, index)
            for index in step.updates:
                if not step.overwrites:
                    self._read(number, index, certain=not step.assumed)
                self._join(index, known)
            if step.aliases:
                self._view(step, known)
                continue
            for index in step.writes:
                if step.guessed:
                    self._join(index, known)
                self._check_arguments(number, index, step)
                self._write(index)
                known[index] = 1
            for index in step.updates:
                self._write(index)
                known[index] = 1
        for index in (*graph.outputs, *graph.state):
            self._read(graph.end, index)

    def _view(self, step: Access, known: bytearray) -> None:
        """Put a view where its source is: running the instruction does."""
        for index in step.writes:
            if step.reads and index != step.reads[0]:
                self._join(step.reads[0], known)
                self._same[index] = self._root(step.reads[0])
                self._spans[index] = self._spans[step.reads[0]]
            known[index] = 1

    def _join_state(self) -> None:
        """Take values of state at one place for one: a view of state is state too."""
        at: dict[tuple[int, int], int] = {}
        for index in self._graph.state:
            span = self._spans[index]
            if span is not None:
                base = at.setdefault(span[:2], index)
                if base != index:
                    self._same[index] = base
                    self._write(base)
                    self._write(index)

    def is_untouched(self, index: int) -> bool:
        """Whether a planned input holds at the end what it held at the beginning."""
        span = self._spans[index]
        if span is None or self._was_changed(index):
            return span is None
        return self._owners[span[0]].is_owned(span[1], span[2], self._root(index))

    def _was_changed(self, index: int) -> bool:
        root = self._root(index)
        return any(self._root(one) == root for one in self._graph.updated)

    def _root(self, index: int) -> int:
        while index in self._same:
            index = self._same[index]
        return index

    def _delegate(self, number: int, args: Iterable[int], known: bytearray) -> None:
        args = tuple(args)
        last_input = max(
            (p for p, index in enumerate(args) if self._is_given(index, known)), default=-1
        )
        for position, index in enumerate(args):
            self._read(number, index, certain=position <= last_input)
            if position < len(args) - 1:  # the last one is a result
                self._join(index, known)
        for index in args:
            self._write(index)
            known[index] = 1

    def _join(self, index: int, known: bytearray) -> None:
        """Take a silent view that is about to be written to for the value that it views."""
        span = self._spans[index]
        if known[index] or span is None or span[0] not in self._owners:
            return
        owners, whole = self._owners[span[0]].read(span[1], span[2])
        if whole and len(owners) == 1 and owners[0] != index:
            base = self._spans[owners[0]]
            if base is not None and _nest(span, base):
                self._same[index] = self.joined[index] = owners[0]

    def _is_given(self, index: int, known: bytearray) -> bool:
        value = self._plan.values[index]
        return bool(known[index]) or not isinstance(value, Tensor) or value.is_constant

    def _check_arguments(self, number: int, index: int, step: Access) -> None:
        span = self._spans[index]
        if span is None:
            return
        for argument in step.reads:
            other = self._spans[argument]
            if other is None or other[0] != span[0] or argument == index:
                continue
            if other[1] < span[2] and span[1] < other[2] and not _nest(span, other):
                self.writes.append(PlaceWrite(number, index, argument))

    def _write(self, index: int) -> None:
        span = self._spans[index]
        if span is not None:
            owners = self._owners.get(span[0])
            if owners is None:
                owners = self._owners[span[0]] = ByteOwners()
            owners.write(span[1], span[2], self._root(index))

    def _read(self, time: int, index: int, *, certain: bool = True) -> None:
        span = self._spans[index]
        if span is None:
            return
        root = self._root(index)
        spans = self._owners.get(span[0])
        if spans is not None and spans.is_owned(span[1], span[2], root):
            return
        found, whole = ((), False) if spans is None else spans.read(span[1], span[2])
        if found:
            owners = tuple(index if owner == root else owner for owner in found)
            self.reads.append(PlaceRead(time, index, owners, whole, certain))


def _nest(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    return (one[1] <= other[1] and other[2] <= one[2]) or (
        other[1] <= one[1] and one[2] <= other[2]
    )
