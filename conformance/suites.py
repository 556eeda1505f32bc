"""The peer's test suites that reach its runtime: where they are, and what they show."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Suite:
    """Some of the peer's tests. Paths count from the installed ``executorch`` package."""

    name: str
    shows: str
    paths: tuple[str, ...]
    options: tuple[str, ...] = ()
    quick: bool = False
    """Whether it takes about a minute."""
    plugin_alone: bool = False
    """Whether pteron's plugin is all it needs; other suites may call delegates of the peer's tests,
    which ``conformance/backends.py`` runs."""
    snapshot: bool = False
    """Whether the wheel lacks the files: they are taken from a checkout (``--snapshot``)."""


_TRANSFORMS = "backends/transforms/test"
_EXIR = "exir/tests"
_XNNPACK_OPS = "backends/xnnpack/test/ops"
_LAYOUTS = (
    "clone",
    "div",
    "elu",
    "gelu",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "maximum",
    "minimum",
    "permute",
    "pow",
    "slice_copy",
    "tanh",
    "to_copy",
)
_CONVOLUTIONS = ("batch_norm", "conv1d", "conv2d")
_MATRICES = ("bmm", "linear")
_FUNCTIONS = (
    "abs",
    "ceil",
    "clamp",
    "cos",
    "exp",
    "floor",
    "log",
    "negate",
    "relu",
    "rsqrt",
    "sigmoid",
    "sin",
    "sqrt",
    "square",
)


