"""The cause of slowness by example, each beside its near miss: the same timeline, with that time not worth telling."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from told_timelines import (
    COSTS,
    DECODE,
    LOAD,
    OTHER,
    counters,
    facts,
    gap,
    later,
    leg,
    ns,
    ordinary,
    told,
    whole_leg,
)

from relevo.core.events import WorkerLoad
from relevo.core.handoff import Link
from relevo.core.outcome import COMPLETE, Cause, RequestEnd
from relevo.core.timeline import HitsLost, Preemption, Timeline
from relevo.policy.slowness.advice import advice_for
from relevo.policy.slowness.difference import diff
from relevo.policy.slowness.explain import explain
from relevo.policy.slowness.words import Explanation, PhaseName, SlowCause

ROOT = Path(__file__).parents[2]
GONE = RequestEnd(cause=Cause.CLIENT_GONE)
BUSY = WorkerLoad(
    num_running=12,
    num_waiting=4,
    num_waiting_prefill_tokens=12_000,
    num_free_blocks=2,
    num_reusable_blocks=1,
    num_total_blocks=640,
    costs=COSTS,
)


def expect(explanation: Explanation, cause: SlowCause, *said: str) -> None:
    assert explanation.cause is cause, explanation.sentence
    for text in said:
        assert text in explanation.sentence
    assert bool(explanation.advice) == (cause is not SlowCause.NOTHING)


# ---- before the first token ------------------------------------------------------------------------------------------


def test_the_line() -> None:
    slow = later(ordinary(num_ahead=41), 3.8, after_s=0.0025)
    expect(
        told(slow), SlowCause.LINE, "The first token took 4.02 s, of which 3.80 s in the gateway's line: 41 requests"
    )
    near = later(ordinary(num_ahead=41), 0.03, after_s=0.0025)
    assert told(near).cause is not SlowCause.LINE, "30 ms are not felt"


def test_room() -> None:
    slow = later(ordinary(), 2.0, after_s=0.0035)
    slow.legs[0].decode_load = BUSY
    expect(told(slow), SlowCause.ROOM, "2.00 s waiting for blocks on decode-0: 12 streams ran", "3 of 640 blocks free")
    near = ordinary()
    near.legs[0].decode_load = BUSY
    assert told(near).cause is not SlowCause.ROOM, "a full worker that let it in at once"


def test_a_slot_is_room_too() -> None:
    slow = later(ordinary(), 2.0, after_s=0.0035)
    slow.legs[0].decode_load = replace(BUSY, num_free_blocks=600)
    expect(told(slow), SlowCause.ROOM, "2.00 s waiting for a slot on decode-0: 12 streams ran")
    assert "--max-num-seqs" in told(slow).advice


def test_a_whole_request_that_waits_while_others_only_decode_waits_for_room() -> None:
    made = whole_leg(0.003, first_output_s=2.3, facts=facts(2.0, 0.2), decode_load=replace(BUSY, num_free_blocks=200))
    made.asked_counters, made.prompt_counters, made.prompt_costs = counters(10, 0, 10), counters(210, 450, 900), COSTS
    slow = later(ordinary(), 2.08, after_s=0.2)
    slow.legs = [made]
    expect(told(slow), SlowCause.ROOM, "2.00 s waiting for blocks on decode-0")
    made.prompt_counters = counters(210, 4000, 900)
    expect(told(slow), SlowCause.WORKER_QUEUE, "2.00 s queued at decode-0")


def test_a_handoff_in_shared_memory_is_no_link() -> None:
    slow = later(ordinary(), 2.0, after_s=0.2205)
    slow.first_written_at_ns, slow.legs[0].transferred_bytes = ns(0.2205), 4096
    expect(told(slow), SlowCause.GATEWAY, "until decode-0 could be told to go on")


def test_a_whole_request_that_waits_where_no_blocks_are_free_waits_for_room() -> None:
    made = whole_leg(0.003, first_output_s=2.3, facts=facts(2.0, 0.2), decode_load=BUSY)
    slow = later(ordinary(), 2.08, after_s=0.2)
    slow.legs = [made]
    expect(told(slow), SlowCause.ROOM, "2.00 s waiting for blocks on decode-0")
    made.decode_load = replace(BUSY, num_free_blocks=300)
    expect(
        told(slow), SlowCause.WORKER_QUEUE, "2.00 s queued at decode-0: 4 requests waited there, 12,000 prompt tokens"
    )


def test_no_worker() -> None:
    slow = later(ordinary(), 2.0, after_s=0.0025)
    slow.let_in_at_ns = ns(0.0026)
    expect(told(slow), SlowCause.NO_WORKER, "2.00 s until a worker was ready")


def test_the_workers_queue() -> None:
    slow = later(ordinary(), 1.9, after_s=0.1)
    slow.legs[0].facts = facts(1.9, 0.2)
    slow.legs[0].prefill_load = replace(BUSY, num_free_blocks=600)
    expect(
        told(slow), SlowCause.WORKER_QUEUE, "1.90 s queued at prefill-0: 4 requests", "12,000 prompt tokens were ahead"
    )


@pytest.mark.parametrize(
    ("lost", "cause", "said"),
    [
        (HitsLost.EVICTED, SlowCause.EVICTED_PREFIX, "were evicted"),
        (HitsLost.MOVED, SlowCause.MOVED_PREFIX, "another worker has them"),
        (HitsLost.WORKER_LOST, SlowCause.MOVED_PREFIX, "is gone"),
    ],
)
def test_a_prefix_that_was_cached_once(lost: HitsLost, cause: SlowCause, said: str) -> None:
    slow = later(ordinary(), 4.0, after_s=0.1)
    slow.legs[0].facts = facts(0.0, 4.2, prompt=8400)
    slow.legs[0].hits_lost, slow.legs[0].num_lost_hit_tokens = lost, 8000
    expect(told(slow, num_prompt_tokens=8400), cause, "4.00 s computing again 8,000 of 8,400 prompt tokens", said)
    slow.legs[0].num_lost_hit_tokens = 400
    expect(told(slow, num_prompt_tokens=8400), SlowCause.OWN_PROMPT, "8,400 tokens computed, 0 cached")


def test_a_prompt_beside_a_long_one() -> None:
    slow = later(ordinary(), 3.0, after_s=0.1)
    slow.legs[0].facts = facts(0.0, 3.2)
    slow.legs[0].asked_counters, slow.legs[0].prompt_counters = counters(5, 1000, 5), counters(40, 1000 + 6400, 6)
    expect(told(slow), SlowCause.LONG_NEIGHBOUR, "6,000 prompt tokens of others were computed beside it")
    slow.legs[0].prompt_counters = counters(40, 1000 + 450, 6)
    expect(told(slow), SlowCause.SLOW_STEPS, "its 400 tokens should not take prefill-0 so long")
    slow.legs[0].facts = facts(0.0, 3.2, prompt=6000)
    slow.legs[0].prompt_counters = counters(40, 1000 + 6000, 6)
    expect(told(slow, num_prompt_tokens=6000), SlowCause.OWN_PROMPT, "6,000 tokens computed, 0 cached")


def test_refused() -> None:
    full = RequestEnd.failed("overloaded", "full", 3.0, limit="max_queued_requests")
    at_once = Timeline(accepted_at_ns=ns(0), prepared_at_ns=ns(0.001), num_ahead=256, ended_at_ns=ns(0.0015))
    expect(told(at_once, full), SlowCause.REFUSED, "at the door (max_queued_requests); 256 requests waited")
    at_once.ended_at_ns = ns(300)
    expect(told(at_once, full), SlowCause.REFUSED, "after 300 s in the gateway's line (max_queued_requests)")
    expect(told(at_once, GONE), SlowCause.LINE, "It took 300 s until the client left, without a token")


# ---- after it --------------------------------------------------------------------------------------------------------


def test_a_slow_link() -> None:
    slow = later(ordinary(), 3.2, after_s=0.2205)
    slow.first_written_at_ns = ns(0.2205)
    made = slow.legs[0]
    made.link, made.transferred_bytes, made.transfer_s = Link.NETWORK, 240_000_000, 3.2
    expect(told(slow), SlowCause.SLOW_LINK, "240.0 MB of KV at 75.0 MB/s over the network, prefill-0 to decode-0")
    made.handed_over_at_ns = made.decode_started_at_ns = ns(0.2215)
    expect(told(slow), SlowCause.SLOW_STEPS, "until decode-0 took it up")  # the blocks were there at once


def test_a_handoff_to_a_worker_that_computes_a_long_prompt() -> None:
    slow = later(ordinary(), 2.0, after_s=0.2215)
    slow.legs[0].started_counters, slow.legs[0].first_counters = counters(9, 0, 9), counters(12, 4096, 20)
    expect(told(slow), SlowCause.LONG_NEIGHBOUR, "until decode-0 took it up: 4,096 prompt tokens of others")
    slow.legs[0].started_counters = None
    expect(told(slow), SlowCause.WORKER_QUEUE, "until decode-0 took it up")


def test_preemption() -> None:
    slow = later(ordinary(num_preemptions=3), 2.0, after_s=0.5)
    slow.preemptions = [Preemption(at_ns=ns(0.5), worker=DECODE, resumed_at_ns=ns(2.4))]
    expect(told(slow), SlowCause.PREEMPTION, "1.90 s preempted on decode-0 (3 times)")
    slow = ordinary(preemptions=[Preemption(at_ns=ns(0.5), worker=DECODE, resumed_at_ns=ns(0.53))])
    expect(told(slow), SlowCause.OWN_OUTPUT)


def test_a_continuation_that_was_preempted_beside_others_is_computed_again_in_their_steps() -> None:
    """Red when its own tokens are taken for a neighbour's."""
    slow = later(ordinary(num_preemptions=1), 0.3, after_s=0.5)
    slow.worst_gap = gap(0.5, 0.81, counters(1030, 0, 1030), counters(1031, 425, 1031))
    slow.preemptions = [Preemption(at_ns=ns(0.49), worker=DECODE, resumed_at_ns=ns(0.495))]
    explanation = explain(
        slow, num_prompt_tokens=400, num_cached_tokens=0, num_output_tokens=100, num_samples=4, end=COMPLETE
    )
    expect(explanation, SlowCause.PREEMPTION, "425 tokens of its own were computed again")
    slow.preemptions, slow.num_preemptions = [], 0
    explanation = explain(
        slow, num_prompt_tokens=400, num_cached_tokens=0, num_output_tokens=100, num_samples=4, end=COMPLETE
    )
    expect(explanation, SlowCause.LONG_NEIGHBOUR, "425 prompt tokens of others")


