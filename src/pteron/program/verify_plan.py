"""The rules for one method. See :mod:`pteron.program.verify` for what they are good for."""

from __future__ import annotations

from collections import Counter

from pteron import limits
from pteron.errors import OutOfResourcesError
from pteron.format.pte import PteFile
from pteron.format.schema import (
    AllocationDetails,
    Bool,
    DataLocation,
    DelegateCall,
    Device,
    ExecutionPlan,
    FreeCall,
    Int,
    IntList,
    JumpFalseCall,
    KernelCall,
    MoveCall,
    Null,
    OptionalTensorList,
    ScalarType,
    Tensor,
    TensorList,
    TensorShapeDynamism,
)
from pteron.program.constants import constant_problem, initial_is_missing, initial_problem
from pteron.program.disasm import describe_instruction, format_value, numbers, quoted
from pteron.program.graph import Graph
from pteron.program.overlap import find_overlaps
from pteron.program.primitives import argument_count
from pteron.program.violations import Findings


def verify_plan(pte: PteFile, plan: ExecutionPlan, findings: Findings) -> Graph | None:
    """Add what is wrong with one method to ``findings``; return its graph if it could be made."""
    before = len(findings.found)
    verifier = _PlanVerifier(pte, plan, findings)
    verifier.buffers()
    verifier.indices("input", plan.inputs)
    verifier.indices("output", plan.outputs)
    verifier.operators()
    verifier.delegates()
    verifier.values()
    verifier.chains()
    if len(findings.found) != before:  # what comes next relies on all the rest
        return None
    graph = Graph(plan)
    verifier.constants_stay(graph)
    verifier.overlaps(graph)
    return graph


