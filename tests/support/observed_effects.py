"""What a kernel call touches, found by running it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pteron.kernels import Kernel, Style
from support.operator_check import TOLERANCE

Relay = Callable[[Tensor], Tensor]


@dataclass
class Observed:
    """What calls of one kernel were seen to do; positions are those of the inputs."""

    runs: int = 0
    """Calls that worked on dense memory."""
    failed: list[str] = field(default_factory=list)
    """Why calls on dense memory failed."""
    writes: set[int] = field(default_factory=set)
    """Inputs whose bytes changed."""
    aliases: set[tuple[int, int]] = field(default_factory=set)
    """Pairs of a returned tensor and an input that share storage."""
    partial: set[int] = field(default_factory=set)
    """Out tensors that keep some of the bytes that were there before."""
    draws: bool = False
    """Whether a generator of random numbers moved on."""
    unequal: bool = False
    """Whether a second call on the same inputs gave other bits."""
    strided: dict[str, str] = field(default_factory=dict)
    """What became of calls on the same values lying otherwise, by what lay how: an error or
    ``bits`` or ``values`` for a result that differs within or beyond the tolerance of its dtype."""


def tensors_in(value: Any) -> list[Tensor]:
    """Return a tensor argument, or the tensors of a list, or nothing."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [v for v in value if isinstance(v, Tensor)]
    return []


def mapped(value: Any, relay: Relay) -> Any:
    """Return an argument with its tensors relaid."""
    if isinstance(value, (list, tuple)):
        return [mapped(v, relay) for v in value]
    return relay(value) if isinstance(value, Tensor) else value


def dense(tensor: Tensor) -> Tensor:
    """Return a contiguous copy."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def reversed_strides(tensor: Tensor) -> Tensor:
    """Return a copy that fills its memory, with its dimensions in reverse order there."""
    order = list(reversed(range(tensor.dim())))
    return dense(tensor.permute(order)).permute(order)


def stepped(tensor: Tensor) -> Tensor:
    """Return a copy in every second element of a wider tensor."""
    if tensor.dim() == 0:
        return shifted(tensor)
    wide = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype, device=tensor.device)
    if tensor.dtype.is_floating_point:
        wide.fill_(float("nan"))
    target = wide[..., 0]
    target.copy_(tensor)
    return target


def shifted(tensor: Tensor) -> Tensor:
    """Return a contiguous copy that starts at the second element of a storage."""
    line = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    target = line[1:].view(tensor.shape)
    target.copy_(tensor)
    return target


LAYOUTS: dict[str, Relay] = {
    "reversed": reversed_strides,
    "stepped": stepped,
    "shifted": shifted,
}


def bytes_of(tensor: Tensor) -> bytes:
    """Return the bytes of a tensor's elements in order."""
    flat = dense(tensor.resolve_conj().resolve_neg()).reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""


def same_values(got: Tensor, want: Tensor) -> bool:
    """Whether results agree within the tolerance of their dtype."""
    rtol, atol = TOLERANCE.get(want.dtype, (0.0, 0.0))
    try:
        torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError:
        return False
    return True


def call(kernel: Kernel, args: Sequence[Any], outs: Sequence[Any]) -> Any:
    """Call a kernel as the executor does; return what it returns."""
    values = list(args)
    for position, convert in kernel.converters:
        values[position] = convert(values[position])
    keywords = dict(zip(kernel.keywords, values[kernel.positional :], strict=True))
    for name, default in kernel.defaults.items():
        if name in keywords and type(keywords[name]) is type(default):
            if keywords[name] == default:
                del keywords[name]
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kernel.style in (Style.OUT, Style.DEVICE_COPY):
            keywords.update(zip(kernel.out_names, outs, strict=True))
        return kernel.function(*values[: kernel.positional], **keywords)


def results_of(kernel: Kernel, returned: Any, outs: Sequence[Any]) -> list[Any]:
    """Return the results of a call: what it filled, or returned."""
    if kernel.style in (Style.OUT, Style.DEVICE_COPY):
        return [t for out in outs for t in (out if isinstance(out, list) else [out])]
    if isinstance(returned, (list, tuple)):
        return [t for t in returned if t is not None]
    return [] if returned is None else [returned]


def filled(like: Sequence[Any], byte: int, relay: Relay = dense) -> list[Any]:
    """Return out tensors like ``like`` whose bytes are all ``byte``."""

    def one(tensor: Tensor) -> Tensor:
        made = relay(tensor)
        raw = torch.full((max(made.element_size(), 1),), byte, dtype=torch.uint8)
        if made.dtype is torch.bool:
            raw.bitwise_and_(1)
        made.copy_(raw.view(made.dtype).reshape(()).expand(made.shape))
        return made

    return [mapped(out, one) for out in like]


