"""Who may come in, who is told to come back, for whom it is too late, and that places are given back exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relevo.core.ids import RequestId
from relevo.core.outcome import RequestEnd
from relevo.core.request import EngineRequest, SamplingParams, ServiceTerms
from relevo.policy.admission.admission import LIMITS, Admission, AdmissionLimits, Admitted, Rejected
from relevo.policy.admission.room import RoomView
from relevo.policy.admission.waiting_line import Ticket

S = 1_000_000_000
IDLE = RoomView(prompt_tokens_per_s=1000.0, num_free_slots=64)


def request(
    name: str, num_tokens: int = 1, *, at_s: float = 0.0, priority: int = 0, **terms: float | str | bool
) -> EngineRequest:
    return EngineRequest(
        request_id=RequestId(name),
        prompt_token_ids=(1,) * num_tokens,
        sampling=SamplingParams(max_tokens=1, seed=0),
        priority=priority,
        arrived_at_ns=round(at_s * S),
        terms=ServiceTerms(**terms),  # type: ignore[arg-type]
    )


def admission_with(**limits: float | None) -> Admission:
    return Admission(AdmissionLimits(**limits))  # type: ignore[arg-type]


def admit(
    admission: Admission, name: str, num_tokens: int = 1, outlook: RoomView = IDLE, at_s: float = 0.0, **terms: object
) -> Admitted | Rejected:
    asked = request(name, num_tokens, at_s=at_s, **terms)  # type: ignore[arg-type]
    return admission.enter(asked, 0, outlook, round(at_s * S))


def refused(verdict: Admitted | Rejected) -> RequestEnd:
    assert isinstance(verdict, Rejected), verdict
    assert verdict.end.limit in LIMITS
    return verdict.end


def send(admission: Admission, at_s: float = 0.0) -> RequestId | None:
    ticket = admission.next(round(at_s * S), lambda _: True)
    return ticket.request_id if ticket is not None else None


# ---- places ----------------------------------------------------------------------------------------------------------


def test_a_request_that_started_makes_room_in_the_queue() -> None:
    admission = admission_with(max_queued_requests=1)
    assert isinstance(admit(admission, "a"), Admitted)
    assert refused(admit(admission, "b")).limit == "max_queued_requests"
    assert send(admission) == "a"
    assert refused(admit(admission, "b")).limit == "max_queued_requests", "it waits for its first token still"
    admission.started(RequestId("a"), S)
    assert isinstance(admit(admission, "b"), Admitted)
    assert (admission.num_running, admission.num_queued_requests) == (1, 1)


def test_running_requests_have_their_own_limit() -> None:
    admission = admission_with(max_running=2)
    admit(admission, "a")
    send(admission)
    admission.started(RequestId("a"), S)
    admit(admission, "b")
    assert refused(admit(admission, "c")).limit == "max_running"
    admission.done(RequestId("a"), S)
    assert isinstance(admit(admission, "c"), Admitted)


def test_tokens_are_bounded_but_a_large_prompt_is_not_refused_for_ever() -> None:
    admission = admission_with(max_queued_tokens=100)
    assert isinstance(admit(admission, "large", 500), Admitted)
    assert refused(admit(admission, "small", 1)).limit == "max_queued_tokens"
    admission.done(RequestId("large"), S)
    assert isinstance(admit(admission, "a", 60), Admitted)
    assert isinstance(admit(admission, "b", 40), Admitted)
    assert refused(admit(admission, "c", 1)).limit == "max_queued_tokens"


def test_no_limits_admit_everything() -> None:
    admission = admission_with()
    assert all(isinstance(admit(admission, str(i), 1000), Admitted) for i in range(1000))


def test_batch_requests_have_places_of_their_own_and_leave_last() -> None:
    admission = admission_with(max_queued_requests=1, max_queued_batch_requests=1)
    assert isinstance(admit(admission, "batch", is_batch=True), Admitted)
    assert refused(admit(admission, "more", is_batch=True)).limit == "max_queued_batch_requests"
    assert isinstance(admit(admission, "a"), Admitted)
    assert (send(admission), send(admission)) == ("a", "batch")


def test_who_cannot_start_within_the_limit_is_told_on_arrival_when_to_come_back() -> None:
    """Red when the first prediction of decode room needs a stream that has ended."""
    full = RoomView(prompt_tokens_per_s=1000.0, num_running=64, slot_in_s=45.0)
    refusal = refused(admit(admission_with(max_ttft_s=30.0), "late", outlook=full))
    assert (refusal.limit, refusal.retry_after_s) == ("max_ttft", 45.0)
    assert isinstance(admit(admission_with(max_ttft_s=60.0), "in time", outlook=full), Admitted)
    assert isinstance(admit(admission_with(), "patient", outlook=full), Admitted)
    granted = request("granted", priority=-1)
    assert isinstance(admission_with(max_ttft_s=30.0).enter(granted, 0, full, 0), Admitted)


def test_batch_in_line_is_not_ahead_of_anybody() -> None:
    """Red when batch requests count against the first token of others."""
    admission = admission_with(max_ttft_s=1.0)
    for i in range(50):
        admit(admission, f"batch{i}", 1000, is_batch=True)
    verdict = admit(admission, "a", 10)
    assert isinstance(verdict, Admitted)
    assert verdict.wait_s == 0.0


def test_a_full_line_gives_a_place_to_a_tenant_that_has_fewer() -> None:
    admission = admission_with(max_queued_requests=4)
    for i in range(4):
        admit(admission, f"a{i}", tenant="a")
    verdict = admit(admission, "b0", tenant="b")
    assert isinstance(verdict, Admitted)
    assert verdict.displaced is not None
    assert (verdict.displaced.request_id, verdict.displaced.end.limit) == ("a3", "displaced")
    assert isinstance(admit(admission, "b1", tenant="b"), Admitted)
    assert refused(admit(admission, "b2", tenant="b")).limit == "max_queued_requests", "two and two is fair"
    assert admission.num_queued_requests == 4


def test_nobody_loses_a_place_that_would_not_be_enough() -> None:
    """Red when a short prompt is thrown out for a long one that then finds no room either."""
    admission = admission_with(max_queued_tokens=100)
    for i in range(3):
        admit(admission, f"a{i}", 30, tenant="a")
    assert refused(admit(admission, "b", 41, tenant="b")).limit == "max_queued_tokens"
    assert admission.num_queued_tokens == 90
    verdict = admit(admission, "b", 40, tenant="b")
    assert isinstance(verdict, Admitted)
    assert verdict.displaced is not None and verdict.displaced.request_id == "a2"
    assert admission.num_queued_tokens == 100


def test_cached_tokens_cost_a_tenth_in_the_line() -> None:
    """Red when a tenant pays in turns for what nobody has to compute, or when what was discounted is charged later."""
    admission = admission_with()
    for i in range(20):
        admission.enter(request(f"a{i}", 5110, tenant="a"), 5110, IDLE, 0)  # 511 to pay, and one output token
        admission.enter(request(f"b{i}", 5119, tenant="b"), 0, IDLE, 0)
    order = []
    for _ in range(11):
        sent = send(admission)
        assert sent is not None
        order.append(sent)
        admission.done(sent, 0, num_output_tokens=1)
    assert sum(name.startswith("a") for name in order) == 10, order


def test_costly_draws_are_paid_in_the_line() -> None:
    """Red when a tenant slows everybody's steps with edits and log probabilities and pays as if it did not."""
    admission = admission_with()
    plain = SamplingParams(max_tokens=100, seed=0)
    costly = replace(plain, logit_bias={1: 1.0}, num_logprobs=20)
    for i in range(100):
        for tenant, sampling in (("plain", plain), ("costly", costly)):
            admission.enter(replace(request(f"{tenant}{i}", tenant=tenant), sampling=sampling), 0, IDLE, 0)
    order = []
    for _ in range(90):
        sent = send(admission)
        assert sent is not None
        order.append(sent)
        admission.done(sent, 0, num_output_tokens=100)
    assert 57 <= sum(name.startswith("plain") for name in order) <= 63, order


