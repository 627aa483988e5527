"""From the results of a simulated run to the numbers that are told of it. Pure.

Percentiles are over all arrivals: what was rejected or not finished counts as slowest, and is counted apart as well.
The first and the last tenth of the arrivals' time meet cold caches and an emptying system; the numbers without them
stand beside those of all. Capacities and costs are of all machines, idle ones included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from relevo.sim.results import RequestOutcome, RequestResult, WorkerResult, WorldResult
from relevo.sim.samples import SharedRuns, latency_samples
from relevo.telemetry.distribution import Distribution
from relevo.telemetry.latency import Slo

_NS_PER_S = 1e9
_DIGITS = 9  # of fractions of time: how many steps were taken at once leaves no trace in a sum of floats
EDGE_FRACTION = 0.1  # of the time from the first arrival to the last, at either end; arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    slo: Slo | None = None
    warm_up_s: float | None = None  # arrivals before are marked as warm-up; None: a tenth of the arrivals' time
    drain_s: float | None = None  # and so are those of the last seconds of the arrivals, as drain; None: a tenth
    prices_per_h: Mapping[str, float] | None = None  # of one device, by the role of its worker; "" for every other role


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """All workers of one role. Fractions are of the whole run; None: the step-time model does not tell."""

    role: str
    num_workers: int
    num_devices: int
    busy_fraction: float  # of the time, in steps
    products_fraction: float | None  # of the products that the devices could have done: what prefill is made of
    bandwidth_fraction: float | None  # of the bytes that they could have read: what decode is made of
    kv_peak_fraction: float  # most blocks that were held on one of them
    num_steps: int
    num_prefill_tokens: int
    num_output_tokens: int
    num_preemptions: int
    num_evicted_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    name: str
    num_bytes: int
    busy_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """In the currency of the prices."""

    per_h: float
    total: float
    per_million_output_tokens: float | None  # None: there were none
    per_thousand_finished: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """By arrival. Warm-up ends at `steady_from_s`, drain begins after `steady_to_s`."""

    steady_from_s: float
    steady_to_s: float
    num_warm_up: int
    num_steady: int
    num_drain: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Requests that finished within every limit."""

    limits: Slo
    num_met: int
    met_fraction: float  # of all arrivals
    steady_met_fraction: float | None  # of those of the steady phase; None: there were none
    per_s: float
    per_s_and_device: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimReport:
    """Of one configuration. Rates are per second from the first arrival to the last event."""

    label: str
    num_devices: int
    duration_s: float
    arrivals_s: float  # from the first arrival to the last
    num_arrivals: int
    outcomes: dict[str, int]
    reasons: dict[str, int]  # of rejections and failures
    phases: Phases
    latencies: dict[str, Distribution]  # by the keys of telemetry.latency.LATENCY_LABELS, over all arrivals
    steady_latencies: dict[str, Distribution]  # without warm-up and drain
    requests_per_s: float  # finished
    prompt_tokens_per_s: float  # of prompts that got a first token, cached tokens included
    output_tokens_per_s: float
    steady_output_tokens_per_s: float
    output_tokens_per_s_and_device: float
    num_prompt_tokens: int
    num_cached_tokens: int
    hit_fraction: float  # of prompt tokens
    num_output_tokens: int
    num_preemptions: int
    num_restarts: int
    num_handoffs: int
    kv_transfer_bytes: int
    pools: tuple[Pool, ...]
    links: tuple[LinkUse, ...]
    goodput: Goodput | None
    cost: Cost | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Keys are the fields'; documented in docs/guides/simulate.md."""
        body = asdict(self)
        for key in ("latencies", "steady_latencies"):
            body[key] = {name: told.to_json() for name, told in getattr(self, key).items()}
        return body


def report_world(label: str, world: WorldResult, options: ReportOptions = ReportOptions()) -> SimReport:
    """Sum up a run. Valid for any, one without arrivals included."""
    results = world.requests
    duration_s = max(0, world.ended_at_ns - world.started_at_ns) / _NS_PER_S
    phases, steady = _phases(world, options)
    answered = [result for result in results if result.num_output_tokens]
    num_finished = sum(result.outcome is RequestOutcome.FINISHED for result in results)
    num_prompt = sum(result.num_prompt_tokens for result in answered)
    num_cached = sum(result.num_cached_tokens for result in answered)
    num_output = sum(result.num_output_tokens for result in results)
    num_devices = sum(worker.num_devices for worker in world.workers)

    def per_s(amount: float) -> float:
        return amount / duration_s if duration_s > 0 else 0.0

    return SimReport(
        label=label,
        num_devices=num_devices,
        duration_s=duration_s,
        arrivals_s=_arrivals_ns(world) / _NS_PER_S,
        num_arrivals=len(results),
        outcomes=dict(Counter(result.outcome.value for result in results)),
        reasons=dict(Counter(result.reason for result in results if result.reason)),
        phases=phases,
        latencies=latency_samples(results).distributions(),
        steady_latencies=latency_samples(steady).distributions(),
        requests_per_s=per_s(num_finished),
        prompt_tokens_per_s=per_s(num_prompt),
        output_tokens_per_s=per_s(num_output),
        steady_output_tokens_per_s=_steady_tokens_per_s(world, phases),
        output_tokens_per_s_and_device=per_s(num_output) / max(1, num_devices),
        num_prompt_tokens=num_prompt,
        num_cached_tokens=num_cached,
        hit_fraction=num_cached / num_prompt if num_prompt else 0.0,
        num_output_tokens=num_output,
        num_preemptions=sum(worker.num_preemptions for worker in world.workers),
        num_restarts=sum(result.num_restarts for result in results),
        num_handoffs=world.num_handoffs,
        kv_transfer_bytes=world.kv_transfer_bytes,
        pools=_pools(world.workers, duration_s),
        links=tuple(_link(link.name, link.num_bytes, link.busy_ns, duration_s) for link in world.links),
        goodput=_goodput(results, steady, options.slo, duration_s, num_devices),
        cost=_cost(world.workers, options.prices_per_h, duration_s, num_output, num_finished),
        notes=world.notes,
    )


