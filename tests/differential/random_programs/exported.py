"""Recipes as torch modules, exported: the same steps, as views and changes of eager torch.

The oracle is the module itself. A module that the exporter refuses says nothing about pteron; it
is counted and passed over.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from differential.random_programs.generator import recipe_of
from differential.random_programs.operators import ROWS
from differential.random_programs.own_kernels import OWN, define_for_export, fresh_state
from differential.random_programs.recipe import Branch, Call, Recipe, Role, Step
from differential.random_programs.sketch import ELASTIC, laid_out, random_tensor, resolved

CALLS = 3


class RecipeModule(nn.Module):
    """Runs a recipe as a model would: views stay views, state is a buffer."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        for index, value in enumerate(recipe.values):
            if value.role in (Role.CONSTANT, Role.STATE):
                data = value.data if value.data is not None else torch.zeros(value.shape)
                name = "state" if value.role is Role.STATE else "constant"
                data = laid_out(data.to(value.dtype), value.order)
                self.register_buffer(f"{name}{index}", data)
        self.own: dict[str, Callable[..., Any]] = {}
        """What runs own operators in eager runs; empty while the module is exported."""

    def forward(self, *inputs: Tensor) -> tuple[Any, ...]:
        tensors: dict[int, Any] = dict(zip(self.recipe.inputs, inputs, strict=True))
        for index, value in enumerate(self.recipe.values):
            if value.role is Role.CONSTANT:
                tensors[index] = getattr(self, f"constant{index}")
            elif value.role is Role.STATE:
                tensors[index] = getattr(self, f"state{index}")
        self._steps(self.recipe.steps, tensors)
        return tuple(tensors[index] for index in self.recipe.outputs)

    def _steps(self, steps: Sequence[Step], tensors: dict[int, Any]) -> None:
        for step in steps:
            if isinstance(step, Branch):
                self._branch(step, tensors)
            else:
                self._call(step, tensors)

    def _branch(self, step: Branch, tensors: dict[int, Any]) -> None:
        def body(steps: Sequence[Step], which: int) -> Callable[[], tuple[Tensor, ...]]:
            def run() -> tuple[Tensor, ...]:
                inner = dict(tensors)
                self._steps(steps, inner)
                return tuple(inner[result[which]].clone() for result in step.results)

            return run

        found = torch.cond(tensors[step.predicate], body(step.then, 1), body(step.otherwise, 2), ())
        for result, tensor in zip(step.results, found, strict=True):
            tensors[result[0]] = tensor

    def _call(self, step: Call, tensors: dict[int, Any]) -> None:
        row = ROWS[step.op]
        function = self.own.get(step.op) or row.traced or row.eager
        results = function(*[resolved(arg, tensors) for arg in step.args])
        found = results if isinstance(results, (list, tuple)) else [results]
        tensors.update(zip(step.outs, found, strict=False))


def exportable(seed: int) -> Recipe:
    """Return a recipe whose steps a module can be exported with."""
    return recipe_of(seed, exports=True)


def calls_of(recipe: Recipe) -> tuple[tuple[Tensor, ...], ...]:
    """Return the recipe's calls; a dimension that varies is never 1, which the exporter fixes."""
    rng, noise = random.Random(recipe.seed), torch.Generator().manual_seed(recipe.seed)
    found = [recipe.calls[0]]
    varies = [recipe.values[i].dynamic for i in recipe.inputs]
    if not any(varies):
        return recipe.calls
    for _ in range(CALLS - 1):
        size, given = rng.randint(2, ELASTIC), []
        for index in recipe.inputs:
            value = recipe.values[index]
            shape = [size if value.dynamic and n == ELASTIC else n for n in value.shape]
            given.append(random_tensor(noise, shape, value.dtype, value.high))
        found.append(tuple(given))
    return tuple(found)


def results(recipe: Recipe, calls: Sequence[Sequence[Tensor]]) -> list[list[Any]]:
    """Return what the module gives in eager torch."""
    module = RecipeModule(recipe)
    module.own = {row.name: row.eager for row in OWN} | fresh_state()
    found = []
    with torch.no_grad():
        for given in calls:
            outputs = module(*[t.clone() for t in given])
            found.append([t.clone() if isinstance(t, Tensor) else t for t in outputs])
    return found


def plan_settings(seed: int) -> dict[str, Any]:
    """Draw settings of the exporter's memory planning."""
    from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, naive

    rng = random.Random(f"plan {seed}")
    found: dict[str, Any] = {}
    if rng.random() < 0.3:
        found["alloc_graph_input"] = False
    if rng.random() < 0.3:
        found["alloc_graph_output"] = False
    if rng.random() < 0.15:
        found["alloc_mutable_buffers"] = False
    if rng.random() < 0.25:
        found["memory_planning_algo"] = MemoryPlanningAlgorithmSuite([naive])
    return found


def export(recipe: Recipe) -> bytes:
    """Return the recipe's module as a program; raises whatever the exporter raises."""
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
    from executorch.exir.passes import MemoryPlanningPass
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

    define_for_export()
    settings = plan_settings(recipe.seed)
    example = recipe.calls[0]
    dim = torch.export.Dim("n", min=2, max=ELASTIC)
    shapes = [
        {at: dim for at, n in enumerate(recipe.values[i].shape) if n == ELASTIC}
        if recipe.values[i].dynamic
        else {}
        for i in recipe.inputs
    ]
    dynamic = {"inputs": tuple(shapes)} if any(shapes) else None
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(
            RecipeModule(recipe).eval(), example, dynamic_shapes=dynamic, strict=False
        )
        edge = to_edge(program, compile_config=EdgeCompileConfig(_check_ir_validity=False))
        named = random.Random(f"names {recipe.seed}").random() < 0.5
        config = ExecutorchBackendConfig(
            emit_mutable_buffer_names=named or bool(settings),
            memory_planning_pass=MemoryPlanningPass(**settings),
            passes=[InitializedMutableBufferPass(["state"])],
        )
        return bytes(edge.to_executorch(config).buffer)
