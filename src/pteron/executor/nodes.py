"""A plan's instructions with their kernels: each operator is looked up once, here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pteron.errors import InvalidProgramError, OperatorMissingError, PteronError
from pteron.format.schema import ExecutionPlan, Instruction, KernelCall
from pteron.kernels import broken_plugins
from pteron.kernels.registry import Kernel, OperatorRegistry
from pteron.program.disasm import format_instruction
from pteron.program.effects import Access, Effects, access, call_access, operator_name, other_access
from pteron.program.graph import Graph
from pteron.program.memory_plan import MemoryPlan


@dataclass(frozen=True, slots=True)
class Node:
    """One instruction, the kernel that runs it, and what it touches."""

    number: int
    instruction: Instruction
    access: Access
    kernel: Kernel | None = None
    """None for what calls no kernel, and for an operator that has none."""

    @property
    def args(self) -> tuple[int, ...]:
        """The values that a kernel's or a delegate's call names."""
        return getattr(self.instruction, "args", ())


def resolve(plan: ExecutionPlan, registry: OperatorRegistry) -> tuple[Node, ...]:
    """Return the instructions of a plan with their kernels.

    An operator without a kernel, or called with another number of values than its kernel takes, has
    the effects of the table in :mod:`pteron.program.effects`; :func:`check_nodes` refuses it.
    """
    found: dict[int, tuple[Kernel, Effects, int] | None] = {}
    nodes = []
    for number, instruction in enumerate(plan.instructions):
        if not isinstance(instruction, KernelCall):
            nodes.append(Node(number, instruction, other_access(plan, instruction)))
            continue
        index = instruction.op_index
        if index not in found:
            kernel = registry.find(operator_name(plan, instruction))
            found[index] = None if kernel is None else (kernel, kernel.effects, kernel.num_args)
        known = found[index]
        if known is None:
            nodes.append(Node(number, instruction, access(plan, instruction)))
            continue
        kernel, effects, count = known
        fits = len(instruction.args) == count
        touched = (
            call_access(plan, instruction.args, effects) if fits else access(plan, instruction)
        )
        nodes.append(Node(number, instruction, touched, kernel))
    return tuple(nodes)


def graph_of(plan: ExecutionPlan, nodes: Sequence[Node], known: Graph | None = None) -> Graph:
    """Return the graph of resolved instructions; ``known`` itself, if it says the same."""
    touched = tuple(node.access for node in nodes)
    if known is not None and known.accesses == touched:
        return known
    return Graph(plan, touched)


def missing_operators(plan: ExecutionPlan, registry: OperatorRegistry) -> list[str]:
    """Return the operators of a plan that no kernel implements, each once, in order."""
    called = {i.op_index for i in plan.instructions if isinstance(i, KernelCall)}
    names = [op.full_name for n, op in enumerate(plan.operators) if n in called]
    return list(dict.fromkeys(name for name in names if registry.find(name) is None))


def check_operators(plan: ExecutionPlan, registry: OperatorRegistry) -> None:
    """Raise OperatorMissingError that names every operator without a kernel."""
    missing = missing_operators(plan, registry)
    if missing:
        hint = "register a Python function for each with pteron.register_kernel"
        broken = "; ".join(map(str, broken_plugins()))
        if broken:
            hint += f", or repair what may bring them: {broken}"
        raise OperatorMissingError(
            f"method {plan.name!r} calls {len(missing)} operator(s) that no kernel "
            f"implements: {', '.join(missing)}",
            hint=hint,
        )


def check_counts(plan: ExecutionPlan, nodes: Sequence[Node]) -> None:
    """Raise InvalidProgramError for a call that names too many or too few values."""
    for node in nodes:
        if node.kernel is not None and len(node.args) != node.kernel.num_args:
            error = InvalidProgramError(
                f"{node.kernel.name} takes {node.kernel.num_args} values, the instruction names "
                f"{len(node.args)}"
            )
            add_place(error, plan, node.number)
            raise error


def add_place(error: PteronError, plan: ExecutionPlan, number: int) -> None:
    """Add to an error which instruction it is about."""
    text = format_instruction(plan, number)
    error.add_context(f"method {plan.name!r}, instruction {number}: {text}")


class ProgramNodes:
    """The memory plans of a program's methods, with the effects of their kernels."""

    def __init__(
        self,
        plans: Mapping[str, ExecutionPlan],
        registry: OperatorRegistry,
        graphs: Mapping[str, Graph],
    ) -> None:
        """Resolve every method; ``graphs`` are those that the verifier made."""
        self._registry = registry
        self.memory_plans: dict[str, MemoryPlan] = {}
        for name, plan in plans.items():
            graph = graph_of(plan, resolve(plan, registry), graphs.get(name))
            self.memory_plans[name] = MemoryPlan(plan, graph)

    def of(self, name: str) -> tuple[Node, ...]:
        """Return the instructions of a method with the kernels that are registered now."""
        plan = self.memory_plans[name].plan
        nodes = resolve(plan, self._registry)
        graph = graph_of(plan, nodes, self.memory_plans[name].graph)
        if graph is not self.memory_plans[name].graph:
            self.memory_plans[name] = MemoryPlan(plan, graph)
        return nodes
