"""One kernel call, bound to the values that it names.

What comes out takes no arguments and looks nothing up. Values that may change while the method
runs (numbers that an instruction writes) are read from the table by position; all others are in
the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from pteron.errors import InvalidArgumentError, InvalidProgramError
from pteron.executor.evalue import ValueTable
from pteron.executor.interpreter import Call
from pteron.executor.shape_guard import ShapeGuard, by_formula, by_meta_kernel, needs_guard
from pteron.format.schema import IntList, OptionalTensorList, Tensor, TensorList
from pteron.kernels.promotion import INTEGERS
from pteron.kernels.registry import Kernel, Style
from pteron.memory.hierarchical_allocator import dense_strides, torch_dtype
from pteron.program.disasm import format_value

NOT_RESIZABLE = "resize storage that is not resizable"
"""What torch says to a kernel that asks for more than its slot has (DESIGN, P8)."""


class KernelBinder:
    """Binds the kernel calls of one method instance."""

    def __init__(self, table: ValueTable) -> None:
        self._table = table
        self._plan = table.plan
        self._copies: dict[int, Any] = {}
        """Values that stand for others in the call that is being bound."""

    def bind(self, kernel: Kernel, args: Sequence[int]) -> Call:
        """Return the call of ``kernel`` on the values ``args``, in the order of the instruction."""
        self._refuse_constant_results(kernel, args)
        kernel = self.for_dtypes(kernel, args)
        if not kernel.assumed:
            return self._bind(kernel, args)
        refresh = self._copy_constants(args[: kernel.num_inputs])
        try:
            call = self._bind(kernel, args)
        finally:
            self._copies = {}
        return call if refresh is None else _in_turn(refresh, call)

    def _copy_constants(self, indices: Sequence[int]) -> Call | None:
        """Put copies in place of constants for a kernel that may change what it is given.

        Return the call that brings their values back; None if there are no constants.
        """
        table = self._table
        pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for index in indices:
            for item in table.items(index):
                if item in table.constants:
                    original: torch.Tensor = table.values[item]
                    pairs[item] = (original.clone(), original)
        if not pairs:
            return None
        self._copies = {item: copy for item, (copy, _) in pairs.items()}
        for index in indices:
            items = getattr(self._plan.values[index], "items", None)
            if items is not None and isinstance(table.values[index], list):
                self._copies[index] = [
                    pairs[item][0] if item in pairs else value
                    for item, value in zip(items, table.values[index], strict=True)
                ]

        def refresh() -> None:
            for copy, original in pairs.values():
                copy.copy_(original)

        return refresh

    def _value(self, index: int) -> Any:
        return self._copies[index] if index in self._copies else self._table.values[index]

    def _bind(self, kernel: Kernel, args: Sequence[int]) -> Call:
        if kernel.style is Style.VIEW:
            return self._view(kernel, args)
        prepared = self._prepared(kernel, args)
        if prepared is not None:
            return prepared
        call, outs = self._call(kernel, args)
        if kernel.style is Style.VALUE:
            return self._store(call, args[-1])
        if kernel.style is Style.INPLACE:
            return call
        if kernel.style is Style.FUNCTIONAL:
            written = self._write_results(call, outs)
            return self._guarded(kernel, args, call, outs, written)
        return self._resizing(call, kernel, args, outs)

    def for_dtypes(self, kernel: Kernel, args: Sequence[int]) -> Kernel:
        """Return a kernel with the callable for the element types of a call."""
        if kernel.float_function is None:
            return kernel
        for index in args[: kernel.num_inputs]:
            value = self._plan.values[index]
            if isinstance(value, Tensor) and torch_dtype(value) in INTEGERS:
                return kernel
        return replace(kernel, function=kernel.float_function)

    def inputs(self, kernel: Kernel, args: Sequence[int]) -> list[Any]:
        """Return the converted input values of a call, as they are now."""
        values = [self._value(index) for index in args[: kernel.num_inputs]]
        for position, convert in kernel.converters:
            values[position] = self._converted(kernel, args, position, convert)
        return values

    def _converted(
        self, kernel: Kernel, args: Sequence[int], position: int, convert: Callable[[Any], Any]
    ) -> Any:
        """Return an argument in the form that a kernel wants, or raise InvalidProgramError."""
        value = self._value(args[position])
        try:
            return convert(value)
        except (TypeError, ValueError, IndexError, KeyError, RuntimeError) as error:
            text = format_value(self._plan, args[position])
            raise InvalidProgramError(
                f"argument {position} of {kernel.name} is {text}, which is of a kind or value "
                "that the operator does not take there"
            ) from error

    def _prepared(self, kernel: Kernel, args: Sequence[int]) -> Call | None:
        """Return the call that a kernel makes for these tensors, if it has one for them."""
        inputs = args[: kernel.num_inputs]
        if kernel.prepare is None or any(self._changes(index) for index in inputs):
            return None
        tensors = [
            i for i in (*inputs, *self._out_tensors(kernel, args)) if self._table.is_tensor(i)
        ]
        if not all(self._table.is_static(i) for i in tensors):
            return None
        if any(self._table.values[i].numel() == 0 for i in inputs if self._table.is_tensor(i)):
            return None  # an input without a place in the plan has no memory yet
        constant = [index in self._table.constants for index in inputs]
        outs = [self._table.values[index] for index in self._out_tensors(kernel, args)]
        return kernel.prepare(self.inputs(kernel, args), constant, outs)

    def _refuse_constant_results(self, kernel: Kernel, args: Sequence[int]) -> None:
        effects = kernel.effects
        results = [args[position] for position in effects.writes]
        if not kernel.assumed:
            results += [args[position] for position in effects.updates]
        for index in results:
            for item in self._items(index):
                if item in self._table.constants:
                    raise InvalidProgramError(
                        f"{kernel.name} would write value {item}, which is a constant"
                    )
        if kernel.style is Style.VALUE and self._table.is_tensor(args[-1]):
            raise InvalidProgramError(
                f"{kernel.name} gives a number, but value {args[-1]} is a tensor"
            )

    def _items(self, index: int) -> Iterator[int]:
        value = self._plan.values[index]
        if isinstance(value, (TensorList, OptionalTensorList)):
            yield from (item for item in value.items if item >= 0)
        else:
            yield index

    def _out_tensors(self, kernel: Kernel, args: Sequence[int]) -> list[int]:
        first = kernel.num_inputs
        outs = [
            item
            for index in args[first : first + len(kernel.out_names)]
            for item in self._items(index)
        ]
        for index in outs:
            if not self._table.is_tensor(index):
                raise InvalidProgramError(
                    f"{kernel.name} writes tensors, but value {index} is no tensor"
                )
        return outs

    # -- calls ---------------------------------------------------------------------------------

    def _call(self, kernel: Kernel, args: Sequence[int]) -> tuple[Call, list[int]]:
        """Return the bare call, and the out tensors as value indices."""
        changing = [
            position
            for position, index in enumerate(args[: kernel.num_inputs])
            if self._changes(index)
        ]
        values = self.inputs(kernel, args) if not changing else self._inputs_lazily(kernel, args)
        positional = values[: kernel.positional]
        keywords = dict(zip(kernel.keywords, values[kernel.positional :], strict=True))
        fixed = {kernel.positional + k for k in range(len(kernel.keywords))} - set(changing)
        for position in fixed:
            name = kernel.keywords[position - kernel.positional]
            if name in kernel.defaults and _same(keywords[name], kernel.defaults[name]):
                del keywords[name]
        outs = self._out_tensors(kernel, args)
        if kernel.style is Style.OUT:
            first = kernel.num_inputs
            for name, index in zip(kernel.out_names, args[first:], strict=False):
                keywords[name] = self._table.values[index]
        if not changing:
            return partial(kernel.function, *positional, **keywords), outs
        return self._reading_call(kernel, args, changing, positional, keywords), outs

    def _inputs_lazily(self, kernel: Kernel, args: Sequence[int]) -> list[Any]:
        """Return the inputs, converted where they do not change (the others are read per call)."""
        values = [self._value(index) for index in args[: kernel.num_inputs]]
        for position, convert in kernel.converters:
            if not self._changes(args[position]):
                values[position] = self._converted(kernel, args, position, convert)
        return values

    def _changes(self, index: int) -> bool:
        """Whether a value that is no tensor may change while the method runs."""
        table = self._table
        value = self._plan.values[index]
        if isinstance(value, IntList):
            return any(item in table.scalars_written for item in value.items)
        return not isinstance(value, Tensor) and index in table.scalars_written

    def _reading_call(
        self,
        kernel: Kernel,
        args: Sequence[int],
        changing: Sequence[int],
        positional: list[Any],
        keywords: dict[str, Any],
    ) -> Call:
        """Return a call that reads its changing inputs from the table each time."""
        converters = dict(kernel.converters)
        readers = [(p, self._reader(args[p], converters.get(p))) for p in changing]
        by_position = [(p, read) for p, read in readers if p < kernel.positional]
        by_name = [
            (kernel.keywords[p - kernel.positional], read)
            for p, read in readers
            if p >= kernel.positional
        ]
        function = kernel.function

        def call() -> object:
            for position, read in by_position:
                positional[position] = read()
            for name, read in by_name:
                keywords[name] = read()
            return function(*positional, **keywords)

        return call

    def _reader(self, index: int, convert: Callable[[Any], Any] | None) -> Callable[[], Any]:
        values = self._table.values
        value = self._plan.values[index]

        def read() -> Any:
            return values[index]

        plain: Callable[[], Any] = read
        if isinstance(value, IntList):
            items = value.items

            def read_list() -> Any:
                return [values[item] for item in items]

            plain = read_list
        if convert is None:
            return plain
        return lambda: convert(plain())

    # -- results -------------------------------------------------------------------------------

    def _store(self, call: Call, index: int) -> Call:
        values = self._table.values

        def store() -> None:
            values[index] = call()

        return store

    def _write_results(self, call: Call, outs: Sequence[int]) -> Call:
        slots = [self._table.values[index] for index in outs]
        orders = [self._plan.values[index].dim_order for index in outs]  # type: ignore[union-attr]
        static = [self._table.is_static(index) for index in outs]
        if len(slots) == 1:
            slot, order, fixed = slots[0], orders[0], static[0]

            def write_one() -> None:
                result: Any = call()
                if isinstance(result, (list, tuple)):
                    (result,) = result
                write_result(slot, result, order, fixed)

            return write_one

        def write() -> None:
            results: Any = call()
            for slot, result, order, fixed in zip(slots, results, orders, static, strict=True):
                write_result(slot, result, order, fixed)

        return write

    def _guarded(
        self, kernel: Kernel, args: Sequence[int], call: Call, outs: Sequence[int], written: Call
    ) -> Call:
        """Return ``written``, refused before it is computed if a result would outgrow its slot."""
        if not needs_guard(kernel):
            return written
        values, inputs = self._table.values, args[: kernel.num_inputs]
        bounds = {
            id(values[index]): value.sizes
            for index in inputs
            if isinstance(value := self._plan.values[index], Tensor)
        }
        if kernel.result_sizes is not None:
            predict = by_formula(kernel, partial(self.inputs, kernel, args))
        else:
            predict = by_meta_kernel(call)
        changing = any(self._changes(index) for index in inputs)
        slots = [values[index] for index in outs]
        return ShapeGuard(predict, slots, bounds, numbers_change=changing).guarding(written)

    def _resizing(
        self, call: Call, kernel: Kernel, args: Sequence[int], outs: Sequence[int]
    ) -> Call:
        """Return the call with its dynamic outs emptied first, so that the kernel sizes them."""
        inputs = {item for index in args[: kernel.num_inputs] for item in self._items(index)}
        dynamic = [i for i in outs if not self._table.is_static(i) and i not in inputs]
        if not dynamic:
            return call
        slots = [self._table.values[index] for index in dynamic]
        orders = [self._plan.values[index].dim_order for index in dynamic]  # type: ignore[union-attr]
        if kernel.data_dependent and kernel.pure and self._may_grow(dynamic):
            call = _growing(call, slots)

        def sized() -> None:
            for slot in slots:
                slot.resize_(0)
            call()
            for slot, order in zip(slots, orders, strict=True):
                if not slot.is_contiguous() or order != tuple(range(slot.dim())):
                    restore_dim_order(slot, order)

        return sized

    def _may_grow(self, indices: Sequence[int]) -> bool:
        """Whether results may leave their slots: nothing reads them by their place."""
        graph = self._table.memory_plan.graph
        return not any(
            graph.may_be_read_by_place(index) or index in graph.view_sources.values()
            for index in indices
        )

    def _view(self, kernel: Kernel, args: Sequence[int]) -> Call:
        call, _ = self._call(kernel, args)
        out: torch.Tensor = self._table.values[args[-1]]
        if not (self._table.is_tensor(args[-1]) and self._table.is_tensor(args[0])):
            raise InvalidProgramError(f"{kernel.name} takes and gives a tensor")

        def repoint() -> None:
            view: Any = call()
            out.set_(view)

        return repoint


def _growing(call: Call, slots: Sequence[torch.Tensor]) -> Call:
    """Return a call whose results get memory of their own where their slots are too small.

    How large a data-dependent result is, no exporter knows; some plan a bound that is too small.
    """
    homes = [slot.detach() for slot in slots]

    def grow() -> None:
        for slot, home in zip(slots, homes, strict=True):
            if slot.untyped_storage().resizable():
                slot.set_(home)  # type: ignore[call-overload]
                slot.resize_(0)
        try:
            call()
        except RuntimeError as error:
            if NOT_RESIZABLE not in str(error):
                raise
            for slot in slots:
                slot.set_()  # type: ignore[call-overload]
            call()

    return grow


def _in_turn(first: Call, second: Call) -> Call:
    """Return a call that makes two."""

    def call() -> None:
        first()
        second()

    return call


def write_result(
    slot: torch.Tensor, result: torch.Tensor, dim_order: Sequence[int], static: bool
) -> None:
    """Copy a kernel's result into the slot of its value."""
    if result.shape != slot.shape:
        if static:
            raise InvalidArgumentError(
                f"the result has shape {tuple(result.shape)}, the program plans {tuple(slot.shape)}"
            )
        slot.resize_(result.shape)
        slot.as_strided_(result.shape, dense_strides(result.shape, dim_order))
    slot.copy_(result)


def restore_dim_order(slot: torch.Tensor, dim_order: Sequence[int]) -> None:
    """Lay a tensor out in its value's dim order again, if its kernel chose another."""
    if slot.dim() != len(dim_order):
        raise InvalidArgumentError(
            f"the result has {slot.dim()} dimensions, the program plans {len(dim_order)}"
        )
    strides = dense_strides(slot.shape, dim_order)
    if slot.stride() != strides and slot.numel() > 0:
        values = slot.clone()
        slot.as_strided_(slot.shape, strides)
        slot.copy_(values)


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)
