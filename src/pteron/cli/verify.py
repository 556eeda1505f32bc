"""``pteron verify``: everything that is wrong with a file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TypedDict

from pteron.cli.files import add_data, is_data_file, open_data, working
from pteron.cli.native_code import NativeCode, find_native_code, native_code_of_data
from pteron.cli.page import Page, count, show_json, size
from pteron.errors import PteronError
from pteron.format.ptd import PtdFile, read_ptd
from pteron.format.pte import PteFile, read_pte
from pteron.format.schema import ExecutionPlan, Tensor
from pteron.format.source import ByteSource, open_source
from pteron.limits import MAX_VIOLATIONS_REPORTED
from pteron.program.constants import constant_bytes, initial_bytes
from pteron.program.data_map import NamedDataMap
from pteron.program.disasm import format_value
from pteron.program.verify import Violation, find_ptd_violations, find_violations

HELP = f"""\
Check files completely and list everything that is wrong with them: every offset, size, index and
name of programs (.pte) and data files (.ptd), the overlap of planned memory, the weights that a
program expects in its data files, and the delegates' blobs as far as pteron knows their format.

Nothing is run. At most {MAX_VIOLATIONS_REPORTED} violations of a file are listed. Machine code
that a file carries is shown with its SHA-256, so that you can decide whether to trust it.
"""

EXAMPLES = """\
examples:
  pteron verify model.pte
  pteron verify model.pte --data weights.ptd      the weights are checked too
  pteron verify *.pte --json

exit codes: 0 if all files are sound, 1 if one is not
"""


class Problem(TypedDict):
    """One violation; ``method`` and ``instruction`` where it is about one."""

    where: str
    message: str
    method: str | None
    instruction: int | None


class Report(TypedDict):
    """One file."""

    path: str
    kind: str
    ok: bool
    violations: list[Problem]
    native_code: list[NativeCode]
    not_checked: list[str]
    """What could not be checked, because a data file was not given."""


class Reports(TypedDict):
    """The root of ``--json``."""

    json_version: int
    files: list[Report]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="programs (.pte) and data files (.ptd)"
    )
    add_data(parser)
    parser.add_argument(
        "--json", action="store_true", help="write what was found as JSON (default: text)"
    )


def run(args: argparse.Namespace) -> int:
    """Check the files and tell what was found."""
    ptds = open_data(args.data)
    reports = [_open_and_check(path, ptds) for path in args.files]
    if args.json:
        show_json(Reports(json_version=2, files=reports))
    else:
        _page(reports).show()
    return 0 if all(report["ok"] for report in reports) else 1


def _open_and_check(path: str, ptds: Sequence[PtdFile]) -> Report:
    """Check one file; one that cannot be opened is reported like one that is damaged."""
    try:
        source = open_source(path)
    except PteronError as error:
        return Report(
            path=path,
            kind="unreadable",
            ok=False,
            violations=[_problem(error)],
            native_code=[],
            not_checked=[],
        )
    return _check(source, ptds)


def _check(source: ByteSource, ptds: Sequence[PtdFile]) -> Report:
    report = Report(
        path=source.name,
        kind="data" if is_data_file(source) else "program",
        ok=True,
        violations=[],
        native_code=[],
        not_checked=[],
    )
    try:
        if report["kind"] == "data":
            _check_data_file(source, report)
        else:
            _check_program(source, ptds, report)
    except PteronError as error:
        report["violations"].append(_problem(error))
    report["ok"] = not report["violations"]
    return report


def _check_data_file(source: ByteSource, report: Report) -> None:
    ptd = read_ptd(source)
    report["violations"] += map(_from_violation, find_ptd_violations(ptd))
    if not report["violations"]:
        report["native_code"] = native_code_of_data(ptd)


def _check_program(source: ByteSource, ptds: Sequence[PtdFile], report: Report) -> None:
    with working(source):
        pte = read_pte(source)
        found = find_violations(pte)
    report["violations"] += map(_from_violation, found)
    if found:
        return
    data_map = NamedDataMap(pte, ptds)
    for plan in pte.program.execution_plan:
        report["violations"] += _check_external(pte, plan, data_map, report, given=bool(ptds))
        report["violations"] += _check_blobs(pte, plan, data_map, given=bool(ptds))
    report["native_code"] = find_native_code(pte, data_map, ptds)


def _check_external(
    pte: PteFile, plan: ExecutionPlan, data_map: NamedDataMap, report: Report, *, given: bool
) -> Iterator[Problem]:
    """Check the tensors that are kept outside against the data files."""
    for index, tensor in enumerate(plan.values):
        if not isinstance(tensor, Tensor) or not tensor.is_external:
            continue
        name = tensor.fully_qualified_name
        if not given and name is not None and name not in data_map:
            report["not_checked"].append(f"method {plan.name!r}, {format_value(plan, index)}")
            continue
        try:
            (constant_bytes if tensor.is_constant else initial_bytes)(pte, data_map, tensor)
        except PteronError as error:
            where = f"method {plan.name!r}, value {format_value(plan, index)}"
            yield Problem(where=where, message=error.message, method=plan.name, instruction=None)


def _check_blobs(
    pte: PteFile, plan: ExecutionPlan, data_map: NamedDataMap, *, given: bool
) -> Iterator[Problem]:
    """Check the delegates' blobs; what they need from data files only if those were given."""
    if not plan.delegates:
        return
    from pteron.backends import readers  # they look at the installed packages
    from pteron.backends.blob_reader import delegate_blob

    for number in range(len(plan.delegates)):
        blob = delegate_blob(pte, plan, number)
        for message in readers.find_violations(blob, data_map, is_complete=given):
            yield Problem(where=blob.where, message=message, method=plan.name, instruction=None)


def _problem(error: PteronError) -> Problem:
    message = "; ".join([error.message, *error.context])
    if error.hint:
        message += f"; {error.hint}"
    return Problem(where="", message=message, method=None, instruction=None)


def _from_violation(violation: Violation) -> Problem:
    return Problem(
        where=violation.where,
        message=violation.message,
        method=violation.method,
        instruction=violation.instruction,
    )


def _page(reports: Sequence[Report]) -> Page:
    page = Page()
    for report in reports:
        found = report["violations"]
        more = "at least " if len(found) >= MAX_VIOLATIONS_REPORTED else ""
        page.line(
            f"{report['path']}: {'ok' if report['ok'] else more + count(len(found), 'violation')}"
            if report["kind"] != "unreadable"
            else f"{report['path']}: cannot be read"
        )
        for number, problem in enumerate(found, 1):
            where = f"{problem['where']}: " if problem["where"] else ""
            page.line(f"  {number}. {where}{problem['message']}")
        for code in report["native_code"]:
            page.line(f"  native code: {_native_code_text(code)}")
        if report["not_checked"]:
            tensors = count(len(report["not_checked"]), "tensor")
            page.line(f"  not checked: {tensors} in a .ptd file that was not given (--data)")
    return page


def _native_code_text(code: NativeCode) -> str:
    if code["problem"] is not None:
        return f"{code['place']}, not readable: {code['problem']}"
    machine = f" for {code['machine']}" if code["machine"] else ""
    return (
        f"{code['place']}, {code['kind']}{machine}, {size(code['size_bytes'])}, "
        f"sha256 {code['sha256']}"
    )
