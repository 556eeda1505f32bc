"""Operator names to kernels.

A kernel says how to call one Python callable for one operator of a program. The executor binds it
once, at load: it takes the instruction's values in the order of the operator's schema, passes the
first ``positional`` by position and the others by ``keywords``, and gives the out tensors the way
``style`` says. Nothing is looked up while a method runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Style(Enum):
    """How a kernel hands back what it computed."""

    OUT = "out"
    """Called with the out tensors as keywords ``out_names``; it resizes and fills them."""

    FUNCTIONAL = "functional"
    """Called without the out tensors; returns one tensor, or as many as there are out tensors,
    and the executor writes them into the slots."""

    INPLACE = "inplace"
    """Mutates one of its arguments, at position ``mutates``; there is no out tensor."""

    VALUE = "value"
    """Returns a Python int, float or bool; the executor stores it as the instruction's last value."""

    VIEW = "view"
    """Returns a tensor that shares memory with its first argument; the executor re-points the
    instruction's last value to it (``executorch_prim::et_view.default``)."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """How to call one operator.

    ``function`` takes ``positional`` arguments by position, then ``keywords`` by name, in schema
    order. ``out_names`` are the names of the out tensors (for FUNCTIONAL: as many names as there
    are results), which follow the inputs in an instruction's arguments. After them come the
    instruction's return values, ``returns`` in number, which repeat what is already there
    (OUT, FUNCTIONAL, INPLACE), or take the result (VALUE, VIEW).

    ``data_dependent`` kernels give a result whose shape depends on values, not on shapes;
    ``random`` ones do not repeat.
    """

    name: str
    style: Style
    function: Callable[..., Any]
    positional: int
    keywords: tuple[str, ...] = ()
    out_names: tuple[str, ...] = ()
    returns: int = 1
    mutates: int | None = None
    data_dependent: bool = False
    random: bool = False
    converters: tuple[tuple[int, Callable[[Any], Any]], ...] = ()
    """Input positions whose values the callable wants in another form (a dtype for a number)."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Keywords that may be left out when their value is constant and equal to this one."""
    view: Callable[..., Any] | None = None
    """Takes the same inputs by position and returns a view with the same values, without a copy."""

    @property
    def num_inputs(self) -> int:
        """Arguments that are not out tensors."""
        return self.positional + len(self.keywords)

    @property
    def num_args(self) -> int:
        """Values that an instruction that calls this kernel has to name."""
        return self.num_inputs + len(self.out_names) + self.returns


KernelFactory = Callable[[str], "Kernel | None"]
"""Takes a full operator name (``aten::add.out``); returns its kernel, or None if not its own."""


class OperatorRegistry:
    """Kernels by full operator name, and factories that are asked for the rest, in order.

    A registry may have a ``parent``: what it lacks is looked up there. A program's own overrides
    are a registry whose parent is the process-wide one.
    """

    def __init__(self, parent: OperatorRegistry | None = None) -> None:
        self._parent = parent
        self._kernels: dict[str, Kernel] = {}
        self._factories: list[KernelFactory] = []

    def register(self, kernel: Kernel) -> None:
        """Add a kernel, or put it in place of the one of that name."""
        self._kernels[kernel.name] = kernel

    def register_factory(self, factory: KernelFactory) -> None:
        """Add a factory, asked after the registered kernels and the earlier factories."""
        self._factories.append(factory)

    def unregister(self, name: str) -> None:
        """Remove a kernel that was registered here; a name that is not there is ignored."""
        self._kernels.pop(name, None)

    def find(self, name: str) -> Kernel | None:
        """Return the kernel for ``aten::add.out``, or None."""
        kernel = self._kernels.get(name)
        if kernel is not None:
            return kernel
        if self._parent is not None:
            inherited = self._parent.find(name)
            if inherited is not None:
                return inherited
        for factory in self._factories:
            kernel = factory(name)
            if kernel is not None:
                self._kernels[name] = kernel
                return kernel
        return None

    @property
    def operator_names(self) -> set[str]:
        """The names that are registered (factories know more)."""
        names = set(self._kernels)
        return names | self._parent.operator_names if self._parent is not None else names

    def overrides(self, kernels: Mapping[str, Kernel]) -> OperatorRegistry:
        """Return a registry with these kernels on top of this one's."""
        child = OperatorRegistry(parent=self)
        for kernel in kernels.values():
            child.register(kernel)
        return child
