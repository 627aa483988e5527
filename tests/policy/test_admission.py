"""Who may wait, and that places are given back exactly."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from relevo.core.ids import RequestId
from relevo.policy.admission import Admission, AdmissionLimits, Admitted, Rejected

S = 1_000_000_000


def admit(admission: Admission, name: str, num_tokens: int = 1, est_ttft_s: float = 5.0) -> Admitted | Rejected:
    return admission.try_admit(RequestId(name), num_tokens, 0, est_ttft_s)


def test_a_request_that_started_makes_room_in_the_queue() -> None:
    admission = Admission(AdmissionLimits(max_queued_requests=1))
    assert isinstance(admit(admission, "a"), Admitted)
    rejected = admit(admission, "b")
    assert isinstance(rejected, Rejected)
    assert rejected.limit == "max_queued_requests"
    admission.started(RequestId("a"))
    assert isinstance(admit(admission, "b"), Admitted)
    assert (admission.num_running, admission.num_queued_requests) == (1, 1)


def test_running_requests_have_their_own_limit() -> None:
    admission = Admission(AdmissionLimits(max_running=2))
    admit(admission, "a")
    admission.started(RequestId("a"))
    admit(admission, "b")
    rejected = admit(admission, "c")
    assert isinstance(rejected, Rejected)
    assert rejected.limit == "max_running"
    admission.done(RequestId("a"))
    assert isinstance(admit(admission, "c"), Admitted)


def test_tokens_are_bounded_but_a_large_prompt_is_not_refused_for_ever() -> None:
    admission = Admission(AdmissionLimits(max_queued_tokens=100))
    assert isinstance(admit(admission, "large", 500), Admitted)
    rejected = admit(admission, "small", 1)
    assert isinstance(rejected, Rejected)
    assert rejected.limit == "max_queued_tokens"
    admission.done(RequestId("large"))
    assert isinstance(admit(admission, "a", 60), Admitted)
    assert isinstance(admit(admission, "b", 40), Admitted)
    assert isinstance(admit(admission, "c", 1), Rejected)


def test_retry_after_is_the_estimate_within_bounds() -> None:
    admission = Admission(AdmissionLimits(max_queued_requests=0))
    for est_ttft_s, retry_after_s in ((0.0, 1.0), (7.5, 7.5), (1e6, 60.0)):
        rejected = admit(admission, "a", est_ttft_s=est_ttft_s)
        assert isinstance(rejected, Rejected)
        assert rejected.retry_after_s == retry_after_s


def test_the_reason_is_one_per_limit() -> None:
    """Red when a reason carries a varying number: it labels a metric."""
    admission = Admission(AdmissionLimits(max_queued_tokens=10))
    admit(admission, "a", 10)
    rejections = [admit(admission, f"b{i}", i) for i in range(1, 5)]
    assert len({r.reason for r in rejections if isinstance(r, Rejected)}) == 1


def test_no_limits_admit_everything() -> None:
    admission = Admission(AdmissionLimits())
    assert all(isinstance(admit(admission, str(i), 10**6), Admitted) for i in range(1000))


def test_the_longest_wait_is_that_of_the_first_to_come() -> None:
    admission = Admission(AdmissionLimits())
    assert admission.oldest_wait_s(S) == 0.0
    for i in range(3):
        admission.try_admit(RequestId(str(i)), 1, i * S, 0.0)
    admission.started(RequestId("0"))
    assert admission.oldest_wait_s(5 * S) == 4.0


class AdmissionModel(RuleBasedStateMachine):
    """Against a plain model of who waits and who runs. Red when a place is lost or given back twice."""

    def __init__(self) -> None:
        super().__init__()
        self.admission = Admission(AdmissionLimits(max_queued_requests=3, max_queued_tokens=20, max_running=5))
        self.waiting: dict[str, int] = {}
        self.running: set[str] = set()

    names = st.sampled_from("abcdefgh")

    @rule(name=names, num_tokens=st.integers(1, 30))
    def come(self, name: str, num_tokens: int) -> None:
        if name in self.waiting or name in self.running:
            return
        fits = (
            len(self.waiting) + len(self.running) < 5
            and len(self.waiting) < 3
            and (not self.waiting or sum(self.waiting.values()) + num_tokens <= 20)
        )
        verdict = admit(self.admission, name, num_tokens)
        assert isinstance(verdict, Admitted) == fits
        if fits:
            self.waiting[name] = num_tokens

    @rule(name=names)
    def start(self, name: str) -> None:
        self.admission.started(RequestId(name))
        if self.waiting.pop(name, None) is not None:
            self.running.add(name)

    @rule(name=names)
    def leave(self, name: str) -> None:
        self.admission.done(RequestId(name))
        self.waiting.pop(name, None)
        self.running.discard(name)

    @invariant()
    def counts_agree(self) -> None:
        assert self.admission.num_queued_requests == len(self.waiting)
        assert self.admission.num_queued_tokens == sum(self.waiting.values())
        assert self.admission.num_running == len(self.running)


TestAdmissionModel = AdmissionModel.TestCase
