"""Is there room for one more: late decisions, no overfilled workers, and no gateway shut out by an old report."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.core.events import StepCosts, WorkerLoad
from relevo.core.handoff import NO_SITE
from relevo.core.ids import WorkerId, WorkerRef
from relevo.core.role import parse_role
from relevo.policy.admission.room import RoomLimits, RoomView, may_make_room, outlook, way_out
from relevo.policy.routing.tenant_use import Held, Sent
from relevo.policy.routing.worker_choice import Ask, WorkerView

COSTS = StepCosts(base_s=0.010, per_token_s=0.001, per_kv_token_s=0.0)
LIMITS = RoomLimits(max_running=8, max_ahead_tokens=400, max_ahead_s=0.5, block_size=16)
BLOCKS = {"num_total_blocks": 100, "num_free_blocks": 50, "num_reusable_blocks": 50}
ASK = Ask(num_tokens=100)


def view(name: str, role: str, **of: int) -> WorkerView:
    """Keys of WorkerLoad and of WorkerView alike; everything else is idle."""
    load_names, view_names = WorkerLoad.__dataclass_fields__, WorkerView.__dataclass_fields__
    return WorkerView(
        ref=WorkerRef(WorkerId(name), 1),
        role=parse_role(role),
        ready=True,
        kv_site=NO_SITE,
        load=WorkerLoad(costs=COSTS, **(BLOCKS | {key: value for key, value in of.items() if key in load_names})),
        **{key: value for key, value in of.items() if key in view_names},
    )


def room(*views: WorkerView, ask: Ask = ASK, is_batch: bool = False) -> bool:
    return way_out(views, ask, LIMITS, is_batch=is_batch) is not None


def unified(**of: int) -> WorkerView:
    return view("u", "unified", **of)


def test_an_idle_worker_has_room_for_anything() -> None:
    assert room(unified())
    assert room(unified(), is_batch=True)
    assert room(unified(), ask=Ask(num_tokens=10**6)), "the worker refuses what can never run, with a reason"
    assert not room()
    assert not room(replace(unified(), ready=False))


@pytest.mark.parametrize(
    ("busy", "has"),
    [
        ({"in_flight_prefill_tokens": 300, "num_in_flight_prefills": 3}, True),
        ({"in_flight_prefill_tokens": 301, "num_in_flight_prefills": 3}, False),
        ({"in_flight_prefill_tokens": 10_000, "num_in_flight_prefills": 1}, False),
        ({"num_running": 7}, True),
        ({"num_running": 8}, False),
        ({"num_running": 4, "num_waiting": 2, "num_reserved": 2}, False),
        ({"num_free_blocks": 3, "num_reusable_blocks": 4}, True),
        ({"num_free_blocks": 3, "num_reusable_blocks": 3}, False),
        ({"num_free_blocks": 13, "num_reusable_blocks": 0, "in_flight_asked_tokens": 100}, False),
    ],
)
def test_a_busy_worker_takes_what_keeps_it_busy_and_no_more(busy: dict[str, int], has: bool) -> None:
    assert room(unified(**({"num_in_flight_decodes": 2} | busy))) is has


def test_seconds_bound_what_tokens_do_not() -> None:
    slow = unified(in_flight_prefill_tokens=250, num_in_flight_prefills=1, num_in_flight_decodes=1)
    assert room(slow)
    costs = replace(COSTS, per_token_s=0.0021)
    assert not room(replace(slow, load=replace(slow.load, costs=costs)))


def test_a_report_that_grew_old_shuts_nobody_out() -> None:
    """Another gateway's requests filled the worker when it was last heard of; nothing of ours is there."""
    stale = unified(num_running=8, num_free_blocks=0, num_reusable_blocks=0, num_waiting_prefill_tokens=10**6)
    assert room(stale)
    assert not room(replace(stale, num_in_flight_decodes=1, num_in_flight_prefills=1))


