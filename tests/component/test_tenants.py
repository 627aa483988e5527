"""Isolation between tenants: beside whatever a hostile tenant sends, another one has its fair share, the same answers,
and shows nothing of itself.

The measure is an honest neighbour that asks for all it may have: no parameter, header, size or timing may take more
from the other tenant than that. Virtual time, so each run is the same.
"""

from __future__ import annotations

from functools import cache

import pytest
from hostile_patterns import PATTERNS, Pattern
from tenant_world import COSTS, LIMITS, Run, asked_when_full, good_prompt, probes, refusals, run_beside, slots_in_use

ROLES = {"unified": ("unified",), "1p1d": ("prefill", "decode")}
HONEST = Pattern(name="an honest neighbour", body={"max_tokens": 48}, prompt_chars=48, num_clients=24)
FACTOR = 1.3  # of what an honest neighbour costs
STEP_S = COSTS.step_s(16 + 8, 0)  # the longest: one such step more is the grain of every time here


@cache
def alone(topology: str) -> Run:
    return run_beside(None, ROLES[topology])


@cache
def beside_honest(topology: str) -> Run:
    return run_beside(HONEST, ROLES[topology])


def p99(values: list[float]) -> float:
    return values[min(len(values) - 1, int(len(values) * 0.99))]


CASES = [("unified", pattern) for pattern in PATTERNS] + [("1p1d", pattern) for pattern in PATTERNS[::6]]


@pytest.mark.parametrize(("topology", "pattern"), CASES, ids=lambda value: getattr(value, "name", value))
def test_a_hostile_tenant_takes_no_more_than_its_share_and_learns_nothing(topology: str, pattern: Pattern) -> None:
    run, calm, honest = run_beside(pattern, ROLES[topology]), alone(topology), beside_honest(topology)
    assert [answer.status for answer in run.good] == [200] * len(run.good), "a share of a server is being served"
    assert run.texts() == calm.texts(), "answers are those of a server without neighbours"
    cached = [(a.num_cached_tokens(), b.num_cached_tokens()) for a, b in zip(run.good, calm.good, strict=True)]
    assert all(num <= num_alone for num, num_alone in cached), "never more than it has cached itself"
    assert p99(run.ttft_s()) <= FACTOR * p99(honest.ttft_s()) + STEP_S
    assert p99(run.gaps_s()) <= FACTOR * p99(honest.gaps_s()) + STEP_S
    assert len(run.hostile) > 0
    learns_nothing(pattern, run)


def learns_nothing(pattern: Pattern, run: Run) -> None:
    """No count, header or error of the hostile tenant names the other, or depends on what it has cached."""
    for answer in run.hostile:
        shown = answer.text + str(answer.headers)
        assert "good" not in shown
        if not pattern.is_same_prompt:
            assert good_prompt(0)[:20] not in shown


@pytest.mark.parametrize("salt", [None, "good"])
@pytest.mark.parametrize("topology", ROLES)
def test_the_same_prompts_show_nothing_of_who_asked_them_before(topology: str, salt: str | None) -> None:
    """Red when blocks are shared over tenants: counts of cached tokens and times tell what another one has asked."""
    body = {} if salt is None else {"cache_salt": salt}
    assert probes(ROLES[topology], body, after_good=True) == probes(ROLES[topology], body, after_good=False)


def test_there_are_many_patterns_and_each_has_a_name_of_its_own() -> None:
    assert len({pattern.name for pattern in PATTERNS}) == len(PATTERNS) >= 40


@pytest.mark.parametrize(("topology", "num_idle"), [("unified", 0.07), ("1p1d", 0.05)])
def test_slots_are_hardly_idle_while_requests_wait(topology: str, num_idle: float) -> None:
    """Red when a slot waits for a gateway to send, or for room to be asked for, each time a request has ended.

    A new prompt takes part of a step of a unified worker before its slot decodes; nothing else keeps a slot idle.
    """
    num_slot_steps, num_decoding = slots_in_use(ROLES[topology], num_requests=48, num_output_tokens=48)
    assert num_decoding >= (1 - num_idle) * num_slot_steps


@pytest.mark.parametrize("topology", ROLES)
@pytest.mark.parametrize(("num_output_tokens", "is_refused"), [(6000, True), (200, False)])
def test_what_must_wait_too_long_for_its_tenants_own_streams_is_refused_at_its_arrival(
    topology: str, num_output_tokens: int, is_refused: bool
) -> None:
    """Red when the time that full slots must last is not known before a first stream has ended."""
    after = asked_when_full(ROLES[topology], num_output_tokens)
    assert after.good.status == 200, "another tenant's request has a share"
    assert after.more.status == (429 if is_refused else 200)
    if is_refused:
        assert after.refused_after_s == 0.0
        assert int(after.more.headers["retry-after"]) >= (LIMITS.max_ttft_s or 0)


def test_refusals_do_not_depend_on_who_else_is_there_and_metrics_name_nobody() -> None:
    """Red when a text or header counts other tenants' requests, or a label carries a key, a tenant or a prompt."""
    (beside, shown), (alone_told, _) = refusals(beside_good=True), refusals(beside_good=False)
    assert all(status >= 400 for status, _, _ in beside)
    assert beside == alone_told
    assert "vllm:request_success_total" in shown
    assert not [word for word in ("good", "hostile", good_prompt(0)[:8], "go on") if word in shown]
