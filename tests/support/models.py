"""The architectures that tests and benchmarks run, with seeded random weights.

``ARCHITECTURES`` holds each by name. ``architecture(name).build()`` gives small modules whose
export takes seconds; ``build(full=True)`` gives the published size where there is one.
``support.exporting`` makes programs of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from support import nets

Inputs = tuple[Any, ...]


@dataclass(frozen=True)
class MethodSpec:
    """One method: its module, the inputs it is exported with, and the input sets to run."""

    module: nn.Module
    example: Inputs
    inputs: tuple[Inputs, ...]
    """Run in this order; a method with state keeps it from one to the next."""
    dynamic_shapes: Any = None


@dataclass(frozen=True)
class Architecture:
    """How to build one architecture, and how near to eager a portable program has to be."""

    name: str
    make: Callable[[bool], dict[str, MethodSpec]]
    rtol: float = 1e-4
    atol: float = 1e-5
    reason: str = "float32: other kernels sum in another order"
    has_full: bool = False
    external_weights: bool = False
    initialized_buffers: tuple[str, ...] = ()
    """Mutable buffers (patterns) whose initial value the file has to hold; others start at zero."""
    wheel: str | None = None
    """Why the executorch wheel runs the program wrongly, if it does."""
    tags: frozenset[str] = field(default_factory=frozenset)

    def build(self, *, full: bool = False) -> dict[str, MethodSpec]:
        """Return fresh modules in eval mode by method name; the same weights every time."""
        if full and not self.has_full:
            raise ValueError(f"{self.name} has no published size")
        with seeded(self.name), torch.no_grad():
            methods = self.make(full)
        for spec in methods.values():
            spec.module.eval().requires_grad_(False)
        return methods


ARCHITECTURES: dict[str, Architecture] = {}


def architecture(name: str) -> Architecture:
    """Return the architecture of that name."""
    return ARCHITECTURES[name]


@contextmanager
def seeded(text: str) -> Iterator[None]:
    """Draw random numbers that depend on ``text`` alone, and leave the generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(text.encode()))
        yield


def register(name: str, **facts: Any) -> Callable[..., Any]:
    """Put a maker into the table."""

    def decorate(make: Callable[[bool], dict[str, MethodSpec]]) -> Any:
        facts["tags"] = frozenset(facts.get("tags", ()))
        ARCHITECTURES[name] = Architecture(name, make, **facts)
        return make

    return decorate


def forward(module: nn.Module, *inputs: Inputs, dynamic_shapes: Any = None) -> Any:
    """Return the usual table of one method, exported with the first input set."""
    return {"forward": MethodSpec(module, inputs[0], inputs, dynamic_shapes)}


def lively(module: nn.Module) -> nn.Module:
    """Give batch norms statistics that matter, as training would have."""
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.uniform_(-0.2, 0.2)
            layer.running_var.uniform_(0.5, 1.5)
            layer.weight.uniform_(0.5, 1.5)
            layer.bias.uniform_(-0.2, 0.2)
    return module


def images(*shape: int, count: int = 2) -> tuple[Inputs, ...]:
    return tuple((torch.randn(shape),) for _ in range(count))


def tokens(vocabulary: int, *shape: int) -> Tensor:
    return torch.randint(0, vocabulary, shape)


