"""What headers and body say about class, priority and deadlines, and what refusals say back."""

from __future__ import annotations

import pytest

from relevo.core.errors import DeadlineExceeded, InvalidRequest, Overloaded
from relevo.core.request import ServiceTerms
from relevo.gateway.generation.terms import MAX_PRIORITY, priority_of, service_terms
from relevo.gateway.http.errors import DROPPED_HEADERS, error_headers, status_of


def test_nothing_said_means_no_limits() -> None:
    assert service_terms({}, None, "") == ServiceTerms()
    assert priority_of({}, 7, 0) == 7


def test_headers_are_read_in_their_units() -> None:
    headers = {"x-request-timeout": "2.5", "x-llm-d-slo-ttft-ms": "300", "x-slo-tpot-ms": "40"}
    assert service_terms(headers, None, "t") == ServiceTerms(tenant="t", timeout_s=2.5, ttft_s=0.3, tpot_s=0.04)


@pytest.mark.parametrize(
    ("header", "tier", "is_batch"),
    [
        (None, "batch", True),
        (None, "flex", True),
        (None, "auto", False),
        ("batch", None, True),
        ("interactive", "batch", False),
    ],
)
def test_the_class_is_the_headers_and_else_the_bodys(header: str | None, tier: str | None, is_batch: bool) -> None:
    headers = {} if header is None else {"x-relevo-class": header}
    assert service_terms(headers, tier, "").is_batch is is_batch


def test_a_fairness_id_stands_for_a_tenant_only_without_keys() -> None:
    headers = {"x-gateway-inference-fairness-id": "team" + "x" * 1000}
    assert len(service_terms(headers, None, "").tenant) == 128
    assert service_terms(headers, None, "key").tenant == "key"


def test_a_priority_header_wins_over_the_body() -> None:
    assert priority_of({"x-vllm-priority": "-2"}, 5, -2) == -2
    assert priority_of({"x-vllm-priority": "-2", "x-relevo-priority": "1"}, 5, 0) == 1


@pytest.mark.parametrize("headers", [{}, {"x-relevo-priority": "-3"}, {"x-vllm-priority": "-3"}])
def test_a_priority_beyond_the_grant_is_refused_wherever_it_is_said(headers: dict[str, str]) -> None:
    """Red if a client could put itself before others without its operator's leave."""
    in_body = 0 if headers else -3
    with pytest.raises(InvalidRequest, match="is -3, and the best priority granted here is -2") as refused:
        priority_of(headers, in_body, -2)
    assert refused.value.param == "priority"
    assert priority_of(headers, in_body, -3) == -3
    with pytest.raises(InvalidRequest, match="must be between"):
        priority_of({}, 2**40, 0)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-request-timeout": "0"},
        {"x-request-timeout": "nan"},
        {"x-request-timeout": "1e300"},
        {"x-slo-ttft-ms": "1e308"},
        {"x-llm-d-slo-ttft-ms": "fast"},
        {"x-slo-tpot-ms": "-1"},
        {"x-relevo-class": "gold"},
        {"x-relevo-priority": "1.5"},
        {"x-vllm-priority": str(2**40)},
    ],
)
def test_what_cannot_be_read_is_named(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        service_terms(headers, None, "")
        priority_of(headers, 0, -MAX_PRIORITY)
    assert next(iter(headers)) in refused.value.message


def test_refusals_say_which_limit_and_when_to_come_back() -> None:
    headers = error_headers(Overloaded("full", retry_after_s=7.4, limit="max_ttft"))
    assert {headers[name] for name in DROPPED_HEADERS} == {"max_ttft"}
    assert (headers["Retry-After"], headers["retry-after-ms"]) == ("8", "7400")
    late = DeadlineExceeded("over", limit="client_timeout")
    assert status_of(late) == 504
    headers = error_headers(late)
    assert {headers[name] for name in DROPPED_HEADERS} == {"client_timeout"}
    assert headers["x-should-retry"] == "false" and "Retry-After" not in headers


def test_the_longest_times_are_still_nanoseconds_of_64_bits() -> None:
    """Red if a bound were in the header's unit and not in seconds."""
    terms = service_terms({"x-request-timeout": "1e9", "x-slo-ttft-ms": "1e12"}, None, "")
    assert (terms.timeout_s, terms.ttft_s) == (1e9, 1e9)
    assert round(1e9 * 1e9) < 2**63
