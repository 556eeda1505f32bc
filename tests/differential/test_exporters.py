"""Programs of six releases of executorch: pteron, and the wheel, against stored eager outputs."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch

from pteron import Runtime
from pteron.errors import InvalidArgumentError, NotFoundError
from support.exporters import check
from support.exporters.kept import FORMS, KeptProgram, index, names, programs
from support.xnnpack_check import compare, needs_wheel

USABLE = [
    kept
    for kept in programs()
    if not check.is_unusable(kept) and not check.is_another_function(kept)
]

every_program = pytest.mark.parametrize("kept", [pytest.param(p, id=p.name) for p in USABLE])
on_the_wheel = pytest.mark.parametrize(
    "kept",
    [
        pytest.param(
            kept,
            id=kept.name,
            marks=[pytest.mark.xfail(reason=reason)]
            if (reason := check.wheel_reason(kept))
            else [],
        )
        for kept in USABLE
    ],
)


def those(wanted: Callable[[KeptProgram], bool]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "kept", [pytest.param(kept, id=kept.name) for kept in programs() if wanted(kept)]
    )


@pytest.mark.parametrize("optimize", [True, False], ids=["optimized", "as_the_file_has_it"])
@every_program
def test_pteron_agrees_with_eager(kept: KeptProgram, optimize: bool) -> None:
    got = check.here(kept, optimize=optimize)
    check.assert_near(kept, got, check.wanted(kept))


@needs_wheel
@on_the_wheel
def test_pteron_and_the_wheel_agree(kept: KeptProgram) -> None:
    there = check.there(kept)
    check.assert_near(kept, there, check.wanted(kept))
    check.assert_near(kept, check.here(kept), there)


@those(lambda kept: "state" in kept.entry.tags and kept.form != "static_int8")
def test_reset_begins_anew(kept: KeptProgram) -> None:
    with Runtime.get().load_program(kept.file.pte) as program:
        (name,) = kept.calls
        method = program.load_method(name)
        for _ in range(2):
            for call in kept.calls[name]:
                compare([leaf.clone() for leaf in method.execute(call.inputs)], call.outputs)
            method.reset()


@those(check.is_unusable)
def test_pteron_says_why_a_program_is_unusable(kept: KeptProgram) -> None:
    """See ``check.UNUSABLE``; the wheel refuses them by number."""
    words = {
        "map": r"the result %2 has shape \(1, 4\); the program plans it static \(5, 4\)",
        "external_weights": r"no data is called '1\.norm\.weight'",
    }
    with pytest.raises((InvalidArgumentError, NotFoundError), match=words[kept.architecture]):
        check.here(kept)


@needs_wheel
@those(check.is_unusable)
def test_the_wheel_cannot_run_it_either(kept: KeptProgram) -> None:
    with pytest.raises(RuntimeError, match=r"error: 0x(2|20)$"):
        check.there(kept)


@those(check.is_another_function)
def test_gelu_with_tanh_is_delegated_as_the_exact_gelu(kept: KeptProgram) -> None:
    """The file is at fault: both runtimes give what it says, 5e-4 from the model."""
    ((call,),) = kept.calls.values()
    exact = torch.nn.functional.gelu(*call.inputs)
    assert 4e-4 < (exact - call.outputs[0]).abs().max() < 5e-4
    check.assert_near(kept, check.here(kept), [[exact]] * 2)
    if find_spec("executorch") is not None:
        check.assert_near(kept, check.there(kept), [[exact]] * 2)


def test_every_architecture_was_exported_or_has_a_recorded_failure() -> None:
    for facts in index()["exporters"].values():
        for form in FORMS:
            made, failed = set(facts["programs"][form]), set(facts["failures"][form])
            assert not made & failed
            assert made | failed == set(names(form))
