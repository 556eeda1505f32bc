"""Module: a program whose methods take and return what the model took and returned."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch.utils._pytree as pytree

from pteron.backends.interface import Backend
from pteron.errors import InvalidArgumentError, NotFoundError
from pteron.executor.signature import Signature, ValueInfo, is_parameter, parameter
from pteron.format.schema import ExecutionPlan
from pteron.format.source import SourceData
from pteron.memory.device_map import DeviceMapping
from pteron.program.signature import nearest
from pteron.runtime import DataPaths, NativeCode, Program, Runtime, no_such_method

if TYPE_CHECKING:
    from pteron.executor.method import Method


class Module:
    """Owns a program and calls its methods with nested arguments.

    ``module(x)`` runs ``forward``; ``module.name(x)`` runs method ``name``. Arguments and results
    are those of the model that was exported: the file holds their pytree specs
    (``container_meta_type`` in ``program.fbs``). A method without specs takes its inputs in order,
    or by name, and returns a list. ``help(module.forward)`` shows a method's signature.
    """

    def __init__(
        self,
        data: SourceData,
        data_path: DataPaths = None,
        *,
        device_map: DeviceMapping | None = None,
        native_code: NativeCode = "allow",
        optimize: bool = True,
        kernels: Mapping[str, Callable[..., Any]] | None = None,
        backends: Mapping[str, Backend | str] | None = None,
    ) -> None:
        self._program = Runtime.get().load_program(
            data,
            data_path=data_path,
            device_map=device_map,
            native_code=native_code,
            optimize=optimize,
            kernels=kernels,
            backends=backends,
        )
        self._specs: dict[str, _Containers] = {}

    @property
    def program(self) -> Program:
        """The program underneath."""
        return self._program

    @property
    def method_names(self) -> set[str]:
        """The names of the methods."""
        return self._program.method_names

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run ``forward``."""
        return self.run_method("forward", *args, **kwargs)

    def run_method(self, method_name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Run a method with the arguments that the exported module took."""
        if method_name not in self.method_names and method_name == "forward":
            error = no_such_method(method_name, dict.fromkeys(self.method_names))
            names = " or ".join(f"module.{name}(...)" for name in sorted(self.method_names)[:4])
            error.hint = f"call {names}"
            raise error
        method: Method = self._program.load_method(method_name)
        containers = self._containers(method_name)
        return containers.unflatten(method.execute(containers.flatten(args, kwargs)))

    def __getattr__(self, name: str) -> Any:
        program = self.__dict__.get("_program")
        if program is not None:
            if name in program.method_names:
                return self._function(name)
            if name == "__signature__" and "forward" in program.method_names:
                return self._containers("forward").signature()
            near = nearest(name, [one for one in dir(self) if not one.startswith("_")])
            remedy = _INSTEAD.get(name) or (f"did you mean {near}?" if near is not None else None)
            if remedy is not None:
                raise AttributeError(f"a pteron.Module has no attribute {name!r}: {remedy}")
        raise AttributeError(f"a pteron.Module has no attribute or method {name!r}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.method_names})

    def _function(self, name: str) -> Callable[..., Any]:
        """Return a method as a function, with its signature and documentation."""

        def run(*args: Any, **kwargs: Any) -> Any:
            return self.run_method(name, *args, **kwargs)

        containers = self._containers(name)
        run.__name__ = name
        run.__qualname__ = f"Module.{name}"
        run.__doc__ = containers.documentation()
        run.__signature__ = containers.signature()  # type: ignore[attr-defined]
        return run

    def _containers(self, name: str) -> _Containers:
        if name not in self._specs:
            plans = {plan.name: plan for plan in self._program.pte.program.execution_plan}
            if name not in plans:
                raise no_such_method(name, plans)
            self._specs[name] = _Containers(plans[name])
        return self._specs[name]

    def reset(self, method_name: str = "forward") -> None:
        """Bring the state of a method back to its initial value."""
        self._program.load_method(method_name).reset()

    def close(self) -> None:
        """Close the program."""
        self._program.close()

    def __enter__(self) -> Module:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<pteron.Module of {self._program!r}>"

    def _repr_html_(self) -> str:
        return self._program._repr_html_()

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_program, (self._program,)


def _from_program(program: Program) -> Module:
    """Return a module over an open program, from a pickle."""
    module = Module.__new__(Module)
    module._program = program
    module._specs = {}
    return module


class _Containers:
    """Flattens arguments and rebuilds results as one method's pytree specs say."""

    def __init__(self, plan: ExecutionPlan) -> None:
        meta = plan.container_meta_type
        self._name = plan.name
        self._what = f"method {plan.name!r}"
        self._flat = Signature(plan)
        self._outputs = _spec(meta.encoded_out_str) if meta is not None else None
        inputs = _spec(meta.encoded_inp_str) if meta is not None else None
        fits = inputs is not None and inputs.num_leaves == len(plan.inputs)
        self._inputs = inputs if fits else None
        self._args: list[Any] = []
        self._kwargs: dict[str, Any] = {}
        """Positions of the inputs, nested as the arguments are."""
        if self._inputs is not None:
            positions = pytree.tree_unflatten(range(len(plan.inputs)), self._inputs)
            self._args, self._kwargs = list(positions[0]), positions[1]

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the arguments in a row; one of another structure is refused."""
        wanted = self._inputs
        if wanted is None:
            return self._flat.of_call(args, kwargs) if kwargs else list(args)
        self._check_names(args, kwargs)
        ordered = {name: kwargs[name] for name in self._kwargs}
        leaves, given = pytree.tree_flatten((args, ordered))
        if given != wanted:
            raise InvalidArgumentError(self._structure_text(args, ordered))
        return list(leaves)

    def _check_names(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse too many or too few arguments, and names that the model does not have."""
        for name in kwargs:
            if name not in self._kwargs:
                near = nearest(name, self._kwargs)
                meant = f" (did you mean {near}?)" if near else ""
                raise NotFoundError(
                    f"{self._what} has no keyword argument {name!r}{meant}; it takes {self._taken}"
                )
        missing = [name for name in self._kwargs if name not in kwargs]
        if len(args) != len(self._args):
            hint = None
            if len(args) > len(self._args) and missing:
                named = ", ".join(f"{name}=..." for name in self._kwargs)
                hint = f"give them by name: {named}"
            raise InvalidArgumentError(
                f"{self._what} takes {self._taken}; got {_count(len(args), 'positional argument')}",
                hint=hint,
            )
        if missing:
            raise InvalidArgumentError(
                f"{self._what} takes {self._taken}; {', '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} missing"
            )

    @property
    def _taken(self) -> str:
        """The arguments in words: ``1 positional argument and the keyword arguments a, b``."""
        parts = []
        if self._args or not self._kwargs:
            parts.append(_count(len(self._args), "positional argument"))
        if self._kwargs:
            word = "argument" if len(self._kwargs) == 1 else "arguments"
            parts.append(f"the keyword {word} {', '.join(self._kwargs)}")
        return " and ".join(parts)

    def _structure_text(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Name the first argument that is nested in another way than the model's was."""
        pairs = [
            *((f"argument {at}", args[at], self._args[at]) for at in range(len(args))),
            *((f"argument {name}", kwargs[name], self._kwargs[name]) for name in self._kwargs),
        ]
        for what, given, wanted in pairs:
            if pytree.tree_structure(given) != pytree.tree_structure(wanted):
                if isinstance(wanted, int) and isinstance(given, (list, tuple)):
                    wants = self._flat.inputs[wanted].type_text
                    got = f"got a {type(given).__name__}; give torch.tensor(...)"
                    return f"{self._what}: {what} takes {wants}, {got}"
                return (
                    f"{self._what}: {what} has the form {_shown(wanted)}, got {_shown(given)}; "
                    "* stands for a tensor or number"
                )
        assert self._inputs is not None
        wanted_all = pytree.tree_unflatten(range(self._inputs.num_leaves), self._inputs)
        return f"{self._what} takes {_shown(wanted_all)}, got {_shown((args, kwargs))}"

    def signature(self) -> inspect.Signature:
        """Return the signature of the model's method."""
        if self._inputs is None:
            return self._flat.python_signature()
        inputs = self._flat.inputs
        parameters = [
            self._parameter(f"arg_{at}", one, inputs, inspect.Parameter.POSITIONAL_ONLY)
            for at, one in enumerate(self._args)
        ]
        parameters += [
            self._parameter(name, one, inputs, inspect.Parameter.KEYWORD_ONLY)
            for name, one in self._kwargs.items()
            if is_parameter(name)
        ]
        return inspect.Signature(parameters)

    @staticmethod
    def _parameter(
        name: str, positions: Any, inputs: Sequence[ValueInfo], kind: Any
    ) -> inspect.Parameter:
        if isinstance(positions, int):
            one = parameter(name, inputs[positions], kind=kind)
            return one.replace(default=inspect.Parameter.empty)
        return inspect.Parameter(name, kind)

    def documentation(self) -> str:
        """Return what ``help()`` shows of the method."""
        lines = [f"Run method {self._name!r} of the program.", "", "Inputs:"]
        lines += [f"    {info.path or info.name}: {info.type_text}" for info in self._flat.inputs]
        lines += ["", "Outputs:"]
        lines += [f"    {info.path or info.name}: {info.type_text}" for info in self._flat.outputs]
        return "\n".join(lines)

    def unflatten(self, outputs: list[Any]) -> Any:
        """Return the results as the module returned them."""
        if self._outputs is None or self._outputs.num_leaves != len(outputs):
            return outputs
        return pytree.tree_unflatten(outputs, self._outputs)


def _spec(encoded: str) -> pytree.TreeSpec | None:
    """Return the spec that a file holds, or None if there is none that this torch can read."""
    if not encoded:
        return None
    try:
        return pytree.treespec_loads(encoded)
    except Exception:  # noqa: BLE001 - a class this process has not registered, or damaged text
        return None


def _shown(tree: Any) -> str:
    """Return the form of nested values, each value as ``*``; a long one is cut."""
    spec = pytree.tree_structure(tree)
    text = str(pytree.tree_unflatten(["*"] * spec.num_leaves, spec)).replace("'*'", "*")
    return text if len(text) <= 120 else f"{text[:100]}... ({spec.num_leaves:,} values)"


_ON_LOAD: Final = 'open the program with device_map={"cpu": "cuda"}'
_INSTEAD: Final = {
    "eval": "a program is always in inference mode; leave the call out",
    "train": "a program cannot be trained",
    "to": f"to run on another device, {_ON_LOAD}",
    "cuda": f"to run on a GPU, {_ON_LOAD}",
    "cpu": "a program stays on the device that it was opened for",
    "half": "element types are fixed at export",
    "float": "element types are fixed at export",
    "double": "element types are fixed at export",
    "bfloat16": "element types are fixed at export",
    "parameters": "module.program.constants() has the weights",
    "named_parameters": "module.program.constants() has the weights",
    "buffers": "module.program.constants() has the weights",
    "state_dict": "module.program.constants() has the weights",
    "constants": "module.program.constants() has the weights",
    "state": "module.program.load_method(name).state has the mutable buffers",
    "inputs": "module.program.load_method(name).inputs lists them",
    "outputs": "module.program.load_method(name).outputs lists them",
    "example_inputs": "module.program.load_method(name).example_inputs() makes them",
}
"""What to do in place of an attribute that torch.nn.Module or a pteron.Method has."""


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
