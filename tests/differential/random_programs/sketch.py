"""A recipe in the making: its values, and the tensors that they hold in the first call."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from differential.random_programs.recipe import (
    Arg,
    Branch,
    Call,
    Ref,
    Role,
    Step,
    Tensors,
    Value,
    refs,
    root,
)
from differential.random_programs.table import NoFit, Row
from support.dense import dim_order, is_dense

ELASTIC = 5
"""In a program with dynamic shapes every dimension of this size is the one that varies."""
MAX_ELEMENTS = 240
MAX_SIZE = 400.0
"""Largest number: whole numbers up to here are exact in every sum of float32 that occurs."""

CLASSES = {
    torch.float32: "f",
    torch.float64: "f",
    torch.float16: "h",
    torch.bfloat16: "h",
    torch.bool: "b",
    torch.complex64: "c",
    torch.complex32: "c",
}
STEP = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float64: 2.0**-50}
"""The relative size of one rounding, float32's (2**-23) if not listed."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What kind of program is drawn."""

    dtypes: tuple[torch.dtype, ...]
    dynamic: bool
    steps: int
    exports: bool = False
    """Whether a torch module is made of it, and exported."""
    public: bool = False
    """Whether it has only operators that the executorch wheel may know."""


class Sketch:
    """Collects values and steps; every step is run at once, to know shapes and sizes."""

    def __init__(self, rng: random.Random, profile: Profile) -> None:
        self.rng = rng
        self.profile = profile
        self.noise = torch.Generator().manual_seed(rng.randrange(1 << 60))
        self.values: list[Value] = []
        self.tensors: list[Any] = []
        self.whole: list[bool] = []
        self.scale: list[float] = []
        self.inputs: list[int] = []
        self.steps: list[Step] = []
        self.visible: list[int] = []
        self.unread: set[int] = set()
        self.row: Row | None = None
        self.eager_of: dict[str, Callable[..., Any]] = {}
        """Kernels with state, instead of those of the table."""

    # -- values ------------------------------------------------------------------------------------

    def _add(self, value: Value, tensor: Any, *, whole: bool, scale: float) -> int:
        self.values.append(value)
        self.tensors.append(tensor)
        self.whole.append(whole)
        self.scale.append(scale)
        index = len(self.values) - 1
        if value.role is not Role.NUMBER or not isinstance(tensor, Tensor):
            self.visible.append(index)
        return index

    def draw(self, shape: Sequence[int], dtype: torch.dtype, high: int | None = None) -> Tensor:
        """Return a tensor of small whole numbers (half of them with a quarter, if float)."""
        return random_tensor(self.noise, shape, dtype, high)

    def input(self, shape: Sequence[int], dtype: torch.dtype, high: int | None = None) -> int:
        """Add an input."""
        tensor = laid_out(self.draw(shape, dtype, high), self._order(shape))
        value = Value(Role.INPUT, dtype, tuple(shape), tuple(dim_order(tensor)), high=high)
        index = self._add(value, tensor, whole=True, scale=size_of(tensor))
        self.inputs.append(index)
        return index

    def constant(self, tensor: Tensor) -> int:
        """Add a constant of the file."""
        tensor = laid_out(tensor, self._order(tensor.shape))
        order = tuple(dim_order(tensor))
        value = Value(Role.CONSTANT, tensor.dtype, tuple(tensor.shape), order, data=tensor.clone())
        return self._add(value, tensor, whole=True, scale=size_of(tensor))

    def state(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """Add a tensor that lives from call to call, with an initial value or zero."""
        given = self.rng.random() < 0.5 and 0 not in shape
        initial = self.draw(shape, dtype) if given else None
        tensor = torch.zeros(tuple(shape), dtype=dtype) if initial is None else initial.clone()
        order = tuple(range(len(shape)))
        value = Value(Role.STATE, dtype, tuple(shape), order, data=initial)
        return self._add(value, tensor, whole=True, scale=size_of(tensor))

    def _order(self, shape: Sequence[int]) -> tuple[int, ...]:
        if len(shape) == 4 and self.rng.random() < 0.08:
            return (0, 2, 3, 1)
        return tuple(range(len(shape)))

    def supply(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        high: int | None = None,
        *,
        fresh: float = 0.4,
    ) -> int:
        """Return a value of just this shape: one that is there, an input or a constant."""
        if high is not None and high < 1:
            raise NoFit
        found = [
            i
            for i in self.visible
            if (v := self.values[i]).role is not Role.NUMBER
            and v.shape == tuple(shape)
            and v.dtype == dtype
            and (high is None or (v.high is not None and v.high <= high))
            and (v.slack == 0 or self.row is None or self.row.steady)
        ]
        if found and self.rng.random() > fresh:
            return self.rng.choice(found)
        elastic = self.profile.dynamic and ELASTIC in shape
        if len(self.inputs) < 5 and (elastic or self.rng.random() < 0.5):
            return self.input(shape, dtype, high)
        if elastic:
            raise NoFit
        return self.constant(self.draw(shape, dtype, high))

    def pick(self, fits: Callable[[Value], bool]) -> int:
        """Return a tensor that can be read, rather a late one, rather one not read yet."""
        steady = self.row is None or self.row.steady
        found = [
            i
            for i in self.visible
            if (v := self.values[i]).role is not Role.NUMBER
            and fits(v)
            and (steady or v.slack == 0)
        ]
        if not found:
            raise NoFit
        fresh = [i for i in found if i in self.unread]
        if fresh and self.rng.random() < 0.4:
            return self.rng.choice(fresh)
        return self.rng.choice(found[-4:] if self.rng.random() < 0.5 else found)

    def number(self, high: int) -> Arg:
        """Return a whole number up to, but without, ``high``: as it is, or read from an input."""
        if self.profile.exports or self.rng.random() < 0.7 or len(self.inputs) >= 5:
            return self.rng.randrange(high)
        source = self.supply((), torch.int64, high)
        (out,) = self.run(self.row_named("aten::_local_scalar_dense"), [Ref(source)])
        return Ref(out)

    def row_named(self, name: str) -> Row:
        """Return a row of the table."""
        from differential.random_programs.operators import ROWS

        return ROWS[name]

    # -- steps -------------------------------------------------------------------------------------

    def resolve(self, arg: Arg) -> Any:
        """Return the Python value of an argument in the first call."""
        return resolved(arg, self.tensors)

    def run(self, row: Row, args: list[Arg]) -> list[int]:
        """Add a call, or raise NoFit if torch refuses it or its results are of no use."""
        given = [i for arg in args for i in refs(arg)]
        changed = [root(self.values, i) for p in row.changes for i in refs(args[p])]
        saved = {i: self.tensors[i].clone() for i in changed}
        try:
            function = self.eager_of.get(row.name, row.eager)
            results = function(*[self.resolve(arg) for arg in args])
            outs = self._record(row, args, given, changed, results)
        except (
            NoFit,
            RuntimeError,
            IndexError,
            ValueError,
            TypeError,
            NotImplementedError,
        ) as error:
            for i, tensor in saved.items():
                self.tensors[i].copy_(tensor)
            raise NoFit from error
        self.unread.difference_update(given)
        self.unread.update(changed)
        return outs

    def _record(
        self, row: Row, args: list[Arg], given: list[int], changed: list[int], results: Any
    ) -> list[int]:
        found = list(results) if isinstance(results, (list, tuple)) else [results]
        if row.returns in ("self", "nothing"):
            found = []
        slack, whole, scale = self._exactness(row, given, found)
        tensors = [i for i in given if isinstance(self.tensors[i], Tensor)]
        into = max([self.values[i].slack for i in tensors] + [0.0])
        into_whole = row.whole and all(self.whole[i] for i in tensors)
        if not row.whole:  # what is written is computed, not only moved
            into += slack
        for i in changed:
            if self.values[i].role is Role.STATE and (into or not into_whole):
                raise NoFit  # the next call would start from it
        outs = []
        for result in found:
            if isinstance(result, Tensor):
                self._check(result)
            outs.append(self._result(row, args, result, slack, whole=whole, scale=scale))
        for i in changed:
            self._check(self.tensors[i])
            self.values[i] = replace(self.values[i], slack=2 * into)
            self.whole[i] = into_whole
            self.scale[i] = max(self.scale[i], scale)
        for i, value in enumerate(self.values):  # what lies in the same memory
            if value.source is not None and root(self.values, i) in changed:
                self.values[i] = replace(value, slack=self.values[root(self.values, i)].slack)
                self.whole[i] = self.whole[root(self.values, i)]
        self.steps.append(Call(row.name, tuple(args), tuple(outs)))
        return outs

    def _exactness(
        self, row: Row, given: list[int], results: Sequence[Any]
    ) -> tuple[float, bool, float]:
        tensors = [i for i in given if isinstance(self.tensors[i], Tensor)]
        scale = max([self.scale[i] for i in tensors] + [size_of(t) for t in results] + [1.0])
        slack = max([self.values[i].slack for i in tensors] + [0.0])
        whole = row.whole and all(self.whole[i] for i in tensors)
        kinds = [self.values[i].dtype for i in tensors] + [
            t.dtype for t in results if isinstance(t, Tensor)
        ]
        step = max(
            [STEP.get(k, 2.0**-23) for k in kinds if k.is_floating_point or k.is_complex] + [0.0]
        )
        half = any(k in (torch.float16, torch.bfloat16) for k in kinds)
        if row.inexact or (
            row.ordered and step and (half or not all(self.whole[i] for i in tensors))
        ):
            slack, whole = slack + 64 * step * scale, False
        elif slack and row.family != "view":
            slack = 4 * slack + 4 * step * scale
        if half and slack > 0.05 * scale:
            raise NoFit
        return slack, whole and slack == 0, scale

    def _check(self, result: Tensor) -> None:
        if result.numel() > MAX_ELEMENTS or result.dim() > 5:
            raise NoFit
        if not size_of(result) <= MAX_SIZE:  # NaN is not, either
            raise NoFit

    def _result(
        self, row: Row, args: list[Arg], result: Any, slack: float, *, whole: bool, scale: float
    ) -> int:
        if not isinstance(result, Tensor):
            value = Value(Role.NUMBER, torch.int64, (), ())
            return self._add(value, result, whole=True, scale=abs(float(result)))
        if row.returns == "view":
            (source,) = refs(args[0])
            value = Value(
                Role.RESULT,
                result.dtype,
                tuple(result.shape),
                tuple(range(result.dim())),
                source=source,
                slack=self.values[source].slack,
            )
            return self._add(value, result, whole=self.whole[source], scale=self.scale[source])
        dense = result.dim() == 4 and row.family != "view" and is_dense(result)
        last = dense and tuple(dim_order(result)) == (0, 2, 3, 1)
        order = (0, 2, 3, 1) if last else tuple(range(result.dim()))
        tensor = laid_out(result, order)
        index = self._add(
            Value(
                Role.RESULT,
                result.dtype,
                tuple(result.shape),
                tuple(dim_order(tensor)),
                slack=slack,
            ),
            tensor,
            whole=whole,
            scale=scale,
        )
        if row.returns == "ignored":
            self.visible.remove(index)
        else:
            self.unread.add(index)
        return index

    def silent_view(self, source: int, shape: Sequence[int]) -> int:
        """Add a value that reads another one's place in another shape, without an instruction."""
        value = self.values[source]
        view = Value(
            Role.RESULT,
            value.dtype,
            tuple(shape),
            tuple(range(len(shape))),
            source=source,
            silent=True,
            slack=value.slack,
        )
        tensor = self.tensors[source].view(tuple(shape))
        index = self._add(view, tensor, whole=self.whole[source], scale=self.scale[source])
        self.unread.discard(source)
        self.unread.add(index)
        return index

    def branch(self, step: Branch, outs: Sequence[Any]) -> list[int]:
        """Add a branch whose results hold ``outs`` in the first call."""
        self.steps.append(step)
        return list(outs)


def resolved(arg: Arg, tensors: Sequence[Any] | dict[int, Any]) -> Any:
    """Return an argument with values in the place of references."""
    if isinstance(arg, Ref):
        return tensors[arg.index]
    if isinstance(arg, Tensors):
        return [None if item is None else tensors[item] for item in arg.items]
    if isinstance(arg, tuple):
        return [tensors[item.index] if isinstance(item, Ref) else item for item in arg]
    return arg


def size_of(tensor: Any) -> float:
    """Return the largest absolute value, 0 of what is empty or no tensor."""
    if not isinstance(tensor, Tensor) or tensor.numel() == 0 or tensor.dtype is torch.bool:
        return 0.0
    exact = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    return float((tensor if exact else tensor.double()).abs().max())


def laid_out(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """Return a dense copy with the dimensions in this order in memory."""
    back = [list(order).index(d) for d in range(len(order))]
    return tensor.permute(tuple(order)).clone(memory_format=torch.contiguous_format).permute(back)


def random_tensor(
    noise: torch.Generator, shape: Sequence[int], dtype: torch.dtype, high: int | None = None
) -> Tensor:
    """Return small whole numbers; bools; or positions from 0 up to, but without, ``high``."""
    shape = tuple(shape)
    if high is not None:
        return torch.randint(0, high, shape, generator=noise).to(dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=noise).bool()
    low = 0 if dtype is torch.uint8 else -4
    if dtype.is_complex:
        pair = torch.randint(low, 5, (*shape, 2), generator=noise).float()
        return torch.view_as_complex(pair).to(dtype)
    return torch.randint(low, 5, shape, generator=noise).to(dtype)
