"""How a gateway reaches engines that are not ours: those that it was started with, and those of boxes that join.

All of one model are in one pool, so that those that do not fit each other are refused wherever they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relevo.build.clock import MonotonicClock
from relevo.build.configs import ServedModelConfig
from relevo.engines.spec import EngineSpec

if TYPE_CHECKING:
    from relevo.engines.opening import Opener
    from relevo.engines.pool import EngineMetrics, EnginePool


class EngineLinks:
    """Of one model. What HTTP needs is imported with the first engine."""

    def __init__(self, config: ServedModelConfig, metrics: EngineMetrics) -> None:
        self._config, self._metrics = config, metrics
        self._pool: EnginePool | None = None
        self._openers: dict[str, Opener] = {}  # by address
        for worker in config.workers:
            if worker.engine is not None:
                self.put(worker.engine)

    def at(self, address: str) -> Opener | None:
        return self._openers.get(address)

    def put(self, spec: EngineSpec) -> None:
        """It is there, or there is another way to it."""
        from relevo.engines.opening import Opener

        known = self._openers.get(spec.address)
        if known is None:
            self._openers[spec.address] = Opener(spec, self._pooled())
        else:
            known.spec = spec

    def remove(self, address: str) -> None:
        """It is not waited for any more."""
        opener = self._openers.pop(address, None)
        if opener is not None:
            opener.close("its node has left")

    def drain(self, address: str) -> None:
        """It takes nothing new."""
        opener = self._openers.get(address)
        if opener is not None:
            opener.drain()

    def end(self, worker_id: str, reason: str) -> bool:
        """Its link. False: it is no engine."""
        opener = next((each for each in self._openers.values() if each.spec.worker_id == worker_id), None)
        if opener is not None:
            opener.end(reason)
        return opener is not None

    def _pooled(self) -> EnginePool:
        from relevo.engines.moments import Moments
        from relevo.engines.pool import EnginePool

        if self._pool is None:
            clock = MonotonicClock()
            self._pool = EnginePool(
                model=self._config.served_model_names[0],
                clock=clock,
                moments=Moments(clock),
                metrics=self._metrics,
                prefill_s=self._config.prefill_timeout_s,
                step_s=self._config.transfer_timeout_s,
            )
        return self._pool
