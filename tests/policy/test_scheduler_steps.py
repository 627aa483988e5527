"""What goes into a step, in which order, and how continuations end, on one worker."""

from __future__ import annotations

import pytest
from scheduler_driver import Driver
from scheduler_model import EOS, make_request, reference

from relevo.core.baton import SampleState
from relevo.core.request import FinishReason
from relevo.policy.worker.chunking import STARVATION_STEPS


def long(request_id: str, num_prompt: int = 3, max_tokens: int = 6, **rest):
    """A request that decodes to the end."""
    start = 100 * (1 + sum(map(ord, request_id)))
    return make_request(
        request_id, list(range(start, start + num_prompt)), max_tokens=max_tokens, ignore_eos=True, **rest
    )


def test_decodes_go_first_and_prompts_take_what_is_left():
    """Red if a long prompt may stall a running decode, or a chunk exceeds its budget."""
    driver = Driver(num_blocks=40, max_batched_tokens=16, max_prefill_tokens=6, block_size=4)
    driver.submit(long("a", 4, 20))
    assert driver.step() == {"a": 4}
    driver.submit(long("b", 30))
    assert driver.step() == {"a": 1, "b": 4}  # 6 tokens of budget, cut at a block boundary
    assert driver.step() == {"a": 1, "b": 4}
    driver.scheduler.abort("a", False)
    assert driver.step() == {"b": 16}  # alone: the whole step
    assert driver.step() == {"b": 6}


def test_a_prefill_budget_of_zero_delays_prompts_but_never_starves_them():
    driver = Driver(num_blocks=40, max_prefill_tokens=0)
    driver.submit(long("a", 2, 60))
    driver.step()
    driver.submit(long("b", 4))
    steps = [driver.step() for _ in range(2 * STARVATION_STEPS)]
    assert sum(step.get("b", 0) for step in steps) == 4
    assert all(step["a"] == 1 for step in steps)


def test_priority_then_arrival():
    driver = Driver(num_blocks=40, max_batched_tokens=6)
    driver.submit(long("late", 4, priority=1))
    driver.submit(long("first", 4))
    driver.submit(long("second", 4))
    assert driver.step() == {"first": 4, "second": 2}


def test_a_large_request_at_the_head_is_not_overtaken_for_ever():
    """Red if small requests may take the room that the head of the line waits for."""
    driver = Driver(num_blocks=6)
    driver.submit(long("a", 6, 3))
    driver.step()
    driver.submit(long("big", 8, 2))
    driver.submit(long("small", 1, 2))
    assert [driver.step() for _ in range(3)] == [{"a": 1}, {"a": 1}, {"big": 8, "small": 1}]
    driver.drain()
    assert driver.is_clean()


def test_max_running_bounds_continuations_and_a_larger_n_runs_in_parts():
    """Red if a request with more continuations than slots waits until the worker is empty, or draws other tokens."""
    driver = Driver(num_blocks=40, max_running=2)
    wide = long("wide", n=3)
    driver.submit(long("a", 3, 3))
    driver.submit(wide)
    driver.submit(long("b"))
    assert driver.step() == {"a": 3, "wide": 3}, "the slot that is left is used"
    most = 0
    while driver.step() is not None:
        most = max(most, driver.scheduler.load().num_running)
    assert most == 2
    assert len(driver.reasons) == 5
    assert [driver.tokens["wide", i] for i in range(3)] == [reference(wide, i, 100)[0] for i in range(3)]
    assert driver.is_clean()


def test_set_role_changes_the_next_step():
    driver = Driver(num_blocks=40, max_prefill_tokens=2)
    driver.submit(long("a", 2, 20))
    driver.step()
    driver.submit(long("b", 12))
    assert driver.step() == {"a": 1, "b": 2}
    driver.scheduler.set_role(max_prefill_tokens=8, max_running=8)
    assert driver.step() == {"a": 1, "b": 8}


def test_a_role_leaves_a_token_of_each_step_to_prompts():
    """Red when so many continuations may run that their tokens fill the step, and no prompt ever starts."""
    driver = Driver(num_blocks=40, max_batched_tokens=3)
    driver.scheduler.set_role(max_prefill_tokens=3, max_running=99)
    for name in "abcde":
        driver.submit(long(name, 1, 6))
    most = 0
    while driver.step() is not None:
        most = max(most, driver.scheduler.load().num_running)
    assert most == 2


def test_the_second_of_two_equal_prompts_computes_its_last_block_only():
    """Red if the cap goes: with all of a prompt hit there is no position to draw the first token from."""
    driver = Driver(num_blocks=20)
    for name in ("a", "b"):
        driver.submit(make_request(name, [1, 2, 3, 1, 2, 3], max_tokens=1))
        driver.drain()
    assert (driver.facts["a"].num_cached_tokens, driver.facts["b"].num_cached_tokens) == (0, 4)
    assert (driver.scheduler.num_prefix_queries, driver.scheduler.num_prefix_hits) == (12, 4)
    assert driver.tokens["a", 0] == driver.tokens["b", 0]