def test_a_worker_that_is_lost_while_it_decodes() -> None:
    slow = later(ordinary(), 2.0, after_s=0.6)
    slow.legs[0].last_output_at_ns, slow.legs[0].ended_at_ns = ns(0.6), ns(0.7)
    slow.legs[0].failure = "decode-0: the connection ended"
    slow.legs.append(whole_leg(0.7, decode=OTHER, is_resumed=True, first_output_s=2.6, facts=facts(1.0, 0.8)))
    expect(told(slow), SlowCause.WORKER_LOST, "2.00 s because decode-0 was lost", "decode-1 went on")
    slow.legs[1].first_output_at_ns = ns(0.72)
    assert told(slow).cause is not SlowCause.WORKER_LOST, "another went on at once, and the rest is its own output"


def test_a_worker_that_is_lost_before_the_first_token() -> None:
    slow = later(ordinary(), 8.0, after_s=0.0025)
    slow.let_in_at_ns = ns(0.003)
    slow.legs.insert(0, leg(0.003, granted_s=0.004, ended_s=7.9, failure="prefill-0: no sign of life for 8 s"))
    expect(
        told(slow), SlowCause.WORKER_LOST, "The first token took", "8.00 s because prefill-0 was lost (prefill-0: no"
    )


def test_a_request_that_a_failure_ended_need_not_have_been_long() -> None:
    made = leg(0.003, granted_s=0.004, ended_s=0.01, failure="decode-0 is gone")
    failed = ordinary(legs=[made], first_written_at_ns=None, last_output_at_ns=None, ended_at_ns=ns(0.011))
    expect(told(failed, RequestEnd.failed("worker_unavailable", "gone")), SlowCause.WORKER_LOST, "decode-0 was lost")
    assert told(failed, GONE).cause is SlowCause.NOTHING


