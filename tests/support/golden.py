"""Replay the peer's golden corpus: programs, with raw inputs and what eager PyTorch gave.

``NAME.pte``; ``NAME_input.bin`` or ``NAME_input_N.bin``; the same for ``expected_output``. A
program whose inputs were nested has no inputs stored and cannot be replayed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch

from pteron import Runtime

TOLERANCE = 1e-4
HALF_TOLERANCE = 2e-2


@dataclass
class Replay:
    """What a folder's programs did."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, outcome: str, why: str = "") -> None:
        self.counts[outcome] += 1
        if why:
            self.problems[name] = why


def replay(folder: Path) -> Replay:
    """Run every program of a folder once and compare its outputs with eager PyTorch's."""
    result = Replay()
    for path in sorted(folder.glob("*.pte")):
        try:
            method = Runtime.get().load_program(path).load_method("forward")
            inputs = stored_inputs(path, method.metadata)
            if inputs is None:
                result.add(path.name, "not replayable")
                continue
            outputs = [y for y in method.execute(inputs) if isinstance(y, torch.Tensor)]
            why = difference(outputs, raw(path, "expected_output", len(outputs)) or [])
            result.add(path.name, "different" if why else "same", why)
        except Exception as error:  # noqa: BLE001 - every failure is a row
            result.add(path.name, "error", f"{type(error).__name__}: {error}")
    return result


def raw(path: Path, kind: str, count: int) -> list[bytes] | None:
    base = path.with_suffix("")
    one = base.with_name(f"{base.name}_{kind}.bin")
    names = [base.with_name(f"{base.name}_{kind}_{i}.bin") for i in range(count)]
    names = [one] if one.exists() else names
    return [name.read_bytes() for name in names] if all(n.exists() for n in names) else None


def stored_inputs(path: Path, meta: object) -> list[torch.Tensor] | None:
    infos = [meta.input_tensor_meta(i) for i in range(meta.num_inputs())]  # type: ignore[attr-defined]
    blobs = raw(path, "input", len(infos))
    if blobs is None or len(blobs) != len(infos):
        return None
    inputs = []
    for blob, info in zip(blobs, infos, strict=True):
        dtype = getattr(torch, info.dtype().torch_name)
        flat = torch.frombuffer(bytearray(blob), dtype=dtype) if blob else torch.empty(0).to(dtype)
        if flat.numel() != torch.Size(info.sizes()).numel():
            return None
        inputs.append(flat.reshape(info.sizes()))
    return inputs


def difference(outputs: list[torch.Tensor], expected: list[bytes]) -> str:
    """Say how outputs differ, or return ""."""
    for at, (output, blob) in enumerate(zip(outputs, expected, strict=False)):
        wanted = torch.frombuffer(bytearray(blob), dtype=output.dtype).double()
        given = output.flatten().double()
        if wanted.numel() != given.numel():
            return f"output {at} has {given.numel()} elements, eager PyTorch {wanted.numel()}"
        exact = output.dtype in (torch.float32, torch.float64)
        rtol = TOLERANCE if exact else HALF_TOLERANCE
        same = torch.isclose(given, wanted, rtol=rtol, atol=TOLERANCE, equal_nan=True)
        if not bool(same.all()):
            return f"output {at} differs by {float((given - wanted).abs().nan_to_num().max()):.3g}"
    return ""