def test_what_was_asked_of_a_decode_worker_is_on_its_way_to_a_prefill_worker() -> None:
    """Red when a burst passes the door before the first grant tells who computes the prompts."""
    prefill = view("p", "prefill")
    decode = view("d", "decode", num_in_flight_decodes=3, in_flight_asked_tokens=301)
    assert not room(prefill, decode)
    assert room(prefill, view("p2", "prefill"), decode), "two share it"


def test_batch_leaves_room_and_never_queues() -> None:
    assert room(unified(num_running=5, num_in_flight_decodes=5), is_batch=True)
    assert not room(unified(num_running=6, num_in_flight_decodes=6), is_batch=True)
    assert not room(unified(num_waiting_prefill_tokens=1), is_batch=True)
    used = {"num_free_blocks": 10, "num_reusable_blocks": 20, "num_in_flight_decodes": 1}
    assert not room(unified(**used), is_batch=True), "a quarter of the blocks is kept"
    assert room(unified(**used))


def test_a_report_like_the_last_one_makes_no_room() -> None:
    """It comes over a wire, so its costs are equal and not the same object. Red when every report is taken for news:
    all that wait are looked at with every step of every worker."""
    before = unified(num_running=8).load
    again = replace(before, costs=replace(COSTS))
    assert not may_make_room(before, again)
    assert not may_make_room(before, replace(again, num_running=9))
    assert may_make_room(before, replace(again, num_running=7))
    assert may_make_room(before, replace(again, num_free_blocks=51))
    assert may_make_room(before, replace(again, costs=replace(COSTS, per_token_s=0.0005)))


def test_the_outlook_adds_up_by_hand() -> None:
    prefills = [view("p", "prefill", in_flight_prefill_tokens=50), view("p2", "prefill", in_flight_prefill_tokens=10)]
    decode = view("d", "decode", num_running=3, num_in_flight_decodes=3)
    seen = outlook([*prefills, decode], Ask(num_tokens=100, hit_tokens={decode.ref: 20}), 0.02, LIMITS)
    assert seen.own_s == pytest.approx(0.010 + 0.080 + 0.02)
    assert seen.queue_s == pytest.approx(0.010)
    assert seen.prompt_tokens_per_s == pytest.approx(2000.0)
    assert (seen.num_free_slots, seen.num_running) == (5, 3)
    assert seen.tpot_s == pytest.approx(0.014)
    assert outlook([], ASK, 0.0, LIMITS) == RoomView(is_anyone_ready=False)


def test_free_slots_are_bounded_by_blocks() -> None:
    short = unified(num_free_blocks=10, num_reusable_blocks=5)
    assert outlook([short], ASK, 0.0, LIMITS).num_free_slots == 2, "seven blocks each"


@given(
    running=st.integers(0, 10),
    queued=st.integers(0, 1000),
    free=st.integers(0, 100),
    num_tokens=st.integers(1, 500),
    own=st.integers(0, 3),
)
@settings(max_examples=100, deadline=None)
def test_batch_has_room_only_where_others_have(running: int, queued: int, free: int, num_tokens: int, own: int) -> None:
    worker = unified(
        num_running=running,
        num_free_blocks=free,
        num_reusable_blocks=0,
        in_flight_prefill_tokens=queued,
        num_in_flight_prefills=own,
        num_in_flight_decodes=own,
    )
    ask = Ask(num_tokens=num_tokens)
    assert not room(worker, ask=ask, is_batch=True) or room(worker, ask=ask)


def test_what_batch_requests_hold_counts_as_free_for_others() -> None:
    worker = unified(num_running=8, num_in_flight_decodes=8, num_in_flight_batch=6)
    assert room(worker)
    assert not room(worker, is_batch=True)
    full = {"num_free_blocks": 0, "num_reusable_blocks": 0, "num_in_flight_decodes": 2, "num_in_flight_batch": 1}
    assert not room(unified(**full, in_flight_batch_tokens=64))
    assert room(unified(**full, in_flight_batch_tokens=112))


