"""Programs that keep state from call to call, alone and shared between methods."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from support.device_programs import device_partitioner
from support.programs import Files, edited, export, kept

ONES = torch.ones(4)


class Counter(nn.Module):
    """Adds its input to a buffer that starts at seven."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.full((4,), 7.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(x)
        return self.count * 1


class Store(nn.Module):
    """Holds a buffer that several methods use."""

    def __init__(self, initial: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("state", torch.full((4,), initial))


class Add(nn.Module):
    def __init__(self, store: nn.Module) -> None:
        super().__init__()
        self.store = store

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.store.state.add_(x).view(-1) * 2


class Set(nn.Module):
    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.store.state.copy_(x)
        return x * 1


class Zero(nn.Module):
    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.store.state.zero_()
        return x * 1


class Get(nn.Module):
    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store

    def forward(self) -> torch.Tensor:
        return self.store.state * 1


class Chain(nn.Module):
    """Products that need far more scratch than the methods with state."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ x) @ (x @ x.t())


class Cache(nn.Module):
    """A key-value cache of eight positions."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(8, 2))


class Fill(nn.Module):
    """Writes rows at positions, and returns the mean of all that was written."""

    def __init__(self, cache: Cache) -> None:
        super().__init__()
        self.kv = cache

    def forward(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self.kv.cache.index_copy_(0, positions, rows)
        return self.kv.cache.cumsum(0)[positions]


def entries(store: Store) -> dict[str, nn.Module]:
    return {"forward": Add(store), "set_state": Set(store), "zero": Zero(store), "get": Get(store)}


ENTRY_INPUTS: dict[str, tuple[Any, ...]] = {
    "forward": (ONES,),
    "set_state": (ONES,),
    "zero": (ONES,),
    "get": (),
}


def initialized(*names: str) -> Any:
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

    return InitializedMutableBufferPass(list(names))


def planning(**facts: Any) -> Any:
    from executorch.exir.passes import MemoryPlanningPass

    return MemoryPlanningPass(**facts)


@kept
def counter() -> Files:
    return export(Counter(), (ONES,))


@kept
def counter_from_seven() -> Files:
    return export(Counter(), (ONES,), passes=[initialized("count")], emit_mutable_buffer_names=True)


@kept
def counter_without_a_place() -> Files:
    """The plan gives the buffer no memory."""
    return export(
        Counter(),
        (ONES,),
        passes=[initialized("count")],
        memory_planning_pass=planning(alloc_mutable_buffers=False),
        emit_mutable_buffer_names=True,
    )


@kept
def shared_by_plan() -> Files:
    """Every method's state is in buffer 2, which the plan dedicates to it."""
    return export(
        entries(Store(3.0)),
        ENTRY_INPUTS,
        passes=[initialized("state")],
        memory_planning_pass=planning(share_mutable_buffers=True),
    )


@kept
def shared_by_plan_and_name() -> Files:
    return export(
        entries(Store(3.0)),
        ENTRY_INPUTS,
        passes=[initialized("state")],
        memory_planning_pass=planning(share_mutable_buffers=True),
        emit_mutable_buffer_names=True,
    )


@kept
def shared_by_name() -> Files:
    store = Store(3.0)
    return export(
        {"forward": Add(store), "set_state": Set(store)},
        {"forward": (ONES,), "set_state": (ONES,)},
        emit_mutable_buffer_names=True,
    )


@kept
def not_shared() -> Files:
    """``forward`` and ``other`` have state, ``big`` has scratch; the file shares nothing."""
    return export(
        {"forward": Add(Store()), "other": Add(Store()), "big": Chain()},
        {"forward": (ONES,), "other": (ONES,), "big": (torch.ones(16, 16),)},
    )


@kept
def prefill_decode() -> Files:
    cache = Cache()
    return export(
        {"prefill": Fill(cache), "decode": Fill(cache)},
        {
            "prefill": (torch.ones(4, 2), torch.arange(4)),
            "decode": (torch.ones(1, 2), torch.tensor([4])),
        },
        memory_planning_pass=planning(share_mutable_buffers=True),
    )


def torn_apart(program: Any) -> None:
    """Plan the shared buffer of ``set_state`` on cuda:0, and leave that of the others."""
    from executorch.exir import schema

    for plan in program.execution_plan:
        if plan.name == "set_state":
            plan.non_const_buffer_device = [
                schema.NonConstBufferDevice(2, schema.DeviceType.CUDA, 0)
            ]
            for value in plan.values:
                place = getattr(value.val, "allocation_info", None)
                if place is not None and place.memory_id == 2:
                    value.val.extra_tensor_info = schema.ExtraTensorInfo(
                        device_type=schema.DeviceType.CUDA, device_index=0
                    )


@kept
def shared_by_plan_on_two_devices() -> Files:
    files = export(
        entries(Store()),
        ENTRY_INPUTS,
        memory_planning_pass=planning(share_mutable_buffers=True),
    )
    return edited(files, torn_apart)


class DelegatedAdd(nn.Module):
    """State on the host, and a sum that is delegated to a device."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.store.state.mul_(2)
        return (self.store.state * 1) + x


@kept
def shared_by_name_with_a_device() -> Files:
    store = Store()
    return export(
        {"forward": Set(store), "placed": DelegatedAdd(store)},
        (ONES,),
        partitioner={"placed": [device_partitioner()]},
        emit_mutable_buffer_names=True,
    )


class ShortStore(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(2))


@kept
def one_name_two_sizes() -> Files:
    """Two modules that have nothing in common but the name of a buffer."""
    return export(
        {"forward": Add(Store()), "short": Add(ShortStore())},
        {"forward": (ONES,), "short": (ONES[:2],)},
        emit_mutable_buffer_names=True,
    )
