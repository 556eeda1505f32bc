"""Passes over a method's instructions at load: each leaves out what need not run, and says why.

``load_program(optimize=False)`` runs none of them. A pass changes no result: it asks the graph who
uses which value and which bytes, and leaves alone what it cannot prove.
"""

from __future__ import annotations

from collections.abc import Callable

from pteron.executor.passes.bind_views import bind_views
from pteron.executor.passes.elide_copies import elide_copies
from pteron.executor.passes.fold_constants import fold_constants
from pteron.executor.passes.lowering import LeftOut, Lowering, Reason

__all__ = ["PASSES", "LeftOut", "Lowering", "Reason"]

PASSES: tuple[Callable[[Lowering], None], ...] = (fold_constants, bind_views, elide_copies)
"""In the order in which they run."""
