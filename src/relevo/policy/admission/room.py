"""What the workers can take at present: is there room for one more request, and how soon would it be served?

A gateway holds requests back so that their order is decided late. It sends one when the worker that would compute the
prompt has at most a step or two of work, and the worker that would decode has a slot and blocks. Who would compute it
is `policy.routing.worker_choice`'s to say: a decode worker does so itself where that is the better deal for all. So a
line before busy prefill workers also moves on over decode workers, each of which has its own two steps. Everything is
read from `WorkerView`s: last reports, and what was sent since. A worker on which this gateway has nothing may always be
sent one request, so a report that has grown old never keeps a gateway out for good.

A tenant may also be sent what its share of a worker allows, although others fill it, and always one request that has no
token yet: the worker gives it room as soon as that is fair (`policy.worker.fair_turns`), and no slot waits for a
gateway. Others' prompts count as ahead only as far as a worker computes them before.

Batch requests use idle room only: no prompt waits there, and a quarter of slots and blocks stays free. What they hold
counts as free for all others, because they give it back (`policy.worker.step_planner`).
Does not know who waits; that is `policy.admission`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from heapq import nsmallest
from typing import NamedTuple

from relevo.core.events import WorkerLoad
from relevo.core.handoff import Ability
from relevo.core.ids import WorkerRef
from relevo.policy.routing.worker_choice import (
    Ask,
    Kept,
    WorkerView,
    decode_rank,
    line_s,
    preferred,
    prefill_rank,
    prefill_s,
    with_costs,
)
from relevo.policy.worker.table_rules import TableRule, num_more_blocks, num_tail_blocks

BATCH_FRACTION = 0.75  # arbitrary: of slots and blocks, that batch requests may fill


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomLimits:
    max_running: int  # continuations that decode on a worker
    max_ahead_tokens: int  # of prompts, sent to a worker and not computed; two steps of them lose no time
    max_ahead_s: float  # the same in seconds, by measured costs
    block_size: int  # tokens; that of a worker may be another
    more_groups: tuple[TableRule, ...] = ()  # KV groups after the first, which keeps every token
    max_step_tokens: int = 0  # of prompts; what those groups hold meanwhile depends on it
    tenant_weights: Mapping[str, float] = field(default_factory=dict)  # 1 for every other tenant
    streams_wait_for_line: bool = False  # steps keep an ITL target, so who waits in line counts beside running streams

    def on(self, view: WorkerView) -> RoomLimits:
        """In blocks of that worker."""
        if view.block_size in (0, self.block_size):
            return self
        more_groups = tuple(rule.of_size(view.block_size) for rule in self.more_groups)
        return replace(self, block_size=view.block_size, more_groups=more_groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomView:
    """What a request that enters now may expect of the workers, the line in front of them not counted."""

    is_anyone_ready: bool = True
    own_s: float = 0.0  # its prompt on the best worker, uncached tokens only, and the handoff
    queue_s: float = 0.0  # prompts that are there already
    prompt_tokens_per_s: float = 0.0  # of all workers that compute prompts, by measured costs; 0: unknown
    num_free_slots: int = 0  # requests like this one that could start to decode
    num_running: int = 0
    slot_in_s: float = 0.0  # no stream can end before and give its slot to this one; 0: unknown, or a slot is free
    tpot_s: float = 0.0  # step time with the request in it, where that is shortest


def may_make_room(before: WorkerLoad, now: WorkerLoad) -> bool:
    """A worker's report shows less work or more blocks than its last one. Otherwise a request that had no room because
    of the worker has none now, as far as the report goes."""
    return (
        now.num_waiting_prefill_tokens < before.num_waiting_prefill_tokens
        or now.num_waiting < before.num_waiting
        or now.num_running + now.num_waiting + now.num_reserved
        < before.num_running + before.num_waiting + before.num_reserved
        or now.num_free_blocks + now.num_reusable_blocks > before.num_free_blocks + before.num_reusable_blocks
        or now.num_total_blocks != before.num_total_blocks
        or now.costs != before.costs
    )


class Way(Enum):
    """How a request may leave the line."""

    PREFILL = "prefill"  # who is there to compute its prompt has room for it
    DECODE = "decode"  # those have none, but who decodes has, and is to compute it as well


def way_out(
    views: Sequence[WorkerView], ask: Ask, limits: RoomLimits, handoff_s: float = 0.0, *, is_batch: bool = False
) -> Way | None:
    """How the request may be sent now; None: not yet. Some worker must have room to decode a continuation of it, and
    who would then compute its prompt must have room for that. `handoff_s`: that a handoff adds at least."""
    ready = with_costs([view for view in views if view.ready])
    prefill, decode = preferred(ready, prefill_rank), preferred(ready, decode_rank)
    if not is_batch and ask.num_unstarted == 0 and any(view.load.num_waiting < limits.max_running for view in decode):
        return Way.PREFILL
    on_the_way = sum(view.in_flight_asked_tokens for view in ready if view.role.hands_over)  # to some prefill worker
    share = -(-on_the_way // max(1, len(prefill)))
    refs = {view.ref for view in prefill}
    able = {view.ref for view in prefill if _can_prefill(view, ask, share, limits, is_batch)}
    keepers = []
    for view in decode:
        if not _can_decode(view, ask, limits, is_batch):
            continue
        others = refs - {view.ref}
        if not others or not view.role.hands_over or Ability.RESERVE not in view.abilities:
            if _can_prefill(view, ask, 0, limits, is_batch):
                return Way.PREFILL
        elif able & others:
            return Way.PREFILL
        else:
            keepers.append(view)
    if is_batch or not keepers:
        return None
    soonest = _soonest(prefill, ask, handoff_s)
    measured = {view.ref for view in views if view.has_measured_costs}
    keeps = (view.ref in measured and _keeps(view, ask, soonest, len(refs - {view.ref}), limits) for view in keepers)
    return Way.DECODE if any(keeps) else None


def _keeps(view: WorkerView, ask: Ask, soonest: Sequence[_Soonest], num_others: int, limits: RoomLimits) -> bool:
    """Whether who decodes would compute the prompt, and has room for it."""
    best = next(each for each in soonest if each.ref != view.ref)
    behind_s = line_s(ask, best.computes_s, num_others)
    kept = Kept.of(view, ask.num_uncached(view.ref), best.ttft_s, behind_s)
    return kept.is_better and _can_prefill(view, ask, view.in_flight_asked_tokens, limits, is_batch=False)


class _Soonest(NamedTuple):
    ttft_s: float  # at least
    ref: WorkerRef
    computes_s: float


def _soonest(prefill: Sequence[WorkerView], ask: Ask, handoff_s: float) -> list[_Soonest]:
    """Who would have computed the prompt first, and second: one of them is another one than who decodes."""
    num_uncached = min((ask.num_uncached(ref) for ref in ask.hit_tokens), default=ask.num_tokens)
    found = []
    for view in prefill:
        computes_s = prefill_s(view, num_uncached)
        found.append(_Soonest(view.prefill_queue_s + computes_s + handoff_s, view.ref, computes_s))
    return nsmallest(2, found, key=lambda each: each.ttft_s)


def outlook(views: Sequence[WorkerView], ask: Ask, handoff_s: float, limits: RoomLimits) -> RoomView:
    ready = with_costs([view for view in views if view.ready])
    if not ready:
        return RoomView(is_anyone_ready=False)
    prefill, decode = preferred(ready, prefill_rank), preferred(ready, decode_rank)
    num_uncached = min(ask.num_uncached(view.ref) for view in ready)
    best = min(prefill, key=lambda view: view.prefill_queue_s)
    rates = [1.0 / view.load.costs.per_token_s for view in prefill if view.load.costs.per_token_s > 0.0]
    is_split = best not in decode
    steps_s = [
        view.load.costs.step_s(view.num_streams + 1, view.num_decode_kv_tokens + ask.num_tokens) for view in decode
    ]
    return RoomView(
        own_s=prefill_s(best, num_uncached) + (handoff_s if is_split else 0.0),
        queue_s=best.load.costs.per_token_s * _num_ahead(best, ask, 0),
        prompt_tokens_per_s=sum(rates),
        num_free_slots=sum(_num_free_slots(view, ask, limits) for view in decode),
        num_running=sum(view.load.num_running for view in decode),
        slot_in_s=min(_slot_in_s(view, ask, limits) for view in decode),
        tpot_s=min(steps_s),
    )


def _can_prefill(view: WorkerView, ask: Ask, num_on_the_way: int, limits: RoomLimits, is_batch: bool) -> bool:
    num_ahead = _num_ahead(view, ask, num_on_the_way)
    if num_ahead == 0:
        return True
    if is_batch:
        return False
    if view.num_in_flight_prefills == 0 and num_on_the_way == 0:
        return True
    if view.load.costs.per_token_s * num_ahead > limits.max_ahead_s:
        return False
    return num_ahead + ask.num_uncached(view.ref) <= limits.max_ahead_tokens


def _can_decode(view: WorkerView, ask: Ask, limits: RoomLimits, is_batch: bool) -> bool:
    if view.num_in_flight_decodes == 0:
        return not is_batch or view.num_streams == 0
    share = BATCH_FRACTION if is_batch else 1.0
    num_in_the_way = view.num_streams - (0 if is_batch else view.num_in_flight_batch)
    if not is_batch and _num_share(view, ask, limits) > 0:
        return True
    if num_in_the_way + 1 > limits.max_running * share:
        return False
    if view.load.num_total_blocks == 0:
        return True
    limits = limits.on(view)
    num_kept = view.load.num_total_blocks * (1.0 - share)
    num_available = _num_available_blocks(view, limits)
    if not is_batch:  # which batch requests give back when it comes
        num_available += view.in_flight_batch_tokens // limits.block_size
        num_available += _num_more_of(view.num_in_flight_batch, view.in_flight_batch_tokens, view, limits)
    return _num_blocks(view, ask, limits) + num_kept <= num_available


def _num_free_slots(view: WorkerView, ask: Ask, limits: RoomLimits) -> int:
    num_free = max(0, limits.max_running - view.num_streams)
    num_share = _num_share(view, ask, limits)
    if view.load.num_total_blocks == 0:
        return num_free
    limits = limits.on(view)
    by_blocks = _num_available_blocks(view, limits) // _num_blocks(view, ask, limits)
    return max(0, num_share, min(num_free, by_blocks))


def _slot_in_s(view: WorkerView, ask: Ask, limits: RoomLimits) -> float:
    """Until the stream ends that has fewest tokens left of those it must give. 0 if there is a slot, the tenant has a
    share to take, or something is there whose end is not known: another gateway's, or what the model may end."""
    if view.num_streams < limits.max_running or _num_share(view, ask, limits) > 0:
        return 0.0
    if sum(sent.num_slots for sent in view.sent) < view.num_streams:
        return 0.0
    num_steps = min((sent.num_left_tokens for sent in view.sent), default=0)
    return num_steps * view.load.costs.step_s(view.load.num_running, view.load.num_decode_kv_tokens)


