"""Inputs and outputs as ``--json`` writes them."""

from __future__ import annotations

from typing import TypedDict

from pteron.format.schema import ExecutionPlan
from pteron.program import signature
from pteron.program.signature import Scalar, ValueFacts


class Value(TypedDict):
    """One input or output. ``dtype`` and what follows are None for a value that is not a tensor."""

    position: int
    value: int
    name: str | None
    """Where it is in the model's arguments or result, if the file says so."""
    kind: str
    literal: Scalar
    """The number or string in the file, of a value that is not a tensor."""
    dtype: str | None
    sizes: list[int] | None
    """The shape, or its upper bound if it is dynamic."""
    dynamic: bool | None
    dim_order: list[int] | None
    size_bytes: int | None
    planned: bool | None
    device: str | None


def describe_inputs(plan: ExecutionPlan) -> list[Value]:
    """Describe a method's inputs."""
    return [value_of(facts) for facts in signature.describe_inputs(plan, ValueFacts)]


def describe_outputs(plan: ExecutionPlan) -> list[Value]:
    """Describe a method's outputs."""
    return [value_of(facts) for facts in signature.describe_outputs(plan, ValueFacts)]


def value_of(facts: ValueFacts) -> Value:
    """Return one input or output as a dict."""
    return Value(
        position=facts.position,
        value=facts.index,
        name=facts.path,
        kind=facts.kind,
        literal=facts.literal,
        dtype=facts.dtype_name,
        sizes=None if facts.shape is None else list(facts.shape),
        dynamic=facts.is_dynamic if facts.is_tensor else None,
        dim_order=None if facts.dim_order is None else list(facts.dim_order),
        size_bytes=facts.nbytes,
        planned=facts.is_planned,
        device=facts.device,
    )
