"""Kinds of traffic in open loop: rates, sessions and content, the same for every server that is asked."""

from __future__ import annotations

from itertools import pairwise

import pytest

from relevo.workload.open_loop import Scale, open_loop
from relevo.workload.phases import AGENTS, BURST, CHAT, FIVE, INPUT_HEAVY, OUTPUT_HEAVY, Phase


def ids(kind: Phase) -> str:
    return kind.name


@pytest.mark.parametrize("kind", FIVE, ids=ids)
def test_the_same_arguments_give_the_same_requests(kind: Phase) -> None:
    """Red when an arm of a comparison meets other arrivals than the next one."""
    first, again = (open_loop(kind, 2.0, 30.0, seed=3) for _ in range(2))
    assert first == again
    assert [one.num_prompt_tokens for one in first] != [one.num_prompt_tokens for one in open_loop(kind, 2.0, 30.0, 4)]


@pytest.mark.parametrize("kind", FIVE, ids=ids)
def test_requests_come_at_the_rate_that_is_asked_for(kind: Phase) -> None:
    """Red when the rate is that of sessions, or needs a while to be there."""
    made = open_loop(kind, 5.0, 400.0, seed=1)
    assert len(made) == pytest.approx(2000, rel=0.1)
    times = [one.arrived_at_s or 0.0 for one in made]
    assert times == sorted(times) and times[0] >= 0 and times[-1] < 400.0
    if kind is not BURST:
        assert sum(at < 100 for at in times) == pytest.approx(500, rel=0.2)


def test_a_phase_has_its_bursts_however_short_it_is() -> None:
    """Two, each a tenth of half of the time, at ten times the rate of the rest."""
    times = [one.arrived_at_s or 0.0 for one in open_loop(BURST, 10.0, 100.0, seed=1)]
    inside = sum(22.5 <= at < 27.5 or 72.5 <= at < 77.5 for at in times)
    assert inside / 10 == pytest.approx(10 * (len(times) - inside) / 90, rel=0.25)


@pytest.mark.parametrize("kind", [AGENTS, CHAT], ids=ids)
def test_turns_of_a_session_repeat_what_was_said(kind: Phase) -> None:
    """Red when a turn shares less with the one before than its whole blocks, or with a stranger more than the system's
    prompt."""
    made = open_loop(kind, 4.0, 120.0, seed=0, block_size=16)
    sessions: dict[str, list[int]] = {}
    for row, one in enumerate(made):
        sessions.setdefault(one.session_id or "", []).append(row)
    several = [rows for rows in sessions.values() if len(rows) > 1]
    assert len(several) > 5
    for rows in several:
        for earlier, later in pairwise(rows):
            before, after = made[earlier], made[later]
            assert list(after.hash_ids[: len(before.hash_ids)]) == list(before.hash_ids)
            assert after.turn == before.turn + 1
            assert after.num_prompt_tokens > before.num_prompt_tokens + before.num_output_tokens
    first, other = several[0][0], several[1][0]
    shared = set(made[first].hash_ids) & set(made[other].hash_ids)
    assert len(shared) <= kind.shape.system_tokens.draw(None) // 16  # type: ignore[arg-type]  # a fixed length


@pytest.mark.parametrize("kind", [INPUT_HEAVY, OUTPUT_HEAVY, BURST], ids=ids)
def test_single_requests_share_nothing(kind: Phase) -> None:
    made = open_loop(kind, 2.0, 60.0, seed=0)
    seen = [hash_id for one in made for hash_id in one.hash_ids]
    assert len(seen) == len(set(seen))
    assert {one.turn for one in made} == {0}


def test_another_seed_says_something_else_behind_the_same_system_prompts() -> None:
    """Red when a load finds the sessions of an earlier one in the cache, or has to compute system prompts anew."""
    first, other = ({i for one in open_loop(AGENTS, 3.0, 60.0, seed) for i in one.hash_ids} for seed in (0, 1))
    shape = AGENTS.shape
    assert len(first & other) == shape.num_groups * (shape.system_tokens.draw(None) // 16)  # type: ignore[arg-type]
    assert len(first - other) > 1000


def test_sessions_begin_with_their_first_turn() -> None:
    """Red when a phase begins with long prompts that were never sent before: a burst that no rate asked for."""
    made = open_loop(AGENTS, 4.0, 60.0, 0, num_sessions=5)
    assert [one.turn for one in made[:6]] == [0, 0, 0, 0, 0, 1]
    assert len({one.session_id for one in made[:5]}) == 5


def test_no_two_kinds_have_content_in_common() -> None:
    """Red when a phase finds the cache warm with the prompts of another one."""
    of_kind = [{i for one in open_loop(kind, 3.0, 60.0, seed=0) for i in one.hash_ids} for kind in FIVE]
    assert sum(len(found) for found in of_kind) == len(set().union(*of_kind))


def test_prompts_and_answers_scale_apart() -> None:
    large, small = (open_loop(INPUT_HEAVY, 5.0, 100.0, 0, scale=Scale(p, a)) for p, a in ((1.0, 1.0), (0.1, 0.5)))
    prompts = [sum(one.num_prompt_tokens for one in made) for made in (small, large)]
    answers = [sum(one.num_output_tokens for one in made) for made in (small, large)]
    assert prompts[0] / prompts[1] == pytest.approx(0.1, rel=0.15)
    assert answers[0] / answers[1] == pytest.approx(0.5, rel=0.15)
    assert all(one.num_prompt_tokens >= 1 for one in open_loop(INPUT_HEAVY, 5.0, 10.0, 0, scale=Scale(1e-9, 1e-9)))


@pytest.mark.parametrize(("rate", "seconds"), [(0.0, 1.0), (1.0, 0.0), (float("nan"), 1.0), (1.0, float("nan"))])
def test_a_rate_or_time_of_nothing_is_refused(rate: float, seconds: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        open_loop(CHAT, rate, seconds, 0)