def _phases(world: WorldResult, options: ReportOptions) -> tuple[Phases, list[RequestResult]]:
    """And the requests of the steady phase."""
    span_s = _arrivals_ns(world) / _NS_PER_S
    from_s = EDGE_FRACTION * span_s if options.warm_up_s is None else options.warm_up_s
    to_s = span_s - (EDGE_FRACTION * span_s if options.drain_s is None else options.drain_s)
    since_s = [(result, (result.arrived_at_ns - world.started_at_ns) / _NS_PER_S) for result in world.requests]
    num_warm_up = sum(at_s < from_s for _, at_s in since_s)
    steady = [result for result, at_s in since_s if from_s <= at_s <= to_s]
    phases = Phases(
        steady_from_s=from_s,
        steady_to_s=to_s,
        num_warm_up=num_warm_up,
        num_steady=len(steady),
        num_drain=len(since_s) - len(steady) - num_warm_up,
    )
    return phases, steady


def _arrivals_ns(world: WorldResult) -> int:
    return max((result.arrived_at_ns for result in world.requests), default=world.started_at_ns) - world.started_at_ns


def _steady_tokens_per_s(world: WorldResult, phases: Phases) -> float:
    """Tokens that came while the steady phase's requests arrived, whichever request they are of."""
    length_s = phases.steady_to_s - phases.steady_from_s
    if length_s <= 0:
        return 0.0
    start_ns, end_ns = (
        world.started_at_ns + round(at_s * _NS_PER_S) for at_s in (phases.steady_from_s, phases.steady_to_s)
    )
    return SharedRuns(world.requests).num_between(start_ns, end_ns) / length_s


def _pools(workers: Sequence[WorkerResult], duration_s: float) -> tuple[Pool, ...]:
    roles = dict.fromkeys(worker.role for worker in workers)
    return tuple(_pool(role, [worker for worker in workers if worker.role == role], duration_s) for role in roles)


def _pool(role: str, workers: Sequence[WorkerResult], duration_s: float) -> Pool:
    available_ns = len(workers) * duration_s * _NS_PER_S

    def fraction(used_ns: Sequence[int | None]) -> float | None:
        known = [ns for ns in used_ns if ns is not None]
        if len(known) < len(used_ns):
            return None
        return round(sum(known) / available_ns, _DIGITS) if available_ns > 0 else 0.0

    return Pool(
        role=role,
        num_workers=len(workers),
        num_devices=sum(worker.num_devices for worker in workers),
        busy_fraction=fraction([worker.busy_ns for worker in workers]) or 0.0,
        products_fraction=fraction([worker.products_limit_ns for worker in workers]),
        bandwidth_fraction=fraction([worker.bytes_limit_ns for worker in workers]),
        kv_peak_fraction=max(worker.most_held_blocks / max(1, worker.num_blocks) for worker in workers),
        num_steps=sum(worker.num_steps for worker in workers),
        num_prefill_tokens=sum(worker.num_prefill_tokens for worker in workers),
        num_output_tokens=sum(worker.num_output_tokens for worker in workers),
        num_preemptions=sum(worker.num_preemptions for worker in workers),
        num_evicted_blocks=sum(worker.num_evicted_blocks for worker in workers),
    )


def _link(name: str, num_bytes: int, busy_ns: int, duration_s: float) -> LinkUse:
    return LinkUse(
        name=name,
        num_bytes=num_bytes,
        busy_fraction=busy_ns / _NS_PER_S / duration_s if duration_s > 0 else 0.0,
    )


def _goodput(
    results: Sequence[RequestResult],
    steady: Sequence[RequestResult],
    slo: Slo | None,
    duration_s: float,
    num_devices: int,
) -> Goodput | None:
    if slo is None:
        return None

    def count(of: Sequence[RequestResult]) -> int:
        finished = (result.times for result in of if result.outcome is RequestOutcome.FINISHED)
        return sum(slo.is_met(times, times.tpot_s) for times in finished)

    num_met = count(results)
    rate = num_met / duration_s if duration_s > 0 else 0.0
    return Goodput(
        limits=slo,
        num_met=num_met,
        met_fraction=num_met / len(results) if results else 0.0,
        steady_met_fraction=count(steady) / len(steady) if steady else None,
        per_s=rate,
        per_s_and_device=rate / max(1, num_devices),
    )


def _cost(
    workers: Sequence[WorkerResult],
    prices_per_h: Mapping[str, float] | None,
    duration_s: float,
    num_output_tokens: int,
    num_finished: int,
) -> Cost | None:
    if prices_per_h is None:
        return None
    per_h = sum(w.num_devices * prices_per_h.get(w.role, prices_per_h.get("", 0.0)) for w in workers)
    total = per_h * duration_s / 3600
    return Cost(
        per_h=per_h,
        total=total,
        per_million_output_tokens=total / num_output_tokens * 1e6 if num_output_tokens else None,
        per_thousand_finished=total / num_finished * 1e3 if num_finished else None,
    )
