"""Language-model operators against executorch's own kernels, and attention in float64."""

from __future__ import annotations

import math
import struct
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401  (the oracle)
    from executorch.runtime import Runtime as WheelRuntime

from pteron import Runtime
from pteron.errors import InvalidArgumentError, NotSupportedError
from pteron.kernels import default_registry
from pteron.kernels.llm import hadamard_28
from pteron.kernels.llm_packed import linear_8bit_act, unpack
from support.one_op import ProgramBuilder, one_op

LLAMA = torch.ops.llama
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def function(name: str) -> Callable[..., Any]:
    kernel = default_registry().find(name)
    assert kernel is not None
    return kernel.function


def run_pteron(data: bytes, inputs: list[Tensor]) -> list[Tensor]:
    return Runtime.get().load_program(data).load_method("forward").execute(inputs)


def run_wheel(data: bytes, inputs: list[Tensor]) -> list[Tensor]:
    method = WheelRuntime.get().load_program(data).load_method("forward")
    assert method is not None
    return list(method.execute(inputs))


def kinds_of(args: list[Any]) -> list[str]:
    return ["float" if isinstance(a, float) else "any" for a in args]


def attend(
    q: Tensor, k: Tensor, v: Tensor, start: int, mask: Tensor | None, causal: bool
) -> Tensor:
    """Attend in float64, with loops for all that is special."""
    batch, queries, heads, size = q.shape
    keys = k.shape[1] if mask is not None else start + queries
    result = torch.zeros(q.shape, dtype=torch.float64)
    for b, h, i in product(range(batch), range(heads), range(queries)):
        shared = h // (heads // k.shape[2])
        scores = k[b, :keys, shared].double() @ q[b, i, h].double() / math.sqrt(size)
        if mask is not None:
            scores = scores + mask[i].double()
        if causal:
            scores[start + i + 1 :] = -math.inf
        result[b, i, h] = torch.softmax(scores, 0) @ v[b, :keys, shared].double()
    return result


ATTENTION = [  # queries, start, heads, key heads, causal, masked
    (1, 5, 4, 4, True, False),
    (1, 0, 4, 2, False, False),
    (6, 0, 4, 2, True, False),
    (6, 3, 4, 1, True, False),
    (6, 3, 4, 2, False, True),
    (3, 2, 2, 2, False, False),
    (40, 9, 2, 1, True, False),
]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("queries", "start", "heads", "kv", "causal", "masked"), ATTENTION)
def test_custom_sdpa(
    queries: int, start: int, heads: int, kv: int, causal: bool, masked: bool, dtype: torch.dtype
) -> None:
    length = start + queries + 4
    q = torch.randn(2, queries, heads, 8).to(dtype)
    k, v = (torch.randn(2, length, kv, 8).to(dtype) for _ in range(2))
    mask = torch.randn(queries, length) if masked else None
    args = [q, k, v, start, mask, 0.0, causal, None]
    data, inputs = one_op("llama::custom_sdpa.out", kinds_of(args), args, [q])
    (result,) = run_pteron(data, inputs)
    close = TOLERANCE[dtype]
    right = attend(q, k, v, start, mask, causal)
    torch.testing.assert_close(result.double(), right, rtol=close, atol=close)
    (theirs,) = run_wheel(data, inputs)
    torch.testing.assert_close(result, theirs, rtol=close, atol=close)


def test_custom_sdpa_takes_a_scale() -> None:
    q, k, v = torch.randn(1, 4, 2, 8), torch.randn(1, 9, 2, 8), torch.randn(1, 9, 2, 8)
    got = function("llama::custom_sdpa.out")(q, k, v, 3, None, 0.0, True, 0.3)
    want = LLAMA.custom_sdpa(q, k, v, 3, None, 0.0, True, 0.3)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([3, None, 0.0, True, None], r"positions 3 to 7 do not fit a cache of 6"),
        ([-1, None, 0.0, True, None], r"positions -1 to 3"),
        ([0, torch.zeros(4, 6), 0.0, True, None], r"exclude each other"),
        ([0, torch.zeros(4, 5), 0.0, False, None], r"\(4, 5\).*has to be \(4, 6\)"),
    ],
)
def test_custom_sdpa_names_what_does_not_fit(args: list[Any], message: str) -> None:
    q, cache = torch.randn(1, 4, 2, 8), torch.randn(1, 6, 2, 8)
    with pytest.raises(InvalidArgumentError, match=message):
        function("llama::custom_sdpa.out")(q, cache, cache, *args)


