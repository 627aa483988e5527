"""So many workers that are all like one of them: how they share their work best, and what comes of it. Pure.

Who says what comes of a mode, a simulator, is handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from relevo.core.ids import WorkerId
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import Mode, modes_of
from relevo.policy.scaling.worker_facts import WorkerFacts

_GAIN = 0.03  # of requests that meet the targets, for which workers of one number share their work otherwise


def alike(one: WorkerFacts, number: int) -> tuple[WorkerFacts, ...]:
    """Each on a machine of its own."""
    return tuple(replace(one, worker_id=WorkerId(f"w{place}"), box=f"w{place}") for place in range(number))


def best_mode(
    number: int, present: Mode | None, goal: float, answer: Callable[[Mode], ModeOutlook]
) -> tuple[Mode, ModeOutlook]:
    """Of so many workers that are `alike`. `present`: that was best before, which is asked about first, and stays where
    it meets the targets for `goal` of the requests, or no other one is better by more than chance."""
    modes = modes_of({f"w{place}": [WorkerId(f"w{place}")] for place in range(number)})
    plausible = [mode for mode in modes if mode.name == "unified" or _is_spilling(mode, number)]
    first = present if present is not None and present in plausible else plausible[0]
    known = {first: answer(first)}
    if known[first].attained < goal:
        known |= {mode: answer(mode) for mode in plausible if mode != first}
    best = max(known, key=lambda mode: known[mode].attained)
    if present is not None and present in known and known[best].attained < known[present].attained + _GAIN:
        best = present
    return best, known[best]


def _is_spilling(mode: Mode, number: int) -> bool:
    """NpMh with at most half of the workers for prompts alone."""
    return mode.name.endswith("h") and mode.name != "hybrid" and 2 * int(mode.name.split("p")[0]) <= number