def _num_ahead(view: WorkerView, ask: Ask, num_on_the_way: int) -> int:
    """Prompt tokens that are computed there before the request's own: its tenant's, and as many of each other tenant.
    What is not known by tenant counts whole."""
    if ask.num_unstarted is None:
        return view.num_queued_prefill_tokens + num_on_the_way
    mine = view.held[ask.tenant].num_prompt_tokens if ask.tenant in view.held else 0
    most = mine + ask.num_uncached(view.ref)
    others = [held.num_prompt_tokens for tenant, held in view.held.items() if tenant != ask.tenant]
    unknown = max(0, view.num_queued_prefill_tokens - mine - sum(others))
    return mine + min(unknown, most) + sum(min(num, most) for num in others) + num_on_the_way


def _num_share(view: WorkerView, ask: Ask, limits: RoomLimits) -> int:
    """Slots that the tenant may still take of its share, whichever tenant holds them; 0 while none holds more than a
    share. Requests of other gateways count as those of one tenant."""
    if ask.num_unstarted is None:
        return 0
    mine = view.held[ask.tenant].num_slots if ask.tenant in view.held else 0
    others = {tenant: held.num_slots for tenant, held in view.held.items() if tenant != ask.tenant and held.num_slots}
    num_unknown = max(0, view.num_streams - mine - sum(others.values()))
    if not others and not num_unknown:
        return 0
    weights = limits.tenant_weights
    total = weights.get(ask.tenant, 1.0) + sum(weights.get(tenant, 1.0) for tenant in others) + (num_unknown > 0)
    return int(limits.max_running * weights.get(ask.tenant, 1.0) / total) - mine


