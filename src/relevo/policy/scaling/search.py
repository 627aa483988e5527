"""Finds the candidates worth simulating: the fewest workers of each kind that keep the promises, and how they combine.

A split candidate's stages hardly touch one another, so the smallest stage of every kind is found alone and the cheap
ones are paired, whatever devices they are of. Where the devices at hand do not suffice, the split that carries most of
the load is looked for instead. What no number of machines cures is said as such.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relevo.core.role import DECODE, PREFILL, UNIFIED, Role
from relevo.policy.perf.model_shape import ModelShape
from relevo.policy.scaling.candidates import (
    SPLIT_CHUNK,
    UNIFIED_CHUNKS,
    Assumptions,
    Candidate,
    Refused,
    Stage,
    WorkerKind,
    parallelisms,
    worker_kind,
)
from relevo.policy.scaling.demand import Demand
from relevo.policy.scaling.inventory import Holding
from relevo.policy.scaling.screen import Screen, StageOutlook, Targets

LEAST_HEADROOM = 0.15  # of load, between a plan and the edge of its cliff
_MOST_COMPARED = 12  # candidates whose head-room has a part in their order; arbitrary
_MOST_KINDS = 6  # of a role that are paired; arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`longest_tokens` and rates are the demand's."""

    shape: ModelShape
    holdings: tuple[Holding, ...]
    demand: Demand
    targets: Targets
    assumed: Assumptions
    block_size: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """No number of machines keeps the promises: the best that one request alone would get."""

    ttft_p90_s: float
    ttft_by: str
    itl_s: float
    itl_by: str
    targets: Targets

    @property
    def sentence(self) -> str:
        parts = []
        if self.ttft_p90_s > self.targets.ttft_s:
            parts.append(
                f"TTFT p90 of {self.targets.ttft_s:g} s: on idle machines it is {self.ttft_p90_s:.2f} s at best"
                f" ({self.ttft_by})"
            )
        if self.itl_s > self.targets.itl_s:
            parts.append(
                f"ITL p90 of {self.targets.itl_s * 1e3:g} ms: a request alone gets {self.itl_s * 1e3:.1f} ms at best"
                f" ({self.itl_by})"
            )
        return "infeasible SLO, which more machines do not cure: " + "; ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """`candidates`: those that keep the promises with head-room by the screen, cheapest first; where there are none,
    those that carry most of the load. `refused`: kinds that cannot be built."""

    candidates: tuple[Candidate, ...]
    is_enough: bool
    refused: tuple[Refused, ...]
    kinds: dict[Role, tuple[WorkerKind, ...]]


def search(question: Question, screen: Screen) -> Found | Infeasible:
    kinds, refused = worker_kinds(question)
    if not kinds[DECODE]:
        return Found(candidates=(), is_enough=False, refused=refused, kinds=kinds)
    infeasible = _infeasible(question, screen, kinds)
    if infeasible is not None:
        return infeasible
    with_room = question.demand.at(1.0 / (1.0 - LEAST_HEADROOM))
    enough = [c for c in _sized(question, screen, kinds, with_room) if c.fits(question.holdings)]
    if enough:
        ranked = _by_cost(question, screen, enough)
        return Found(candidates=tuple(ranked), is_enough=True, refused=refused, kinds=kinds)
    most = _best_of_few(question, screen, kinds)
    return Found(candidates=tuple(most), is_enough=False, refused=refused, kinds=kinds)


def _by_cost(question: Question, screen: Screen, enough: Sequence[Candidate]) -> list[Candidate]:
    """The cheapest first; of those that cost the same the one that carries most."""
    ranked = sorted(enough, key=lambda c: (c.weight, c.layout))
    first, others = ranked[:_MOST_COMPARED], ranked[_MOST_COMPARED:]
    limits = {c: screen.load_limit(c, question.demand, question.targets) for c in first}
    return sorted(first, key=lambda c: (c.weight, -limits[c], c.layout)) + others


def worker_kinds(question: Question) -> tuple[dict[Role, tuple[WorkerKind, ...]], tuple[Refused, ...]]:
    """What can be built for each role, and what cannot."""
    kinds: dict[Role, list[WorkerKind]] = {role: [] for role in (PREFILL, DECODE, UNIFIED)}
    refused: dict[str, Refused] = {}
    for holding in question.holdings:
        for spread in parallelisms(question.shape, holding.device, holding.num_devices):
            for chunk in UNIFIED_CHUNKS:
                made = worker_kind(
                    question.shape,
                    holding,
                    spread,
                    question.assumed,
                    chunk_tokens=chunk,
                    longest_tokens=question.demand.longest_tokens,
                    block_size=question.block_size,
                )
                if isinstance(made, Refused):
                    refused.setdefault(made.name, made)
                    continue
                kinds[UNIFIED].append(made)
                if chunk == SPLIT_CHUNK:
                    kinds[PREFILL].append(made)
                    kinds[DECODE].append(made)
    return {role: tuple(found) for role, found in kinds.items()}, tuple(refused.values())


def _infeasible(question: Question, screen: Screen, kinds: dict[Role, tuple[WorkerKind, ...]]) -> Infeasible | None:
    demand, targets = question.demand, question.targets
    first = min(kinds[PREFILL], key=lambda kind: screen.best_ttft_s(kind, demand))
    second = min(kinds[DECODE], key=lambda kind: screen.best_itl_s(kind, demand))
    found = Infeasible(
        ttft_p90_s=screen.best_ttft_s(first, demand),
        ttft_by=f"{first.device.name} {first.spread}",
        itl_s=screen.best_itl_s(second, demand),
        itl_by=f"{second.device.name} {second.spread}",
        targets=targets,
    )
    return found if found.ttft_p90_s > targets.ttft_s or found.itl_s > targets.itl_s else None


def _sized(
    question: Question, screen: Screen, kinds: dict[Role, tuple[WorkerKind, ...]], demand: Demand
) -> list[Candidate]:
    """The smallest stages that keep their promise, paired."""
    targets = question.targets
    looks: dict[Role, Callable[[Stage], StageOutlook]] = {
        PREFILL: lambda stage: screen.prefill(stage, demand),
        DECODE: lambda stage: screen.decode(stage, demand),
        UNIFIED: lambda stage: screen.unified(stage, demand),
    }

    def holds(stage: Stage) -> bool:
        told = looks[stage.role](stage)
        return not told.limit and told.ttft_p90_s <= targets.ttft_s and told.itl_p90_s <= targets.itl_s

    smallest: dict[Role, list[Stage]] = {}
    for role, of_role in kinds.items():
        stages = [_fewest(role, kind, question.holdings, holds) for kind in of_role]
        smallest[role] = sorted((s for s in stages if s is not None), key=_weight)
    unified = [Candidate((stage,)) for stage in smallest[UNIFIED][:_MOST_KINDS]]
    split = [
        Candidate((prefill, decode)) for prefill in _cheap(smallest[PREFILL]) for decode in _cheap(smallest[DECODE])
    ]
    return unified + [pair for pair in split if not screen.outlook(pair, demand).misses(targets)]


def _cheap(stages: Sequence[Stage]) -> list[Stage]:
    """The cheapest of every device, so that a short one can be replaced by another."""
    names = dict.fromkeys(stage.kind.device.name for stage in stages)
    return [stage for name in names for stage in [s for s in stages if s.kind.device.name == name][:_MOST_KINDS]]


def _weight(stage: Stage) -> float:
    return Candidate((stage,)).weight


def _fewest(role: Role, kind: WorkerKind, holdings: Sequence[Holding], holds: Callable[[Stage], bool]) -> Stage | None:
    """By halving: more workers never keep fewer promises."""
    most = next(h.num_devices for h in holdings if h.device is kind.device) // kind.num_devices
    if most < 1 or not holds(Stage(role, kind, most)):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(Stage(role, kind, middle)) else (middle, high)
    return Stage(role, kind, high)


def _best_of_few(question: Question, screen: Screen, kinds: dict[Role, tuple[WorkerKind, ...]]) -> list[Candidate]:
    """All devices used, so that most of the load is carried within the promises."""
    most = {holding.device.name: holding.num_devices for holding in question.holdings}
    found = [Candidate((Stage(UNIFIED, kind, most[kind.device.name] // kind.num_devices),)) for kind in kinds[UNIFIED]]
    for prefill in kinds[PREFILL]:
        for decode in kinds[DECODE]:
            found += _balanced(question, screen, prefill, decode, most)
    limits = {c: screen.load_limit(c, question.demand, question.targets, most=1.0) for c in found}
    ranked = sorted(found, key=lambda c: (-limits[c], c.weight, c.layout))
    return [c for c in ranked if limits[c] > 0.0] or ranked[:1]


def _balanced(
    question: Question, screen: Screen, prefill: WorkerKind, decode: WorkerKind, most: dict[str, int]
) -> list[Candidate]:
    """Of two kinds that share devices the split at which both stages are as full; of two devices all of both."""
    if prefill.device is not decode.device:
        counts = [(most[kind.device.name] // kind.num_devices) for kind in (prefill, decode)]
        return [Candidate((Stage(PREFILL, prefill, counts[0]), Stage(DECODE, decode, counts[1])))]
    total, low = most[prefill.device.name], 1
    high = (total - decode.num_devices) // prefill.num_devices

    def at(num_prefill: int) -> tuple[float, float, Candidate]:
        num_decode = (total - num_prefill * prefill.num_devices) // decode.num_devices
        split = Candidate((Stage(PREFILL, prefill, num_prefill), Stage(DECODE, decode, num_decode)))
        first, second = screen.outlook(split, question.demand).stages
        return first.load, second.load, split

    if high < low:
        return []
    while low < high:  # more prefill workers leave fewer that decode: where the fuller stage changes
        middle = (low + high) // 2
        first, second, _ = at(middle)
        low, high = (middle + 1, high) if first > second else (low, middle)
    return [min((at(number) for number in {low, max(1, low - 1)}), key=lambda each: max(each[:2]))[2]]
