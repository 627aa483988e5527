"""Who decodes, and who computes the prompt: what the router is told about workers, and what follows from its picks.

Decode is chosen first: by the time to the first token that goes through it, and by the step time a request would find
there. Then the prompt: a prefill worker adds its queue and a handoff, the decode worker makes its running streams
wait. The prompt stays on the decode worker if the waiting it imposes on those streams is not more than the time it
saves its own client. All of it from measured costs, so there is no prompt length at which disaggregation starts: that
follows from the machine and from what runs on it.

What is cached where decides what has to be computed where (docs/guides/routing.md):

- a prefill worker that shares memory with the decode worker computes into the decode worker's blocks and reads its
  cache, so only the decode worker's hits count, and all such workers are equal;
- any other computes everything that it does not hold itself, whatever the decode worker holds.

Which of the two it is, is a fact of the pair (`policy.routing.kv_path`). A worker that can only be submitted to, or
that no other worker reaches, is served as a unified one. A role is a preference.
Does not know connections. Source: docs/architecture.md, "Routing".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from relevo.core.events import WorkerLoad
from relevo.core.handoff import ALL_ABILITIES, Ability, KVPath, KVSite, Link
from relevo.core.ids import WorkerId, WorkerRef
from relevo.core.role import Role
from relevo.policy.perf.handoff_costs import BoxPair
from relevo.policy.routing.kv_path import kv_path
from relevo.policy.routing.lost_blocks import NOTHING_LOST, LostHits
from relevo.policy.routing.router import NO_USE, Candidate, Pick, Router, RouterLimits, RoutingPolicy, Use
from relevo.policy.routing.tenant_use import Held, Sent

_DECODE_STEPS = 32  # arbitrary: so many steps of decoding weigh as much as the way to the first token

# What a handoff adds to a request, by how far its blocks go; of pairs that were measured their own.
HandoffSeconds = Mapping[Link | tuple[WorkerId, WorkerId] | BoxPair, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """What is known of a worker when a choice is made: its last report, and what was sent there since."""

    ref: WorkerRef
    role: Role
    ready: bool
    load: WorkerLoad
    kv_site: KVSite  # see policy.routing.kv_path
    abilities: frozenset[Ability] = ALL_ABILITIES
    block_size: int = 0  # of its KV cache, tokens; 0: as is usual
    in_flight_prefill_tokens: int = 0  # see policy.routing.charges
    in_flight_decode_tokens: int = 0
    in_flight_asked_tokens: int = 0  # room that was asked for and not answered yet
    in_flight_batch_tokens: int = 0  # of the decode tokens
    num_in_flight_prefills: int = 0
    num_in_flight_decodes: int = 0
    num_in_flight_batch: int = 0  # of the decodes
    num_in_flight_asked: int = 0  # requests that room was asked for
    held: Mapping[str, Held] = field(default_factory=dict)  # by tenants, of this gateway's requests
    sent: Collection[Sent] = ()  # of this gateway's requests, those that decode there or will

    @property
    def num_queued_prefill_tokens(self) -> int:
        """A report lags behind, the ledger knows only this gateway's requests: the larger one is nearer to it."""
        return max(self.load.num_waiting_prefill_tokens, self.in_flight_prefill_tokens)

    @property
    def num_decode_kv_tokens(self) -> int:
        return max(self.load.num_decode_kv_tokens, self.in_flight_decode_tokens)

    @property
    def num_requests(self) -> int:
        reported = self.load.num_running + self.load.num_waiting + self.load.num_reserved
        return max(reported, self.num_in_flight_prefills, self.num_in_flight_decodes)

    @property
    def num_streams(self) -> int:
        """Requests that decode there or will."""
        reported = self.load.num_running + self.load.num_waiting + self.load.num_reserved
        return max(reported, self.num_in_flight_decodes)

    @property
    def has_measured_costs(self) -> bool:
        costs = self.load.costs
        return costs.base_s + costs.per_token_s + costs.per_kv_token_s > 0.0

    @property
    def prefill_queue_s(self) -> float:
        return self.load.costs.per_token_s * self.num_queued_prefill_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The request as a choice sees it."""

    num_tokens: int  # of the prompt
    hit_tokens: Mapping[WorkerRef, int] = field(default_factory=dict)  # of them, believed to be cached there
    prefixes: Mapping[WorkerRef, bytes] = field(default_factory=dict)  # hash of the last block of the hit there
    session: bytes = b""  # empty: belongs to none
    tenant: str = ""
    num_unstarted: int | None = None  # requests of the tenant that were sent and have no token yet; None: unknown
    num_behind: int = 0  # requests that wait in line behind it, if running streams may wait for them

    def num_uncached(self, ref: WorkerRef) -> int:
        """At least one token is always computed."""
        return max(1, self.num_tokens - self.hit_tokens.get(ref, 0))


@dataclass(frozen=True, slots=True)
class Choice:
    worker: WorkerRef
    split: bool  # another worker is there to compute the prompt: reserve first, then `choose_prefill`
    num_uncached_tokens: int  # on that worker
    reason: str
    use: Use = NO_USE  # for `WorkerChooser.heard` of other gateways
    num_hit_tokens: int = 0  # on that worker, as far as is known
    lost: LostHits = NOTHING_LOST  # the caller's to know


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillChoice:
    worker: WorkerRef | None  # None: the decode worker itself
    reason: str
    num_uncached_tokens: int = 0  # on the chosen worker
    path: KVPath | None = None  # from it to the decode worker
    ttft_remote_s: float = 0.0  # 0 if there is no other worker
    ttft_local_s: float = 0.0
    stall_s: float = 0.0  # waiting of running streams, summed, if the prompt is computed on the decode worker
    use: Use | None = None  # as in Choice; None: there was nothing to choose


class WorkerChooser:
    """The decisions about one model's workers. Holds one router per kind of decision."""

    def __init__(self, policy: RoutingPolicy = RoutingPolicy.TTFT, limits: RouterLimits | None = None) -> None:
        self._limits = limits or RouterLimits()
        self._decode: Router[WorkerRef] = Router(policy, self._limits)
        self._prefill: Router[WorkerRef] = Router(policy, self._limits)

    def choose_decode(
        self,
        views: Sequence[WorkerView],
        ask: Ask,
        handoff_s: HandoffSeconds,
        exclude: Iterable[WorkerRef],
        rng: Random,
        closed: Collection[BoxPair] = (),
    ) -> Choice | None:
        """The worker that decodes; None if none is ready. `closed`: ways over which no KV is sent for now."""
        excluded, views = frozenset(exclude), with_costs(views)
        able = [view for view in views if view.ready and view.ref not in excluded]
        by_ref = {view.ref: view for view in preferred(able, decode_rank)}
        if not by_ref:
            return None
        own_s = {view.ref: _prefill_ttft_s(view, ask.num_uncached(view.ref)) for view in able}
        candidates = [
            Candidate(
                key=view.ref,
                name=view.ref.worker_id,
                cost_s=_way_to_first_token_s(view, able, ask, handoff_s, own_s, closed) + _decode_s(view, ask),
                num_hit_tokens=ask.hit_tokens.get(view.ref, 0),
                prefix=ask.prefixes.get(view.ref, b""),
                num_load_tokens=view.num_decode_kv_tokens + view.num_queued_prefill_tokens,
                num_requests=view.num_requests,
            )
            for view in by_ref.values()
        ]
        pick = self._decode.pick(candidates, ask.num_tokens, ask.session, rng)
        view = by_ref[pick.candidate.key]
        split = view.role.hands_over and bool(_prefillers(view, able, closed))
        num_hits = ask.hit_tokens.get(view.ref, 0)
        return Choice(view.ref, split, ask.num_uncached(view.ref), pick.reason, pick.use, num_hits)

    def heard(self, kind: str, use: Use) -> None:
        """Another gateway over the same workers chose so. `kind`: "decode" or "prefill"."""
        (self._decode if kind == "decode" else self._prefill).heard(use)

    def choose_prefill(
        self,
        decode_view: WorkerView,
        prefill_views: Sequence[WorkerView],
        ask: Ask,
        num_uncached_tokens: int,
        handoff_s: HandoffSeconds,
        rng: Random,
        closed: Collection[BoxPair] = (),
    ) -> PrefillChoice:
        """Who computes the prompt: a prefill worker, or the decode worker if that is the better deal for all.

        `num_uncached_tokens` of the prompt are neither a hit nor sealed on the decode worker; a handoff adds
        `handoff_s` of its link. Workers that must not be chosen are left out by the caller; the decode worker itself
        may be among them.
        """
        may_keep = self._limits.conditional_disaggregation and decode_view.has_measured_costs
        decode_view, *prefill_views = with_costs([decode_view, *prefill_views])
        paths = _prefillers(decode_view, [view for view in prefill_views if view.ready], closed)
        views = [view for view in prefill_views if view.ref in paths]
        if not views:
            kept = Kept.of(decode_view, num_uncached_tokens, 0.0, 0.0)
            return PrefillChoice(
                worker=None,
                reason="no other worker is ready",
                num_uncached_tokens=num_uncached_tokens,
                ttft_local_s=kept.ttft_s,
                stall_s=kept.stall_s,
            )
        pick, num_uncached = self._pick_prefill(decode_view, views, paths, ask, num_uncached_tokens, handoff_s, rng)
        remote_s = pick.candidate.cost_s
        computes_s = prefill_s(next(view for view in views if view.ref == pick.candidate.key), num_uncached)
        kept = Kept.of(decode_view, num_uncached_tokens, remote_s, line_s(ask, computes_s, len(views)))
        is_local = may_keep and kept.is_better
        reason = f"{pick.reason}; {num_uncached} tokens to compute"
        if is_local:
            behind = f", {ask.num_behind} behind it included," if ask.num_behind else ""
            reason = (
                f"local: {num_uncached_tokens} tokens, here they save {kept.saved_s * 1e3:.1f} ms{behind} and make "
                f"{max(1, decode_view.load.num_running)} streams wait {kept.stall_s * 1e3:.1f} ms in all"
            )
        return PrefillChoice(
            worker=None if is_local else pick.candidate.key,
            reason=reason,
            num_uncached_tokens=num_uncached_tokens if is_local else num_uncached,
            path=None if is_local else paths[pick.candidate.key],
            ttft_remote_s=remote_s,
            ttft_local_s=kept.ttft_s,
            stall_s=kept.stall_s,
            use=pick.use,
        )

    def _pick_prefill(
        self,
        decode_view: WorkerView,
        views: list[WorkerView],
        paths: Mapping[WorkerRef, KVPath],
        ask: Ask,
        num_uncached_on_decode: int,
        handoff_s: HandoffSeconds,
        rng: Random,
    ) -> tuple[Pick[WorkerRef], int]:
        """The pick, and how many tokens it has to compute. Workers that read the decode worker's cache have no
        sessions."""
        reads_there = {view.ref for view in views if paths[view.ref].zero_copy}
        num_uncached = {
            view.ref: num_uncached_on_decode if view.ref in reads_there else ask.num_uncached(view.ref)
            for view in views
        }
        is_cached_there = len(reads_there) < len(views)
        num_tokens = ask.num_tokens if is_cached_there else num_uncached_on_decode
        hits_on_decode = num_tokens - num_uncached_on_decode
        candidates = [
            Candidate(
                key=view.ref,
                name=view.ref.worker_id,
                cost_s=_prefill_ttft_s(view, num_uncached[view.ref])
                + added_s(handoff_s, paths[view.ref].link, view, decode_view),
                num_hit_tokens=hits_on_decode if view.ref in reads_there else ask.hit_tokens.get(view.ref, 0),
                prefix=b"" if view.ref in reads_there else ask.prefixes.get(view.ref, b""),
                num_load_tokens=view.num_queued_prefill_tokens,
                num_requests=view.num_requests,
            )
            for view in views
        ]
        pick = self._prefill.pick(candidates, num_tokens, ask.session if is_cached_there else b"", rng)
        return pick, num_uncached[pick.candidate.key]


