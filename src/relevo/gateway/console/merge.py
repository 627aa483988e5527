"""One state of several gateways over the same workers; of one alone, too.

Owns what adds up (requests, lines, what flows, latencies) and what does not: workers report the same to every gateway,
so their counters are those of the gateway that knows most, and a worker is ready when all may send to it. Percentiles
are made here, of what all gateways counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from relevo.gateway.console.gather import MAX_SESSIONS, Report
from relevo.gateway.console.intervals import INTERVAL_S, NUM_LAST_MINUTE, Interval, added_up
from relevo.gateway.console.past import QUANTILES, hit_fraction
from relevo.gateway.console.running import MAX_IN_FLIGHT
from relevo.gateway.console.state import (
    ClassLine,
    Gateway,
    Latency,
    Model,
    ModelTotals,
    Percentiles,
    Session,
    State,
    TenantLine,
    Worker,
    WorkerTotals,
)
from relevo.telemetry.latency_histogram import LatencyHistogram

MAX_DECISIONS = 400  # arbitrary
_replace = msgspec.structs.replace


def merged(own: Report, others: Mapping[str, Report | None]) -> State:
    """`others`: by gateway; None: it did not answer. `history` is left out: see `past`."""
    answers = [own, *(report for report in others.values() if report is not None)]
    states = [report.state for report in answers]
    state = own.state
    by_model = {model.name: _minute(answers, model.name, own.open_number) for model in state.models}
    in_flight = sorted(
        (each for one in states for each in one.requests.in_flight), key=lambda each: each.started_at_unix_s
    )
    slowest = sorted((each for one in states for each in one.requests.slowest), key=lambda each: -each.e2e_s)
    sessions = sorted((each for one in states for each in one.sessions), key=lambda each: -each.last_seen_unix_s)
    decisions = sorted((each for one in states for each in one.decisions), key=lambda each: each.at_unix_s)
    return _replace(
        state,
        gateways=_gateways(states, others),
        models=tuple(_model(model, states) for model in state.models),
        workers=tuple(_worker(worker, states, by_model[worker.model]) for worker in state.workers),
        flows=tuple(flow for one in states for flow in one.flows),
        latency=_latencies(by_model, state.server.uptime_s, state.at_unix_s - own.open_number * INTERVAL_S),
        lines=_lines(states),
        tenants=_tenants(states),
        decisions=tuple(decisions[-MAX_DECISIONS:]),
        requests=_replace(
            state.requests,
            num_in_flight=sum(one.requests.num_in_flight for one in states),
            in_flight=tuple(in_flight[:MAX_IN_FLIGHT]),
            slowest=tuple(slowest),
        ),
        sessions=tuple(_one_of_each(sessions)[:MAX_SESSIONS]),
    )


def _percentiles(counts: Mapping[int, int]) -> Percentiles:
    histogram = LatencyHistogram(dict(counts))
    p50, p90, p99 = histogram.percentiles_s(QUANTILES)
    return Percentiles(num_samples=histogram.num_samples, p50_s=p50, p90_s=p90, p99_s=p99)


def _minute(reports: Sequence[Report], model: str, open_number: int) -> Interval:
    """All that was counted in the last minute, the interval under way included."""
    first = open_number - NUM_LAST_MINUTE + 1
    found = (each for report in reports for each in report.intervals.get(model, ()) if each.number >= first)
    return added_up(open_number, found)


def _latencies(by_model: Mapping[str, Interval], uptime_s: float, open_s: float) -> tuple[Latency, ...]:
    """`open_s`: how long the interval that is under way has lasted."""
    window_s = max(1.0, min(uptime_s, (NUM_LAST_MINUTE - 1) * INTERVAL_S + open_s))
    together = {"": added_up(0, by_model.values()), **by_model}
    return tuple(
        Latency(
            model=name,
            ttft=_percentiles(minute.ttft),
            itl=_percentiles(minute.itl),
            e2e=_percentiles(minute.e2e),
            requests_per_s=minute.num_requests / window_s,
            output_tokens_per_s=minute.num_output_tokens / window_s,
            hit_fraction=hit_fraction(minute),
        )
        for name, minute in together.items()
    )


def _gateways(states: Sequence[State], others: Mapping[str, Report | None]) -> tuple[Gateway, ...]:
    silent = [
        Gateway(gateway_id=name, answers=False, is_ready=False) for name, report in others.items() if report is None
    ]
    return tuple(sorted([*(one.gateways[0] for one in states), *silent], key=lambda each: each.gateway_id))


def _model(model: Model, states: Sequence[State]) -> Model:
    same = [each for one in states for each in one.models if each.name == model.name]
    unready = next((each for each in same if not each.is_ready), model)
    return _replace(
        model,
        is_ready=unready.is_ready,
        reason=unready.reason,
        num_queued=sum(each.num_queued for each in same),
        num_in_flight=sum(each.num_in_flight for each in same),
        totals=ModelTotals(
            num_requests=_summed(each.totals.num_requests for each in same),
            num_refusals=_summed(each.totals.num_refusals for each in same),
            num_handoffs=_summed(each.totals.num_handoffs for each in same),
            num_prompt_tokens=sum(each.totals.num_prompt_tokens for each in same),
            num_cached_tokens=sum(each.totals.num_cached_tokens for each in same),
        ),
    )


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for name, number in each.items():
            total[name] = total.get(name, 0) + number
    return total


def _worker(worker: Worker, states: Sequence[State], minute: Interval) -> Worker:
    same = [
        each
        for one in states
        for each in one.workers
        if (each.model, each.worker_id) == (worker.model, worker.worker_id)
    ]
    unready = next((each for each in same if not each.is_ready), worker)
    names = WorkerTotals.__struct_fields__
    return _replace(
        worker,
        is_ready=unready.is_ready,
        why_not_ready=unready.why_not_ready,
        epoch=min(each.epoch for each in same),
        totals=WorkerTotals(**{name: max(getattr(each.totals, name) for each in same) for name in names}),
        itl=_percentiles(minute.itl_by_worker.get(worker.worker_id, {})),
    )


def _lines(states: Sequence[State]) -> tuple[ClassLine, ...]:
    found: dict[tuple[str, str], ClassLine] = {}
    for line in (line for one in states for line in one.lines):
        key = (line.model, line.class_name)
        before = found.get(key)
        if before is not None:
            line = _replace(
                line,
                num_waiting=before.num_waiting + line.num_waiting,
                oldest_wait_s=max(before.oldest_wait_s, line.oldest_wait_s),
            )
        found[key] = line
    return tuple(found.values())


def _tenants(states: Sequence[State]) -> tuple[TenantLine, ...]:
    """Numbered by what they have, most first."""
    found: dict[tuple[str, str], TenantLine] = {}
    for line in (line for one in states for line in one.tenants):
        key = (line.model, line.tenant)
        before = found.get(key)
        if before is not None:
            line = _replace(
                line,
                num_waiting=before.num_waiting + line.num_waiting,
                num_waiting_batch=before.num_waiting_batch + line.num_waiting_batch,
                num_sent=before.num_sent + line.num_sent,
            )
        found[key] = line
    ordered = sorted(found.values(), key=lambda line: (-line.num_waiting - line.num_sent, line.tenant, line.model))
    return tuple(_replace(line, number=number) for number, line in enumerate(ordered, start=1))


def _one_of_each(sessions: Iterable[Session]) -> list[Session]:
    """Of sessions that several gateways have seen, what was seen last."""
    found: dict[tuple[str, str], Session] = {}
    for each in sessions:
        key = (each.model, each.session)
        latest = found.setdefault(key, each)
        if latest is not each:
            found[key] = _replace(latest, num_requests=latest.num_requests + each.num_requests)
    return list(found.values())
