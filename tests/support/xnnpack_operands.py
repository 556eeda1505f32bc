"""One-node XNNPACK graphs with every combination of datatypes, and what they have to compute.

The oracle takes each operand as real numbers (its elements by its own scale and zero point),
computes in float64, and quantizes the result. It shares no code with pteron's lowerings.

``PYTHONPATH=src:tests python -m support.xnnpack_operands [--every N]`` runs all combinations, each
of which has to be right or refused at load and by the verifier, and prints a table of counts.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, TypeAlias

import torch
from torch.nn import functional as F

import pteron
from pteron.errors import PteronError
from support.xnnpack_graphs import NO_VALUE, Affine, Blocks, Channels, GraphBuilder, Rows

FLOATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
BYTES = {"qint8": (torch.int8, -128, 127), "quint8": (torch.uint8, 0, 255)}
AT_RUN_TIME = ("qdint8", "qpint8")
EXTERNAL = (*FLOATS, *BYTES, "int32")
DATATYPES = (*EXTERNAL, *AT_RUN_TIME, "qint32", "qcint8", "qcint32", "qcint4", "qbint4", "pfp32")
ACTIVATIONS = (*EXTERNAL, "qdint8", "qint32", "qcint8")

ROOM = {"fp32": 2e-5, "fp16": 4e-3, "bf16": 3e-2}
"""By how much of the largest element a result may be off, by the narrowest float involved."""

STEPS = {
    "qint8": (Affine(0.043, 7), Affine(0.0871, -11), Affine(0.043, -20), Affine(0.0213, 7)),
    "quint8": (Affine(0.043, 135), Affine(0.0871, 117), Affine(0.043, 100), Affine(0.0213, 135)),
}
"""Scales and zero points: the inputs', and for outputs other ones in both, in one, in the other."""

