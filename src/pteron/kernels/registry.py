"""Operator names to kernels.

A kernel says how to call one Python callable for one operator of a program. The executor binds it
once, at load: it takes the instruction's values in the order of the operator's schema, passes the
first ``positional`` by position and the others by ``keywords``, and gives the out tensors the way
``style`` says. Nothing is looked up while a method runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar, overload

from pteron.errors import InvalidArgumentError
from pteron.program.effects import Effects


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
    """Returns a Python int, float or bool; the executor stores it as the last value."""

    VIEW = "view"
    """Returns a tensor that shares memory with its first argument; the executor re-points the
    instruction's last value to it (``executorch_prim::et_view.default``)."""

    DEVICE_COPY = "device copy"
    """Copies its argument between devices. The executor does it, by the real places of both."""


Prepare = Callable[[Sequence[Any], Sequence[bool], Sequence[Any]], "Callable[[], object] | None"]
"""Takes an instruction's inputs, which of them are constant, and its out tensors."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """How to call one operator.

    ``function`` takes ``positional`` arguments by position, then ``keywords`` by name, in schema
    order. ``out_names`` are the names of the out tensors (for FUNCTIONAL: as many names as there
    are results), which follow the inputs in an instruction's arguments. After them come the
    instruction's return values, ``returns`` in number, which repeat what is already there
    (OUT, FUNCTIONAL, INPLACE), or take the result (VALUE, VIEW).

    An out argument that is a list of tensors (``split_copy.Tensor_out``) is one value of the
    instruction and one of ``out_names``. A FUNCTIONAL kernel returns one tensor for one name, else
    a sequence.

    ``data_dependent`` kernels have to read values on the host: the shape of the result depends on
    them, or the result is a Python number. ``random`` ones do not repeat.
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
    """Takes the same inputs by position and returns a view with the same values, without a copy
    where strides can express it."""
    masks: tuple[int, ...] = ()
    """Positions of index lists; a bool or byte tensor in one makes the call data dependent."""
    also_mutates: tuple[int, ...] = ()
    """Positions of further inputs that a call changes (the running statistics of a batch norm)."""
    assumed: bool = False
    """Whether nobody states what a call changes: it may be any tensor that it is given."""
    replaces: bool = False
    """Whether nothing of what ``mutates`` held survives a call (``aten::copy_``)."""
    leaves_outs: bool = False
    """Whether the out tensors are placeholders that a call leaves as they are."""
    dense: tuple[int, ...] | None = None
    """Positions of inputs that have to be dense, in the dim order of the file: their strides or
    their storage matter to the result. None: every input, since nobody states otherwise."""
    pure: bool = False
    """Whether equal inputs give equal results, and nothing else happens."""

    tells_shapes: bool = False
    """Whether the function, called on tensors without values, gives results of the right shapes and
    does nothing else: those of torch's own operators."""

    float_function: Callable[..., Any] | None = None
    """A faster callable for calls without a tensor of integers, which it would compute in torch's
    default dtype."""

    result_sizes: Callable[..., Sequence[tuple[int, ...]]] | None = None
    """Takes the inputs, the sizes of each tensor in its place, and returns those of the results."""
    bounded: bool = False
    """Whether no result has more elements than an argument."""

    prepare: Prepare | None = None
    """Makes a call for one instruction's own tensors, or returns None to be called as usual."""

    @property
    def mutated(self) -> tuple[int, ...]:
        """Positions of all inputs that a call changes; the others are only read."""
        return self.also_mutates if self.mutates is None else (self.mutates, *self.also_mutates)

    @property
    def effects(self) -> Effects:
        """What a call touches, by position."""
        inputs, outs = (
            self.num_inputs,
            range(self.num_inputs, self.num_inputs + len(self.out_names)),
        )
        updates = self.mutated
        if self.assumed:
            updates = tuple(range(inputs))
        if self.style is Style.VALUE:
            return Effects(inputs, writes=(inputs,), updates=updates, assumed=self.assumed)
        if self.style is Style.VIEW:
            return Effects(inputs, writes=(inputs,), views=(inputs,))
        writes = () if self.leaves_outs else tuple(outs)
        returned = range(outs.stop, outs.stop + self.returns)
        sources = tuple(outs) if self.out_names else self.mutated
        return Effects(
            inputs,
            writes=writes,
            updates=updates,
            replaces=self.replaces,
            repeats=tuple(zip(returned, sources, strict=False)),
            assumed=self.assumed,
        )

    def is_dense(self, position: int) -> bool:
        """Whether the input at a position has to be dense."""
        return self.dense is None or position in self.dense

    @property
    def num_inputs(self) -> int:
        """Arguments that are not out tensors."""
        return self.positional + len(self.keywords)

    @property
    def num_args(self) -> int:
        """Values that an instruction that calls this kernel has to name."""
        return self.num_inputs + len(self.out_names) + self.returns


