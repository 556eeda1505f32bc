"""Run the benchmarks: ``python -m bench [start small models loading large]``."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path

SUITES = ("start", "small", "models", "loading", "large")


def main() -> int:
    """Run the named suites, print their tables, and write them as JSON if asked."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("suites", nargs="*", help=f"which, of {', '.join(SUITES)}; default: all")
    parser.add_argument("--json", type=Path, help="also write the medians (seconds) to this file")
    parser.add_argument("--threads", type=int, help="torch threads; default: torch's own choice")
    options = parser.parse_args()
    unknown = set(options.suites) - set(SUITES)
    if unknown:
        parser.error(f"no suite is called {', '.join(sorted(unknown))}")
    wanted = options.suites or SUITES
    results: dict[str, object] = {}

    from bench.measure import Row, show

    def report(name: str, title: str, rows: list[Row]) -> None:
        show(title, rows)
        results[name] = {row.name: row.seconds | row.notes for row in rows}
        sys.stdout.flush()

    from bench import execute, opening

    if "start" in wanted:
        report("start", "Whole processes", opening.start_up())
    import torch

    if options.threads:
        torch.set_num_threads(options.threads)
    print(
        f"\nPython {platform.python_version()}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads, {platform.machine()}"
    )
    if "small" in wanted:
        report("small", "The runtime's own cost", execute.small())
    if "models" in wanted:
        rows = execute.models()
        report("models", "Models from portable files", rows)
        mean = execute.geometric_mean(rows, "wheel portable")
        print(f"geometric mean: the wheel's portable kernels take {mean:.1f}x as long as pteron")
    if "loading" in wanted:
        report("loading", "Opening and loading", opening.loading())
    if "large" in wanted:
        report("large", "Long and large files", opening.long_and_large())
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
