# ruff: noqa: T201
"""Run the small fixtures under ``compute-sanitizer``.

    PYTHONPATH=src:tests python tests/gpu/sanitize.py [TOOL ...]

TOOL is memcheck (default), racecheck, initcheck or synccheck. torch's caching allocator is off, so
that every tensor is an allocation of its own and a step over its end is seen.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any


def main(tools: list[str]) -> int:
    failed = 0
    for tool in tools or ["memcheck"]:
        done = subprocess.run(
            [
                *("compute-sanitizer", "--tool", tool, "--error-exitcode", "9"),
                *("--target-processes", "all", "--print-limit", "20"),
                *(sys.executable, __file__, "--inside"),
            ],
            env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        print(f"== {tool}: exit {done.returncode}")
        print(done.stdout[-6000:])
        print(done.stderr[-2000:], file=sys.stderr)
        summary = re.findall(r"ERROR SUMMARY: (\d+) error", done.stdout + done.stderr)
        clean = done.returncode == 0 and summary and not any(map(int, summary))
        failed += not clean
        print(f"== {tool}: {'nothing found' if clean else 'LOOK ABOVE'}")
    return failed


def inside() -> None:
    import torch

    from pteron import Runtime
    from support import cuda_fixtures as fixtures

    torch.backends.cudnn.allow_tf32 = False
    for name in fixtures.SMALL:
        with Runtime.get().load_program(
            fixtures.pte_path(name), data_path=fixtures.ptd_path(name)
        ) as program:
            for method, calls in fixtures.cases(name).items():
                loaded: Any = program.load_method(method)
                for _ in range(2):
                    loaded.reset()
                    for case in calls:
                        case.check(loaded.execute(case.inputs))
                        case.check(loaded.execute([x.cuda() for x in case.inputs]))
        print(name, "ok", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--inside"]:
        inside()
    else:
        sys.exit(main(sys.argv[1:]))
