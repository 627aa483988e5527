"""Composition of the traffic log in a gateway: a recorder for each model, and notes of the workers that serve."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relevo import __version__
from relevo.build.clock import MonotonicClock
from relevo.build.configs import GatewayConfig, ServedModelConfig
from relevo.build.role_planner import rules_of
from relevo.core.events import StepCosts
from relevo.orchestrator.in_flight import InFlightRequest
from relevo.orchestrator.ports import TokenGenerator, WorkerStatus
from relevo.planner.traffic_log import TrafficLog
from relevo.planner.traffic_recorder import TrafficRecorder
from relevo.planner.worker_costs import WorkerCosts
from relevo.policy.scaling.worker_facts import WorkerFacts
from relevo.telemetry.latency import RequestRecord
from relevo.telemetry.metrics import GatewayMetrics

log = logging.getLogger("relevo.planner")

_FIRST_LOOK_S = 0.5  # until workers are there
_LOOK_S = 10.0  # arbitrary: how late another role is noted
_AGAIN_S = 300.0  # arbitrary: step costs are learned all the time
_CLOSE_S = 1.0


@dataclass(slots=True, kw_only=True)
class TrafficRecording:
    """Of one model in one gateway: its recorder, and what was last noted of its workers."""

    config: ServedModelConfig
    recorder: TrafficRecorder
    server: str  # of one start of a gateway: its caches were empty then
    _costs: WorkerCosts
    generator: TokenGenerator | None = None  # once there is one
    _noted: Any = None  # roles and sizes, as they were noted
    _noted_at_s: float = 0.0
    _num_noted: int = 0  # requests by then

    @property
    def has_noted(self) -> bool:
        return self._noted is not None

    def ended(self, in_flight: InFlightRequest) -> None:
        self.recorder.ended(in_flight)

    def look_safely(self, now_s: float, again_s: float = _AGAIN_S) -> None:
        """What cannot be noted ends no gateway."""
        try:
            self.look(now_s, again_s)
        except Exception:
            log.exception("what serves could not be noted in the traffic log")

    def look(self, now_s: float, again_s: float = _AGAIN_S) -> None:
        """Notes what serves, where it changed, or costs may have and requests came, but not within `again_s`."""
        if self.generator is None:
            return
        workers = [worker for worker in self.generator.status().workers if worker.ready]
        if not workers:
            return
        self._costs.learn(workers, now_s)
        shape = [(worker.worker_id, worker.role, worker.epoch, len(worker.cores)) for worker in workers]
        is_due = now_s - self._noted_at_s >= again_s and self.recorder.num_requests > self._num_noted
        if shape != self._noted or is_due:
            self._noted, self._noted_at_s, self._num_noted = shape, now_s, self.recorder.num_requests
            self.recorder.serves(self._facts(workers))

    def _facts(self, workers: Sequence[WorkerStatus]) -> dict[str, Any]:
        config = self.config
        layout = next((worker.layout for worker in workers if worker.layout is not None), None)
        return {
            "server": self.server,
            "release": __version__,
            "names": list(config.served_model_names),
            "model_hash": config.model_hash,
            "max_model_len": config.max_model_len,
            "kv_bytes_per_token": layout.bytes_per_token if layout is not None else None,
            "enable_prefix_caching": config.enable_prefix_caching,
            "workers": [
                _worker_row(facts, worker) for facts, worker in zip(self._costs.facts(workers), workers, strict=True)
            ],
        }


def _worker_row(facts: WorkerFacts, worker: WorkerStatus) -> dict[str, Any]:
    return {
        "worker": facts.worker_id,
        "role": worker.role,
        "box": facts.box,
        "cores": list(facts.cores),
        "own_costs": _costs_row(worker.load.costs),
        "costs": {str(number): _costs_row(costs) for number, costs in facts.costs.items()},
        "num_blocks": facts.num_blocks,
        "block_size": facts.block_size,
        "batched_tokens": facts.max_batched_tokens,
        "prefill_tokens": facts.max_prefill_tokens,
        "running": facts.max_running,
        "itl_target_s": facts.itl_target_s,
    }


def _costs_row(costs: StepCosts) -> list[float]:
    return [costs.base_s, costs.per_token_s, costs.per_kv_token_s]


@dataclass(slots=True)
class TrafficRecordings:
    """Of all models of one gateway, by their first names; none: it is not asked for."""

    log: TrafficLog
    by_model: Mapping[str, TrafficRecording]

    def of(self, model: ServedModelConfig) -> TrafficRecording | None:
        return self.by_model.get(model.served_model_names[0])

    def finished(self, record: RequestRecord) -> None:
        for recording in self.by_model.values():
            recording.recorder.finished(record)

    async def run(self) -> None:
        while self.by_model:
            now_s = time.monotonic()
            for recording in self.by_model.values():
                recording.look_safely(now_s)
            has_noted = all(recording.has_noted for recording in self.by_model.values())
            await asyncio.sleep(_LOOK_S if has_noted else _FIRST_LOOK_S)

    def close(self) -> None:
        """With what steps cost in the end."""
        for recording in self.by_model.values():
            recording.look_safely(time.monotonic(), again_s=0.0)
        self.log.close(_CLOSE_S)


def traffic_recordings(config: GatewayConfig, metrics: GatewayMetrics) -> TrafficRecordings:
    kept = TrafficLog(Path(config.traffic_log_dir), config.traffic_log_bytes)
    server = secrets.token_hex(4)
    models = config.models if config.traffic_log_bytes else ()
    found = TrafficRecordings(
        kept,
        {model.served_model_names[0]: _recording(model, kept, config.traffic_log_key, server) for model in models},
    )
    if found.by_model:
        metrics.on_request_finished(found.finished)
    return found


def _recording(model: ServedModelConfig, kept: TrafficLog, key: str, server: str) -> TrafficRecording:
    recorder = TrafficRecorder(
        model=model.served_model_names[0],
        block_size=model.block_size,
        key=bytes.fromhex(key),
        put=kept.put,
        clock=MonotonicClock(),
        unix_s=time.time,
    )
    return TrafficRecording(config=model, recorder=recorder, server=server, _costs=WorkerCosts(rules_of(model)))