def test_the_prompt_of_a_neighbour_between_two_tokens() -> None:
    slow = later(ordinary(), 0.8, after_s=0.5)
    slow.worst_gap = gap(0.5, 1.31, counters(1030, 0, 1030), counters(1031, 1600, 1031))
    slow.legs[0].last_counters = counters(1099, 1600, 1099)
    expect(told(slow), SlowCause.LONG_NEIGHBOUR, "1,600 prompt tokens of others")
    slow.worst_gap = gap(0.5, 1.31, counters(1030, 0, 1030), counters(1031, 10, 1031))
    slow.legs[0].last_counters = counters(1099, 10, 1099)
    expect(
        told(slow), SlowCause.SLOW_STEPS, "The longest gap between two tokens was 0.81 s: on decode-0 nothing in 1 step"
    )


def test_many_chunks_of_a_neighbour_count_together_though_each_is_short() -> None:
    slow = later(ordinary(), 2.0, after_s=0.24)
    slow.legs[0].decode_output_at_ns = ns(0.235)
    slow.last_output_at_ns = ns(3.25)
    slow.legs[0].last_counters = counters(1099, 4000, 1099)
    slow.worst_gap = gap(0.5, 0.56, counters(1030, 100, 1030), counters(1031, 200, 1031))
    expect(told(slow), SlowCause.LONG_NEIGHBOUR, "beside others on decode-0: 4,000 prompt tokens of others")
    slow.preemptions = [Preemption(at_ns=ns(0.3), worker=DECODE, resumed_at_ns=ns(0.31))] * 8
    slow.num_preemptions = 8
    assert told(slow).cause is not SlowCause.LONG_NEIGHBOUR, "they may be its own, computed again"


