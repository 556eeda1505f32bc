"""Prints the tables of ``docs/versions.md``: what each runtime makes of the kept programs.

``PYTHONPATH=src:tests python -m support.exporters.report``; it needs the executorch wheel.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable

import torch

from pteron.errors import PteronError
from support.exporters import check
from support.exporters.kept import FORMS, KeptProgram, index, names, programs

Outputs = list[list[torch.Tensor]]


def verdict(program: KeptProgram, run: Callable[[KeptProgram], Outputs]) -> str:
    """Return what a runtime makes of a program: "equal", "different" or "refused"."""
    try:
        outputs = run(program)
    except (PteronError, RuntimeError):
        return "refused"
    try:
        check.assert_near(program, outputs, check.wanted(program))
    except AssertionError:
        return "different"
    return "equal"


def main() -> None:
    torch.set_num_threads(1)
    runtimes: dict[str, Callable[[KeptProgram], Outputs]] = {
        "pteron": check.here,
        "pteron, optimize=False": lambda program: check.here(program, optimize=False),
        "wheel": check.there,
    }
    seen = {
        program: {name: verdict(program, run) for name, run in runtimes.items()}
        for program in programs()
    }
    lines = ["| exporter | form | exported | " + " | ".join(f"{n} equal" for n in runtimes) + " |"]
    lines.append("|---" * (3 + len(runtimes)) + "|")
    for exporter in index()["exporters"]:
        for form in FORMS:
            group = [p for p in seen if p.exporter == exporter and p.form == form]
            equal = [Counter(seen[p][name] for p in group)["equal"] for name in runtimes]
            made = f"{len(group)} of {len(names(form))}"
            lines.append(f"| {exporter} | {form} | {made} | " + " | ".join(map(str, equal)) + " |")
    lines += ["", "Not equal:", ""]
    lines += [
        f"- {program.name}: " + ", ".join(f"{name} {word}" for name, word in words.items())
        for program, words in seen.items()
        if set(words.values()) != {"equal"}
    ]
    lines += ["", "Not exported:", ""]
    lines += [
        f"- {exporter} {form} {name}: {text[:100]}".replace("\n", " ")
        for exporter, facts in index()["exporters"].items()
        for form in FORMS
        for name, text in facts["failures"][form].items()
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
