"""How a gateway reaches engines that are not ours."""

from __future__ import annotations

from relevo.build.clock import MonotonicClock
from relevo.build.configs import ServedModelConfig
from relevo.engines.moments import Moments
from relevo.engines.opening import Opener
from relevo.engines.pool import EngineMetrics, EnginePool


def build_openers(config: ServedModelConfig, metrics: EngineMetrics) -> dict[str, Opener]:
    """By the address of the worker."""
    specs = {worker.address: worker.engine for worker in config.workers if worker.engine is not None}
    clock = MonotonicClock()
    pool = EnginePool(
        model=config.served_model_names[0],
        clock=clock,
        moments=Moments(clock),
        metrics=metrics,
        prefill_s=config.prefill_timeout_s,
        step_s=config.transfer_timeout_s,
    )
    return {address: Opener(spec, pool) for address, spec in specs.items()}
