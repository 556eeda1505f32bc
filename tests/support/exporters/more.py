"""Architectures that only the files of every exporter have, beside those of ``support.models``.

They are transformers of other shapes: attention that is local, windowed, or over pooled keys, with
and without masks, with position biases. Programs of these found faults that the others did not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from support import nets
from support.models import Architecture, Picked, forward, images, lively, tokens

MORE: dict[str, Architecture] = {}

DECODER = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "use_cache": False,
}


def awake(module: nn.Module) -> nn.Module:
    """Draw linear layers anew, wide enough that attention shows in the result."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.normal_(0, layer.in_features**-0.5)
    return lively(module)


def add(name: str, **facts: Any) -> Callable[[Callable[[], Any]], Any]:
    """Put a maker into the table."""

    def decorate(make: Callable[[], Any]) -> Any:
        facts["tags"] = frozenset(facts.get("tags", ()))
        MORE[name] = Architecture(name, lambda full: make(), **facts)
        return make

    return decorate


class Encoded(nn.Module):
    """Call a transformers encoder with its mask made outside, and return its last states."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.model(input_ids=x, attention_mask=mask).last_hidden_state


def text(model: nn.Module, output: str = "logits", batch: int = 1) -> Any:
    picked = Picked(awake(model), "input_ids", (output,))
    return forward(picked, *((tokens(64, batch, 12),) for _ in range(2)))


def masked_text(model: nn.Module) -> Any:
    whole = torch.ones(2, 12, dtype=torch.int64)
    cut = whole.clone()
    cut[:, 7:] = 0
    net = Encoded(awake(model))
    return forward(net, (tokens(64, 2, 12), whole), (tokens(64, 2, 12), cut))


@add("own_norms", external_weights=True)
def own_norms() -> Any:
    """Return ``external_weights`` with no two weights that are equal.

    Exporters 0.7 and 1.0 write equal weights once and lose the second name.
    """
    net = nn.Sequential(nets.Encoder(), nets.Encoder())
    for layer in net.modules():
        if isinstance(layer, nn.LayerNorm):
            layer.weight.uniform_(0.5, 1.5)
            layer.bias.uniform_(-0.2, 0.2)
    return forward(net, *images(2, 5, 16))


@add("gelu_tanh")
def gelu_tanh() -> Any:
    return forward(nn.GELU(approximate="tanh"), (torch.linspace(-4, 4, 64)[None],))


@add("t5_encoder")
def t5_encoder() -> Any:
    from transformers.models.t5 import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0
    )
    return masked_text(T5EncoderModel(config))


@add("distilbert")
def distilbert() -> Any:
    from transformers.models.distilbert import DistilBertConfig, DistilBertModel

    config = DistilBertConfig(
        vocab_size=64, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=32
    )
    return masked_text(DistilBertModel(config))


class CountingAttention(nets.CachedAttention):
    """Attention over a cache whose length so far is in a buffer without dimensions."""

    def __init__(self, width: int, heads: int, kv_heads: int, length: int) -> None:
        super().__init__(width, heads, kv_heads, length)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(
        self, x: Tensor, position: Tensor, cos: Tensor, sin: Tensor, mask: Tensor
    ) -> Tensor:
        self.count.copy_(position[0])
        place = torch.arange(x.shape[1]) + self.count
        self.count.add_(x.shape[1])
        return super().forward(x, place, cos, sin, mask)


@add("counting_cache", tags=("state",))
def counting_cache() -> Any:
    net = nets.Llama(layers=1, length=24)
    for block in net.blocks:
        block.attention = CountingAttention(32, 4, 2, 24)
    places = (0, 1, 2, 3, 9, 4, 15, 0)
    return forward(net, *((tokens(64, 1, 1), torch.tensor([place])) for place in places))


@add("qwen2")
def qwen2() -> Any:
    from transformers.models.qwen2 import Qwen2Config, Qwen2ForCausalLM

    return text(Qwen2ForCausalLM(Qwen2Config(**DECODER)), batch=2)


@add("gemma2")
def gemma2() -> Any:
    from transformers.models.gemma2 import Gemma2Config, Gemma2ForCausalLM

    # The published activation approximates GELU with tanh; delegated, every exporter makes the
    # exact GELU of it, which differs by 5e-4 in any runtime.
    activation = "gelu"
    config = Gemma2Config(**DECODER, head_dim=8, sliding_window=4, hidden_activation=activation)
    return text(Gemma2ForCausalLM(config))


@add("segformer")
def segformer() -> Any:
    from transformers.models.segformer import (
        SegformerConfig,
        SegformerForSemanticSegmentation,
    )

    config = SegformerConfig(
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 8, 16, 16],
        num_attention_heads=[1, 2, 2, 4],
        mlp_ratios=[2, 2, 2, 2],
        decoder_hidden_size=16,
        num_labels=3,
    )
    model = SegformerForSemanticSegmentation(config)
    return forward(Picked(awake(model), "pixel_values", ("logits",)), *images(1, 3, 64, 64))


@add("swin")
def swin() -> Any:
    from transformers.models.swin import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=8,
        depths=[2, 1],
        num_heads=[2, 2],
        window_size=4,
        mlp_ratio=2.0,
    )
    model = Picked(awake(SwinForImageClassification(config)), "pixel_values", ("logits",))
    return forward(model, *images(1, 3, 32, 32))


@add("wav2vec2")
def wav2vec2() -> Any:
    from transformers.models.wav2vec2 import Wav2Vec2Config, Wav2Vec2Model

    config = Wav2Vec2Config(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        conv_dim=(8, 8),
        conv_stride=(5, 2),
        conv_kernel=(10, 3),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=4,
        apply_spec_augment=False,
    )
    model = Picked(awake(Wav2Vec2Model(config)), "input_values", ("last_hidden_state",))
    return forward(model, *images(1, 400))