def test_who_writes_more_than_expected_owes_it() -> None:
    """Red when the outputs of a request are not charged to its tenant when it ends."""
    admission = admission_with()
    admit(admission, "long", 511, tenant="a")
    assert send(admission) == "long"
    for i in range(6):
        admit(admission, f"a{i}", 511, tenant="a")
        admit(admission, f"b{i}", 511, tenant="b")
    admission.started(RequestId("long"), S)
    admission.done(RequestId("long"), 2 * S, num_output_tokens=1 + 4 * 512)
    order = [send(admission) for _ in range(6)]
    assert [name for name in order if name is not None and name.startswith("b")] == ["b0", "b1", "b2", "b3", "b4"], (
        order
    )


def test_who_was_sent_to_a_worker_is_not_displaced() -> None:
    admission = admission_with(max_queued_requests=1)
    admit(admission, "a", tenant="a")
    send(admission)
    assert refused(admit(admission, "b", tenant="b")).limit == "max_queued_requests"


# ---- time ------------------------------------------------------------------------------------------------------------


def line_of(num_tokens: int, **limits: float | None) -> Admission:
    """Prompts of 100 tokens that wait, of tenant a; workers compute 1,000 tokens a second."""
    admission = admission_with(**limits)
    for i in range(num_tokens // 100):
        assert isinstance(admit(admission, f"ahead{i}", 99, tenant="a"), Admitted)
    return admission


def test_who_would_wait_too_long_is_told_at_once_and_for_how_long() -> None:
    admission = line_of(5000)
    admission.limits = AdmissionLimits(max_ttft_s=4.0)
    refusal = refused(admit(admission, "late", tenant="a"))
    assert refusal.limit == "max_ttft"
    assert refusal.retry_after_s == pytest.approx(5.0)
    assert "may take 5.4 s" in refusal.reason, "a tenth of the limit is kept as distance"
    assert isinstance(admit(admission, "in time", tenant="b"), Admitted), "a's line is not b's"


def test_the_limits_of_the_client_count_too() -> None:
    admission = line_of(5000)
    assert refused(admit(admission, "x", tenant="a", ttft_s=4.0)).limit == "client_ttft"
    assert refused(admit(admission, "x", tenant="a", timeout_s=4.0)).limit == "client_timeout"
    assert isinstance(admit(admission, "y", tenant="a", ttft_s=6.0, timeout_s=10.0), Admitted)
    busy = replace(IDLE, num_running=5, tpot_s=0.2)
    assert refused(admit(admission, "x", tenant="a", outlook=busy, tpot_s=0.1)).limit == "client_tpot"
    assert isinstance(admit(admission, "z", tenant="a", outlook=replace(busy, num_running=0), tpot_s=0.1), Admitted)


def test_batch_requests_wait_as_long_as_they_like_within_their_own_bound() -> None:
    """Red when a batch request is refused or ended by what holds for requests that somebody waits for."""
    admission = line_of(5000)
    admission.limits = AdmissionLimits(max_ttft_s=4.0, max_line_s=5.0, max_batch_line_s=100.0)
    assert refused(admit(admission, "a", tenant="a")).limit == "max_ttft"
    assert isinstance(admit(admission, "batch", tenant="a", is_batch=True), Admitted)
    assert refused(admit(admission, "hasty", tenant="a", is_batch=True, ttft_s=4.0)).limit == "client_ttft"
    assert admission.due_at_ns(RequestId("batch")) == 100 * S
    assert admission.overdue(RequestId("batch"), IDLE, 100 * S - 1) is None
    overdue = admission.overdue(RequestId("batch"), IDLE, 100 * S)
    assert overdue is not None
    assert overdue.end.limit == "line_timeout"


def test_only_waiting_is_a_reason_to_refuse() -> None:
    """A prompt that takes longer than the limit on idle workers is served: coming back would not help."""
    slow = replace(IDLE, own_s=30.0)
    admission = admission_with(max_ttft_s=10.0)
    assert isinstance(admit(admission, "long", outlook=slow, ttft_s=5.0), Admitted)
    assert refused(admit(admission, "x", outlook=replace(slow, queue_s=0.5))).limit == "max_ttft"


def test_decode_room_at_the_end_of_the_prompt_is_predicted() -> None:
    """Nobody is in line, but all slots are taken, and those who decode leave once in ten seconds."""
    admission = admission_with(max_ttft_s=3.0)
    admit(admission, "first")
    send(admission)
    admission.started(RequestId("first"), 0)
    admission.done(RequestId("first"), 10 * S, 100)  # decodes for ten seconds
    full = RoomView(prompt_tokens_per_s=1e6, num_free_slots=0, num_running=2)
    refusal = refused(admit(admission, "x", outlook=full))
    assert refusal.limit == "max_ttft" and refusal.retry_after_s == pytest.approx(5.0)
    assert isinstance(admit(admission, "y", outlook=replace(full, num_running=8)), Admitted), "one leaves in 1.25 s"
    admission.done(RequestId("y"), 10 * S)
    assert isinstance(admit(admission, "z", outlook=replace(full, num_free_slots=1)), Admitted)


def test_the_measured_rate_of_the_line_replaces_the_formula() -> None:
    admission = line_of(5000)
    for at_s in range(5):  # one request of 100 tokens a second, though the formula says ten
        assert admission.next(at_s * S, lambda _: False) is None
        assert send(admission, at_s + 1.0) is not None
    verdict = admit(admission, "x", tenant="a", at_s=5.0)
    assert isinstance(verdict, Admitted)
    assert verdict.wait_s == pytest.approx(45.0, rel=0.1)


def test_retry_after_is_the_predicted_wait_within_bounds() -> None:
    for num_tokens, retry_after_s in ((0, 1.0), (7500, 7.5), (90_000, 60.0)):
        admission = line_of(num_tokens)
        admission.limits = AdmissionLimits(max_queued_requests=0)
        assert refused(admit(admission, "x", tenant="a")).retry_after_s == pytest.approx(retry_after_s, rel=0.01)


# ---- deadlines -------------------------------------------------------------------------------------------------------


def test_who_waits_in_vain_leaves_without_being_computed() -> None:
    admission = admission_with(max_ttft_s=10.0, max_line_s=300.0)
    admit(admission, "a", outlook=replace(IDLE, own_s=2.0), at_s=1.0)
    assert admission.due_at_ns(RequestId("a")) == 9 * S, "the prompt itself takes two seconds of the ten"
    assert admission.overdue(RequestId("a"), IDLE, 9 * S - 1) is None
    overdue = admission.overdue(RequestId("a"), IDLE, 9 * S)
    assert overdue is not None and overdue.was_waiting
    assert (overdue.end.limit, overdue.end.code) == ("max_ttft", "overloaded")
    assert send(admission) is None, "it was computed although its time was over"


def test_a_deadline_of_the_client_that_passes_is_named_as_such() -> None:
    admission = admission_with(max_line_s=300.0)
    admit(admission, "a", timeout_s=5.0)
    admit(admission, "b", ttft_s=5.0)
    for name, limit in (("a", "client_timeout"), ("b", "client_ttft")):
        overdue = admission.overdue(RequestId(name), IDLE, 5 * S)
        assert overdue is not None
        assert (overdue.end.limit, overdue.end.code) == (limit, "deadline_exceeded")


def test_a_running_request_has_only_the_timeout() -> None:
    admission = admission_with(max_ttft_s=1.0)
    admit(admission, "a", ttft_s=2.0, timeout_s=5.0)
    send(admission)
    assert admission.due_at_ns(RequestId("a")) == 5 * S
    admission.started(RequestId("a"), 3 * S)
    overdue = admission.overdue(RequestId("a"), IDLE, 5 * S)
    assert overdue is not None and not overdue.was_waiting
    admission.done(RequestId("a"), 5 * S, 10)
    assert admission.is_idle


def test_without_workers_the_wait_ends_with_another_word() -> None:
    admission = admission_with(max_line_s=3.0)
    admit(admission, "a", outlook=RoomView(is_anyone_ready=False))
    overdue = admission.overdue(RequestId("a"), RoomView(is_anyone_ready=False), 3 * S)
    assert overdue is not None
    assert overdue.end.code == "no_worker"


def test_the_longest_wait_is_that_of_the_first_to_come() -> None:
    admission = admission_with()
    assert admission.oldest_wait_s(S, is_batch=False) == 0.0
    for i in range(3):
        admit(admission, str(i), at_s=i)
    assert send(admission) == "0"
    assert admission.oldest_wait_s(5 * S, is_batch=False) == 4.0
    assert admission.oldest_wait_s(5 * S, is_batch=True) == 0.0


def test_nobody_passes_the_one_whose_turn_it_is() -> None:
    """Red when a small request slips by a large one that finds no room: large ones would starve."""
    admission = admission_with()
    admit(admission, "large", 1000)
    admit(admission, "small", 1)
    asked: list[Ticket] = []
    assert admission.next(0, lambda ticket: bool(asked.append(ticket))) is None
    assert [ticket.request_id for ticket in asked] == ["large"]


class AdmissionMachine(RuleBasedStateMachine):
    """Ends come in any phase, early, late and twice; limits hold throughout and everything returns to zero."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = AdmissionLimits(
            max_queued_requests=4, max_queued_tokens=50, max_queued_batch_requests=3, max_running=8, max_ttft_s=2.0
        )
        self.admission = Admission(self.limits, {"b": 2.0})
        self.alive: dict[RequestId, int] = {}
        self.now_ns = 0
        self.num_made = 0

    @rule(num_tokens=st.integers(1, 30), tenant=st.sampled_from("abc"), is_batch=st.booleans(), timeout=st.booleans())
    def comes(self, num_tokens: int, tenant: str, is_batch: bool, timeout: bool) -> None:
        self.num_made += 1
        asked = request(
            f"r{self.num_made}",
            num_tokens,
            at_s=self.now_ns / S,
            tenant=tenant,
            is_batch=is_batch,
            **({"timeout_s": 3.0} if timeout else {}),
        )
        verdict = self.admission.enter(asked, 0, IDLE, self.now_ns)
        if isinstance(verdict, Admitted):
            self.alive[asked.request_id] = num_tokens
            if verdict.displaced is not None:
                del self.alive[verdict.displaced.request_id]

    @rule(has_room=st.booleans())
    def turn(self, has_room: bool) -> None:
        ticket = self.admission.next(self.now_ns, lambda _: has_room)
        assert ticket is None or has_room

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), kind=st.sampled_from(("started", "done", "late")), num_outputs=st.integers(0, 50))
    def goes_on(self, data: st.DataObject, kind: str, num_outputs: int) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.alive)))
        if kind == "started":
            self.admission.started(request_id, self.now_ns)
            return
        if kind == "late" and self.admission.overdue(request_id, IDLE, self.now_ns) is None:
            return
        for _ in range(2):
            self.admission.done(request_id, self.now_ns, num_outputs)
        del self.alive[request_id]
        self.admission.started(request_id, self.now_ns)  # a token that comes too late

    @rule(seconds=st.floats(0.0, 2.0))
    def time_passes(self, seconds: float) -> None:
        self.now_ns += round(seconds * S)

    @invariant()
    def limits_hold(self) -> None:
        assert set(self.admission) == set(self.alive)
        assert self.admission.num_queued_requests <= 4 + 3
        assert len(self.alive) <= 8
        assert self.admission.num_running + self.admission.num_queued_requests == len(self.alive)

    def teardown(self) -> None:
        for request_id in list(self.alive):
            self.admission.done(request_id, self.now_ns)
        assert self.admission.is_idle
        assert (self.admission.num_queued_requests, self.admission.num_queued_tokens) == (0, 0)


TestAdmissionMachine = AdmissionMachine.TestCase
TestAdmissionMachine.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
