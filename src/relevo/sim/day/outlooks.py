"""Asks the simulator from inside a simulation, as often as a live planner does, and computes no answer twice.

A demand counts as known when its rate is within a fifth, its mean lengths and bursts within a half of one that was
asked about before, with the same step costs: a day has a thousand ticks and a few dozen kinds of traffic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import log

from relevo.planner.loop import Question
from relevo.planner.remembered import asked_of
from relevo.planner.worker_costs import WorkerCosts
from relevo.policy.scaling.answer_pool import AnswerPool
from relevo.policy.scaling.demand import Demand
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import Mode
from relevo.policy.scaling.planner_limits import PlannerLimits
from relevo.policy.scaling.worker_facts import WorkerFacts
from relevo.sim.mode_race import ModeRace
from relevo.sim.mode_worlds import ModeWorlds
from relevo.telemetry.latency import Slo

_LIMITS = PlannerLimits()
_RATE_STEP, _STEP = 1.2, 1.5  # of what counts as the same demand: rate, lengths. Arbitrary
_LINE_STEP = 4.0  # of a line before it. Arbitrary


@dataclass(slots=True, kw_only=True)
class Outlooks:
    costs: WorkerCosts
    max_model_len: int
    slo: Slo
    surge: float
    num_requests: int = 120  # of one small world: fewer have no p90 without warm-up and drain
    seed: int = 0
    wide: float = _LIMITS.wide
    least: float = _LIMITS.gain
    window_s: float = 60.0  # that demands are counted in
    num_worlds: int = 0  # that were run
    _pool: AnswerPool = field(init=False)
    _raced: dict[object, Mapping[Mode, ModeOutlook]] = field(default_factory=dict)
    _known: dict[tuple[tuple[object, ...], tuple[int, ...]], ModeOutlook] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._pool = AnswerPool(self.window_s, self.least)

    def known(self, question: Question, now_s: float) -> Mapping[Mode, ModeOutlook] | None:
        """Without asking."""
        asked = asked_of(question.modes, question.workers)
        return self._pool.known(asked, question.seen.mode, question.demand, now_s)

    def of(self, question: Question, now_s: float) -> Mapping[Mode, ModeOutlook]:
        """As a live gateway asks: of every mode at once."""
        self.costs.learn(question.workers, now_s)
        asked = asked_of(question.modes, question.workers)
        seed = self._pool.seed(asked, question.demand, now_s)
        return self._pool.add(asked, question.demand, now_s, seed, self._race(question, seed))

    def _race(self, question: Question, seed: int) -> Mapping[Mode, ModeOutlook]:
        worlds = replace(self._worlds(self.costs.facts(question.workers)), seed=self.seed + seed)
        present = question.seen.mode
        key = (present, tuple(worlds.facts_of(mode) for mode in question.modes), _cell(question.demand))
        if key not in self._raced:
            self.num_worlds += len(question.modes)
            race = ModeRace(worlds=worlds, wide=self.wide, least=self.least)
            self._raced[key] = race.outlooks(question.modes, present, question.demand, self.surge)
        return self._raced[key]

    def _worlds(self, facts: tuple[WorkerFacts, ...]) -> ModeWorlds:
        return ModeWorlds(
            workers=facts,
            max_model_len=self.max_model_len,
            slo=self.slo,
            num_requests=self.num_requests,
            seed=self.seed,
        )

    def of_facts(self, facts: tuple[WorkerFacts, ...], mode: Mode, demand: Demand) -> ModeOutlook:
        worlds = self._worlds(facts)
        key = (worlds.facts_of(mode), _cell(demand))
        if key not in self._known:
            self.num_worlds += 1
            self._known[key] = worlds.outlook(mode, demand, self.surge)
        return self._known[key]


def _cell(demand: Demand) -> tuple[int, ...]:
    rate = round(log(max(1e-9, demand.requests_per_s)) / log(_RATE_STEP))
    lengths = (demand.mean_prompt_tokens, demand.mean_output_tokens)
    line = round(log(1.0 + demand.num_waiting) / log(_LINE_STEP))
    bursts = 0 if demand.rhythm is None else 1 + round(log(demand.burstiness) / log(_STEP))
    return (rate, *(round(log(max(1e-9, length)) / log(_STEP)) for length in lengths), line, bursts)
