"""The two sides of a handoff: granting, computing for another worker, sealing, taking over, letting go."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduler_driver import Driver
from scheduler_model import CellMemory, make_request, reference

from relevo.core.baton import Baton, SampleState
from relevo.core.request import FinishReason

PROMPT = [1, 2, 3, 1, 2]  # blocks of 2: two full ones and a partial one


def pair(**changes: object) -> tuple[Driver, Driver]:
    """A prefill and a decode worker that share one memory."""
    memory = CellMemory(2)
    prefill = Driver(memory=memory, worker_id="p", first_block_id=100, **changes)
    return prefill, Driver(memory=memory, worker_id="d", **changes)


def grant(decode: Driver, request):
    assert decode.reserve(request) is None
    (reservation,) = decode.scheduler.take_grants(decode.now_ns)
    return reservation


def baton(request, prefill: Driver) -> Baton:
    samples = tuple(
        SampleState(i, list(prefill.tokens[request.request_id, i]), prefill.reasons.get((request.request_id, i)))
        for i in range(request.sampling.n)
    )
    return Baton(request_id=request.request_id, samples=samples, num_sealed_tokens=len(request.prompt_token_ids))


def test_zero_copy_computes_into_foreign_blocks_and_needs_no_room():
    prefill, decode = pair(max_batched_tokens=3)
    request = make_request("a", PROMPT, n=2, max_tokens=4, ignore_eos=True)
    reservation = grant(decode, request)
    assert decode.scheduler.load().num_held_blocks == 4  # three of the prompt, one copy
    prefill.scheduler.pool.allocate(8)
    assert prefill.prefill_into(request, reservation) is None
    prefill.drain()
    progress = [(p.num_tokens, p.blocks, p.is_last) for p in prefill.prefixes]
    blocks = reservation.block_ids
    assert progress == [(2, blocks[:1], False), (5, blocks[1:], True)]
    prefill.scheduler.finish_transfer("a")
    assert "a" not in prefill.scheduler.requests
    for prefix in prefill.prefixes:
        decode.scheduler.seal("a", prefix.num_tokens)
    assert decode.scheduler.start_decode(baton(request, prefill), 0) is None
    plan = decode.plan()
    assert plan.lengths == [1, 1] and len(plan.block_copies) == 1
    decode.commit(plan)
    decode.drain()
    for i in range(2):
        assert prefill.tokens["a", i] + decode.tokens["a", i] == reference(request, i, 100)[0]
    assert prefill.facts["a"].num_cached_tokens == 0 and not decode.facts
    assert decode.is_clean()


def test_what_a_failed_attempt_computed_is_no_hit():
    """The second prefill worker starts after what the first one sealed; that was computed for this request."""
    prefill, decode = pair()
    request = make_request("a", PROMPT)
    reservation = replace(grant(decode, request), num_hit_tokens=4)
    prefill.prefill_into(request, reservation, num_found_tokens=2)
    plan = prefill.scheduler.plan(0)
    assert (plan.starts, plan.lengths) == ([4], [1])
    assert prefill.scheduler.requests["a"].num_cached_tokens == 2


def test_with_copies_own_blocks_stay_until_the_transfer_is_done():
    prefill, decode = pair()
    request = make_request("a", PROMPT)
    reservation = grant(decode, request)
    prefill.prefill_into(request, reservation, zero_copy=False)
    prefill.drain()
    (prefix,) = prefill.prefixes
    assert prefix.is_last and prefix.num_tokens == 5 and not set(prefix.blocks) & set(reservation.block_ids)
    assert prefill.scheduler.load().num_held_blocks == 3 and "a" in prefill.scheduler.requests
    prefill.scheduler.finish_transfer("a")
    prefill.scheduler.finish_transfer("a")
    assert prefill.is_clean() and "a" not in prefill.scheduler.requests
    prefill.prefill_into(make_request("b", PROMPT), replace(reservation, request_id="b"), zero_copy=False)
    prefill.drain()
    assert prefill.facts["b"].num_cached_tokens == 4  # its own cache serves later prompts


def test_hits_on_the_decode_worker_are_not_computed_by_the_prefill_worker():
    prefill, decode = pair()
    decode.submit(make_request("warm", PROMPT, max_tokens=1))
    decode.drain()
    request = make_request("a", [*PROMPT, 3])
    reservation = grant(decode, request)
    assert reservation.num_hit_tokens == 4
    prefill.prefill_into(request, reservation)
    assert prefill.step() == {"a": 2}
    assert prefill.facts["a"].num_cached_tokens == 4
    assert [p.num_tokens for p in prefill.prefixes] == [6]


def test_one_token_ends_on_the_prefill_worker():
    prefill, decode = pair()
    request = make_request("a", PROMPT, max_tokens=1)
    prefill.prefill_into(request, grant(decode, request))
    prefill.drain()
    assert prefill.reasons["a", 0] in (FinishReason.LENGTH, FinishReason.STOP)
    decode.scheduler.abort("a", writer_active=False)
    assert decode.is_clean() and decode.scheduler.load().num_reserved == 0


def test_a_finished_sample_of_the_baton_is_not_continued():
    prefill, decode = pair()
    request = make_request("a", PROMPT, n=2, max_tokens=3, ignore_eos=True)
    prefill.prefill_into(request, grant(decode, request))
    prefill.drain()
    handed = baton(request, prefill)
    handed.samples[0].finish_reason = FinishReason.STOP
    assert decode.scheduler.start_decode(handed, 0) is None
    decode.drain()
    assert set(decode.tokens) == {("a", 1)} and decode.is_clean()


def test_grants_come_in_order_leave_room_to_decodes_and_an_empty_pool_gives_everything():
    decode = Driver(num_blocks=6)
    assert decode.reserve(make_request("whole", [1] * 11)) is None
    assert decode.granted() == ["whole"]
    decode.scheduler.abort("whole", writer_active=False)
    decode.submit(make_request("runs", [2] * 4, max_tokens=9, ignore_eos=True))
    decode.step()
    decode.reserve(make_request("large", [3] * 8))
    decode.reserve(make_request("small", [3]))
    assert decode.granted() == []  # `large` would leave no block to the running decode, `small` waits behind it
    decode.scheduler.abort("large", writer_active=False)
    assert decode.granted() == ["small"]


def test_a_reservation_and_a_submitted_request_share_one_line():
    """Red if either kind may overtake the other for room or for a slot."""
    decode = Driver(num_blocks=8, max_running=1)
    decode.submit(make_request("a", [1, 2], max_tokens=2, ignore_eos=True))
    decode.reserve(make_request("b", [1, 2, 3]))
    decode.submit(make_request("c", [1, 2], max_tokens=2))
    assert decode.granted() == []
    assert decode.step() == {"a": 2}
    assert decode.step() == {"a": 1}
    assert decode.plan() is None  # `b` is next and its room has not been granted yet
    assert decode.scheduler.has_work()
    assert decode.granted() == ["b"]
    decode.scheduler.abort("b", writer_active=False)
    assert decode.step() == {"c": 2}


def test_a_grant_does_not_take_the_room_of_a_request_that_waits_ahead():
    decode = Driver(num_blocks=4)
    decode.submit(make_request("a", [1] * 5, max_tokens=1))
    decode.reserve(make_request("b", [2] * 4))
    assert decode.granted() == []
    assert decode.step() == {"a": 5}
    assert decode.granted() == ["b"]


def test_a_reservation_that_cannot_be_granted_yet_is_no_work():
    decode = Driver(num_blocks=4)
    decode.reserve(make_request("a", [1] * 6))
    decode.reserve(make_request("b", [2] * 6))
    assert decode.granted() == ["a"]
    assert not decode.scheduler.has_work()
    decode.scheduler.abort("a", writer_active=False)
    assert decode.scheduler.has_work()
    assert decode.granted() == ["b"]


def test_has_work_is_false_while_room_depends_on_others_and_true_again_afterwards():
    decode = Driver(num_blocks=4)
    decode.reserve(make_request("a", [1] * 6))
    assert decode.scheduler.has_work()
    assert decode.granted() == ["a"]
    decode.submit(make_request("b", [2] * 4))
    assert decode.step() is None
    assert not decode.scheduler.has_work()
    decode.scheduler.abort("a", writer_active=True)
    assert decode.step() is None and not decode.scheduler.has_work()
    decode.scheduler.release("a")
    assert decode.scheduler.has_work() and decode.step() == {"b": 4}


def test_an_abort_under_a_writer_is_idempotent_and_keeps_the_quarantine():
    decode = Driver()
    grant(decode, make_request("a", PROMPT))
    decode.scheduler.seal("a", 2)
    for writer_active in (True, False, True):
        decode.scheduler.abort("a", writer_active)
    assert decode.scheduler.load().num_quarantined_blocks == 2
    decode.scheduler.release("a")
    assert decode.is_clean()


def test_local_prefill_of_a_reservation_starts_after_what_is_sealed():
    prefill, decode = pair(max_batched_tokens=3)
    request = make_request("a", PROMPT, max_tokens=3, ignore_eos=True)
    reservation = grant(decode, request)
    prefill.prefill_into(request, reservation)
    prefill.step()
    decode.scheduler.seal("a", prefill.prefixes[-1].num_tokens)
    prefill.scheduler.abort("a", False)
    assert decode.submit_reserved(request) is None
    decode.drain()
    assert decode.model.num_computed_tokens == 3 + 2
    assert decode.tokens["a", 0] == reference(request, 0, 100)[0]
    assert decode.facts["a"].num_cached_tokens == 0  # a transfer is not a hit
    assert decode.is_clean()


def test_a_prompt_that_is_cached_as_a_whole_leaves_its_last_block_to_compute():
    """Red when a grant calls all of a prompt a hit: there would be nothing to draw the first token from."""
    decode = Driver()
    decode.submit(make_request("warm", PROMPT[:4], max_tokens=2, ignore_eos=True))
    decode.drain()
    assert grant(decode, make_request("a", PROMPT[:4])).num_hit_tokens == 2


def test_hits_of_a_reservation_are_told_when_its_own_worker_computes_the_rest():
    """Red when a prompt that stays on the decode worker is charged as if nothing of it had been cached."""
    decode = Driver()
    decode.submit(make_request("warm", PROMPT, max_tokens=1))
    decode.drain()
    request = make_request("a", [*PROMPT, 3])
    assert grant(decode, request).num_hit_tokens == 4
    assert decode.submit_reserved(request) is None
    decode.drain()
    assert decode.facts["a"].num_cached_tokens == 4


def test_a_prompt_for_another_workers_blocks_keeps_no_room_from_grants():
    """Red when a remote prefill that waits for tokens of the step is counted as if it needed blocks here."""
    prefill, decode = pair()
    abroad = make_request("a", PROMPT)
    prefill.prefill_into(abroad, grant(decode, abroad))
    assert prefill.reserve(make_request("b", [1, 2] * 7)) is None  # seven of the eight blocks
    assert prefill.granted() == ["b"]


def test_local_prefill_of_a_reservation_continues_emitted_tokens():
    decode = Driver()
    request = make_request("a", PROMPT, max_tokens=4, n=2, ignore_eos=True)
    expected = [reference(request, i, 100)[0] for i in range(2)]
    grant(decode, request)
    decode.submit_reserved(request, [SampleState(i, expected[i][:1]) for i in range(2)])
    decode.drain()
    assert [decode.tokens["a", i] for i in range(2)] == [tokens[1:] for tokens in expected]
    assert decode.is_clean() and not decode.facts


def test_an_unsealed_or_unknown_handoff_is_rejected_and_nothing_is_held():
    decode = Driver()
    request = make_request("a", PROMPT)
    sample = SampleState(0, [1])
    grant(decode, request)
    early = Baton(request_id=request.request_id, samples=(sample,), num_sealed_tokens=4)
    assert decode.scheduler.start_decode(early, 0).code == "handoff_failed"
    assert decode.is_clean() and "a" not in decode.scheduler.requests
    grant(decode, request)
    undrawn = Baton(request_id=request.request_id, samples=(SampleState(0),), num_sealed_tokens=5)
    assert decode.scheduler.start_decode(undrawn, 0).code == "invalid_request"
    assert decode.is_clean() and "a" not in decode.scheduler.requests
    late = Baton(request_id=request.request_id, samples=(sample,), num_sealed_tokens=5)
    assert decode.scheduler.start_decode(late, 0).code == "handoff_failed"
    assert decode.submit_reserved(request).code == "handoff_failed"
    decode.reserve(request)  # queued, not granted
    assert decode.submit_reserved(request).code == "handoff_failed"
    assert "a" not in decode.scheduler.requests


@pytest.mark.parametrize(
    ("prompt", "n", "code"),
    [([1] * 16, 1, "context_length_exceeded"), ([1] * 2, 0, "invalid_request"), ([], 1, "invalid_request")],
)
def test_reservations_that_can_never_be_granted_are_rejected(prompt, n, code):
    assert Driver().reserve(make_request("a", prompt, n=n)).code == code


@pytest.mark.parametrize("num_prompt", [13, 15])
def test_continuations_whose_copies_do_not_fit_beside_the_prompt_run_one_after_the_other(num_prompt):
    """Red if a worker refuses for its n a request that it computes when it is not split. Seven or all eight blocks are
    the prompt's."""
    prefill, decode = pair()
    request = make_request("a", ([1, 2, 3] * 5)[:num_prompt], n=3, max_tokens=4, ignore_eos=True)
    assert prefill.prefill_into(request, grant(decode, request)) is None
    prefill.drain()
    decode.scheduler.seal("a", num_prompt)
    assert decode.scheduler.start_decode(baton(request, prefill), 0) is None
    decode.drain()
    alone = Driver()
    alone.submit(request)
    alone.drain()
    assert {key: prefill.tokens[key] + decode.tokens[key] for key in alone.tokens} == alone.tokens
    assert len(alone.tokens) == 3
    assert decode.is_clean()


def test_a_reservation_that_does_not_fit_its_prompt_is_rejected():
    prefill, decode = pair()
    reservation = grant(decode, make_request("a", PROMPT))
    assert prefill.prefill_into(make_request("a", [*PROMPT, 1, 1]), reservation).code == "handoff_failed"


def test_a_decode_that_finds_no_block_for_its_next_token_preempts_the_latest():
    """A granted prompt is older than what was submitted after it: it decodes on, the other recomputes."""
    prefill, decode = pair(num_blocks=3)
    request = make_request("a", [1, 2, 3, 1], max_tokens=3, ignore_eos=True)
    other = make_request("b", [3, 3], max_tokens=3, ignore_eos=True)
    prefill.prefill_into(request, grant(decode, request))
    prefill.drain()
    decode.submit(other)
    assert decode.step() == {"b": 2}
    decode.scheduler.seal("a", 4)
    assert decode.scheduler.start_decode(baton(request, prefill), 0) is None
    decode.drain()
    assert decode.scheduler.num_preemptions >= 1
    assert prefill.tokens["a", 0] + decode.tokens["a", 0] == reference(request, 0, 100)[0]
    assert decode.tokens["b", 0] == reference(other, 0, 100)[0]
    assert decode.is_clean()