class _PlanVerifier:
    """Views one plan of a program."""

    def __init__(self, pte: PteFile, plan: ExecutionPlan, findings: Findings) -> None:
        self.pte = pte
        self.plan = plan
        self.findings = findings
        self.where = f"method {quoted(plan.name)}"
        self.sizes = plan.non_const_buffer_sizes
        self.devices: dict[int, Device] = {}
        self.shapes: dict[tuple[ScalarType, tuple[int, ...], tuple[int, ...], bool], int] = {}

    def add(self, where: str, message: str, *, blocks: bool = True) -> None:
        """Report something about the method."""
        where = f"{self.where}, {where}" if where else self.where
        self.findings.add(where, message, method=self.plan.name, blocks=blocks)

    def add_value(self, index: int, message: str, *, blocks: bool = True) -> None:
        """Report something about a value."""
        self.add(f"value {format_value(self.plan, index)}", message, blocks=blocks)

    def add_instruction(self, index: int, message: str) -> None:
        """Report something about an instruction."""
        text = describe_instruction(self.plan, self.plan.instructions[index])
        self.findings.add(
            f"{self.where}, instruction {index} ({text})",
            message,
            method=self.plan.name,
            instruction=index,
        )

    def range_of(self, count: int, what: str) -> str:
        """Say which indices are allowed."""
        return f"the method has {count} {what}" + (f" (0 to {count - 1})" if count else "")

    # -- tables of the method ---------------------------------------------------------------------

    def buffers(self) -> None:
        """Check sizes and device tags of the planned buffers."""
        last = len(self.sizes) - 1
        if last > limits.MAX_PLANNED_BUFFERS:
            self.add("", f"{last} planned buffers; allowed are {limits.MAX_PLANNED_BUFFERS}")
        for index, size in enumerate(self.sizes):
            if index and not 0 <= size <= limits.MAX_ARENA_BYTES:
                self.add(
                    f"planned buffer {index}",
                    f"{size} bytes; allowed are 0 to {limits.MAX_ARENA_BYTES}",
                )
        for entry in self.plan.non_const_buffer_device:
            where = f"device tag {entry.device} of planned buffer {entry.buffer_idx}"
            if not 1 <= entry.buffer_idx <= last:
                has = f"buffers 1 to {last}" if last > 0 else "no planned buffers"
                self.add(where, f"the method has {has}")
            elif entry.buffer_idx in self.devices:
                self.add(where, f"the buffer is tagged {self.devices[entry.buffer_idx]} already")
            if entry.device.index < 0:
                self.add(where, f"device index {entry.device.index} is negative")
            self.devices.setdefault(entry.buffer_idx, entry.device)

    def indices(self, what: str, indices: tuple[int, ...], where: str = "") -> None:
        """Check that every entry of a list leads to a value."""
        count = len(self.plan.values)
        if indices and (min(indices) < 0 or max(indices) >= count):
            for number, index in enumerate(indices):
                if not 0 <= index < count:
                    place = f"{where} {what} {number}".strip()
                    self.add(place, f"value {index}; {self.range_of(count, 'values')}")

    def operators(self) -> None:
        """Check that every operator has a name."""
        for index, operator in enumerate(self.plan.operators):
            if not operator.name:
                self.add(f"operator {index}", "it has no name")

    def delegates(self) -> None:
        """Check ids, blobs and settings of the delegates."""
        inline = self.pte.program.backend_delegate_data
        for index, delegate in enumerate(self.plan.delegates):
            where = f"delegate {index} {quoted(delegate.id)}"
            if not delegate.id:
                self.add(where, "it has no id")
            at = delegate.processed.index
            if delegate.processed.location is DataLocation.SEGMENT:
                problem = self.pte.segment_problem(at)
                if problem is not None:
                    self.add(where, problem)
            elif at >= len(inline):
                self.add(where, f"inline data {at} does not exist; the file has {len(inline)}")
            for spec, count in Counter(spec.key for spec in delegate.compile_specs).items():
                if count > 1 and spec == "target_device":
                    self.add(where, f"compile spec {spec!r} is given {count} times")

    # -- values -----------------------------------------------------------------------------------

    def values(self) -> None:
        """Check every value."""
        checks = {
            Tensor: self.tensor,
            IntList: self.int_list,
            TensorList: self.tensor_list,
            OptionalTensorList: self.tensor_list,
        }
        for index, value in enumerate(self.plan.values):
            check = checks.get(type(value))
            if check is not None:
                check(index, value)  # type: ignore[operator]

    def int_list(self, index: int, value: IntList) -> None:
        """Check that a list of integers names integers (or what becomes one as the method runs)."""
        self.items(index, value.items, (Int, Null))

    def tensor_list(self, index: int, value: TensorList | OptionalTensorList) -> None:
        """Check that a list of tensors names tensors; -1 and None stand for "absent"."""
        if isinstance(value, TensorList):
            self.items(index, value.items, (Tensor,))
        else:
            present = value.items
            if present and min(present) == -1:
                present = tuple(item for item in present if item != -1)
            self.items(index, present, (Tensor, Null))

    def items(self, index: int, items: tuple[int, ...], kinds: tuple[type, ...]) -> None:
        """Check that list items lead to values of the right kind."""
        values = self.plan.values
        for item in items:
            if not 0 <= item < len(values):
                self.add_value(index, f"item %{item}; {self.range_of(len(values), 'values')}")
            elif type(values[item]) not in kinds:
                wanted = " or ".join(kind.__name__ for kind in kinds)
                self.add_value(index, f"item {format_value(self.plan, item)} is no {wanted}")

    def tensor(self, index: int, value: Tensor) -> None:
        """Check shape, place and data of a tensor."""
        placed = value.allocation_info is not None or value.data_buffer_idx > 0
        sized = placed or value.shape_dynamism is TensorShapeDynamism.STATIC
        key = (value.scalar_type, value.sizes, value.dim_order, sized)
        nbytes = self.shapes.get(key)
        if nbytes is None:  # a shape that is wrong is not kept: it is reported for each tensor
            if self.shape(index, value, sized=sized):
                nbytes = self.shapes[key] = value.nbytes
        if value.storage_offset:
            self.add_value(index, f"storage offset {value.storage_offset}; only 0 is allowed")
        if nbytes is None:
            return
        if value.allocation_info is not None:
            self.place(index, value, value.allocation_info, nbytes)
        if value.is_external:
            if not value.fully_qualified_name:
                self.add_value(index, "its data is external, but it has no name to find it by")
        elif value.data_buffer_idx:
            self.data(index, value)

    def data(self, index: int, value: Tensor) -> None:
        """Check that the bytes of a constant or of an initial value are in the file."""
        if value.allocation_info is None:
            problem = constant_problem(self.pte, value)
            if problem is not None:
                self.add_value(index, problem)
            return
        problem = initial_problem(self.pte, value)
        if problem is not None:
            # executorch 1.5.1 writes such files: if several methods change a buffer that has an
            # initial value, one of them gets a number that the file lacks. The others are good.
            self.add_value(index, problem, blocks=not initial_is_missing(self.pte, value))

    def shape(self, index: int, value: Tensor, *, sized: bool) -> bool:
        """Check sizes and dim order; ``sized`` means that the bytes of the bound matter."""
        rank = len(value.sizes)
        if rank > limits.MAX_TENSOR_RANK:
            self.add_value(index, f"rank {rank}; allowed are {limits.MAX_TENSOR_RANK} dimensions")
        elif rank and min(value.sizes) < 0:
            self.add_value(index, f"size {min(value.sizes)} is negative")
        elif sorted(value.dim_order) != list(range(rank)):
            self.add_value(
                index,
                f"dim order {numbers(value.dim_order)} is not a permutation of {rank} dimensions",
            )
        elif sized and value.nbytes > limits.MAX_TENSOR_BYTES:
            self.add_value(index, f"{value.nbytes} bytes; allowed are {limits.MAX_TENSOR_BYTES}")
        else:
            return True
        return False

    def place(self, index: int, value: Tensor, plan: AllocationDetails, nbytes: int) -> None:
        """Check that a planned tensor is inside its buffer and agrees with the buffer's device."""
        buffer, offset, last = plan.memory_id, plan.memory_offset, len(self.sizes) - 1
        if not 1 <= buffer <= last:
            has = f"buffers 1 to {last}" if last > 0 else "no planned buffers"
            self.add_value(index, f"planned buffer {buffer} does not exist; the method has {has}")
            return
        if offset + nbytes > self.sizes[buffer]:
            self.add_value(
                index,
                f"byte {offset} + {nbytes} bytes go past the end of planned buffer {buffer}, "
                f"which has {self.sizes[buffer]}{self._fault(value)}",
            )
        # The tag of the buffer decides (DESIGN, P1). Older exporters tag tensors only: a tag of an
        # accelerator in a host buffer is their normal case.
        device = self.devices.get(buffer)
        if device is not None and not device.is_host and value.device != device:
            self.add_value(
                index,
                f"the tensor is tagged {value.device}, planned buffer {buffer} is tagged {device}",
            )

    @staticmethod
    def _fault(value: Tensor) -> str:
        """Say whose fault it is that a tensor of a dynamic shape has too little memory."""
        if value.shape_dynamism is TensorShapeDynamism.STATIC:
            return ""
        return (
            f": the exporter planned less than its own upper bound {value.sizes} needs. Export the "
            "program again, with an explicit max for each dynamic dimension (torch.export.Dim)"
        )

    # -- instructions -----------------------------------------------------------------------------

    def chains(self) -> None:
        """Check the instructions."""
        chains = self.plan.chains
        if len(chains) > 1:
            self.add("", f"{len(chains)} chains; no exporter writes more than 1")
        for chain in chains[:1]:
            self.indices("input", chain.inputs, "chain")
            self.indices("output", chain.outputs, "chain")
        checks = {
            DelegateCall: self.delegate_call,
            MoveCall: self.move_call,
            JumpFalseCall: self.jump_call,
            FreeCall: self.free_call,
        }
        self.count_arguments()
        counts = [argument_count(operator.full_name) for operator in self.plan.operators]
        values, operators = len(self.plan.values), len(counts)
        most = limits.MAX_ARGUMENTS_PER_CALL
        for index, step in enumerate(self.plan.instructions):
            if isinstance(step, KernelCall):
                op, args = step.op_index, step.args
                if not 0 <= op < operators:
                    self.add_instruction(
                        index,
                        f"operator {op} does not exist; {self.range_of(operators, 'operators')}",
                    )
                elif counts[op] is not None and counts[op] != len(args):
                    self.add_instruction(index, f"{len(args)} arguments; it takes {counts[op]}")
                if not 1 <= len(args) <= most or min(args) < 0 or max(args) >= values:
                    self.arguments(index, args)
            else:
                checks[type(step)](index, step)  # type: ignore[operator]

    def count_arguments(self) -> None:
        """Check that the calls, with the items of their lists, can be gone through in time."""
        lengths = {
            index: len(value.items)
            for index, value in enumerate(self.plan.values)
            if isinstance(value, (IntList, TensorList, OptionalTensorList))
        }
        total = 0
        for step in self.plan.instructions:
            if isinstance(step, (KernelCall, DelegateCall)):
                total += len(step.args)
                if lengths:
                    total += sum(lengths[arg] for arg in step.args if arg in lengths)
        if total > limits.MAX_ARGUMENTS_PER_METHOD:
            raise OutOfResourcesError(
                f"{self.where}: its calls name {total} values, lists counted by their items; "
                f"allowed are {limits.MAX_ARGUMENTS_PER_METHOD}"
            )

    def arguments(self, index: int, args: tuple[int, ...], *, at_least: int = 1) -> None:
        """Check the arguments of a call."""
        count = len(self.plan.values)
        if not at_least <= len(args) <= limits.MAX_ARGUMENTS_PER_CALL:
            self.add_instruction(
                index,
                f"{len(args)} arguments; allowed are {at_least} to {limits.MAX_ARGUMENTS_PER_CALL}",
            )
        for at, arg in enumerate(args):
            if not 0 <= arg < count:
                self.add_instruction(
                    index, f"argument {at} is value {arg}; {self.range_of(count, 'values')}"
                )

    def value_exists(self, index: int, what: str, value: int) -> bool:
        """Check one value index of an instruction."""
        count = len(self.plan.values)
        if 0 <= value < count:
            return True
        self.add_instruction(index, f"{what} is value {value}; {self.range_of(count, 'values')}")
        return False

    def delegate_call(self, index: int, step: DelegateCall) -> None:
        """Check a call of a delegate."""
        count = len(self.plan.delegates)
        if not 0 <= step.delegate_index < count:
            self.add_instruction(
                index,
                f"delegate {step.delegate_index} does not exist; "
                f"{self.range_of(count, 'delegates')}",
            )
        self.arguments(index, step.args, at_least=0)

    def move_call(self, index: int, step: MoveCall) -> None:
        """Check a move."""
        self.value_exists(index, "the source", step.move_from)
        self.value_exists(index, "the target", step.move_to)

    def jump_call(self, index: int, step: JumpFalseCall) -> None:
        """Check a jump; one behind the last instruction ends the method."""
        count = len(self.plan.instructions)
        if not 0 <= step.destination_instruction <= count:
            self.add_instruction(
                index,
                f"the target is instruction {step.destination_instruction}; allowed are 0 to "
                f"{count}",
            )
        if self.value_exists(index, "the condition", step.cond_value_index):
            condition = self.plan.values[step.cond_value_index]
            is_bool = isinstance(condition, (Bool, Null)) or (
                isinstance(condition, Tensor) and condition.scalar_type is ScalarType.BOOL
            )
            if not is_bool:
                self.add_instruction(
                    index,
                    f"the condition is {format_value(self.plan, step.cond_value_index)}; allowed "
                    "are a bool and a bool tensor",
                )

    def free_call(self, index: int, step: FreeCall) -> None:
        """Check that what is freed is a tensor."""
        if self.value_exists(index, "what is freed", step.value_index):
            value = self.plan.values[step.value_index]
            if not isinstance(value, Tensor):
                text = format_value(self.plan, step.value_index)
                self.add_instruction(index, f"what is freed is {text}, not a tensor")

    # -- data flow -----------------------------------------------------------------------------

    def constants_stay(self, graph: Graph) -> None:
        """Check that nothing writes its result to a constant: its memory is the file's.

        A constant that is changed in place is state that the plan gives no memory
        (:func:`pteron.program.unwritten.find_unwritten`). Writes by delegates are checked by those
        who run them.
        """
        plan = self.plan
        constants = {
            index
            for index, value in enumerate(plan.values)
            if isinstance(value, Tensor) and value.is_constant
        }
        if not constants:
            return
        for number, index in enumerate(plan.inputs):
            if index in constants:
                self.add(f"input {number}", f"{format_value(plan, index)} is a constant")
        for number, step in enumerate(graph.accesses):
            for index in () if step.assumed else step.writes:
                if index in constants:
                    text = format_value(plan, index)
                    self.add_instruction(number, f"it writes to {text}, which is a constant")
            if step.aliases and step.reads[0] in constants:
                constants.update(step.writes)

    # -- plan -------------------------------------------------------------------------------------

    def overlaps(self, graph: Graph) -> None:
        """Check that no two values share bytes while both are in use."""
        for pair in find_overlaps(graph):
            texts = [
                f"{format_value(self.plan, value)} (in use {self.lifetime(*life)})"
                for value, life in (
                    (pair.first_value, pair.first_lifetime),
                    (pair.second_value, pair.second_lifetime),
                )
            ]
            self.add(f"planned buffer {pair.buffer}", f"{texts[0]} and {texts[1]} share bytes")

    def lifetime(self, first: int, last: int) -> str:
        """Say between which instructions a value is in use."""
        begin = "from the start" if first < 0 else f"from instruction {first}"
        if last >= len(self.plan.instructions):
            return f"{begin} to the end"
        return f"{begin} to {last}" if last > max(first, 0) else begin