def _xnnpack_ops(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{_XNNPACK_OPS}/test_{name}.py" for name in names)


SUITES: tuple[Suite, ...] = (
    Suite(
        "pybindings",
        "the binding surface: both loaders, error classes, metadata, data files, devices",
        ("extension/pybindings/test/test_pybindings.py",),
        quick=True,
        plugin_alone=True,
    ),
    Suite(
        "backend names",
        "names and availability of backends",
        ("extension/pybindings/test/test_backend_pybinding.py",),
        quick=True,
    ),
    Suite(
        "runtime",
        "`executorch.runtime`: kinds of input, operator names",
        ("runtime/test/test_runtime.py",),
        quick=True,
    ),
    Suite(
        "runtime xnnpack",
        "small XNNPACK programs from file",
        ("runtime/test/test_runtime_xnnpack.py",),
        quick=True,
    ),
    Suite(
        "runtime etdump",
        "ETDump files, and the buffer of values",
        ("runtime/test/test_runtime_etdump_gen.py",),
        quick=True,
    ),
    Suite(
        "bundled program",
        "a bundle's test cases are verified",
        ("devtools/bundled_program/test",),
        quick=True,
    ),
    Suite(
        "inspector",
        "intermediate outputs of a run line up with the exported graph",
        ("devtools/inspector/tests/inspector_test.py",),
        quick=True,
    ),
    Suite(
        "exir emit",
        "control flow, mutable buffers, several methods, external data, initial state",
        ("exir/emit/test",),
        quick=True,
    ),
    Suite("exir program", "export of several methods, and one run", ("exir/program/test",)),
    Suite(
        "exir backend",
        "delegate calls, with the demo delegates registered from Python",
        ("exir/backend/test",),
        ("--ignore=exir/backend/test/demos/test_delegate_aten_mode.py",),
    ),
    Suite(
        "exir tests, runtime part",
        "banked planning, joint graphs, dim-order operators, reinplacing, unused parameters",
        tuple(
            f"{_EXIR}/test_{name}.py"
            for name in (
                "banked_memory_planning",
                "joint_graph",
                "legalize_portable_dim_order_pass",
                "reinplace_pass",
                "remove_unused_parameters_pass",
            )
        ),
    ),
    Suite(
        "memory format",
        "`_to_dim_order_copy`, channels last (4 need torchvision)",
        (f"{_EXIR}/test_memory_format_ops_pass.py",),
        ("-p", "conformance.without_torchvision"),
    ),
    Suite(
        "transforms",
        "created mutable buffers; channels-last decomposition",
        (
            f"{_TRANSFORMS}/test_create_mutable_buffer.py",
            f"{_TRANSFORMS}/test_decompose_channels_last_pass.py",
        ),
    ),
    Suite(
        "grid sampler",
        "one kernel in three element types",
        ("kernels/portable/test/test_grid_sampler_2d_executorch.py",),
    ),
    Suite(
        "training",
        "weights as outputs over the method's memory; an optimizer's step changes them",
        ("extension/training/pybindings/test/test.py",),
        quick=True,
    ),
    Suite(
        "llm custom ops",
        "gated delta in a program",
        ("extension/llm/custom_ops",),
    ),
    Suite(
        "intermediate tap",
        "tapped XNNPACK programs return more outputs",
        ("devtools/intermediate_output_tap/tests",),
    ),
    Suite(
        "xnnpack partitioner",
        "delegates and portable operators in one program",
        ("backends/xnnpack/test/test_xnnpack_partitioner.py",),
    ),
    Suite(
        "xnnpack ops, functions of elements",
        "in fp32, fp16 and int8",
        _xnnpack_ops(_FUNCTIONS),
    ),
    Suite(
        "xnnpack ops, activations and layouts",
        "the same, with minimum, maximum and quotient",
        _xnnpack_ops(_LAYOUTS),
    ),
    Suite(
        "xnnpack ops, convolutions",
        "in one and two dimensions, transposed, fused, dynamic and static int8",
        _xnnpack_ops(_CONVOLUTIONS),
    ),
    Suite(
        "xnnpack ops, matrices",
        "linear in fp32, fp16, dynamic and static int8, 4 bit; batches (the peer passes over them)",
        _xnnpack_ops(_MATRICES),
    ),
    Suite(
        "xnnpack ops, the rest",
        "in fp32, fp16 and int8: sums, products, concatenation, pools, softmax, pads",
        (_XNNPACK_OPS,),
        tuple(
            f"--ignore={path}"
            for path in _xnnpack_ops((*_FUNCTIONS, *_LAYOUTS, *_CONVOLUTIONS, *_MATRICES))
        ),
    ),
    Suite("xnnpack passes", "fused graphs; data files", ("backends/xnnpack/test/passes",)),
    Suite(
        "operators, portable flow",
        "80 operator files against eager PyTorch",
        ("backends/test/suite/operators",),
        ("-m", "flow_portable"),
    ),
    Suite(
        "operators, xnnpack flow",
        "the same, delegated",
        ("backends/test/suite/operators",),
        ("-m", "flow_xnnpack"),
    ),
    Suite(
        "operators, xnnpack static int8 flow",
        "the same, quantized by channel",
        ("backends/test/suite/operators",),
        ("-m", "flow_xnnpack_static_int8_per_channel"),
    ),
    Suite(
        "xnnpack recipes",
        "quantized recipes on small models; serialized graphs (some need torchvision)",
        ("backends/xnnpack/test/recipes", "backends/xnnpack/test/serialization"),
    ),
    Suite("export recipes", "which backends are there", ("export/tests",)),
    Suite(
        "bitwise shift",
        "integer kernels from file",
        ("kernels/test/test_bitwise_shift.py",),
        snapshot=True,
    ),
    Suite(
        "end to end",
        "the older export path, dynamic shapes",
        ("test/end2end/test_end2end.py",),
        snapshot=True,
    ),
    Suite(
        "temp allocator",
        "large scratch",
        ("test/end2end/test_temp_allocator_fix.py",),
        snapshot=True,
    ),
)

NOT_THE_RUNTIME = {
    "llm runner": "extension/llm/runner: uses `_llm_runner`, a binding of its own",
}


def by_name(names: list[str]) -> list[Suite]:
    """Return suites by name; ``quick`` stands for the quick ones, nothing for all."""
    if not names:
        return list(SUITES)
    known = {suite.name: suite for suite in SUITES}
    found = []
    for name in names:
        if name == "quick":
            found += [suite for suite in SUITES if suite.quick]
        elif name in known:
            found.append(known[name])
        else:
            raise SystemExit(f"no suite {name!r}; there are: quick, {', '.join(known)}")
    return found
