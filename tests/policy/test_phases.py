"""Traffic in phases: rates and lengths that were asked for, sessions that hang together, the same for a seed."""

from __future__ import annotations

import pytest

from relevo.workload.lengths import CdfLengths
from relevo.workload.phases import AGENTS, BURST, CHAT, FIVE, INPUT_HEAVY, OUTPUT_HEAVY, phases_workload, spans


def test_phases_follow_each_other_with_their_own_rates_and_lengths() -> None:
    """Red when a phase runs into the next one, or a kind is not what its name says."""
    phases = (INPUT_HEAVY.at(2.0, 200.0), OUTPUT_HEAVY.at(1.0, 200.0))
    requests = phases_workload(phases, 0).requests
    assert spans(phases) == {"0-input-heavy": (0.0, 200.0), "1-output-heavy": (200.0, 400.0)}
    parts = [[each for each in requests if each.client == name] for name in spans(phases)]
    assert 330 < len(parts[0]) < 470 and 150 < len(parts[1]) < 250
    assert max(each.arrived_at_s or 0.0 for each in parts[0]) < 200.0 <= min(e.arrived_at_s or 0.0 for e in parts[1])
    prompts = [sum(each.num_prompt_tokens for each in part) / len(part) for part in parts]
    answers = [sum(each.num_output_tokens for each in part) / len(part) for part in parts]
    assert prompts[0] > 8 * prompts[1] and answers[1] > 8 * answers[0]


def test_turns_go_on_from_their_own_session_and_share_its_beginning() -> None:
    """Red when rows are mixed up, so that a turn waits for another session's answer."""
    requests = phases_workload((CHAT.at(1.0, 60.0), AGENTS.at(0.5, 60.0)), 3).requests
    assert [each.row for each in requests] == list(range(len(requests)))
    turns = [each for each in requests if each.parent is not None]
    assert len(turns) > 100
    for turn in turns:
        before = requests[turn.parent or 0]
        assert (before.session_id, before.turn) == (turn.session_id, turn.turn - 1)
        shared = len(before.hash_ids)
        assert list(turn.hash_ids[: shared - 1]) == list(before.hash_ids[: shared - 1])
    ids = [{i for each in requests if each.client == name for i in each.hash_ids} for name in ("0-chat", "1-agents")]
    assert ids[0] and ids[1] and ids[0].isdisjoint(ids[1])
    assert all((each.arrived_at_s is None) == (each.parent is not None) for each in requests)


def test_a_burst_brings_ten_times_as_much_and_leaves_the_mean() -> None:
    phase = BURST.at(2.0)
    assert phase.rate_at(100.0) == pytest.approx(10 * phase.rate_at(10.0))
    assert sum(phase.rate_at(second + 0.5) for second in range(200)) / 200 == pytest.approx(2.0, rel=0.01)
    requests = phases_workload((phase,), 1).requests
    inside = sum(1 for each in requests if 90.0 <= (each.arrived_at_s or 0.0) % 200.0 < 110.0)
    assert 0.43 < inside / len(requests) < 0.63


def test_a_seed_gives_one_traffic_and_lengths_scale() -> None:
    phases = tuple(phase.at(1.0, 30.0) for phase in FIVE)
    assert phases_workload(phases, 5) == phases_workload(phases, 5) != phases_workload(phases, 6)
    small = phases_workload([phase.scaled(0.1) for phase in phases], 5).requests
    assert max(each.num_prompt_tokens for each in small) < 2500
    with pytest.raises(ValueError, match="cannot be scaled"):
        AGENTS.__class__(
            name="x", shape=AGENTS.shape.__class__(
                num_turns=CdfLengths([1], [1.0]), system_tokens=CdfLengths([1], [1.0]),
                turn_tokens=CdfLengths([1], [1.0]), output_tokens=CdfLengths([1], [1.0]),
            ),
        ).scaled(0.5)  # fmt: skip


def test_no_request_is_longer_than_a_model_takes() -> None:
    requests = phases_workload((INPUT_HEAVY.at(5.0, 60.0), AGENTS.at(1.0, 60.0)), 2, most_tokens=2048).requests
    assert max(each.num_prompt_tokens + each.num_output_tokens for each in requests) <= 2048
    assert all(len(each.hash_ids) * each.hash_block_size <= each.num_prompt_tokens for each in requests)
