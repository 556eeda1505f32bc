"""Every architecture delegated to XNNPACK, as floats and quantized: pteron against the wheel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pteron import Runtime
from support.models import ARCHITECTURES
from support.xnnpack_check import compare, needs_wheel
from support.xnnpack_variants import kept, names

pytestmark = needs_wheel


def cases(*variants: str) -> list[Any]:
    """Return the variants of each architecture; the wheel is wrong on some."""
    found = []
    for variant in variants:
        for name in names(variant):
            reason = ARCHITECTURES[name].wheel
            marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
            values = (name,) if len(variants) == 1 else (name, variant)
            found.append(pytest.param(*values, marks=marks))
    return found


def outputs(name: str, variant: str) -> Iterator[tuple[Any, Any]]:
    """Run every input set here and in the wheel; yield both outputs."""
    from executorch.extension.pybindings.portable_lib import _load_for_executorch

    file = kept(name, variant)
    with Runtime.get().load_program(file.pte, data_path=file.ptd) as program:
        for method, spec in ARCHITECTURES[name].build().items():
            here = program.load_method(method)
            there = _load_for_executorch(str(file.pte), file.data_path)
            for inputs in spec.inputs:
                ours = [leaf.clone() for leaf in here.execute(inputs)]
                theirs = [leaf.clone() for leaf in there.run_method(method, tuple(inputs))]
                yield from zip(ours, theirs, strict=True)


@pytest.mark.parametrize("name", cases("floats"))
def test_floats(name: str) -> None:
    rtol = 1e-4 if "half" not in ARCHITECTURES[name].tags else 2e-2
    for ours, theirs in outputs(name, "floats"):
        compare([ours], [theirs], rtol=rtol)


@pytest.mark.parametrize("name", [name for name, entry in ARCHITECTURES.items() if entry.wheel])
def test_floats_agree_with_eager_where_the_wheel_is_wrong(name: str) -> None:
    file = kept(name, "floats")
    with Runtime.get().load_program(file.pte, data_path=file.ptd) as program:
        for method, spec in ARCHITECTURES[name].build().items():
            for inputs in spec.inputs:
                wanted = torch.utils._pytree.tree_leaves(spec.module(*inputs))
                compare(program.load_method(method).execute(inputs), wanted)


@pytest.mark.parametrize(
    ("name", "variant"), cases("static_int8", "dynamic_int8", "rows_by_4_bits")
)
def test_quantized(name: str, variant: str) -> None:
    """One step is the 255th part of an output's range, as if the output were of 8 bits."""
    for ours, theirs in outputs(name, variant):
        span = (theirs.double().max() - theirs.double().min()).item() if theirs.numel() else 0.0
        compare([ours], [theirs], step=max(span / 255, 1e-6))
