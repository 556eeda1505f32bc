"""2,000 damaged files: each is refused with a PteronError, or it opens, loads and runs."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from pteron import Runtime
from pteron.errors import BackendMissingError, DeviceMissingError, PteronError
from pteron.format.ptd import read_ptd
from pteron.format.schema import Tensor
from pteron.format.source import open_source
from pteron.program.constants import constant_bytes, initial_bytes
from pteron.program.data_map import NamedDataMap
from pteron.program.disasm import format_instruction, format_value
from pteron.program.method_meta import MethodMeta, Tag
from pteron.program.verify import verify_method, verify_ptd
from support.mutations import COUNTS, PROGRAMS, _bytes, mutations, open_and_verify, original
from support.plans import ScalarType, layout, write_ptd

SECONDS = 5.0
"""The longest that one file may take, on a machine that is busy with other tests."""


def use(data: bytes) -> None:
    """Go through everything that a program says, as far as the stages there are."""
    pte, verified = open_and_verify(data)
    data_map = NamedDataMap(pte)
    for plan in pte.program.execution_plan:
        repr(MethodMeta(plan))
        for index in range(len(plan.values)):
            format_value(plan, index)
        for index in range(len(plan.instructions)):
            format_instruction(plan, index)
        verify_method(pte, verified, plan.name)
        for value in plan.values:
            if isinstance(value, Tensor) and not value.is_external:
                if value.is_constant:
                    assert constant_bytes(pte, data_map, value).nbytes == value.nbytes
                elif value.has_initial_value:
                    assert initial_bytes(pte, data_map, value).nbytes == value.nbytes
    run(data)


def run(data: bytes) -> None:
    """Load every method and call it on ones; the first error goes on to the caller."""
    with Runtime.get().load_program(data) as program:
        for name in sorted(program.method_names):
            try:
                method = program.load_method(name)
            except (BackendMissingError, DeviceMissingError):  # of a delegate that nobody has
                continue
            meta = method.metadata
            method.execute([given(meta, index) for index in range(meta.num_inputs())])


def given(meta: MethodMeta, index: int) -> Any:
    """Return a value for an input; only a tensor of a sane size is made."""
    if meta.input_tag(index) is not Tag.Tensor:
        return None
    info = meta.input_tensor_meta(index)
    if info.nbytes() > MAX_INPUT_BYTES:
        raise TooLarge(f"input {index} has {info.nbytes():,} bytes")
    return torch.ones(info.sizes(), dtype=getattr(torch, info.dtype().torch_name))


class TooLarge(PteronError):
    """The test does not make an input of this size."""


MAX_INPUT_BYTES = 1 << 24


def test_there_are_two_thousand() -> None:
    assert len(PROGRAMS) * sum(COUNTS.values()) == 2000


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_undamaged_program_is_accepted(program: str) -> None:
    use(original(program))


@pytest.mark.parametrize("kind", COUNTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_damage_is_refused_or_harmless(program: str, kind: str) -> None:
    refused: list[str] = []  # the messages
    for mutation in mutations(program, kind):
        began = time.perf_counter()
        try:
            use(mutation.data)
        except PteronError as error:
            refused.append(str(error))
        except Exception as error:
            raise AssertionError(f"{mutation}: {error!r}") from error
        assert time.perf_counter() - began < SECONDS, mutation
    # Neither everything nor nothing: the damage reaches the tables, and not every bit matters.
    assert len(refused) > COUNTS[kind] // 5, refused
    assert len(refused) < COUNTS[kind], refused
    assert all(refused)


def test_damaged_data_files_are_refused_or_harmless() -> None:
    import random

    entries = {"w": (bytes(24), layout(ScalarType.FLOAT, 2, 3)), "blob": (b"anything", None)}
    data = write_ptd(entries)
    refused = 0
    for seed in range(200):
        damaged = _bytes(data, random.Random(seed))
        try:
            verify_ptd(read_ptd(open_source(damaged)))
        except PteronError:
            refused += 1
    assert 40 < refused < 200