def test_a_later_turn_hits_the_answer_of_the_first():
    driver = Driver(num_blocks=20)
    first = long("a", 3, 4)
    driver.submit(first)
    driver.drain()
    driver.submit(make_request("b", [*first.prompt_token_ids, *driver.tokens["a", 0], 9], max_tokens=1))
    driver.drain()
    assert driver.facts["b"].num_cached_tokens == 6  # the last output token of a turn is never computed


def test_other_salts_and_a_disabled_cache_never_hit():
    for salt, caching in ((b"t", True), (b"", False)):
        driver = Driver(num_blocks=20, enable_prefix_caching=caching)
        driver.submit(make_request("a", [1, 2, 3, 1, 2], max_tokens=1))
        driver.drain()
        driver.submit(make_request("b", [1, 2, 3, 1, 2], max_tokens=1, salt=salt))
        driver.drain()
        assert driver.facts["b"].num_cached_tokens == 0
        assert driver.scheduler.num_prefix_hits == 0


def test_facts_come_with_the_first_output_and_measure_queue_and_prefill():
    driver = Driver(num_blocks=20, max_batched_tokens=4, max_running=1)
    driver.submit(long("a", 8, 2))
    driver.submit(long("b", 2, 1))
    driver.drain()
    a, b = driver.facts["a"], driver.facts["b"]
    assert (a.worker_id, a.num_prompt_tokens, a.queue_s, a.prefill_s) == ("w", 8, 1.0, 3.0)
    assert (b.queue_s, b.prefill_s) == (7.0, 1.0)


@pytest.mark.parametrize(
    ("sampling", "expected_reason"),
    [
        ({"max_tokens": 50}, FinishReason.STOP),
        ({"max_tokens": 5, "ignore_eos": True}, FinishReason.LENGTH),
        ({"max_tokens": 50, "ignore_eos": True, "stop_token_ids": (2,)}, FinishReason.STOP),
        ({"max_tokens": 50, "stop_token_ids": (1, 2, 3), "min_tokens": 4}, FinishReason.STOP),
        ({"max_tokens": 1}, None),
    ],
)
def test_ends(sampling, expected_reason):
    driver = Driver(num_blocks=40)
    request = make_request("a", [1, 3, 2], **sampling)
    driver.submit(request)
    driver.drain()
    tokens, reason = reference(request, 0, 100)
    assert (driver.tokens["a", 0], driver.reasons["a", 0]) == (tokens, reason)
    assert expected_reason in (None, reason)
    assert len(tokens) >= sampling.get("min_tokens", 0)
    if reason is FinishReason.STOP:  # the token that ends the output is part of it
        assert tokens[-1] in (EOS, *sampling.get("stop_token_ids", ()))


def test_the_context_length_ends_a_continuation():
    driver = Driver(num_blocks=40, max_model_len=7)
    driver.submit(long("a", 4, 50))
    driver.drain()
    assert len(driver.tokens["a", 0]) == 3
    assert driver.reasons["a", 0] is FinishReason.LENGTH


def test_a_continuation_that_outgrows_the_empty_pool_ends_instead_of_looping():
    driver = Driver(num_blocks=3)
    driver.submit(long("a", 3, 50))
    driver.drain()
    assert len(driver.tokens["a", 0]) == 4  # 6 cells: 3 of the prompt, 3 outputs; the 4th is never computed
    assert driver.reasons["a", 0] is FinishReason.LENGTH
    assert driver.scheduler.num_preemptions == 0 and driver.is_clean()


def test_continuations_share_their_prompt_and_differ_afterwards():
    driver = Driver(num_blocks=20)
    request = make_request("a", [1, 2, 3, 1, 2], max_tokens=5, n=3, ignore_eos=True)
    driver.submit(request)
    assert driver.step() == {"a": 5}
    plan = driver.plan()
    assert len(plan.block_copies) == 2  # the partial last block, once for each further continuation
    assert driver.scheduler.load().num_held_blocks == 2 + 3
    driver.commit(plan)
    driver.drain()
    assert [driver.tokens["a", i] for i in range(3)] == [reference(request, i, 100)[0] for i in range(3)]
    assert driver.is_clean()


def test_a_fork_without_room_is_recomputed_later():
    driver = Driver(num_blocks=3)
    request = make_request("a", [1, 2, 3], max_tokens=2, n=3, ignore_eos=True)
    driver.submit(request)
    driver.drain()
    assert [driver.tokens["a", i] for i in range(3)] == [reference(request, i, 100)[0] for i in range(3)]
    assert driver.is_clean()


def test_preemption_takes_the_latest_arrival_of_the_lowest_priority_and_changes_no_token():
    driver = Driver(num_blocks=6)
    requests = [long("old", 2, 8), long("urgent", 2, 4, priority=-1), long("late", 2, 8)]
    for request in requests:
        driver.submit(request)
    seen_preempted = set()
    while driver.scheduler.has_work():
        before = driver.scheduler.num_preemptions
        step = driver.step()
        if driver.scheduler.num_preemptions > before:
            seen_preempted |= {"old", "urgent", "late"} - set(step)
    assert seen_preempted == {"late"}
    for request in requests:
        assert driver.tokens[request.request_id, 0] == reference(request, 0, 100)[0]
    assert driver.is_clean()