@pytest.mark.parametrize(("queries", "start", "heads", "kv", "causal", "masked"), ATTENTION)
@pytest.mark.parametrize("seq_at_dim_2", [False, True])
def test_custom_quantized_sdpa(
    queries: int, start: int, heads: int, kv: int, causal: bool, masked: bool, seq_at_dim_2: bool
) -> None:
    def quantized(length: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        shape = (2, count, length) if seq_at_dim_2 else (2, length, count)
        return (
            torch.randint(-128, 128, (*shape, 16), dtype=torch.int8),
            torch.randint(-10, 10, (*shape, 1), dtype=torch.int8),
            torch.rand(*shape, 1) * 0.02,
        )

    length = start + queries + 4
    (q, qz, qs), (k, kz, ks), (v, vz, vs) = (
        quantized(n, h) for n, h in ((queries, heads), (length, kv), (length, kv))
    )
    mask = torch.randn(queries, length) if masked else None
    args = [q, k, v, start, mask, 0.0, causal, None, qz, qs, kz, ks, vz, vs, seq_at_dim_2]
    data, inputs = one_op("llama::custom_quantized_sdpa.out", kinds_of(args), args, [q.float()])
    (result,), (theirs,) = run_pteron(data, inputs), run_wheel(data, inputs)
    torch.testing.assert_close(result, theirs, rtol=1e-5, atol=1e-5)


def with_caches(
    name: str, inputs: list[Tensor], numbers: list[Any], out: Tensor, order: str
) -> bytes:
    """Build a program whose caches are inputs and outputs; ``order`` says what follows what."""
    builder = ProgramBuilder()
    given = [builder.tensor(x, role="input") for x in inputs]
    values = iter(given)
    rest = iter(numbers)

    def take(kind: str, value: Any) -> int:
        return builder.number(value, kind="float" if kind == "f" else None)

    args = [next(values) if kind == "t" else take(kind, next(rest)) for kind in order]
    result = builder.tensor(out, role="output")
    builder.outputs += [index for index, x in zip(given, inputs, strict=True) if x.shape[1] == 12]
    builder.call(name, *args, result, result)
    return builder.finish()


@pytest.mark.parametrize(("length", "start"), [(1, 11), (5, 0), (4, 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_sdpa_with_kv_cache_writes_its_caches(length: int, start: int, dtype: torch.dtype) -> None:
    q = torch.randn(2, length, 4, 8).to(dtype)
    k, v = (torch.randn(2, length, 2, 8).to(dtype) for _ in range(2))
    caches = [torch.randn(2, 12, 2, 8).to(dtype) for _ in range(2)]
    inputs = [q, k, v, *caches]
    numbers = [start, length, None, 0.0, True, None]
    data = with_caches("llama::sdpa_with_kv_cache.out", inputs, numbers, q, "tttttnnnfnn")
    got, want = run_pteron(data, inputs), run_wheel(data, inputs)
    torch.testing.assert_close(got[0], want[0], rtol=2e-3, atol=2e-3)
    for here, there, cache, new in zip(got[1:], want[1:], caches, (k, v), strict=True):
        assert torch.equal(here, there)
        assert torch.equal(here[:, start : start + length], new)
        assert torch.equal(here[:, :start], cache[:, :start])


@pytest.mark.parametrize("start", [0, 4, 9])
def test_update_cache(start: int) -> None:
    value, cache = torch.randn(2, 3, 2, 4), torch.randn(2, 12, 2, 4)
    data = with_caches("llama::update_cache.out", [value, cache], [start], torch.zeros(1), "ttn")
    (_, got), (_, want) = run_pteron(data, [value, cache]), run_wheel(data, [value, cache])
    assert torch.equal(got, want)
    assert torch.equal(got[:, start : start + 3], value)


def test_update_cache_outside_the_cache_is_an_error() -> None:
    value, cache = torch.randn(2, 3, 2, 4), torch.randn(2, 12, 2, 4)
    for start in (10, -1):
        with pytest.raises(InvalidArgumentError, match=f"positions {start} to {start + 3}"):
            function("llama::update_cache.out")(value, cache, start, out=torch.zeros(1))
    with pytest.raises(InvalidArgumentError, match=r"\(2, 3, 2, 4\) do not fit"):
        function("llama::update_cache.out")(value, cache[:1], 0, out=torch.zeros(1))


@pytest.mark.parametrize(
    "indices", [[[0, 1, 2], [3, 4, 5]], [[11, 5, 0], [7, 1, 9]], [[3, 2, 1]] * 2]
)
def test_update_cache_with_indices(indices: list[list[int]]) -> None:
    value, cache, places = torch.randn(2, 3, 2, 4), torch.randn(2, 12, 2, 4), torch.tensor(indices)
    name = "llama::update_cache_with_indices.out"
    data = with_caches(name, [value, cache, places], [0], torch.zeros(1), "ttnt")
    given = [value, cache, places]
    (_, got), (_, want) = run_pteron(data, given), run_wheel(data, given)
    assert torch.equal(got, want)


def test_update_cache_with_an_index_outside_is_an_error() -> None:
    value, cache = torch.randn(1, 1, 2, 4), torch.randn(1, 12, 2, 4)
    for index in (12, -1):
        with pytest.raises(RuntimeError, match="out of bounds"):
            function("llama::update_cache_with_indices.out")(
                value, cache, 0, torch.tensor([[index]]), out=torch.zeros(1)
            )


class Attention(nn.Module):
    """One attention layer with caches, as ExecuTorch's llama example writes it."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 32, bias=False)
        self.fused = fused
        self.register_buffer("keys", torch.zeros(1, 12, 2, 4))
        self.register_buffer("values", torch.zeros(1, 12, 2, 4))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        start = position[0].item()
        torch._check(start >= 0)
        torch._check(start < 12)
        torch._check(start + x.size(1) <= 12)
        q, k, v = self.qkv(x).split([16, 8, 8], -1)
        q, k, v = q.view(1, -1, 4, 4), k.view(1, -1, 2, 4), v.view(1, -1, 2, 4)
        if self.fused:
            y = LLAMA.sdpa_with_kv_cache(
                q, k, v, self.keys, self.values, start, x.size(1), None, 0.0, True
            )
        else:
            LLAMA.update_cache(k, self.keys, start)
            LLAMA.update_cache(v, self.values, start)
            y = LLAMA.custom_sdpa(q, self.keys, self.values, start, None, 0.0, True)
        return y.reshape(1, -1, 16)


@pytest.mark.parametrize("fused", [True, False])
def test_cache_in_a_program_lives_from_call_to_call(fused: bool) -> None:
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    model = Attention(fused).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(
            model,
            (torch.randn(1, 3, 16), torch.tensor([2])),
            dynamic_shapes=({1: torch.export.Dim("length", min=1, max=8)}, None),
            strict=False,
        )
        config = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True)
        edge = to_edge_transform_and_lower(exported, compile_config=config)
        data = edge.to_executorch().buffer
    model.keys.zero_()
    model.values.zero_()
    method = Runtime.get().load_program(data).load_method("forward")
    calls = [(torch.randn(1, n, 16), torch.tensor([at])) for n, at in ((4, 0), (1, 4), (3, 5))]
    results = [method.execute(list(call))[0] for call in calls]
    for call, result in zip(calls, results, strict=True):
        torch.testing.assert_close(result, model(*call), rtol=1e-5, atol=1e-6)
    method.reset()
    again = method.execute(list(calls[0]))[0]
    torch.testing.assert_close(again, results[0], rtol=0, atol=0)


@pytest.mark.parametrize("size", [1, 2, 8, 128, 28, 56, 28 * 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_fast_hadamard_transform(size: int, dtype: torch.dtype) -> None:
    x = torch.randn(3, 2, size).to(dtype)
    data, inputs = one_op("llama::fast_hadamard_transform.out", ["Tensor"], [x], [x])
    (result,), (theirs,) = run_pteron(data, inputs), run_wheel(data, inputs)
    close = 1e-5 if dtype is torch.float32 else 3e-2  # theirs adds in float16
    torch.testing.assert_close(result, theirs, rtol=close, atol=close)


def test_hadamard_matrix_of_order_28_is_one() -> None:
    assert torch.equal(hadamard_28() @ hadamard_28().t(), 28 * torch.eye(28))


def test_hadamard_transform_names_a_size_that_has_none() -> None:
    with pytest.raises(InvalidArgumentError, match="not 12"):
        function("llama::fast_hadamard_transform.out")(torch.zeros(2, 12))


@pytest.mark.parametrize("name", ["gated_delta_rule", "channelwise_gated_delta_rule"])
@pytest.mark.parametrize(
    ("length", "heads", "kv", "scalar"),
    [(1, 4, 4, False), (5, 4, 2, True), (70, 2, 2, False), (3, 2, 1, False)],
)
def test_gated_delta_rule(length: int, heads: int, kv: int, scalar: bool, name: str) -> None:
    q = torch.randn(2, heads, length, 8)
    k = nn.functional.normalize(torch.randn(2, kv, length, 8), dim=-1)
    v = torch.randn(2, kv, length, 6)
    decay = torch.rand(2, kv, length) if scalar else torch.rand(2, kv, length, 8)
    args = [q, k, v, decay, torch.rand(2, kv, length), torch.randn(2, kv, 8, 6)]
    outs = [torch.zeros(2, heads, length, 6), args[-1]]
    data, inputs = one_op(f"llama::{name}.out", ["Tensor"] * 6, args, outs)
    for got, want in zip(run_pteron(data, inputs), run_wheel(data, inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("shape", "tile"), [((3, 8, 12), 4), ((1, 6, 6), 6), ((2, 4, 2), 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_tile_crop(shape: tuple[int, int, int], tile: int, dtype: torch.dtype) -> None:
    image = torch.randint(0, 200, shape).to(dtype)
    out = torch.zeros(shape[1] * shape[2] // tile**2, shape[0], tile, tile, dtype=dtype)
    data, inputs = one_op("preprocess::tile_crop.out", ["Tensor", "int"], [image, tile], [out])
    (result,), (theirs,) = run_pteron(data, inputs), run_wheel(data, inputs)
    assert torch.equal(result, theirs)
    assert torch.equal(result[0], image[:, :tile, :tile])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_fallback_copies(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, (2, 3)).to(dtype)
    data, inputs = one_op("llama::fallback.out", ["Tensor"], [x], [x])
    assert torch.equal(run_pteron(data, inputs)[0], x)


def test_alias_and_cross_attention_cache() -> None:
    x, y = torch.randn(2, 3), torch.randn(4)
    data, inputs = one_op("executorch::alias", ["Tensor"] * 2, [x, y], [[x, y]], returns="none")
    for got, want in zip(run_pteron(data, inputs), (x, y), strict=True):
        assert torch.equal(got, want)
    value, cache = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    name = "executorch::update_cross_attn_cache"
    data, inputs = one_op(name, ["Tensor"] * 2, [value, cache], [cache], returns="none")
    want = torch.ops.executorch.update_cross_attn_cache(value, cache.clone())
    assert torch.equal(run_pteron(data, inputs)[0], want)


# Packed weights


def pack(
    values: Tensor, scales: Tensor, zeros: Tensor | None, bias: Tensor | None, bits: int
) -> Tensor:
    """Pack as torchao's ``pack_weights`` does for tiles of 8 x 16 in 2 parts, value by value."""
    n, k = values.shape
    groups = scales.shape[1]
    size = k // groups
    head = [6712, 1, bits, zeros is not None, bias is not None, 8, 16, 2]
    blob = bytearray(struct.pack("<16i", *head, *[0] * 8))
    row = lambda j, column: int(values[j, column]) if j < n else 0  # noqa: E731
    for first in range(0, n, 8):
        rows = range(first, first + 8)
        for group in range(groups):
            for chunk in range(group * size, (group + 1) * size, 16):
                tile = [
                    row(j, chunk + part * 8 + i)
                    for part in range(2)
                    for j in rows
                    for i in range(8)
                ]
                if bits == 8:
                    blob += struct.pack("128b", *tile)
                else:
                    for at in range(0, 128, 32):
                        blob += bytes(
                            (tile[at + i] + 8) | (tile[at + 16 + i] + 8) << 4 for i in range(16)
                        )
            for j in rows:
                blob += struct.pack("<f", float(scales[j, group]) if j < n else 0.0)
            for j in rows:
                columns = range(group * size, (group + 1) * size)
                blob += struct.pack("<i", sum(row(j, column) for column in columns))
            if zeros is not None:
                for j in rows:
                    blob += struct.pack("<i", int(zeros[j, group]) if j < n else 0)
        if bias is not None:
            for j in rows:
                blob += struct.pack("<f", float(bias[j]) if j < n else 0.0)
    return torch.frombuffer(blob, dtype=torch.uint8).clone()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("n", "k", "groups"), [(8, 32, 1), (13, 64, 2), (3, 96, 6)])
@pytest.mark.parametrize("extras", [False, True])
def test_packed_weights_are_read_back(n: int, k: int, groups: int, bits: int, extras: bool) -> None:
    limit = 2 ** (bits - 1)
    values = torch.randint(-limit, limit, (n, k), dtype=torch.int8)
    scales = torch.rand(n, groups)
    zeros = torch.randint(-5, 5, (n, groups)) if extras else None
    bias = torch.randn(n) if extras else None
    blob = pack(values, scales, zeros, bias, bits)
    weight = unpack(blob, n, k, k // groups, bits)
    assert torch.equal(weight.values, values)
    assert torch.equal(weight.scales, scales)
    assert weight.zeros is None if zeros is None else torch.equal(weight.zeros, zeros)
    x = torch.randn(5, k)
    dense = (values - (zeros if extras else torch.zeros(n, groups)).repeat_interleave(
        k // groups, dim=1)) * scales.repeat_interleave(k // groups, dim=1)  # fmt: skip
    want = x @ dense.t() + (bias if bias is not None else 0)
    got = linear_8bit_act(x, blob, k // groups, n, k, bits=bits)
    step = float((x.amax(1) - x.amin(1)).max()) / 255  # activations are rounded to int8
    assert float((got - want).abs().max()) <= step * float(dense.abs().sum(1).max())
    assert float((got - want).norm() / want.norm()) < 0.02


def test_packed_weights_that_are_damaged_are_refused() -> None:
    blob = pack(torch.zeros(8, 32, dtype=torch.int8), torch.ones(8, 1), None, None, 4)

    def changed(at: int, number: int) -> Tensor:
        copy = blob.clone()
        copy[at : at + 4] = torch.frombuffer(
            bytearray(struct.pack("<i", number)), dtype=torch.uint8
        )
        return copy

    for damaged, error, message in (
        (blob[:40], InvalidArgumentError, "40 bytes are less than a header"),
        (blob[:-1], InvalidArgumentError, "needs 192 bytes after the header, the blob has 191"),
        (changed(0, 1), InvalidArgumentError, "magic number 1"),
        (changed(4, 3), NotSupportedError, "layout 3"),
        (changed(8, 5), InvalidArgumentError, "5-bit"),
        (changed(20, 0), InvalidArgumentError, "tiles of 0 x 16"),
        (changed(24, -16), InvalidArgumentError, "tiles of 8 x -16"),
    ):
        with pytest.raises(error, match=message):
            unpack(damaged, 8, 32, 32, 4)


@pytest.mark.parametrize(
    ("score", "biased"), [("sigmoid", True), ("sigmoid", False), ("softmax", False)]
)
@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_moe_ffn(score: str, biased: bool, bits: int) -> None:
    experts, active, dim, hidden, group, tokens = 4, 2, 32, 64, 16, 7
    limit = 2 ** (bits - 1)

    def weight(n: int, k: int) -> tuple[Tensor, Tensor]:
        values = torch.randint(-limit, limit, (n, k), dtype=torch.int8)
        scales = torch.rand(n, k // group) * 0.02 + 0.01
        dense = values * scales.repeat_interleave(group, dim=1)
        return pack(values, scales, None, None, bits), dense

    packed13, dense13 = zip(*(weight(2 * hidden, dim) for _ in range(experts)), strict=True)
    packed2, dense2 = zip(*(weight(dim, hidden) for _ in range(experts)), strict=True)
    x, gate = torch.randn(tokens, dim), torch.randn(experts, dim)
    bias = torch.randn(experts) if biased else torch.zeros(0)
    args = [
        x, gate, bias, torch.stack(packed13), torch.stack(packed2), active, experts, hidden, dim,
        group, bits, score, 2.5,
    ]  # fmt: skip
    data, inputs = one_op("llama::quantized_moe_ffn.out", kinds_of(args), args, [x])
    (result,) = run_pteron(data, inputs)

    want = torch.zeros_like(x)
    for t in range(tokens):
        scores = gate @ x[t]
        if score == "sigmoid":
            scores = torch.sigmoid(scores)
            chosen = (scores + bias if biased else scores).topk(active).indices
            weights = scores[chosen] / scores[chosen].sum() * 2.5
        else:
            chosen = scores.topk(active).indices
            weights = torch.softmax(scores[chosen], 0)
        for e, factor in zip(chosen.tolist(), weights, strict=True):
            up = dense13[e] @ x[t]
            want[t] += factor * (dense2[e] @ (nn.functional.silu(up[:hidden]) * up[hidden:]))
    torch.testing.assert_close(result, want, rtol=1e-4, atol=1e-4)


def test_every_operator_of_the_wheels_library_has_a_kernel() -> None:
    names = {
        name
        for name in WheelRuntime.get().operator_registry.operator_names
        if name.startswith(("llama::", "preprocess::"))
    }
    assert len(names) >= 11
    registry = default_registry()
    assert [name for name in sorted(names) if registry.find(name) is None] == []
