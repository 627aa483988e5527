"""Predicts rows from constants that were fitted without them: one class held out at a time, or five of its rows seen.

Constants of a row's class are fitted in steps, each the prior of the next: all rows, those of its engine, those of its
device, those of both. A held-out class has no part in any step, so what is left of the chain says what is known of it:
an engine that was never seen gets what other engines make of its device.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from relevo.policy.perf.engine_constants import DEFAULT_CONSTANTS, EngineConstants
from relevo.policy.perf.fitting import FitOptions, MeasuredSteps, fit_constants

_FIRST = FitOptions(prior_weight=0.5)
# Of later steps of the chain: rows of a class that agree outweigh what is known from elsewhere from about thirty on.
# Chosen on these rows, as were the launches per layer; no constant of a held-out class was.
_NARROWER = FitOptions(prior_weight=30.0)
FIVE_SEEN = FitOptions(prior_weight=0.1)
NUM_SEEN, NUM_DRAWS = 5, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSteps:
    """A measured row with the classes it belongs to."""

    row_id: str
    model: str  # by shape: names of one shape are one model
    engine: str
    device: str
    cell: str  # model, format, engine, version, device, one or two kinds of workers
    steps: MeasuredSteps


ClassName = tuple[str, str]  # engine and device
Key = Callable[[LabelledSteps], str]


def unfitted_errors(rows: Sequence[LabelledSteps], key: Key) -> dict[str, list[float]]:
    """With the default constants, by class."""
    return _by_class(key, ((row, row.steps.error(DEFAULT_CONSTANTS)) for row in rows))


def unseen_errors(rows: Sequence[LabelledSteps], key: Key) -> dict[str, list[float]]:
    """By class, each predicted from the rows of all other classes."""
    return _by_class(
        key,
        (
            (row, row.steps.error(constants))
            for held_out in sorted({key(row) for row in rows})
            for group, constants in constants_without(rows, key, held_out)
            for row in group
        ),
    )


def constants_without(
    rows: Sequence[LabelledSteps], key: Key, held_out: str
) -> list[tuple[list[LabelledSteps], EngineConstants]]:
    """The held-out rows by engine and device, each group with the constants that the others give it."""
    others = [row for row in rows if key(row) != held_out]
    base = pooled_constants(others)
    groups: defaultdict[tuple[str, str], list[LabelledSteps]] = defaultdict(list)
    for row in rows:
        if key(row) == held_out:
            groups[row.engine, row.device].append(row)
    return [(group, _narrowed(others, engine, device, base)) for (engine, device), group in groups.items()]


def pooled_constants(rows: Sequence[LabelledSteps]) -> EngineConstants:
    """Of all engines and devices together."""
    return fit_constants([row.steps for row in rows], DEFAULT_CONSTANTS, _FIRST)


def _narrowed(rows: Sequence[LabelledSteps], engine: str, device: str, base: EngineConstants) -> EngineConstants:
    of_engine = [row for row in rows if row.engine == engine]
    of_device = [row for row in rows if row.device == device]
    of_both = [row for row in of_engine if row.device == device]
    for selected in (of_engine, of_device, of_both):
        base = fit_constants([row.steps for row in selected], base, _NARROWER)
    return base


def fitted_constants(rows: Sequence[LabelledSteps]) -> dict[ClassName, EngineConstants]:
    """Of every engine on every device, from all rows: for predictions of what was not measured."""
    base = pooled_constants(rows)
    names = sorted({(row.engine, row.device) for row in rows})
    return {(engine, device): _narrowed(rows, engine, device, base) for engine, device in names}


def seen_errors(rows: Sequence[LabelledSteps], seed: int = 0) -> tuple[dict[str, list[float]], int]:
    """By cell: its other rows, predicted from rows of other models and five of its own, drawn several times.
    Also the number of rows in cells with no others."""
    priors: dict[tuple[str, ClassName], EngineConstants] = {}
    for model in sorted({row.model for row in rows}):
        for group, constants in constants_without(rows, lambda row: row.model, model):
            priors[model, (group[0].engine, group[0].device)] = constants
    cells: defaultdict[str, list[LabelledSteps]] = defaultdict(list)
    for row in rows:
        cells[row.cell].append(row)
    rng, errors, num_alone = random.Random(seed), {}, 0
    for cell, members in sorted(cells.items()):
        if len(members) <= NUM_SEEN:
            num_alone += len(members)
            continue
        prior = priors[members[0].model, (members[0].engine, members[0].device)]
        errors[cell] = [error for _ in range(NUM_DRAWS) for error in _five_seen(members, prior, rng)]
    return errors, num_alone


def _five_seen(members: Sequence[LabelledSteps], prior: EngineConstants, rng: random.Random) -> list[float]:
    seen = set(rng.sample(range(len(members)), NUM_SEEN))
    constants = fit_constants([members[i].steps for i in sorted(seen)], prior, FIVE_SEEN)
    return [row.steps.error(constants) for i, row in enumerate(members) if i not in seen]


def _by_class(key: Key, errors: Iterable[tuple[LabelledSteps, float]]) -> dict[str, list[float]]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    for row, error in errors:
        found[key(row)].append(error)
    return dict(found)
