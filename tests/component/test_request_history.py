"""The ring of requests against a model of it: what is found by which name, what is slowest, and how much is kept."""

from __future__ import annotations

from dataclasses import dataclass, fields

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from relevo.core.baton import PrefillFacts
from relevo.core.events import StepCosts, StepCounters, WorkerLoad
from relevo.core.handoff import Link
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.outcome import COMPLETE, Cause, RequestEnd
from relevo.core.request import EngineRequest, SamplingParams
from relevo.core.timeline import Gap, HitsLost, Leg, Preemption, Timeline
from relevo.gateway.requests.history import RequestFilter, RequestHistory, SlowBy
from relevo.gateway.requests.kept import KeptRequest, LiveRequest
from relevo.gateway.requests.packing import packed, unpacked

MOST = 4
TENANTS = ("", "acme", "other")


@dataclass
class Run:
    """A prompt that took as long as a test says."""

    request: EngineRequest
    timeline: Timeline
    ended: RequestEnd | None = COMPLETE
    num_prompt_tokens: int = 3
    num_cached_tokens: int = 1
    num_output_tokens: int = 2


def run(name: str, accepted_ns: int, took_ns: int) -> Run:
    request = EngineRequest(
        request_id=RequestId(name), prompt_token_ids=(1, 2, 3), sampling=SamplingParams(max_tokens=2, seed=0)
    )
    marks = Timeline(
        accepted_at_ns=accepted_ns, first_written_at_ns=accepted_ns + took_ns // 2, ended_at_ns=accepted_ns + took_ns
    )
    return Run(request, marks)


def live(number: int, tenant: str, x_request_id: str) -> LiveRequest:
    return LiveRequest(
        x_request_id=x_request_id, tenant=tenant, key_id="", path="/", accepted_at_ns=0, arrived_at_unix_ms=number
    )


class HistoryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.history = RequestHistory(max_requests=MOST)
        self.number = 0
        self.live: dict[int, LiveRequest] = {}
        self.ended: list[tuple[int, LiveRequest]] = []
        self.took: dict[int, int] = {}
        self.meant: dict[tuple[str, str], int] = {}

    @rule(tenant=st.sampled_from(TENANTS), name=st.sampled_from(("a", "b", "")), reads=st.booleans())
    def opens(self, tenant: str, name: str, reads: bool) -> None:
        self.number += 1
        number = self.number
        one = live(number, tenant, name or f"own-{number}")
        self.history.open(one)
        self.live[number] = one
        self.took[number] = (number * 7919) % 101 * 1_000_000
        if reads:
            prompt = run(f"e-{number}", 0, self.took[number])
            one.began("m", f"answer-{number}", [prompt], 1, is_streamed=True)
            self.history.began(one)
        self.meant |= {(tenant, each): number for each in one.ids if each}

    @rule(place=st.integers(0, 3))
    def closes(self, place: int) -> None:
        if self.live:
            number = sorted(self.live)[place % len(self.live)]
            one = self.live.pop(number)
            self.history.close(one, 200, self.took[number])
            self.ended = self.still_there([*self.ended, (number, one)])

    def still_there(self, ended: list[tuple[int, LiveRequest]]) -> list[tuple[int, LiveRequest]]:
        """One at most is gone, if there were too many: the oldest of a tenant that has no fewer than an even share."""
        found = self.history.slowest(SlowBy.E2E, 100, RequestFilter(tenant=None), 50_000_000)
        numbers = {one.arrived_at_unix_ms for one in found}
        gone = [(number, one) for number, one in ended if number not in numbers]
        assert len(gone) == max(0, len(ended) - MOST)
        for number, one in gone:
            own = [each for each, other in ended if other.tenant == one.tenant]
            assert number == own[0]
            assert len(own) * len({other.tenant for _, other in ended}) >= len(ended) - 1  # sizes differ a little
        return [each for each in ended if each not in gone]

    @invariant()
    def a_name_leads_to_who_was_given_it_last_in_its_tenant(self) -> None:
        """Red when it leads to another tenant's request, or to one that is forgotten."""
        known = {*self.live, *(number for number, _ in self.ended)}
        for (tenant, name), number in self.meant.items():
            found = self.history.find(name, tenant, 10**9)
            assert (found.arrived_at_unix_ms if found else None) == (number if number in known else None)
            for other in TENANTS:
                if (other, name) not in self.meant:
                    assert self.history.find(name, other, 10**9) is None

    @invariant()
    def keeps_no_more_than_it_may(self) -> None:
        assert self.history.num_ended == len(self.ended) <= MOST and self.history.num_live == len(self.live)
        assert self.history.num_bytes >= 0
        num_names = sum(len(of_tenant) for of_tenant in self.history._named.values())
        assert num_names <= 3 * (len(self.live) + len(self.ended))

    @invariant()
    def tells_the_slowest_first(self) -> None:
        slowest = self.history.slowest(SlowBy.E2E, 100, RequestFilter(tenant="acme"), 50_000_000)
        known = {number for number, one in [*self.ended, *self.live.items()] if one.tenant == "acme"}
        assert {one.arrived_at_unix_ms for one in slowest} == known
        times = [one.e2e_s for one in slowest]
        assert times == sorted(times, reverse=True)