def _num_available_blocks(view: WorkerView, limits: RoomLimits) -> int:
    """Free or reusable, and not asked for by a request on its way."""
    num_asked = _num_first(view.in_flight_asked_tokens, limits)
    num_asked += _num_more_of(view.num_in_flight_asked, view.in_flight_asked_tokens, view, limits)
    return view.load.num_free_blocks + view.load.num_reusable_blocks - num_asked


def _num_blocks(view: WorkerView, ask: Ask, limits: RoomLimits) -> int:
    """That the request takes of all KV groups when it starts there."""
    num_uncached = ask.num_uncached(view.ref)
    num_hit_blocks = (ask.num_tokens - num_uncached) // limits.block_size
    return _num_first(num_uncached, limits) + _num_more(ask.num_tokens, num_hit_blocks, view, limits)


def _num_first(num_tokens: int, limits: RoomLimits) -> int:
    """Of the KV group that keeps every token."""
    return -(-num_tokens // limits.block_size)


def _num_more(num_tokens: int, num_hit_blocks: int, view: WorkerView, limits: RoomLimits) -> int:
    """Of the other KV groups, for a prompt: what its next token sees where another worker is there to compute it, else
    what its steps see, and what is found of it."""
    if view.role.hands_over and Ability.RESERVE in view.abilities:
        return num_tail_blocks(limits.more_groups, num_tokens)
    num_found = num_tail_blocks(limits.more_groups, num_hit_blocks * limits.block_size) if num_hit_blocks else 0
    return num_found + num_more_blocks(limits.more_groups, num_tokens, limits.max_step_tokens, num_hit_blocks)


def _num_more_of(num_requests: int, num_tokens: int, view: WorkerView, limits: RoomLimits) -> int:
    """The same of requests with so many tokens together, taken to be equal."""
    if not num_requests or not limits.more_groups:
        return 0
    return num_requests * _num_more(-(-num_tokens // num_requests), 0, view, limits)
