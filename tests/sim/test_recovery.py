"""After an overload service is soon as before it: split workers, the whole gateway, virtual time."""

from __future__ import annotations

from traffic import Traffic
from worlds import LAYOUT, config, split

from relevo.core.events import StepCosts
from relevo.policy.admission.admission import AdmissionLimits
from relevo.policy.perf.step_time import FittedStepTimes
from relevo.sim.config import NetworkSpec, ServingSpec

MAX_TTFT_S = 3.0
LIMITS = AdmissionLimits(max_queued_requests=256, max_queued_tokens=10**6, max_ttft_s=MAX_TTFT_S, max_line_s=300.0)
TIMES = FittedStepTimes(StepCosts(base_s=0.03, per_token_s=0.001, per_kv_token_s=2e-6))
LONGEST_STEP_S = 0.03 + 256 * 0.001  # a prediction is no better than that
BUSY = (10.0, 22.0)
CAPACITY_PER_S = 6.6  # of the world's workers for its requests; the last assertions would show a wrong one
RECOVERY_LOAD = 0.8
RECOVERY_S = 5.0
FROM_S, TO_S, END_S = 6.0, 22.0, 31.0  # of the overload, and of what follows


def ask(world: Traffic, at_s: float) -> None:
    world.ask(at_s, num_prompt=world.rng.randint(64, 256), num_outputs=world.rng.randint(4, 16))


def poisson(world: Traffic, rate_per_s: float, from_s: float, to_s: float) -> None:
    at_s = from_s + world.rng.expovariate(rate_per_s)
    while at_s < to_s:
        ask(world, at_s)
        at_s += world.rng.expovariate(rate_per_s)


def evenly(world: Traffic, rate_per_s: float, from_s: float, to_s: float) -> None:
    """No bursts: each of those would be an overload of its own."""
    for index in range(round((to_s - from_s) * rate_per_s)):
        ask(world, from_s + index / rate_per_s)


def test_five_seconds_after_four_times_the_load_newcomers_are_served_as_before_it() -> None:
    """Red when the line of an overload is as long as it may ever be: three seconds of work, at 0.8 of the load there
    for twelve. The same when newcomers pay for what was, or when the line is so short that workers lack work."""
    traits = {"box": "box", "num_blocks": 2048, "max_running": 64, "times": TIMES}
    workers = split(1, 1, max_batched_tokens=256, max_prefill_tokens=256, **traits)
    serving = ServingSpec(layout=LAYOUT, max_model_len=4096, admission=LIMITS)
    world = Traffic(config(workers, serving=serving, network=NetworkSpec(shares_memory=True)), windows=[BUSY])
    evenly(world, RECOVERY_LOAD * CAPACITY_PER_S, 0.0, 5.0)
    poisson(world, 4.0 * CAPACITY_PER_S, FROM_S, TO_S)
    evenly(world, RECOVERY_LOAD * CAPACITY_PER_S, TO_S, END_S)
    world.run()
    before = [asked.ttft_s or 0.0 for asked in world.between(0.0, 5.0)]
    later = [asked.ttft_s for asked in world.between(TO_S + RECOVERY_S, END_S)]
    assert later and not any(asked.refused for asked in world.between(TO_S + 1.0, END_S))
    assert max(ttft_s or MAX_TTFT_S for ttft_s in later) <= max(before) + 0.1 * MAX_TTFT_S
    served = [asked for asked in world.between(FROM_S, TO_S) if not asked.refused]
    assert all((asked.ttft_s or 0.0) <= MAX_TTFT_S + LONGEST_STEP_S for asked in served)
    assert len(served) >= 0.9 * CAPACITY_PER_S * (TO_S - FROM_S)
    assert all(world.busy_fraction(name, BUSY) >= 0.93 for name in ("prefill-0", "decode-0"))
