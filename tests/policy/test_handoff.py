"""Examples of single decisions of the handoff, where the search of small worlds only shows that nothing breaks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relevo.core.baton import KVTicket, SampledToken
from relevo.core.events import TokenOutput
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.kv import Reservation
from relevo.core.outcome import COMPLETE, Cause, Outcome, RequestEnd
from relevo.core.request import FinishReason
from relevo.policy.handoff import effects, events, machine
from relevo.policy.handoff.state import HandoffLimits, Phase

R = RequestId("r")
D, P, X = (WorkerRef(WorkerId(name), 1) for name in ("d", "p", "x"))
LIMITS = HandoffLimits(queue_s=10.0, prefill_s=20.0, transfer_s=5.0, drain_lease_s=2.0, decode_stall_s=30.0)
GRANT = Reservation(
    request_id=R,
    worker_id=D.worker_id,
    epoch=D.epoch,
    block_size=4,
    block_ids=(4, 5, 6),
    generations=(0, 0, 0),
    num_hit_tokens=4,
)  # three blocks of four tokens, the first a hit
S = 1_000_000_000
GONE = events.EndRequested(RequestEnd(cause=Cause.CLIENT_GONE))


class Driver:
    """Tells events and keeps what was asked for by each of them."""

    def __init__(self, num_samples: int = 1, limits: HandoffLimits = LIMITS) -> None:
        self.state = machine.start(R, num_prompt_tokens=10, num_samples=num_samples, limits=limits)
        self.tell(events.LetIn())

    def tell(self, *events: events.Event, at_ns: int = 0) -> tuple[effects.Effect, ...]:
        for event in events:
            self.state, self.effects = machine.advance(self.state, event, at_ns)
        return self.effects

    def until_prefill(self) -> Driver:
        self.tell(events.Routed(D, split=True), events.Granted(GRANT), events.PrefillChosen(P))
        return self

    def until_decode(self) -> Driver:
        self.until_prefill().tell(first_token(), events.PrefillFinished(P, 10, 640, 0.5))
        return self


def tokens(worker: WorkerRef, *ids: int, sample: int = 0, finish: FinishReason | None = None) -> events.Tokens:
    return events.Tokens(worker, TokenOutput(R, sample, tuple(SampledToken(i) for i in ids), finish))


def first_token() -> events.Tokens:
    return tokens(P, 7)


def kinds(effects: tuple[effects.Effect, ...]) -> list[str]:
    return [type(e).__name__ for e in effects]


def test_room_on_the_decode_worker_comes_first() -> None:
    driver = Driver()
    assert driver.tell(events.Routed(D, split=True)) == (effects.SendReserve(D),)
    assert driver.tell(events.Granted(GRANT)) == (effects.ChoosePrefill(GRANT, 6, ()),)
    assert driver.tell(events.PrefillChosen(P)) == (effects.SendPrefill(P, GRANT),)


@pytest.mark.parametrize("tokens_first", [True, False])
def test_decode_starts_when_both_tokens_and_kv_are_there(tokens_first: bool) -> None:
    driver = Driver().until_prefill()
    both: list[events.Event] = [first_token(), events.PrefillFinished(P, 10, 640, 0.5)]
    driver.tell(both[not tokens_first])
    assert "SendStartDecode" not in kinds(driver.effects)
    driver.tell(both[tokens_first])
    assert effects.SendStartDecode(D, 10) in driver.effects
    assert (driver.state.transferred_bytes, driver.state.transfer_s) == (640, 0.5)


def test_every_continuation_needs_its_first_token() -> None:
    driver = Driver(num_samples=2).until_prefill()
    driver.tell(events.PrefillFinished(P, 10), tokens(P, 7, sample=0))
    assert driver.state.phase is Phase.PREFILLING
    assert "SendStartDecode" in kinds(driver.tell(tokens(P, 8, sample=1)))


def test_the_choice_of_nobody_computes_in_the_granted_room() -> None:
    driver = Driver()
    driver.tell(events.Routed(D, split=True), events.Granted(GRANT))
    assert driver.tell(events.PrefillChosen(None)) == (effects.SendSubmit(D, use_reservation=True, resume=False),)
    assert kinds(driver.tell(tokens(D, 7, finish=FinishReason.STOP))) == ["Emit", "RequestEnd"]
    assert driver.state.is_gone


def test_all_finished_on_the_prefill_worker_drains_both_and_releases_last() -> None:
    driver = Driver().until_prefill()
    told = driver.tell(tokens(P, 7, finish=FinishReason.LENGTH))
    assert kinds(told) == ["Emit", "RequestEnd", "SendAbort", "SendAbort"]
    assert told[2:] == (effects.SendAbort(P, writer_active=False), effects.SendAbort(D, writer_active=True))
    assert driver.tell(events.Dropped(D)) == ()
    assert driver.tell(events.Dropped(P)) == (effects.SendRelease(D),)
    assert driver.state.is_gone


def test_a_prefill_worker_that_fails_leaves_sealed_blocks_to_the_next() -> None:
    """Red when sealed blocks, which others may share by then, are written a second time."""
    driver = Driver().until_prefill()
    assert driver.tell(events.Sealed(P, 9)) == (effects.SendSeal(D, 9),)
    told = driver.tell(events.Failed(P, "step_failed", "boom"))
    assert isinstance(told[0], effects.ChoosePrefill)
    assert told[0].reservation.num_hit_tokens == 8
    assert driver.state.num_found_tokens == 4  # the rest was computed for this request: no hit
    assert (told[0].num_uncached_tokens, told[0].exclude) == (2, (P,))
    assert driver.tell(events.PrefillChosen(X)) == (effects.SendPrefill(X, told[0].reservation),)
    assert driver.tell(events.Sealed(X, 9)) == ()


def test_emitted_first_token_is_resumed_in_the_granted_room() -> None:
    driver = Driver().until_prefill()
    driver.tell(first_token())
    assert driver.tell(events.WorkerDied(P)) == (effects.SendSubmit(D, use_reservation=True, resume=True),)
    assert driver.tell(tokens(P, 7)) == ()
    assert kinds(driver.tell(tokens(D, 8))) == ["Emit"]
    assert driver.state.samples[0].output_token_ids == [7, 8]


def test_a_dead_decode_worker_is_replaced_with_the_emitted_tokens() -> None:
    driver = Driver().until_decode()
    driver.tell(tokens(D, 8))
    told = driver.tell(events.WorkerDied(D))
    assert kinds(told) == ["Route"]
    assert (told[0].exclude, told[0].resume) == ((D,), True)  # type: ignore[union-attr]
    again = WorkerRef(D.worker_id, D.epoch + 1)
    assert driver.tell(events.Routed(again, split=True)) == (
        effects.SendSubmit(again, use_reservation=False, resume=True),
    )
    assert driver.tell(tokens(D, 9)) == (), "the old incarnation is not in charge"
    assert kinds(driver.tell(tokens(again, 9))) == ["Emit"]


def test_death_of_decode_recalls_the_writer_before_routing_again() -> None:
    driver = Driver().until_prefill()
    assert driver.tell(events.WorkerDied(D)) == (effects.SendAbort(P, writer_active=False),)
    assert kinds(driver.tell(events.Dropped(P))) == ["Route"]
    assert driver.tell(events.Routed(X, split=True)) == (effects.SendReserve(X),)


def test_a_writer_that_does_not_answer_is_fenced_and_only_its_death_releases() -> None:
    driver = Driver().until_prefill()
    driver.tell(GONE)
    driver.tell(events.Dropped(D))
    assert driver.tell(events.Tick(), at_ns=S) == ()
    assert kinds(driver.tell(events.Tick(), at_ns=2 * S)) == ["KillWorker"]
    assert kinds(driver.tell(events.Tick(), at_ns=4 * S)) == ["KillWorker"]
    assert driver.tell(events.WorkerDied(P), at_ns=5 * S) == (effects.SendRelease(D),)
    assert driver.state.is_gone


def test_when_time_is_over_the_request_fails_once_and_everybody_lets_go() -> None:
    driver = Driver().until_prefill()
    end = RequestEnd.failed("deadline_exceeded", "too late")
    over = events.EndRequested(end)
    told = driver.tell(over)
    assert told[0] == end
    assert {effect.worker for effect in told if isinstance(effect, effects.SendAbort)} == {D, P}
    assert driver.tell(over, GONE) == ()
    driver.tell(events.Dropped(P), events.Dropped(D))
    assert driver.state.is_gone
    in_line = machine.start(R, num_prompt_tokens=10, num_samples=1, limits=LIMITS)
    in_line, told = machine.advance(in_line, over, 0)
    assert told == (end,)
    assert in_line.is_gone, "no worker has anything of a request that was never sent"


def test_a_decode_worker_that_is_slow_to_drain_is_not_killed() -> None:
    driver = Driver().until_decode()
    driver.tell(GONE)
    assert driver.tell(events.Tick(), at_ns=1000 * S) == ()
    assert not driver.state.is_gone
    driver.tell(events.Dropped(D))
    assert driver.state.is_gone


@pytest.mark.parametrize("code", ["invalid_request", "context_length_exceeded"])
def test_a_fault_of_the_request_is_not_tried_elsewhere(code: str) -> None:
    driver = Driver()
    driver.tell(events.Routed(D, split=True))
    told = driver.tell(events.Failed(D, code, "too long"))
    assert told[0] == RequestEnd.failed(code, "too long")
    assert "Route" not in kinds(told)


def test_attempts_are_bounded_and_the_last_failure_is_told() -> None:
    driver = Driver()
    for i in range(3):
        worker = WorkerRef(WorkerId(f"w{i}"), 1)
        assert driver.state.phase is Phase.ROUTING
        driver.tell(events.Routed(worker, split=False))
        driver.tell(events.Failed(worker, "step_failed", f"boom {i}"))
    assert RequestEnd.failed("step_failed", "boom 2") in driver.effects


def test_a_worker_that_was_asked_to_leave_failed_nobody() -> None:
    """Red when a rolling restart uses up the attempts of a long request."""
    driver = Driver().until_prefill()
    assert kinds(driver.tell(events.WorkerDied(P, has_left=True))) == ["ChoosePrefill"]
    driver.tell(events.PrefillChosen(None))
    assert driver.tell(events.WorkerDied(D, has_left=True)) == (effects.Route("", (P, D), resume=False),)
    assert driver.state.num_failures == 0


def test_no_route_after_a_failure_tells_the_failure_and_when_to_come_back() -> None:
    driver = Driver()
    driver.tell(events.Routed(D, split=False), events.WorkerDied(D))
    (end,) = driver.tell(events.NoRoute(RequestEnd.failed("no_worker", "none is ready", 4.0)))
    assert isinstance(end, RequestEnd)
    assert (end.code, end.retry_after_s) == ("worker_lost", 4.0)
    assert driver.state.is_gone


def test_each_phase_has_its_own_clock() -> None:
    driver = Driver()
    driver.tell(events.Routed(D, split=True))
    assert driver.state.due_at_ns == 10 * S
    assert kinds(driver.tell(events.Tick(), at_ns=10 * S))[:2] == ["RequestEnd", "SendAbort"]

    driver = Driver().until_prefill()
    driver.tell(events.Sealed(P, 8), at_ns=15 * S)  # progress
    assert driver.tell(events.Tick(), at_ns=20 * S) == ()
    assert driver.state.due_at_ns == 35 * S
    assert driver.tell(events.Tick(), at_ns=35 * S) == (effects.SendAbort(P, writer_active=False),)

    driver = Driver().until_prefill()
    driver.tell(first_token(), at_ns=S)
    assert driver.tell(events.Tick(), at_ns=6 * S) == (effects.SendAbort(P, writer_active=False),)

    driver = Driver().until_decode()
    assert driver.tell(events.Tick(), at_ns=30 * S) == (effects.SendAbort(D, writer_active=False),)
    assert kinds(driver.tell(events.Tick(), at_ns=32 * S)) == ["KillWorker"]
    assert kinds(driver.tell(events.WorkerDied(D), at_ns=33 * S)) == ["Route"]


def test_without_limits_nothing_is_due_while_all_goes_well() -> None:
    limits = HandoffLimits(queue_s=None, prefill_s=None, transfer_s=None, decode_stall_s=None)
    driver = Driver(limits=limits).until_decode()
    assert driver.state.due_at_ns is None


def test_tokens_that_come_keep_the_stall_away_and_what_they_leave_of_its_deadline_is_nearly_all() -> None:
    """Red if routine tokens do not move the deadline, or move it late: then a worker is given up between two tokens."""
    driver = Driver().until_decode()
    for tenth_s in range(0, 1200, 3):
        driver.tell(tokens(D, tenth_s), at_ns=tenth_s * S // 10)
        assert driver.state.deadline_at_ns is not None
        assert 0.94 * 30.0 * S <= driver.state.deadline_at_ns - tenth_s * S // 10 <= 30.0 * S
        assert driver.tell(events.Tick(), at_ns=tenth_s * S // 10 + S // 10) == ()
    assert driver.state.samples[0].output_token_ids[-3:] == [1191, 1194, 1197]


def test_stop_early_ends_as_finished_and_drains() -> None:
    driver = Driver().until_decode()
    assert driver.tell(events.EndRequested(COMPLETE)) == (COMPLETE, effects.SendAbort(D, writer_active=False))
    assert driver.tell(tokens(D, 9), events.EndRequested(COMPLETE), GONE) == ()
    driver.tell(events.Dropped(D))
    assert driver.state.is_gone


def test_answers_that_come_too_late_change_nothing() -> None:
    driver = Driver().until_decode()
    before = driver.state
    stale: list[events.Event] = [
        events.Routed(X, split=True),
        events.Granted(GRANT),
        events.PrefillChosen(X),
        events.Sealed(P, 10),
        events.PrefillFinished(P, 10),
        events.Dropped(D),
        events.Failed(P, "step_failed", ""),
        events.WorkerDied(P),
        tokens(P, 99),
        tokens(D, 99, sample=5),
    ]
    assert driver.tell(*stale) == ()
    assert driver.state == before


def test_room_that_another_worker_granted_is_not_taken_for_this_ones() -> None:
    """Red when a grant counts whoever it is from: the prompt would be written into blocks that nobody decodes from."""
    driver = Driver()
    driver.tell(events.Routed(X, split=True))
    assert driver.tell(events.Granted(GRANT)) == ()
    assert driver.state.phase is Phase.QUEUED and driver.state.reservation is None
    later = WorkerRef(D.worker_id, D.epoch + 1)
    driver = Driver()
    driver.tell(events.Routed(later, split=True))
    assert driver.tell(events.Granted(GRANT)) == (), "of an earlier incarnation"


def test_what_a_writer_seals_while_it_is_recalled_still_counts() -> None:
    """Red when chunks that arrive between the recall and its answer are computed, and written, a second time."""
    driver = Driver().until_prefill()
    assert driver.tell(events.Tick(), at_ns=20 * S) == (effects.SendAbort(P, writer_active=False),)
    assert driver.tell(events.Sealed(P, 9), at_ns=21 * S) == (effects.SendSeal(D, 9),)
    (choose,) = driver.tell(events.Dropped(P), at_ns=21 * S)
    assert isinstance(choose, effects.ChoosePrefill)
    assert (choose.reservation.num_hit_tokens, choose.num_uncached_tokens) == (8, 2)
    assert choose.exclude == (P,), "who made no progress is not asked again"


def test_a_writer_that_was_done_before_it_was_asked_is_not_killed() -> None:
    """Red when a lease fences a worker that holds nothing: it said so, only the answer to the question is missing."""
    driver = Driver().until_prefill()
    driver.tell(GONE)
    driver.tell(events.Dropped(D))
    assert driver.tell(events.PrefillFinished(P, 10)) == (effects.SendRelease(D),)
    assert driver.tell(events.Tick(), at_ns=2 * S) == ()
    assert driver.state.is_gone


def test_a_request_over_whose_next_token_two_workers_ended_is_given_to_no_third() -> None:
    driver = Driver(limits=replace(LIMITS, max_attempts=9))
    driver.tell(events.Routed(D, split=False))
    assert kinds(driver.tell(events.WorkerDied(D))) == ["Route"]
    driver.tell(events.Routed(P, split=False))
    (end,) = driver.tell(events.WorkerDied(P))
    assert isinstance(end, RequestEnd) and (end.outcome, end.code) == (Outcome.FAILED, "internal_error")
    assert driver.state.is_gone


def test_a_stream_that_gets_on_between_the_ends_of_its_workers_goes_on() -> None:
    """Red when two kills of a machine's operator are held against a long answer."""
    driver = Driver(limits=replace(LIMITS, max_attempts=9))
    for number, worker in enumerate((D, P, X)):
        driver.tell(events.Routed(worker, split=False), tokens(worker, 5 + number))
        assert kinds(driver.tell(events.WorkerDied(worker))) == ["Route"]
    assert driver.state.num_deaths == 0 and not driver.state.has_ended


