"""`make exactness`: how far the log probabilities of every family and format are from `transformers`', row by row.

Owns the measuring. A row that is measured is kept at once, so that a run may end anywhere and the next one goes on;
what is measured is `four_rounds`', of what `exact_cases`', the page `exactness_page`'s.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

from exact_cases import QUANTISED, WHOLE, Case
from exactness_page import Measured, missing, read_rows, write_rows
from four_rounds import FEW_LENGTHS, LENGTHS, TOLERANCE, Compared, Engine, Reference, compare
from tiny_decoders import BACKENDS

from relevo.build.backend import instruction_path
from relevo.engine.loaders.resolve import load_model_files

DEFAULTS = {"native": ("auto", "float16"), "torch": ("bfloat16", "bfloat16")}  # weights, KV


def measure(case: Case) -> Measured:
    lengths = LENGTHS if case in WHOLE else FEW_LENGTHS
    exact: dict[str, Compared] = {}
    default: dict[str, Compared] = {}
    with TemporaryDirectory(prefix="relevo-exactness-") as folder:
        model, path = case.make(Path(folder))
        files, reference = load_model_files(str(path)), Reference(model)
        for backend in BACKENDS:
            exact[backend] = _rounded(compare(Engine(files, backend), reference, lengths))
            as_served = Engine(files, backend, *DEFAULTS[backend])
            default[backend] = _rounded(compare(as_served, reference, FEW_LENGTHS))
    return Measured(
        architecture=files.config.architecture,
        machine=f"{_cpu()} (path {instruction_path()})",
        versions=", ".join(f"{name} {metadata.version(name)}" for name in ("transformers", "torch")),
        exact=exact,
        default=default,
    )


def _rounded(found: Compared) -> Compared:
    """To three digits, of which the page has two."""
    largest = {name: _digits(value) for name, value in found.largest.items()}
    return replace(found, largest=largest, median=_digits(found.median))


def _digits(value: float) -> float:
    return float(f"{value:.3g}")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "an unknown processor"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"an {names[0]}" if names else "an unknown processor"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("docs", type=Path, help="the folder of the page and of the rows that it is made of")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--again", action="store_true", help="cases that have a row too")
    parser.add_argument("--max-minutes", type=float, help="begin no case after that long")
    asked = parser.parse_args()
    started, kept = time.monotonic(), read_rows(asked.docs)
    cases = [case for case in (*WHOLE, *QUANTISED) if asked.only.lower() in case.name.lower()]
    for case in cases:
        elapsed_s = time.monotonic() - started
        if case.name in kept and not asked.again:
            continue
        if asked.max_minutes is not None and elapsed_s > 60 * asked.max_minutes:
            break
        row = measure(case)
        write_rows(asked.docs, {**read_rows(asked.docs), case.name: row})
        for backend in BACKENDS:
            told = f"{row.exact[backend]}, default {row.default[backend]}"
            sys.stdout.write(f"{time.monotonic() - started:6.0f} s  {case.name}, {backend}: {told}\n")
            sys.stdout.flush()
    rows = read_rows(asked.docs)
    write_rows(asked.docs, rows)
    if left := missing(rows):
        sys.stdout.write(f"{len(left)} not measured yet: {', '.join(left)}\n")
    missed = [f"{name} ({', '.join(of)})" for name, row in rows.items() if (of := row.missed())]
    raise SystemExit("\n".join(f"not within {TOLERANCE:.0e}: {each}" for each in missed) or 0)


if __name__ == "__main__":
    main()
