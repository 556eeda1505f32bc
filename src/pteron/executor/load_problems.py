"""What a method needs and does not get on this machine, found before anything is allocated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import torch

from pteron.backends.blob_reader import delegate_blob
from pteron.backends.readers import keys_of
from pteron.errors import DeviceMissingError, NotFoundError, PteronError
from pteron.executor.nodes import check_operators
from pteron.format.schema import DelegateCall, ExecutionPlan, Tensor
from pteron.memory.program_memory import require_allocator
from pteron.program.disasm import format_value

if TYPE_CHECKING:
    from pteron.executor.load import LoadContext


def check_loadable(context: LoadContext, plan: ExecutionPlan) -> None:
    """Raise one error for all that a method lacks: devices, backends, operators, data.

    Its class and code are those of the first problem in that order. One problem alone is raised as
    it is.
    """
    problems = list(find_problems(context, plan))
    if problems:
        error = together(problems, f"method {plan.name!r}")
        raise error from problems[0].__cause__


def find_problems(context: LoadContext, plan: ExecutionPlan) -> Iterator[PteronError]:
    """Yield every independent reason why a method cannot be loaded."""
    found = [*_missing_devices(context, plan), *_missing_backends(context, plan)]
    for missing in found:
        if isinstance(missing, DeviceMissingError):
            missing.hint = missing.hint or context.device_hint(missing.device)
    try:
        check_operators(plan, context.kernels)
    except PteronError as error:
        found.append(error)
    yield from found
    # Backends check the data of their delegates when they read the blobs, which takes time: here
    # that is done only if no backend will come to it.
    yield from _missing_data(context, plan, _keys_of_delegates(context, plan) if found else ())


def together(problems: Sequence[PteronError], what: str) -> PteronError:
    """Return one error, of the class of the first, that lists all of them with their hints."""
    first = problems[0]
    if len(problems) == 1:
        return first
    lines = [f"{what} cannot be loaded, for {len(problems)} reasons:"]
    for number, problem in enumerate(problems, 1):
        text = "\n     ".join([problem.message, *problem.context])
        lines.append(f"  {number}. {text}")
    error = type(first)("\n".join(lines), hint=_joined_hints(problems))
    error.problems = tuple(problems)
    return error


def _joined_hints(problems: Sequence[PteronError]) -> str | None:
    """Return the hints, each once, with the numbers of the problems that it is for."""
    hints: dict[str, list[str]] = {}
    for number, problem in enumerate(problems, 1):
        if problem.hint:
            hints.setdefault(problem.hint, []).append(str(number))
    if len(hints) == 1 and all(problem.hint for problem in problems):
        return next(iter(hints))
    return "\n      ".join(f"({', '.join(at)}) {hint}" for hint, at in hints.items()) or None


def _missing_devices(context: LoadContext, plan: ExecutionPlan) -> Iterator[PteronError]:
    """Yield an error for each planned buffer, then for other values on devices not named yet."""
    yield from context.memory.missing_devices(plan.name)
    seen = {context.memory.device(buffer) for buffer in context.memory.plan(plan.name).buffers}
    for index, value in enumerate(plan.values):
        if not isinstance(value, Tensor) or value.allocation_info is not None:
            continue
        device = context.device_map(value.device)
        if device not in seen:
            seen.add(device)
            yield from _missing_device(plan, index, value, device)


def _missing_device(
    plan: ExecutionPlan, index: int, value: Tensor, device: torch.device
) -> Iterator[PteronError]:
    kind = "constant" if value.is_constant else "value without a place in the plan"
    what = (
        f"method {plan.name!r}: {kind} {format_value(plan, index)} "
        f"({value.nbytes:,} bytes on device {device})"
    )
    try:
        require_allocator(device, what)
    except NotFoundError as error:
        yield error


def _missing_backends(context: LoadContext, plan: ExecutionPlan) -> Iterator[PteronError]:
    """Yield an error for each backend that is not there, in the order of the first calls."""
    calls: dict[str, int] = {}
    for number, times in _called_delegates(plan).items():
        backend_id = plan.delegates[number].id
        calls[backend_id] = calls.get(backend_id, 0) + times
    for backend_id, count in calls.items():
        what = f"method {plan.name!r} ({count} delegate call{'s' if count > 1 else ''})"
        try:
            context.backends.require(backend_id, what)
        except PteronError as error:
            yield error


def _missing_data(
    context: LoadContext, plan: ExecutionPlan, others: Iterable[str]
) -> Iterator[PteronError]:
    """Yield one error for all keys that no file has, and one for each whose data does not fit."""
    missing: dict[str, None] = {}
    unfit: dict[str, PteronError] = {}
    state = frozenset(context.memory.plan(plan.name).state)
    for index, value in enumerate(plan.values):
        if not isinstance(value, Tensor) or not value.is_external:
            continue
        if not (value.is_constant or (index in state and value.has_initial_value)):
            continue
        key = value.fully_qualified_name
        if key and key not in context.data_map:
            missing[key] = None
            continue
        try:
            context.bytes_of(value)
        except PteronError as error:
            unfit.setdefault(error.message, error)
    missing.update((key, None) for key in others if key not in context.data_map)
    if missing:
        yield context.data_map.missing(list(missing))
    yield from unfit.values()


def _keys_of_delegates(context: LoadContext, plan: ExecutionPlan) -> Iterator[str]:
    """Yield the named data that a method's delegates need, as far as their readers know."""
    for number in _called_delegates(plan):
        with suppress(PteronError):  # a damaged blob is its backend's to refuse
            yield from keys_of(delegate_blob(context.pte, plan, number))


def _called_delegates(plan: ExecutionPlan) -> dict[int, int]:
    """Return how often each delegate that is called is called, in the order of the first calls."""
    calls: dict[int, int] = {}
    for instruction in plan.instructions:
        if isinstance(instruction, DelegateCall):
            number = instruction.delegate_index
            calls[number] = calls.get(number, 0) + 1
    return calls
