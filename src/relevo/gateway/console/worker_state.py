"""One worker in the state: what it reports, its counters over all incarnations, and rates between two moments."""

from __future__ import annotations

from collections.abc import Mapping

from relevo.core.events import WorkerLimits
from relevo.gateway.console.state import Blocks, Costs, Percentiles, Worker, WorkerRates, WorkerTotals
from relevo.gateway.console.watch import Observed, Sample
from relevo.orchestrator.ports import WorkerStatus

Totals = Mapping[str, float]
PRODUCTS, BANDWIDTH = "products", "bandwidth"


def worker_state(model: str, worker: WorkerStatus, observed: Observed, max_running: int | None) -> Worker:
    load, costs, key = worker.load, worker.load.costs, (model, worker.worker_id)
    totals = observed.sample.workers[key]
    window_s, before = _window(observed, observed.recent, key)
    _, minute_before = _window(observed, observed.minute, key)
    rates = _rates(totals, before, window_s, minute_before)
    used = _used(totals, before, window_s, worker.limits)
    limit, limit_fraction = _own_limit(worker.role, used)
    return Worker(
        worker_id=worker.worker_id,
        model=model,
        role=worker.role,
        is_ready=worker.ready,
        why_not_ready=worker.why_not_ready,
        num_ranks=worker.num_ranks,
        epoch=worker.epoch,
        num_running=load.num_running,
        num_waiting=load.num_waiting,
        num_reserved=load.num_reserved,
        num_waiting_prefill_tokens=load.num_waiting_prefill_tokens,
        num_decode_kv_tokens=load.num_decode_kv_tokens,
        max_running=max_running,
        step_budget_tokens=worker.counters.step_budget_tokens,
        blocks=Blocks(
            num_total=load.num_total_blocks,
            num_held=load.num_held_blocks,
            num_reusable=load.num_reusable_blocks,
            num_free=load.num_free_blocks,
            num_quarantined=load.num_quarantined_blocks,
        ),
        totals=_totals(totals),
        rates=rates,
        costs=Costs(base_s=costs.base_s, per_token_s=costs.per_token_s, per_kv_token_s=costs.per_kv_token_s),
        itl=Percentiles(),
        busy_fraction=_fraction(totals, before, "busy_s", window_s),
        product_fraction=used[PRODUCTS],
        read_fraction=used[BANDWIDTH],
        limit=limit,
        limit_fraction=limit_fraction,
    )


def _totals(totals: Totals) -> WorkerTotals:
    return WorkerTotals(
        num_steps=int(totals["num_steps"]),
        num_prefill_tokens=int(totals["num_prefill_tokens"]),
        num_generation_tokens=int(totals["num_generation_tokens"]),
        num_preemptions=int(totals["num_preemptions"]),
        num_prefix_queries=int(totals["num_prefix_queries"]),
        num_prefix_hits=int(totals["num_prefix_hits"]),
        transferred_bytes=int(totals["transferred_bytes"]),
        transfer_s=float(totals["transfer_s"]),
        busy_s=totals["busy_s"],
        product_ops=totals["product_ops"],
        read_bytes=totals["read_bytes"],
        num_request_faults=int(totals["num_request_faults"]),
        num_restarts=int(totals["num_restarts"]),
    )


def _window(observed: Observed, sample: Sample | None, key: tuple[str, str]) -> tuple[float, Totals | None]:
    """How long ago, and what was counted then; None: it is not known, or that was now."""
    if sample is None or key not in sample.workers or observed.at_s <= sample.at_s:
        return 0.0, None
    return observed.at_s - sample.at_s, sample.workers[key]


def _rates(totals: Totals, before: Totals | None, window_s: float, minute_before: Totals | None) -> WorkerRates:
    hit_fraction = None
    if minute_before is not None:
        num_queries = totals["num_prefix_queries"] - minute_before["num_prefix_queries"]
        num_hits = totals["num_prefix_hits"] - minute_before["num_prefix_hits"]
        hit_fraction = num_hits / num_queries if num_queries > 0 else None
    return WorkerRates(
        window_s=window_s,
        steps_per_s=_rate(totals, before, "num_steps", window_s),
        prefill_tokens_per_s=_rate(totals, before, "num_prefill_tokens", window_s),
        generation_tokens_per_s=_rate(totals, before, "num_generation_tokens", window_s),
        transferred_bytes_per_s=_rate(totals, before, "transferred_bytes", window_s),
        hit_fraction=hit_fraction,
    )


def _used(totals: Totals, before: Totals | None, window_s: float, limits: WorkerLimits) -> dict[str, float | None]:
    """Of each limit that the hardware sets, how much."""
    pairs = {
        PRODUCTS: ("product_ops", limits.product_ops_per_s),
        BANDWIDTH: ("read_bytes", limits.read_bytes_per_s),
    }
    return {
        limit: _fraction(totals, before, name, window_s * most) if most else None
        for limit, (name, most) in pairs.items()
    }


def _own_limit(role: str, used: Mapping[str, float | None]) -> tuple[str | None, float | None]:
    known = {limit: fraction for limit, fraction in used.items() if fraction is not None}
    if role in ("prefill", "decode"):
        limit = PRODUCTS if role == "prefill" else BANDWIDTH
        return (limit, known[limit]) if limit in known else (None, None)
    return max(known.items(), key=lambda item: item[1], default=(None, None))


def _rate(totals: Totals, before: Totals | None, name: str, window_s: float) -> float | None:
    return None if before is None else (totals[name] - before[name]) / window_s


def _fraction(totals: Totals, before: Totals | None, name: str, most: float) -> float | None:
    """A report may come just after the window it is counted in: more than all is all."""
    return None if before is None or most <= 0 else min(1.0, (totals[name] - before[name]) / most)
