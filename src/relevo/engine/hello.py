"""How a worker introduces itself: first on every connection."""

from __future__ import annotations

from dataclasses import dataclass

from relevo.core.events import UNKNOWN_LIMITS, WorkerLimits, WorkerLoad
from relevo.core.handoff import KVSite
from relevo.core.ids import RequestId, WorkerId
from relevo.core.ports import ModelRunner
from relevo.wire import messages as wire


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIdentity:
    worker_id: WorkerId
    epoch: int
    pid: int
    role: str
    model_name: str
    limits: WorkerLimits = UNKNOWN_LIMITS
    cores: tuple[int, ...] = ()  # that it was started on
    num_ranks: int = 1

    def hello(
        self, runner: ModelRunner, kv_site: KVSite, load: WorkerLoad, orphans: tuple[RequestId, ...]
    ) -> wire.Hello:
        return wire.Hello(
            protocol_version=wire.PROTOCOL_VERSION,
            worker_id=self.worker_id,
            epoch=self.epoch,
            pid=self.pid,
            role=self.role,
            layout=runner.layout,
            model_name=self.model_name,
            vocab_size=runner.vocab_size,
            max_model_len=runner.max_model_len,
            kv_site=kv_site,
            load=load,
            orphans=orphans,
            limits=self.limits,
            cores=self.cores,
            num_ranks=self.num_ranks,
        )
