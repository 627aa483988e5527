"""Reads the state of this gateway alone: its workers as they report, its lines, its requests. Waits for nothing.

Owns the reading; what of it adds up with that of other gateways is in the `Report` beside it, and `merge` makes one
state of all. Everything is in it: `views` takes out what a viewer may not see.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from relevo import __version__
from relevo.gateway.console.intervals import NUM_KEPT, Interval
from relevo.gateway.console.running import in_flight
from relevo.gateway.console.state import (
    Budget,
    ClassLine,
    Decision,
    Flow,
    Gateway,
    Model,
    ModelPlan,
    ModelTotals,
    Requests,
    RoleCount,
    Server,
    Session,
    State,
    TenantLine,
    Viewer,
)
from relevo.gateway.console.watch import FlowCounts, Observed, Watch
from relevo.gateway.console.worker_state import worker_state
from relevo.gateway.http.context import GatewayContext
from relevo.gateway.metering.key_use import KeyUse
from relevo.gateway.operation.readiness import readiness
from relevo.gateway.text.served_models import ServedModel
from relevo.orchestrator.ports import EngineStatus
from relevo.policy.billing.pricing import plain
from relevo.policy.host.topology import Topology

MAX_SESSIONS = 100  # arbitrary: of the latest
MAX_PLAN_STEPS = 20  # arbitrary: of the latest, of each planner
EVERYTHING = Viewer(sees_all=True, is_admin=True)


class Report(Struct, frozen=True, kw_only=True):
    """What one gateway knows, with what adds up. `intervals`: by model."""

    state: State
    intervals: dict[str, tuple[Interval, ...]]
    open_number: int  # of the interval that is under way


def gather(context: GatewayContext, watch: Watch, *, num_intervals: int = NUM_KEPT) -> Report:
    """With that many closed intervals of each model at most."""
    observed = watch.observe(context.models, context.metrics)
    gateway_id = context.gateway_id
    server = _server(context, observed, gateway_id)
    models = list(context.models)
    num_in_flight = sum(status.num_in_flight for status in observed.statuses.values())
    own = Gateway(
        gateway_id=gateway_id,
        answers=True,
        is_ready=server.is_ready,
        is_draining=server.is_draining,
        uptime_s=server.uptime_s,
        num_in_flight=num_in_flight,
    )
    state = State(
        at_unix_s=observed.at_s,
        viewer=EVERYTHING,
        server=server,
        gateways=(own,),
        models=tuple(_model(context, served, observed.statuses[served.name]) for served in models),
        workers=tuple(
            worker_state(served.name, worker, observed, served.max_running)
            for served in models
            for worker in observed.statuses[served.name].workers
        ),
        flows=_flows(observed, gateway_id),
        latency=(),
        history=None,
        lines=tuple(_lines(observed)),
        tenants=tuple(_tenants(models)),
        budgets=tuple(_budget(use) for use in context.meter.key_uses()),
        decisions=tuple(decisions_since(models, watch, gateway_id, {})),
        requests=Requests(
            num_in_flight=num_in_flight,
            in_flight=tuple(in_flight(models, watch, observed.at_s, gateway_id)),
            slowest=watch.slowest.read(context.requests, context.clock.now_ns(), observed.at_s, gateway_id),
        ),
        sessions=tuple(_sessions(models, watch)),
        plan=_plans(context),
    )
    first = observed.open_number - num_intervals
    return Report(
        state=state,
        intervals={
            name: tuple(each for each in intervals if each.number >= first)
            for name, intervals in observed.intervals.items()
        },
        open_number=observed.open_number,
    )


def _server(context: GatewayContext, observed: Observed, gateway_id: str) -> Server:
    return Server(
        version=__version__,
        gateway_id=gateway_id,
        started_at_unix_s=context.started_at_unix_s,
        uptime_s=max(0.0, observed.at_s - context.started_at_unix_s),
        is_restarted=context.is_restarted,
        is_draining=context.stopping.is_draining,
        is_ready=readiness(context)["ready"],
        failure=context.meter.failure,
    )


def _model(context: GatewayContext, served: ServedModel, status: EngineStatus) -> Model:
    roles: dict[str, tuple[int, int]] = {}
    for worker in status.workers:
        num_workers, num_ready = roles.get(worker.role, (0, 0))
        roles[worker.role] = (num_workers + 1, num_ready + worker.ready)
    return Model(
        name=served.name,
        names=served.names,
        is_ready=status.ready,
        reason="" if status.ready else status.reason or "no worker is ready",
        topology=_topology({role: num_workers for role, (num_workers, _) in roles.items()}),
        roles={role: RoleCount(num_workers=all_, num_ready=ready) for role, (all_, ready) in roles.items()},
        max_model_len=served.max_model_len,
        num_queued=status.num_queued,
        num_in_flight=status.num_in_flight,
        totals=_totals(context, served),
    )


def _topology(num_by_role: dict[str, int]) -> str:
    """As --topology says it, as long as workers have the roles that it can say."""
    if num_by_role.keys() <= {"prefill", "decode", "unified"}:
        num_prefill, num_decode = num_by_role.get("prefill", 0), num_by_role.get("decode", 0)
        if not num_prefill and not num_decode:
            return "unified"
        if num_prefill and num_decode and "unified" not in num_by_role:
            return str(Topology(num_prefill=num_prefill, num_decode=num_decode))
    return " + ".join(f"{num} {role}" for role, num in sorted(num_by_role.items()))


def _totals(context: GatewayContext, served: ServedModel) -> ModelTotals:
    """Requests are counted under the name that their client used."""

    def by(counter: str, label: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for labels, value in context.metrics.counts(counter):
            if value and labels["model_name"] in served.names:
                found[labels[label]] = found.get(labels[label], 0) + int(value)
        return found

    return ModelTotals(
        num_requests=by("vllm:request_success_total", "finished_reason"),
        num_refusals=by("vllm:admission_rejections_total", "reason"),
        num_handoffs=by("relevo:handoffs_total", "outcome"),
        num_prompt_tokens=sum(by("vllm:prompt_tokens_total", "engine").values()),
        num_cached_tokens=sum(by("vllm:prompt_tokens_cached_total", "engine").values()),
    )


def _flows(observed: Observed, gateway_id: str) -> tuple[Flow, ...]:
    recent = observed.recent
    if recent is None or observed.at_s <= recent.at_s:
        return ()
    window_s = observed.at_s - recent.at_s
    flows = []
    for key, counts in observed.sample.flows.items():
        kind, model, source, target = key
        requests, tokens, num_bytes = _since(counts, recent.flows.get(key, (0, 0, 0)))
        if requests or tokens:
            flows.append(
                Flow(
                    kind=kind,
                    model=model,
                    source=source or gateway_id,
                    target=target or gateway_id,
                    requests_per_s=requests / window_s,
                    tokens_per_s=tokens / window_s,
                    bytes_per_s=num_bytes / window_s if kind == "handoff" else None,
                )
            )
    return tuple(flows)


def _since(now: FlowCounts, before: FlowCounts) -> FlowCounts:
    """Another incarnation counts from zero."""
    if any(new < old for new, old in zip(now, before, strict=True)):
        return now
    requests, tokens, num_bytes = (new - old for new, old in zip(now, before, strict=True))
    return requests, tokens, num_bytes


def _lines(observed: Observed) -> list[ClassLine]:
    return [
        ClassLine(model=name, class_name=line.name, num_waiting=line.num_waiting, oldest_wait_s=line.oldest_wait_s)
        for name, status in observed.statuses.items()
        for line in status.lines
    ]


def _tenants(models: Sequence[ServedModel]) -> list[TenantLine]:
    return [
        TenantLine(
            model=served.name,
            tenant=count.tenant,
            number=0,
            is_own=False,
            num_waiting=count.num_waiting,
            num_waiting_batch=count.num_waiting_batch,
            num_sent=count.num_sent,
        )
        for served in models
        for count in served.insight.tenants()
    ]


def decisions_since(
    models: Sequence[ServedModel], watch: Watch, gateway_id: str, numbers: dict[str, int]
) -> list[Decision]:
    """Those after the number that each model had then; in the order in which they were made."""
    found = [
        Decision(
            number=noted.number,
            gateway_id=gateway_id,
            at_unix_s=watch.unix_of_ns(noted.at_ns),
            model=served.name,
            kind=noted.decision.value,
            reason=str(noted.facts.get("reason", "")),
            worker_id=str(noted.facts.get("worker", "")),
            request_id=noted.request_id,
            tenant=noted.tenant,
            facts={name: value for name, value in noted.facts.items() if name not in ("reason", "worker")},
        )
        for served in models
        for noted in served.insight.decisions.since(numbers.get(served.name, 0))
    ]
    return sorted(found, key=lambda decision: decision.at_unix_s)


def _budget(use: KeyUse) -> Budget:
    return Budget(
        key_id=use.key_id,
        key_prefix=use.prefix,
        name=use.name,
        tenant=use.tenant,
        spent=None if use.spent is None else plain(use.spent),
        budget=None if use.budget is None else plain(use.budget),
        period=use.period,
        spent_fraction=float(use.spent / use.budget) if use.spent is not None and use.budget else None,
        tokens_per_minute=use.tokens_per_minute,
        remaining_tokens=use.remaining_tokens,
    )


def _plans(context: GatewayContext) -> tuple[ModelPlan, ...] | None:
    if not context.plans:
        return None
    told = [msgspec.convert(plan(), ModelPlan) for plan in context.plans]
    return tuple(msgspec.structs.replace(plan, decisions=plan.decisions[:MAX_PLAN_STEPS]) for plan in told)


def _sessions(models: Sequence[ServedModel], watch: Watch) -> list[Session]:
    found = []
    for served in models:
        latest = list(served.insight.sessions.items())[-MAX_SESSIONS:]
        found += [
            Session(
                session=session.hex()[:16],
                model=served.name,
                tenant=seen.tenant,
                home_worker_id=seen.worker_id,
                num_prompt_tokens=seen.num_prompt_tokens,
                num_cached_tokens=seen.num_cached_tokens,
                num_requests=seen.num_requests,
                last_seen_unix_s=watch.unix_of_ns(seen.last_seen_at_ns),
            )
            for session, seen in latest
        ]
    return found
