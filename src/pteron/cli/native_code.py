"""Machine code that a file carries: where it is, what it is for, and its digest (DESIGN, V3)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, TypedDict

from pteron.errors import PteronError
from pteron.format.ptd import PtdFile
from pteron.format.pte import PteFile
from pteron.format.schema import BackendDelegate, DataLocation, ExecutionPlan
from pteron.program.data_map import NamedDataMap

CUDA_BACKEND: Final = "CudaBackend"

_ELF_MACHINES: Final = {
    3: "x86",
    40: "arm",
    62: "x86_64",
    164: "hexagon",
    183: "aarch64",
    190: "cuda",
    243: "riscv",
}


class CudaCode(TypedDict):
    """What the shared object of a CUDA delegate says of itself."""

    payload: str
    gpu_architectures: list[str]
    kernels: list[str]
    libraries: list[str]
    undefined_symbols: int
    weight_bytes: int
    data_keys: list[str]


class NativeCode(TypedDict):
    """One piece of machine code. ``problem`` says why it could not be described."""

    place: str
    file: str
    kind: str
    machine: str | None
    size_bytes: int
    sha256: str | None
    used_by: list[str]
    cuda: CudaCode | None
    problem: str | None


def delegate_blob(pte: PteFile, delegate: BackendDelegate) -> memoryview:
    """Return a delegate's bytes, as a view of the file."""
    reference = delegate.processed
    if reference.location is DataLocation.SEGMENT:
        return pte.segment(reference.index)
    return pte.program.backend_delegate_data[reference.index]


def find_native_code(
    pte: PteFile, data_map: NamedDataMap, ptds: Sequence[PtdFile] = ()
) -> list[NativeCode]:
    """Return all machine code of a program and its data files, each once."""
    found = {code["place"]: code for code in _in_named_data(pte, ptds)}
    for plan in pte.program.execution_plan:
        for number, delegate in enumerate(plan.delegates):
            user = f"delegate {number} ({delegate.id}) of method {plan.name}"
            code = _sniff(delegate_blob(pte, delegate), _blob_place(delegate), pte.source.name)
            if delegate.id == CUDA_BACKEND:
                code = _describe_cuda(pte, plan, number, user, data_map)
            if code is not None:
                known = found.get(code["place"])
                code["used_by"] = [*(known["used_by"] if known else ()), user]
                found[code["place"]] = code
    return list(found.values())


def native_code_of_data(ptd: PtdFile) -> list[NativeCode]:
    """Return all machine code of a data file."""
    return list(_of_data(ptd))


def _in_named_data(pte: PteFile, ptds: Sequence[PtdFile]) -> Iterator[NativeCode]:
    for entry in pte.program.named_data:
        code = _sniff(pte.segment(entry.segment_index), _data_place(entry.key), pte.source.name)
        if code is not None:
            yield code
    for ptd in ptds:
        yield from _of_data(ptd)


def _of_data(ptd: PtdFile) -> Iterator[NativeCode]:
    for entry in ptd.flat_tensor.named_data:
        code = _sniff(ptd.segment(entry.segment_index), _data_place(entry.key), ptd.source.name)
        if code is not None:
            yield code


def _data_place(key: str) -> str:
    return f"named data {key!r}"


def _blob_place(delegate: BackendDelegate) -> str:
    where = "segment" if delegate.processed.location is DataLocation.SEGMENT else "inline blob"
    return f"{where} {delegate.processed.index} ({delegate.id})"


def _sniff(blob: memoryview, place: str, file: str) -> NativeCode | None:
    kind, machine = _recognise(blob)
    if not kind:
        return None
    from hashlib import sha256

    return NativeCode(
        place=place,
        file=file,
        kind=kind,
        machine=machine,
        size_bytes=blob.nbytes,
        sha256=sha256(blob).hexdigest(),
        used_by=[],
        cuda=None,
        problem=None,
    )


def _recognise(blob: memoryview) -> tuple[str, str | None]:
    """Return the kind of machine code that bytes begin with, or an empty string."""
    head = bytes(blob[:64])
    if head[:4] == b"\x7fELF" and len(head) >= 20:
        order = ">" if head[5] == 2 else "<"
        (number,) = struct.unpack_from(f"{order}H", head, 18)
        return "ELF", _ELF_MACHINES.get(number, f"machine {number}")
    if head[:4] in (b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe"):
        return "Mach-O", None
    if head[:2] == b"MZ" and len(head) == 64:
        (at,) = struct.unpack_from("<I", head, 60)
        if bytes(blob[at : at + 4]) == b"PE\0\0":
            return "PE", None
    return "", None


def _describe_cuda(
    pte: PteFile, plan: ExecutionPlan, number: int, user: str, data_map: NamedDataMap
) -> NativeCode:
    from pteron.backends.cuda.describe import describe

    delegate = plan.delegates[number]
    method_name = delegate.compile_spec("method_name") or plan.name.encode()
    try:
        code = describe(
            delegate_blob(pte, delegate),
            data_map,
            method_name=bytes(method_name).decode("utf-8", "replace"),
            where=user,
        )
    except PteronError as error:
        return NativeCode(
            place=user,
            file=pte.source.name,
            kind="not readable",
            machine=None,
            size_bytes=0,
            sha256=None,
            used_by=[],
            cuda=None,
            problem=error.message,
        )
    return NativeCode(
        place=_data_place(code.key),
        file=data_map.get(code.key).origin,
        kind="ELF",
        machine=code.machine,
        size_bytes=code.code_bytes,
        sha256=code.digest,
        used_by=[],
        cuda=CudaCode(
            payload=code.generation.value,
            gpu_architectures=list(code.architectures),
            kernels=list(code.kernels),
            libraries=list(code.libraries),
            undefined_symbols=code.undefined_count,
            weight_bytes=code.weight_bytes,
            data_keys=list(code.keys),
        ),
        problem=None,
    )
