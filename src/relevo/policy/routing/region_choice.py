"""Which region a request goes to: the router of `policy.routing.router` one level up, with what an edge can know.

An edge sees no tokens and no caches. It knows which region answered a session last (that is where its KV is), what it
has sent and what of it is open, and how long answers took to begin. Prompt sizes are estimates from the body's bytes.

A session stays where it was answered last, so a region that comes back from an outage gets new sessions only: those
that moved have their KV elsewhere now. A request is sent to one region after the other, to each at most once, until one
takes it (`RegionAttempts`). Pure; regions are named by their operator and outlive their restarts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.policy.routing.charges import ChargeLedger
from relevo.policy.routing.router import Candidate, Pick, Router, RouterLimits, RoutingPolicy

BYTES_PER_TOKEN = 4  # of JSON text; arbitrary, only ratios matter here
FIRST_TOKEN_S_PER_TOKEN = 1e-3  # assumed of a region that has not answered yet
RECENT = 0.2  # weight of the newest answer in a region's speed; arbitrary
BUSY = frozenset((429, 503, 529))  # HTTP status: the next region is asked
MAX_SESSIONS = 200_000  # remembered; the oldest is forgotten and finds its home by hashing again


@dataclass(slots=True)
class RegionChoice:
    """Charges at decision time; every charge ends with `end`."""

    router: Router[str] = field(
        default_factory=lambda: Router(RoutingPolicy.TTFT, RouterLimits(load_factor=2.0, max_affinity_penalty_s=2.0))
    )
    max_sessions: int = MAX_SESSIONS
    _ledger: ChargeLedger = field(default_factory=ChargeLedger)
    _s_per_token: dict[str, float] = field(default_factory=dict)
    _places: OrderedDict[bytes, tuple[str, int]] = field(default_factory=OrderedDict)  # session: region, tokens there

    def choose(
        self, request_id: RequestId, session: bytes, num_tokens: int, able: Sequence[str], rng: Random
    ) -> Pick[str]:
        """One of `able` (at least one), charged with the request. Replaces an earlier choice for it."""
        self.end(request_id)
        place, num_held = self._places.get(session, ("", 0))
        candidates = [self._candidate(name, num_tokens, num_held if name == place else 0) for name in able]
        pick = self.router.pick(candidates, num_tokens, session, rng)
        num_new = num_tokens - min(num_tokens, num_held) if pick.candidate.key == place else num_tokens
        self._ledger.charge_prefill(request_id, _ref(pick.candidate.key), max(1, num_new))
        self._ledger.charge_decode(request_id, _ref(pick.candidate.key), num_tokens)
        return pick

    def answered(self, request_id: RequestId, session: bytes, num_tokens: int, region: str, ttft_s: float) -> None:
        """The first byte of an answer came after `ttft_s`: the session's KV is there from now on."""
        num_open = max(1, self._ledger.prefill_tokens(_ref(region)))
        measured = ttft_s / num_open
        known = self._s_per_token.get(region)
        self._s_per_token[region] = measured if known is None else (1 - RECENT) * known + RECENT * measured
        self._ledger.prefill_done(request_id)
        if session:
            self._places[session] = (region, num_tokens)
            self._places.move_to_end(session)
            while len(self._places) > self.max_sessions:
                self._places.popitem(last=False)

    def end(self, request_id: RequestId) -> None:
        """Give back what the request was charged. Idempotent."""
        self._ledger.end(request_id)

    def lost(self, region: str) -> None:
        """Its caches are gone with it: its sessions look for a new home."""
        for session in [session for session, (place, _) in self._places.items() if place == region]:
            del self._places[session]

    def place_of(self, session: bytes) -> str:
        """The region that answered it last; empty if unknown."""
        return self._places.get(session, ("", 0))[0]

    def num_open(self, region: str) -> int:
        return self._ledger.num_decodes(_ref(region))

    @property
    def is_idle(self) -> bool:
        return self._ledger.is_empty

    def _candidate(self, name: str, num_tokens: int, num_held: int) -> Candidate[str]:
        num_new = num_tokens - min(num_tokens, num_held)
        s_per_token = self._s_per_token.get(name, min(self._s_per_token.values(), default=FIRST_TOKEN_S_PER_TOKEN))
        return Candidate(
            key=name,
            name=name,
            cost_s=(self._ledger.prefill_tokens(_ref(name)) + num_new) * s_per_token,
            num_hit_tokens=num_tokens if num_held else 0,  # of all that could be there
            num_load_tokens=self._ledger.decode_tokens(_ref(name)),
            num_requests=self._ledger.num_decodes(_ref(name)),
        )


@dataclass(slots=True)
class RegionAttempts:
    """Where one request goes next. Ask for a region, say what came of it; an answer that is accepted ends the tour."""

    choice: RegionChoice
    request_id: RequestId
    session: bytes
    num_tokens: int
    _tried: list[str] = field(default_factory=list)

    def next_region(self, up: Sequence[str], rng: Random) -> Pick[str] | None:
        """Of those that are up and were not asked yet, charged with the request. None: none is left."""
        able = [name for name in up if name not in self._tried]
        if not able:
            return None
        pick = self.choice.choose(self.request_id, self.session, self.num_tokens, able, rng)
        self._tried.append(pick.candidate.key)
        return pick

    def accepts(self, status: int, ttft_s: float) -> bool:
        """The region that was named last began to answer after `ttft_s`. False: it is busy; its answer is for the
        client only if no other has a better one."""
        if status in BUSY:
            return False
        if status < 400:
            self.choice.answered(self.request_id, self.session, self.num_tokens, self._tried[-1], ttft_s)
        return True


def _ref(region: str) -> WorkerRef:
    return WorkerRef(WorkerId(region), 0)
