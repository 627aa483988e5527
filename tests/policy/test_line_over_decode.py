"""A line before busy prefill workers: when a decode worker takes a prompt out of it, and what keeps that bounded.

Costs one can compute by hand: a step takes 10 ms and 1 ms per token, context is free, so is a handoff.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.core.events import StepCosts, WorkerLoad
from relevo.core.handoff import Ability, KVEndpoint, KVSite, Link, Reach
from relevo.core.ids import WorkerId, WorkerRef
from relevo.core.role import parse_role
from relevo.policy.admission.room import RoomLimits, Way, way_out
from relevo.policy.routing.worker_choice import Ask, WorkerChooser, WorkerView

COSTS = StepCosts(base_s=0.010, per_token_s=0.001, per_kv_token_s=0.0)
LIMITS = RoomLimits(max_running=64, max_ahead_tokens=400, max_ahead_s=0.5, block_size=16)
SHARED = KVSite(box_id="box", arena_id="one", endpoints=(KVEndpoint("shm", "shm:one", Reach.ARENA),))
FREE = dict.fromkeys(Link, 0.0)
ASK = Ask(num_tokens=100)


def view(name: str, role: str, *, running: int = 0, queued: int = 0, asked: int = 0) -> WorkerView:
    return WorkerView(
        ref=WorkerRef(WorkerId(name), 1),
        role=parse_role(role),
        ready=True,
        kv_site=SHARED,
        load=WorkerLoad(costs=COSTS, num_running=running),
        in_flight_prefill_tokens=queued,
        num_in_flight_prefills=-(-queued // 100),
        in_flight_asked_tokens=asked,
        num_in_flight_decodes=running + 1,
    )


FULL = view("p", "prefill", queued=400)


def has_room(views: list[WorkerView], ask: Ask, limits: RoomLimits, *, is_batch: bool = False) -> bool:
    return way_out(views, ask, limits, is_batch=is_batch) is not None


def computed_by(decode: WorkerView, prefill: WorkerView, ask: Ask = ASK) -> str:
    """The router's word, for a request that is let in now."""
    choice = WorkerChooser().choose_prefill(decode, [prefill], ask, ask.num_uncached(decode.ref), FREE, Random(0))
    return (choice.worker or decode.ref).worker_id


def test_a_full_prefill_worker_does_not_hold_back_what_a_decode_worker_would_compute() -> None:
    """There it takes 510 ms; here 111 and keeps one stream waiting for 100. Red when the line waits for a prefill
    worker that is not to compute the prompt."""
    decode = view("d", "decode", running=1)
    assert computed_by(decode, FULL) == "d"
    assert has_room([FULL, decode], ASK, LIMITS)
    busy = view("d", "decode", running=6)  # 600 ms of waiting for 394
    assert computed_by(busy, FULL) == "p"
    assert not has_room([FULL, busy], ASK, LIMITS)


def test_who_waits_behind_counts_as_streams_do() -> None:
    """Each one behind waits 110 ms less when the prefill worker is spared. Red when a burst queues before one worker
    while others, with a few streams, compute none of it."""
    busy = view("d", "decode", running=6)
    for num_behind, keeps in ((1, False), (2, True), (30, True)):
        ask = replace(ASK, num_behind=num_behind)
        assert (computed_by(busy, FULL, ask) == "d") is keeps
        assert has_room([FULL, busy], ask, LIMITS) is keeps
    many = view("d", "decode", running=40)
    assert not has_room([FULL, many], replace(ASK, num_behind=30), LIMITS), "more streams wait than requests"
    half = [FULL, view("p2", "prefill", queued=400), busy]
    assert not has_room(half, replace(ASK, num_behind=3), LIMITS), "two prefill workers: each behind is spared half"


def test_a_decode_worker_has_its_own_two_steps_and_no_more() -> None:
    ask = replace(ASK, num_behind=50)
    assert has_room([FULL, view("d", "decode", running=1, queued=300)], ask, LIMITS)
    assert not has_room([FULL, view("d", "decode", running=1, queued=301)], ask, LIMITS)
    assert not has_room([FULL, view("d", "decode", running=1, queued=100, asked=201)], ask, LIMITS), "it is on its way"


