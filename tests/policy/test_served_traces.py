"""Relevo's own record as a trace: lines that come back as they were, turns that are known by their blocks, one sentence
for a mistake."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.core.errors import SettingsError
from relevo.workload.traces.files import ReadOptions, read_trace_file
from relevo.workload.traces.formats import TraceFormat, recognise
from relevo.workload.traces.rows import Tally
from relevo.workload.traces.served import Replay, ServedRequest, ServingNote, served_row

REQUEST = ServedRequest(
    at_s=1_700_000_000.25,
    model="m",
    tenant="0123456789abcdef",
    num_prompt_tokens=40,
    num_cached_tokens=16,
    num_output_tokens=25,
    ttft_s=0.5,
    itl_p90_s=0.01,
    e2e_s=0.75,
    front_s=0.001,
    block_size=16,
    chain=array("q", [7, 8, 9, 2**48 - 1]),
)
NOTE = ServingNote(at_s=1_700_000_000.0, model="m", facts={"workers": []})


def lines(*rows: ServedRequest | ServingNote) -> str:
    return "".join(json.dumps(row.to_row()) + "\n" for row in rows)


@given(
    chain=st.lists(st.integers(0, 2**48 - 1), max_size=20),
    ttft_s=st.none() | st.floats(0.0, 1e6).map(lambda value: round(value, 6)),
    num_output=st.integers(0, 400),
)
def test_a_line_comes_back_as_it_was(chain: list[int], ttft_s: float | None, num_output: int) -> None:
    asked = replace(
        REQUEST, num_prompt_tokens=320, num_output_tokens=num_output, ttft_s=ttft_s, chain=array("q", chain)
    )
    found = served_row(json.loads(json.dumps(asked.to_row())))
    assert found == (asked if chain else replace(asked, block_size=0))
    assert served_row(NOTE.to_row()) == NOTE


def test_a_file_is_known_by_its_first_line_and_read_in_the_order_of_coming(tmp_path: Path) -> None:
    """Lines are in the order of the ends. Red when a note is taken for a request, or times for seconds since 1970."""
    path = tmp_path / "traffic.jsonl"
    late = replace(REQUEST, at_s=REQUEST.at_s + 2.0, chain=(), num_output_tokens=0, num_continuations=2)
    path.write_text(lines(NOTE, late, REQUEST))
    assert recognise(lines(NOTE).splitlines()[0]) is recognise(lines(REQUEST)) is TraceFormat.RELEVO
    workload = read_trace_file(path)
    assert [request.arrived_at_s for request in workload.requests] == [0.0, 2.0]
    first, second = workload.requests
    assert (first.num_prompt_tokens, first.num_output_tokens, list(first.hash_ids)) == (40, 25, [7, 8, 9, 2**48 - 1])
    assert first.client == "0123456789abcdef" and second.num_output_tokens == 1
    assert len(workload.notes) == 2, "an empty answer and two continuations are said"


def test_two_models_need_a_choice(tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    path.write_text(lines(REQUEST, replace(REQUEST, model="other")))
    with pytest.raises(SettingsError, match=r"traffic.jsonl:2: a request for other after some for m; .*--trace-part"):
        read_trace_file(path)
    assert len(read_trace_file(path, ReadOptions(part="other")).requests) == 1


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"chain": "AAAA"}, "chain is no base64 of blocks"),
        ({"chain": "no base64!"}, "chain is no base64 of blocks"),
        ({"chain": REQUEST.to_row()["chain"] * 3}, "12 blocks of 16 for 65 tokens"),
        ({"prompt": 0}, "prompt is 0"),
        ({"at_s": "yesterday"}, "at_s is yesterday"),
        ({"kind": "else"}, "kind is else"),
        ({"ttft_s": -1}, "ttft_s is -1"),
    ],
)
def test_a_line_that_cannot_be_read_says_what_was_expected(
    tmp_path: Path, changed: dict[str, object], said: str
) -> None:
    path = tmp_path / "traffic.jsonl"
    path.write_text(lines(REQUEST) + json.dumps(REQUEST.to_row() | changed) + "\n")
    with pytest.raises(SettingsError, match=f"traffic.jsonl:2: {said}"):
        read_trace_file(path)


def test_a_turn_is_known_by_the_blocks_of_the_answer_before_it() -> None:
    """Red when two requests that share a system prompt alone are taken for a session, or a turn is not."""
    replay = Replay(Tally())
    system = replace(REQUEST, num_prompt_tokens=40, num_output_tokens=3, chain=array("q", [1, 2]))  # ends in its prompt
    first = replace(REQUEST, num_prompt_tokens=40, num_output_tokens=25, chain=array("q", [1, 2, 3, 4]))
    other = replace(REQUEST, num_prompt_tokens=50, num_output_tokens=20, chain=array("q", [1, 2, 5, 6]))
    turn = replace(REQUEST, num_prompt_tokens=90, num_output_tokens=9, chain=array("q", [1, 2, 3, 4, 7, 8]))
    found = [replay.request(each) for each in (system, first, other, turn)]
    assert [request.parent for request in found] == [None, None, None, 1]
    assert [request.turn for request in found] == [0, 0, 0, 1] and found[3].session_id == found[1].session_id
    assert not found[3].is_closed_loop, "it comes when it came, unless --loop closed"


def test_without_chains_measured_hits_are_a_beginning_that_a_tenant_shares() -> None:
    """Red when tenants share what was cached, or it is a hit without having been there."""
    tally = Tally()
    replay = Replay(tally, warm=True)
    plain = replace(REQUEST, chain=(), block_size=0, num_prompt_tokens=100, num_cached_tokens=64)
    a, b, c = (
        replay.request(each) for each in (plain, replace(plain, num_cached_tokens=32), replace(plain, tenant="t"))
    )
    assert len(a.hash_ids) == 4 and list(b.hash_ids) == list(a.hash_ids)[:2] and a.hash_block_size == 16
    assert not set(a.hash_ids) & set(c.hash_ids) and len(tally) == 1
    cold = Replay(Tally()).request(plain)
    assert not cold.hash_ids and cold.hash_block_size == 0
