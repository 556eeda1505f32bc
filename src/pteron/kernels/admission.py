"""Which of torch's operators a program may name.

torch registers more than arithmetic under the same roof: operators that write files, print, send
to other processes, switch global modes, or point a tensor at other memory. A program is data from
anywhere; what it may call takes and gives tensors, numbers and strings, and does nothing else.
"""

from __future__ import annotations

import re
from typing import Any

import torch

TORCH_INTERNAL = frozenset(
    {
        "_c10d_functional",
        "_c10d_functional_autograd",
        "_dtensor",
        "_native",
        "_quantized",
        "_test",
        "c10d",
        "debug_mode_ops",
        "debugprims",
        "export",
        "higher_order",
        "inductor",
        "inductor_prims",
        "mkl",
        "mkldnn",
        "mkldnn_prepacked",
        "onednn",
        "onnx",
        "prim",
        "profiler",
        "quantization",
        "quantized",
        "rngprims",
        "rpc",
        "sparse",
        "static_runtime",
        "symm_mem",
    }
)
"""Namespaces that torch fills for itself. Any other but ``aten`` and ``prims`` was filled by
someone who registered operators in this process."""

_VALUE = r"(Tensor|int|float|bool|number|str)"
_ADMITTED_TYPE = re.compile(
    rf"{_VALUE}|List\[{_VALUE}\]|List\[Optional\[Tensor\]\]|Optional\[{_VALUE}\]"
    rf"|Optional\[List\[{_VALUE}\]\]|Optional\[Device\]|Optional\[Generator\]"
)
_FILE_ARGUMENTS = frozenset({"filename", "path"})
_REFUSED_PREFIXES = ("_cudnn", "_nested", "_sparse", "_test", "_use_", "cudnn", "miopen", "sparse_")
"""ATen operators of other libraries' buffers and of layouts that no slot has: they trust their
arguments, as nothing but torch itself calls them."""


def is_admitted(qualified: str, overload: str, schema: Any) -> bool:
    """Whether a program may call an operator that torch has, by its name and schema."""
    namespace, _, base = qualified.partition("::")
    if namespace in TORCH_INTERNAL or base.startswith(_REFUSED_PREFIXES):
        return False
    values = (*schema.arguments, *schema.returns)
    kinds = [str(value.type) for value in values]
    if not all(_ADMITTED_TYPE.fullmatch(kind) for kind in kinds):
        return False
    if not any("Tensor" in kind for kind in kinds):
        return False
    if any(argument.name in _FILE_ARGUMENTS for argument in schema.arguments):
        return False
    packet = getattr(getattr(torch.ops, namespace), base)
    tags = getattr(packet, overload or "default").tags
    return torch.Tag.inplace_view not in tags
