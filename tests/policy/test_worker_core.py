"""What a worker decides about its requests beside steps: whose they are, who may write where, how they end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduler_model import CellMemory, CheckedModel, make_request

from relevo.core.baton import Baton, SampleState
from relevo.core.events import TransferFailed, TransferSealed
from relevo.core.handoff import KVPath, Link, Reach
from relevo.core.ids import PeerId, RequestId, WorkerId
from relevo.core.kv import Reservation
from relevo.policy.worker import effects
from relevo.policy.worker.core import WorkerCore
from relevo.policy.worker.effects import Effect
from relevo.policy.worker.scheduler import Scheduler, SchedulerConfig, StepOutcome

ONE, TWO = PeerId(1), PeerId(2)
PROMPT = [1, 2, 3, 1, 2]  # blocks of 2: two full ones and a partial one
A = RequestId("a")
PATH = KVPath("fake", "D", Link.MEMORY)


class Worker:
    def __init__(self, worker_id: str, memory: CellMemory, first_block_id: int = 0) -> None:
        config = SchedulerConfig(
            worker_id=WorkerId(worker_id),
            epoch=1,
            first_block_id=first_block_id,
            num_blocks=8,
            block_size=2,
            max_batched_tokens=3,
            max_prefill_tokens=3,
            max_running=4,
            max_model_len=20,
        )
        self.core = WorkerCore(Scheduler(config), {PATH.transport: Reach.ARENA, "wire": Reach.NETWORK})
        self.model = CheckedModel(memory, config.max_model_len)

    def effects(self) -> list[Effect]:
        return list(self.core.take_effects())

    def step(self) -> StepOutcome:
        plan = self.core.scheduler.plan(0)
        assert plan is not None
        return self.core.commit(plan, self.model.execute(plan), 0)

    def granted(self, gateway: PeerId = ONE, request_id: str = A) -> Reservation:
        self.core.reserve(gateway, make_request(request_id, PROMPT, max_tokens=3, ignore_eos=True), 0)
        self.core.grant_room(0)
        opened, told = self.effects()
        assert isinstance(opened, effects.OpenRoom) and told == effects.Granted(gateway, opened.reservation)
        return opened.reservation

    def prefill(self, reservation: Reservation, gateway: PeerId = ONE, request_id: str = A) -> None:
        request = make_request(request_id, PROMPT, max_tokens=3, ignore_eos=True)
        self.core.prefill(gateway, request, replace(reservation, request_id=request_id), PATH, 0, 0)


@pytest.fixture
def decode() -> Worker:
    return Worker("d", CellMemory(2))


@pytest.fixture
def prefill(decode: Worker) -> Worker:
    return Worker("p", decode.model.memory, first_block_id=100)


def test_a_plain_decode_step_brings_outputs_and_nothing_else(decode: Worker) -> None:
    """Red when the hot path pays for an effect per token."""
    for gateway, name in ((ONE, "a"), (TWO, "b")):
        decode.core.submit(gateway, make_request(name, [1], max_tokens=5, ignore_eos=True), (), 0)
    for _ in range(2):
        outcome = decode.step()
        assert {gateway: [each.request_id for each in told] for gateway, told in outcome.outputs.items()} == {
            ONE: ["a"],
            TWO: ["b"],
        }
        assert decode.effects() == []


def test_a_request_that_cannot_run_is_refused_to_the_gateway_that_asked(decode: Worker) -> None:
    """Red when a refusal takes a running request of the same name away from its gateway."""
    decode.core.submit(ONE, make_request("a", [1], ignore_eos=True), (), 0)
    decode.core.submit(TWO, make_request("a", [1]), (), 0)
    (refused,) = decode.effects()
    assert isinstance(refused, effects.Refused) and (refused.gateway, refused.request_id) == (TWO, "a")
    assert list(decode.step().outputs) == [ONE]


def test_a_prompt_travels_while_it_is_computed_and_is_handed_over_once_sealed(decode: Worker, prefill: Worker) -> None:
    reservation = decode.granted()
    prefill.prefill(reservation)
    assert [each.reservation for each in prefill.core.remote_prefills] == [reservation]
    prefill.step()
    (first,) = prefill.effects()
    assert isinstance(first, effects.SendPrefix) and (first.prefix.num_tokens, first.prefix.is_last) == (2, False)
    outcome = prefill.step()
    (last,) = prefill.effects()
    assert isinstance(last, effects.SendPrefix) and (last.prefix.num_tokens, last.prefix.is_last) == (5, True)
    assert len(outcome.outputs[ONE]) == 1
    for num_tokens in (2, 5):
        assert not prefill.core.take_sealed()
        prefill.core.take_transfer_event(TransferSealed(reservation, num_tokens, 64 * num_tokens, 0.5))
    assert prefill.effects() == [effects.Sealed(ONE, A, 2), effects.Sealed(ONE, A, 5)]
    assert prefill.core.take_sealed() == [A]
    for _ in range(2):
        prefill.core.hand_over(A)
    done = effects.HandedOver(ONE, A, num_sealed_tokens=5, num_handed_tokens=5, transfer_s=0.5)
    assert prefill.effects() == [effects.CancelWrites(reservation, PATH), done]
    assert prefill.core.num_requests == 0 and prefill.core.remote_prefills == []
    assert (prefill.core.num_handed_tokens, prefill.core.transfer_s) == (5, 0.5)


def test_the_room_is_closed_to_its_writer_before_the_decode_takes_it_over(decode: Worker) -> None:
    reservation = decode.granted()
    decode.core.seal(ONE, A, 5)
    decode.core.start_decode(ONE, Baton(request_id=A, samples=(SampleState(0, [1]),), num_sealed_tokens=5), 0)
    assert decode.effects() == [effects.CloseRoom(reservation)]


def test_an_aborted_request_is_answered_after_its_writes_are_cancelled(decode: Worker, prefill: Worker) -> None:
    reservation = decode.granted()
    prefill.prefill(reservation)
    prefill.core.abort(ONE, A, False)
    prefill.core.abort(ONE, A, False)
    dropped = effects.Dropped(ONE, A)
    assert prefill.effects() == [effects.CancelWrites(reservation, PATH), dropped, dropped]
    decode.core.abort(ONE, A, True)
    assert decode.effects() == [effects.CloseRoom(reservation), dropped]


def test_a_fence_ends_prompts_for_earlier_incarnations_only(decode: Worker, prefill: Worker) -> None:
    """Computed and not yet sealed counts, too. Red when a block of an incarnation that is gone is written."""
    reservation = decode.granted()
    for name, epoch in (("a", 1), ("b", 2)):
        prefill.prefill(replace(reservation, epoch=epoch), request_id=name)
    prefill.step()
    prefill.step()
    prefill.effects()
    prefill.core.fence(WorkerId("x"), 9)
    assert prefill.effects() == []
    prefill.core.fence(WorkerId("d"), 2)
    assert prefill.effects() == [
        effects.CancelWrites(reservation, PATH),
        effects.Failed(ONE, A, "worker_lost", "d was replaced"),
    ]
    assert [each.reservation.request_id for each in prefill.core.remote_prefills] == ["b"]


def test_after_a_fence_nothing_older_is_taken(decode: Worker, prefill: Worker) -> None:
    """A gateway that has not heard of the replacement sends on; an older fence that comes late opens nothing."""
    reservation = decode.granted()
    prefill.core.fence(WorkerId("d"), 3)
    prefill.core.fence(WorkerId("d"), 2)
    prefill.prefill(replace(reservation, epoch=2))
    assert prefill.effects() == [effects.Refused(ONE, A, "worker_lost", "d was replaced")]
    assert prefill.core.num_requests == 0


def test_a_transport_that_is_not_here_is_refused(decode: Worker, prefill: Worker) -> None:
    request = make_request(A, PROMPT)
    prefill.core.prefill(ONE, request, decode.granted(), replace(PATH, transport="pigeons"), 0, 0)
    (refused,) = prefill.effects()
    assert isinstance(refused, effects.Refused) and "pigeons" in refused.reason


def test_what_is_left_of_a_prompt_is_computed_in_the_room_after_its_writer_is_shut_out(decode: Worker) -> None:
    reservation = decode.granted()
    decode.core.seal(ONE, A, 2)
    decode.core.compute_reserved(ONE, A, (), 0)
    assert decode.effects() == [effects.CloseRoom(reservation)]
    decode.core.compute_reserved(ONE, RequestId("x"), (), 0)
    (refused,) = decode.effects()
    assert isinstance(refused, effects.Refused) and refused.code == "handoff_failed"


@pytest.mark.parametrize("how", ["failed", "withdrawn"])
def test_a_prompt_that_cannot_reach_its_receiver_fails(decode: Worker, prefill: Worker, how: str) -> None:
    reservation = decode.granted()
    prefill.prefill(reservation)
    if how == "failed":
        prefill.core.take_transfer_event(TransferFailed(reservation, "no way", stale=False))
    else:
        prefill.core.withdraw(A)
    cancelled, failed = prefill.effects()
    assert cancelled == effects.CancelWrites(reservation, PATH)
    assert isinstance(failed, effects.Failed) and (failed.gateway, failed.code) == (ONE, "handoff_failed")
    assert prefill.core.num_withdrawn == (how == "withdrawn") and prefill.core.num_requests == 0


def test_events_of_an_earlier_attempt_at_the_same_request_say_nothing(decode: Worker, prefill: Worker) -> None:
    """Red when an acknowledgement that came too late ends the second attempt before it is sealed."""
    reservation = decode.granted()
    prefill.prefill(replace(reservation, epoch=2))
    prefill.core.take_transfer_event(TransferSealed(reservation, 5, 1, 1.0))
    prefill.core.take_transfer_event(TransferFailed(reservation, "late", stale=True))
    assert prefill.effects() == [] and prefill.core.num_requests == 1


def test_rooms_that_a_lost_gateway_leaves_under_a_writer_are_for_the_others_to_release(decode: Worker) -> None:
    """Red when blocks into which a writer may still write are free, or stay in quarantine for ever."""
    mine, other = decode.granted(ONE), decode.granted(TWO, "b")
    decode.core.lose_gateway(ONE)
    assert decode.effects() == [effects.CloseRoom(mine), effects.Orphaned((A,))]
    assert decode.core.num_requests == 1 and decode.core.scheduler.load().num_quarantined_blocks == 3
    decode.core.lose_gateway(PeerId(3))  # left nothing behind: the others hear nothing
    assert decode.effects() == []
    decode.core.release(A)
    assert decode.core.scheduler.reservations.orphans == ()
    assert decode.core.scheduler.load().num_quarantined_blocks == 0
    decode.core.abort(TWO, RequestId("b"), True)
    assert decode.effects() == [effects.CloseRoom(other), effects.Dropped(TWO, RequestId("b"))]
    assert decode.core.scheduler.reservations.orphans == ()  # its gateway is there
    decode.core.lose_gateway(TWO)
    assert decode.effects() == [effects.Orphaned((RequestId("b"),))]


def test_a_fault_ends_its_request_with_a_writer_assumed_at_work(decode: Worker) -> None:
    reservation = decode.granted()
    decode.core.fault(A, None, "internal_error", "it broke")
    failed = effects.Failed(ONE, A, "internal_error", "it broke")
    assert decode.effects() == [effects.CloseRoom(reservation), failed]
    assert decode.core.scheduler.load().num_quarantined_blocks == 3 and decode.core.num_request_faults == 1
    decode.core.fault(RequestId("x"), TWO, "internal_error", "before it was here")
    assert decode.effects() == [effects.Failed(TWO, RequestId("x"), "internal_error", "before it was here")]
    decode.core.fault(RequestId("x"), None, "internal_error", "of no gateway")
    assert decode.effects() == []
