"""What is said of an outlook, in the reasons of decisions. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import Mode


def words(outlook: ModeOutlook) -> str:
    ttft = "-" if outlook.ttft_p90_s is None else f"{outlook.ttft_p90_s:.2f} s"
    itl = "-" if outlook.itl_p90_s is None else f"{outlook.itl_p90_s * 1e3:.0f} ms"
    surge = "" if outlook.surge_attained is None else f", {outlook.surge_attained:.0%} in a surge"
    return f"is to meet the targets for {outlook.attained:.0%}{surge} (TTFT p90 {ttft}, ITL p90 {itl})"


def next_best(present: Mode, outlooks: Mapping[Mode, ModeOutlook]) -> str:
    others = [mode for mode in outlooks if mode != present]
    if not others:
        return "there is no other mode"
    best = max(others, key=lambda mode: outlooks[mode].better_by(outlooks[present]))
    return f"next best: {best} {words(outlooks[best])}"
