"""A race between simulated modes names the winner that a full comparison names, for less."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from random import Random

import pytest

from relevo.core.ids import WorkerId
from relevo.policy.scaling.demand import Demand, Sample
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import Mode, modes_of
from relevo.policy.scaling.worker_facts import WorkerFacts
from relevo.sim.day.machine import TWO_CORES
from relevo.sim.mode_race import ModeRace
from relevo.sim.mode_worlds import ModeWorlds

IDS = [WorkerId("hybrid-0"), WorkerId("hybrid-1")]
MODES = modes_of({"box": IDS})
NOISE = 0.05  # modes that differ by less are alike in a full comparison of as many requests, too


def worlds() -> ModeWorlds:
    costs = {number: TWO_CORES.times_on(number).costs for number in (1, 2)}
    facts = tuple(
        WorkerFacts(
            worker_id=worker_id, box="box", cores=(core,), costs=costs, num_blocks=1500, block_size=64,
            max_batched_tokens=512, max_prefill_tokens=512, max_running=128, itl_target_s=0.1,
        )
        for core, worker_id in enumerate(IDS)
    )  # fmt: skip
    return ModeWorlds(workers=facts, max_model_len=8192, slo=TWO_CORES.slo, num_requests=120)


def demand(rate: float, prompt: int, output: int) -> Demand:
    """Log-normal, as it was recorded of a phase."""
    rng = Random(f"{rate} {prompt} {output}")

    def drawn(mean: int) -> int:
        return max(1, round(mean * rng.lognormvariate(0.0, 0.45)))

    samples = tuple(Sample(drawn(prompt), drawn(output)) for _ in range(64))
    return Demand(requests_per_s=rate, samples=samples, longest_tokens=4 * (prompt + output))


@cache
def full(asked: Demand) -> Mapping[Mode, ModeOutlook]:
    return {mode: worlds().outlook(mode, asked) for mode in MODES}


@pytest.mark.parametrize(
    "asked", [demand(1.85, 34, 100), demand(0.9, 350, 12), demand(1.9, 60, 40)], ids=["output", "input", "chat"]
)
@pytest.mark.parametrize("present", ["1p1d", "hybrid"])
def test_the_winner_is_that_of_a_full_comparison(asked: Demand, present: str) -> None:
    """Red when a mode is left out by its first requests that wins in the end."""
    now = next(mode for mode in MODES if mode.name == present)
    said, whole = ModeRace(worlds=worlds(), wide=0.25, least=0.02).outlooks(MODES, now, asked), full(asked)
    left = {mode: outlook for mode, outlook in said.items() if not outlook.is_beaten}
    winner = max(left, key=lambda mode: left[mode].attained)
    assert whole[winner].attained >= max(outlook.attained for outlook in whole.values()) - NOISE
    assert now in said and set(said) == set(MODES)
    for mode, outlook in said.items():
        if outlook.is_beaten and mode != now:
            assert whole[mode].attained <= whole[winner].attained + NOISE


def test_it_costs_less_where_all_are_fine() -> None:
    """Counted in requests. Red when every mode is simulated to the end."""
    said = ModeRace(worlds=worlds(), wide=0.25, least=0.02).outlooks(MODES, MODES[-1], demand(1.0, 60, 20))
    assert sum(outlook.num_judged for outlook in said.values()) <= 0.75 * len(MODES) * 84


def test_a_surge_is_simulated_where_there_is_room_for_one() -> None:
    race = ModeRace(worlds=worlds(), wide=0.25, least=0.02)
    calm, full_up = (race.outlooks(MODES[-2:], MODES[-1], demand(rate, 60, 40), 2.0) for rate in (1.0, 8.0))
    assert all(outlook.surge_attained is not None for outlook in calm.values())
    assert all(outlook.surge_attained is None for outlook in full_up.values())


def test_what_waits_in_line_is_ahead_and_is_not_judged() -> None:
    race = ModeRace(worlds=worlds(), wide=0.25, least=0.02)
    calm = demand(1.0, 60, 20)
    standing = Demand(requests_per_s=1.0, samples=calm.samples, longest_tokens=calm.longest_tokens, num_waiting=100)
    (one, other) = (race.outlooks(MODES[-1:], MODES[-1], asked)[MODES[-1]] for asked in (calm, standing))
    assert one.attained > 0.95 and other.attained < one.attained and other.num_judged <= 120
