"""The numbers by which `policy.scaling.role_planner` decides."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerLimits:
    """All arbitrary but for what the operator sets."""

    tick_s: float = 5.0
    min_requests: int = 20  # in the window, for lengths to mean anything
    few_requests: int = 10  # likewise, where `wide` is what matters
    few_judged: int = 6  # of which it is known whether they met the targets, likewise
    wide: float = 0.25  # gain for which one look is enough, and part of requests that then misses the targets
    gain: float = 0.02  # see `ModeOutlook.better_by`: that a change must promise above what it costs and past errors
    error_weight: float = 1.0  # of past errors; 0: predictions are believed whatever came of the last ones
    min_compared: int = 2  # predictions with what came of them, before anything is changed
    num_ticks_of_gain: int = 2  # in a row
    surge: float = 2.0  # times the expected load: the head-room that modes are compared by, beside it
    stays_s: float = 120.0  # that a mode has to stay to be worth the change to it
    cool_down_s: float = 30.0  # after a change
    arrive_s: float = 30.0  # after a change, until every worker has to have its new role
    settle_s: float = 20.0  # after a change, until it is judged
    hand_hold_s: float = 300.0  # after a change by hand
    block_s: float = 600.0  # after a change that was taken back
    num_ticks_ahead: int = 6  # that a forecast looks
    season_ticks: int = 17_280  # a day
