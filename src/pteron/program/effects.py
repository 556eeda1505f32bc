"""What an operator touches, and what one call of it touches.

A kernel states its effects (``Kernel.effects``), and whoever has kernels asks them. What reads
files only has the table here: it knows the operators that pteron implements, follows the emitter's
convention for ATen's out variants (a call's values are the schema's arguments and then its returns,
which repeat the out tensors; ``exir/emit/_emitter.py``), and takes every other operator for one
that may change each tensor that it is given. A test holds the table to the kernels: it never says
that less is touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pteron.format.schema import (
    DelegateCall,
    ExecutionPlan,
    FreeCall,
    Instruction,
    IntList,
    JumpFalseCall,
    KernelCall,
    MoveCall,
    OptionalTensorList,
    Tensor,
    TensorList,
)
from pteron.program.primitives import PRIMITIVES, Result

Positions = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Effects:
    """What a call of one operator touches, as positions in the values that it names.

    Positions below ``inputs`` that are not in ``updates`` are read. Every value that a position
    leads to counts, so a list of tensors is all of its items.
    """

    inputs: int
    """How many arguments come before the results."""
    writes: Positions = ()
    """Results: written whole, whatever was there before."""
    updates: Positions = ()
    """Arguments that are changed: read, and written in part or whole."""
    replaces: bool = False
    """Whether nothing of what ``updates`` held survives (``aten::copy_``)."""
    views: Positions = ()
    """Those of ``writes`` that share the memory of argument 0 from then on (``et_view``)."""
    repeats: tuple[tuple[int, int], ...] = ()
    """(return, argument): a return value that stands for an argument. Nothing is written to it."""
    assumed: bool = False
    """Whether ``updates`` are what nobody states: the operator may change them, or not."""
    guessed: bool = False
    """Whether even the border between arguments and results is a guess."""


@dataclass(frozen=True, slots=True)
class Access:
    """The value indices that one instruction reads, writes whole, and changes in place.

    Lists are expanded to their elements. ``updates`` are read and written; if ``overwrites``,
    nothing of their old value survives.
    """

    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    updates: tuple[int, ...] = ()
    overwrites: bool = False
    aliases: bool = False
    """Whether the written value shares the memory of the first value read (``et_view``)."""
    repeats: tuple[tuple[int, int], ...] = ()
    """(return, argument) where an in-place operator's return has a value of its own."""
    assumed: bool = False
    """Whether ``updates`` are what nobody states: the operator may change them, or not."""
    guessed: bool = False
    """Whether even the border between arguments and results is a guess."""


def expand(plan: ExecutionPlan, index: int) -> Iterator[int]:
    """Yield a value's index, or the indices of its elements if it is a list of values."""
    value = plan.values[index]
    if isinstance(value, (TensorList, OptionalTensorList, IntList)):
        yield from (item for item in value.items if item >= 0)
    else:
        yield index


def expand_all(plan: ExecutionPlan, args: Iterable[int]) -> tuple[int, ...]:
    """Return value indices with each list of values replaced by its elements."""
    values = plan.values
    found: list[int] = []
    for arg in args:
        value = values[arg]
        if isinstance(value, (TensorList, OptionalTensorList, IntList)):
            found += [item for item in value.items if item >= 0]
        else:
            found.append(arg)
    return tuple(found)


def operator_name(plan: ExecutionPlan, call: KernelCall) -> str:
    """Return the full name of the operator that a call runs."""
    return plan.operators[call.op_index].full_name


def call_access(plan: ExecutionPlan, args: Sequence[int], effects: Effects) -> Access:
    """Return what a call with values ``args`` touches, given what its operator does."""
    count = effects.inputs
    if not effects.updates:
        reads = expand_all(plan, args[:count])
        changed: tuple[int, ...] = ()
    else:
        reads = expand_all(plan, (args[p] for p in range(count) if p not in effects.updates))
        changed = expand_all(plan, (args[p] for p in effects.updates))
    written = expand_all(plan, (args[p] for p in effects.writes)) if effects.writes else ()
    if written and not effects.views:
        in_place = [item for item in written if item in reads]
        if in_place:  # a result that lies in an argument
            changed += tuple(in_place)
            written = tuple(item for item in written if item not in in_place)
    repeats = tuple(
        (args[result], args[source])
        for result, source in effects.repeats
        if args[result] != args[source] and isinstance(plan.values[args[result]], Tensor)
    )
    return Access(
        reads,
        written,
        changed,
        effects.replaces,
        bool(effects.views),
        repeats,
        effects.assumed,
        effects.guessed,
    )


def access(plan: ExecutionPlan, instruction: Instruction) -> Access:
    """Return what an instruction touches, by the table of this module.

    A delegate's values are all given as reads: which of them it writes, only its backend knows.
    """
    if isinstance(instruction, KernelCall):
        if not instruction.args:
            return Access()
        name = operator_name(plan, instruction)
        effects = _known_effects(name, len(instruction.args))
        if effects is None:
            effects = _conventional(plan, name, instruction.args)
        return call_access(plan, instruction.args, effects)
    return other_access(plan, instruction)


