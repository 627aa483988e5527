"""Engines that are not ours, behind real links, against servers that speak their protocols.

Red when a split answer differs from an engine's alone, when KV is fetched late, when a handoff is ended on one side
only, or when anything of a client's gets into a handoff.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from awaited_outputs import generate
from engine_stack import EngineStack, engine_stack, prompt_of, request_for, until
from fake_engines import continuation

PAIR = {"prefill-0": "prefill", "decode-0": "decode"}
S = 1_000_000_000


async def test_split_answers_equal_an_engine_alone() -> None:
    async with engine_stack(PAIR) as stack:
        prompts = [prompt_of(n, 5 + n) for n in range(20)]
        said = await asyncio.gather(*(stack.tokens(request_for(n, p)) for n, p in enumerate(prompts)))
        assert said == [continuation(p, 8) for p in prompts]
        await until(lambda: stack.counts.handoffs == {"completed": 20})
        assert stack.counts.pairs == (2, 0)
        assert not stack.engines["prefill-0"].leases
        assert await stack.is_idle()
        assert not stack.pool.num_open


async def test_cached_tokens_are_those_of_the_prefill_engine() -> None:
    async with engine_stack(PAIR) as stack:
        prompt = prompt_of(1, 13)
        first, again = await stack.said(request_for(1, prompt)), await stack.said(request_for(2, prompt))
        assert {each.num_cached_tokens for each in first.facts} == {0}
        assert {each.num_cached_tokens for each in again.facts} == {12}
        assert {each.worker_id for each in again.facts} == {"prefill-0"}


async def test_a_late_decode_is_never_asked_for() -> None:
    """The gateway is stopped between the prefill engine's answer and the decode engine's ask: its lease is over, its
    blocks are another request's, and nothing goes out that would read them."""
    async with engine_stack(PAIR) as stack:
        prefill, decode = stack.engines["prefill-0"], stack.engines["decode-0"]

        async def pause(kind: str, body: dict[str, Any]) -> None:
            if kind == "prefill":
                stack.clock.jump_ns += 60 * S
                prefill.before = None

        prefill.before = pause
        prompt = prompt_of(3)
        assert await stack.tokens(request_for(1, prompt)) == continuation(prompt, 8)
        assert [("kv_transfer_params" in body) for body in decode.bodies] == [False]
        assert stack.counts.handoffs == {"late": 1}


async def test_the_lease_ends_while_the_answer_lies_unread() -> None:
    """The answer's time is the last moment at which it was not there, not the moment at which it is read."""
    async with engine_stack(PAIR) as stack:
        decode = stack.engines["decode-0"]
        real, jumped = stack.pool.moments.not_before_ns, []

        def read_late(asked_at_ns: int) -> int:
            known_ns = real(asked_at_ns)
            if not jumped:
                jumped.append(True)
                stack.clock.jump_ns += 8 * S
            return known_ns

        stack.pool.moments.not_before_ns = read_late  # type: ignore[method-assign]
        prompt = prompt_of(4)
        assert await stack.tokens(request_for(1, prompt)) == continuation(prompt, 8)
        assert [("kv_transfer_params" in body) for body in decode.bodies] == [False]


async def test_a_ticket_that_grew_old_on_its_way_is_not_trusted() -> None:
    """The decode engine had it late, so it may have read another request's KV, and cached it: what it says is thrown
    away, and its cache is asked for under other names from then on."""
    async with engine_stack(PAIR) as stack:
        prefill, decode = stack.engines["prefill-0"], stack.engines["decode-0"]

        async def slow(kind: str, body: dict[str, Any]) -> None:
            if kind == "decode":
                prefill.expire()
                prefill.keep("another", tuple(prompt_of(99)))
                stack.clock.jump_ns += 60 * S
                decode.before = None

        decode.before = slow
        prompt = prompt_of(5)
        assert await stack.tokens(request_for(1, prompt)) == continuation(prompt, 8)
        assert decode.num_late_reads == 1
        assert decode.bodies[-1]["cache_salt"] == ".1"


