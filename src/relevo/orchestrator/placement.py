"""What the router is shown and what it has decided: load and cache reports of `membership`, the ledger of charges, and
the prefix index. Where several gateways share the workers, what the others told is in both.

Owns the ledger, the index and the measured cost of a handoff. Every choice is `policy.routing.worker_choice`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from random import Random

from relevo.core.handoff import ALL_ABILITIES, NO_SITE, Link
from relevo.core.ids import BlockHash, RequestId, WorkerId, WorkerRef
from relevo.orchestrator.in_flight import InFlightRequest
from relevo.orchestrator.member import Member
from relevo.orchestrator.membership import Membership
from relevo.policy.admission.room import RoomLimits, RoomView, Way, outlook, way_out
from relevo.policy.handoff import events
from relevo.policy.perf.handoff_costs import BoxPair, HandoffCostModel, Pair
from relevo.policy.routing.charges import ChargeLedger
from relevo.policy.routing.closed_ways import ClosedWays
from relevo.policy.routing.gossip import ChangeLog, PeerState
from relevo.policy.routing.prefix_index import PrefixIndex
from relevo.policy.routing.router import Use
from relevo.policy.routing.tenant_use import TenantUse
from relevo.policy.routing.worker_choice import Ask, Choice, PrefillChoice, WorkerChooser, WorkerView, is_anyone_away
from relevo.policy.worker.stopping import num_least_output_tokens
from relevo.wire import messages as wire

log = logging.getLogger("relevo.gateway")

_FIRST_HANDOFF_TOKENS = 512  # arbitrary: of a prompt, by which the first handoff between two boxes is judged


class Placement:
    def __init__(
        self,
        membership: Membership,
        chooser: WorkerChooser,
        block_size: int,
        rng: Random,
        room: RoomLimits | None = None,
    ) -> None:
        """Without `room` every request may be sent at once."""
        self._membership = membership
        self._chooser = chooser
        self._block_size = block_size
        self._room = room or RoomLimits(
            max_running=10**9, max_ahead_tokens=10**12, max_ahead_s=float("inf"), block_size=block_size
        )
        self._rng = rng
        self._ledger = ChargeLedger()
        self._tenant_use = TenantUse()
        self._index = PrefixIndex()
        self._unfollowed: set[WorkerRef] = set()  # whose cache reports have a gap; a snapshot is on its way
        self._handoff = HandoffCostModel()
        self._ways = ClosedWays()
        self._slow_pairs: set[Pair] = set()  # that were named
        self._known: dict[WorkerId, tuple[WorkerView, tuple[bool, int, int]]] = {}  # the last view of each
        self.change_log = ChangeLog(self._ledger, self._index)
        self.peer_state = PeerState(self._ledger, self._index, chooser)
        self._tell: Callable[[bool], None] | None = None

    def tell(self, news: Callable[[bool], None]) -> None:
        """There are other gateways: from here on the change_log is kept. `news(is_urgent)` is called when it grows; in
        the end `change_log.batch` must be taken."""
        self._tell = news

    def num_cached_tokens(self, in_flight: InFlightRequest) -> int:
        """Of the prompt, believed to be cached where most of it is."""
        return max(self._ask(in_flight).hit_tokens.values(), default=0)

    def outlook(self, in_flight: InFlightRequest) -> RoomView:
        """What the request may expect of the workers."""
        return outlook(self._views(), self._ask(in_flight), min(self._handoff.handoff_s.values()), self._room)

    def has_room(self, in_flight: InFlightRequest, num_behind: int) -> bool:
        """May it be sent now? `num_behind`: interactive requests that wait behind it in line. Where those have room
        that compute prompts they wait for none of it."""
        is_batch = in_flight.request.terms.is_batch
        in_flight.num_behind = num_behind if self._room.streams_wait_for_line and not is_batch else 0
        handoff_s = min(self._handoff.handoff_s.values())
        way = way_out(self._views(), self._ask(in_flight), self._room, handoff_s, is_batch=is_batch)
        if way is not Way.DECODE:
            in_flight.num_behind = 0
        return way is not None

    def choose_decode(self, in_flight: InFlightRequest, exclude: Iterable[WorkerRef], now_ns: int = 0) -> Choice | None:
        """The decode worker, charged; None if none is ready. `end` must follow, in the end."""
        request, request_id = in_flight.request, in_flight.request_id
        excluded, ask = frozenset(exclude), self._ask(in_flight)
        views = self._of_its_class(in_flight, excluded)
        closed = self._ways.closed(now_ns)
        choice = self._chooser.choose_decode(views, ask, self._handoff.handoff_s, excluded, self._rng, closed)
        if choice is not None:
            choice = self._with_lost_hits(choice, in_flight, ask)
            is_batch = request.terms.is_batch
            self._ledger.charge_decode(request_id, choice.worker, ask.num_tokens, is_batch=is_batch)
            self._ledger.ask(request_id, choice.worker, choice.num_uncached_tokens)
            num_slots = min(request.sampling.n, self._room.max_running)
            num_least_tokens = num_least_output_tokens(request)
            self._tenant_use.decodes(request_id, request.terms.tenant, choice.worker, num_slots, num_least_tokens)
            self._index.expect(request_id, "decode", choice.worker, self._hashes_on(choice.worker, in_flight))
            if not choice.split:
                self._ledger.charge_prefill(request_id, choice.worker, choice.num_uncached_tokens)
                self._tenant_use.computes(request_id, choice.worker, choice.num_uncached_tokens)
            self._chose("decode", request_id, choice.use)
        return choice

    def _with_lost_hits(self, choice: Choice, in_flight: InFlightRequest, ask: Ask) -> Choice:
        """Before the request promises blocks of its own."""
        size, hashes = self._block_size_of(choice.worker), self._hashes_on(choice.worker, in_flight)
        num_anywhere = max(ask.hit_tokens.values(), default=0) // size
        lost = self._index.lost.of(hashes, choice.num_hit_tokens // size, num_anywhere, size)
        return replace(choice, lost=lost) if lost.num_tokens else choice

    def may_wait(self) -> bool:
        """For a request that no ready worker may take: will there be others?"""
        return is_anyone_away(self._views())

    def choose_prefill(
        self,
        in_flight: InFlightRequest,
        decode: WorkerRef,
        num_uncached_tokens: int,
        exclude: Iterable[WorkerRef],
        now_ns: int = 0,
    ) -> PrefillChoice:
        """Who computes the prompt, charged."""
        request_id, excluded = in_flight.request_id, frozenset(exclude)
        views = [view for view in self._of_its_class(in_flight, excluded) if view.ref not in excluded]
        decode_view = next((view for view in views if view.ref == decode), None)
        if decode_view is None:
            return PrefillChoice(worker=None, reason="the decode worker is gone")
        choice = self._chooser.choose_prefill(
            decode_view,
            views,
            self._ask(in_flight),
            num_uncached_tokens,
            self._handoff.handoff_s,
            self._rng,
            self._ways.closed(now_ns),
        )
        if choice.worker is not None and (way := self._way(choice.worker, decode)) is not None:
            self._ways.tried(way, now_ns)
        self._ledger.charge_prefill(request_id, choice.worker or decode, choice.num_uncached_tokens)
        self._tenant_use.computes(request_id, choice.worker or decode, choice.num_uncached_tokens)
        if choice.worker is not None and choice.path is not None and not choice.path.zero_copy:
            self._index.expect(request_id, "prefill", choice.worker, self._hashes_on(choice.worker, in_flight))
        self._chose("prefill", request_id, choice.use)
        return choice

    def observe(self, in_flight: InFlightRequest, event: events.Event) -> bool:
        """Progress gives charges back. False: only decoding went on, which makes no room."""
        request_id = in_flight.request_id
        match event:
            case events.Tokens(output=output):
                in_flight.compute = in_flight.compute or self._class_of(event.worker)
                return self.gave_tokens(request_id, len(output.tokens)) or not in_flight.is_started
            case events.Granted():
                self._ledger.answered(request_id)
            case events.Sealed(num_tokens=num_tokens):
                num_left = in_flight.handoff.num_prompt_tokens - num_tokens
                self._ledger.prefill_left(request_id, max(1, num_left))
            case _:
                return True
        self._changed(request_id, is_urgent=False)
        return True

    def gave_tokens(self, request_id: RequestId, num_tokens: int) -> bool:
        """False: only decoding went on, which makes no room."""
        makes_room = self._ledger.gave_tokens(request_id, num_tokens)
        self._tenant_use.gave(request_id, num_tokens)
        self._changed(request_id, is_urgent=False)
        return makes_room

    def follow_cache(self, worker: WorkerRef) -> None:
        """From its next snapshot on what it has cached is known."""
        self._membership.send(worker, wire.FollowCache())

    def take_cache_report(self, worker: WorkerRef, report: wire.CacheEvents | wire.CacheSnapshot) -> None:
        if isinstance(report, wire.CacheSnapshot):
            self._index.restore(worker, report.sequence, report.hashes)
            self._unfollowed.discard(worker)
        elif self._index.apply(worker, report.sequence, report.stored, report.evicted):
            self._unfollowed.discard(worker)
        elif worker not in self._unfollowed:  # events are missing; until the snapshot comes nothing else is believed
            self._unfollowed.add(worker)
            self.follow_cache(worker)

    def handoff_took(self, waited_s: float, decode: WorkerRef, link: Link, prefill: WorkerRef | None = None) -> None:
        """Seconds from the first token of the prefill worker to the first of the decode worker, one step included."""
        member = self._membership.get(decode)
        if member is not None:
            step_s = member.load.costs.step_s(max(1, member.load.num_running), member.load.num_decode_kv_tokens)
            pair = (prefill.worker_id, decode.worker_id) if prefill is not None else None
            self._handoff.observe(link, waited_s, step_s, pair)
            self._name_slow_pairs()
        if prefill is not None and (way := self._way(prefill, decode)) is not None:
            self._ways.succeeded(way)

    def handoff_failed(self, prefill: WorkerRef, decode: WorkerRef, now_ns: int) -> None:
        """KV did not get from one to the other. Between two boxes the next ones do not try, for a while."""
        way = self._way(prefill, decode)
        if way is not None and self._ways.failed(way, now_ns):
            log.warning("KV does not get from %s to %s; prompts go another way for a while", way.from_box, way.to_box)

    def ways_closed(self, faulty: Iterable[BoxPair]) -> None:
        """All over which nodes found that nothing passes."""
        self._ways.reported(faulty)

    def _way(self, prefill: WorkerRef, decode: WorkerRef) -> BoxPair | None:
        """None: both are on one box, or one is gone."""
        path = self._membership.kv_path(prefill, decode)
        one, other = self._membership.get(prefill), self._membership.get(decode)
        if path is None or path.link is not Link.NETWORK or one is None or other is None:
            return None
        assert one.hello is not None
        assert other.hello is not None
        return BoxPair(one.hello.kv_site.box_id, other.hello.kv_site.box_id)

    def _name_slow_pairs(self) -> None:
        """Each once, until it is as fast as the others again."""
        slow = self._handoff.slow_pairs()
        for pair in slow.keys() - self._slow_pairs:
            log.warning(
                "handoffs from %s to %s take %.0f ms, %.0f times as long as between others that are joined alike; "
                "prompts go another way where that is faster",
                *pair,
                1e3 * self._handoff.handoff_s[pair],
                slow[pair],
            )
        self._slow_pairs = set(slow)

    def link_measured(self, from_box: str, to_box: str, bytes_per_s: float, round_trip_s: float) -> None:
        """Of the way for KV between two boxes: what a handoff over it is taken to cost until some were made."""
        hello = next((each.hello for each in self._membership.members if each.hello is not None), None)
        if hello is not None and bytes_per_s > 0.0:
            num_bytes = _FIRST_HANDOFF_TOKENS * hello.layout.bytes_per_token
            self._handoff.expect(BoxPair(from_box, to_box), 2 * round_trip_s + num_bytes / bytes_per_s)

    def end(self, request_id: RequestId) -> None:
        """The request is over: charges and expectations go. What its workers said they cached stays."""
        self._ledger.end(request_id)
        self._tenant_use.end(request_id)
        self._index.withdraw(request_id)
        self._changed(request_id, is_urgent=True)

    def forget(self, worker: WorkerRef) -> None:
        self._ledger.forget(worker)
        self._known.pop(worker.worker_id, None)
        self._unfollowed.discard(worker)
        self._handoff.forget(worker.worker_id)
        self._index.forget(worker)
        if self._tell is not None:
            self.change_log.all_changed()
            self._tell(True)

    def _chose(self, kind: str, request_id: RequestId, use: Use | None) -> None:
        if self._tell is not None:
            self.change_log.chosen(request_id, kind, use)
            self._tell(True)

    def _changed(self, request_id: RequestId, *, is_urgent: bool) -> None:
        if self._tell is not None and self.change_log.changed(request_id):
            self._tell(is_urgent)

    @property
    def is_idle(self) -> bool:
        """Everything that was charged was given back, nothing is expected any more."""
        return self._ledger.is_empty and self._tenant_use.is_empty and not self._index.has_expectations

    def _ask(self, in_flight: InFlightRequest) -> Ask:
        """With the hits that are known now."""
        request, hit_tokens, prefixes = in_flight.request, dict[WorkerRef, int](), dict[WorkerRef, BlockHash]()
        for size in self._membership.block_sizes:
            hashes = in_flight.prompt_hashes.of(size)
            for worker, count in self._index.matches(hashes).items():
                if self._block_size_of(worker) == size:
                    hit_tokens[worker], prefixes[worker] = count * size, hashes[count - 1]
        return Ask(
            num_tokens=in_flight.handoff.num_prompt_tokens,
            hit_tokens=hit_tokens,
            prefixes=prefixes,
            session=request.session,
            tenant=request.terms.tenant,
            num_unstarted=self._tenant_use.num_unstarted(request.terms.tenant),
            num_behind=in_flight.num_behind,
        )

    def _hashes_on(self, worker: WorkerRef, in_flight: InFlightRequest) -> Sequence[BlockHash]:
        return in_flight.prompt_hashes.of(self._block_size_of(worker))

    def _block_size_of(self, worker: WorkerRef) -> int:
        return self._block_size_on(self._membership.get(worker))

    def _block_size_on(self, member: Member | None) -> int:
        return self._block_size if member is None or member.hello is None else member.hello.layout.block_size

    def _views(self) -> list[WorkerView]:
        return [self._view(member) for member in self._membership.members]

    def _of_its_class(self, in_flight: InFlightRequest, excluded: Collection[WorkerRef]) -> list[WorkerView]:
        """A stream continues where the same bits come out, as long as there is such a worker."""
        views = self._views()
        if not in_flight.compute:
            return views
        alike = [view for view in views if self._class_of(view.ref) in ("", in_flight.compute)]
        return alike if any(view.ready and view.ref not in excluded for view in alike) else views

    def _class_of(self, worker: WorkerRef) -> str:
        member = self._membership.get(worker)
        return member.compute if member is not None else ""

    def _view(self, member: Member) -> WorkerView:
        ref, hello, ledger = member.ref, member.hello, self._ledger
        versions = (member.is_ready, ledger.version(ref), self._tenant_use.version(ref))
        known = self._known.get(ref.worker_id)
        if known is not None and known[1] == versions and known[0].load is member.load and known[0].ref == ref:
            return known[0]
        view = WorkerView(
            ref=ref,
            role=member.role_now,
            ready=member.is_ready,
            load=member.load,
            kv_site=hello.kv_site if hello is not None else NO_SITE,
            abilities=hello.abilities if hello is not None else ALL_ABILITIES,
            block_size=self._block_size_on(member),
            in_flight_prefill_tokens=ledger.prefill_tokens(ref),
            in_flight_decode_tokens=ledger.decode_tokens(ref),
            in_flight_asked_tokens=ledger.asked_tokens(ref),
            in_flight_batch_tokens=ledger.batch_tokens(ref),
            num_in_flight_batch=ledger.num_batch(ref),
            num_in_flight_asked=ledger.num_asked(ref),
            num_in_flight_prefills=ledger.num_prefills(ref),
            num_in_flight_decodes=ledger.num_decodes(ref),
            held=self._tenant_use.held(ref),
            sent=self._tenant_use.sent(ref),
        )
        self._known[ref.worker_id] = (view, versions)
        return view