def test_crowded_steps() -> None:
    slow = later(ordinary(), 3.0, after_s=0.24)
    slow.legs[0].last_counters = counters(1099, 0, 1001 + 98 * 60)
    expect(told(slow), SlowCause.CROWDED_STEPS, "59 other streams in a step, of 98 steps")
    slow = ordinary()
    slow.legs[0].last_counters = counters(1099, 0, 1001 + 98 * 3)
    assert told(slow).cause is not SlowCause.CROWDED_STEPS


def test_a_slow_client() -> None:
    slow = ordinary(blocked_s=8.0, last_written_at_ns=ns(9.2), ended_at_ns=ns(9.25))
    expect(told(slow), SlowCause.SLOW_CLIENT, "8.00 s waiting for the client to read tokens that")
    near = ordinary(blocked_s=0.03)
    assert told(near).cause is not SlowCause.SLOW_CLIENT
    unread = ordinary(last_written_at_ns=ns(0.5), ended_at_ns=ns(31.0))
    expect(told(unread, GONE), SlowCause.SLOW_CLIENT, "29.75 s waiting for the client")


def test_the_gateway() -> None:
    slow = later(ordinary(), 1.2, after_s=0.001)
    expect(told(slow), SlowCause.GATEWAY, "1.20 s of it reading and tokenizing it")
    slow = later(ordinary(), 1.2, after_s=1.2506)
    expect(told(slow), SlowCause.GATEWAY, "after the last token")
    assert "--ledger-fsync" in told(slow).advice


def test_text_that_is_held_back_is_not_the_gateways_time() -> None:
    """Forty tokens of a call came before the first could be written."""
    held = ordinary(first_written_at_ns=ns(0.64))
    expect(told(held), SlowCause.NOTHING)
    held.num_outputs = 2
    expect(told(held), SlowCause.GATEWAY, "until the first token was written")


# ---- nothing ---------------------------------------------------------------------------------------------------------


def test_what_takes_its_own_time_is_told_as_that() -> None:
    expect(told(ordinary()), SlowCause.OWN_OUTPUT, "1.01 s of 1.25 s went to its own 100 tokens, 10 ms each")
    short = ordinary(last_output_at_ns=ns(0.3), last_written_at_ns=ns(0.3), ended_at_ns=ns(0.31), num_outputs=7)
    expect(told(short, num_output_tokens=7), SlowCause.NOTHING, "Nothing stands out: the first token after 0.22 s")


