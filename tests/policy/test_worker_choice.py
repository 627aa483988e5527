"""Who is chosen, on costs one can compute by hand: base 10 ms, 1 ms per token, context for free."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.core.events import StepCosts, WorkerLoad
from relevo.core.handoff import Ability, KVEndpoint, KVSite, Link, Reach
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.role import DECODE, parse_role
from relevo.policy.routing.charges import ChargeLedger
from relevo.policy.routing.router import NO_USE, RouterLimits, RoutingPolicy
from relevo.policy.routing.worker_choice import Ask, PrefillChoice, WorkerChooser, WorkerView

COSTS = StepCosts(base_s=0.010, per_token_s=0.001, per_kv_token_s=0.0)
RNG = Random(0)


TCP = KVEndpoint("tcp", "tcp:x", Reach.NETWORK)
SHARED = KVSite(box_id="box", arena_id="one", endpoints=(KVEndpoint("shm", "shm:one", Reach.ARENA), TCP))


def apart_site(name: str) -> KVSite:
    """Of a worker that computes in memory of its own."""
    return KVSite(box_id="box", arena_id=name, endpoints=(TCP,))


def view(
    name: str, role: str = "decode", *, ready: bool = True, queued: int = 0, shares: bool = True, **load: int
) -> WorkerView:
    return WorkerView(
        ref=WorkerRef(WorkerId(name), 1),
        role=parse_role(role),
        ready=ready,
        load=WorkerLoad(costs=COSTS, **load),
        kv_site=SHARED if shares else apart_site(name),
        in_flight_prefill_tokens=queued,
    )


D, P, U = view("d"), view("p", "prefill"), view("u", "unified")


def seconds(handoff_s: float) -> dict[Link, float]:
    return dict.fromkeys(Link, handoff_s)


FREE = seconds(0.0)


def decode(views: list[WorkerView], exclude: tuple[WorkerRef, ...] = ()) -> str | None:
    choice = WorkerChooser().choose_decode(views, Ask(num_tokens=100), FREE, exclude, RNG)
    return choice.worker.worker_id if choice else None


def prompt_goes(
    decode_view: WorkerView, views: list[WorkerView], ask: Ask, handoff_s: float, chooser: WorkerChooser | None = None
) -> PrefillChoice:
    return (chooser or WorkerChooser()).choose_prefill(decode_view, views, ask, ask.num_tokens, seconds(handoff_s), RNG)


def prefill(decode_view: WorkerView, views: list[WorkerView], num_tokens: int, handoff_s: float) -> str | None:
    choice = prompt_goes(decode_view, views, Ask(num_tokens=num_tokens), handoff_s)
    return choice.worker.worker_id if choice.worker else None


def test_decode_goes_to_its_role_and_to_anybody_if_that_is_not_there() -> None:
    assert decode([P, D]) == "d"
    assert decode([P, view("d", ready=False)]) == "p"
    assert decode([P, D], exclude=(D.ref,)) == "p"
    assert decode([view("d", ready=False)]) is None
    assert decode([]) is None


def test_decode_goes_where_a_step_is_shorter() -> None:
    busy = view("busy", num_running=20)
    assert decode([busy, D]) == "d"
    assert decode([P, busy, view("computes a prompt", queued=1000)]) == "busy"
    costs = replace(COSTS, per_kv_token_s=1e-5)
    short, long = (
        replace(v, load=replace(v.load, costs=costs, num_decode_kv_tokens=kv))
        for v, kv in ((view("short"), 100), (view("long"), 9000))
    )
    assert decode([long, short]) == "short"


def test_steps_count_also_where_the_prompt_is_computed_elsewhere() -> None:
    """Red when only the way to the first token is compared: it is the same for all whom one prefill worker serves."""
    slow = replace(view("slow"), load=WorkerLoad(costs=replace(COSTS, base_s=0.030)))
    assert decode([P, slow, replace(view("quick"), in_flight_decode_tokens=50)]) == "quick"


def test_what_decode_workers_hold_saves_nothing_to_a_prefill_worker_that_computes_it_anew() -> None:
    """Red when hits of a decode worker count although the prompt comes from a worker that has no part in its blocks."""
    apart = view("p", "prefill", shares=False)
    holder, other = (view(name, num_running=4) for name in ("holder", "other"))
    holder = replace(holder, in_flight_decode_tokens=50)
    ask = Ask(num_tokens=100, hit_tokens={holder.ref: 40})
    for prefill_view, chosen in ((apart, "other"), (P, "holder")):
        choice = WorkerChooser().choose_decode([prefill_view, holder, other], ask, FREE, (), RNG)
        assert choice is not None and choice.worker.worker_id == chosen


def test_a_decode_worker_that_would_keep_the_prompt_is_compared_with_the_way_it_would_take() -> None:
    """Red when every decode worker is charged a handoff, also one that holds enough to compute the rest itself."""
    ask = Ask(num_tokens=100, hit_tokens={D.ref: 40})
    choice = WorkerChooser().choose_decode([P, D, U], ask, seconds(0.100), (), RNG)
    assert choice is not None and choice.worker == D.ref


def test_a_worker_that_can_only_be_submitted_to_is_served_as_a_unified_one() -> None:
    """Red when a foreign engine is asked for room that it cannot grant, or for a prompt that it cannot hand over."""

    def is_split(decode_view: WorkerView, prefill_view: WorkerView) -> bool:
        choice = WorkerChooser().choose_decode([decode_view, prefill_view], Ask(num_tokens=100), FREE, (), RNG)
        assert choice is not None and choice.worker == D.ref
        there = prompt_goes(decode_view, [decode_view, prefill_view], Ask(num_tokens=5000), 0.0)
        assert choice.split == (there.worker is not None)
        return choice.split

    submit_only, busy = frozenset[Ability](), replace(D, load=replace(D.load, num_running=50))
    assert is_split(busy, P)
    assert not is_split(replace(busy, abilities=submit_only), P)
    assert not is_split(busy, replace(P, abilities=submit_only))
    assert is_split(replace(busy, abilities=frozenset({Ability.RESERVE})), P)
    assert not is_split(busy, replace(P, kv_site=KVSite(box_id="far", arena_id="one", endpoints=SHARED.endpoints[:1])))


def test_each_prefill_worker_is_judged_by_its_own_path() -> None:
    """One shares the decode worker's memory and so its 900 hits, the other is in another box and holds 500 itself. Red
    when "shares memory" is taken for a fact of a worker and not of a pair."""
    far = replace(view("far", "prefill"), kv_site=KVSite(box_id="far", arena_id="one", endpoints=SHARED.endpoints))
    here = replace(view("d"), load=replace(D.load, num_running=50))
    ask = Ask(num_tokens=1000, hit_tokens={far.ref: 500, here.ref: 900})
    for views, chosen, num_uncached, link in (([far, P], P, 100, Link.MEMORY), ([far], far, 500, Link.NETWORK)):
        choice = WorkerChooser().choose_prefill(here, views, ask, 100, FREE, RNG)
        assert (choice.worker, choice.num_uncached_tokens) == (chosen.ref, num_uncached)
        assert choice.path is not None and choice.path.link is link


def test_a_handoff_costs_what_its_link_costs() -> None:
    """Two prefill workers with equal queues; the far one holds more. Red when one mean is charged to both."""
    far = replace(view("far", "prefill"), kv_site=KVSite(box_id="far", arena_id="one", endpoints=SHARED.endpoints))
    here = replace(view("d"), load=replace(D.load, num_running=50))
    ask = Ask(num_tokens=1000, hit_tokens={far.ref: 300})
    for network_s, chosen in ((0.0, far), (1.0, P)):
        handoff_s = {Link.MEMORY: 0.0, Link.BOX: 0.0, Link.NETWORK: network_s}
        choice = WorkerChooser().choose_prefill(here, [far, P], ask, 1000, handoff_s, RNG)
        assert choice.worker == chosen.ref


def test_a_pair_that_is_slow_gets_no_prompt_for_which_there_is_another_way() -> None:
    """One worker's KV comes five times as slowly as planned. Red when a mean over all pairs decides."""
    slow, other = view("slow", "prefill", shares=False), view("other", "prefill", shares=False, queued=200)
    here = replace(view("d", shares=False), load=replace(D.load, num_running=50))
    ask = Ask(num_tokens=1000)
    planned = dict.fromkeys(Link, 0.1)
    measured = planned | {(slow.ref.worker_id, here.ref.worker_id): 0.5}
    picks = [
        WorkerChooser().choose_prefill(here, [slow, other], ask, 1000, costs, RNG).worker
        for costs in (planned, measured)
    ]
    assert picks == [slow.ref, other.ref]
    alone = WorkerChooser().choose_decode([D, view("e", shares=False), slow], ask, measured, (), RNG)
    assert alone is not None


