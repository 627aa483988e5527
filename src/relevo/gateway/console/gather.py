"""Reads the state of this gateway: its workers as they report, its lines, its requests. Waits for nothing."""

from __future__ import annotations

import time

from relevo import __version__
from relevo.gateway.console.state import (
    Blocks,
    ClassLine,
    Costs,
    Gateway,
    Model,
    ModelTotals,
    Percentiles,
    Requests,
    RoleCount,
    Server,
    State,
    Viewer,
    Worker,
    WorkerRates,
    WorkerTotals,
)
from relevo.gateway.http.context import GatewayContext
from relevo.gateway.operation.readiness import readiness
from relevo.gateway.text.served_models import ServedModel
from relevo.orchestrator.ports import EngineStatus, WorkerStatus
from relevo.policy.host.topology import Topology


def gather(context: GatewayContext, viewer: Viewer) -> State:
    statuses = [(served, served.generator.status()) for served in context.models]
    server = _server(context)
    num_in_flight = sum(status.num_in_flight for _, status in statuses)
    return State(
        at_unix_s=time.time(),
        viewer=viewer,
        server=server,
        gateways=(
            Gateway(
                gateway_id=server.gateway_id,
                answers=True,
                is_ready=server.is_ready,
                is_draining=server.is_draining,
                uptime_s=server.uptime_s,
                num_in_flight=num_in_flight,
            ),
        ),
        models=tuple(_model(served, status) for served, status in statuses),
        workers=tuple(_worker(served.name, worker) for served, status in statuses for worker in status.workers),
        flows=(),
        latency=(),
        history=None,
        lines=tuple(
            ClassLine(
                model=served.name,
                class_name=line.name,
                num_waiting=line.num_waiting,
                oldest_wait_s=line.oldest_wait_s,
            )
            for served, status in statuses
            for line in status.lines
        ),
        tenants=(),
        budgets=(),
        decisions=(),
        requests=Requests(num_in_flight=num_in_flight, in_flight=(), slowest=()),
        sessions=(),
    )


def _server(context: GatewayContext) -> Server:
    return Server(
        version=__version__,
        gateway_id=context.others.gateway_id if context.others is not None else "",
        started_at_unix_s=context.started_at_unix_s,
        uptime_s=max(0.0, time.time() - context.started_at_unix_s),
        is_restarted=context.is_restarted,
        is_draining=context.stopping.is_draining,
        is_ready=readiness(context)["ready"],
        failure=context.meter.failure,
    )


def _model(served: ServedModel, status: EngineStatus) -> Model:
    roles: dict[str, tuple[int, int]] = {}
    for worker in status.workers:
        num_workers, num_ready = roles.get(worker.role, (0, 0))
        roles[worker.role] = (num_workers + 1, num_ready + worker.ready)
    topology = Topology(
        num_prefill=roles.get("prefill", (0, 0))[0],
        num_decode=roles.get("decode", (0, 0))[0],
        num_unified=roles.get("unified", (0, 0))[0],
    )
    return Model(
        name=served.name,
        names=served.names,
        is_ready=status.ready,
        reason="" if status.ready else status.reason or "no worker is ready",
        topology=str(topology),
        roles={role: RoleCount(num_workers=all_, num_ready=ready) for role, (all_, ready) in roles.items()},
        max_model_len=served.max_model_len,
        num_queued=status.num_queued,
        num_in_flight=status.num_in_flight,
        totals=ModelTotals(),
    )


def _worker(model: str, worker: WorkerStatus) -> Worker:
    load, counters, costs = worker.load, worker.counters, worker.load.costs
    return Worker(
        worker_id=worker.worker_id,
        model=model,
        role=worker.role,
        is_ready=worker.ready,
        why_not_ready=worker.why_not_ready,
        epoch=worker.epoch,
        num_running=load.num_running,
        num_waiting=load.num_waiting,
        num_reserved=load.num_reserved,
        num_waiting_prefill_tokens=load.num_waiting_prefill_tokens,
        num_decode_kv_tokens=load.num_decode_kv_tokens,
        max_running=None,
        step_budget_tokens=counters.step_budget_tokens,
        blocks=Blocks(
            num_total=load.num_total_blocks,
            num_held=load.num_held_blocks,
            num_reusable=load.num_reusable_blocks,
            num_free=load.num_free_blocks,
            num_quarantined=load.num_quarantined_blocks,
        ),
        totals=WorkerTotals(
            num_steps=counters.num_steps,
            num_prefill_tokens=counters.num_prefill_tokens,
            num_generation_tokens=counters.num_generation_tokens,
            num_preemptions=counters.num_preemptions,
            num_prefix_queries=counters.num_prefix_queries,
            num_prefix_hits=counters.num_prefix_hits,
            transferred_bytes=counters.transferred_bytes,
            transfer_s=counters.transfer_s,
            num_request_faults=counters.num_request_faults,
            num_restarts=max(0, worker.epoch - 1),
        ),
        rates=WorkerRates(window_s=0.0),
        costs=Costs(base_s=costs.base_s, per_token_s=costs.per_token_s, per_kv_token_s=costs.per_kv_token_s),
        itl=Percentiles(),
    )