def test_starting_leaves_a_block_for_each_running_decode():
    """Red if admission fills the pool: the next token of a running decode would preempt what was just started."""
    driver = Driver(num_blocks=5)
    driver.submit(long("a", 4, 3))
    driver.step()
    driver.submit(long("b", 6, 1))
    assert driver.step() == {"a": 1}
    driver.drain()
    assert driver.scheduler.num_preemptions == 0 and driver.reasons["b", 0] is FinishReason.LENGTH


def test_a_replay_continues_after_what_was_emitted_and_computes_the_prompt_once():
    request = make_request("a", [1, 2, 3, 1, 2, 1, 1, 1], max_tokens=6, n=2, ignore_eos=True)
    expected = [reference(request, i, 100)[0] for i in range(2)]
    assert expected[0][:2] != expected[1][:2]  # else a block of outputs would be shared, too
    driver = Driver(num_blocks=20)
    driver.submit(request, [SampleState(i, expected[i][:3]) for i in range(2)])
    driver.drain()
    assert [driver.tokens["a", i] for i in range(2)] == [tokens[3:] for tokens in expected]
    assert driver.model.num_computed_tokens == 8 + 2 * 5  # the prompt once; the last output never
    assert not driver.facts


def test_a_replay_leaves_finished_continuations_alone():
    request = make_request("a", [1, 2, 3], max_tokens=4, n=2, ignore_eos=True)
    expected = [reference(request, i, 100)[0] for i in range(2)]
    driver = Driver()
    driver.submit(request, [SampleState(0, expected[0], FinishReason.LENGTH), SampleState(1, expected[1][:1])])
    driver.drain()
    assert driver.tokens == {("a", 1): expected[1][1:]}


def test_an_abort_during_a_step_keeps_its_blocks_until_the_step_is_over():
    """Red if blocks that a step still writes can be given to another request."""
    driver = Driver(num_blocks=4)
    driver.submit(long("a", 6))
    plan = driver.plan()
    driver.scheduler.abort("a", False)
    driver.reserve(long("b", 6))
    assert driver.granted() == []
    outcome = driver.commit(plan)
    assert not outcome.outputs and driver.scheduler.has_work()
    assert driver.granted() == ["b"]


def test_a_request_whose_row_failed_is_dropped_and_the_others_of_the_step_keep_what_it_computed():
    """Red when the step has to be computed again, or when its blocks wait for a step that never is."""
    driver = Driver(num_blocks=20)
    driver.submit(long("a"))
    driver.submit(long("b"))
    plan = driver.plan()
    driver.scheduler.abort("a", writer_active=False)
    assert [output.request_id for output in driver.commit(plan).all_outputs] == ["b"]
    driver.drain()
    assert set(driver.reasons) == {("b", 0)} and driver.is_clean()


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (make_request("a", [1] * 20), "context_length_exceeded"),  # of the model
        (make_request("a", [1] * 16), "context_length_exceeded"),  # prompt fits the pool, one token more does not
        (make_request("a", []), "invalid_request"),
        (make_request("a", [1], max_tokens=0), "invalid_request"),
        (make_request("a", [1], n=0), "invalid_request"),
    ],
)
def test_what_can_never_run_is_rejected_at_once(request_, code):
    driver = Driver(num_blocks=8, max_model_len=20)
    rejected = driver.submit(request_)
    assert rejected is not None and rejected.code == code and rejected.reason.endswith(".")
    assert "a" not in driver.scheduler.requests and not driver.scheduler.has_work()


def test_a_request_id_in_use_and_a_replay_of_nothing_are_rejected():
    driver = Driver()
    driver.submit(long("a"))
    assert driver.submit(long("a")).code == "invalid_request"
    assert driver.submit(long("b"), [SampleState(0, [1], FinishReason.STOP)]).code == "invalid_request"


def test_load_counts_what_waits_and_what_decodes():
    driver = Driver(num_blocks=20, max_batched_tokens=5, max_running=2)
    driver.submit(long("a", 3, 9))
    driver.step()
    driver.submit(long("b", 9))
    driver.submit(long("c", 5))
    driver.step()
    load = driver.scheduler.load()
    assert (load.num_running, load.num_waiting, load.num_decode_kv_tokens) == (1, 1, 4)
    assert load.num_waiting_prefill_tokens == (9 - 4) + 5


def test_a_large_n_never_exceeds_the_token_budget():
    driver = Driver(num_blocks=20, max_batched_tokens=3)
    driver.submit(long("a", 2, 3, n=5))
    while (step := driver.step()) is not None:
        assert step["a"] <= 3
    assert len(driver.reasons) == 5