def held_by(**slots: int) -> dict[str, Held]:
    return {tenant: Held(num_requests=num, num_slots=num) for tenant, num in slots.items()}


def test_a_tenant_may_be_sent_its_share_of_a_worker_that_others_fill() -> None:
    """Red when a worker whose slots another tenant holds has no room for anybody."""
    full = {"num_running": 8, "num_in_flight_decodes": 8, "num_free_blocks": 0, "num_reusable_blocks": 0}
    ask = replace(ASK, tenant="mine", num_unstarted=1)
    for mine, has in ((0, True), (3, True), (4, False)):
        busy = replace(unified(**full), held=held_by(hostile=8 - mine, **({"mine": mine} if mine else {})))
        assert room(busy, ask=ask) is has
        assert (outlook([busy], ask, 0.0, LIMITS).num_free_slots > 0) is has
    assert not room(replace(unified(**full), held=held_by(mine=8)), ask=ask), "alone it waits for its own"
    assert room(replace(unified(**full), held=held_by(mine=2)), ask=ask), "six are of another gateway"


def test_a_tenant_always_has_one_request_at_a_worker_so_that_no_slot_waits_for_a_gateway() -> None:
    full = replace(unified(num_running=8, num_in_flight_decodes=8), held={"": Held(8, 8)})
    assert room(full, ask=replace(ASK, num_unstarted=0))
    assert not room(full, ask=replace(ASK, num_unstarted=1))
    assert not room(full, ask=replace(ASK, num_unstarted=0), is_batch=True)
    crowded = replace(unified(num_running=8, num_in_flight_decodes=8, num_waiting=8), held={"": Held(8, 8)})
    assert not room(crowded, ask=replace(ASK, num_unstarted=0)), "as many tenants wait there as there are slots"


def test_prompts_of_another_tenant_count_as_ahead_up_to_ones_own() -> None:
    """Red when a giant prompt of one tenant keeps the small prompts of another in line until it is computed."""
    busy = unified(in_flight_prefill_tokens=100_000, num_in_flight_prefills=1, num_in_flight_decodes=1)
    busy = replace(busy, held={"hostile": Held(num_requests=1, num_slots=1, num_prompt_tokens=100_000)})
    ask = replace(ASK, tenant="mine", num_unstarted=1)
    assert room(busy, ask=ask)
    assert outlook([busy], ask, 0.0, LIMITS).queue_s == pytest.approx(0.1)
    assert not room(busy, ask=replace(ask, tenant="hostile"))


def full_of(*left: int, is_other: bool = False) -> WorkerView:
    """Streams of the tenant that asks, each with so many tokens that it must still give."""
    busy = unified(num_running=8, num_in_flight_decodes=8, num_decode_kv_tokens=500)
    streams = [Sent("mine", busy.ref, 1, num_least_tokens=num + 3, num_output_tokens=3) for num in left]
    held = held_by(mine=len(left)) if not is_other else held_by(other=len(left))
    return replace(busy, held=held, sent=streams)


def test_a_slot_is_not_free_before_the_stream_with_fewest_tokens_left_ends() -> None:
    """Red when what streams must still give is not known until one of them has ended."""
    ask, step_s = replace(ASK, tenant="mine", num_unstarted=0), COSTS.step_s(8, 500)
    slow, soon = full_of(*[4000] * 8), full_of(*[4000] * 7, 10)
    assert outlook([slow], ask, 0.0, LIMITS).slot_in_s == pytest.approx(4000 * step_s)
    assert outlook([slow, soon], ask, 0.0, LIMITS).slot_in_s == pytest.approx(10 * step_s)
    for free in (
        full_of(*[4000] * 7),  # one is of another gateway
        full_of(*[4000] * 7, -3),  # one may end with any token
        full_of(*[4000] * 8, is_other=True),  # a share is there to be taken
        replace(slow, load=replace(slow.load, num_running=7), num_in_flight_decodes=7),
    ):
        assert outlook([slow, free], ask, 0.0, LIMITS).slot_in_s == 0.0
