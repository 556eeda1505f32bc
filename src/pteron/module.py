"""Module: a program whose methods take and return what the model took and returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.utils._pytree as pytree

from pteron.errors import InvalidArgumentError, NotFoundError
from pteron.format.schema import ExecutionPlan
from pteron.format.source import SourceData
from pteron.runtime import DataPaths, Program, Runtime

if TYPE_CHECKING:
    from pteron.backends.interface import Backend
    from pteron.executor.method import Method
    from pteron.memory.device_map import DeviceMapping


class Module:
    """Owns a program and calls its methods with nested arguments.

    The file holds the pytree specs of the exported module's arguments and results
    (``container_meta_type`` in ``program.fbs``); a method without them takes its inputs in a row
    and returns a list. ``module(x)`` runs ``forward``; ``module.name(x)`` runs method ``name``.
    """

    def __init__(
        self,
        data: SourceData,
        data_path: DataPaths = None,
        *,
        device_map: DeviceMapping | None = None,
        native_code: str = "allow",
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
        method: Method = self._program.load_method(method_name)
        containers = self._containers(method_name)
        return containers.unflatten(method.execute(containers.flatten(args, kwargs)))

    def __getattr__(self, name: str) -> Any:
        program = self.__dict__.get("_program")
        if program is not None and name in program.method_names:
            return partial(self.run_method, name)
        raise AttributeError(f"{type(self).__name__!r} has no attribute or method {name!r}")

    def _containers(self, name: str) -> _Containers:
        if name not in self._specs:
            plans = {plan.name: plan for plan in self._program.pte.program.execution_plan}
            if name not in plans:
                known = ", ".join(sorted(plans)) or "none"
                raise NotFoundError(f"the program has no method {name!r}; it has: {known}")
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


class _Containers:
    """Flattens arguments and rebuilds results as one method's pytree specs say."""

    def __init__(self, plan: ExecutionPlan) -> None:
        meta = plan.container_meta_type
        self._name = plan.name
        self._inputs = _spec(meta.encoded_inp_str) if meta is not None else None
        self._outputs = _spec(meta.encoded_out_str) if meta is not None else None
        self._num_inputs = len(plan.inputs)
        self._num_outputs = len(plan.outputs)

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the arguments in a row; one of another structure is refused, with both shown."""
        wanted = self._inputs
        if wanted is None or wanted.num_leaves != self._num_inputs:
            if kwargs:
                raise InvalidArgumentError(
                    f"method {self._name!r}: the file does not name its inputs; give them in a row"
                )
            return list(args)
        leaves, given = pytree.tree_flatten((args, self._ordered(wanted, kwargs)))
        if given != wanted:
            raise InvalidArgumentError(
                f"method {self._name!r} takes arguments of the form {_shown(wanted)}, got "
                f"{_shown(given)}"
            )
        return list(leaves)

    @staticmethod
    def _ordered(wanted: pytree.TreeSpec, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return keyword arguments in the order of the export."""
        names = pytree.tree_unflatten(range(wanted.num_leaves), wanted)[1]
        return {name: kwargs[name] for name in names if name in kwargs} | kwargs

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


def _shown(spec: pytree.TreeSpec) -> str:
    return str(pytree.tree_unflatten(["*"] * spec.num_leaves, spec)).replace("'*'", "*")