def test_the_largest_of_several_wins() -> None:
    slow = later(ordinary(num_ahead=4), 1.0, after_s=0.0025)
    slow.legs[0].granted_at_ns = ns(2.5)
    slow = later(slow, 2.0, after_s=1.1)
    slow.legs[0].granted_at_ns = ns(3.1)
    expect(told(slow), SlowCause.ROOM, "2.10 s")


# ---- advice and difference -------------------------------------------------------------------------------------------


def test_every_flag_and_command_that_advice_names_exists() -> None:
    """Red when a setting is renamed and the advice still names the old one."""
    details = ("", *(lost.value for lost in HitsLost), "prompt", "settle", "messages", "slot")
    texts = " ".join(advice_for(cause, detail) for cause in SlowCause for detail in details)
    known = set(re.findall(r"`(--[\w-]+)`", (ROOT / "docs" / "settings.md").read_text()))
    named = set(re.findall(r"--[\w-]+", texts))
    assert named
    assert named <= known
    commands = set(re.findall(r"`relevo ([\w ]+)`", texts))
    assert commands == {"doctor", "bench gateway", "bench transport"}
    guides = " ".join(page.read_text() for page in (ROOT / "docs" / "guides").glob("*.md"))
    for header in set(re.findall(r"\bx-[\w-]+", texts)):
        assert header in guides


def test_the_guide_tells_of_every_phase_and_every_cause() -> None:
    """Red when a word is added or renamed, and not in docs/guides/slow-requests.md."""
    guide = (ROOT / "docs" / "guides" / "slow-requests.md").read_text()
    causes = set(re.findall(r"`(\w+)`", guide.partition("## Causes")[2].partition("\n## ")[0]))
    assert {cause.value for cause in SlowCause} <= causes
    phases = re.findall(r"^\| ([a-z ]+) \|", guide.partition("## Phases")[2].partition("\n## ")[0], re.MULTILINE)
    assert set(_GUIDE_ORDER) == set(PhaseName)
    assert [name.replace(" ", "_") for name in phases] == ["phase", *(name.value for name in _GUIDE_ORDER)]


_GUIDE_ORDER = (
    *(PhaseName.PREPARE, PhaseName.LINE, PhaseName.ROUTE, PhaseName.ROOM, PhaseName.MESSAGES, PhaseName.QUEUE),
    *(PhaseName.PREFILL, PhaseName.FIRST_WRITE, PhaseName.RECOVER, PhaseName.HANDOFF, PhaseName.DECODE),
    *(PhaseName.PREEMPTED, PhaseName.CLIENT, PhaseName.SETTLE),
)


def test_advice_says_something_about_each_cause() -> None:
    assert [cause for cause in SlowCause if not advice_for(cause)] == [SlowCause.NOTHING]


def test_the_difference_of_two_requests_is_a_phase() -> None:
    slow = told(later(ordinary(num_ahead=41), 3.8, after_s=0.0025))
    text = diff(told(ordinary()), slow)
    assert text == (
        "B took 3.80 s longer than A (5.05 s against 1.25 s), and 3.80 s more of it went to the gateway's line "
        "(1.0 ms in A, 3.80 s in B)."
    )
    assert diff(slow, told(ordinary())).startswith("A took 3.80 s longer than B")
    assert "no phase makes the difference" in diff(slow, slow)


def test_two_that_took_as_long_may_differ_in_phases() -> None:
    line, room = later(ordinary(), 2.0, after_s=0.0025), later(ordinary(), 2.0, after_s=0.0035)
    assert "they differ most in" in diff(told(line), told(room))


def test_names_and_numbers_of_others_are_all_that_a_sentence_has_of_them() -> None:
    """An explanation is made of marks, which hold no names of tenants: red when one is added to them."""
    slots = {*Timeline.__slots__, *leg(0.0).__slots__}
    assert not [name for name in slots if "tenant" in name or "session" in name or "key" in name]
    assert not [name for name in LOAD.__slots__ if "tenant" in name]


def test_a_request_without_any_mark_is_explained() -> None:
    explanation = explain(
        Timeline(accepted_at_ns=ns(0)), num_prompt_tokens=0, num_cached_tokens=0, num_output_tokens=0, now_ns=ns(1)
    )
    assert explanation.cause is not None
    assert [phase.name.value for phase in explanation.phases] == ["prepare"]
