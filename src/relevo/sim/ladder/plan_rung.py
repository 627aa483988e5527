"""Rung 8: what a planner would have said of measured servers: TTFT, TPOT and tokens per device, by load.

Data: AIConfigurator's silicon table. Disaggregated servers are predicted from aggregated ones, and every model, engine
and device from all others; then each cell of servers from five of its own rows. Tokens per device follow from latencies
by Little's law on both sides. Load is what the prompts would ask of their servers if they never waited.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from statistics import median

from relevo.policy.perf.engine_constants import EngineConstants
from relevo.policy.perf.fitting import fit_constants
from relevo.sim.ladder.errors import ErrorTable, RungReport
from relevo.sim.ladder.leave_out import FIVE_SEEN, NUM_SEEN, LabelledSteps, constants_without, pooled_constants
from relevo.sim.ladder.silicon_latencies import Prediction, ServedRow, served_row
from relevo.sim.ladder.silicon_steps import SiliconServers
from relevo.sim.ladder.tpot_rung import CONFIGS, read_rows
from relevo.sim.ladder.ttft_fit import SeenTtft, TtftShares

_UNSEEN_GOALS = {"TPOT": 0.20, "throughput per device": 0.20, "TTFT": 0.35}
_SEEN_GOALS = {"TPOT": 0.10, "throughput per device": 0.12, "TTFT": 0.25}
_BADLY_SPLIT = ("Qwen/Qwen3-32B", 6, 5)  # model, prefill and decode workers

Key = Callable[[ServedRow], str]


@dataclass(frozen=True, slots=True)
class Outcome:
    served: ServedRow
    predicted: Prediction
    ttft_s: float
    shares: TtftShares  # that the TTFT is of

    @property
    def errors(self) -> dict[str, float]:
        """Relative; above 0: predicted slower, or more tokens."""
        row, served = self.served.row, self.served
        throughput = served.tokens_per_s(self.ttft_s, self.predicted.tpot_s)
        return {
            "TPOT": self.predicted.tpot_s / row.tpot_s - 1.0,
            "throughput per device": throughput / served.tokens_per_s(row.ttft_s, row.tpot_s) - 1.0,
            "TTFT": self.ttft_s / row.ttft_s - 1.0,
        }


def plan_rung(folder: Path) -> RungReport:
    """`folder` holds `profiles/` and `model_configs/`."""
    table = read_rows(folder)
    servers = SiliconServers(folder / CONFIGS, whole_prompts=True)
    rows = [served_row(servers, row) for row in table.rows]
    split_unseen = unseen(rows, _kind, ["split"])
    by_key = {"a model": unseen(rows, _model), "an engine": unseen(rows, _engine), "a device": unseen(rows, _device)}
    seen = five_seen(rows, by_key["a model"])
    tables = _tables("split servers, fitted to aggregated ones", split_unseen, _UNSEEN_GOALS)
    for name, outcomes in by_key.items():
        tables += _tables(f"{name} that was never seen", outcomes, _UNSEEN_GOALS)
        only = [outcome for outcome in outcomes if outcome.served.row.prefill]
        tables += _tables(f"{name} that was never seen, split servers only", only, _UNSEEN_GOALS)
    tables += _tables(f"{NUM_SEEN} rows of the same servers seen", seen, _SEEN_GOALS)
    split_seen = [outcome for outcome in seen if outcome.served.row.prefill]
    tables += _tables(f"{NUM_SEEN} rows of the same servers seen, split servers only", split_seen, _SEEN_GOALS)
    return RungReport(
        rung=8,
        title="what a planner would have said of measured servers, by load",
        facts={"rows": len(rows), "split": len(split_unseen), "left out": dict(table.left_out)},
        tables=tables,
        notes=[*_bad_split(rows, split_unseen), "a positive bias of throughput means more was predicted than measured"],
    )


def unseen(rows: Sequence[ServedRow], key: Key, classes: Sequence[str] | None = None) -> list[Outcome]:
    """Every class from fits that had no part of it. `classes`: those that are predicted; None: all."""
    found: list[Outcome] = []
    by_id = {id(row.labelled): row for row in rows}

    def key_of(labelled: LabelledSteps) -> str:
        return key(by_id[id(labelled)])

    labelled = [row.labelled for row in rows]
    for held_out in classes or sorted({key(row) for row in rows}):
        others = [row for row in rows if key(row) != held_out]
        base = pooled_constants([row.labelled for row in others])
        shares = TtftShares([_seen(row, base) for row in others])
        for group, constants in constants_without(labelled, key_of, held_out):
            found += [_outcome(by_id[id(each)], constants, shares) for each in group]
    return found


def five_seen(rows: Sequence[ServedRow], without_model: Sequence[Outcome], seed: int = 0) -> list[Outcome]:
    """Each cell's other rows, from five of its own: constants are fitted to them, held by what is known without the
    model, and TTFT is scaled by their median."""
    prior = {id(outcome.served): outcome for outcome in without_model}
    cells: defaultdict[str, list[ServedRow]] = defaultdict(list)
    for row in rows:
        cells[row.labelled.cell].append(row)
    rng, found = random.Random(seed), []
    by_class = _constants_by_model(rows)
    for _, members in sorted(cells.items()):
        if len(members) <= NUM_SEEN:
            continue
        chosen = set(rng.sample(range(len(members)), NUM_SEEN))
        first = members[0].labelled
        constants = by_class[first.model, first.engine, first.device]
        fitted = fit_constants([members[i].labelled.steps for i in sorted(chosen)], constants, FIVE_SEEN)
        shares = prior[id(members[0])].shares
        told = [_outcome(row, fitted, shares) for row in members]
        times = exp(median(log(members[i].row.ttft_s / told[i].ttft_s) for i in sorted(chosen)))
        found += [replace(each, ttft_s=times * each.ttft_s) for i, each in enumerate(told) if i not in chosen]
    return found


def _constants_by_model(rows: Sequence[ServedRow]) -> dict[tuple[str, str, str], EngineConstants]:
    """Of every engine and device, without each model."""
    labelled = [row.labelled for row in rows]
    return {
        (model, group[0].engine, group[0].device): constants
        for model in sorted({row.labelled.model for row in rows})
        for group, constants in constants_without(labelled, lambda row: row.model, model)
    }


def _seen(row: ServedRow, constants: EngineConstants) -> SeenTtft:
    return SeenTtft(row.manner, row.predict(constants).terms, row.row.ttft_s)


def _outcome(row: ServedRow, constants: EngineConstants, shares: TtftShares) -> Outcome:
    predicted = row.predict(constants)
    return Outcome(row, predicted, shares.seconds(row.manner, predicted.terms), shares)


def _tables(title: str, outcomes: Iterable[Outcome], goals: dict[str, float]) -> list[ErrorTable]:
    """One of each number, by load level."""
    errors: dict[str, defaultdict[str, list[float]]] = {name: defaultdict(list) for name in goals}
    for outcome in outcomes:
        for name, error in outcome.errors.items():
            errors[name][outcome.predicted.level].append(error)
    return [ErrorTable.of(f"{title}: {name}", f"median below {goals[name]:.0%}", errors[name]) for name in goals]


def _bad_split(rows: Sequence[ServedRow], outcomes: Sequence[Outcome]) -> list[str]:
    """What is said of the split that measured badly, beside the others of its model."""
    model, num_prefill, num_decode = _BADLY_SPLIT
    found = []
    for outcome in outcomes:
        row = outcome.served.row
        if row.model != model or row.prefill is None:
            continue
        is_bad = (row.prefill.num_workers, row.num_workers) == (num_prefill, num_decode)
        measured = outcome.served.tokens_per_s(row.ttft_s, row.tpot_s)
        predicted = outcome.served.tokens_per_s(outcome.ttft_s, outcome.predicted.tpot_s)
        found.append(
            f"{'badly split: ' if is_bad else ''}{row.model} {row.engine} {row.prefill.num_workers}P+{row.num_workers}D"
            f" at {row.concurrency}: TTFT {outcome.ttft_s * 1e3:,.0f} ms ({row.ttft_s * 1e3:,.0f} measured), TPOT"
            f" {outcome.predicted.tpot_s * 1e3:.1f} ({row.tpot_s * 1e3:.1f}), tokens a second and device"
            f" {predicted:,.0f} ({measured:,.0f})"
        )
    return found


def _kind(row: ServedRow) -> str:
    return "split" if row.row.prefill else "aggregated"


def _model(row: ServedRow) -> str:
    return row.labelled.model


def _engine(row: ServedRow) -> str:
    return row.row.engine


def _device(row: ServedRow) -> str:
    return row.row.device