async def test_aborts_at_any_moment_leave_no_lease() -> None:
    async with engine_stack(PAIR, changes={"prefill-0": {"step_s": 0.002}, "decode-0": {"step_s": 0.002}}) as stack:

        async def leave_after(number: int) -> None:
            outputs = generate(stack.dispatcher, request_for(number, prompt_of(number), max_tokens=20))
            task = asyncio.ensure_future(anext(outputs))
            await asyncio.sleep(0.0004 * number)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await outputs.aclose()

        await asyncio.gather(*(leave_after(number) for number in range(40)))
        prefill, decode = stack.engines["prefill-0"], stack.engines["decode-0"]
        await until(lambda: not (stack.dispatcher.num_in_flight or stack.pool.num_open))
        await until(lambda: not (prefill.num_running or decode.num_running))
        assert not prefill.leases
        assert not decode.num_late_reads
        assert await stack.is_idle()
        prompt = prompt_of(50)
        assert await stack.tokens(request_for(100, prompt)) == continuation(prompt, 8)


async def test_prefill_engine_dies_between_answer_and_fetch() -> None:
    async with engine_stack(PAIR) as stack:
        prefill, decode = stack.engines["prefill-0"], stack.engines["decode-0"]

        async def die(kind: str, body: dict[str, Any]) -> None:
            if kind == "decode":
                decode.before = None
                await prefill.kill()

        decode.before = die
        prompt = prompt_of(6)
        assert await stack.tokens(request_for(1, prompt)) == continuation(prompt, 8)
        assert stack.counts.handoffs["failed"] == 1


async def test_decode_engine_dies_while_it_streams() -> None:
    roles = PAIR | {"decode-1": "decode"}
    async with engine_stack(roles, changes={"decode-0": {"step_s": 0.01}, "decode-1": {"step_s": 0.01}}) as stack:
        prompts = [prompt_of(n) for n in range(8)]
        running = [asyncio.ensure_future(stack.tokens(request_for(n, p, 30))) for n, p in enumerate(prompts)]
        await until(lambda: stack.engines["decode-0"].num_running and stack.engines["decode-1"].num_running)
        await asyncio.sleep(0.05)
        await stack.engines["decode-0"].kill()
        assert await asyncio.gather(*running) == [continuation(p, 30) for p in prompts]
        assert await stack.is_idle()


async def test_a_new_process_behind_the_same_address_is_another_worker() -> None:
    async with engine_stack(PAIR) as stack:
        before = stack.link("prefill-0").hello.epoch
        prefill = stack.engines["prefill-0"]
        await prefill.kill()
        await prefill.start()
        prompt = prompt_of(7)
        await until(lambda: stack.openers["engine:prefill-0"]._epoch > before and stack.is_ready("prefill-0"), 15.0)
        assert await stack.tokens(request_for(1, prompt)) == continuation(prompt, 8)
        await until(lambda: stack.counts.handoffs["completed"] == 1)


@pytest.mark.parametrize("first", ["prefill-0", "decode-0"])
async def test_pairs_form_in_either_order(first: str) -> None:
    async with engine_stack(PAIR) as stack:
        for name in PAIR:
            await stack.engines[name].kill()
        await until(lambda: not any(stack.is_ready(name) for name in PAIR), 15.0)
        for name in sorted(PAIR, key=lambda each: each != first):
            await stack.engines[name].start()
            await until(lambda name=name: stack.is_ready(name))
        await stack.tokens(request_for(1, prompt_of(1)))
        await until(lambda: stack.counts.handoffs["completed"] == 1)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("version", "0.33.0", "engine version 0.33.0 here, 0.32.0 there"),
        ("model", "other", "model /models/other here, /models/tiny there"),
        ("max_model_len", 1024, "longest context 1024 here, 512 there"),
        ("kv_dtype", "fp8", "dtype of the KV cache fp8 here, auto there"),
        ("block_size", 16, "has blocks of 16 tokens and Relevo counts in 4; start Relevo with --block-size 16"),
    ],
)
async def test_engines_that_do_not_fit_are_refused_in_a_sentence(field: str, value: object, words: str) -> None:
    async with engine_stack(PAIR) as stack:
        decode = stack.engines["decode-0"]
        await decode.kill()
        await until(lambda: not stack.is_ready("decode-0"), 15.0)
        setattr(decode, field, value)
        await decode.start()
        await until(lambda: words in stack.why_not_ready("decode-0"))
        assert not stack.is_ready("decode-0")
        prompt = prompt_of(1)
        assert await stack.tokens(request_for(1, prompt)) == continuation(prompt, 8)