def test_who_has_measured_nothing_is_taken_for_as_slow_as_the_slowest() -> None:
    fresh = replace(view("fresh"), load=WorkerLoad())
    slow = replace(view("slow"), load=WorkerLoad(costs=replace(COSTS, per_token_s=0.01)))
    assert decode([fresh, slow, replace(view("quick"), in_flight_decode_tokens=50)]) == "quick"


def test_sessions_have_no_home_among_prefill_workers_that_keep_nothing() -> None:
    """Red when a session is bound to a prefill worker whose blocks are the decode worker's: it would gain nothing."""
    ask = Ask(num_tokens=500, session=b"chat")
    kept = [view("p", "prefill", shares=False), view("p2", "prefill", shares=False)]
    for prefill_views, rule in (([P, view("p2", "prefill")], "fastest"), (kept, "home")):
        assert prompt_goes(D, prefill_views, ask, 0.0).reason.startswith(rule)


def test_what_others_chose_is_heard_by_the_router_of_that_choice() -> None:
    chooser, views = WorkerChooser(RoutingPolicy.ROUND_ROBIN), [view("d0"), view("d1")]

    def next_decode() -> str:
        choice = chooser.choose_decode(views, Ask(num_tokens=9), FREE, (), RNG)
        assert choice is not None
        return choice.worker.worker_id

    first = next_decode()
    chooser.heard("prefill", NO_USE)
    second = next_decode()
    chooser.heard("decode", NO_USE)
    assert first != second and next_decode() == second, "in turns, theirs counted"


