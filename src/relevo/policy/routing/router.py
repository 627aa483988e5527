"""Where a request goes, of several candidates: one object for workers inside a region and for regions above them.

A candidate comes with an estimate: seconds to the first token there (queue, prefill of what is not cached, transfer),
tokens of the prompt that are cached there, and its load. By default (`ttft`) the shortest time wins, with two
preferences that may cost a bounded amount of it:

1. **warm**: the candidate that holds at least half of the prompt. Moving on would compute again, and evict elsewhere.
2. **home**: the first candidate in the session's own order (highest random weight hashing, the same in every gateway
   without any talk between them), for a session that no gateway knows yet.

A preference is taken only if it costs at most `max_affinity_penalty_s`, and if the candidate's share of the work in
flight stays within `load_factor` of the mean (consistent hashing with bounded loads); a home is also bounded in its
share of the work of late, so that new sessions even out what old ones need. So affinity never pins: a busy home is
passed over. A prefix that many requests share is **hot** and gets copied: it goes to one more candidate for every few
uses, as soon as computing it there is bearable beside the queue at its holder. Near ties are decided by the less busy
of two at random, so that gateways that see the same reports do not herd.

Does not know what a candidate is, nor where its estimate comes from. Sources: Mooncake (FAST 2025, algorithm 1), Preble
(ICLR 2025), Mirrokni, Thorup, Zadimoghaddam (consistent hashing with bounded loads, 2016).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import blake2b
from random import Random
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

NEAR_TIE = 1.05  # arbitrary: estimates are hardly better than this
NEAR_TIE_S = 0.0005  # arbitrary: below it, costs are noise
HOT_AFTER = 8  # so many uses of one prefix of late, per candidate that holds it, call for another copy. Arbitrary.
MAX_PREFIXES = 512  # whose uses are counted; the longest unused is forgotten
MEMORY = 0.995  # of past work with each decision: the last two hundred or so count. Arbitrary.


class RoutingPolicy(StrEnum):
    TTFT = "ttft"  # the shortest estimated time to first token, with bounded affinity
    ROUND_ROBIN = "round_robin"
    LEAST_REQUESTS = "least_requests"
    PREFIX_ONLY = "prefix_only"  # the longest cached prefix, whatever the load


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterLimits:
    load_factor: float = 1.25  # a preferred candidate may have so many times the mean load
    max_affinity_penalty_s: float = 0.5  # what a preference may add to the time to first token
    conditional_disaggregation: bool = True  # a decode worker keeps prompts that it is estimated to compute sooner


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Generic[K]):
    key: K
    name: str  # outlives restarts; hashed for the session's order
    cost_s: float  # estimated time to the first token if it goes there
    num_hit_tokens: int = 0  # of the prompt
    prefix: bytes = b""  # names these tokens; equal for all requests that share exactly them
    num_load_tokens: int = 0  # in flight there, this request not included
    num_requests: int = 0  # running or waiting there


@dataclass(frozen=True, slots=True)
class Use:
    """What a router remembers of one pick; another router of the same candidates may hear of it."""

    name: str  # of the candidate
    num_new_tokens: int  # given to it, uncached
    prefix: bytes = b""  # whose use was counted; empty: none


NO_USE = Use("", 0)


@dataclass(frozen=True, slots=True)
class Pick(Generic[K]):
    candidate: Candidate[K]
    reason: str  # begins with the rule that decided: only, warm, hot, home, fastest, or a baseline's name
    use: Use = NO_USE


@dataclass(slots=True)
class Router(Generic[K]):
    """`pick` and `heard` remember what was given to whom; nothing else is kept between calls."""

    policy: RoutingPolicy = RoutingPolicy.TTFT
    limits: RouterLimits = RouterLimits()
    _num_picks: int = 0
    _recent_tokens: dict[str, float] = field(default_factory=dict)  # uncached tokens given, fading
    _uses: OrderedDict[bytes, tuple[float, int]] = field(default_factory=OrderedDict)  # fading count, as of which pick

    def pick(self, candidates: Sequence[Candidate[K]], num_tokens: int, session: bytes, rng: Random) -> Pick[K]:
        """One of `candidates` (at least one) for a prompt of `num_tokens`. `session`: empty if there is none."""
        self._num_picks += 1
        pick = self._pick(candidates, num_tokens, session, rng)
        use = replace(
            pick.use, name=pick.candidate.name, num_new_tokens=max(0, num_tokens - pick.candidate.num_hit_tokens)
        )
        self._remember(use)
        return replace(pick, use=use)

    def heard(self, use: Use) -> None:
        """Another router of the same candidates made this pick."""
        self._num_picks += 1
        if use.prefix:
            self._count_use(use.prefix)
        self._remember(use)

    def _pick(self, candidates: Sequence[Candidate[K]], num_tokens: int, session: bytes, rng: Random) -> Pick[K]:
        if len(candidates) == 1:
            return Pick(candidates[0], "only one is able")
        match self.policy:
            case RoutingPolicy.ROUND_ROBIN:
                in_order = sorted(candidates, key=lambda c: c.name)
                return Pick(in_order[self._num_picks % len(in_order)], "round_robin")
            case RoutingPolicy.LEAST_REQUESTS:
                least = min(c.num_requests for c in candidates)
                return Pick(rng.choice([c for c in candidates if c.num_requests == least]), f"least_requests: {least}")
            case RoutingPolicy.PREFIX_ONLY:
                most = max(c.num_hit_tokens for c in candidates)
                ties = [c for c in candidates if c.num_hit_tokens == most]
                return Pick(less_busy_of_two(ties, rng), f"prefix_only: {most} of {num_tokens} tokens cached")
            case RoutingPolicy.TTFT:
                return self._by_ttft(candidates, num_tokens, session, rng)

    def _by_ttft(self, candidates: Sequence[Candidate[K]], num_tokens: int, session: bytes, rng: Random) -> Pick[K]:
        least_s = min(c.cost_s for c in candidates)
        fastest = [c for c in candidates if c.cost_s <= max(least_s * NEAR_TIE, least_s + NEAR_TIE_S)]
        most = max(c.num_hit_tokens for c in candidates)
        why_not, used = "", NO_USE
        if most >= num_tokens - most:
            warm = min((c for c in candidates if c.num_hit_tokens == most), key=lambda c: c.cost_s)
            used = Use("", 0, warm.prefix)
            another = self._another_holder(warm, candidates)
            if another is not None:
                return Pick(another, f"hot: a copy of {most} tokens, {_ms(another.cost_s - warm.cost_s)} late", used)
            if warm in fastest:
                return Pick(warm, f"warm: {most} of {num_tokens} tokens cached there, and fastest", used)
            if self._may_prefer(warm, candidates, num_tokens, least_s, _in_flight):
                return Pick(
                    warm, f"warm: {most} of {num_tokens} tokens cached there, {_ms(warm.cost_s - least_s)} late", used
                )
            why_not = f"; {warm.name} holds {most} tokens but is {_ms(warm.cost_s - least_s)} slower or overloaded"
        elif session:
            home = self._home(candidates, num_tokens, session, least_s)
            if home is not None:
                return Pick(home, f"home: of its session, {_ms(home.cost_s - least_s)} late")
            why_not = "; every home of its session is overloaded"
        best = less_busy_of_two(fastest, rng)
        return Pick(
            best, f"fastest: {_ms(best.cost_s)} to the first token, {best.num_hit_tokens} tokens cached{why_not}", used
        )

    def _another_holder(self, warm: Candidate[K], candidates: Sequence[Candidate[K]]) -> Candidate[K] | None:
        """Who should hold the prefix too, now that many use it: the worker that would have it soonest, if that is
        bearable."""
        if not warm.prefix:
            return None
        count = self._count_use(warm.prefix)
        others = [c for c in candidates if c.num_hit_tokens < warm.num_hit_tokens]
        if not others or count <= HOT_AFTER * (len(candidates) - len(others)):
            return None
        soonest = min(others, key=lambda c: c.cost_s)
        bearable_s = warm.cost_s * self.limits.load_factor + self.limits.max_affinity_penalty_s
        return soonest if soonest.cost_s <= bearable_s else None

    def _count_use(self, prefix: bytes) -> float:
        """Uses of late, this one included."""
        count, as_of = self._uses.pop(prefix, (0.0, self._num_picks))
        count = count * MEMORY ** (self._num_picks - as_of) + 1
        self._uses[prefix] = (count, self._num_picks)
        if len(self._uses) > MAX_PREFIXES:
            self._uses.popitem(last=False)
        return count

    def _home(
        self, candidates: Sequence[Candidate[K]], num_tokens: int, session: bytes, least_s: float
    ) -> Candidate[K] | None:
        for candidate in sorted(candidates, key=lambda c: _weight(session, c.name), reverse=True):
            if self._may_prefer(candidate, candidates, num_tokens, least_s, self._in_flight_and_of_late):
                return candidate
        return None

    def _may_prefer(
        self,
        candidate: Candidate[K],
        candidates: Sequence[Candidate[K]],
        num_tokens: int,
        least_s: float,
        load: Callable[[Candidate[K]], float],
    ) -> bool:
        """Bounded in time and in load. With the request, the loads' mean grows too, so one worker is always within."""
        if candidate.cost_s > least_s + self.limits.max_affinity_penalty_s:
            return False
        num_new = num_tokens - candidate.num_hit_tokens
        total = sum(load(c) for c in candidates) + num_new
        return load(candidate) + num_new <= self.limits.load_factor * max(total / len(candidates), num_new)

    def _in_flight_and_of_late(self, candidate: Candidate[K]) -> float:
        return candidate.num_load_tokens + self._recent_tokens.get(candidate.name, 0.0)

    def _remember(self, use: Use) -> None:
        faded = {name: MEMORY * tokens for name, tokens in self._recent_tokens.items()}
        self._recent_tokens = {name: tokens for name, tokens in faded.items() if tokens >= 1.0}
        self._recent_tokens[use.name] = self._recent_tokens.get(use.name, 0.0) + use.num_new_tokens


def less_busy_of_two(candidates: Sequence[Candidate[K]], rng: Random) -> Candidate[K]:
    """Two at random, and of these the one with less in flight (power of two choices)."""
    two = rng.sample(list(candidates), min(2, len(candidates)))
    return min(two, key=lambda c: (c.num_load_tokens, c.num_requests))


def _in_flight(candidate: Candidate[K]) -> float:
    return candidate.num_load_tokens


def _weight(session: bytes, name: str) -> bytes:
    return blake2b(name.encode(), key=session[:64], digest_size=8).digest()


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"
