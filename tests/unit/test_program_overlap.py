"""Plans that let two values share bytes: by mistake, and the ways in which exporters mean it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support.plans import ex, kernel, plan, program, tensor, violations, write

ADD, MUL, RELU = 0, 1, 2
OPERATORS = ("aten::add.out", "aten::mul.out", "aten::relu.out")
VIEW = "executorch_prim::et_view.default"


def found(values: list[Any], steps: list[Any], **others: Any) -> list[str]:
    others.setdefault("operators", OPERATORS)
    return violations(write(program(plan(values, steps, **others), delegate_data=_blobs(others))))


def _blobs(others: dict[str, Any]) -> list[bytes]:
    return [b"blob"] if others.get("delegates") else []


def delegate() -> Any:
    return ex.BackendDelegate("B", ex.BackendDelegateDataReference(ex.DataLocation.INLINE, 0), [])


# -- mistakes -------------------------------------------------------------------------------------


def test_two_results_that_are_needed_together() -> None:
    values = [tensor(4, at=0), tensor(4, at=16), tensor(4, at=16), tensor(4, at=48), ex.Int(1)]
    steps = [kernel(RELU, 0, 1, 1), kernel(RELU, 0, 2, 2), kernel(MUL, 1, 2, 3, 3)]
    assert found(values, steps, inputs=[0], outputs=[3]) == [
        "method 'forward', planned buffer 1: %1 float32[4] planned 1+16 (in use from instruction 0 "
        "to 2) and %2 float32[4] planned 1+16 (in use from instruction 1 to 2) share bytes"
    ]
    values[2] = tensor(4, at=32)
    assert found(values, steps, inputs=[0], outputs=[3]) == []


def test_one_shared_byte_is_enough() -> None:
    values = [tensor(4, at=0), tensor(4, at=16), tensor(4, at=31), tensor(4, at=64)]
    steps = [kernel(RELU, 0, 1, 1), kernel(RELU, 0, 2, 2), kernel(MUL, 1, 2, 3, 3)]
    assert len(found(values, steps, inputs=[0], outputs=[3])) == 1


def test_other_buffers_do_not_matter() -> None:
    values = [tensor(4, at=0), tensor(4, at=16), tensor(4, at=16, buffer=2), tensor(4, at=32)]
    steps = [kernel(RELU, 0, 1, 1), kernel(RELU, 0, 2, 2), kernel(MUL, 1, 2, 3, 3)]
    assert found(values, steps, inputs=[0], outputs=[3], buffers=[0, 64, 64]) == []


def test_a_result_over_an_argument_that_is_needed_later() -> None:
    values = [tensor(4, at=0), tensor(4, at=0), tensor(4, at=16)]
    steps = [kernel(RELU, 0, 1, 1), kernel(MUL, 0, 1, 2, 2)]
    assert len(found(values, steps, inputs=[0], outputs=[2])) == 1


def test_a_result_over_a_part_of_an_argument() -> None:
    values = [tensor(4, at=0), tensor(4, at=8)]
    assert len(found(values, [kernel(RELU, 0, 1, 1)], inputs=[0], outputs=[1])) == 1


def test_two_inputs() -> None:
    values = [tensor(4, at=0), tensor(4, at=8), tensor(4, at=64)]
    assert len(found(values, [kernel(MUL, 0, 1, 2, 2)], inputs=[0, 1], outputs=[2])) == 1


def test_an_output_that_is_written_over() -> None:
    values = [tensor(4, at=0), tensor(4, at=16), tensor(4, at=16), tensor(4, at=32)]
    steps = [kernel(RELU, 0, 1, 1), kernel(RELU, 0, 2, 2), kernel(RELU, 2, 3, 3)]
    assert len(found(values, steps, inputs=[0], outputs=[1, 3])) == 1
    assert found(values, steps, inputs=[0], outputs=[3]) == []


@pytest.mark.parametrize("extra", [{"constant": 1}, {"fully_qualified_name": "state"}])
def test_state_is_in_use_all_the_time(extra: dict[str, Any]) -> None:
    """Scratch over state that is not needed any more in this call, but in the next one."""
    values = [tensor(4, at=0), tensor(4, at=16, **extra), tensor(4, at=32), tensor(4, at=16)]
    steps = [kernel(MUL, 0, 1, 2, 2), kernel(RELU, 2, 3, 3)]
    root = program(plan(values, steps, inputs=[0], outputs=[3], operators=OPERATORS))
    text = violations(write(root, mutable=[bytes(16)]))
    assert len(text) == 1
    assert "(in use from the start to the end)" in text[0]


def test_values_in_lists_are_in_use() -> None:
    values = [
        *(tensor(4, at=0), tensor(4, at=16), tensor(4, at=16), tensor(8, at=32)),
        *(ex.TensorList([1, 2]), ex.Int(0)),
    ]
    steps = [kernel(RELU, 0, 1, 1), kernel(RELU, 0, 2, 2), kernel(3, 4, 5, 3, 3)]
    operators = (*OPERATORS, "aten::cat.out")
    assert len(found(values, steps, inputs=[0], outputs=[3], operators=operators)) == 1


def test_results_of_two_delegates() -> None:
    values = [tensor(4, at=0), tensor(4, at=16), tensor(4, at=16), tensor(4, at=32)]
    steps = [ex.DelegateCall(0, [0, 1]), ex.DelegateCall(0, [0, 2]), kernel(MUL, 1, 2, 3, 3)]
    assert len(found(values, steps, inputs=[0], outputs=[3], delegates=[delegate()])) == 1


# -- on purpose -----------------------------------------------------------------------------------


def test_memory_is_used_again() -> None:
    values = [tensor(4, at=0), tensor(4, at=16), tensor(4, at=0), tensor(8, at=16), tensor(4, at=0)]
    steps = [kernel(RELU, at, at + 1, at + 1) for at in range(4)]
    assert found(values, steps, inputs=[0], outputs=[4]) == []


def test_a_result_over_an_argument_that_is_not_needed_any_more() -> None:
    values = [tensor(4, at=0), tensor(4, at=0)]
    assert found(values, [kernel(RELU, 0, 1, 1)], inputs=[0], outputs=[1]) == []


def test_a_view_over_its_base() -> None:
    values = [
        *(tensor(4, at=0), tensor(4, at=16), tensor(2, 2, at=16, dynamic=True), tensor(4, at=32)),
        *(ex.Int(2), ex.IntList([4, 4])),
    ]
    steps = [kernel(RELU, 0, 1, 1), kernel(3, 1, 5, 2), kernel(MUL, 1, 2, 3, 3)]
    operators = (*OPERATORS, VIEW)
    assert found(values, steps, inputs=[0], outputs=[2, 3], operators=operators) == []
    values[2] = tensor(2, 2, at=24, dynamic=True)  # et_view re-points it to the base's bytes
    assert found(values, steps, inputs=[0], outputs=[2, 3], operators=operators) == []
    values[3] = tensor(4, at=24)  # written over half of the base, which the view still needs
    texts = found(values, steps, inputs=[0], outputs=[2, 3], operators=operators)
    assert [("%1 " in text, "%2 " in text, "%3 " in text) for text in texts] == [
        (False, True, True),
        (True, False, True),
    ]


def test_writing_over_a_view_that_is_needed() -> None:
    values = [
        *(tensor(4, at=0), tensor(4, at=16), tensor(2, 2, at=16, dynamic=True), tensor(4, at=16)),
        *(ex.Int(2), ex.IntList([4, 4]), tensor(4, at=48)),
    ]
    steps = [
        *(kernel(RELU, 0, 1, 1), kernel(3, 1, 5, 2), kernel(RELU, 0, 3, 3)),
        kernel(MUL, 2, 3, 6, 6),
    ]
    operators = (*OPERATORS, VIEW)
    assert len(found(values, steps, inputs=[0], outputs=[6], operators=operators)) == 1


def test_a_view_whose_instruction_was_left_out() -> None:
    """The emitter leaves out static planned views: the view is a value that nothing writes."""
    values = [tensor(4, at=0), tensor(4, at=16), tensor(2, 2, at=16), tensor(2, 2, at=32)]
    steps = [kernel(RELU, 0, 1, 1), kernel(RELU, 2, 3, 3), kernel(RELU, 1, 3, 3)]
    assert found(values, steps, inputs=[0], outputs=[2, 3]) == []


def test_joining_without_copying() -> None:
    """Cadence plans the parts of a cat into their places; the operator does nothing."""
    values = [
        *(tensor(4, at=0), tensor(4, at=16), tensor(4, at=32), tensor(8, at=16)),
        *(ex.TensorList([1, 2]), ex.Int(0), tensor(4, at=48)),
    ]
    steps = [
        *(kernel(RELU, 0, 1, 1), kernel(RELU, 0, 2, 2), kernel(3, 4, 5, 3, 3)),
        kernel(MUL, 1, 2, 6, 6),
    ]
    operators = (*OPERATORS, "aten::_cat_nop.out")
    assert found(values, steps, inputs=[0], outputs=[3, 6], operators=operators) == []


def test_a_delegate_that_works_in_place() -> None:
    values = [tensor(4, at=0), tensor(4, at=0), tensor(4, at=16)]
    steps = [ex.DelegateCall(0, [0, 1]), kernel(MUL, 0, 1, 2, 2)]
    assert found(values, steps, inputs=[0], outputs=[2], delegates=[delegate()]) == []


def test_branches_of_a_cond_are_left_alone() -> None:
    """Exporters let two conds in a row share memory (case 38): execution copies (S4)."""
    values = [ex.Bool(True), tensor(4, at=0), tensor(4, at=16), tensor(4, at=16), tensor(4, at=32)]
    steps = [
        ex.JumpFalseCall(0, 2),
        *(kernel(RELU, 1, 2, 2), kernel(RELU, 1, 3, 3), kernel(MUL, 2, 3, 4, 4)),
    ]
    assert found(values, steps, inputs=[1], outputs=[4]) == []
    assert len(found(values, steps[1:], inputs=[1], outputs=[4])) == 1


def test_empty_and_unused_values_are_nowhere() -> None:
    values = [tensor(4, at=0), tensor(0, at=4), tensor(4, at=8), tensor(4, at=16)]
    steps = [kernel(MUL, 0, 1, 3, 3)]
    assert found(values, steps, inputs=[0], outputs=[3]) == []


# -- exported -------------------------------------------------------------------------------------


class State(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(2, 6))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.state.view(3, 4) + x
        self.state.view(12).add_(x.view(12))
        z = (y * 2).view(-1)
        return y, z, z.view(4, 3) + 1, self.state.view(4, 3) * 2


def test_views_of_state_and_of_results_as_exported() -> None:
    """Each view has a place and, of state, an initial value and a name of its own."""
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

    from support.exporting import quiet

    with quiet(), torch.no_grad():
        edge = to_edge(
            torch.export.export(State(), (torch.randn(3, 4),)),
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
        )
        config = ExecutorchBackendConfig(
            passes=[InitializedMutableBufferPass(["state"])], emit_mutable_buffer_names=True
        )
        data = edge.to_executorch(config).buffer
    assert violations(data) == []