def test_a_prompt_that_is_cached_as_a_whole_still_computes_a_token() -> None:
    assert Ask(num_tokens=10, hit_tokens={D.ref: 10}).num_uncached(D.ref) == 1


def test_split_needs_somebody_else() -> None:
    def split(views: list[WorkerView]) -> bool:
        choice = WorkerChooser().choose_decode(views, Ask(num_tokens=100), FREE, (), RNG)
        assert choice is not None
        return choice.split

    assert split([P, D])
    assert not split([D])
    assert not split([D, view("p", "prefill", ready=False)])
    assert not split([U, view("u2", "unified")])


def test_near_ties_are_shared_out_and_the_less_busy_of_two_wins() -> None:
    """Red when gateways that see the same reports all choose the same worker."""
    rng = Random(1)
    equal = [view(f"d{i}") for i in range(4)]
    ask, chooser = Ask(num_tokens=100), WorkerChooser()
    chosen = Counter(chooser.choose_decode(equal, ask, FREE, (), rng).worker for _ in range(400))  # type: ignore[union-attr]
    assert len(chosen) == 4
    assert max(chosen.values()) < 200
    fuller = [replace(v, in_flight_decode_tokens=i) for i, v in enumerate(equal)]
    chosen = Counter(chooser.choose_decode(fuller, ask, FREE, (), rng).worker for _ in range(400))  # type: ignore[union-attr]
    assert fuller[3].ref not in chosen


@pytest.mark.parametrize(("num_tokens", "is_local"), [(1, True), (20, True), (21, False), (500, False)])
def test_idle_workers_keep_only_prompts_that_cost_less_than_a_handoff(num_tokens: int, is_local: bool) -> None:
    """20 ms of handoff are worth 20 tokens of 1 ms."""
    assert (prefill(D, [P], num_tokens, handoff_s=0.0201) is None) == is_local


def test_without_conditional_disaggregation_every_prompt_is_handed_over() -> None:
    """Red when the shortest prompt before the busiest prefill worker is kept, or one without a prefill worker waits."""
    chooser = WorkerChooser(limits=RouterLimits(conditional_disaggregation=False))
    ask, busy = Ask(num_tokens=1), view("p", "prefill", queued=10_000)
    assert prompt_goes(D, [busy], ask, 10.0, chooser).worker == busy.ref
    assert prompt_goes(D, [replace(busy, ready=False)], ask, 10.0, chooser).worker is None
    assert prompt_goes(D, [busy], ask, 10.0).worker is None


def test_running_streams_multiply_what_a_local_prompt_costs() -> None:
    assert prefill(view("d", num_running=1), [P], 15, 0.020) is None
    assert prefill(view("d", num_running=4), [P], 15, 0.020) == "p"


