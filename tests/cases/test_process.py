"""Cases of threads, installation and metadata: what the whole process sees."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from torch import nn

from pteron import Runtime
from support import plain_programs
from support.programs import Files, export, kept


class Maybe(nn.Module):
    def forward(self, x: torch.Tensor, y: Any) -> torch.Tensor:
        return x if y is None else x + y


@kept
def with_none() -> Files:
    return export(Maybe(), (torch.ones(3), None), constant_methods={"width": 3, "name": "maybe"})


def test_case_114_two_threads_forty_runs_each() -> None:
    program = Runtime.get().load_program(plain_programs.doubled().pte)
    methods = [program.load_method(), program.new_method()]
    wrong: list[int] = []

    def work(number: int) -> None:
        for step in range(40):
            x = torch.full((2, 3), float(number * 100 + step))
            if not torch.equal(methods[number % 2].execute([x])[0], x * 2):
                wrong.append(step)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_case_111_metadata_with_none_and_of_constant_methods() -> None:
    """Found on 1.5.1 (F8): printing it raises IndexError when an input is None."""
    program = Runtime.get().load_program(with_none().pte)
    meta = program.metadata("forward")
    assert repr(meta) == (
        "MethodMeta(name='forward', num_inputs=2, input_tensor_meta=['TensorInfo(sizes=[3], "
        "dtype=Float, is_memory_planned=True, nbytes=12)', 'None'], num_outputs=1, "
        "output_tensor_meta=['TensorInfo(sizes=[3], dtype=Float, is_memory_planned=True, "
        "nbytes=12)'])"
    )
    info = meta.input_tensor_meta(0)
    assert (info.sizes(), int(info.dtype()), info.nbytes()) == ((3,), 6, 12)
    assert str(meta.input_tag(1)) == "None"
    for ask in (lambda: meta.input_tensor_meta(1), lambda: meta.output_tensor_meta(1)):
        with pytest.raises(IndexError):
            ask()
    for name, tag in (("width", "Int"), ("name", "String")):
        constant = program.metadata(name)
        assert (constant.num_inputs(), constant.num_outputs()) == (0, 1)
        assert str(constant.output_tag(0)) == tag
        assert name in repr(constant)


WITHOUT_TORCH = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, NoTorch())
import pteron
program = pteron.Runtime.get().load_program(sys.argv[1])
assert program.metadata("forward").num_inputs() == 1
try:
    program.load_method("forward")
except ImportError as error:
    print(error)
"""


def test_case_112_without_torch_reading_works_and_running_names_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(plain_programs.doubled().pte)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "torch" in done.stdout
    assert "reinstall" not in done.stdout
