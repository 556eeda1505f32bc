"""What came out of a method: a summary, and files."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Final, TypedDict

import torch

from pteron.cli.page import Page, count
from pteron.cli.value_facts import Value
from pteron.errors import AccessFailedError, InvalidArgumentError, NotSupportedError

_FIRST_VALUES: Final = 6


class Score(TypedDict):
    """One of the largest values of an output."""

    index: int
    value: float
    label: str | None


class Output(TypedDict):
    """One output. ``dtype`` and what follows are None for a value that is no tensor."""

    position: int
    name: str | None
    kind: str
    literal: Any
    dtype: str | None
    sizes: list[int] | None
    device: str | None
    min: float | None
    mean: float | None
    max: float | None
    """Of the finite numbers; None if there are none."""
    nonfinite: int | None
    first: list[Any] | None
    top: list[Score] | None


class Summary(TypedDict):
    """The root of ``--json``."""

    json_version: int
    method: str
    outputs: list[Output]
    saved_as: str | None
    load_ms: float | None
    run_ms: list[float] | None
    """Milliseconds of each run, with --repeat."""


def read_labels(path: str) -> list[str]:
    """Return the lines of a text file."""
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AccessFailedError(f"labels file {path} cannot be read: {error}") from None


def summarise(
    outputs: Sequence[Any],
    facts: Sequence[Value],
    *,
    method: str,
    top: int,
    labels: Sequence[str] | None = None,
) -> Summary:
    """Return the facts that are shown of a method's outputs."""
    return Summary(
        json_version=1,
        method=method,
        outputs=[
            _summarise(position, value, fact["name"], top, labels)
            for position, (value, fact) in enumerate(zip(outputs, facts, strict=True))
        ],
        saved_as=None,
        load_ms=None,
        run_ms=None,
    )


def _summarise(
    position: int, value: Any, name: str | None, top: int, labels: Sequence[str] | None
) -> Output:
    output = Output(
        position=position,
        name=name,
        kind="tensor" if isinstance(value, torch.Tensor) else _kind(value),
        literal=None if isinstance(value, torch.Tensor) else value,
        dtype=None,
        sizes=None,
        device=None,
        min=None,
        mean=None,
        max=None,
        nonfinite=None,
        first=None,
        top=None,
    )
    if isinstance(value, torch.Tensor):
        output["dtype"] = str(value.dtype).removeprefix("torch.")
        output["sizes"] = list(value.shape)
        output["device"] = str(value.device)
        _add_numbers(output, value.detach().cpu(), top, labels)
    return output


def _kind(value: Any) -> str:
    return "none" if value is None else type(value).__name__


def _add_numbers(
    output: Output, tensor: torch.Tensor, top: int, labels: Sequence[str] | None
) -> None:
    flat = tensor.reshape(-1)
    output["first"] = [
        str(item) if isinstance(item, complex) else item for item in flat[:_FIRST_VALUES].tolist()
    ]
    if tensor.is_complex():
        return
    numbers = flat.to(torch.float64)
    finite = numbers[torch.isfinite(numbers)]
    output["nonfinite"] = numbers.numel() - finite.numel()
    if finite.numel():
        output["min"], output["max"] = finite.min().item(), finite.max().item()
        output["mean"] = finite.mean().item()
    scores = tensor.dim() in (1, 2) and 1 < tensor.numel() == tensor.shape[-1]
    if scores and top > 0 and tensor.is_floating_point():
        values, indices = numbers.topk(min(top, numbers.numel()))
        output["top"] = [
            Score(index=index, value=value, label=_label(labels, index))
            for index, value in zip(indices.tolist(), values.tolist(), strict=True)
        ]


def _label(labels: Sequence[str] | None, index: int) -> str | None:
    return labels[index] if labels is not None and index < len(labels) else None


# -- text -----------------------------------------------------------------------------------------


def show(summary: Summary) -> Page:
    """Return the summary as text."""
    page = Page()
    page.heading(f"method {summary['method']}: {count(len(summary['outputs']), 'output')}")
    page.table(
        ("", "name", "what", "device", "min", "mean", "max", "nan or inf", "first values"),
        [_row(output) for output in summary["outputs"]],
        right=(4, 5, 6, 7),
    )
    for output in summary["outputs"]:
        if output["top"]:
            page.heading(f"largest values of output {output['position']}")
            page.table(
                ("index", "value", "label"),
                [(str(s["index"]), number(s["value"]), s["label"] or "") for s in output["top"]],
                right=(0, 1),
            )
    if summary["run_ms"] is not None:
        page.heading(_times(summary["load_ms"] or 0.0, summary["run_ms"]))
    if summary["saved_as"] is not None:
        page.heading(f"saved as {summary['saved_as']}")
    return page