@pytest.mark.parametrize("phase", ["prefill", "in line", "waits for its prompt", "it leaves", "unsent"])
def test_only_the_end_of_a_worker_that_computes_the_request_is_held_against_it(phase: str) -> None:
    driver = Driver(limits=replace(LIMITS, max_attempts=9))
    if phase == "in line":
        driver.tell(events.Routed(D, split=True), events.WorkerDied(D))
    elif phase == "waits for its prompt":
        driver.until_prefill().tell(events.WorkerDied(D))
    elif phase == "prefill":
        driver.until_prefill().tell(events.WorkerDied(P))
    else:
        driver.tell(events.Routed(D, split=False))
        driver.tell(events.WorkerDied(D, has_left=phase == "it leaves", is_unsent=phase == "unsent"))
    assert driver.state.num_deaths == (phase == "prefill") and not driver.state.has_ended


def ticket(use_by_ns: int | None = 5 * S, fields: bytes = b"{}") -> events.PrefillFinished:
    return events.PrefillFinished(P, 10, ticket=KVTicket(name="t", fields=fields, use_by_ns=use_by_ns))


def test_a_ticket_goes_to_the_decode_worker_which_draws_the_first_token() -> None:
    driver = Driver().until_prefill()
    finished = ticket()
    assert driver.tell(finished, at_ns=4 * S) == (effects.SendStartDecode(D, 10, finished.ticket),)
    assert driver.state.phase is Phase.DECODING
    assert driver.tell(tokens(D, 7)) == (effects.Emit(tokens(D, 7).output),)
    assert driver.state.samples[0].output_token_ids == [7]


@pytest.mark.parametrize("late", [ticket(), ticket(use_by_ns=None, fields=b"")])
def test_a_late_or_empty_ticket_is_not_sent(late: events.PrefillFinished) -> None:
    driver = Driver().until_prefill()
    assert driver.tell(late, at_ns=5 * S) == (effects.SendSubmit(D, use_reservation=True, resume=False),)
    assert driver.state.phase is Phase.SUBMITTED
    assert driver.state.prefill is None


def test_a_ticket_after_the_end_asks_for_nothing() -> None:
    driver = Driver().until_prefill()
    driver.tell(GONE)
    assert "SendStartDecode" not in kinds(driver.tell(ticket()))
    driver.tell(events.Dropped(P), events.Dropped(D))
    assert driver.state.is_gone
