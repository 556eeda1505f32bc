"""What came out of a method: a summary, and files."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, TypeAlias, TypedDict

import torch

from pteron.cli.page import Page, count
from pteron.errors import AccessFailedError, InvalidArgumentError, missing_package
from pteron.executor.signature import ValueInfo

_FIRST_VALUES: Final = 6
_TOP: Final = 5


class Score(TypedDict):
    """One of the largest values of an output."""

    index: int
    value: float
    label: str | None


class Output(TypedDict):
    """One output. ``dtype`` and what follows are None for a value that is not a tensor."""

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
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        raise AccessFailedError(
            f"labels file {path} cannot be read: {reason}", filename=path, errno=error.errno
        ) from None
    except UnicodeDecodeError:
        raise AccessFailedError(f"labels file {path} is not UTF-8 text", filename=path) from None


def check_labels(labels: Sequence[str], path: str, facts: Sequence[ValueInfo]) -> None:
    """Refuse labels of another number than the scores have."""
    for info in facts:
        if _may_be_scores(info) and not info.is_dynamic and info.shape is not None:
            if info.shape[-1] != len(labels):
                raise InvalidArgumentError(
                    f"labels file {path} has {count(len(labels), 'line')}; {info.label} has "
                    f"{info.shape[-1]} values"
                )
            return
    if not any(_may_be_scores(info) for info in facts):
        raise InvalidArgumentError(
            "--labels is for scores, a float output of shape 1 x N; the method has none"
        )


def _may_be_scores(info: ValueInfo) -> bool:
    shape = info.shape
    return shape is not None and len(shape) == 2 and (shape[0] == 1 or info.is_dynamic)


def summarise(
    outputs: Sequence[Any],
    facts: Sequence[ValueInfo],
    *,
    method: str,
    top: int | None = None,
    labels: Sequence[str] | None = None,
) -> Summary:
    """Return the facts that are shown of a method's outputs.

    The largest values are those of the first output with the shape of scores; with ``top``, those
    of every such output.
    """
    found = [
        _summarise(value, info, _TOP if top is None else top, labels)
        for value, info in zip(outputs, facts, strict=True)
    ]
    if top is None:
        for later in [output for output in found if output["top"]][1:]:
            later["top"] = None
    return Summary(
        json_version=1, method=method, outputs=found, saved_as=None, load_ms=None, run_ms=None
    )


def _summarise(value: Any, info: ValueInfo, top: int, labels: Sequence[str] | None) -> Output:
    output = Output(
        position=info.position,
        name=info.path,
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
    scores = tensor.dim() == 2 and tensor.shape[0] == 1 < tensor.shape[1]
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
        cut=8,
    )
    for output in summary["outputs"]:
        if output["top"]:
            name = f" ({output['name']})" if output["name"] else ""
            page.heading(f"largest values of output {output['position']}{name}")
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


Writer: TypeAlias = "Callable[[IO[bytes], Mapping[str, Any]], None]"


def writer_for(path: str) -> Writer:
    """Return what writes this kind of file; a place that cannot be written is refused."""
    writer = _WRITERS.get(Path(path).suffix.lower())
    if writer is None:
        raise InvalidArgumentError(
            f"--output {path}: files of this kind are not known; known are {' '.join(_WRITERS)}"
        )
    folder = Path(path).parent
    if not folder.is_dir():
        raise AccessFailedError(
            f"--output {path}: the folder {folder} does not exist", filename=path
        )
    if Path(path).is_dir():
        raise AccessFailedError(f"--output {path} is a folder", filename=path)
    if not os.access(folder, os.W_OK):
        raise AccessFailedError(
            f"--output {path}: the folder {folder} cannot be written to", filename=path
        )
    return writer


def save(outputs: Sequence[Any], facts: Sequence[ValueInfo], path: str) -> None:
    """Write the outputs to a file by name, whole or not at all."""
    writer = writer_for(path)
    part = Path(f"{path}.part")
    named = {info.name: value for info, value in zip(facts, outputs, strict=True)}
    try:
        with part.open("wb") as file:
            writer(file, named)
        part.replace(path)
    except OSError as error:
        if isinstance(error, AccessFailedError):
            raise
        reason = (error.strerror or "unknown reason").lower()
        raise AccessFailedError(
            f"--output {path} cannot be written: {reason}", filename=path, errno=error.errno
        ) from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _tensors(outputs: Mapping[str, Any], kind: str) -> dict[str, torch.Tensor]:
    found = {}
    for name, value in outputs.items():
        if value is None or isinstance(value, str):
            raise InvalidArgumentError(
                f"{name} is {_kind(value)}, which {kind} cannot hold", hint="save as .pt"
            )
        tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
        found[name] = tensor.detach().cpu().contiguous()
    return found


def _arrays(outputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _array(name, value) for name, value in _tensors(outputs, "a numpy file").items()}


def _array(name: str, tensor: torch.Tensor) -> Any:
    try:
        return tensor.numpy()
    except TypeError:  # bfloat16 and the small floats
        kind = str(tensor.dtype).removeprefix("torch.")
        raise InvalidArgumentError(
            f"{name} is {kind}, an element type that numpy lacks",
            hint="save as .pt or .safetensors",
        ) from None


def _write_npz(file: IO[bytes], outputs: Mapping[str, Any]) -> None:
    """Write an archive of arrays, as ``numpy.savez`` does; that takes no array called ``file``."""
    import zipfile

    import numpy as np

    arrays = _arrays(outputs)
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)


def _write_npy(file: IO[bytes], outputs: Mapping[str, Any]) -> None:
    import numpy as np

    if len(outputs) != 1:
        raise InvalidArgumentError(
            f"an .npy file holds one array, and there are {len(outputs)} outputs",
            hint="save as .npz, or choose one output with --select NAME",
        )
    (array,) = _arrays(outputs).values()
    np.save(file, array, allow_pickle=False)


def _write_pt(file: IO[bytes], outputs: Mapping[str, Any]) -> None:
    torch.save(dict(outputs), file)


def _write_safetensors(file: IO[bytes], outputs: Mapping[str, Any]) -> None:
    try:
        from safetensors.torch import save as to_bytes
    except ModuleNotFoundError as error:
        raise missing_package(error, "writing .safetensors") from None
    try:
        file.write(to_bytes(_tensors(outputs, "a safetensors file")))
    except (KeyError, ValueError, RuntimeError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(
            "a safetensors file cannot hold an element type of the outputs", hint="save as .pt"
        ) from error


_WRITERS: Final[dict[str, Writer]] = {
    ".npz": _write_npz,
    ".npy": _write_npy,
    ".pt": _write_pt,
    ".safetensors": _write_safetensors,
}
