"""After an overload service is soon as before it: split workers, the whole gateway, virtual time."""

from __future__ import annotations

from recovery_world import RecoveryWorld

from relevo.policy.admission.admission import AdmissionLimits

MAX_TTFT_S = 3.0
LIMITS = AdmissionLimits(max_queued_requests=256, max_queued_tokens=10**6, max_ttft_s=MAX_TTFT_S, max_line_s=300.0)
SPLIT = {"prefill-0": "prefill", "decode-0": "decode"}
CAPACITY_PER_S = 6.6  # of the world's workers for its requests; the last assertions would show a wrong one
RECOVERY_LOAD = 0.8
RECOVERY_S = 5.0
FROM_S, TO_S, END_S = 6.0, 22.0, 31.0  # of the overload, and of what follows


def test_five_seconds_after_four_times_the_load_newcomers_are_served_as_before_it() -> None:
    """Red when the line of an overload is as long as it may ever be: three seconds of work, at 0.8 of the load there
    for twelve. The same when newcomers pay for what was, or when the line is so short that workers lack work."""
    world = RecoveryWorld(SPLIT, LIMITS)
    world.evenly(RECOVERY_LOAD * CAPACITY_PER_S, 0.0, 5.0)
    world.poisson(4.0 * CAPACITY_PER_S, FROM_S, TO_S)
    world.evenly(RECOVERY_LOAD * CAPACITY_PER_S, TO_S, END_S)
    world.run()
    before = [asked.ttft_s or 0.0 for asked in world.between(0.0, 5.0)]
    later = [asked.ttft_s for asked in world.between(TO_S + RECOVERY_S, END_S)]
    assert later and not any(asked.refused for asked in world.between(TO_S + 1.0, END_S))
    assert max(ttft_s or MAX_TTFT_S for ttft_s in later) <= max(before) + 0.1 * MAX_TTFT_S
    served = [asked for asked in world.between(FROM_S, TO_S) if not asked.refused]
    assert all((asked.ttft_s or 0.0) <= MAX_TTFT_S for asked in served)
    assert len(served) >= 0.9 * CAPACITY_PER_S * (TO_S - FROM_S)
    assert all(world.busy_fraction(name, FROM_S + 4.0, TO_S) >= 0.93 for name in SPLIT)
    assert world.admission.is_idle and world.placement.is_idle