def test_a_badly_queued_prefill_worker_spills_over() -> None:
    assert prefill(D, [view("p", "prefill", queued=90)], 100, 0.0) == "p"
    assert prefill(D, [view("p", "prefill", queued=110)], 100, 0.0) is None
    assert prefill(view("d", num_running=2), [view("p", "prefill", queued=110)], 100, 0.0) == "p"


def test_a_queue_on_the_decode_worker_counts_too() -> None:
    queued = view("p", "prefill", num_waiting_prefill_tokens=110)
    assert prefill(view("d", num_waiting_prefill_tokens=110), [queued], 100, 0.0) == "p"


def test_prefill_goes_to_its_role_then_unified_then_anybody() -> None:
    other = view("d2")
    assert prefill(D, [other, U, P], 100, 0.0) == "p"
    assert prefill(D, [other, U], 100, 0.0) == "u"
    assert prefill(D, [D, other], 100, 0.0) == "d2"
    assert prefill(D, [D, view("p", "prefill", ready=False)], 100, 0.0) is None


def test_prefill_goes_to_the_shorter_queue() -> None:
    assert prefill(D, [view("p", "prefill", queued=50), view("p2", "prefill", queued=10)], 100, 0.0) == "p2"


def test_before_costs_are_measured_the_role_decides() -> None:
    unmeasured = WorkerView(ref=D.ref, role=DECODE, ready=True, load=WorkerLoad(), kv_site=SHARED)
    assert prefill(unmeasured, [replace(P, load=WorkerLoad())], 1, 1.0) == "p"


def test_estimates_are_told_with_the_choice() -> None:
    choice = prompt_goes(view("d", num_running=3), [view("p", "prefill", queued=40)], Ask(num_tokens=100), 0.020)
    assert choice.ttft_remote_s == pytest.approx(0.040 + 0.110 + 0.020)
    assert choice.ttft_local_s == pytest.approx(0.113)
    assert choice.stall_s == pytest.approx(0.300)
    assert "100 tokens to compute" in choice.reason
    assert choice.num_uncached_tokens == 100


@settings(max_examples=200, deadline=None)
@given(
    num_tokens=st.integers(1, 4000),
    queued=st.integers(0, 4000),
    num_running=st.integers(0, 64),
    handoff_s=st.floats(0.0, 1.0),
)
def test_a_longer_queue_elsewhere_never_sends_a_prompt_there(
    num_tokens: int, queued: int, num_running: int, handoff_s: float
) -> None:
    here = view("d", num_running=num_running)
    before = prefill(here, [view("p", "prefill", queued=queued)], num_tokens, handoff_s)
    after = prefill(here, [view("p", "prefill", queued=queued + 500)], num_tokens, handoff_s)
    assert not (before is None and after is not None)


# ---- what is cached where --------------------------------------------------------------------------------------------


def test_with_one_arena_only_the_decode_workers_hits_count() -> None:
    """A prefill worker reads the decode worker's cache and keeps none. Red when its own hits are believed to help."""
    ask = Ask(num_tokens=1000, hit_tokens={P.ref: 960})
    choice = WorkerChooser().choose_prefill(D, [P], ask, 1000, FREE, RNG)
    assert (choice.worker, choice.num_uncached_tokens) == (P.ref, 1000)
    d2 = view("d2")
    ask = Ask(num_tokens=1000, hit_tokens={d2.ref: 960})
    decided = WorkerChooser().choose_decode([P, D, d2], ask, FREE, (), RNG)
    assert decided is not None
    assert (decided.worker, decided.num_uncached_tokens) == (d2.ref, 40)
    assert decided.reason.startswith("warm")


def test_without_it_a_prefill_worker_computes_what_it_does_not_hold_itself() -> None:
    p1, p2 = view("p1", "prefill", shares=False), view("p2", "prefill", shares=False, queued=100)
    d = view("d", shares=False, num_running=8)
    ask = Ask(num_tokens=1000, hit_tokens={p2.ref: 960, d.ref: 500})
    choice = WorkerChooser().choose_prefill(d, [p1, p2], ask, 500, FREE, RNG)
    assert (choice.worker, choice.num_uncached_tokens) == (p2.ref, 40)
    choice = WorkerChooser().choose_prefill(d, [p1], ask, 500, FREE, RNG)
    assert (choice.worker, choice.num_uncached_tokens) == (p1.ref, 1000)


