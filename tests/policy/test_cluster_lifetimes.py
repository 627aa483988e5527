"""When certificates are renewed and connections replaced, and what a join token lets in. Red when a connection could
outlive its certificates, or a token let in what it was not made for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relevo.policy.cluster.lifetimes import Validity, reconnect_at_s
from relevo.policy.cluster.tokens import SKEW_TOLERANCE_S, TokenTerms, why_not

jitters = st.floats(0, 1, exclude_max=True)
lives = st.floats(10, 90 * 86_400)


@given(issued=st.floats(1e9, 3e9), life=lives, jitter=jitters)
def test_a_certificate_is_renewed_in_the_middle_of_its_life(issued: float, life: float, jitter: float) -> None:
    validity = Validity(issued, issued + life)
    assert 0.49 * life <= validity.renew_at_s(jitter) - issued <= 0.61 * life
    assert not validity.has_expired(validity.renew_at_s(jitter))
    assert validity.has_expired(validity.expires_at_s)


@given(life=lives, other_life=lives, age=st.floats(0, 0.999), other_age=st.floats(0, 0.999), jitter=jitters)
def test_a_connection_is_replaced_while_both_certificates_are_good_and_not_at_once(
    life: float, other_life: float, age: float, other_age: float, jitter: float
) -> None:
    now = 2e9
    own = Validity(now - life * age, now + life * (1 - age))
    peer = Validity(now - other_life * other_age, now + other_life * (1 - other_age))
    at = reconnect_at_s(own, peer, now, jitter)
    assert now < at < min(own.expires_at_s, peer.expires_at_s)


def test_fresh_certificates_are_renewed_before_connections_are_replaced() -> None:
    """So that the new connection begins with new ones, on both sides."""
    fresh = Validity(0, 100)
    latest_renewal = fresh.renew_at_s(0.999)
    earliest_replacement = min(reconnect_at_s(fresh, fresh, 0, jitter / 10) for jitter in range(10))
    assert latest_renewal + 5 < earliest_replacement


TERMS = TokenTerms(made_at_s=1000, expires_at_s=2000, role="node")
ASKED = {"name": "b", "role": "node", "key_digest": "k1", "now_s": 1500.0}


def refused(terms: TokenTerms, **changes: object) -> str | None:
    return why_not(terms, **(ASKED | changes))  # type: ignore[arg-type]


def test_a_token_is_good_until_it_expires_and_the_refusal_names_both_times() -> None:
    assert refused(TERMS) is None
    assert refused(TERMS, now_s=2000 + SKEW_TOLERANCE_S - 1) is None
    reason = refused(TERMS, now_s=2000 + SKEW_TOLERANCE_S)
    assert reason is not None
    assert "1970-01-01T00:33:20Z" in reason and "1970-01-01T00:34:20Z" in reason and "clock" in reason


def test_a_token_is_used_once_by_one_key_unless_it_says_otherwise() -> None:
    used = TERMS.used("k1", "e1")
    assert refused(used) is None, "the answer was lost, the same key asks again"
    assert "used already" in (refused(used, key_digest="k2") or "")
    reusable = TokenTerms(made_at_s=1000, expires_at_s=2000, role="node", is_reusable=True).used("k1", "e1")
    assert refused(reusable, key_digest="k2") is None
    assert reusable.enrolment_id == "", "each node has its own"


def test_a_token_is_for_its_role_and_name_alone() -> None:
    assert "--role head" in (refused(TERMS, role="head") or "")
    named = TokenTerms(made_at_s=1000, expires_at_s=2000, role="node", name="a")
    assert "--name a" in (refused(named) or "")
    assert refused(named, name="a") is None
