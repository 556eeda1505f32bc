"""A delegate's calls in order, and the one Python function that they become.

A planner records calls on a :class:`Tape`; each result is a :class:`Var`. Operands that are known
when the plan is made (constants, buffers, views of both) are tensors. The tape becomes a function
without branches: a line for each call, results in local variables that are deleted after their last
use, everything else bound by name. Names are numbers, so nothing of a file reaches the source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Var:
    """A result that exists only while the function runs."""

    number: int

    def __str__(self) -> str:
        return f"v{self.number}"


class Tape:
    """Records calls."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._names: dict[int, str] = {}
        self._bound: dict[str, Any] = {}
        self._count = 0

    def new_var(self) -> Var:
        """Return a variable that no line has set: a parameter of the function."""
        self._count += 1
        return Var(self._count - 1)

    @property
    def next_number(self) -> int:
        """The number of the next variable."""
        return self._count

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Record a call whose result is of no interest (it writes into one of its arguments)."""
        self._lines.append(self._text(function, args, kwargs))

    def value(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Var:
        """Record a call and return its result."""
        result = self.new_var()
        self._lines.append(f"{result} = {self._text(function, args, kwargs)}")
        return result

    def method(self, var: Var, name: str, *args: Any) -> Var:
        """Record a call of a tensor method on a variable."""
        result = self.new_var()
        arguments = ", ".join(map(self._operand, args))
        self._lines.append(f"{result} = {var}.{name}({arguments})")
        return result

    def drop(self, *variables: Var) -> None:
        """Forget variables, so that their memory is free for the next call."""
        if variables:
            self._lines.append(f"del {', '.join(map(str, variables))}")

    @property
    def source(self) -> str:
        """The lines recorded so far."""
        return "\n".join(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def function(self, parameters: Sequence[Var]) -> Callable[..., None]:
        """Return the function that makes the recorded calls."""
        body = "".join(f"    {line}\n" for line in self._lines) or "    pass\n"
        source = f"def run({', '.join(map(str, parameters))}):\n{body}"
        scope: dict[str, Any] = dict(self._bound)
        exec(compile(source, "<xnnpack graph>", "exec"), scope)
        # Out of its own globals: a cycle would hold the weights until it is collected.
        run: Callable[..., None] = scope.pop("run")
        return run

    def _text(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> str:
        arguments = [self._operand(arg) for arg in args]
        arguments += [f"{name}={self._operand(arg)}" for name, arg in kwargs.items()]
        return f"{self._bind(function, 'f')}({', '.join(arguments)})"

    def _operand(self, arg: Any) -> str:
        if isinstance(arg, Var):
            return str(arg)
        if arg is None or isinstance(arg, (bool, int)):
            return repr(arg)
        if isinstance(arg, (list, tuple)) and any(isinstance(item, Var) for item in arg):
            return f"[{', '.join(map(self._operand, arg))}]"
        return self._bind(arg, "t" if isinstance(arg, torch.Tensor) else "c")

    def _bind(self, thing: Any, letter: str) -> str:
        name = self._names.get(id(thing))
        if name is None:
            name = self._names[id(thing)] = f"{letter}{len(self._names)}"
            self._bound[name] = thing
        return name