def other_access(plan: ExecutionPlan, instruction: Instruction) -> Access:
    """Return what an instruction that calls no kernel touches."""
    if isinstance(instruction, DelegateCall):
        return Access(reads=expand_all(plan, instruction.args))
    if isinstance(instruction, MoveCall):
        return Access(reads=(instruction.move_from,), writes=(instruction.move_to,))
    if isinstance(instruction, JumpFalseCall):
        return Access(reads=(instruction.cond_value_index,))
    if isinstance(instruction, FreeCall):
        return Access(reads=(instruction.value_index,))
    raise AssertionError(instruction)


def accesses(plan: ExecutionPlan) -> tuple[Access, ...]:
    """Return what each instruction touches, by the table of this module."""
    return tuple(access(plan, instruction) for instruction in plan.instructions)


# -- the table -------------------------------------------------------------------------------------

_FOLLOWS_CONVENTION = (
    "aten::",
    "cortex_m::",
    "dim_order_ops::",
    "executorch::",
    "llama::",
    "preprocess::",
    "quantized_decomposed::",
    "torchao::",
)
"""Libraries whose out variants change nothing but their out tensors, but for those of
:data:`_ALSO_CHANGED`."""

_CHANGES_MORE = ("aten::_amp_", "aten::_fused_")
"""Operators of these that change arguments as well: optimizers and observers."""

_ALSO_CHANGED: dict[str, Positions] = {
    "aten::_batch_norm_with_update.out": (3, 4),
    "aten::_batch_norm_with_update_functional": (3, 4),
    "aten::_native_batch_norm_legit.out": (3, 4),
    "aten::native_batch_norm.out": (3, 4),
    "aten::rrelu_with_noise.out": (1,),
    "executorch::update_cross_attn_cache": (1,),
    "llama::sdpa_with_kv_cache.out": (3, 4),
    "llama::update_cache.out": (1,),
    "llama::update_cache_with_indices.out": (1,),
}
"""Arguments that out variants change beside their out tensors."""

_PLACEHOLDERS = frozenset({"llama::update_cache.out", "llama::update_cache_with_indices.out"})
"""Operators that leave their out tensor as it is."""

_REPLACES = frozenset({"aten::copy_"})


@lru_cache(maxsize=4096)
def _known_effects(name: str, count: int) -> Effects | None:
    """Return the effects of a primitive called with ``count`` values, or None."""
    primitive = PRIMITIVES.get(name)
    if primitive is None:
        return None
    inputs, result = primitive
    inputs = min(inputs, count)
    if result is Result.NOTHING:
        return Effects(inputs)
    if result is Result.IN_PLACE:
        return Effects(inputs, updates=(0,))
    if result is Result.COPY:
        return Effects(inputs, writes=(min(inputs, count - 1),))
    last = count - 1
    return Effects(last, writes=(last,), views=(last,) if result is Result.VIEW else ())


def _conventional(plan: ExecutionPlan, name: str, args: Sequence[int]) -> Effects:
    """Return the effects of an operator by its name and the values of one call."""
    base, _, overload = name.partition(".")
    trusted = name.startswith(_FOLLOWS_CONVENTION) and not name.startswith(_CHANGES_MORE)
    last = len(args) - 1
    if base.endswith("_") and not base.endswith("__"):
        updates = (0,) if trusted else tuple(range(max(last, 1)))
        return Effects(
            max(last, 1),
            updates=updates,
            replaces=name in _REPLACES,
            repeats=((last, 0),) if last else (),
            assumed=not trusted,
        )
    is_out = _is_out(overload)
    first = _first_out(plan, args) if is_out else last
    writes = tuple(range(first, last + (0 if is_out and first < last else 1)))
    if name in _PLACEHOLDERS:
        writes = ()
    if not trusted or not (is_out or name in _ALSO_CHANGED or base in _FUNCTIONAL):
        updates = tuple(range(first))
        return Effects(first, writes=writes, updates=updates, assumed=True, guessed=not is_out)
    also = tuple(p for p in _ALSO_CHANGED.get(name, ()) if p < first)
    return Effects(first, writes=writes, updates=also)


_FUNCTIONAL = frozenset({"executorch::alias"})


_OUT_OVERLOADS = frozenset(
    "out output L OutScalar_Other OutScalar_Self OutTensor Q U X a dim_max dim_min dim_values "
    "eigenvalues eigvals grad_input inverse result sign values values_stable".split()
)
"""Overloads of ATen with out tensors whose names do not end in ``out``."""


def _is_out(overload: str) -> bool:
    return (
        overload in _OUT_OVERLOADS
        or overload.endswith(("_out", "_output"))
        or overload.startswith("out_")
    )


def _first_out(plan: ExecutionPlan, args: Sequence[int]) -> int:
    """Return the position at which an out variant's out tensors begin."""
    wanted = set(expand(plan, args[-1]))
    position = len(args) - 1
    if position > 0 and set(expand(plan, args[position - 1])) == wanted:
        return position - 1
    while position > 0 and wanted and args[position - 1] in wanted:
        wanted.discard(args[position - 1])
        position -= 1
    return position
