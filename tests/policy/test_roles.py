"""What roles mean as numbers: names, cores, who decodes and who computes prompts, how long a prompt's chunk may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.core.errors import SettingsError
from relevo.core.events import UNKNOWN_COSTS, StepCosts
from relevo.core.ids import WorkerId
from relevo.core.role import DECODE, HYBRID, NAMED, PREFILL, STANDBY, UNIFIED, Role, parse_role
from relevo.policy.host.core_roles import cores_by_role
from relevo.policy.routing.worker_choice import decode_rank, prefill_rank
from relevo.policy.worker.chunking import tokens_within

ROLES = st.one_of(
    st.sampled_from(list(NAMED.values())),
    st.builds(Role, st.integers(1, 100), st.integers(1, 100), st.just(value=True)),
)


@given(ROLES)
def test_a_role_is_read_as_it_is_written(role: Role) -> None:
    """Red when a name or shares mean something else on the way back."""
    assert parse_role(str(role)) == role


@pytest.mark.parametrize("text", ["", "decoder", "1", "1:", ":1", "-1:1", "101:1", "1:2:3", "1.5:1", "１:1"])
def test_what_is_no_role_is_refused_with_those_that_are(text: str) -> None:
    with pytest.raises(SettingsError, match=r"role '?" + ("" if text == "101:1" else ".*unified")):
        parse_role(text)


def test_one_share_alone_is_a_role_with_a_name() -> None:
    assert (parse_role("3:0"), parse_role("0:7"), parse_role("0:0")) == (PREFILL, DECODE, STANDBY)


def test_who_is_asked_first() -> None:
    """Red when a worker on standby is preferred to one at work, or a hybrid one computes no prompts for others."""
    by_decode = sorted(NAMED, key=lambda name: decode_rank(NAMED[name]))
    assert set(by_decode[:3]) == {"decode", "unified", "hybrid"} and by_decode[3:] == ["prefill", "standby"]
    by_prefill = sorted(NAMED, key=lambda name: prefill_rank(NAMED[name]))
    assert set(by_prefill[:2]) == {"prefill", "hybrid"} and by_prefill[2:] == ["unified", "decode", "standby"]


@given(st.lists(st.tuples(st.integers(1, 4), ROLES), min_size=1, max_size=6))
def test_those_at_work_have_all_cores_and_none_twice(workers: list[tuple[int, Role]]) -> None:
    """Red when a core is idle, computed on by two, or a worker is left without any."""
    started_on, roles, first = {}, {}, 0
    for place, (num_cores, role) in enumerate(workers):
        name = WorkerId(f"w{place}")
        started_on[name], roles[name] = tuple(range(first, first + num_cores)), role
        first += num_cores
    assigned = cores_by_role(started_on, roles)
    at_work = [name for name in roles if not roles[name].is_standby]
    if not at_work:
        assert assigned == {}
        return
    assert sorted(core for name in at_work for core in assigned[name]) == list(range(first))
    assert all(assigned.values())
    most, least = max(len(assigned[name]) for name in at_work), min(len(assigned[name]) for name in at_work)
    num_takers = sum(roles[name].computes_prompts for name in at_work) or len(at_work)
    assert most - least <= 1 + first % len(at_work) // num_takers


def test_prompts_get_the_core_that_is_left() -> None:
    cores = {WorkerId("d"): (0,), WorkerId("p"): (1, 2)}
    assert cores_by_role(cores, {WorkerId("d"): DECODE, WorkerId("p"): PREFILL}) == {"d": (0,), "p": (1, 2)}
    assert cores_by_role(cores, {WorkerId("d"): UNIFIED, WorkerId("p"): STANDBY}) == {"d": (0, 1, 2), "p": (1,)}


def test_cores_that_are_shared_or_unknown_stay_as_they_are() -> None:
    roles = {WorkerId("d"): HYBRID, WorkerId("p"): HYBRID}
    assert cores_by_role({WorkerId("d"): (0,), WorkerId("p"): (0,)}, roles) == {}
    assert cores_by_role({WorkerId("d"): (0,), WorkerId("p"): ()}, roles) == {}


@given(st.integers(1, 64), st.integers(0, 10**6), st.floats(0.001, 1.0))
def test_a_step_with_a_chunk_stays_below_the_target_or_has_one_block(
    num_decodes: int, num_kv_tokens: int, target_s: float
) -> None:
    """Red when a chunk makes a step longer than the target although a shorter one would do."""
    costs = StepCosts(base_s=0.004, per_token_s=0.0005, per_kv_token_s=1e-7)
    chunk = tokens_within(costs, target_s, num_decodes, num_kv_tokens, 16)
    assert chunk >= 16 and chunk & (chunk - 1) == 0
    assert chunk == 16 or costs.step_s(num_decodes + chunk, num_kv_tokens) <= target_s
    assert costs.step_s(num_decodes + 2 * chunk, num_kv_tokens) > target_s


def test_without_measured_costs_a_chunk_is_a_block() -> None:
    assert tokens_within(UNKNOWN_COSTS, 0.05, 4, 100, 16) == 16