class Kept(NamedTuple):
    """What it means that the decode worker computes a prompt itself."""

    ttft_s: float
    stall_s: float  # waiting of running streams, summed
    saved_s: float  # of waiting, of its client and of those behind it

    @classmethod
    def of(cls, decode: WorkerView, num_uncached_tokens: int, remote_s: float, line_s: float) -> Kept:
        """`remote_s`: to the first token through another worker. `line_s`: that others wait less, see there."""
        ttft_s = _local_ttft_s(decode, num_uncached_tokens)
        stall_s = decode.load.costs.per_token_s * num_uncached_tokens * max(1, decode.load.num_running)
        return cls(ttft_s, stall_s, max(0.0, remote_s - ttft_s + line_s))

    @property
    def is_better(self) -> bool:
        return self.stall_s <= self.saved_s


def line_s(ask: Ask, computes_s: float, num_prefillers: int) -> float:
    """What those in line behind the request wait less, summed, if it keeps no prefill worker busy for `computes_s`."""
    return ask.num_behind * computes_s / num_prefillers


def added_s(handoff_s: HandoffSeconds, link: Link, prefill: WorkerView, decode: WorkerView) -> float:
    """By a handoff between these two."""
    own_s = handoff_s.get((prefill.ref.worker_id, decode.ref.worker_id))
    if own_s is None and link is Link.NETWORK:
        own_s = handoff_s.get(BoxPair(prefill.kv_site.box_id, decode.kv_site.box_id))
    return handoff_s[link] if own_s is None else own_s


