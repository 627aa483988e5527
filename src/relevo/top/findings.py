"""What is wrong with the server at a glance, the worst first, and which worker is slow beside its like. Pure.

A worker is slow if the same step costs it half as much again as the others of its model and role, by what each has
measured of itself, or if its streams' gaps are as much longer. With load alone neither is so.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from relevo.client.visible_text import one_line
from relevo.top.figures import duration
from relevo.top.state import State, Worker

SLOW = 1.5  # times as long as the others. Arbitrary
_MIN_SAMPLES = 50  # gaps, before they are compared; arbitrary
_STEP_TOKENS = {"prefill": (256, 256), "decode": (16, 16_000), "unified": (64, 16_000)}  # computed, and seen; arbitrary
_LONG_WAIT_S = 2.0  # for interactive requests; arbitrary
_LONG_BATCH_WAIT_S = 600.0


def slow_factors(workers: Sequence[Worker]) -> dict[str, float]:
    """By key of the worker: how many times as long, of those that are slow."""
    factors: dict[str, float] = {}
    for like in _alike(workers).values():
        measures = [_step_s] if like[0].role == "prefill" else [_step_s, _gap_s]  # gaps there: of streams that leave
        for measure in measures:
            for worker, factor in zip(like, _factors([measure(each) for each in like]), strict=True):
                if factor >= max(SLOW, factors.get(worker.key, 0.0)):
                    factors[worker.key] = factor
    return factors


def findings(state: State) -> list[str]:
    """Sentences, the worst first."""
    server, factors = state.server, slow_factors(state.workers)
    told = [server.failure] if server.failure else []
    told += ["the server drains: it takes no new request"] if server.is_draining else []
    told += [f"{model.name}: {model.reason}" for model in state.models if not model.is_ready]
    told += [f"gateway {each.gateway_id} does not answer" for each in state.gateways if not each.answers]
    told += [f"{each.worker_id}: {each.why_not_ready or 'not ready'}" for each in state.workers if not each.is_ready]
    slow = sorted((each for each in state.workers if each.key in factors), key=lambda each: -factors[each.key])
    told += [_told_slow(each, factors[each.key], state.workers) for each in slow]
    for line in state.lines:
        longest_s = _LONG_BATCH_WAIT_S if line.class_name == "batch" else _LONG_WAIT_S
        if line.num_waiting and line.oldest_wait_s > longest_s:
            told.append(f"{line.num_waiting} {line.class_name} in line, up to {duration(line.oldest_wait_s)}")
    return [one_line(each) for each in told]


def _told_slow(worker: Worker, factor: float, workers: Sequence[Worker]) -> str:
    others = [each.worker_id for each in _alike(workers)[worker.model, worker.role] if each is not worker]
    like = others[0] if len(others) == 1 else f"the other {len(others)} {worker.role} workers"
    return f"{worker.worker_id} is {factor:.1f} times as slow as {like}"


def _alike(workers: Sequence[Worker]) -> dict[tuple[str, str], list[Worker]]:
    """Those that are there, by model and role."""
    groups: dict[tuple[str, str], list[Worker]] = {}
    for worker in workers:
        if worker.is_ready:
            groups.setdefault((worker.model, worker.role), []).append(worker)
    return groups


def _step_s(worker: Worker) -> float | None:
    num_tokens, num_kv_tokens = _STEP_TOKENS.get(worker.role, _STEP_TOKENS["unified"])
    costs = worker.costs
    return costs.base_s + costs.per_token_s * num_tokens + costs.per_kv_token_s * num_kv_tokens or None


def _gap_s(worker: Worker) -> float | None:
    return worker.itl.p50_s if worker.itl.num_samples >= _MIN_SAMPLES else None


def _factors(values: Sequence[float | None]) -> list[float]:
    """Each over the median, of two over the other one; 0 where one of them is not known."""
    known = sorted(value for value in values if value)
    if len(known) < 2:
        return [0.0] * len(values)
    usual = known[0] if len(known) == 2 else median(known)
    return [value / usual if value else 0.0 for value in values]