async def test_what_the_decode_engine_refuses_is_given_back_to_the_other() -> None:
    """The client gets the refusal, and the prefill engine's blocks are free before their lease is over."""
    from aiohttp import web

    from relevo.core.errors import InvalidRequest

    async with engine_stack(PAIR) as stack:
        prefill, decode = stack.engines["prefill-0"], stack.engines["decode-0"]

        async def refuse(kind: str, body: dict[str, Any]) -> None:
            if kind == "decode":
                decode.before = None
                raise web.HTTPBadRequest(text='{"error": {"message": "not this one", "code": 400}}')

        decode.before = refuse
        with pytest.raises(InvalidRequest, match="not this one"):
            await stack.tokens(request_for(1, prompt_of(1)))
        await until(lambda: stack.counts.handoffs["given_back"] == 1)
        assert not prefill.leases
        assert not stack.pool.num_open
        assert await stack.is_idle()


async def test_an_engine_that_keeps_no_kv_is_said_and_the_rest_is_served() -> None:
    async with engine_stack(PAIR, changes={"prefill-0": {}}) as stack:
        stack.engines["prefill-0"].role = "unified"  # as without --kv-transfer-config: it answers, without a ticket
        prompt = prompt_of(8)
        assert await stack.tokens(request_for(1, prompt)) == continuation(prompt, 8)
        assert stack.counts.handoffs["no_ticket"] == 1


async def test_a_connection_that_idled_too_long_costs_no_request() -> None:
    changes: dict[str, dict[str, object]] = {name: {"keep_alive_s": 0.05} for name in PAIR}
    async with engine_stack(PAIR, changes=changes) as stack:
        for number in range(6):
            prompt = prompt_of(number)
            assert await stack.tokens(request_for(number, prompt)) == continuation(prompt, 8)
            await asyncio.sleep(0.06)


async def test_several_continuations_are_not_split_and_differ_by_seed_only() -> None:
    async with engine_stack(PAIR) as stack:
        told = [output async for output in generate(stack.dispatcher, request_for(1, prompt_of(9), n=3))]
        assert {output.sample_index for output in told} == {0, 1, 2}
        seeds = sorted(body["sampling_params"]["seed"] for body in stack.engines["decode-0"].bodies)
        assert seeds == [0, 1, 2]
        assert await stack.is_idle()


async def test_what_an_engine_cannot_do_is_refused() -> None:
    from relevo.core.errors import InvalidGrammar, InvalidRequest

    async with engine_stack(PAIR) as stack:
        with pytest.raises(InvalidGrammar, match="holds no output to a grammar"):
            await stack.tokens(request_for(1, prompt_of(1), grammar="{}"))
        with pytest.raises(InvalidRequest, match="log-probabilities of prompts"):
            await stack.tokens(request_for(2, prompt_of(1), num_prompt_logprobs=1))


async def test_unified_engines_serve_whole_requests() -> None:
    async with engine_stack({"unified-0": "unified", "unified-1": "unified"}) as stack:
        prompts = [prompt_of(n) for n in range(8)]
        said = await asyncio.gather(*(stack.tokens(request_for(n, p)) for n, p in enumerate(prompts)))
        assert said == [continuation(p, 8) for p in prompts]
        assert all(each.bodies for each in stack.engines.values())


# ---- SGLang: against a server that speaks its protocol, never against the real one -----------------------------------


