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


def doubts(noise: float, past_error: float | None) -> str:
    """Why a gain that would do otherwise does not: chance or, where one is given, the error of predictions."""
    if past_error is None:
        return f"; chance alone makes {noise:.0%} of so few simulated requests, which is not less than the gain"
    return f"; predictions were {past_error:.0%} off of late, which is not less than the gain"


def broken(mode: Mode, promised: float, attained: float, block_s: float) -> str:
    """Why a mode is left that the simulator thinks well of."""
    return (
        f"{mode} has been promised to meet the targets for {promised:.0%} and does for {attained:.0%}, not again for "
        f"{block_s:.0f} s"
    )
