"""`make exactness`: how far the log probabilities of every family and format are from `transformers`', as a page.

Owns the measuring and the page's words. What is measured is `four_rounds`', of what `exact_cases`'.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

from exact_cases import QUANTISED, WHOLE, Case, is_computed
from four_rounds import FEW_LENGTHS, LENGTHS, NUM_NEW_TOKENS, TOLERANCE, Compared, Engine, Reference, compare
from tiny_decoders import BACKENDS

from relevo.build.backend import instruction_path
from relevo.engine.loaders.resolve import load_model_files

DEFAULTS = {"native": ("auto", "float16"), "torch": ("bfloat16", "bfloat16")}  # weights, KV
_PAGE = """\
# How exact the numbers are

<!-- written by `make exactness`; do not edit -->

The largest difference of a log probability, over the whole vocabulary, to `transformers`' whole forward (eager,
float32) of the same tokens. Tiny models of random weights, prompts of {lengths}
tokens, {new} greedy tokens each, through the scheduler, the prefix cache and the runner that serve, in four rounds:
alone, again from the prefix cache, resumed inside an answer, all fourteen at once. Blocks have 16 tokens, windows and
chunks of layers 100, chunks of prompts at most 256. Quantised files and default dtypes: prompts of {few} tokens.

*Exact* is float32 weights and KV, held to {tolerance:.0e} and to every greedy token by
`tests/golden/test_four_rounds.py`; on the native backend a position has the same bits in every round. *Default* is what
is served unless asked otherwise: native with weights as stored and KV in float16; torch in bfloat16, as it is where the
processor has bfloat16 (elsewhere it computes in float32, as in the exact column). In brackets: how many of the drawn
tokens `transformers` would have drawn too. Random weights make flat distributions; in a trained model such differences
change fewer tokens.

`make exactness` on {cpu} (path {path}), {versions}; {minutes:.0f} minutes of a machine with other
work, no figure is a speed.

## Families

{families}
{no_hits}
## Quantised files

Beside `transformers` with the weights that the file means. *Exact* computes with these weights in float32; by default
the native backend multiplies integers as they are stored, by inputs that are rounded to 16 bits.

{quantised}
"""
_NO_HITS = "\nLayers with a state have no hits in the prefix cache: their second round is computed again.\n"


@dataclass(frozen=True)
class Measured:
    case: Case
    exact: dict[str, Compared | None]  # by backend; None: it refuses the family
    default: dict[str, Compared | None]


def measure(case: Case) -> Measured:
    lengths = LENGTHS if case in WHOLE else FEW_LENGTHS
    exact: dict[str, Compared | None] = dict.fromkeys(BACKENDS)
    default: dict[str, Compared | None] = dict.fromkeys(BACKENDS)
    with TemporaryDirectory(prefix="relevo-exactness-") as folder:
        model, path = case.make(Path(folder))
        files, reference = load_model_files(str(path)), Reference(model)
        for backend in BACKENDS:
            if is_computed(backend, files.config):
                exact[backend] = compare(Engine(files, backend), reference, lengths)
                default[backend] = compare(Engine(files, backend, *DEFAULTS[backend]), reference, FEW_LENGTHS)
    return Measured(case, exact, default)


def holds(found: Compared | None, backend: str) -> bool:
    return found is None or (
        found.largest_of_all <= TOLERANCE
        and found.num_equal == found.num_tokens
        and (found.has_same_bits or backend != "native")
    )


def page(measured: Sequence[Measured], seconds: float) -> str:
    whole = [each for each in measured if each.case in WHOLE]
    has_no_hits = any(found is not None and not found.num_hit_tokens for each in whole for found in each.exact.values())
    return _PAGE.format(
        lengths=", ".join(str(length) for length in LENGTHS),
        few=", ".join(str(length) for length in FEW_LENGTHS),
        new=NUM_NEW_TOKENS,
        tolerance=TOLERANCE,
        cpu=_cpu(),
        path=instruction_path(),
        versions=", ".join(f"{name} {metadata.version(name)}" for name in ("transformers", "torch")),
        minutes=seconds / 60,
        families=_table(whole),
        no_hits=_NO_HITS if has_no_hits else "",
        quantised=_table(each for each in measured if each.case in QUANTISED),
    )


def _table(measured: Iterable[Measured]) -> str:
    rows = ["| family | files | torch, exact | native, exact | torch, default | native, default |"]
    rows.append("|---|---|---|---|---|---|")
    for each in measured:
        exact = [_exact(each.exact[backend], backend) for backend in BACKENDS]
        default = [_default(each.default[backend]) for backend in BACKENDS]
        rows.append(f"| {each.case.family} | {each.case.stored} | {' | '.join([*exact, *default])} |")
    return "\n".join(rows)


def _exact(found: Compared | None, backend: str) -> str:
    if found is None:
        return "none"
    figure = f"{found.largest_of_all:.1e}"
    return figure if holds(found, backend) else f"**{figure}, {found.num_equal} of {found.num_tokens} tokens**"


def _default(found: Compared | None) -> str:
    return "none" if found is None else f"{found.largest_of_all:.1e} ({found.num_equal}/{found.num_tokens})"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "an unknown processor"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"an {names[0]}" if names else "an unknown processor"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="to write; not written with --only")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    asked = parser.parse_args()
    started, measured = time.monotonic(), []
    for case in [*WHOLE, *QUANTISED]:
        name = f"{case.family} {case.stored}"
        if asked.only.lower() not in name.lower():
            continue
        each = measure(case)
        measured.append(each)
        for backend in BACKENDS:
            told = (each.exact[backend], each.default[backend])
            line = f"{time.monotonic() - started:6.0f} s  {name}, {backend}: {told[0]}, default {told[1]}\n"
            sys.stdout.write(line)
            sys.stdout.flush()
    if not asked.only:
        asked.page.write_text(page(measured, time.monotonic() - started), encoding="utf-8")
    missed = [each.case for each in measured for b in BACKENDS if not holds(each.exact[b], b)]
    raise SystemExit("\n".join(f"beyond {TOLERANCE:.0e}: {case.family} {case.stored}" for case in missed) or 0)


if __name__ == "__main__":
    main()