def test_a_short_rest_on_a_warm_decode_worker_stays_there() -> None:
    """The decode worker also caches the answers; the prefill worker has to compute them anew."""
    p, d = view("p", "prefill", shares=False), view("d", shares=False)
    ask = Ask(num_tokens=1000, hit_tokens={p.ref: 800, d.ref: 960})
    choice = WorkerChooser().choose_prefill(d, [p], ask, 40, FREE, RNG)
    assert (choice.worker, choice.num_uncached_tokens) == (None, 40)
    assert choice.reason.startswith("local")


def test_the_decode_worker_is_chosen_with_the_way_to_the_first_token() -> None:
    """One step more costs 1 ms, 900 tokens less cost 900 ms."""
    warm, cold = view("warm", num_running=4), view("cold")
    ask = Ask(num_tokens=1000, hit_tokens={warm.ref: 900})
    choice = WorkerChooser().choose_decode([P, warm, cold], ask, FREE, (), RNG)
    assert choice is not None
    assert choice.worker == warm.ref


@pytest.mark.parametrize("policy", list(RoutingPolicy))
def test_every_policy_answers_with_an_able_worker_and_a_reason(policy: RoutingPolicy) -> None:
    chooser, views = WorkerChooser(policy), [P, view("p2", "prefill"), D, view("d2"), view("d3", ready=False)]
    for _ in range(10):
        choice = chooser.choose_decode(views, Ask(num_tokens=100), FREE, (), RNG)
        assert choice is not None
        assert choice.worker.worker_id in ("d", "d2")
        told = chooser.choose_prefill(D, views, Ask(num_tokens=100), 100, FREE, RNG)
        assert told.worker is not None
        assert told.worker.worker_id in ("p", "p2")
        assert choice.reason
        assert told.reason


# ---- the ledger ------------------------------------------------------------------------------------------------------

REFS = tuple(WorkerRef(WorkerId(f"w{i}"), 1) for i in range(3))
STEP = st.tuples(
    st.sampled_from(
        [
            *("charge_prefill", "charge_decode", "gave_tokens", "prefill_left"),
            *("prefill_done", "end", "forget"),
        ]
    ),
    st.sampled_from("abcd"),
    st.sampled_from(REFS),
    st.integers(0, 50),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=60))
def test_charges_are_never_negative_and_return_to_zero(steps: list[tuple[str, str, WorkerRef, int]]) -> None:
    """Red when progress, re-routing or a lost worker gives back more or less than was charged."""
    ledger = ChargeLedger()
    for what, name, ref, num_tokens in steps:
        request_id = RequestId(name)
        match what:
            case "charge_prefill" | "charge_decode":
                getattr(ledger, what)(request_id, ref, num_tokens)
            case "gave_tokens" | "prefill_left":
                getattr(ledger, what)(request_id, num_tokens)
            case "prefill_done" | "end":
                getattr(ledger, what)(request_id)
            case _:
                ledger.forget(ref)
        assert all(ledger.prefill_tokens(r) >= 0 and ledger.decode_tokens(r) >= 0 for r in REFS)
    for name in "abcd":
        ledger.end(RequestId(name))
    assert ledger.is_empty
    assert all(ledger.prefill_tokens(r) == 0 and ledger.decode_tokens(r) == 0 for r in REFS)
    assert all(ledger.num_prefills(r) == 0 and ledger.num_decodes(r) == 0 for r in REFS)


def test_charges_are_seen_at_once_and_follow_progress() -> None:
    ledger, r = ChargeLedger(), RequestId("a")
    ledger.charge_prefill(r, REFS[0], 100)
    ledger.charge_decode(r, REFS[1], 120)
    ledger.prefill_left(r, 36)
    assert (ledger.prefill_tokens(REFS[0]), ledger.decode_tokens(REFS[1])) == (36, 120)
    assert ledger.gave_tokens(r, 2)  # its prompt is computed
    assert (ledger.prefill_tokens(REFS[0]), ledger.decode_tokens(REFS[1])) == (0, 122)
    ledger.charge_decode(r, REFS[2], 130)
    assert (ledger.decode_tokens(REFS[1]), ledger.decode_tokens(REFS[2])) == (0, 130)
    ledger.prefill_done(r)
    ledger.forget(REFS[2])
    assert ledger.is_empty