def test_a_tenant_that_floods_pushes_out_its_own_requests_only() -> None:
    """Red when a neighbour's thousand requests are all that is left of an hour."""
    history = RequestHistory(max_requests=100)
    for number in range(1000):
        for tenant in ("quiet",) if number < 40 else ("loud",):
            one = live(number, tenant, f"{tenant}-{number}")
            history.open(one)
            history.close(one, 200, 1_000_000)
    assert history.num_ended == 100
    assert all(history.find(f"quiet-{number}", "quiet", 0) is not None for number in range(40))
    assert history.find("loud-939", "loud", 0) is None and history.find("loud-940", "loud", 0) is not None
    one = live(1000, "new", "new-1000")
    history.open(one)
    history.close(one, 200, 1_000_000)
    assert history.find("new-1000", "new", 0) is not None and history.find("loud-940", "loud", 0) is None


HistoryMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestHistory = HistoryMachine.TestCase


def full_timeline() -> Timeline:
    """Every mark is away from its default."""
    ref, other = WorkerRef(WorkerId("p"), 2), WorkerRef(WorkerId("d"), 1)
    costs = StepCosts(base_s=0.5, per_token_s=0.25, per_kv_token_s=0.125)
    load = WorkerLoad(num_running=3, num_free_blocks=5, costs=costs)
    counters = StepCounters(num_steps=9, busy_s=0.5, product_ops=1e30)
    leg = Leg(
        routed_at_ns=4,
        decode=other,
        reason="why",
        is_split=True,
        is_resumed=True,
        num_hit_tokens=16,
        num_lost_hit_tokens=32,
        hits_lost=HitsLost.MOVED,
        decode_load=load,
        granted_at_ns=5,
        prefill=ref,
        prefill_reason="fastest",
        prefill_load=load,
        asked_counters=counters,
        prompt_counters=counters,
        prompt_costs=costs,
        last_costs=costs,
        link=Link.NETWORK,
        first_output_at_ns=6,
        facts=PrefillFacts(
            worker_id=WorkerId("p"), num_prompt_tokens=3, num_cached_tokens=1, queue_s=0.5, prefill_s=1.5, num_chunks=2
        ),
        handed_over_at_ns=7,
        decode_started_at_ns=8,
        started_counters=counters,
        decode_output_at_ns=9,
        first_counters=counters,
        last_counters=counters,
        transferred_bytes=4096,
        transfer_s=0.25,
        last_output_at_ns=10,
        ended_at_ns=11,
        failure="it broke",
    )
    return Timeline(
        accepted_at_ns=1,
        prepared_at_ns=2,
        num_ahead=7,
        let_in_at_ns=3,
        legs=[leg, leg],
        preemptions=[Preemption(at_ns=6, worker=other, resumed_at_ns=8)],
        num_preemptions=12,
        worst_gap=Gap(from_ns=6, to_ns=9, worker=other, before=counters, after=counters, load=load),
        num_outputs=4,
        last_output_at_ns=10,
        first_written_at_ns=7,
        last_written_at_ns=11,
        blocked_s=0.5,
        blocked_first_s=0.25,
        ended_at_ns=12,
    )


def test_a_packed_timeline_is_the_same_again() -> None:
    """Red when a mark that is added is not packed, or comes back as something else."""
    timelines = (full_timeline(), Timeline(accepted_at_ns=5))
    for thing in (timelines[0], timelines[0].legs[0], timelines[0].worst_gap):
        assert thing is not None
        unset = [each.name for each in fields(thing) if getattr(thing, each.name) == each.default]
        assert not unset, f"a mark of {type(thing).__name__} is not tried here"
    assert unpacked(packed(timelines)) == timelines


def test_bytes_are_bounded_too() -> None:
    """Red when requests of many prompts are counted like those of one."""
    history = RequestHistory(max_requests=1000, max_bytes=200_000)
    for number in range(100):
        one = live(number, "", f"r{number}")
        history.open(one)
        one.began("m", f"a{number}", [run(f"e{number}-{each}", 0, 1) for each in range(20)], 20, is_streamed=False)
        history.began(one)
        history.close(one, 200, 1)
        assert history.num_bytes <= 200_000
    assert 1 <= history.num_ended < 20
    assert history.find("a99", "", 0) is not None and history.find("a1", "", 0) is None


def test_what_ended_before_the_moment_is_left_out() -> None:
    history = RequestHistory()
    for number, arrived_ms in enumerate((1_000, 5_000)):
        one = live(arrived_ms, "", f"r{number}")
        history.open(one)
        history.close(one, 400, 2_000_000_000)
    found = history.slowest(SlowBy.E2E, 9, RequestFilter(tenant=None, since_unix_ms=4_000), 0)
    assert [each.x_request_id for each in found] == ["r1"]


def test_reasons_are_not_kept_for_they_may_quote_the_client() -> None:
    one = live(1, "", "r")
    failed = run("e", 0, 1)
    failed.ended = RequestEnd(cause=Cause.WORKER_FAILED, code="invalid_grammar", reason="a secret", limit="x")
    one.began("m", "a", [failed], 1, is_streamed=False)
    kept: KeptRequest = one.as_kept(400, 5)
    assert "secret" not in repr(kept) and kept.prompts[0].end is not None and kept.prompts[0].end.limit == "x"
