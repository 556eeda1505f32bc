"""The smallest host programs: what a caller gives and gets, with nothing else in the way."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from support.programs import Files, edited, export, kept


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Both(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x - y


class Same(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Numbers(nn.Module):
    """Takes one input of every kind, and gives them back beside a tensor."""

    def forward(
        self, x: torch.Tensor, scale: float, count: int, flag: bool, nothing: None, mode: str
    ) -> tuple[Any, ...]:
        assert mode == "fast"
        return (x * scale if flag else x), scale, count, flag, nothing


NUMBERS = (torch.ones(3), 0.5, 4, True, None, "fast")


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 2)
        with torch.no_grad():
            self.table.weight.copy_(torch.arange(8.0).view(4, 2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids)


class Twice(nn.Module):
    """Two outputs that are one tensor, one that is a view of it, and the input itself."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return y, y, y[1:], x


class Reused(nn.Module):
    """Its first input is read early, so that the plan puts the output where it was."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sin() + y


class Changed(nn.Module):
    """Changes its first input in place. The exporter makes the new value an output too."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * y


def unplanned() -> Any:
    from executorch.exir.passes import MemoryPlanningPass

    return MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)


@kept
def doubled() -> Files:
    return export(Doubled(), (torch.ones(2, 3),))


@kept
def doubled_unplanned() -> Files:
    return export(Doubled(), (torch.ones(2, 3),), memory_planning_pass=unplanned())


@kept
def doubled_image() -> Files:
    return export(Doubled(), (torch.ones(1, 3, 2, 2),))


@kept
def doubled_image_unplanned() -> Files:
    return export(Doubled(), (torch.ones(1, 3, 2, 2),), memory_planning_pass=unplanned())


@kept
def doubled_nothing() -> Files:
    """Zero elements."""
    return export(Doubled(), (torch.ones(0, 3),))


@kept
def doubled_number() -> Files:
    """Zero dimensions."""
    return export(Doubled(), (torch.tensor(1.0),))


def doubled_upto_files() -> Files:
    dims = {0: torch.export.Dim("rows", min=2, max=4), 1: torch.export.Dim("columns", min=2, max=3)}
    return export(Doubled(), (torch.ones(3, 2),), dynamic_shapes=(dims,))


@kept
def doubled_upto() -> Files:
    """Rows 2 to 4, columns 2 to 3."""
    return doubled_upto_files()


@kept
def both() -> Files:
    return export(Both(), (torch.ones(2, 3), torch.ones(2, 3)))


@kept
def both_unplanned() -> Files:
    return export(Both(), (torch.ones(2, 3), torch.ones(2, 3)), memory_planning_pass=unplanned())


@kept
def same() -> Files:
    return export(Same(), (torch.ones(2, 3),))


@kept
def same_unplanned() -> Files:
    return export(Same(), (torch.ones(2, 3),), memory_planning_pass=unplanned())


CONSTANTS = {"name": "digits", "size": 28, "scale": 0.25, "shape": [1, 28], "on": True}


@kept
def numbers() -> Files:
    return export(
        Numbers(),
        NUMBERS,
        constant_methods={
            "name": "digits",
            "size": 28,
            "scale": 0.25,
            "shape": [1, 28],
            "on": True,
        },
    )


@kept
def lookup() -> Files:
    return export(Lookup(), (torch.tensor([0, 1, 2]),))


@kept
def twice() -> Files:
    return export(Twice(), (torch.ones(3),))


@kept
def twice_unplanned() -> Files:
    return export(Twice(), (torch.ones(3),), memory_planning_pass=unplanned())


@kept
def reused() -> Files:
    return export(Reused(), (torch.ones(2, 3), torch.zeros(2, 3)))


@kept
def changed() -> Files:
    return export(Changed(), (torch.ones(3), torch.zeros(3)))


@kept
def changed_unplanned() -> Files:
    return export(Changed(), (torch.ones(3), torch.zeros(3)), memory_planning_pass=unplanned())


def unbound(program: Any) -> None:
    """Take every place and every bound away, and free what is between input and output."""
    from executorch.exir import schema

    (plan,) = program.execution_plan
    for value in plan.values:
        if isinstance(value.val, schema.Tensor) and value.val.data_buffer_idx == 0:
            value.val.shape_dynamism = schema.TensorShapeDynamism.DYNAMIC_UNBOUND
            value.val.allocation_info = None
    plan.chains[0].instructions.append(schema.Instruction(schema.FreeCall(2)))


@kept
def doubled_without_bounds() -> Files:
    return edited(doubled_upto_files(), unbound)