def test_batch_prompts_never_share_steps_for_want_of_a_prefill_worker() -> None:
    assert not has_room([FULL, view("d", "decode")], ASK, LIMITS, is_batch=True)


def test_without_measured_costs_there_is_no_reason() -> None:
    unknown = replace(view("d", "decode"), load=WorkerLoad())
    assert not has_room([FULL, unknown], replace(ASK, num_behind=9), LIMITS)


def test_who_cannot_reserve_is_asked_about_its_own_queue() -> None:
    """It computes its prompts itself, whoever else is idle. Red when a prefill worker's room fills its queue."""
    alone = replace(view("e", "decode", running=1, queued=400), abilities=frozenset(Ability) - {Ability.RESERVE})
    assert not has_room([view("p", "prefill"), alone], ASK, LIMITS)
    assert has_room([FULL, replace(alone, in_flight_prefill_tokens=0, num_in_flight_prefills=0)], ASK, LIMITS)


def test_replicas_need_room_for_both_on_one_of_them() -> None:
    """Red when one's room for the prompt and the other's for the stream count together."""
    computing = view("u1", "unified", running=1, queued=400)
    full = replace(view("u2", "unified"), load=WorkerLoad(costs=COSTS, num_running=64), num_in_flight_decodes=64)
    assert not has_room([computing, full], ASK, LIMITS)
    assert has_room([replace(computing, in_flight_prefill_tokens=0, num_in_flight_prefills=0), full], ASK, LIMITS)


@given(
    running=st.integers(0, 20),
    queued=st.integers(0, 500),
    kept=st.integers(0, 500),
    num_tokens=st.integers(1, 300),
    num_behind=st.integers(0, 40),
    role=st.sampled_from(["decode", "1:3", "hybrid"]),
)
@settings(max_examples=200, deadline=None)
def test_the_door_opens_only_where_who_computes_the_prompt_has_room(
    running: int, queued: int, kept: int, num_tokens: int, num_behind: int, role: str
) -> None:
    """Red when door and router judge by different rules: then one's queue grows without a bound."""
    prefill = view("p", "prefill", queued=queued)
    decode = view("d", role, running=running, queued=kept)
    ask = Ask(num_tokens=num_tokens, num_behind=num_behind)
    way = way_out([prefill, decode], ask, LIMITS)
    if way is Way.PREFILL:
        assert queued == 0 or queued + num_tokens <= LIMITS.max_ahead_tokens
    elif way is Way.DECODE:
        assert computed_by(decode, prefill, ask) == "d"
        assert kept == 0 or kept + num_tokens <= LIMITS.max_ahead_tokens


@given(lengths=st.lists(st.integers(1, 350), min_size=1, max_size=60), running=st.integers(0, 20))
@settings(max_examples=100, deadline=None)
def test_a_burst_fills_no_queue_beyond_its_bound(lengths: list[int], running: int) -> None:
    """One after the other passes the door as long as it is open; each is told to who computes it."""
    prefill, decode = view("p", "prefill"), view("d", "decode", running=running)
    for place, num_tokens in enumerate(lengths):
        ask = Ask(num_tokens=num_tokens, num_behind=len(lengths) - place - 1)
        way = way_out([prefill, decode], ask, LIMITS)
        if way is None:
            break
        if way is Way.PREFILL:
            ask = Ask(num_tokens=num_tokens)
        queued = {each.ref.worker_id: each.in_flight_prefill_tokens for each in (prefill, decode)}
        queued[computed_by(decode, prefill, ask)] += num_tokens
        prefill = view("p", "prefill", queued=queued["p"])
        decode = view("d", "decode", running=running, queued=queued["d"])
    assert prefill.in_flight_prefill_tokens <= LIMITS.max_ahead_tokens
    assert decode.in_flight_prefill_tokens <= LIMITS.max_ahead_tokens