def is_anyone_away(views: Sequence[WorkerView]) -> bool:
    """A worker that is not ready is on its way back, as a new incarnation that has failed no request."""
    return not all(view.ready for view in views)


def with_costs(views: Sequence[WorkerView]) -> list[WorkerView]:
    """Workers that have measured nothing yet are taken for as slow as the slowest: free work would draw everything."""
    measured = [view.load.costs for view in views if view.has_measured_costs]
    if not measured or len(measured) == len(views):
        return list(views)
    slowest = max(measured, key=lambda costs: costs.per_token_s)
    return [v if v.has_measured_costs else replace(v, load=replace(v.load, costs=slowest)) for v in views]


def _prefillers(
    decode_view: WorkerView, views: Sequence[WorkerView], closed: Collection[BoxPair]
) -> dict[WorkerRef, KVPath]:
    """Those of the best role that can compute a prompt for it, and how it gets there."""
    if Ability.RESERVE not in decode_view.abilities:
        return {}
    receiver = decode_view.kv_site
    paths: dict[WorkerRef, KVPath] = {}
    others = []
    for view in views:
        if Ability.PREFILL in view.abilities and view.ref != decode_view.ref:
            path = kv_path(view.kv_site, receiver)
            way = BoxPair(view.kv_site.box_id, receiver.box_id)
            if path is not None and not (path.link is Link.NETWORK and way in closed):
                paths[view.ref] = path
                others.append(view)
    return {view.ref: paths[view.ref] for view in preferred(others, prefill_rank)}