IN_256THS = ("Convert", "LeakyReLU")
"""XNNPACK multiplies by 256ths here: many results are one step off."""

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One graph: a kind of node, its operands' datatypes (inputs first), and how they step.

    ``steps`` numbers the output's scale and zero point among :data:`STEPS`; ``own_steps`` gives an
    integer bias a scale of its own.
    """

    kind: str
    datatypes: tuple[str, ...]
    steps: int = 0
    own_steps: bool = False

    def __str__(self) -> str:
        bias = " own" if self.own_steps else ""
        return f"{self.kind}({', '.join(self.datatypes)}) steps {self.steps}{bias}"


@dataclass(frozen=True)
class Made:
    """An operand: its id, its real numbers in float64, and one step of it if it has one."""

    id: int
    real: torch.Tensor
    step: torch.Tensor | float | None = None


@dataclass
class Making:
    """A graph on its way, with what the caller has to give."""

    case: Case
    graph: GraphBuilder = field(default_factory=GraphBuilder)
    given: list[torch.Tensor] = field(default_factory=list)
    seed: int = 0

    def generator(self) -> torch.Generator:
        self.seed += 1
        return torch.Generator().manual_seed(self.seed)

    # -- operands --------------------------------------------------------------------------------

    def source(self, datatype: str, shape: Shape, *, low: float = -3.0) -> Made:
        """Add an input of the node: the caller's, or made of it, or a constant."""
        if datatype in AT_RUN_TIME:
            return self._at_run_time(datatype, shape)
        if datatype not in EXTERNAL:
            return self.constant(datatype, shape)
        tensor, real, affine = self._numbers(datatype, shape, low)
        self.given.append(tensor)
        number = self.graph.input(shape, datatype, affine)
        return Made(number, real, affine and affine.scale)

    def constant(self, datatype: str, shape: Shape, *, axis: int = 0, step: Any = None) -> Made:
        """Add a constant; ``step`` are the scales of an integer bias."""
        graph = self.graph
        if datatype in EXTERNAL or datatype == "pfp32":
            tensor, real, affine = self._numbers(datatype, shape, -1.0)
            scale = affine and affine.scale
            if affine is not None:  # filters have the zero point 0, but for unsigned ones
                affine = replace(affine, zero_point=0 if datatype == "qint8" else 131)
                real = real_of(tensor, affine)
            return Made(graph.constant(tensor, datatype, affine), real, scale)
        if datatype in ("qint32", "qcint32"):
            return self._bias(datatype, shape, step)
        low, high = (-127, 127) if datatype == "qcint8" else (0, 15)
        whole = torch.randint(low, high + 1, shape, generator=self.generator())
        each = torch.linspace(0.004, 0.02, shape[axis])
        along = [1] * len(shape)
        along[axis] = -1
        if datatype == "qcint8":
            number = graph.constant(whole.to(torch.int8), datatype, Channels(each, axis))
            return Made(number, whole * each.double().view(along), each)
        packed = (whole[..., 1::2] << 4 | whole[..., ::2]).to(torch.uint8)
        if datatype == "qcint4":
            number = graph.constant(packed, datatype, Channels(each, axis), shape=shape)
            return Made(number, (whole - 8) * each.double().view(along), each)
        blocks = torch.linspace(0.004, 0.02, shape[0] * 2).view(shape[0], 2).bfloat16()
        quantization = Blocks(blocks, shape[-1] // 2)
        number = graph.constant(packed, "qbint4", quantization, shape=shape)
        wide = blocks.double().repeat_interleave(shape[-1] // 2, 1)
        real = (whole - 8) * wide if len(shape) == 2 else whole.double()
        return Made(number, real)

    def _bias(self, datatype: str, shape: Shape, step: Any) -> Made:
        whole = torch.randint(-900, 900, shape, generator=self.generator()).to(torch.int32)
        steps = torch.as_tensor(0.001 if step is None else step, dtype=torch.float32)
        if self.case.own_steps:
            steps = steps * 1.7
        if datatype == "qint32":
            one = float(steps.max())
            return Made(
                self.graph.constant(whole, datatype, Affine(one, 0)),
                whole * torch.tensor(one, dtype=torch.float32).double(),
            )
        each = steps.expand(shape[0]).contiguous()
        real = whole * each.double() if len(shape) == 1 else whole.double()
        return Made(self.graph.constant(whole, datatype, Channels(each)), real)

    def _numbers(
        self, datatype: str, shape: Shape, low: float
    ) -> tuple[torch.Tensor, torch.Tensor, Affine | None]:
        generator = self.generator()
        if datatype in BYTES:
            dtype, least, most = BYTES[datatype]
            affine = STEPS[datatype][0]
            least = max(least, round(low / affine.scale) + affine.zero_point)
            whole = torch.randint(least, most + 1, shape, generator=generator).to(dtype)
            return whole, real_of(whole, affine), affine
        if datatype == "int32":
            whole = torch.randint(-999, 999, shape, generator=generator).to(torch.int32)
            return whole, whole.double(), None
        numbers = torch.rand(shape, generator=generator) * (3.0 - low) + low
        numbers = numbers.to(FLOATS.get(datatype, torch.float32))
        return numbers, numbers.double(), None

    def _at_run_time(self, datatype: str, shape: Shape) -> Made:
        x = torch.randn(shape, generator=self.generator()) * 2
        self.given.append(x)
        dims = 3 if "Conv" in self.case.kind else 1
        source = self.graph.input(shape)
        number = self.graph.value(shape, datatype, Rows(dims))
        self.graph.unary("Convert", source, number)
        over = 1 if self.case.kind == "Conv2d 1x1" else dims
        return Made(number, quantized_at_run_time(x, over))

    def target(self, datatype: str, shape: Shape) -> int:
        """Add the node's output. What no caller can take is read by one more node."""
        graph = self.graph
        if datatype in EXTERNAL:
            return graph.output(shape, datatype, self.output_steps(datatype))
        quantization: Any = None
        if datatype in AT_RUN_TIME:
            quantization = Rows(1)
        elif datatype == "qint32":
            quantization = Affine(0.1, 0)
        elif datatype.startswith("qc"):
            quantization = Channels(torch.full((shape[0],), 0.1))
        elif datatype == "qbint4":
            quantization = Blocks(torch.full((shape[0], 2), 0.1), max(1, shape[-1] // 2))
        return graph.value(shape, datatype, quantization)

    def finish(self, datatype: str, number: int, shape: Shape) -> None:
        """Read an output that the caller cannot take."""
        graph = self.graph
        if datatype in EXTERNAL:
            return
        target = graph.output(shape)
        if datatype not in AT_RUN_TIME:
            graph.unary("Convert", number, target)
            return
        one = torch.eye(shape[-1]).mul(127).to(torch.int8)
        each = torch.full((shape[-1],), 1 / 127)
        weights = graph.constant(one, "qcint8", Channels(each))
        graph.linear(number, weights, None, target)

    def output_steps(self, datatype: str) -> Affine | None:
        return STEPS[datatype][self.case.steps] if datatype in STEPS else None


def real_of(whole: torch.Tensor, affine: Affine) -> torch.Tensor:
    """Dequantize, in float32 as everybody does, for what comes of it in float64."""
    return ((whole.float() - affine.zero_point) * affine.scale).double()


def quantized_at_run_time(x: torch.Tensor, dims: int) -> torch.Tensor:
    """Return what is left of numbers after 8 bits with a range for each row of ``dims``."""
    rows = x.double().flatten(-dims) if dims > 1 else x.double()
    low, high = rows.amin(-1, True).clamp(max=0), rows.amax(-1, True).clamp(min=0)
    scale = (high - low) / 255
    zero = (-128 - low / scale).round().clamp(-128, 127)
    whole = (rows / scale + zero).round().clamp(-128, 127)
    return ((whole - zero) * scale).view(x.shape)


# -- kinds ----------------------------------------------------------------------------------------

Function: TypeAlias = Callable[..., torch.Tensor]

UNARY: dict[str, tuple[Function, float, dict[str, Any]]] = {
    "Abs": (torch.abs, -3, {}),
    "Ceiling": (torch.ceil, -3, {}),
    "Cos": (torch.cos, -3, {}),
    "ELU": (lambda x: F.elu(x, 0.7), -3, {"alpha": 0.7}),
    "Exp": (torch.exp, -3, {}),
    "Floor": (torch.floor, -3, {}),
    "Gelu": (F.gelu, -3, {}),
    "Hardswish": (F.hardswish, -3, {}),
    "LeakyReLU": (lambda x: F.leaky_relu(x, 0.3), -3, {"negative_slope": 0.3}),
    "Log": (torch.log, 0.3, {}),
    "Negate": (torch.neg, -3, {}),
    "ReciprocalSquareRoot": (torch.rsqrt, 0.3, {}),
    "Sigmoid": (torch.sigmoid, -3, {}),
    "Sin": (torch.sin, -3, {}),
    "Square": (torch.square, -3, {}),
    "SquareRoot": (torch.sqrt, 0.3, {}),
    "Tanh": (torch.tanh, -3, {}),
    "Softmax": (lambda x: torch.softmax(x, -1), -3, {}),
    "Copy": (lambda x: x, -3, {}),
    "Convert": (lambda x: x, -3, {}),
    "Clamp": (lambda x: x.clamp(-1, 2), -3, {"low": -1.0, "high": 2.0}),
    "StaticTranspose": (lambda x: x.permute(2, 0, 1), -3, {"num_dims": 3, "perm": [2, 0, 1]}),
    "StaticReshape": (lambda x: x.reshape(4, 12), -3, {"num_dims": 2, "new_shape": [4, 12]}),
    "StaticSlice": (
        lambda x: x[:, 1:3, 2:7],
        -3,
        {"num_dims": 3, "offsets": [0, 1, 2], "sizes": [0, 2, 5]},
    ),
    "StaticConstantPad": (
        lambda x: F.pad(x, (2, 1, 0, 0, 1, 0), value=0.4),
        -3,
        {"pre_paddings": [1, 0, 2], "post_paddings": [0, 0, 1], "padding_value": 0.4},
    ),
}
BINARY: dict[str, tuple[Function, float]] = {
    "Add": (torch.add, -3),
    "Subtract": (torch.sub, -3),
    "Multiply": (torch.mul, -3),
    "Div": (torch.div, 0.3),
    "Minimum": (torch.minimum, -3),
    "Maximum": (torch.maximum, -3),
    "PReLU": (lambda x, slope: torch.where(x < 0, x * slope, x), -3),
}


def _nchw(function: Function) -> Function:
    return lambda *images: function(*(x.permute(0, 3, 1, 2) for x in images)).permute(0, 2, 3, 1)


_POOL = {
    **dict.fromkeys(("padding_top", "padding_right", "padding_bottom", "padding_left"), 1),
    "pooling_height": 3,
    "pooling_width": 2,
    "stride_height": 2,
    "stride_width": 1,
}
IMAGES: dict[str, tuple[Function, dict[str, Any]]] = {
    "MaxPooling2d": (
        _nchw(lambda x: F.max_pool2d(x, (3, 2), (2, 1), 1)),
        {**_POOL, "dilation_height": 1, "dilation_width": 1},
    ),
    "AvgPooling2d": (
        _nchw(lambda x: F.avg_pool2d(x, (3, 2), (2, 1), 1, count_include_pad=False)),
        {**_POOL, "dilation_height": 0, "dilation_width": 0},
    ),
    "GlobalAvgPooling2d": (lambda x: x.mean((1, 2), keepdim=True), {"flags": 64}),
    "StaticResizeBilinear2D": (
        _nchw(lambda x: F.interpolate(x, (10, 7), mode="bilinear")),
        {"new_height": 10, "new_width": 7},
    ),
}
CONVOLUTIONS: dict[str, tuple[Shape, int, dict[str, Any]]] = {
    "Conv2d": ((6, 3, 3, 4), 0, {"channels": (4, 6), "kernel": (3, 3)}),
    "Conv2d 1x1": ((6, 1, 1, 4), 0, {"channels": (4, 6), "kernel": (1, 1)}),
    "DepthwiseConv2d": ((1, 3, 3, 4), 3, {"channels": (1, 1), "groups": 4, "kernel": (3, 3)}),
    "ConvTranspose2d": ((6, 3, 3, 4), 0, {"channels": (4, 6), "kernel": (3, 3)}),
}


def _convolved(kind: str, x: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
    x = x.permute(0, 3, 1, 2)
    if kind == "DepthwiseConv2d":
        result = F.conv2d(x, filters.permute(3, 0, 1, 2), groups=4)
    elif kind == "ConvTranspose2d":
        result = F.conv_transpose2d(x, filters.permute(3, 0, 1, 2))
    else:
        result = F.conv2d(x, filters.permute(0, 3, 1, 2))
    return result.permute(0, 2, 3, 1)


# -- graphs ---------------------------------------------------------------------------------------


def build(case: Case) -> tuple[bytes, list[torch.Tensor], torch.Tensor]:
    """Return a program, its inputs, and the real numbers that it has to compute."""
    making = Making(case)
    make = _MAKERS.get(case.kind)
    if make is None:
        make = _make_concatenate if case.kind.startswith("Concatenate") else _MAKERS["Conv2d"]
    real = make(making)
    return making.graph.program(), making.given, real


def _put(making: Making, real: torch.Tensor, record: Callable[[int], None]) -> torch.Tensor:
    datatype, shape = making.case.datatypes[-1], tuple(real.shape)
    target = making.target(datatype, shape)
    record(target)
    making.finish(datatype, target, shape)
    return quantized_at_run_time(real, 1) if datatype in AT_RUN_TIME else real


def _make_unary(making: Making) -> torch.Tensor:
    kind = making.case.kind
    function, low, options = UNARY[kind]
    x = making.source(making.case.datatypes[0], (2, 3, 8), low=low)
    return _put(
        making,
        function(x.real),
        lambda target: making.graph.unary(kind, x.id, target, **options),
    )


def _make_binary(making: Making) -> torch.Tensor:
    kind = making.case.kind
    function, low = BINARY[kind]
    x = making.source(making.case.datatypes[0], (2, 3, 8))
    y = making.source(making.case.datatypes[1], (3, 8), low=low)
    return _put(
        making,
        function(x.real, y.real),
        lambda target: making.graph.binary(kind, x.id, y.id, target),
    )


def _make_image(making: Making) -> torch.Tensor:
    kind = making.case.kind
    function, options = IMAGES[kind]
    x = making.source(making.case.datatypes[0], (2, 6, 5, 4))
    return _put(
        making,
        function(x.real),
        lambda target: making.graph.node(kind, input_id=x.id, output_id=target, **options),
    )


def _make_concatenate(making: Making) -> torch.Tensor:
    sources = [
        making.source(datatype, (2, 1 + index, 4))
        for index, datatype in enumerate(making.case.datatypes[:-1])
    ]
    ids = {f"input{i + 1}_id": sources[i].id if i < len(sources) else NO_VALUE for i in range(5)}
    return _put(
        making,
        torch.cat([source.real for source in sources], 1),
        lambda target: making.graph.node(making.case.kind, axis=1, output_id=target, **ids),
    )


def _product_step(x: Made, weights: Made) -> Any:
    """Return the scale that an exporter gives a bias: input scale by weight scale."""
    if x.step is None or weights.step is None:
        return None
    return torch.as_tensor(x.step, dtype=torch.float32) * torch.as_tensor(weights.step)


def _make_linear(making: Making) -> torch.Tensor:
    first, second, *bias_type, _ = making.case.datatypes
    x = making.source(first, (4, 32))
    weights = making.constant(second, (8, 32))
    real = x.real @ weights.real.t()
    bias = None
    if bias_type:
        bias = making.constant(bias_type[0], (8,), step=_product_step(x, weights))
        real = real + bias.real
    return _put(
        making,
        real,
        lambda target: making.graph.linear(x.id, weights.id, bias and bias.id, target),
    )


def _make_convolution(making: Making) -> torch.Tensor:
    name = making.case.kind
    first, second, *bias_type, _ = making.case.datatypes
    shape, axis, options = CONVOLUTIONS[name]
    x = making.source(first, (2, 6, 5, 4))
    weights = making.constant(second, shape, axis=axis)
    kind = name.split()[0]
    real = _convolved(kind, x.real, weights.real)
    bias = None
    if bias_type:
        count = (real.shape[-1],)
        bias = making.constant(bias_type[0], count, step=_product_step(x, weights))
        real = real + bias.real
    return _put(
        making,
        real,
        lambda target: making.graph.conv(
            kind, (x.id, weights.id, bias and bias.id, target), **options
        ),
    )


def _make_matrices(making: Making) -> torch.Tensor:
    x = making.source(making.case.datatypes[0], (2, 3, 6))
    y = making.source(making.case.datatypes[1], (2, 6, 4))
    return _put(
        making,
        x.real @ y.real,
        lambda target: making.graph.binary("BatchMatrixMultiply", x.id, y.id, target),
    )


_MAKERS: dict[str, Callable[[Making], torch.Tensor]] = {
    **dict.fromkeys(UNARY, _make_unary),
    **dict.fromkeys(BINARY, _make_binary),
    **dict.fromkeys(IMAGES, _make_image),
    **dict.fromkeys(CONVOLUTIONS, _make_convolution),
    "FullyConnected": _make_linear,
    "BatchMatrixMultiply": _make_matrices,
}


# -- checking -------------------------------------------------------------------------------------


def check(case: Case) -> str:
    """Return "right" or "refused", or raise AssertionError: there is nothing else."""
    program, given, real = build(case)
    violations = _violations(program)
    try:
        with pteron.Runtime.get().load_program(program) as loaded:
            method = loaded.load_method("forward")
            assert not violations, f"{case}: loaded, but the verifier says {violations[0]}"
            (found,) = (tensor.clone() for tensor in method.execute(given))
    except PteronError as error:
        if not violations:
            raise AssertionError(f"{case}: refused, but not by the verifier") from error
        return "refused"
    _compare(case, found, real)
    return "right"


def _violations(program: bytes) -> tuple[str, ...]:
    from pteron.backends.xnnpack.blob import read_blob
    from pteron.backends.xnnpack.verify import find_violations

    at = program.index(b"XH00") - 4
    return tuple(map(str, find_violations(read_blob(memoryview(program)[at:]), None)))


def _compare(case: Case, found: torch.Tensor, real: torch.Tensor) -> None:
    datatype = case.datatypes[-1]
    assert found.shape == real.shape, f"{case}: {tuple(found.shape)}"
    if datatype in BYTES:
        affine = STEPS[datatype][case.steps]
        _, least, most = BYTES[datatype]
        wanted = ((real / affine.scale).round() + affine.zero_point).clamp(least, most)
        apart = (found.double() - wanted).abs()
        assert apart.max() <= 1, f"{case}: {apart.max()} steps apart"
        if not case.kind.startswith(IN_256THS):
            share = (apart > 0).double().mean()
            assert share <= 0.05, f"{case}: {share:.0%} are one step apart"
        return
    room = max(ROOM.get(name, 0) for name in (*case.datatypes, "fp32"))
    if any(name in AT_RUN_TIME for name in case.datatypes):
        room = max(room, 3e-3)
    largest = float(real.abs().max())
    apart = (found.double() - real).abs().max() / max(largest, 1e-6)
    assert apart <= room, f"{case}: {apart:.2g} of the largest apart"


# -- all of them ----------------------------------------------------------------------------------

_INPUTS = ("fp32", "fp16", "bf16", "qint8", "quint8", "qdint8", "qpint8", "int32")
_FILTERS = ("fp32", "fp16", "bf16", "qint8", "quint8", "qcint8", "qcint4", "qbint4", "qint32")
_BIASES = (None, "fp32", "fp16", "bf16", "qint32", "qcint32", "qint8", "int32")
_OUTPUTS = ("fp32", "fp16", "bf16", "qint8", "quint8", "qdint8")


def all_cases() -> Iterator[Case]:
    """Give every combination of kinds, datatypes and scales."""
    for kind in (*UNARY, *IMAGES):
        yield from _stepped(kind, product(DATATYPES, DATATYPES))
    for kind in (*BINARY, "BatchMatrixMultiply", "Concatenate2"):
        yield from _stepped(kind, product(ACTIVATIONS, repeat=3))
    for count in (3, 4, 5):
        same = [(datatype,) * (count + 1) for datatype in DATATYPES]
        odd = [(*(first,) * count, last) for first, last in product(EXTERNAL, EXTERNAL)]
        yield from _stepped(f"Concatenate{count}", (*same, *odd))
    for kind in ("FullyConnected", *CONVOLUTIONS):
        combinations = product(_INPUTS, _FILTERS, _BIASES, _OUTPUTS)
        yield from _stepped(kind, (tuple(filter(None, each)) for each in combinations))


def _stepped(kind: str, combinations: Any) -> Iterator[Case]:
    for datatypes in combinations:
        case = Case(kind, tuple(datatypes))
        yield case
        if len(datatypes) == 4 and datatypes[2] in ("qint32", "qcint32"):
            yield replace(case, own_steps=True)
        if datatypes[-1] in BYTES and datatypes[0] in BYTES:
            for steps in (1, 2, 3):
                yield replace(case, steps=steps)


def run(cases: Sequence[Case]) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Check cases; return counts by kind and outcome, and what is neither right nor refused."""
    counts: Counter[tuple[str, str]] = Counter()
    failures: list[str] = []
    for case in cases:
        try:
            outcome = check(case)
        except Exception as error:  # noqa: BLE001
            outcome = "wrong"
            failures.append(f"{type(error).__name__}: {case}: {error}")
        counts[case.kind, outcome] += 1
    return counts, failures


def main() -> int:
    """Run all combinations, or every n-th."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--kind", help="only this kind of node")
    options = parser.parse_args()
    cases = [case for case in all_cases() if options.kind in (None, case.kind)][:: options.every]
    counts, failures = run(cases)
    for failure in failures:
        sys.stdout.write(failure.splitlines()[0] + "\n")
    sys.stdout.write("| kind | right | refused | wrong |\n|---|---|---|---|\n")
    for kind in dict.fromkeys(case.kind for case in cases):
        row = [str(counts[kind, outcome]) for outcome in ("right", "refused", "wrong")]
        sys.stdout.write(f"| {kind} | {' | '.join(row)} |\n")
    total = [
        sum(n for (_, o), n in counts.items() if o == outcome)
        for outcome in ("right", "refused", "wrong")
    ]
    sys.stdout.write(f"| all | {' | '.join(map(str, total))} |\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