def observe(kernel: Kernel, args: Sequence[Any], like: Sequence[Any], into: Observed) -> None:
    """Run a kernel on inputs in several layouts, and note what was seen.

    ``like`` has a tensor, or a list of tensors, for each out argument of an OUT kernel.
    """
    state = torch.get_rng_state()
    given = [mapped(a, dense) for a in args]
    outs = filled(like, 0xA5)
    before = [[bytes_of(t) for t in tensors_in(a)] for a in given]
    try:
        returned = call(kernel, given, outs)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
        into.failed.append(f"{type(error).__name__}: {str(error).splitlines()[0][:100]}")
        torch.set_rng_state(state)
        return
    into.runs += 1
    into.draws |= not torch.equal(torch.get_rng_state(), state)
    results = results_of(kernel, returned, outs)
    for position, (a, was) in enumerate(zip(given, before, strict=True)):
        if [bytes_of(t) for t in tensors_in(a)] != was:
            into.writes.add(position)
    _note_aliases(given, results, into)
    first = [bytes_of(r) if isinstance(r, Tensor) else r for r in results]
    after = [t for p in sorted(into.writes) for t in tensors_in(given[p])]
    again = _again(kernel, args, like, state, filling=0x5A)
    for number, (one, other) in enumerate(zip(first, again, strict=False)):
        if one != other:
            into.partial.add(number)
    if _again(kernel, args, like, state, filling=0xA5) != first:
        into.unequal = True
    wanted = [r.clone() if isinstance(r, Tensor) else r for r in results]
    for label, inputs, places in _layouts(args, like):
        torch.set_rng_state(state)
        outcome = _compare(kernel, inputs, places, wanted, first, after, into)
        if outcome is not None and into.strided.get(label) in (None, "bits"):
            into.strided[label] = outcome
    torch.set_rng_state(state)


def _note_aliases(given: Sequence[Any], results: Sequence[Any], into: Observed) -> None:
    for number, result in enumerate(results):
        if not isinstance(result, Tensor) or not result.numel():
            continue
        for position, a in enumerate(given):
            for tensor in tensors_in(a):
                if tensor.untyped_storage().data_ptr() == result.untyped_storage().data_ptr():
                    into.aliases.add((number, position))


def _again(
    kernel: Kernel, args: Sequence[Any], like: Sequence[Any], state: Tensor, *, filling: int
) -> list[Any]:
    torch.set_rng_state(state)
    outs = filled(like, filling)
    returned = call(kernel, [mapped(a, dense) for a in args], outs)
    return [bytes_of(r) if isinstance(r, Tensor) else r for r in results_of(kernel, returned, outs)]


def _layouts(
    args: Sequence[Any], like: Sequence[Any]
) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Yield labels, inputs and out tensors, with one of them relaid at a time."""
    for position, a in enumerate(args):
        if not tensors_in(a):
            continue
        for label, relay in LAYOUTS.items():
            if all(relay(t).stride() == t.contiguous().stride() for t in tensors_in(a)):
                if label != "shifted":
                    continue
            inputs = [mapped(b, relay if n == position else dense) for n, b in enumerate(args)]
            yield f"input {position} {label}", inputs, filled(like, 0xA5)
    if like:
        for label, relay in LAYOUTS.items():
            inputs = [mapped(b, dense) for b in args]
            yield f"outs {label}", inputs, filled(like, 0xA5, relay)
        both = [mapped(b, reversed_strides) for b in args]
        yield "all reversed", both, filled(like, 0xA5, reversed_strides)


def _compare(
    kernel: Kernel,
    inputs: list[Any],
    outs: list[Any],
    wanted: Sequence[Any],
    first: Sequence[Any],
    after: Sequence[Tensor],
    into: Observed,
) -> str | None:
    """Say how a call on other layouts differs, or return None."""
    before = [[bytes_of(t) for t in tensors_in(a)] for a in inputs]
    places = [(t, t.data_ptr(), t.stride()) for out in outs for t in tensors_in(out)]
    try:
        returned = call(kernel, inputs, outs)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
        return f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"
    for position, (a, was) in enumerate(zip(inputs, before, strict=True)):
        if [bytes_of(t) for t in tensors_in(a)] != was:
            into.writes.add(position)
    written = [t for p in sorted(into.writes) for t in tensors_in(inputs[p])]
    if not all(same_values(t, want) for t, want in zip(written, after, strict=True)):
        return "values written to an input"
    for tensor, address, strides in places:
        if tensor.numel() and (tensor.data_ptr(), tensor.stride()) != (address, strides):
            return "an out tensor was laid out anew"
    got = results_of(kernel, returned, outs)
    worst = None
    for result, want, raw in zip(got, wanted, first, strict=True):
        if not isinstance(result, Tensor):
            if result != want:
                return f"values ({result!r}, not {want!r})"
            continue
        if result.shape != want.shape or result.dtype != want.dtype:
            return f"values (shape {tuple(result.shape)}, not {tuple(want.shape)})"
        if bytes_of(result) != raw:
            if not same_values(result, want):
                return "values"
            worst = "bits"
    return worst
