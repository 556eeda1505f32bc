"""The oracle: runs a recipe step by step, every value in dense memory of its own.

What operators compute is eager torch's, by the table. Nothing of pteron is used. Values share
memory only where the recipe says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from differential.random_programs.operators import ROWS
from differential.random_programs.own_kernels import fresh_state
from differential.random_programs.recipe import Branch, Call, Recipe, Role, Step
from differential.random_programs.sketch import MAX_SIZE, laid_out, resolved, size_of


class Interpreter:
    """Runs the calls of one recipe, from first to last; state is kept in between."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._own = fresh_state()
        self._fixed: dict[int, Tensor] = {}
        for index, value in enumerate(recipe.values):
            if value.role in (Role.CONSTANT, Role.STATE):
                data = value.data if value.data is not None else torch.zeros(value.shape)
                self._fixed[index] = laid_out(data.to(value.dtype), value.order)
        self.tensors: dict[int, Any] = {}

    def call(self, inputs: Sequence[Tensor]) -> list[Any]:
        """Return the outputs of the next call, each in memory of its own."""
        self.tensors = dict(self._fixed)
        for index, given in zip(self._recipe.inputs, inputs, strict=True):
            self.tensors[index] = laid_out(given, self._recipe.values[index].order)
        self._silent()
        self._steps(self._recipe.steps)
        found = [self.tensors[index] for index in self._recipe.outputs]
        return [t.clone() if isinstance(t, Tensor) else t for t in found]

    def _steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, Branch):
                taken = bool(self.tensors[step.predicate].item())
                self._steps(step.then if taken else step.otherwise)
                for out, then, otherwise in step.results:
                    self._give(out, self.tensors[then if taken else otherwise])
            else:
                self._call(step)
            self._silent()

    def _call(self, step: Call) -> None:
        row = ROWS[step.op]
        function: Callable[..., Any] = self._own.get(step.op, row.eager)
        results = function(*[resolved(arg, self.tensors) for arg in step.args])
        if row.returns in ("self", "nothing"):
            return
        found = results if isinstance(results, (list, tuple)) else [results]
        for out, result in zip(step.outs, found, strict=True):
            if row.returns == "view":
                self.tensors[out] = result
            else:
                self._give(out, result)

    def _give(self, out: int, result: Any) -> None:
        order = self._recipe.values[out].order
        self.tensors[out] = laid_out(result, order) if isinstance(result, Tensor) else result

    def _silent(self) -> None:
        """Give the views that have no instruction the memory of what they lie in."""
        for index, value in enumerate(self._recipe.values):
            if value.silent and index not in self.tensors and value.source in self.tensors:
                self.tensors[index] = self.tensors[value.source].view(value.shape)


def expected(recipe: Recipe) -> list[list[Any]]:
    """Return the outputs of every call."""
    interpreter = Interpreter(recipe)
    return [interpreter.call(inputs) for inputs in recipe.calls]


def settled(recipe: Recipe) -> Recipe | None:
    """Return a recipe with the shapes that its calls show, or None if it cannot be called.

    A value whose shape is not the same in every call is dynamic, up to the largest.
    """
    shapes: dict[int, set[tuple[int, ...]]] = {}
    interpreter = Interpreter(recipe)
    for given in recipe.calls:
        try:
            interpreter.call(given)
        except (RuntimeError, IndexError, ValueError, TypeError, KeyError):
            return None
        for index, tensor in interpreter.tensors.items():
            if isinstance(tensor, Tensor):
                shapes.setdefault(index, set()).add(tuple(tensor.shape))
                if not size_of(tensor) <= 8 * MAX_SIZE:
                    return None
    values = []
    for index, value in enumerate(recipe.values):
        seen = shapes.get(index)
        if seen is not None and value.role is not Role.NUMBER:
            if len({len(shape) for shape in seen}) > 1:
                return None
            largest = tuple(map(max, *seen)) if len(seen) > 1 else next(iter(seen))
            value = replace(value, shape=largest, dynamic=len(seen) > 1)
            if len(value.order) != len(largest):
                value = replace(value, order=tuple(range(len(largest))))
        if value.dynamic and (value.silent or value.role in (Role.CONSTANT, Role.STATE)):
            return None
        values.append(value)
    return replace(recipe, values=tuple(values))