def _row(output: Output) -> tuple[str, ...]:
    title = f"output {output['position']}"
    name = output["name"] or ""
    if output["kind"] != "tensor":
        literal = "" if output["literal"] is None else f" {output['literal']!r}"
        return (title, name, output["kind"] + literal, *[""] * 6)
    sizes, first = output["sizes"] or [], output["first"] or []
    more = math.prod(sizes) > len(first)
    return (
        title,
        name,
        f"{output['dtype']}{sizes}",
        "" if output["device"] == "cpu" else str(output["device"]),
        *(number(output[key]) for key in ("min", "mean", "max")),
        str(output["nonfinite"]) if output["nonfinite"] else "",
        " ".join(map(number, first)) + (" ..." if more else ""),
    )


def number(value: Any) -> str:
    """Return a number in few characters."""
    if value is None:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _times(load_ms: float, run_ms: Sequence[float]) -> str:
    rest = run_ms[1:]
    return (
        f"loaded in {load_ms:.3g} ms; {count(len(run_ms), 'run')}: first {run_ms[0]:.4g} ms, then "
        f"median {statistics.median(rest):.4g} ms (min {min(rest):.4g}, max {max(rest):.4g})"
    )


# -- files ----------------------------------------------------------------------------------------


def writer_for(path: str) -> Callable[[IO[bytes], Sequence[Any]], None]:
    """Return what writes this kind of file, or raise InvalidArgumentError."""
    writer = _WRITERS.get(Path(path).suffix.lower())
    if writer is None:
        raise InvalidArgumentError(
            f"--output {path}: its kind is not known; known are {' '.join(_WRITERS)}"
        )
    return writer


def save(outputs: Sequence[Any], path: str) -> None:
    """Write the outputs to a file, whole or not at all."""
    writer = writer_for(path)
    part = Path(f"{path}.part")
    try:
        with part.open("wb") as file:
            writer(file, outputs)
        part.replace(path)
    except OSError as error:
        raise AccessFailedError(f"{path} cannot be written: {error}") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _tensors(outputs: Sequence[Any], kind: str) -> dict[str, torch.Tensor]:
    found = {}
    for position, value in enumerate(outputs):
        if value is None or isinstance(value, str):
            raise InvalidArgumentError(
                f"output {position} is {_kind(value)}, which {kind} does not hold",
                hint="save as .pt",
            )
        tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
        found[f"output_{position}"] = tensor.detach().cpu().contiguous()
    return found


def _arrays(outputs: Sequence[Any]) -> dict[str, Any]:
    tensors = _tensors(outputs, "a numpy file")
    try:
        return {name: tensor.numpy() for name, tensor in tensors.items()}
    except TypeError as error:  # bfloat16 and the small floats
        raise InvalidArgumentError(
            f"numpy does not have an element type of the outputs: {error}",
            hint="save as .pt or .safetensors",
        ) from None


def _write_npz(file: IO[bytes], outputs: Sequence[Any]) -> None:
    import numpy as np

    np.savez(file, **_arrays(outputs))


def _write_npy(file: IO[bytes], outputs: Sequence[Any]) -> None:
    import numpy as np

    if len(outputs) != 1:
        raise InvalidArgumentError(
            f"an .npy file holds one array, and there are {len(outputs)} outputs",
            hint="save as .npz",
        )
    np.save(file, _arrays(outputs)["output_0"], allow_pickle=False)


def _write_pt(file: IO[bytes], outputs: Sequence[Any]) -> None:
    torch.save(list(outputs), file)


def _write_safetensors(file: IO[bytes], outputs: Sequence[Any]) -> None:
    try:
        from safetensors.torch import save as to_bytes
    except ImportError:
        raise NotSupportedError(
            "writing .safetensors needs the package safetensors", hint="pip install safetensors"
        ) from None
    try:
        file.write(to_bytes(_tensors(outputs, "a safetensors file")))
    except (KeyError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(f"safetensors refuses the outputs: {error}") from error


_WRITERS: Final[dict[str, Callable[[IO[bytes], Sequence[Any]], None]]] = {
    ".npz": _write_npz,
    ".npy": _write_npy,
    ".pt": _write_pt,
    ".safetensors": _write_safetensors,
}
