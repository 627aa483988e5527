"""docs/exactness.md: its words and tables, made of the rows that docs/exactness.json has.

Owns both formats. What is measured is `exactness`'; a case without a row is named on the page, not left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from exact_cases import QUANTISED, WHOLE, Case
from four_rounds import FEW_LENGTHS, LENGTHS, NUM_NEW_TOKENS, ROUNDS, TOLERANCE, Compared
from tiny_decoders import BACKENDS

PAGE = "exactness.md"
RESULTS = "exactness.json"  # beside it

_PAGE = """\
# How exact the numbers are

<!-- written by `make exactness` from exactness.json; do not edit -->

The largest difference of a log probability, over the whole vocabulary, to `transformers`' whole forward (eager,
float32) of the same tokens. Tiny models of random weights, prompts of {lengths}
tokens, {new} greedy tokens each, through the scheduler, the prefix cache and the runner that serve, in four rounds:
alone, again from the prefix cache, resumed inside an answer, all fourteen at once. Blocks have 16 tokens, windows and
chunks of layers 100, chunks of prompts at most 256. Quantised files and default dtypes: prompts of {few} tokens.

*Exact* is float32 weights and KV, held to {tolerance:.0e} and to every greedy token by
`tests/golden/test_four_rounds.py`; on the native backend a position has the same bits in every round. *Default* is what
is served unless asked otherwise: native with weights as stored and KV in float16; torch with both in bfloat16, as it is
where the processor has bfloat16 (elsewhere it computes in float32, as in the exact column). It has the median over all
positions, of the largest difference of each, and the largest of all: in models with experts often that of one position
where rounding made a router choose another expert. In brackets: how many of the drawn tokens `transformers` would have
drawn too; random weights make flat distributions.

{machines}; no figure is a speed.

## Families

{families}

{by_round}

- GGUF files of Llama 4 have chunks of 8,192 tokens whatever the model had, which these prompts do not cross. Those of
  Mistral are Llama's and do not say its window.
- A difference of 1e-4 can be told only where the reference is nearer than that to what the weights mean. With the eps
  of 1e-5 of the other families and projections twice as large, `transformers` in float32 is 1.5e-4 (Qwen3.5) to 5.9e-4
  (its MoE) from itself in float64, as what a state gives is normed near zero too. These three have 1e-3 here.

## Quantised files

Beside `transformers` with the weights that the file means. *Exact* computes with these weights in float32; by default
the native backend multiplies integers as they are stored, by inputs that are rounded to 16 bits. What it does not
multiply as stored, and everything on torch, becomes bfloat16.

{quantised}

## Trained weights

Gemma-3-270M (GGUF, Q4_K_M, dequantised to float32 everywhere), 691 tokens, against `transformers` whose every operation
is in float64; the largest logit of every position is the same in all. Measured on 2026-12-02 ([lab log](lab-log.md)):

| | largest difference | mean |
|---|---|---|
| `transformers`, float32 | 5.6e-4 | 5.0e-6 |
| torch | 6.3e-4 | 5.6e-6 |
| native | 7.5e-4 | 8.2e-6 |

In float32 the order of additions alone makes more than 1e-4 here, in the reference too.
"""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A row: one case, by backend; None: it refuses the family."""

    architecture: str
    machine: str
    versions: str
    exact: Mapping[str, Compared | None]
    default: Mapping[str, Compared | None]

    def missed(self) -> list[str]:
        """Backends whose numbers are not as the page says."""
        return [backend for backend in BACKENDS if not _holds(self.exact[backend], backend)]


def _holds(found: Compared | None, backend: str) -> bool:
    return found is None or (
        found.largest_of_all <= TOLERANCE
        and found.num_equal == found.num_tokens
        and (found.has_same_bits or backend != "native")
    )


Rows = Mapping[str, Measured]  # by name of the case


def read_rows(docs: Path) -> dict[str, Measured]:
    path = docs / RESULTS
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {
        name: Measured(**{**row, **{kind: _compared(row[kind]) for kind in _KINDS}}) for name, row in stored.items()
    }


_KINDS = ("exact", "default")


def _compared(row: Mapping[str, Any]) -> dict[str, Compared | None]:
    return {backend: None if found is None else Compared(**found) for backend, found in row.items()}


def write_rows(docs: Path, rows: Rows) -> None:
    """A line each, in the order of the cases; rows of cases that are no more go."""
    known = [case.name for case in (*WHOLE, *QUANTISED) if case.name in rows]
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(asdict(rows[name]))}" for name in known)
    (docs / RESULTS).write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    (docs / PAGE).write_text(page(rows), encoding="utf-8")


def missing(rows: Rows) -> list[str]:
    return [case.name for case in (*WHOLE, *QUANTISED) if case.name not in rows]


def page(rows: Rows) -> str:
    machines = sorted({f"`make exactness` on {row.machine}, {row.versions}" for row in rows.values()})
    return _PAGE.format(
        lengths=", ".join(str(length) for length in LENGTHS),
        few=", ".join(str(length) for length in FEW_LENGTHS),
        new=NUM_NEW_TOKENS,
        tolerance=TOLERANCE,
        machines="; ".join(machines) or "Nothing is measured yet",
        families=_table(WHOLE, rows),
        by_round=_by_round(rows),
        quantised=_table(QUANTISED, rows),
    )


def _table(cases: Iterable[Case], rows: Rows) -> str:
    lines = ["| family | files | torch, exact | native, exact | torch, default | native, default |"]
    lines.append("|---|---|---|---|---|---|")
    for case in cases:
        cells = _cells(rows[case.name]) if case.name in rows else ["not measured"] * 2 * len(BACKENDS)
        lines.append(f"| {case.family} | {case.stored} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(row: Measured) -> list[str]:
    exact = [_exact(row.exact[backend], backend) for backend in BACKENDS]
    return exact + [_default(row.default[backend]) for backend in BACKENDS]


def _exact(found: Compared | None, backend: str) -> str:
    if found is None:
        return "refused"
    figure = f"{found.largest_of_all:.1e}"
    return figure if _holds(found, backend) else f"**{figure}, {found.num_equal} of {found.num_tokens} tokens**"


def _default(found: Compared | None) -> str:
    if found is None:
        return "refused"
    return f"{found.median:.1e}, {found.largest_of_all:.1e} ({found.num_equal}/{found.num_tokens})"


def _by_round(rows: Rows) -> str:
    """Of the exact columns of all families."""
    parts = [_largest_by_round(rows, backend) for backend in BACKENDS]
    return f"Largest of all rows, {', '.join(ROUNDS)}: {'; '.join(parts)}."


def _largest_by_round(rows: Rows, backend: str) -> str:
    found = [each for case in WHOLE if case.name in rows and (each := rows[case.name].exact[backend]) is not None]
    figures: Sequence[str] = [f"{max(each.largest[name] for each in found):.1e}" for name in ROUNDS] if found else []
    return f"{backend} {', '.join(figures) or 'not measured'}"
