"""Progress of long work, on stderr and only where it is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from pteron.cli.page import is_terminal


def working(what: str) -> AbstractContextManager[object]:
    """Show that something is being done until the block ends."""
    if not is_terminal(sys.stderr):
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False).status(what)


@contextmanager
def steps(number: int, what: str) -> Iterator[Iterator[int]]:
    """Count to ``number`` and show how far it is."""
    if number < 2 or not is_terminal(sys.stderr):
        yield iter(range(number))
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        yield iter(progress.track(range(number), description=what))
