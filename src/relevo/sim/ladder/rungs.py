"""The rungs there are, by number."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from relevo.core.errors import StartError
from relevo.sim.ladder.agents_rung import agents_rung
from relevo.sim.ladder.distserve_rung import distserve_rung
from relevo.sim.ladder.errors import RungReport
from relevo.sim.ladder.live_rung import live_rung
from relevo.sim.ladder.mooncake_rung import mooncake_rung
from relevo.sim.ladder.plan_rung import plan_rung
from relevo.sim.ladder.splitwise_rung import splitwise_rung
from relevo.sim.ladder.tpot_rung import tpot_rung
from relevo.sim.ladder.vllm_rung import vllm_rung

RUNGS: Mapping[int, Callable[[Path], RungReport]] = {
    1: tpot_rung,
    2: vllm_rung,
    3: distserve_rung,
    4: splitwise_rung,
    5: mooncake_rung,
    6: live_rung,
    7: agents_rung,
    8: plan_rung,
}
_RECORDED_HERE = {6}  # of a folder of their own


def run_ladder(folder: Path, numbers: Collection[int] = ()) -> Sequence[RungReport]:
    """Rungs of these numbers, without any all that read published data, over what is in `folder`. Raises StartError."""
    unknown = sorted(set(numbers) - set(RUNGS))
    if unknown:
        raise StartError(f"no rung {unknown[0]}; there are {', '.join(map(str, RUNGS))}")
    try:
        return [RUNGS[number](folder) for number in sorted(numbers or set(RUNGS) - _RECORDED_HERE)]
    except FileNotFoundError as error:
        raise StartError(f"the ladder needs measured data in {folder}: {error.filename} is not there") from error
