"""Bundled programs: run the test cases that a file carries."""

from __future__ import annotations

from typing import Any

import torch

from pteron.compat.bindings import LoadedProgram, set_inputs
from pteron.compat.errors import translated
from pteron.errors import InvalidArgumentError
from pteron.format.bundled import BundledTensor, BundledValue, read_bundled
from pteron.format.source import SourceData, open_source
from pteron.memory.hierarchical_allocator import dense_strides
from pteron.memory.host_view import flat_tensor


def bundled_value(value: BundledValue) -> Any:
    """Return a value of a bundled program as a tensor of its own, or a Python number."""
    if not isinstance(value, BundledTensor):
        return value
    dtype = getattr(torch, value.scalar_type.torch_name)
    flat = flat_tensor(memoryview(bytearray(value.data)), dtype)
    strides = dense_strides(value.sizes, value.dim_order)
    return flat.to(dtype).as_strided(value.sizes, strides)


def differences(outputs: list[Any], expected: list[Any], *, rtol: float, atol: float) -> list[str]:
    """Say where outputs differ from what was expected. NaN equals NaN; integers are exact."""
    found = []
    if len(outputs) != len(expected):
        return [f"the method gave {len(outputs)} outputs, the bundle expects {len(expected)}"]
    for at, (output, wanted) in enumerate(zip(outputs, expected, strict=True)):
        if not isinstance(wanted, torch.Tensor):
            if output != wanted:
                found.append(f"output {at} is {output!r}, expected {wanted!r}")
            continue
        if (
            not isinstance(output, torch.Tensor)
            or output.dtype != wanted.dtype
            or output.shape != wanted.shape
        ):
            found.append(f"output {at} is no {wanted.dtype} tensor of shape {tuple(wanted.shape)}")
            continue
        exact = not wanted.dtype.is_floating_point
        tolerance = (0.0, 0.0) if exact else (rtol, atol)
        given = output.cpu()
        close = torch.isclose(given, wanted, rtol=tolerance[0], atol=tolerance[1], equal_nan=True)
        if not bool(close.all()):
            worst = float((given.double() - wanted.double()).abs().nan_to_num().max())
            found.append(f"output {at} differs by up to {worst:.3g} (rtol {rtol}, atol {atol})")
    return found


class BundledModule:
    """Owns a bundled program: a program, and inputs and expected outputs for its methods."""

    def __init__(self, data: SourceData) -> None:
        with translated("Failed to load bundled program"):
            self.bundle = read_bundled(open_source(data))
        self._loaded = LoadedProgram(self.bundle.program, None)

    def inputs(self, method_name: str, testset_idx: int) -> list[Any]:
        """Return the inputs of one test case."""
        case = self.bundle.test_case(method_name, testset_idx)
        return [bundled_value(value) for value in case.inputs]

    def verify_result_with_bundled_expected_output(
        self, method_name: str, testset_idx: int, rtol: float = 1e-5, atol: float = 1e-8
    ) -> list[Any]:
        """Run one test case and return its outputs; outputs that differ raise RuntimeError."""
        with translated("Method execution failed"):
            inputs = self.inputs(method_name, testset_idx)
            method = self._loaded.method(method_name)
            with self._loaded.turn(method):
                set_inputs(method, inputs)
                outputs = self._loaded.execute(method, clone_outputs=True)
        case = self.bundle.test_case(method_name, testset_idx)
        expected = [bundled_value(value) for value in case.expected_outputs]
        with translated("Result verification failed"):
            found = differences(outputs, expected, rtol=rtol, atol=atol)
            if found:
                raise InvalidArgumentError(
                    f"test case {testset_idx} of method {method_name!r}: {'; '.join(found)}"
                )
        return outputs
