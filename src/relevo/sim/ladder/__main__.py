"""`python -m relevo.sim.ladder DATA [--rung N] [--json FILE] [--constants]`: tables of errors, and the same as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from relevo.core.errors import RelevoError
from relevo.sim.ladder.known_constants import as_source, known_constants
from relevo.sim.ladder.rungs import RUNGS, run_ladder
from relevo.sim.ladder.show import rung_tables


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m relevo.sim.ladder", description="How far off the models are.")
    parser.add_argument(
        "data", type=Path, help="folder with profiles/, model_configs/ and traces/; of rung 6: of relevo bench record"
    )
    parser.add_argument("--rung", type=int, action="append", default=[], choices=sorted(RUNGS))
    parser.add_argument("--json", type=Path, help="write the reports to this file")
    parser.add_argument("--constants", action="store_true", help="print the table of policy.perf.known_engines instead")
    options = parser.parse_args(argv)
    try:
        if options.constants:
            sys.stdout.write(as_source(known_constants(options.data)) + "\n")
            return 0
        reports = run_ladder(options.data, options.rung)
    except RelevoError as error:
        Console(stderr=True).print(f"error: {error}")
        return 1
    console = Console(width=None if sys.stdout.isatty() else 160)  # a file or pipe has no width: cut nothing
    for report in reports:
        console.print(rung_tables(report))
    if options.json:
        options.json.write_text(json.dumps([report.to_json() for report in reports], indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
