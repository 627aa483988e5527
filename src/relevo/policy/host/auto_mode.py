"""What `--topology auto` means beside its workers: whether roles follow the traffic, and what is aimed at. Pure."""

from __future__ import annotations

AUTO_TTFT_S = 2.0  # where the operator set no target. Arbitrary, as the next
AUTO_ITL_S = 0.1  # what a reader takes for standing still is longer


def planner_for(asked: str, *, is_auto: bool, num_workers: int, num_gateways: int, plans_number: bool = False) -> str:
    """`asked` but for `auto`: on, where the topology was left to Relevo and there is something to choose, or it is to
    choose the number of workers."""
    if asked != "auto" or plans_number:
        return "on" if asked == "auto" else asked
    return "on" if is_auto and num_workers > 1 and num_gateways == 1 else "off"


def itl_target_s(asked_s: float | None, *, is_auto: bool) -> float:
    """That bounds prompts beside running streams. A topology that was written does what it was told to: 0, none."""
    return asked_s or (AUTO_ITL_S if is_auto else 0.0)
