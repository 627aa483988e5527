"""Refits `policy.perf.known_engines` from the silicon table: `python -m relevo.sim.ladder DATA --constants`.

A time to first token has a floor that steps do not explain: HTTP, tokenizing, scheduling, launches that prompts are too
short to hide. It is taken from servers with four requests or fewer, as what their 1,024-token prompts took beyond the
step that computed them, and belongs to an engine: the median over its devices and models.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median

from relevo.policy.perf.engine_constants import EngineConstants
from relevo.sim.ladder.leave_out import ClassName, fitted_constants
from relevo.sim.ladder.silicon_steps import SiliconServers
from relevo.sim.ladder.tpot_rung import CONFIGS, read_rows

_FEW_REQUESTS, _SHORT_PROMPT = 4, 1024


def known_constants(folder: Path) -> dict[ClassName, EngineConstants]:
    table = read_rows(folder)
    servers = SiliconServers(folder / CONFIGS)
    fitted = fitted_constants([servers.steps(row) for row in table.rows])
    beyond: defaultdict[str, list[float]] = defaultdict(list)
    for row in table.rows:
        if not row.prefill and row.concurrency <= _FEW_REQUESTS and row.num_input_tokens == _SHORT_PROMPT:
            step_s = servers.prompt_s(row, fitted[row.engine, row.device])
            beyond[row.engine].append(row.ttft_s - step_s)
    return {
        (engine, device): replace(constants, ttft_floor_s=max(0.0, median(beyond[engine])))
        for (engine, device), constants in fitted.items()
    }


def as_source(found: dict[ClassName, EngineConstants]) -> str:
    """Rows of the table, to be pasted."""
    return "\n".join(
        f'    ("{engine}", "{device}"): _of({_numbers(found[engine, device])}),' for engine, device in found
    )


def _numbers(constants: EngineConstants) -> str:
    efficiencies = (
        constants.memory_efficiency,
        constants.expert_efficiency,
        constants.compute_efficiency,
        constants.link_efficiency,
    )
    times_s = (constants.layer_s, constants.expert_layer_s, constants.collective_s, constants.row_s)
    numbers = [f"{value:.3f}" for value in efficiencies] + [f"{time_s * 1e6:.1f}" for time_s in times_s]
    return ", ".join((*numbers, f"{constants.ttft_floor_s * 1e3:.0f}"))
