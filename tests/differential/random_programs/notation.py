"""A program in pteron's own notation, for people."""

from __future__ import annotations

from differential.random_programs.assemble import assemble
from differential.random_programs.recipe import Recipe
from pteron.format.pte import read_pte
from pteron.format.source import open_source
from pteron.program.disasm import format_instruction, format_value


def program_text(data: bytes) -> str:
    """Return the values and instructions of a file's first method."""
    plan = read_pte(open_source(data)).program.execution_plan[0]
    lines = [format_value(plan, index) for index in range(len(plan.values))]
    lines += [
        f"{index}: {format_instruction(plan, index)}" for index in range(len(plan.instructions))
    ]
    lines.append(f"inputs {list(plan.inputs)} outputs {list(plan.outputs)}")
    return "\n".join(lines)


def recipe_text(recipe: Recipe) -> str:
    """Return a recipe as a program, and what it is called with."""
    lines = [f"seed {recipe.seed}, {recipe.layout}", program_text(assemble(recipe))]
    for index, value in enumerate(recipe.values):
        if value.data is not None:
            lines.append(f"data of value {index} ({value.role.value}): {value.data.tolist()}")
    for number, inputs in enumerate(recipe.calls):
        lines.append(f"call {number}: " + "; ".join(str(t.tolist()) for t in inputs))
    return "\n".join(lines)
