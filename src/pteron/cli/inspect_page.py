"""What ``pteron inspect`` shows, from what it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from pteron.cli.inspect_facts import (
    Constant,
    DataFile,
    Delegate,
    FileFacts,
    Method,
    NamedBlob,
    Program,
    Spec,
    State,
)
from pteron.cli.native_code import NativeCode
from pteron.cli.page import Page, count, size
from pteron.cli.value_facts import Value
from pteron.program.signature import tensor_text

_T = TypeVar("_T")

_DETAILS_SHOWN = 8
"""Entries of a list about native code that are shown."""


def page_of_program(program: Program, *, top: int) -> Page:
    """Return what ``pteron inspect`` shows of a program; lists are cut at ``top`` entries."""
    page = Page()
    _show_file(page, program["file"], "ExecuTorch program", top)
    constants = [method for method in program["methods"] if _is_constant(method)]
    for method in program["methods"]:
        if method not in constants:
            _show_method(page, method)
    if constants:
        page.heading(f"{count(len(constants), 'method')} that only return constants")
        page.table(
            ("method", "returns"),
            [(m["name"], ", ".join(repr(v["literal"]) for v in m["outputs"])) for m in constants],
        )
    _show_constants(page, program["constants"], program["constant_bytes"], top)
    _show_named_data(page, program["named_data"], program["named_data_bytes"], top)
    _show_native_code(page, program["native_code"])
    for data_file in program["data_files"]:
        _show_data_file(page, data_file, top)
    return page


def page_of_data_file(data_file: DataFile, *, top: int) -> Page:
    """Return what ``pteron inspect`` shows of a data file."""
    page = Page()
    _show_data_file(page, data_file, top)
    return page


def _is_constant(method: Method) -> bool:
    """Whether a method takes nothing, does nothing and returns numbers and strings."""
    return (
        not method["num_instructions"]
        and not method["inputs"]
        and all(value["kind"] in ("int", "float", "bool", "str") for value in method["outputs"])
    )


def _show_data_file(page: Page, data_file: DataFile, top: int) -> None:
    _show_file(page, data_file["file"], "data file", top)
    _show_named_data(page, data_file["named_data"], data_file["named_data_bytes"], top)
    if data_file["native_code"]:
        _show_native_code(page, data_file["native_code"])


def _show_file(page: Page, file: FileFacts, what: str, top: int) -> None:
    page.heading(f"{file['path']}: {what}, {size(file['size_bytes'])}")
    page.line(
        f"  identifier {file['identifier']}, schema version {file['schema_version']}, flatbuffer "
        f"{size(file['flatbuffer_bytes'])}, {'with' if file['header'] else 'no'} header"
    )
    segments = [segment for segment in file["segments"] if segment["size_bytes"]]
    page.table(
        ("segment", "offset", "bytes", "holds"),
        [
            (
                str(s["index"]),
                f"{s['offset']:#x}",
                f"{s['size_bytes']:,}",
                ", ".join(s["holds"]) or "?",
            )
            for s in _cut(segments, top)
        ],
        right=(0, 1, 2),
    )
    _show_left_out(page, len(segments), top)


def _show_method(page: Page, method: Method) -> None:
    page.heading(
        f"method {method['name']}: {count(method['num_instructions'], 'instruction')}, "
        f"{count(method['num_values'], 'value')}{planned_text(method['planned_bytes'])}"
    )
    if any(value["dynamic"] for value in (*method["inputs"], *method["outputs"])):
        page.line("  <= marks an upper bound; the file does not say which dimensions are fixed")
    _show_values(page, method["inputs"], method["outputs"])
    calls = [(operator["name"], f"{operator['calls']:,}") for operator in method["operators"]]
    calls += [(f"({kind})", f"{n:,}") for kind, n in method["other_instructions"].items() if n]
    page.table(("operator", "calls"), calls, right=(1,))
    _show_delegates(page, method["delegates"])
    page.table(
        ("planned buffer", "device", "bytes", ""),
        [
            (
                str(b["index"]),
                b["device"],
                f"{b['size_bytes']:,}",
                "holds state" if b["holds_state"] else "",
            )
            for b in method["planned_buffers"]
        ],
        right=(0, 2),
    )
    _show_state(page, method["state"])
    if method["instructions"] is not None:
        page.table(("", "instruction"), _numbered(method["instructions"]), right=(0,))
    if method["values"] is not None:
        page.table(("value",), [(text,) for text in method["values"]])


def planned_text(planned_bytes: Mapping[str, int]) -> str:
    """Return ``, plans 48 bytes on cpu and 32 bytes on cuda:0``, or "" if nothing is planned."""
    planned = [f"{size(number)} on {device}" for device, number in planned_bytes.items() if number]
    return f", plans {' and '.join(planned)}" if planned else ""


def _numbered(texts: Sequence[str]) -> list[tuple[str, str]]:
    return [(str(number), text) for number, text in enumerate(texts)]


def _show_values(page: Page, inputs: Sequence[Value], outputs: Sequence[Value]) -> None:
    page.table(
        ("", "name", "what", "where"),
        [
            (f"{what} {value['position']}", value["name"] or "", value_text(value), _where(value))
            for what, values in (("input", inputs), ("output", outputs))
            for value in values
        ],
    )


def value_text(value: Value) -> str:
    """Return ``float32[1, 3]``, or the kind and the number of a value that is not a tensor."""
    if value["kind"] != "tensor":
        return (
            value["kind"] if value["literal"] is None else f"{value['kind']} {value['literal']!r}"
        )
    return tensor_text(
        value["dtype"], value["sizes"], value["dim_order"], dynamic=bool(value["dynamic"])
    )


def _where(value: Value) -> str:
    if value["kind"] != "tensor":
        return ""
    device = str(value["device"])
    if value["planned"]:
        return device
    return "unplanned" if device == "cpu" else f"unplanned, {device}"


def _show_delegates(page: Page, delegates: Sequence[Delegate]) -> None:
    page.table(
        ("delegate", "id", "runs in", "calls", "blob bytes", "compile specs"),
        [
            (
                str(d["index"]),
                d["id"],
                d["runtime"],
                str(d["calls"]),
                f"{d['blob_bytes']:,}",
                ", ".join(map(_spec_text, d["compile_specs"])),
            )
            for d in delegates
        ],
        right=(0, 3, 4),
    )


def _spec_text(spec: Spec) -> str:
    return f"{spec['key']}={spec['text'] if spec['text'] is not None else '0x' + spec['hex']}"


_INITIAL: Final = {"zero": "zero", "file": "in the program", "external": "in a data file"}


def _show_state(page: Page, state: Sequence[State]) -> None:
    page.table(
        ("state", "tensor", "bytes", "starts as", "place"),
        [
            (
                s["name"] or f"value_{s['value']}",
                tensor_text(s["dtype"], s["sizes"]),
                f"{s['size_bytes']:,}",
                _INITIAL[s["initial"]],
                "unplanned" if s["buffer"] is None else f"buffer {s['buffer']} + {s['offset']}",
            )
            for s in state
        ],
        right=(2,),
    )


def _show_constants(page: Page, constants: Sequence[Constant], total: int, top: int) -> None:
    if not constants:
        return
    page.heading(f"weights: {count(len(constants), 'constant tensor')}, {size(total)}")
    page.table(
        ("bytes", "tensor", "name", "place", "methods"),
        [
            (
                f"{c['size_bytes']:,}",
                tensor_text(c["dtype"], c["sizes"]),
                c["name"] or "",
                _constant_place(c),
                ", ".join(c["methods"]),
            )
            for c in _cut(constants, top)
        ],
        right=(0,),
    )
    _show_left_out(page, len(constants), top)
    missing = sum(constant["file"] is None for constant in constants)
    if missing:
        page.line(f"  {missing:,} of them are in a .ptd file that was not given (--data)")


def _constant_place(constant: Constant) -> str:
    if constant["place"] == "external":
        return constant["file"] or "external, not given"
    return f"{constant['place']} entry {constant['index']}"


def _show_named_data(page: Page, blobs: Sequence[NamedBlob], total: int, top: int) -> None:
    if not blobs:
        return
    page.heading(f"named data: {count(len(blobs), 'blob')}, {size(total)}")
    largest = sorted(blobs, key=lambda blob: -blob["size_bytes"])
    page.table(
        ("bytes", "what", "key"),
        [
            (f"{b['size_bytes']:,}", tensor_text(b["dtype"], b["sizes"], b["dim_order"]), b["key"])
            for b in _cut(largest, top)
        ],
        right=(0,),
    )
    _show_left_out(page, len(blobs), top)


def _show_native_code(page: Page, codes: Sequence[NativeCode]) -> None:
    if not codes:
        page.heading("native code: none")
        return
    page.heading(
        f"native code: {count(len(codes), 'piece')}; running the program runs it in the process "
        "that asks (--native-code refuse keeps it from doing so)"
    )
    for code in codes:
        lines = _native_code_lines(code)
        width = max(11, *(len(name) + 2 for name, _ in lines))
        for name, text in lines:
            page.line(f"  {name:<{width}}{text}")
        if code is not codes[-1]:
            page.line()


def _native_code_lines(code: NativeCode) -> list[tuple[str, str]]:
    lines = [("in", f"{code['place']} of {code['file']}")]
    if code["problem"] is not None:
        lines.append(("problem", code["problem"]))
    else:
        machine = f" for {code['machine']}" if code["machine"] else ""
        lines.append(("is", f"{code['kind']}{machine}, {size(code['size_bytes'])}"))
        lines.append(("sha256", str(code["sha256"])))
    if code["used_by"]:
        lines.append(("used by", "; ".join(code["used_by"])))
    lines += [(name.replace("_", " "), _detail(fact)) for name, fact in code["details"].items()]
    return lines


def _detail(fact: str | int | list[str]) -> str:
    if isinstance(fact, str):
        return fact
    if isinstance(fact, int):
        return f"{fact:,}"
    shown = ", ".join(fact[:_DETAILS_SHOWN]) or "none"
    more = len(fact) - _DETAILS_SHOWN
    return f"{shown} and {more:,} more" if more > 0 else shown


def _cut(items: Sequence[_T], top: int) -> Sequence[_T]:
    return items[:top] if top > 0 else items


def _show_left_out(page: Page, number: int, top: int) -> None:
    if 0 < top < number:
        page.line(f"  ... and {number - top:,} more (--top 0 lists all)")
