"""Networks in plain torch, built as their papers have them; width and depth are arguments."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# ---- convolutional classifiers -------------------------------------------------------------


class ConvNormAct(nn.Sequential):
    """Convolution, batch norm, and an activation if there is one."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        *,
        stride: int = 1,
        groups: int = 1,
        act: type[nn.Module] | None = nn.ReLU,
    ) -> None:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        layers: list[nn.Module] = [conv, nn.BatchNorm2d(outputs)]
        if act is not None:
            layers.append(act())
        super().__init__(*layers)


class BasicBlock(nn.Module):
    """ResNet's block of two 3x3 convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            ConvNormAct(inputs, outputs, stride=stride), ConvNormAct(outputs, outputs, act=None)
        )
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short = ConvNormAct(inputs, outputs, 1, stride=stride, act=None)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x))


class ResNet(nn.Module):
    """ResNet of basic blocks; width 64 and depth (2, 2, 2, 2) is ResNet-18."""

    def __init__(
        self, width: int = 64, depth: tuple[int, ...] = (2, 2, 2, 2), classes: int = 1000
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            ConvNormAct(3, width, 7, stride=2), nn.MaxPool2d(3, stride=2, padding=1)
        )
        stages: list[nn.Module] = []
        inputs = width
        for stage, blocks in enumerate(depth):
            outputs = width << stage
            for block in range(blocks):
                stride = 2 if stage and block == 0 else 1
                stages.append(BasicBlock(inputs, outputs, stride))
                inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(self.stem(x))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class InvertedResidual(nn.Module):
    """MobileNetV2's block: widen, depthwise, narrow, and add if the shape is unchanged."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        widen = [ConvNormAct(inputs, hidden, 1, act=nn.ReLU6)] if expand != 1 else []
        self.body = nn.Sequential(
            *widen,
            ConvNormAct(hidden, hidden, stride=stride, groups=hidden, act=nn.ReLU6),
            ConvNormAct(hidden, outputs, 1, act=None),
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


MOBILENET_V2_STAGES = (
    # expand, outputs, blocks, stride
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class MobileNetV2(nn.Module):
    """MobileNetV2; the default stages are the paper's table 2."""

    def __init__(
        self,
        stages: tuple[tuple[int, int, int, int], ...] = MOBILENET_V2_STAGES,
        last: int = 1280,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        inputs = 2 * stages[0][1]
        layers: list[nn.Module] = [ConvNormAct(3, inputs, stride=2, act=nn.ReLU6)]
        for expand, outputs, blocks, stride in stages:
            for block in range(blocks):
                layers.append(
                    InvertedResidual(inputs, outputs, stride if block == 0 else 1, expand)
                )
                inputs = outputs
        layers.append(ConvNormAct(inputs, last, 1, act=nn.ReLU6))
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


class SqueezeExcite(nn.Module):
    """Scale channels by a gate computed from their means."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(channels, squeezed, 1)
        self.up = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1))))
        return x * F.hardsigmoid(gate)


class BottleneckV3(nn.Module):
    """MobileNetV3's block: MobileNetV2's, with squeeze-and-excite and hardswish."""

    def __init__(
        self, inputs: int, hidden: int, outputs: int, kernel: int, stride: int, *, se: bool
    ) -> None:
        super().__init__()
        self.body = nn.Sequential(
            ConvNormAct(inputs, hidden, 1, act=nn.Hardswish),
            ConvNormAct(hidden, hidden, kernel, stride=stride, groups=hidden, act=nn.Hardswish),
            SqueezeExcite(hidden, max(hidden // 4, 8)) if se else nn.Identity(),
            ConvNormAct(hidden, outputs, 1, act=None),
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


class MobileNetV3(nn.Module):
    """A network of MobileNetV3 blocks, small enough to export in seconds."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            ConvNormAct(3, 8, stride=2, act=nn.Hardswish),
            BottleneckV3(8, 16, 8, 3, 1, se=True),
            BottleneckV3(8, 24, 16, 5, 2, se=True),
            BottleneckV3(16, 32, 16, 5, 1, se=False),
            ConvNormAct(16, 64, 1, act=nn.Hardswish),
        )
        self.head = nn.Sequential(nn.Linear(64, 48), nn.Hardswish(), nn.Linear(48, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


# ---- dense prediction ----------------------------------------------------------------------


class UNet(nn.Module):
    """Two levels down and up again: pooling, transposed convolution, upsampling, skips."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1 = ConvNormAct(3, width)
        self.down2 = ConvNormAct(width, 2 * width)
        self.middle = ConvNormAct(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.merge2 = ConvNormAct(4 * width, 2 * width)
        self.narrow = nn.Conv2d(2 * width, width, 1)
        self.merge1 = nn.Sequential(
            nn.Conv2d(2 * width, width, 3, padding=1), nn.GroupNorm(2, width)
        )
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        x = self.middle(F.max_pool2d(two, 2))
        x = self.merge2(torch.cat([self.up2(x), two], 1))
        x = F.interpolate(self.narrow(x), scale_factor=2.0, mode="bilinear", align_corners=False)
        x = F.silu(self.merge1(torch.cat([x, one], 1)))
        return torch.softmax(self.head(x), 1)


class Detector(nn.Module):
    """Box head on anchors: decode, clamp, the best k by score, and their boxes by gather."""

    def __init__(self, cells: int = 8, classes: int = 5, best: int = 6) -> None:
        super().__init__()
        self.body = nn.Sequential(ConvNormAct(3, 16, stride=2), ConvNormAct(16, 16, stride=2))
        self.box = nn.Conv2d(16, 4, 1)
        self.label = nn.Conv2d(16, classes, 1)
        self.best = best
        self.size = float(cells * 4)
        steps = torch.arange(cells, dtype=torch.float32) * 4 + 2
        y, x = torch.meshgrid(steps, steps, indexing="ij")
        self.register_buffer("centers", torch.stack([x, y], -1).reshape(1, -1, 2))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = self.body(image)
        deltas = self.box(features).flatten(2).transpose(1, 2)
        scores, labels = self.label(features).flatten(2).transpose(1, 2).sigmoid().max(-1)
        center = self.centers + deltas[..., :2] * 4
        half = torch.exp(deltas[..., 2:].clamp(max=3.0)) * 2
        boxes = torch.cat([center - half, center + half], -1).clamp(0.0, self.size)
        top, index = torch.topk(scores, self.best, dim=1)
        picked = torch.gather(boxes, 1, index.unsqueeze(-1).expand(-1, -1, 4))
        return picked, top, torch.gather(labels, 1, index)


# ---- sequences -----------------------------------------------------------------------------


class RmsNorm(nn.Module):
    """Divide by the root of the mean square, in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(
            x.dtype
        ) * self.weight


class CachedAttention(nn.Module):
    """Grouped-query attention with rotary positions over a static cache held in buffers."""

    def __init__(self, width: int, heads: int, kv_heads: int, length: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, width // heads
        self.q = nn.Linear(width, heads * self.head, bias=False)
        self.k = nn.Linear(width, kv_heads * self.head, bias=False)
        self.v = nn.Linear(width, kv_heads * self.head, bias=False)
        self.o = nn.Linear(heads * self.head, width, bias=False)
        self.register_buffer("k_cache", torch.zeros(1, kv_heads, length, self.head))
        self.register_buffer("v_cache", torch.zeros(1, kv_heads, length, self.head))

    def split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(1, -1, heads, self.head).transpose(1, 2)

    def forward(
        self, x: Tensor, position: Tensor, cos: Tensor, sin: Tensor, mask: Tensor
    ) -> Tensor:
        q = rotate(self.split(self.q(x), self.heads), cos, sin)
        k = rotate(self.split(self.k(x), self.kv_heads), cos, sin)
        self.k_cache.index_copy_(2, position, k)
        self.v_cache.index_copy_(2, position, self.split(self.v(x), self.kv_heads))
        groups = self.heads // self.kv_heads
        keys = self.k_cache.repeat_interleave(groups, dim=1)
        values = self.v_cache.repeat_interleave(groups, dim=1)
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return self.o(y.transpose(1, 2).reshape(1, -1, self.heads * self.head))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs (i, i + half) by the angles of their position."""
    one, two = x.chunk(2, dim=-1)
    return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)


class LlamaBlock(nn.Module):
    """Attention and a gated SiLU feed-forward, each after an RMS norm."""

    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int, length: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.attention = CachedAttention(width, heads, kv_heads, length)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, *where: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), *where)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Llama with a static KV cache in buffers: tokens ``(1, n)`` at positions ``(n,)``."""

    def __init__(
        self,
        *,
        vocabulary: int = 64,
        width: int = 32,
        layers: int = 2,
        heads: int = 4,
        kv_heads: int = 2,
        hidden: int = 64,
        length: int = 16,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            LlamaBlock(width, heads, kv_heads, hidden, length) for _ in range(layers)
        )
        self.norm = RmsNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        half = width // heads // 2
        rate = 10000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
        angle = torch.arange(length, dtype=torch.float32)[:, None] * rate
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool).tril())

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        x = self.embed(tokens)
        where = (position, self.cos[position], self.sin[position], self.mask[position])
        for block in self.blocks:
            x = block(x, *where)
        return self.head(self.norm(x))


class Recurrent(nn.Module):
    """An LSTM, read both ways, and a head on the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        steps, (_, cell) = self.lstm(x)
        return self.head(steps[:, -1]), cell


class Counter(nn.Module):
    """Running mean of what it has seen, with the count in a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("total", torch.full((3,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        self.total.add_(x)
        return self.total / self.count


# ---- control flow --------------------------------------------------------------------------


class Cond(nn.Module):
    """One of two branches, by a flag."""

    def forward(self, x: Tensor, flag: Tensor) -> Tensor:
        return torch.cond(flag, lambda a: a * 2 + 1, lambda a: a.sin() - a, (x + 1,))


class TwoConds(nn.Module):
    """Two ``torch.cond`` in a row, both results alive at the end."""

    def forward(self, x: Tensor, flag: Tensor) -> tuple[Tensor, Tensor]:
        one = torch.cond(flag, lambda a: a * 2 + 1, lambda a: a.sin() - a, (x,))
        two = torch.cond(one.sum() > 0, lambda a: a.exp(), lambda a: a.abs(), (x,))
        return one, two


class Scan(nn.Module):
    """A recurrence written as ``scan``: the last state, and every step's output."""

    def forward(self, steps: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        from torch._higher_order_ops.scan import scan

        def step(carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            carry = torch.tanh(carry * 0.5 + x)
            return carry, carry * 2

        last, outputs = scan(step, state, steps)
        return last, outputs


class Map(nn.Module):
    """One function over the rows of a tensor."""

    def forward(self, rows: Tensor, scale: Tensor) -> Tensor:
        from torch._higher_order_ops.map import map as torch_map

        return torch_map(lambda row, by: (row * by).softmax(-1) + row, rows, scale)


# ---- shapes, methods, weights --------------------------------------------------------------


class Encoder(nn.Module):
    """A transformer layer over ``(batch, time, width)``; its shapes may vary."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = (
            part.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, time, width))
        return x + self.feed(x)


class HalfNet(nn.Module):
    """Convolution, norm, pooling, attention and softmax, for the half-precision kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.encoder = Encoder()
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        x = self.encoder(x.flatten(2).transpose(1, 2))
        return self.head(x.mean(1)).softmax(-1)


class Embed(nn.Module):
    """First of two methods: a shared table, and what it makes of tokens."""

    def __init__(self, shared: nn.Embedding, encoder: Encoder) -> None:
        super().__init__()
        self.shared, self.encoder = shared, encoder

    def forward(self, tokens: Tensor) -> Tensor:
        return self.encoder(self.shared(tokens))


class Unembed(nn.Module):
    """Second of two methods: the shared table read the other way."""

    def __init__(self, shared: nn.Embedding) -> None:
        super().__init__()
        self.shared = shared

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        scores = states @ self.shared.weight.t()
        return scores, scores.argmax(-1)
