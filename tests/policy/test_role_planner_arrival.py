"""Roles that arrive late or not at all: the planner neither blames a hand nor believes what did not happen."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from test_role_planner import LIMITS, MODES, SPLIT, UNIFIED_MODE, Run, demand, fixed

from relevo.core.ids import WorkerId
from relevo.core.role import DECODE, HYBRID, STANDBY
from relevo.policy.scaling.demand import Demand
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import Mode, mode_named
from relevo.policy.scaling.role_planner import PlanDecision, PlanVerdict, RolePlanner, Seen


@dataclass
class Changed:
    """A planner that has just asked for unified; what the workers then show is the test's."""

    run: Run = field(default_factory=lambda: Run(fixed(unified=4.0, split=2.8, hybrid=3.0)))

    def __post_init__(self) -> None:
        self.run.tick(3.5)
        assert self.run.tick(3.5).verdict is PlanVerdict.CHANGE
        self.run.truth = lambda mode, demand: 2.8

    def show(self, mode: Mode) -> PlanDecision:
        self.run.mode = mode
        return self.run.tick(3.5)


HALF_WAY = mode_named(MODES, {WorkerId("prefill-0"): STANDBY, WorkerId("decode-0"): DECODE})


def test_a_role_that_is_on_its_way_is_no_change_by_hand() -> None:
    """A worker takes a role between two steps, and a step may be long. Red when the planner stops for five minutes
    because a worker is busy."""
    changed = Changed()
    for mode in (SPLIT, HALF_WAY):
        decision = changed.show(mode)
        assert decision.verdict is PlanVerdict.UNKNOWN and "not every worker has its role" in decision.reason
    assert changed.show(UNIFIED_MODE).verdict is PlanVerdict.HOLD


def test_a_change_takes_as_long_as_is_likely_by_what_was_seen() -> None:
    """Somewhere between the last look without all roles and the first with them. Red when a worker that takes its role
    at once is said to have taken until the next look."""
    at_once, late = Changed(), Changed()
    at_once.show(UNIFIED_MODE)
    assert at_once.run.planner.switch_cost == 0.5 * LIMITS.tick_s / LIMITS.stays_s
    for mode in (SPLIT, HALF_WAY, UNIFIED_MODE):
        late.show(mode)
    assert late.run.planner.switch_cost == 2.5 * LIMITS.tick_s / LIMITS.stays_s


def test_roles_that_do_not_come_about_are_given_up() -> None:
    """Red when it waits for ever, or asks for the same mode again at once."""
    changed = Changed()
    ticks = int(LIMITS.arrive_s / LIMITS.tick_s)
    waited = [changed.show(SPLIT) for _ in range(ticks - 1)]
    assert {each.verdict for each in waited} == {PlanVerdict.UNKNOWN}
    given_up = changed.show(SPLIT)
    assert given_up.verdict is PlanVerdict.ADOPT and "did not come about in 30 s" in given_up.reason
    later = [changed.run.tick(3.5) for _ in range(12)]
    assert UNIFIED_MODE not in {each.mode for each in later}


def test_a_hand_that_is_faster_than_the_change_has_its_way() -> None:
    changed = Changed()
    by_hand = mode_named(MODES, {WorkerId("prefill-0"): HYBRID, WorkerId("decode-0"): HYBRID})
    decision = changed.show(by_hand)
    assert decision.verdict is PlanVerdict.ADOPT and "by hand" in decision.reason
    assert changed.run.tick(3.5).verdict is PlanVerdict.HOLD


def test_what_could_not_be_carried_out_did_not_happen() -> None:
    """A worker left between the look and the act. Red when the planner believes in its change, looks back at it, or
    takes the mode that stayed for one that was set by hand."""
    changed = Changed()
    planner = changed.run.planner
    seen = Seen(now_s=changed.run.now_s, mode=SPLIT, num_requests=100, demand=demand(3.5), since_s=0.0)
    decision = planner.not_done(seen, "decode-0 is not there; wait until it is.")
    assert decision.verdict is PlanVerdict.HOLD and decision.mode == SPLIT and planner.num_changes == 0
    assert "nothing was changed: decode-0 is not there" in decision.reason
    after = [changed.show(SPLIT) for _ in range(8)]
    assert PlanVerdict.ADOPT not in {each.verdict for each in after} and PlanVerdict.CHANGE in {
        e.verdict for e in after
    }


def test_two_planners_with_the_same_observations_decide_the_same() -> None:
    """Whatever they are driven by. Red when a decision depends on anything but what it is given."""
    outlooks = {
        mode: ModeOutlook(attained=a, ttft_p90_s=0.1, itl_p90_s=0.01)
        for mode, a in zip(MODES, (1.0, 0.4, 0.6), strict=True)
    }
    told = []
    for _ in range(2):
        planner, mode, decisions = RolePlanner(LIMITS, 1.0, 0.05), SPLIT, []
        for tick in range(40):
            seen = Seen(now_s=5.0 * tick, mode=mode, num_requests=50, demand=demand(2.0 + tick % 3), since_s=5.0 * tick)
            seen = replace(seen, attained=0.4, num_judged=50, unknown="a tick" if tick == 7 else "")
            found = planner.question(seen)
            found = planner.decide(seen, outlooks) if isinstance(found, Demand) else found
            mode = found.mode
            decisions.append(found)
        told.append(decisions)
    assert told[0] == told[1] and len({each.verdict for each in told[0]}) >= 3


def test_a_forecast_is_named_and_the_fallback_too() -> None:
    """A season that was not seen twice cannot be believed. Red when the page says seasonal after an hour."""
    run = Run(fixed(unified=4.0, split=4.0, hybrid=4.0))
    for tick in range(720):
        decision = run.tick(2.0 if tick % 2 else 3.0)
    assert decision.forecast in ("constant", "kalman")
