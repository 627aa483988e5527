"""Sessions as the bench replays them: prompts that repeat what was said, recorded or made up."""

from __future__ import annotations

import json
from itertools import islice, pairwise
from random import Random

import pytest

from relevo.workload.generated import generate
from relevo.workload.lengths import FixedLength, UniformLengths
from relevo.workload.sessions import SessionShape, make_sessions, read_sessions, to_token_ids

SHAPE = SessionShape(
    num_turns=UniformLengths(2, 4),
    system_tokens=FixedLength(50),
    turn_tokens=FixedLength(10),
    output_tokens=FixedLength(5),
    num_groups=2,
    mean_gap_s=1.0,
)


def line(session_id: str, at_s: float, text: str, output: str = "ok") -> str:
    return json.dumps({"session_id": session_id, "timestamp": at_s * 1e6, "input": text, "output": output})


def test_made_up_turns_begin_with_the_turn_before_and_its_answer() -> None:
    sessions = make_sessions(6, SHAPE, Random(1))
    for session in sessions:
        assert len(session.turns[0].prompt) == 60
        assert session.turns[0].gap_s == 0.0
        for earlier, later in pairwise(session.turns):
            assert later.prompt[: len(earlier.prompt)] == earlier.prompt
            assert len(later.prompt) == len(earlier.prompt) + 15
    assert sessions[0].turns[0].prompt[:50] == sessions[2].turns[0].prompt[:50]
    assert sessions[0].turns[0].prompt[:50] != sessions[1].turns[0].prompt[:50]
    assert sessions == make_sessions(6, SHAPE, Random(1))


def test_recorded_sessions_keep_their_prefixes_and_gaps() -> None:
    rows = [line("a", 10.0, "x" * 40), line("b", 10.5, "y" * 8), line("a", 12.5, "x" * 40 + "z" * 9, "o" * 12), ""]
    a, b = read_sessions(rows)
    assert [session.session_id for session in (a, b)] == ["a", "b"]
    first, second = a.turns
    assert (len(first.prompt), len(second.prompt)) == (10, 13)
    assert second.prompt[:10] == first.prompt
    assert (first.gap_s, second.gap_s, second.num_output_tokens) == (0.0, 2.5, 3)
    assert a.num_input_tokens == 23
    ids = to_token_ids(second.prompt, [7, 8, 9])
    assert set(ids) <= {7, 8, 9}
    assert ids[:10] == to_token_ids(first.prompt, [7, 8, 9])


def test_long_turns_can_be_left_out() -> None:
    rows = [line("a", 1.0, "x" * 40), line("a", 2.0, "x" * 400)]
    assert [len(session.turns) for session in read_sessions(rows, 10)] == [1]
    with pytest.raises(ValueError, match="no turn"):
        read_sessions(rows, 9)


@pytest.mark.parametrize("row", ["{", '{"session_id": "a"}', "[]"])
def test_a_bad_line_is_named(row: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        read_sessions([line("a", 1.0, "xxxx"), row])


def test_endless_sessions_repeat_what_was_said_by_hash_id() -> None:
    """Red when a block that is not full yet gets an id, two sessions share more than their system prompt, or a turn
    does not wait for the one before it."""
    requests = list(islice(generate(SHAPE, Random(1), block_size=16), 60))
    assert requests == list(islice(generate(SHAPE, Random(1), block_size=16), 60))
    by_row = {request.row: request for request in requests}
    for request in requests:
        assert len(request.hash_ids) == request.num_prompt_tokens // 16
        if request.turn:
            before = by_row[request.parent] if request.parent is not None else None
            assert before is not None and before.session_id == request.session_id
            assert request.num_prompt_tokens == before.num_prompt_tokens + 15
            assert list(request.hash_ids[: len(before.hash_ids)]) == list(before.hash_ids)
            assert request.gap_s is not None and request.gap_s > 0
        else:
            assert (request.num_prompt_tokens, request.parent, request.gap_s) == (60, None, None)
    first, second, third = [request for request in requests if not request.turn][:3]
    assert list(first.hash_ids[:3]) == list(third.hash_ids[:3])  # 50 tokens that they share are three blocks
    assert not set(first.hash_ids) & set(second.hash_ids)
