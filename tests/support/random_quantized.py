"""Random quantized networks, delegated to XNNPACK and compared with their exported graph in eager.

``PYTHONPATH=src:tests python -m support.random_quantized FIRST COUNT`` makes networks from that
many seeds and prints a line for each that is not right, and a table of counts. With ``--pack`` and
no range it writes ``tests/fixtures/xnnpack/random_quantized.tar.xz`` anew: the networks of
:data:`PACKED`, for tests that export nothing.
"""

from __future__ import annotations

import argparse
import io
import random
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import pteron
from pteron.errors import PteronError
from support.exporting import quiet

FLOWS = ("static", "static per channel", "dynamic", "qat", "4 bits")
OF_THE_LARGEST = {
    "static": 0.04,
    "static per channel": 0.04,
    "qat": 0.04,
    "dynamic": 0.06,
    "4 bits": 0.06,
}
"""By how much of the largest element a result may be off.

One step of 8 bits is a 255th of a value's range; a few of them add up in a network.
"""


PACK = Path(__file__).parents[1] / "fixtures" / "xnnpack" / "random_quantized.tar.xz"
PACKED = (1, 2, 4, 5, 6, 7, 9, 10, 12, 13)
"""Seeds of all flows. Five of them were wrong before biases were taken with their own scales."""

SEEDS_A_NORMALIZED_QAT = 65
"""Batch norms are fused for QAT by patterns whose tracing takes half a minute."""


class Called(nn.Module):
    """One layer with a bias that is called on several inputs, each with a scale of its own."""

    def __init__(self, layer: nn.Module, ways: tuple[str, ...]) -> None:
        super().__init__()
        self.layer = layer
        self.ways = ways

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        results = []
        for way in self.ways:
            y = x
            if way == "half":
                y = x * 0.5
            elif way == "twice":
                y = self.layer(x)
            elif way == "sigmoid":
                y = torch.sigmoid(x)
            results.append(self.layer(y))
        total = results[0]
        for result in results[1:]:
            total = total + result
        return total


class Residual(nn.Module):
    """A residual block; where the sum is rectified is left to chance."""

    def __init__(self, inner: nn.Module, *, rectified: bool) -> None:
        super().__init__()
        self.inner = inner
        self.rectified = rectified

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.inner(x)
        return F.relu(x) if self.rectified else x


