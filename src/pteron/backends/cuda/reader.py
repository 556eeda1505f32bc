"""CUDA delegates for ``inspect`` and ``verify``, without torch."""

from __future__ import annotations

from collections.abc import Sequence

from pteron.backends.blob_reader import BlobReader, DelegateBlob, NativeCode
from pteron.backends.cuda.blob import parse_payload
from pteron.backends.cuda.describe import describe, method_name_of, violations
from pteron.errors import NotFoundError
from pteron.program.data_map import NamedDataMap


class CudaReader(BlobReader):
    """Reads blobs of ``CudaBackend`` delegates. Their code and weights are named data."""

    def violations(
        self, blob: DelegateBlob, named_data: NamedDataMap, *, is_complete: bool
    ) -> Sequence[str]:
        """Return what is wrong with the payload, the code, and the weights if they are there."""
        name, where = method_name_of(blob), "the delegate"
        given = named_data if is_complete else None
        found = violations(blob.data, given, method_name=name, where=where)
        if not found and not is_complete:
            try:
                describe(blob.data, named_data, method_name=name, where=where)
            except NotFoundError:  # its code is in a data file
                return ()
        return found

    def keys(self, blob: DelegateBlob) -> Sequence[str]:
        """Return all keys but that of a flat blob of weights, which the code may hold itself."""
        payload = parse_payload(blob.data, method_name=method_name_of(blob), where=blob.where)
        return [key for key in payload.keys if key != payload.weights_key]

    def native_code(self, blob: DelegateBlob, named_data: NamedDataMap) -> NativeCode:
        """Describe the shared object."""
        code = describe(blob.data, named_data, method_name=method_name_of(blob), where=blob.where)
        return NativeCode(
            key=code.key,
            kind="ELF",
            machine=code.machine,
            size_bytes=code.code_bytes,
            sha256=code.digest,
            details={
                "payload": code.generation.value,
                "gpu_architectures": list(code.architectures),
                "kernels": list(code.kernels),
                "libraries": list(code.libraries),
                "undefined_symbols": code.undefined_count,
                "weight_bytes": code.weight_bytes,
                "data_keys": list(code.keys),
            },
        )
