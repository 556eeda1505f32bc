"""What is benchmarked, as plain torch: the models behind the CUDA fixtures, and three larger ones.

The larger models have weights that are a function of their names alone, computed with integers:
the same on every machine and torch. So the program that was exported elsewhere and the module that
is built here hold the same numbers, and no state dict travels.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from support.nets import MobileNetV2

Inputs = tuple[Tensor, ...]


# ---- larger models, exported by make_programs.py ---------------------------------------------


class Attention(nn.Module):
    """Multi-head self-attention over one projection, as GPT-2 has it."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        split = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, time, width))


class Layer(nn.Module):
    """One transformer layer: norm first (GPT-2) or last (BERT)."""

    def __init__(self, width: int, heads: int, *, causal: bool, norm_first: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads, causal=causal)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm_first = norm_first

    def feed(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))

    def forward(self, x: Tensor) -> Tensor:
        if self.norm_first:
            x = x + self.attention(self.first(x))
            return x + self.feed(self.second(x))
        x = self.first(x + self.attention(x))
        return self.second(x + self.feed(x))


class Transformer(nn.Module):
    """Token and position embeddings, layers, and a head that shares the embedding if there is one.

    Narrower than the published BERT and GPT-2 (whose files are too large to carry about), with the
    same operators in the same order.
    """

    def __init__(self, *, causal: bool, layers: int = 4, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(2048, width), nn.Embedding(128, width)
        self.embedded = nn.Identity() if causal else nn.LayerNorm(width)
        self.layers = nn.ModuleList(
            Layer(width, heads, causal=causal, norm_first=causal) for _ in range(layers)
        )
        self.last = nn.LayerNorm(width) if causal else nn.Identity()
        self.causal = causal

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        x = self.embedded(x)
        for layer in self.layers:
            x = layer(x)
        x = self.last(x)
        return x @ self.words.weight.t() if self.causal else x


def fill(module: nn.Module) -> nn.Module:
    """Give every parameter and buffer values that depend on its name, and keep variances."""
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if not tensor.is_floating_point():
                continue
            unit = pseudo_random(tensor.numel(), zlib.crc32(name.encode())).view(tensor.shape)
            if name.endswith("running_var") or (tensor.dim() == 1 and name.endswith("weight")):
                tensor.copy_(1 + 0.2 * unit)
            elif tensor.dim() == 1:
                tensor.copy_(0.1 * unit)
            else:
                tensor.copy_(unit * (3 / tensor[0].numel()) ** 0.5)
    return module.eval().requires_grad_(False)


def pseudo_random(count: int, seed: int) -> Tensor:
    """Return ``count`` floats in [-1, 1): a mix of integers, exact on every machine."""
    x = torch.arange(count, dtype=torch.int64) * 2_654_435_761 + seed
    for factor in (0x45D9F3B, 0x45D9F3B):
        x = (((x >> 16) ^ x) & 0xFFFFFFFF) * factor & 0xFFFFFFFF
    x = ((x >> 16) ^ x) & 0xFFFFFFFF
    return (x.to(torch.float64) / 2**31 - 1).to(torch.float32)


def image() -> Inputs:
    return (pseudo_random(3 * 224 * 224, 1).view(1, 3, 224, 224),)


def words() -> Inputs:
    return ((pseudo_random(128, 2) + 1).mul(1024).long().clamp(max=2047).view(1, 128),)


@dataclass(frozen=True)
class Model:
    """A larger model: how to build it, and what it is called with."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]

    def build(self) -> nn.Module:
        """Return the module with its weights, in eval mode."""
        return fill(self.make())


MODELS = (
    Model("mobilenet_v2", MobileNetV2, image),
    Model("bert", lambda: Transformer(causal=False), words),
    Model("gpt2", lambda: Transformer(causal=True), words),
)


# ---- the models behind tests/fixtures/cuda ---------------------------------------------------


class LinearRelu(nn.Module):
    """linear_relu, dynamic_batch, gpu_resident_io, forward2 of mixed_host_cuda."""

    def __init__(self, w: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.weight, self.bias = _parameters(w, "l.weight", "l.bias")

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(F.linear(x, self.weight, self.bias))


class Cached(nn.Module):
    """kv_cache: a row is projected and kept; the sum of all rows comes back."""

    def __init__(self, w: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.weight, self.bias = _parameters(w, "l.weight", "l.bias")
        self.register_buffer("cache", w["cache"].clone())

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        self.cache.index_copy_(0, position, F.linear(x, self.weight, self.bias))
        return self.cache.sum(0, keepdim=True) + x


class TokenMlp(nn.Module):
    """prefill and decode of prefill_decode."""

    def __init__(self, w: Mapping[str, Tensor]) -> None:
        super().__init__()
        names = ("e.weight", "l.weight", "l.bias", "o.weight", "o.bias")
        self.table, self.weight, self.bias, self.out, self.out_bias = _parameters(w, *names)

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.silu(F.linear(F.embedding(tokens, self.table), self.weight, self.bias))
        return F.linear(x, self.out, self.out_bias)


class SmallCnn(nn.Module):
    """small_cnn."""

    def __init__(self, w: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, 10),
        )
        self.net.load_state_dict(dict(w), strict=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Block(nn.Module):
    """transformer_block_bf16."""

    def __init__(self, w: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.layer = Layer(512, 8, causal=True, norm_first=True).bfloat16()
        names = {"n1": "first", "n2": "second", "qkv": "attention.qkv", "o": "attention.out"}
        names |= {"f1": "up", "f2": "down"}
        split = {key: key.rpartition(".") for key in w}
        self.layer.load_state_dict({f"{names[a]}.{b}": w[k] for k, (a, _, b) in split.items()})

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


EAGER: dict[tuple[str, str], Callable[[Mapping[str, Tensor]], nn.Module]] = {
    ("dynamic_batch", "forward"): LinearRelu,
    ("gpu_resident_io", "forward"): LinearRelu,
    ("kv_cache", "forward"): Cached,
    ("linear_relu", "forward"): LinearRelu,
    ("mixed_host_cuda", "forward2"): LinearRelu,
    ("prefill_decode", "prefill"): TokenMlp,
    ("prefill_decode", "decode"): TokenMlp,
    ("small_cnn", "forward"): SmallCnn,
    ("transformer_block_bf16", "forward"): Block,
}
"""By fixture and method: the module, made from the weights in the fixture's data file."""


def eager(fixture: str, method: str, program: Any) -> nn.Module:
    """Return the module that a fixture's method was exported from, with the fixture's weights."""
    from pteron.backends.cuda.blob import parse_payload
    from pteron.memory.host_view import flat_tensor

    payload = parse_payload(program.payload(method), method_name=method, where=fixture)
    weights = {}
    for entry in payload.entries:
        flat = flat_tensor(
            program.data.get(entry.storage_key).data, getattr(torch, entry.scalar_type.torch_name)
        )
        view = flat.as_strided(entry.sizes, entry.strides, entry.storage_offset)
        weights[entry.fqn] = view.clone()
    return EAGER[fixture, method](weights).eval().requires_grad_(False)


def _parameters(w: Mapping[str, Tensor], *names: str) -> list[nn.Parameter]:
    return [nn.Parameter(w[name], requires_grad=False) for name in names]
