"""Check everything that a file says before anything is allocated or run from it (DESIGN, V1, V2).

Reading (:mod:`pteron.format`) makes sure that every table lies inside the file. This is about what
the tables mean: every index, size, offset, count and name. Independent problems are collected, up
to ``limits.MAX_VIOLATIONS_REPORTED``. There is no lower level of checking, and no way around it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NoReturn

from pteron import limits
from pteron.errors import InvalidExternalDataError, InvalidProgramError
from pteron.format.ptd import PtdFile
from pteron.format.pte import PteFile
from pteron.format.schema import ExecutionPlan, SubsegmentOffsets, TensorLayout
from pteron.program.disasm import format_window, numbers, quoted
from pteron.program.graph import Graph
from pteron.program.verify_plan import verify_plan
from pteron.program.violations import EnoughError, Findings, Violation

__all__ = [
    "Verified",
    "Violation",
    "find_ptd_violations",
    "find_violations",
    "verify_method",
    "verify_program",
    "verify_ptd",
]


@dataclass(frozen=True, slots=True)
class Verified:
    """What verifying a program leaves: each method's graph, and what keeps it from loading."""

    graphs: Mapping[str, Graph]
    problems: Mapping[str, tuple[Violation, ...]]
    """Violations that keep one method from being loaded, and nothing else."""


def verify_program(pte: PteFile) -> Verified:
    """Raise InvalidProgramError with everything that is wrong with a program.

    Violations that keep a single method from being loaded, and nothing else, are left to
    :func:`verify_method`, unless there are others.
    """
    graphs: dict[str, Graph] = {}
    found = find_violations(pte, graphs)
    if any(violation.blocks for violation in found):
        _raise(pte, found)
    problems: dict[str, tuple[Violation, ...]] = {}
    for violation in found:
        if violation.method is not None:
            problems[violation.method] = (*problems.get(violation.method, ()), violation)
    return Verified(graphs, problems)


def verify_method(pte: PteFile, verified: Verified, name: str) -> None:
    """Raise InvalidProgramError with what keeps one method of a verified program from loading."""
    found = verified.problems.get(name, ())
    if found:
        _raise(pte, found)


def _raise(pte: PteFile, found: tuple[Violation, ...]) -> NoReturn:
    error = InvalidProgramError(_summary(pte.source.name, found), violations=tuple(map(str, found)))
    for line in _window_of_first(pte, found):
        error.add_context(line)
    raise error


def find_violations(pte: PteFile, graphs: dict[str, Graph] | None = None) -> tuple[Violation, ...]:
    """Return everything that is wrong with a program; put the graphs of its methods in ``graphs``.

    A program that cannot be gone through within the limits raises OutOfResourcesError.
    """

    def check(findings: Findings) -> None:
        _verify_segments(pte, findings)
        _verify_names(pte, findings)
        for plan in pte.program.execution_plan:
            graph = verify_plan(pte, plan, findings)
            if graph is not None and graphs is not None:
                graphs[plan.name] = graph

    return _collect(check)


def verify_ptd(ptd: PtdFile) -> None:
    """Raise InvalidExternalDataError with everything that is wrong with a data file."""
    found = find_ptd_violations(ptd)
    if found:
        raise InvalidExternalDataError(_summary(ptd.source.name, found))


def find_ptd_violations(ptd: PtdFile) -> tuple[Violation, ...]:
    """Return everything that is wrong with a data file."""

    def check(findings: Findings) -> None:
        tables = ptd.flat_tensor
        for index in range(len(tables.segments)):
            problem = ptd.segment_problem(index)
            if problem is not None:
                findings.add("", problem)
        for number, entry in enumerate(tables.named_data):
            where = f"named data {number} {quoted(entry.key)}"
            if not entry.key:
                findings.add(where, "it has no key")
            if entry.segment_index >= len(tables.segments):
                findings.add(
                    where,
                    f"segment {entry.segment_index} does not exist; the file has "
                    f"{len(tables.segments)}",
                )
            elif entry.tensor_layout is not None:
                size = tables.segments[entry.segment_index].size
                problem = _layout_problem(entry.tensor_layout, size)
                if problem is not None:
                    findings.add(where, problem)

    return _collect(check)


def _collect(check: Callable[[Findings], None]) -> tuple[Violation, ...]:
    findings = Findings()
    with suppress(EnoughError):
        check(findings)
    return tuple(findings.found)


