"""XNNPACK delegates for ``inspect``, ``verify`` and the bridge, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pteron.backends.blob_reader import BlobReader, CallShape, DelegateBlob
from pteron.backends.xnnpack.blob import read_blob
from pteron.backends.xnnpack.verify import find_violations
from pteron.errors import DelegateInvalidCompatibilityError
from pteron.program.data_map import NamedDataMap


class XnnpackReader(BlobReader):
    """Reads blobs of ``XnnpackBackend`` delegates: graphs without state and machine code."""

    keeps_state: ClassVar[bool] = False
    may_hold_code: ClassVar[bool] = False

    def violations(
        self, blob: DelegateBlob, named_data: NamedDataMap, *, is_complete: bool
    ) -> Sequence[str]:
        """Return what is wrong with the graph, and with weights if the data files were given."""
        graph = read_blob(blob.data)
        return [str(found) for found in find_violations(graph, named_data if is_complete else None)]

    def call_shape(self, blob: DelegateBlob) -> CallShape | None:
        """Return what the graph gives and which weights it names.

        None if the blob is of a version that only executorch may know.
        """
        try:
            graph = read_blob(blob.data).graph
        except DelegateInvalidCompatibilityError:
            return None
        keys = [entry.named_key for entry in graph.constants if entry.named_key]
        return CallShape(len(graph.output_ids), tuple(dict.fromkeys(keys)))
