"""What the dispatcher marks of a request: driven by calls on virtual time, workers say what a test says."""

from __future__ import annotations

from by_hand import Client, Link, S, World

from relevo.core.baton import PrefillFacts, SampledToken
from relevo.core.events import StepCounters, TokenOutput, WorkerLoad
from relevo.core.ids import BlockHash, RequestId, WorkerId, WorkerRef
from relevo.core.kv import Reservation
from relevo.core.outcome import COMPLETE
from relevo.core.request import FinishReason
from relevo.core.timeline import HitsLost, Timeline
from relevo.orchestrator.in_flight import InFlightRequest
from relevo.wire import messages as wire

R = RequestId("r")
FACTS = PrefillFacts(
    worker_id=WorkerId("p"), num_prompt_tokens=10, num_cached_tokens=4, queue_s=0.5, prefill_s=1.0, num_chunks=3
)
ROLES = {"p": "prefill", "d": "decode"}


def pass_s(world: World, seconds: int) -> int:
    """Let time pass; the new time."""
    world.kernel.run(until_ns=world.kernel.now_ns() + seconds * S)
    return world.kernel.now_ns()


def says(link: Link, token_id: int, num_steps: int, *, facts: PrefillFacts | None = None, last: bool = False) -> None:
    """A token of the request, out of the worker's step of that number."""
    finish = FinishReason.LENGTH if last else None
    output = TokenOutput(R, 0, (SampledToken(token_id),), finish, facts)
    link.say(wire.StepOutputs((output,), WorkerLoad(num_running=num_steps), StepCounters(num_steps=num_steps)))


def ask(world: World) -> tuple[Client, Timeline]:
    client = world.ask("r")
    return client, client.started.timeline


def grant(link: Link) -> None:
    reservation = Reservation(
        request_id=R,
        worker_id=link.hello.worker_id,
        epoch=1,
        block_size=4,
        block_ids=(0, 1, 2),
        generations=(0, 0, 0),
        num_hit_tokens=0,
    )
    link.say(wire.Reserved(reservation))


def ref(name: str, epoch: int = 1) -> WorkerRef:
    return WorkerRef(WorkerId(name), epoch)


def test_a_request_of_one_worker_has_its_marks_in_order() -> None:
    """Red when a mark is set by another event than the one that it is named after."""
    world = World("w")
    worker = world.join("w")
    client, timeline = ask(world)
    asked_ns = world.kernel.now_ns()
    first_ns = pass_s(world, 2)
    says(worker, 1, 10, facts=FACTS)
    second_ns = pass_s(world, 1)
    says(worker, 2, 11)
    third_ns = pass_s(world, 3)
    says(worker, 3, 15)
    last_ns = pass_s(world, 1)
    says(worker, 4, 16, last=True)
    assert client.tokens == [1, 2, 3, 4]
    assert (timeline.accepted_at_ns, timeline.prepared_at_ns, timeline.let_in_at_ns) == (1, asked_ns, asked_ns)
    (leg,) = timeline.legs
    assert (leg.routed_at_ns, leg.first_output_at_ns, leg.ended_at_ns) == (asked_ns, first_ns, last_ns)
    assert (leg.decode, leg.prefill, leg.facts, leg.is_split, leg.failure) == (ref("w"), ref("w"), FACTS, False, "")
    assert (timeline.num_outputs, timeline.last_output_at_ns, timeline.ended_at_ns) == (4, last_ns, last_ns)
    gap = timeline.worst_gap
    assert gap is not None and (gap.from_ns, gap.to_ns) == (second_ns, third_ns)
    assert gap.before is not None and (gap.before.num_steps, gap.after.num_steps) == (11, 15)
    assert gap.load is not None and gap.load.num_running == 15
    assert leg.first_counters is not None and leg.first_counters.num_steps == 10
    assert leg.asked_counters is not None and leg.asked_counters.num_steps == 0, "as known when it was asked"
    assert leg.prompt_counters is not None and leg.prompt_counters.num_steps == 10
    assert leg.last_counters is not None and leg.last_counters.num_steps == 16


def test_a_handoff_is_marked_on_both_sides() -> None:
    """Red when the prefill worker's counters are taken for those of the decode worker, or a side goes unmarked."""
    world = World("p", "d", roles=ROLES)
    prefill, decode = world.join("p"), world.join("d")
    _, timeline = ask(world)
    routed_ns = world.kernel.now_ns()
    granted_ns = pass_s(world, 1)
    grant(decode)
    assert prefill.asked(wire.Prefill)
    first_ns = pass_s(world, 1)
    says(prefill, 1, 100, facts=FACTS)
    done_ns = pass_s(world, 1)
    decode.say(wire.LoadReport(WorkerLoad(), StepCounters(num_steps=5)))
    prefill.say(wire.PrefillDone(R, 10, 4096, 0.25))
    decode_ns = pass_s(world, 1)
    says(decode, 2, 7)
    (leg,) = timeline.legs
    assert (leg.routed_at_ns, leg.granted_at_ns, leg.first_output_at_ns) == (routed_ns, granted_ns, first_ns)
    assert (leg.handed_over_at_ns, leg.decode_started_at_ns, leg.decode_output_at_ns) == (done_ns, done_ns, decode_ns)
    assert (leg.decode, leg.prefill, leg.is_split) == (ref("d"), ref("p"), True)
    assert (leg.transferred_bytes, leg.transfer_s) == (4096, 0.25)
    assert leg.prompt_counters is not None and leg.prompt_counters.num_steps == 100
    assert leg.started_counters is not None and leg.started_counters.num_steps == 5
    assert leg.first_counters is not None and leg.first_counters.num_steps == 7
    gap = timeline.worst_gap
    assert gap is not None and gap.worker == ref("d") and gap.before is None


