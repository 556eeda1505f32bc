"""Cases of all operators of ExecuTorch's registry, by full name.

``CASES`` are those that fill tensors; ``NUMBERS`` give a number; ``VIEWS`` are primitives with
rules of their own. ``BEYOND`` are operators that the registry lacks.
"""

from __future__ import annotations

from support.operator_cases.beyond import BEYOND
from support.operator_cases.case import Case, Cases
from support.operator_cases.layers import LAYERS
from support.operator_cases.pointwise import POINTWISE
from support.operator_cases.reductions import INDEXING, MATRICES, REDUCTIONS
from support.operator_cases.scalars import NUMBERS, VIEWS
from support.operator_cases.shapes import SHAPES

__all__ = ["BEYOND", "CASES", "NUMBERS", "VIEWS", "Case", "Cases"]

CASES: dict[str, Cases] = {**POINTWISE, **REDUCTIONS, **MATRICES, **INDEXING, **SHAPES, **LAYERS}
