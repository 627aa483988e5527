"""Who decodes, and who computes the prompt. Pure; randomness is an argument.

Decode is chosen first, by the step time a request would find there. Then the prompt: a prefill worker adds its queue
and a handoff, the decode worker makes its running streams wait. The prompt stays on the decode worker if the waiting
it imposes on those streams is not more than the time it saves its own client. All of it from measured costs, so there
is no prompt length at which disaggregation starts: that follows from the machine and from what runs on it.

A role is a preference. Does not know prefixes, sessions or connections. Source: docs/architecture.md, section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from relevo.core.events import WorkerLoad
from relevo.core.ids import WorkerRef
from relevo.policy.in_flight import InFlight as InFlight

_NEAR_TIE = 1.05  # arbitrary: estimates are hardly better than this

_DECODE_ROLES = (("decode", "unified"), ("prefill",))  # best first
_PREFILL_ROLES = (("prefill",), ("unified",), ("decode",))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """What is known of a worker when a choice is made: its last report, and what was sent there since."""

    ref: WorkerRef
    role: str  # "prefill", "decode" or "unified"
    ready: bool
    load: WorkerLoad
    in_flight_prefill_tokens: int = 0  # see policy.in_flight
    in_flight_decode_tokens: int = 0

    @property
    def num_queued_prefill_tokens(self) -> int:
        """A report lags behind, the ledger knows only this gateway's requests: the larger one is nearer to it."""
        return max(self.load.num_waiting_prefill_tokens, self.in_flight_prefill_tokens)

    @property
    def num_decode_kv_tokens(self) -> int:
        return max(self.load.num_decode_kv_tokens, self.in_flight_decode_tokens)

    @property
    def has_measured_costs(self) -> bool:
        costs = self.load.costs
        return costs.base_s + costs.per_token_s + costs.per_kv_token_s > 0.0

    @property
    def prefill_queue_s(self) -> float:
        return self.load.costs.per_token_s * self.num_queued_prefill_tokens


@dataclass(frozen=True, slots=True)
class Choice:
    worker: WorkerRef
    split: bool  # somebody else is there to compute the prompt: reserve first, then `choose_prefill`
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillChoice:
    worker: WorkerRef | None  # None: the decode worker itself
    reason: str
    ttft_remote_s: float = 0.0  # 0 if there is nobody to ask
    ttft_local_s: float = 0.0
    stall_s: float = 0.0  # waiting of running streams, summed, if the prompt is computed on the decode worker


def choose_decode(
    views: Sequence[WorkerView], num_prompt_tokens: int, exclude: Iterable[WorkerRef], rng: Random
) -> Choice | None:
    """The worker on which the request would decode fastest; None if nobody is ready."""
    excluded = frozenset(exclude)
    able = [view for view in views if view.ready and view.ref not in excluded]
    candidates = _preferred(able, _DECODE_ROLES)
    if not candidates:
        return None
    view = _best(candidates, lambda v: _decode_s(v, num_prompt_tokens), rng)
    split = view.role != "unified" and any(v.ref != view.ref for v in able)
    reason = f"{len(candidates)} able, a step there takes {_decode_s(view, num_prompt_tokens) * 1e3:.1f} ms with it"
    return Choice(view.ref, split, reason)


def choose_prefill(
    decode_view: WorkerView,
    prefill_views: Sequence[WorkerView],
    num_uncached_tokens: int,
    handoff_s: float,
    rng: Random,
) -> PrefillChoice:
    """The worker with the earliest first token, or the decode worker if that is the better deal for all.

    `num_uncached_tokens` of the prompt are neither a hit nor sealed on the decode worker; a handoff adds `handoff_s`.
    Workers that must not be chosen are left out by the caller; the decode worker itself may be among them.
    """
    able = [view for view in prefill_views if view.ready and view.ref != decode_view.ref]
    candidates = _preferred(able, _PREFILL_ROLES)
    local_s = _local_ttft_s(decode_view, num_uncached_tokens)
    running = max(1, decode_view.load.num_running)
    stall_s = decode_view.load.costs.per_token_s * num_uncached_tokens * running
    if not candidates:
        return PrefillChoice(worker=None, reason="nobody else is ready", ttft_local_s=local_s, stall_s=stall_s)
    view = _best(candidates, lambda v: _prefill_ttft_s(v, num_uncached_tokens), rng)
    remote_s = _prefill_ttft_s(view, num_uncached_tokens) + handoff_s
    saved_s = max(0.0, remote_s - local_s)
    is_local = decode_view.has_measured_costs and stall_s <= saved_s
    reason = (
        f"{num_uncached_tokens} tokens: here they save {saved_s * 1e3:.1f} ms and make {running} streams wait "
        f"{stall_s * 1e3:.1f} ms in all"
    )
    return PrefillChoice(
        worker=None if is_local else view.ref,
        reason=reason if decode_view.has_measured_costs else "no costs measured yet, so by role",
        ttft_remote_s=remote_s,
        ttft_local_s=local_s,
        stall_s=stall_s,
    )


def estimated_ttft_s(views: Sequence[WorkerView], num_uncached_tokens: int) -> float:
    """Seconds to the first token of a request that enters now, on the best worker for it; 0 if nobody is ready."""
    candidates = _preferred([view for view in views if view.ready], _PREFILL_ROLES)
    return min((_prefill_ttft_s(view, num_uncached_tokens) for view in candidates), default=0.0)


def _decode_s(view: WorkerView, num_prompt_tokens: int) -> float:
    """A step with the request in it, and the prompts that will be computed there before or between."""
    load = view.load
    num_streams = load.num_running + load.num_waiting + load.num_reserved + 1
    return view.prefill_queue_s + load.costs.step_s(num_streams, view.num_decode_kv_tokens + num_prompt_tokens)


def _prefill_ttft_s(view: WorkerView, num_uncached_tokens: int) -> float:
    return view.prefill_queue_s + view.load.costs.step_s(num_uncached_tokens, num_uncached_tokens)


def _local_ttft_s(view: WorkerView, num_uncached_tokens: int) -> float:
    """The prompt shares its step with the streams that decode there."""
    num_tokens = view.load.num_running + num_uncached_tokens
    num_kv_tokens = view.load.num_decode_kv_tokens + num_uncached_tokens
    return view.prefill_queue_s + view.load.costs.step_s(num_tokens, num_kv_tokens)


def _preferred(views: list[WorkerView], roles: tuple[tuple[str, ...], ...]) -> list[WorkerView]:
    """Those of the best role that anybody has."""
    for group in roles:
        found = [view for view in views if view.role in group]
        if found:
            return found
    return []


def _best(views: list[WorkerView], cost_s: Callable[[WorkerView], float], rng: Random) -> WorkerView:
    """The cheapest; of near ties two at random and the less busy of them, so that gateways do not herd."""
    costs = [cost_s(view) for view in views]
    ties = [view for view, cost in zip(views, costs, strict=True) if cost <= min(costs) * _NEAR_TIE]
    return min(rng.sample(ties, min(2, len(ties))), key=_busyness)


def _busyness(view: WorkerView) -> tuple[int, int]:
    load = view.load
    num_tokens = view.num_queued_prefill_tokens + view.num_decode_kv_tokens
    return num_tokens, load.num_running + load.num_waiting + load.num_reserved