def test_a_lost_worker_ends_a_leg_and_the_next_one_says_that_it_goes_on() -> None:
    world = World("a", "b")
    links = {name: world.join(name) for name in ("a", "b")}
    client, timeline = ask(world)
    first = links[timeline.legs[0].decode.worker_id]
    says(first, 1, 1, facts=FACTS)
    sign_ns = world.kernel.now_ns()
    lost_ns = pass_s(world, 2)
    first.end()
    world.run()
    one, two = timeline.legs
    assert one.ended_at_ns == lost_ns == two.routed_at_ns and "went away" in one.failure
    assert one.last_output_at_ns == sign_ns and two.last_output_at_ns is None
    assert two.is_resumed and not one.is_resumed and two.decode != one.decode
    back_ns = pass_s(world, 1)
    says(links[two.decode.worker_id], 2, 50)
    assert two.first_output_at_ns == back_ns
    assert timeline.worst_gap is not None and timeline.worst_gap.before is None
    client.started.end(COMPLETE)
    assert two.ended_at_ns == timeline.ended_at_ns == back_ns and not two.failure


def test_a_prefill_worker_that_fails_begins_a_leg_in_the_room_that_is_kept() -> None:
    """Red when the second attempt is written over the first."""
    world = World("p", "d", roles=ROLES)
    prefill, decode = world.join("p"), world.join("d")
    _, timeline = ask(world)
    grant(decode)
    failed_ns = pass_s(world, 1)
    prefill.say(wire.RequestFailed(R, "step_failed", "it broke"))
    one, two = timeline.legs
    assert one.failure == "worker p failed over it: step_failed", "its own words may quote the request"
    assert one.ended_at_ns == failed_ns and one.prefill == ref("p")
    assert (two.granted_at_ns, two.decode, two.prefill) == (failed_ns, ref("d"), ref("d"))


def test_preemptions_are_counted_and_the_first_ones_kept() -> None:
    """Red when a request that is preempted for ever grows."""
    world = World("w")
    worker = world.join("w")
    _, timeline = ask(world)
    says(worker, 1, 1, facts=FACTS)
    for number in range(20):
        worker.say(wire.Preempted((R, RequestId("unknown"))))
        resumed_ns = pass_s(world, 1)
        says(worker, 2, 2 + number)
        assert timeline.num_preemptions == number + 1
    assert len(timeline.preemptions) == 8
    first = timeline.preemptions[0]
    assert first.resumed_at_ns == first.at_ns + S and timeline.preemptions[-1].resumed_at_ns != resumed_ns


def test_who_is_turned_away_has_an_end_and_no_leg() -> None:
    world = World("w")
    client, timeline = ask(world)
    client.started.end(COMPLETE)
    assert timeline.ended_at_ns == world.kernel.now_ns() and not timeline.legs


def cached_blocks(world: World, holder: Link, others: tuple[Link, ...] = ()) -> tuple[BlockHash, ...]:
    """The holder says that it has the request's prompt; nothing of the request is left."""
    client = world.ask("r")
    assert isinstance(client.started, InFlightRequest)
    blocks = tuple(client.started.prompt_hashes.of(4))
    client.started.end(COMPLETE)
    for link in (holder, *others):
        link.say(wire.Dropped(R))
        link.say(wire.CacheSnapshot(0, blocks if link is holder else ()))
    assert len(blocks) == 2
    return blocks


def test_evicted_blocks_of_a_prompt_are_told_as_lost() -> None:
    """Red when what the worker forgot is not remembered, or is lost though it came back."""
    world = World("w")
    worker = world.join("w")
    blocks = cached_blocks(world, worker)
    worker.say(wire.CacheEvents(1, (), blocks))
    worker.say(wire.CacheEvents(2, blocks[:1], ()))
    _, timeline = ask(world)
    leg = timeline.legs[0]
    assert (leg.num_hit_tokens, leg.num_lost_hit_tokens, leg.hits_lost) == (4, 4, HitsLost.EVICTED)


def test_the_cache_of_a_worker_that_went_is_told_as_lost_with_it() -> None:
    world = World("a", "b")
    one, two = world.join("a"), world.join("b")
    cached_blocks(world, two, (one,))
    two.end()
    world.run()
    _, timeline = ask(world)
    leg = timeline.legs[0]
    assert (leg.decode, leg.num_lost_hit_tokens, leg.hits_lost) == (ref("a"), 8, HitsLost.WORKER_LOST)


def test_a_worker_with_more_of_the_prompt_that_is_passed_over_is_told() -> None:
    """Red when only what is gone counts: here the worker that has it takes nothing new."""
    world = World("a", "b")
    one, two = world.join("a"), world.join("b")
    cached_blocks(world, two, (one,))
    two.say(wire.Leaving())
    _, timeline = ask(world)
    leg = timeline.legs[0]
    assert (leg.decode, leg.num_lost_hit_tokens, leg.hits_lost) == (ref("a"), 8, HitsLost.MOVED)