F = TypeVar("F", bound=Callable[..., Any])

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
        self._name_lists: list[Callable[[], Iterable[str]]] = []

    def register(self, kernel: Kernel) -> None:
        """Add a kernel, or put it in place of the one of that name."""
        self._kernels[kernel.name] = kernel

    def register_factory(
        self, factory: KernelFactory, *, names: Callable[[], Iterable[str]] | None = None
    ) -> None:
        """Add a factory, asked after the registered kernels and the earlier factories.

        ``names`` lists what it is known to make, for :attr:`operator_names`; it may make more.
        """
        self._factories.append(factory)
        if names is not None:
            self._name_lists.append(names)

    @overload
    def register_kernel(self, name: str, function: F, **facts: Any) -> F: ...
    @overload
    def register_kernel(
        self, name: str, function: None = None, **facts: Any
    ) -> Callable[[F], F]: ...
    def register_kernel(
        self, name: str, function: F | None = None, **facts: Any
    ) -> F | Callable[[F], F]:
        """Register a Python function for operator ``name``; without ``function``, a decorator.

        ``facts`` are those of :func:`kernel_from_function`.
        """
        if function is None:
            return lambda given: self.register_kernel(name, given, **facts)
        self.register(kernel_from_function(name, function, **facts))
        return function

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
        """The names that are registered or listed (factories may know more)."""
        names = set(self._kernels).union(*(listed() for listed in self._name_lists))
        return names | self._parent.operator_names if self._parent is not None else names

    def overrides(self, kernels: Mapping[str, Kernel]) -> OperatorRegistry:
        """Return a registry with these kernels on top of this one's."""
        child = OperatorRegistry(parent=self)
        for kernel in kernels.values():
            child.register(kernel)
        return child


def kernel_from_function(
    name: str,
    function: Callable[..., Any],
    *,
    style: Style | None = None,
    outs: Sequence[str] | None = None,
    returns: int | None = None,
    mutates: int | Sequence[int] | None = None,
    dense: bool | Sequence[int] = True,
    pure: bool = False,
    data_dependent: bool = False,
    random: bool = False,
) -> Kernel:
    """Describe a Python function as the kernel of operator ``name``.

    ``def my_op(a, b, *, out)`` for ``my::op.out`` is OUT style: keyword-only parameters whose
    names are in ``outs`` (if not given: ``out``, ``out0``, ``out1``, ...) take the out tensors.
    ``def my_op(a, b)`` is FUNCTIONAL and returns the result, or one result per name in ``outs``.
    ``mutates=0`` makes it INPLACE (it changes its first argument). Other keyword-only parameters
    are the schema's own.

    What is not stated here is taken as the worst, so that no result is ever wrong; what is stated
    makes programs faster:

    - ``mutates``: the positions of the arguments that a call changes; ``()`` for none. Not given:
      any tensor may be changed, and the function is handed copies of the program's constants.
    - ``dense``: whether the function counts on arguments that are dense in their dim order, or the
      positions of those that have to be. ``False``: it takes tensors of any strides.
    - ``pure``: whether equal arguments give equal results and nothing else happens. The result of a
      pure kernel on constants is computed once, at load.

    ``returns`` is the number of values at the end of an instruction that repeat the results: one
    for an out variant (overload ``out``, ``..._out``, or a function with out parameters) and for
    in-place operators, none for ``my::op`` and for style VIEW or VALUE one that takes the result.
    """
    if "::" not in name:
        raise InvalidArgumentError(
            f"operator name {name!r} has no namespace; expected one like 'my::op.out'"
        )
    positional, keyword_only = _parameters(name, function)
    found = tuple(k for k in keyword_only if (k in outs if outs is not None else _is_out_name(k)))
    in_place = isinstance(mutates, int)
    changed = _positions(name, "mutates", mutates, positional + len(keyword_only) - len(found))
    if style is None:
        style = Style.INPLACE if in_place else Style.OUT if found else Style.FUNCTIONAL
    if style is Style.OUT and not found:
        raise InvalidArgumentError(
            f"the kernel for {name} has no out parameter; expected a keyword-only one",
            hint="write def kernel(a, b, *, out), or return the result and leave out 'style'",
        )
    out_names = found if style is Style.OUT else ()
    if style is Style.FUNCTIONAL:
        out_names = tuple(outs) if outs is not None else ("out",)
    if returns is None:
        functional_overload = style is Style.FUNCTIONAL and not _is_out_overload(name)
        returns = 0 if functional_overload else 1
    first = changed[:1] if style is Style.INPLACE else ()
    if style is Style.INPLACE and not first:
        first = (0,)
    inputs = positional + len(keyword_only) - len(out_names)
    return Kernel(
        name=name,
        style=style,
        function=function,
        positional=positional,
        keywords=tuple(k for k in keyword_only if k not in out_names),
        out_names=out_names,
        returns=returns,
        mutates=first[0] if first else None,
        also_mutates=tuple(p for p in changed if p not in first),
        assumed=mutates is None and style is not Style.VIEW,
        dense=None if dense is True else _positions(name, "dense", dense or (), inputs),
        pure=pure and not random,
        data_dependent=data_dependent or style is Style.VALUE,
        random=random,
    )


def _positions(
    name: str, what: str, given: int | Sequence[int] | None, count: int
) -> tuple[int, ...]:
    """Return stated argument positions as a tuple."""
    found = () if given is None else (given,) if isinstance(given, int) else tuple(given)
    for position in found:
        if not isinstance(position, int) or not 0 <= position < count:
            raise InvalidArgumentError(
                f"the kernel for {name} has {count} argument(s), {what} names {position!r}"
            )
    return found


def _parameters(name: str, function: Callable[..., Any]) -> tuple[int, tuple[str, ...]]:
    """Return how many positional parameters a function has, and its keyword-only names."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"the kernel for {name} has no signature that can be read: {function!r}",
            hint="wrap it in a Python function",
        ) from error
    variadic = [p.name for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if variadic:
        raise InvalidArgumentError(
            f"the kernel for {name} takes *{variadic[0]}; each argument needs a name of its own"
        )
    keyword_only = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    return len(parameters) - len(keyword_only), keyword_only


def _is_out_name(name: str) -> bool:
    return name == "out" or (name.startswith("out") and name[3:].isdigit())


def _is_out_overload(name: str) -> bool:
    overload = name.rpartition("::")[2].partition(".")[2]
    return overload in ("out", "output") or overload.endswith("_out") or overload.startswith("out_")