class Picked(nn.Module):
    """Call a transformers model by keyword, and return tensors instead of its output class."""

    def __init__(self, model: nn.Module, argument: str, outputs: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.argument, self.outputs = model, argument, outputs

    def forward(self, x: Tensor, *mask: Tensor) -> tuple[Tensor, ...]:
        extra = {"attention_mask": mask[0]} if mask else {}
        result = self.model(**{self.argument: x}, **extra)
        return tuple(result[name] for name in self.outputs)


# ---- transformers' classes, with configurations of our own ---------------------------------


@register("bert", has_full=True)
def bert(full: bool) -> Any:
    from transformers.models.bert import BertConfig, BertModel

    small = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
    }
    config = BertConfig() if full else BertConfig(**small)
    model = Picked(BertModel(config), "input_ids", ("last_hidden_state", "pooler_output"))
    batch, time = (1, 128) if full else (2, 12)
    whole = torch.ones(batch, time, dtype=torch.int64)
    cut = whole.clone()
    cut[:, time // 2 :] = 0
    return forward(
        model,
        (tokens(config.vocab_size, batch, time), whole),
        (tokens(config.vocab_size, batch, time), cut),
    )


@register("gpt2", has_full=True)
def gpt2(full: bool) -> Any:
    from transformers.models.gpt2 import GPT2Config, GPT2LMHeadModel

    small = {"vocab_size": 64, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
    small |= {"bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(use_cache=False, **({} if full else small))
    model = Picked(GPT2LMHeadModel(config), "input_ids", ("logits",))
    time = 128 if full else 12
    return forward(model, *((tokens(config.vocab_size, 1, time),) for _ in range(2)))


@register("vit", has_full=True)
def vit(full: bool) -> Any:
    from transformers.models.vit import ViTConfig, ViTForImageClassification

    small = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "image_size": 32,
        "patch_size": 8,
    }
    config = ViTConfig() if full else ViTConfig(**small)
    model = Picked(ViTForImageClassification(config), "pixel_values", ("logits",))
    return forward(model, *images(1, 3, config.image_size, config.image_size))


@register("convnext", has_full=True)
def convnext(full: bool) -> Any:
    from transformers.models.convnext import ConvNextConfig, ConvNextForImageClassification

    # The layer scale starts at 1e-6, at which the blocks would not show in the result.
    config = ConvNextConfig(layer_scale_init_value=0.5)
    if not full:
        config = ConvNextConfig(
            hidden_sizes=[8, 12, 16, 24], depths=[1, 1, 1, 1], layer_scale_init_value=0.5
        )
    size = 224 if full else 64
    model = Picked(ConvNextForImageClassification(config), "pixel_values", ("logits",))
    return forward(model, *images(1, 3, size, size))


@register("whisper_encoder", has_full=True)
def whisper_encoder(full: bool) -> Any:
    from transformers.models.whisper import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    small = {
        "d_model": 32,
        "encoder_layers": 1,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
        "num_mel_bins": 16,
        "max_source_positions": 32,
    }
    config = WhisperConfig(**({} if full else small))
    model = Picked(WhisperEncoder(config), "input_features", ("last_hidden_state",))
    return forward(model, *images(1, config.num_mel_bins, 2 * config.max_source_positions))


# ---- convolutions --------------------------------------------------------------------------


@register("resnet18", has_full=True)
def resnet18(full: bool) -> Any:
    net = nets.ResNet() if full else nets.ResNet(width=8, depth=(1, 2, 1), classes=10)
    return forward(lively(net), *images(1, 3, *((224, 224) if full else (32, 40))))


@register("mobilenet_v2", has_full=True)
def mobilenet_v2(full: bool) -> Any:
    stages = ((1, 8, 1, 1), (6, 12, 2, 2), (6, 16, 1, 2))
    net = nets.MobileNetV2() if full else nets.MobileNetV2(stages, last=64, classes=10)
    return forward(lively(net), *images(1, 3, *((224, 224) if full else (32, 40))))


@register("mobilenet_v3")
def mobilenet_v3(full: bool) -> Any:
    return forward(lively(nets.MobileNetV3()), *images(2, 3, 32, 32))


@register("unet")
def unet(full: bool) -> Any:
    return forward(lively(nets.UNet()), *images(1, 3, 16, 24))


@register("detector")
def detector(full: bool) -> Any:
    return forward(lively(nets.Detector()), *images(2, 3, 32, 32))


# ---- sequences and state -------------------------------------------------------------------


@register("llama_static_cache", tags=("state",))
def llama_static_cache(full: bool) -> Any:
    steps = ((tokens(64, 1, 1), torch.tensor([position])) for position in (0, 1, 2, 3, 9, 4, 15, 0))
    return forward(nets.Llama(), *steps)


@register("llama_prefill", tags=("state", "dynamic"))
def llama_prefill(full: bool) -> Any:
    steps = (
        (tokens(64, 1, count), torch.arange(start, start + count))
        for start, count in ((0, 5), (5, 1), (6, 1), (7, 9), (3, 2))
    )
    time = torch.export.Dim("time", min=1, max=16)
    return forward(nets.Llama(layers=1), *steps, dynamic_shapes=({1: time}, {0: time}))


@register("lstm")
def lstm(full: bool) -> Any:
    return forward(nets.Recurrent(), *images(2, 4, 6))


@register("counter", initialized_buffers=("total",), tags=("state",))
def counter(full: bool) -> Any:
    return forward(nets.Counter(), *images(3, count=4))


# ---- control flow --------------------------------------------------------------------------


def flagged(net: nn.Module) -> Any:
    flags = (True, False, False, True)
    return forward(net, *((torch.randn(3, 4), torch.tensor(flag)) for flag in flags))


@register("cond", tags=("control_flow",))
def cond(full: bool) -> Any:
    return flagged(nets.Cond())


@register(
    "cond_twice",
    wheel="it re-points the first result to a slot that the second branch writes again",
    tags=("control_flow",),
)
def cond_twice(full: bool) -> Any:
    return flagged(nets.TwoConds())


@register("scan", tags=("control_flow",))
def scan(full: bool) -> Any:
    return forward(nets.Scan(), *((torch.randn(5, 4), torch.randn(4)) for _ in range(3)))


@register("map", tags=("control_flow",))
def mapped(full: bool) -> Any:
    return forward(nets.Map(), *((torch.randn(5, 4), torch.randn(4)) for _ in range(3)))


# ---- shapes, methods, weights, dtypes ------------------------------------------------------


@register("dynamic_shapes", tags=("dynamic",))
def dynamic_shapes(full: bool) -> Any:
    batch, time = torch.export.Dim("batch", min=1, max=4), torch.export.Dim("time", min=2, max=9)
    sizes = ((3, 5), (4, 9), (1, 2), (2, 7), (1, 2), (4, 9), (4, 2), (1, 9))
    return forward(
        nets.Encoder(),
        *((torch.randn(*size, 16),) for size in sizes),
        dynamic_shapes=({0: batch, 1: time},),
    )


@register("dynamic_image", tags=("dynamic",))
def dynamic_image(full: bool) -> Any:
    height = torch.export.Dim("height", min=4, max=10)
    sizes = ((6, 8), (10, 8), (4, 8), (5, 8), (10, 8))
    net = nn.Sequential(
        nets.ConvNormAct(3, 6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)
    )
    return forward(
        lively(net),
        *((torch.randn(1, 3, *size),) for size in sizes),
        dynamic_shapes={"input": {2: height}},
    )


def two(encoder: nets.Encoder) -> dict[str, MethodSpec]:
    shared = nn.Embedding(20, 16)
    states = images(2, 6, 16)
    words = tuple((tokens(20, 2, 6),) for _ in range(2))
    return {
        "embed": MethodSpec(nets.Embed(shared, encoder), words[0], words),
        "unembed": MethodSpec(nets.Unembed(shared), states[0], states),
    }


@register("two_methods", tags=("methods",))
def two_methods(full: bool) -> Any:
    return two(nets.Encoder())


@register("external_weights", external_weights=True)
def external_weights(full: bool) -> Any:
    return forward(nn.Sequential(nets.Encoder(), nets.Encoder()), *images(2, 5, 16))


@register(
    "float16",
    rtol=1e-2,
    atol=2e-3,
    reason="float16 has 11 bits; kernels round between steps at other places",
    tags=("half",),
)
def float16(full: bool) -> Any:
    return forward(nets.HalfNet().half(), *((x.half(),) for (x,) in images(2, 3, 8, 8)))


@register(
    "bfloat16",
    rtol=5e-2,
    atol=1e-2,
    reason="bfloat16 has 8 bits; kernels round between steps at other places",
    tags=("half",),
)
def bfloat16(full: bool) -> Any:
    net = nets.HalfNet().bfloat16()
    return forward(net, *((x.bfloat16(),) for (x,) in images(2, 3, 8, 8)))