class Split(nn.Module):
    """A block as of YOLO: half of the channels go around the others' layers."""

    def __init__(self, channels: int, inner: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.half = channels // 2
        self.inner = inner
        self.last = last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x[:, : self.half], x[:, self.half :]
        return self.last(torch.cat([a, b, self.inner(b)], 1))


class Pyramid(nn.Module):
    """One head on an image and on a smaller one, the results side by side."""

    def __init__(self, head: nn.Module, outputs: int) -> None:
        super().__init__()
        self.head = head
        self.outputs = outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small = F.max_pool2d(x, 2)
        found = [self.head(scale).flatten(2).permute(0, 2, 1) for scale in (x, small)]
        return torch.cat(found, 1)


class Grown(nn.Module):
    """An image made smaller, changed, and made larger again beside the first."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small = self.inner(F.avg_pool2d(x, 2))
        size = x.shape[-2:]
        return x + F.interpolate(small, size=size, mode="bilinear", align_corners=False)


class Siamese(nn.Module):
    """Two images through one network, and how they differ."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a, b = self.body(x), self.body(y)
        return torch.cat([a - b, a * b], -1)


class Chain(nn.Module):
    """Layers one after the other, with a head of linear layers."""

    def __init__(self, body: nn.Module, head: nn.Module | None) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        return x if self.head is None else self.head(x.mean((2, 3)))


@dataclass
class Network:
    """A network, its inputs, and more inputs to calibrate on."""

    module: nn.Module
    flow: str
    inputs: tuple[torch.Tensor, ...]
    more: list[tuple[torch.Tensor, ...]]


def make(seed: int) -> Network:
    """Return the network of a seed; the flow goes round with it."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    flow = FLOWS[seed % len(FLOWS)]
    build = _linear_network if flow == "4 bits" else choose.choice(_BUILDERS)
    module, shapes = build(choose)
    if flow == "qat" and seed % SEEDS_A_NORMALIZED_QAT:
        _without_normalization(module)

    def drawn() -> tuple[torch.Tensor, ...]:
        return tuple(torch.randn(shape) for shape in shapes)

    return Network(module.eval(), flow, drawn(), [drawn() for _ in range(4)])


def _without_normalization(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, nn.Identity())
        else:
            _without_normalization(child)


def _activation(choose: random.Random) -> nn.Module:
    kinds: list[Callable[[], nn.Module]] = [nn.ReLU, nn.ReLU6, nn.Sigmoid, nn.Tanh, nn.Hardswish]
    kinds += [nn.SiLU, nn.LeakyReLU, nn.Identity, nn.Hardtanh]
    return choose.choice(kinds)()


def _convolution(choose: random.Random, before: int, after: int) -> nn.Module:
    kind = choose.choice(["plain", "pointwise", "depthwise", "normalized", "grouped"])
    if kind == "pointwise":
        layer: nn.Module = nn.Conv2d(before, after, 1)
    elif kind == "depthwise" and before == after:
        layer = nn.Conv2d(before, after, 3, padding=1, groups=before)
    elif kind == "grouped" and before % 2 == after % 2 == 0:
        layer = nn.Conv2d(before, after, 3, padding=1, groups=2)
    elif kind == "normalized":
        layer = nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)
        )
    else:
        layer = nn.Conv2d(before, after, 3, padding=1, bias=choose.random() < 0.8)
    return nn.Sequential(layer, _activation(choose))


def _block(choose: random.Random, channels: int) -> nn.Module:
    kind = choose.randrange(6)
    if kind == 0:
        return _convolution(choose, channels, channels)
    if kind == 1:
        return Residual(_convolution(choose, channels, channels), rectified=choose.random() < 0.5)
    if kind == 2:
        inner = _convolution(choose, channels // 2, channels // 2)
        return Split(channels, inner, nn.Conv2d(channels // 2 * 3, channels, 1))
    if kind == 3:
        ways = tuple(choose.choice(["same", "half", "twice", "sigmoid"]) for _ in range(2))
        size = choose.choice([1, 3])
        return Called(nn.Conv2d(channels, channels, size, padding=size // 2), ways)
    if kind == 4:
        return Grown(_convolution(choose, channels, channels))
    pools = [nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1), nn.Upsample(scale_factor=1)]
    return nn.Sequential(choose.choice(pools[:2]), _convolution(choose, channels, channels))


def _images(choose: random.Random) -> tuple[nn.Module, list[int]]:
    channels = choose.choice([4, 6, 8])
    blocks: list[nn.Module] = [_convolution(choose, 3, channels)]
    blocks += [_block(choose, channels) for _ in range(choose.randint(1, 3))]
    return nn.Sequential(*blocks), [channels]


def _image_network(choose: random.Random) -> tuple[nn.Module, list[tuple[int, ...]]]:
    body, (channels,) = _images(choose)
    kind = choose.randrange(4)
    if kind == 0:
        body = nn.Sequential(body, Pyramid(nn.Conv2d(channels, 6, choose.choice([1])), 6))
        head = None
    elif kind == 1:
        body = nn.Sequential(body, nn.ConvTranspose2d(channels, channels, 2, 2))
        head = None
    else:
        head = nn.Sequential(nn.Linear(channels, 12), _activation(choose), nn.Linear(12, 5))
    size = choose.choice([8, 12])
    return Chain(body, head), [(1, 3, size, size)]


def _siamese_network(choose: random.Random) -> tuple[nn.Module, list[tuple[int, ...]]]:
    body, (channels,) = _images(choose)
    head = nn.Linear(channels, choose.choice([6, 10]))
    return Siamese(Chain(body, head)), [(1, 3, 8, 8)] * 2


def _linear_network(choose: random.Random) -> tuple[nn.Module, list[tuple[int, ...]]]:
    width = choose.choice([32, 64])
    layers: list[nn.Module] = []
    for _ in range(choose.randint(1, 3)):
        kind = choose.randrange(3)
        layer = nn.Linear(width, width, bias=choose.random() < 0.8)
        if kind == 0:
            layers += [layer, _activation(choose)]
        elif kind == 1:
            layers.append(Residual(layer, rectified=choose.random() < 0.5))
        else:
            layers.append(Called(layer, ("same", choose.choice(["half", "twice", "sigmoid"]))))
    layers.append(nn.Linear(width, 16))
    rows = choose.choice([(1,), (5,), (2, 3)])
    return nn.Sequential(*layers), [(*rows, width)]


_BUILDERS = (_image_network, _image_network, _siamese_network, _linear_network)


# -- quantizing and exporting ---------------------------------------------------------------------


def quantized(network: Network) -> nn.Module:
    """Return the converted module, which eager runs."""
    if network.flow == "4 bits":
        from support.xnnpack_variants import quantize_linear

        quantize_linear(network.module)
        return network.module
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import (
        convert_pt2e,
        prepare_pt2e,
        prepare_qat_pt2e,
    )

    qat = network.flow == "qat"
    config = get_symmetric_quantization_config(
        is_per_channel=network.flow != "static", is_dynamic=network.flow == "dynamic", is_qat=qat
    )
    module = network.module.train() if qat else network.module
    graph = torch.export.export(module, network.inputs, strict=qat).module()
    prepared = (prepare_qat_pt2e if qat else prepare_pt2e)(
        graph, XNNPACKQuantizer().set_global(config)
    )
    for inputs in (network.inputs, *network.more):
        prepared(*inputs)
    if qat:
        import torchao.quantization.pt2e as pt2e

        pt2e.move_exported_model_to_eval(prepared)
    converted: nn.Module = convert_pt2e(prepared)
    return converted


def exported(module: nn.Module, network: Network) -> tuple[bytes, nn.Module]:
    """Return the program, and the exported graph as a module."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    from support.xnnpack_variants import dynamic_partitioners

    partitioner = [XnnpackPartitioner()]
    if network.flow == "dynamic":
        partitioner = dynamic_partitioners()
    program = torch.export.export(module, network.inputs, strict=False)
    lowered = to_edge_transform_and_lower(program, partitioner=partitioner)
    return lowered.to_executorch().buffer, program.module()


@dataclass
class Exported:
    """A program, its inputs, and what eager makes of them."""

    flow: str
    program: bytes
    inputs: tuple[torch.Tensor, ...]
    wanted: torch.Tensor

    def save(self, folder: Path, name: str) -> None:
        """Write a program and its numbers."""
        (folder / f"{name}.pte").write_bytes(self.program)
        kept = {"flow": self.flow, "inputs": self.inputs, "wanted": self.wanted}
        torch.save(kept, folder / f"{name}.pt")


def export(seed: int) -> Exported:
    """Make, quantize and export the network of a seed."""
    network = make(seed)
    with quiet():
        program, eager = exported(quantized(network), network)
        with torch.no_grad():
            wanted = eager(*network.inputs)
    return Exported(network.flow, program, network.inputs, wanted)


def distance(network: Exported) -> float:
    """Run a program and return how far it is from eager, relative to the largest element."""
    with pteron.Runtime.get().load_program(network.program) as loaded:
        (found,) = (t.clone() for t in loaded.load_method("forward").execute(network.inputs))
    assert found.shape == network.wanted.shape
    largest = network.wanted.double().abs().max()
    return float((found.double() - network.wanted.double()).abs().max() / largest)


def room(network: Exported) -> float:
    """Return how far from eager a network may be."""
    return OF_THE_LARGEST[network.flow]


def check(seed: int, keep: Path | None = None) -> tuple[str, float]:
    """Return what came of one network ("right", "refused: ...", ...), and its distance."""
    try:
        network = export(seed)
    except Exception as error:  # noqa: BLE001
        return f"not exported: {type(error).__name__}: {str(error).splitlines()[:1]}", 0.0
    if keep is not None:
        network.save(keep, str(seed))
    try:
        apart = distance(network)
    except PteronError as error:
        return f"refused: {error.message[:300]}", 0.0
    return ("right" if apart <= room(network) else "wrong"), apart


def write_pack() -> None:
    """Export the networks of :data:`PACKED` and keep them in one file."""
    with tempfile.TemporaryDirectory() as name, tarfile.open(PACK, "w:xz", preset=9) as pack:
        folder = Path(name)
        for seed in PACKED:
            export(seed).save(folder, str(seed))
        for path in sorted(folder.iterdir()):
            member = tarfile.TarInfo(path.name)
            member.size = path.stat().st_size
            pack.addfile(member, io.BytesIO(path.read_bytes()))


def packed() -> dict[int, Exported]:
    """Return the networks of the pack by their seeds."""
    found = {}
    with tarfile.open(PACK) as pack:
        files = {member.name: pack.extractfile(member) for member in pack.getmembers()}
        for seed in PACKED:
            program, numbers = files[f"{seed}.pte"], files[f"{seed}.pt"]
            assert program is not None
            assert numbers is not None
            kept = torch.load(io.BytesIO(numbers.read()), weights_only=True)
            found[seed] = Exported(kept["flow"], program.read(), kept["inputs"], kept["wanted"])
    return found


def main() -> int:
    """Check the networks of a range of seeds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int, nargs="?", default=0)
    parser.add_argument("count", type=int, nargs="?", default=0)
    parser.add_argument("--pack", action="store_true", help="write the pack that tests read")
    parser.add_argument("--keep", type=Path, help="a folder to keep programs and numbers in")
    parser.add_argument("--all", action="store_true", help="a line for every network")
    options = parser.parse_args()
    if options.pack:
        write_pack()
    counts: Counter[tuple[str, str]] = Counter()
    worst: dict[str, float] = {}
    for seed in range(options.first, options.first + options.count):
        outcome, apart = check(seed, options.keep)
        flow = FLOWS[seed % len(FLOWS)]
        counts[flow, outcome.split(":")[0]] += 1
        worst[flow] = max(worst.get(flow, 0.0), apart)
        if outcome != "right" or options.all:
            sys.stdout.write(f"seed {seed} ({flow}): {outcome}, {apart:.4f}\n")
            sys.stdout.flush()
    for (flow, outcome), count in sorted(counts.items()):
        sys.stdout.write(f"{flow}: {count} {outcome}; the largest distance {worst[flow]:.4f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