def _way_to_first_token_s(
    view: WorkerView,
    able: Sequence[WorkerView],
    ask: Ask,
    handoff_s: HandoffSeconds,
    own_s: Mapping[WorkerRef, float],
    closed: Collection[BoxPair],
) -> float:
    """If `view` decodes: the prompt is computed on the best other worker, or on `view` by `choose_prefill`'s rule.
    `own_s`: of each worker, if it computes what it does not hold itself."""
    num_uncached = ask.num_uncached(view.ref)
    paths = _prefillers(view, able, closed) if view.role.hands_over else {}
    others = [other for other in able if other.ref in paths]
    if not others:
        return _local_ttft_s(view, num_uncached)
    remote_s, best = min(
        (
            added_s(handoff_s, paths[other.ref].link, other, view)
            + (_prefill_ttft_s(other, num_uncached) if paths[other.ref].zero_copy else own_s[other.ref]),
            place,
        )
        for place, other in enumerate(others)
    )
    kept = Kept.of(view, num_uncached, remote_s, line_s(ask, prefill_s(others[best], num_uncached), len(others)))
    return kept.ttft_s if kept.is_better else remote_s


def _decode_s(view: WorkerView, ask: Ask) -> float:
    """Some steps with the request in them, and the prompts that are computed there between them."""
    load = view.load
    step_s = load.costs.step_s(view.num_streams + 1, view.num_decode_kv_tokens + ask.num_tokens)
    return view.prefill_queue_s + _DECODE_STEPS * step_s / view.role.decode_fraction


def prefill_s(view: WorkerView, num_uncached_tokens: int) -> float:
    """Of a prompt, once it is its turn."""
    return view.load.costs.step_s(num_uncached_tokens, num_uncached_tokens)


def _prefill_ttft_s(view: WorkerView, num_uncached_tokens: int) -> float:
    return view.prefill_queue_s + prefill_s(view, num_uncached_tokens)


def _local_ttft_s(view: WorkerView, num_uncached_tokens: int) -> float:
    """The prompt shares its step with the streams that decode there."""
    num_tokens = view.load.num_running + num_uncached_tokens
    num_kv_tokens = view.load.num_decode_kv_tokens + num_uncached_tokens
    return view.prefill_queue_s + view.load.costs.step_s(num_tokens, num_kv_tokens)


def decode_rank(role: Role) -> int:
    """Of the worker that is to decode; the least one is best."""
    return 0 if role.decodes else 2 if role.is_standby else 1


def prefill_rank(role: Role) -> int:
    """Of the worker that is to compute prompts for others; the least one is best."""
    if not role.computes_prompts:
        return 3 if role.is_standby else 2
    return 0 if role.hands_over else 1


def preferred(views: Sequence[WorkerView], rank: Callable[[Role], int]) -> list[WorkerView]:
    """Those of the best role that there is."""
    best = min((rank(view.role) for view in views), default=0)
    return [view for view in views if rank(view.role) == best]