def _layout_problem(layout: TensorLayout, size: int) -> str | None:
    rank = len(layout.sizes)
    if rank > limits.MAX_TENSOR_RANK:
        return f"rank {rank}; allowed are {limits.MAX_TENSOR_RANK} dimensions"
    if rank and min(layout.sizes) < 0:
        return f"size {min(layout.sizes)} is negative"
    if sorted(layout.dim_order) != list(range(rank)):
        return f"dim order {numbers(layout.dim_order)} is not a permutation of {rank} dimensions"
    nbytes = prod(layout.sizes) * layout.scalar_type.itemsize
    if nbytes > size:
        return (
            f"{layout.scalar_type.torch_name}{list(layout.sizes)} has {nbytes} bytes; its segment "
            f"has {size}"
        )
    return None


# -- the program as a whole -----------------------------------------------------------------------


def _verify_segments(pte: PteFile, findings: Findings) -> None:
    program = pte.program
    for index in range(len(program.segments)):
        problem = pte.segment_problem(index)
        if problem is not None:
            findings.add("", problem)
    constants = program.constant_segment
    if constants is not None and len(constants.offsets) > 1:
        if program.constant_buffer:
            findings.add(
                "constants",
                f"{len(program.constant_buffer)} are inside the flatbuffer and "
                f"{len(constants.offsets)} in a segment; only one of the two is allowed",
            )
        _verify_offsets(pte, "constant_segment", constants, findings)
    for number, mutable in enumerate(program.mutable_data_segments):
        _verify_offsets(pte, f"mutable data segment {number}", mutable, findings)
    shared = Counter(entry.segment_index for entry in program.mutable_data_segments)
    for segment, count in shared.items():
        if count > 1:
            findings.add("mutable data segments", f"{count} of them are segment {segment}")


def _verify_offsets(
    pte: PteFile, where: str, subsegment: SubsegmentOffsets, findings: Findings
) -> None:
    segments, index = pte.program.segments, subsegment.segment_index
    if index >= len(segments):
        findings.add(where, f"segment {index} does not exist; the file has {len(segments)}")
    elif subsegment.offsets and max(subsegment.offsets) > segments[index].size:
        findings.add(
            where,
            f"offset {max(subsegment.offsets)} is past the end of segment {index}, which has "
            f"{segments[index].size} bytes",
        )


def _verify_names(pte: PteFile, findings: Findings) -> None:
    program = pte.program
    if not program.execution_plan:
        findings.add("", "the program has no methods")
    for number, plan in enumerate(program.execution_plan):
        if not plan.name:
            findings.add(f"method {number}", "it has no name")
    for name, count in Counter(plan.name for plan in program.execution_plan).items():
        if count > 1 and name:
            findings.add(f"method {quoted(name)}", f"{count} methods have this name")
    for number, entry in enumerate(program.named_data):
        where = f"named data {number} {quoted(entry.key)}"
        if not entry.key:
            findings.add(where, "it has no key")
        if entry.segment_index >= len(program.segments):
            findings.add(
                where,
                f"segment {entry.segment_index} does not exist; the file has "
                f"{len(program.segments)}",
            )
    for key, count in Counter(entry.key for entry in program.named_data).items():
        if count > 1:
            findings.add(f"named data {quoted(key)}", f"{count} entries have this key")


# -- the message ----------------------------------------------------------------------------------


def _summary(source: str, found: tuple[Violation, ...]) -> str:
    name = Path(source).name or source
    if len(found) == 1:
        return f"{name} breaks a rule: {found[0]}"
    more = "at least " if len(found) >= limits.MAX_VIOLATIONS_REPORTED else ""
    lines = "".join(f"\n  {number}. {violation}" for number, violation in enumerate(found, 1))
    return f"{name} breaks {more}{len(found)} rules:{lines}"


def _window_of_first(pte: PteFile, found: tuple[Violation, ...]) -> list[str]:
    """Return the instructions around the first violation that is about an instruction."""
    for violation in found:
        if violation.instruction is not None:
            plan = _plan_called(pte, violation.method)
            return format_window(plan, violation.instruction).splitlines()
    return []


def _plan_called(pte: PteFile, name: str | None) -> ExecutionPlan:
    return next(plan for plan in pte.program.execution_plan if plan.name == name)
