"""The five kinds of traffic: rates, sessions and content, the same for whoever asks for the same."""

from __future__ import annotations

from itertools import pairwise

import pytest

from relevo.workload.traffic_kinds import AGENTS, BURST, CHAT, INPUT_HEAVY, KINDS, OUTPUT_HEAVY, Scale, TrafficKind

ALL = list(KINDS.values())


def ids(kind: TrafficKind) -> str:
    return kind.name


@pytest.mark.parametrize("kind", ALL, ids=ids)
def test_the_same_arguments_give_the_same_requests(kind: TrafficKind) -> None:
    """Red when an arm of a comparison meets other arrivals than the next one."""
    first, again = (kind.requests(2.0, 30.0, seed=3) for _ in range(2))
    assert first == again
    assert [one.num_prompt_tokens for one in first] != [one.num_prompt_tokens for one in kind.requests(2.0, 30.0, 4)]


@pytest.mark.parametrize("kind", ALL, ids=ids)
def test_the_mean_rate_is_as_asked(kind: TrafficKind) -> None:
    made = kind.requests(5.0, 400.0, seed=1)
    assert len(made) == pytest.approx(2000, rel=0.1)
    times = [one.arrived_at_s for one in made]
    assert times == sorted(times) and times[0] >= 0 and times[-1] < 400.0
    assert sum(part for part, _ in kind.profile) == pytest.approx(1.0)
    assert sum(part * multiple for part, multiple in kind.profile) == pytest.approx(1.0)


def test_bursts_come_at_five_times_the_rate_of_the_rest() -> None:
    times = [one.arrived_at_s or 0.0 for one in BURST.requests(10.0, 1000.0, seed=1)]
    inside = sum(200 <= at < 300 or 700 <= at < 800 for at in times)
    assert inside / 200 == pytest.approx(5 * (len(times) - inside) / 800, rel=0.15)


@pytest.mark.parametrize("kind", [AGENTS, CHAT], ids=ids)
def test_turns_of_a_session_repeat_what_was_said(kind: TrafficKind) -> None:
    """Red when a turn shares less with the one before than its whole blocks, or with a stranger more than the system's
    prompt."""
    made = kind.requests(4.0, 120.0, seed=0, block_size=16)
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
def test_single_requests_share_nothing(kind: TrafficKind) -> None:
    made = kind.requests(2.0, 60.0, seed=0)
    seen = [hash_id for one in made for hash_id in one.hash_ids]
    assert len(seen) == len(set(seen))
    assert {one.turn for one in made} == {0}


def test_no_two_kinds_have_content_in_common() -> None:
    """Red when a phase finds the cache warm with the prompts of another one."""
    of_kind = [{i for one in kind.requests(3.0, 60.0, seed=0) for i in one.hash_ids} for kind in ALL]
    assert sum(len(found) for found in of_kind) == len(set().union(*of_kind))


def test_prompts_and_answers_scale_apart() -> None:
    large, small = (INPUT_HEAVY.requests(5.0, 100.0, 0, scale=Scale(p, a)) for p, a in ((1.0, 1.0), (0.1, 0.5)))
    prompts = [sum(one.num_prompt_tokens for one in made) for made in (small, large)]
    answers = [sum(one.num_output_tokens for one in made) for made in (small, large)]
    assert prompts[0] / prompts[1] == pytest.approx(0.1, rel=0.1)
    assert answers[0] / answers[1] == pytest.approx(0.5, rel=0.1)
    assert all(one.num_prompt_tokens >= 1 for one in INPUT_HEAVY.requests(5.0, 10.0, 0, scale=Scale(1e-9, 1e-9)))


def test_a_rate_or_time_of_nothing_is_refused() -> None:
    for rate, duration_s in ((0.0, 1.0), (1.0, 0.0)):
        with pytest.raises(ValueError, match="above 0"):
            CHAT.requests(rate, duration_s, 0)