async def sglang_stack_works(stack: EngineStack, first: int = 0) -> None:
    prompts = [prompt_of(n) for n in range(first, first + 10)]
    said = await asyncio.gather(*(stack.tokens(request_for(first + n, p)) for n, p in enumerate(prompts)))
    assert said == [continuation(p, 8) for p in prompts]


@pytest.mark.parametrize("is_incremental", [False, True])
async def test_sglang_halves_meet_in_rooms_of_ours(is_incremental: bool) -> None:
    async with engine_stack(PAIR, engine="sglang") as stack:
        for each in stack.engines.values():
            each.is_incremental = is_incremental  # type: ignore[attr-defined]
        await sglang_stack_works(stack)
        rooms = stack.fabric.rooms_ever
        assert len(set(rooms)) * 2 == len(rooms)
        assert await stack.is_idle()


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("version", "0.5.24", "engine version 0.5.24 here, 0.32.0 there"),
        ("kv_dtype", "fp8_e5m2", "dtype of the KV cache fp8_e5m2 here, auto there"),
        ("tensor_parallel_size", 4, "tensor parallel size 4 here, 1 there"),
    ],
)
async def test_a_second_sglang_that_does_not_fit_is_refused(field: str, value: object, words: str) -> None:
    async with engine_stack(PAIR | {"decode-1": "decode"}, engine="sglang") as stack:
        second = stack.engines["decode-1"]
        await second.kill()
        await until(lambda: not stack.is_ready("decode-1"), 15.0)
        setattr(second, field, value)
        await second.start()
        await until(lambda: words in stack.why_not_ready("decode-1"))
        second.bodies.clear()
        await sglang_stack_works(stack)
        assert not second.bodies


async def test_halves_are_there_once_their_bootstrap_server_is() -> None:
    """A prefill engine whose bootstrap server listens later than its HTTP server: it counts as there when a handoff
    went through, and no request has failed by then."""
    from aiohttp import web

    async with engine_stack(PAIR, engine="sglang") as stack:
        prefill = stack.engines["prefill-0"]
        await prefill.kill()
        await until(lambda: not stack.is_ready("prefill-0"), 15.0)
        refused = [0]

        async def not_yet(kind: str, body: dict[str, Any]) -> None:
            refused[0] += 1
            if refused[0] > 3:
                prefill.before = None
            raise web.HTTPServiceUnavailable(text='{"error": {"message": "no bootstrap server yet"}}')

        prefill.before = not_yet
        await prefill.start()
        await until(lambda: "no bootstrap server yet" in stack.why_not_ready("prefill-0"), 15.0)
        await until(lambda: stack.is_ready("prefill-0"), 30.0)
        await sglang_stack_works(stack)


async def test_one_half_that_is_dropped_ends_the_other_at_once() -> None:
    """Of twelve requests every third prefill is refused: slots come back, all answers are right."""
    async with engine_stack(PAIR, engine="sglang") as stack:
        prefill, decode = stack.engines["prefill-0"], stack.engines["decode-0"]
        from aiohttp import web

        count = [0]

        async def drop(kind: str, body: dict[str, Any]) -> None:
            count[0] += 1
            if count[0] % 3 == 0:
                raise web.HTTPServiceUnavailable

        prefill.before = drop
        for number in range(12):
            prompt = prompt_of(number)
            assert await stack.tokens(request_for(number, prompt)) == continuation(prompt, 8)
        await until(lambda: not (prefill.num_running or decode.num_running or stack.pool.num_open))
        assert stack.counts.handoffs["half_failed"] >= 3


async def test_a_half_that_never_arrives_is_waited_for_no_longer_than_our_own_limit() -> None:
    async with engine_stack(PAIR, engine="sglang", step_s=0.3) as stack:
        prefill = stack.engines["prefill-0"]

        async def hang(kind: str, body: dict[str, Any]) -> None:
            prefill.before = None
            await asyncio.sleep(60)

        prefill.before = hang
        prompt = prompt_of(11)
        assert await stack.tokens(request_for(1, prompt)) == continuation(prompt, 8)
        assert stack.counts.handoffs["failed"] == 1
