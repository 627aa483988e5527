"""What a check may not do: pass without having looked, fail a server that is right, or end a run over an odd answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from fault_edits import chunks, every_text, first_entry, put, request, retext, status, whole
from scripted_answers import MODEL, Call, Reply, error
from scripted_openai import MAX_MODEL_LEN, Fault, ScriptedDisturber, ScriptedOpenAI, scripted

from relevo.check.catalogue import CHECKS
from relevo.check.chaos import aborts, recovery, stops
from relevo.check.context import CheckContext
from relevo.check.exchange import Answer, Exchange, parse_json
from relevo.check.facts import Facts, find_facts
from relevo.check.run import CheckOptions, run_one
from relevo.check.server import Server
from relevo.check.words import Need, Result, Status
from relevo.client.http import Request

BY_ID = {one.id: one for one in CHECKS}


@asynccontextmanager
async def context_on(
    fault: Fault, max_model_len: int = MAX_MODEL_LEN
) -> AsyncIterator[tuple[CheckContext, ScriptedOpenAI]]:
    scripted_server = ScriptedOpenAI(fault)
    async with scripted(scripted_server) as url, Server(url, None, 60.0) as server:
        disturber = ScriptedDisturber(scripted_server)
        facts = Facts(MODEL, max_model_len)
        yield (
            CheckContext(server, facts, Random(1), 0.1, server, MODEL, disturber=disturber, pause_s=0.02),
            scripted_server,
        )


async def result_of(id: str, fault: Fault, **facts: int) -> Result:
    async with context_on(fault, **facts) as (context, _):
        return await run_one(BY_ID[id], context, 60.0)


# ---- what a right server may do --------------------------------------------------------------------------------------


async def test_now_and_then_an_entry_may_have_fewer_alternatives_than_asked_for() -> None:
    """The reference says so. Red when one short list is a failure, or when short lists everywhere are none."""
    some = whole(first_entry(lambda entry: entry["top_logprobs"].pop()))
    assert (await result_of("logprobs.entries", some)).status is Status.PASSED

    def all_short(body: dict[str, Any]) -> None:
        for entry in (body["choices"][0]["logprobs"] or {}).get("content", ()):
            entry["top_logprobs"].pop()

    assert (await result_of("logprobs.entries", whole(all_short))).status is Status.FAILED


async def test_a_token_that_stands_for_no_text_may_have_null_bytes() -> None:
    end = {"token": "<|end|>", "logprob": -0.1, "bytes": None, "top_logprobs": []}
    ended = whole(
        lambda body: body["choices"][0]["logprobs"]["content"].append(end), when=lambda body: body.get("logprobs")
    )
    assert (await result_of("logprobs.bytes", ended)).status is Status.PASSED


async def test_a_context_that_is_too_long_to_overflow_is_not_judged() -> None:
    """Red when a prompt that fits is taken for one that does not."""
    for one in ("limits.context_overflow", "limits.context_overflow_wording"):
        assert (await result_of(one, Fault(), max_model_len=1_000_000)).status is Status.SKIPPED


async def test_seeds_that_do_not_hold_are_advice_also_while_processes_are_killed() -> None:
    """Red when a sampled answer of a server that ignores seeds has to come back the same."""
    ignores_seeds = request(lambda body: body.pop("seed", None))
    assert (await result_of("chaos.kill_no_silent_end", ignores_seeds)).status is Status.PASSED


@pytest.mark.parametrize("is_up", [True, False])
async def test_a_fault_of_the_oracle_is_none_of_the_server(is_up: bool) -> None:
    broken = ScriptedOpenAI(status(lambda call: call.method == "POST", 500))
    async with context_on(Fault()) as (context, _):
        async with scripted(broken) as url, Server(url, None, 60.0) as oracle:
            context.oracle = oracle
            if is_up:
                result = await run_one(BY_ID["oracle.usage"], context, 60.0)
        if not is_up:
            async with Server(url, None, 60.0) as context.oracle:
                result = await run_one(BY_ID["oracle.usage"], context, 60.0)
    assert result.status is Status.SKIPPED and "oracle" in result.reason


async def test_a_server_that_wants_json_to_be_named_offers_json_objects() -> None:
    """The reference says that the prompt has to ask for it. Red when the question whether it is offered does not."""

    def refuse(call: Call, answer: Reply) -> None:
        if b"json_object" in call.raw and b"JSON" not in call.raw:
            answer.status, answer.body = 400, error(400, "messages must contain the word JSON").body

    async with context_on(Fault(reply=refuse)) as (context, _):
        facts = await find_facts(context.server, None, has_oracle=True, has_processes=True)
    assert facts.has(Need.JSON_OBJECT)


async def test_null_is_for_members_that_the_reference_declares_nullable() -> None:
    """`user` is a string there."""
    no_null_user = status(lambda call: isinstance(call.body, dict) and call.body.get("user", "") is None, 400)
    assert (await result_of("shape.null_fields", no_null_user)).status is Status.PASSED


async def test_near_ties_of_short_answers_are_none_of_a_stream() -> None:
    """Red when they are asked for without the log probabilities that tell of the tie."""

    def entry(token: str, other: str) -> dict[str, Any]:
        top = [{"token": token, "logprob": -0.70}, {"token": other, "logprob": -0.71}]
        return {"token": token, "logprob": -0.70, "top_logprobs": top}

    def tie(call: Call, answer: Reply) -> None:
        if not isinstance(call.body, dict) or call.body.get("max_tokens") not in (1, 2, 3):
            return
        told = {"content": [entry("?", "!") if answer.chunks is not None else entry("!", "?")]}
        choice = answer.chunks[1]["choices"][0] if answer.chunks is not None else answer.body["choices"][0]
        if answer.chunks is not None:
            every_text(lambda text: "?")(answer.chunks)
        else:
            retext(lambda text: "!")(answer.body)
        choice["logprobs"] = told if call.body.get("logprobs") else None

    result = await result_of("stream.short_equals_whole", Fault(reply=tie))
    assert result.status is Status.PASSED and result.notes, result


async def test_a_slow_server_that_is_allowed_for_has_the_time_for_several_answers() -> None:
    """Red when a check ends at a limit of its own while each answer comes in time, or calls that a missing answer."""
    assert CheckOptions(url="u", timeout_s=550).check_timeout_s >= 5 * 550
    async with context_on(Fault()) as (context, _):
        result = await run_one(BY_ID["concurrency.equal"], context, 0.001)
    assert result.status is Status.FAILED and "the check was not over" in result.got


# ---- what a broken server may not pass with --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "id", ["chaos.kill_no_silent_end", "chaos.kill_in_prefill", "chaos.restart_each", "chaos.abort_and_kill"]
)
async def test_what_could_not_be_killed_did_not_survive(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a disturber that declines leaves a check to pass."""
    monkeypatch.setattr(aborts, "_NUM_ABORTS", 64)
    async with context_on(Fault()) as (context, server):
        context.disturber = ScriptedDisturber(server, can=())
        result = await run_one(BY_ID[id], context, 60.0)
    assert result.status is Status.SKIPPED, result


async def test_without_processes_there_is_no_restart_to_pass() -> None:
    async with context_on(Fault()) as (context, server):
        server.names = []
        assert (await run_one(BY_ID["chaos.restart_each"], context, 60.0)).status is Status.SKIPPED


async def test_a_check_that_is_skipped_leaves_no_stream_to_the_next() -> None:
    """Streams here wait for a disturbance. Red when those of a skipped check stay open."""
    async with context_on(Fault(at_disturbance=lambda server, action: None)) as (context, server):
        context.disturber = ScriptedDisturber(server, can=())
        assert (await run_one(BY_ID["chaos.short_pause"], context, 60.0)).status is Status.SKIPPED
        context.settle_s = 30.0
        assert await context.settled_at(True, 0.0) is None


async def test_a_readiness_that_always_says_no_notices_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stops, "NOTICE_S", 0.3)
    monkeypatch.setattr(recovery, "RECOVERY_S", 0.2)

    def hang(server: ScriptedOpenAI, action: str) -> None:
        server.broken = "hang" if action == "stop" else ""

    never_ready = status(lambda call: call.path in ("/ready", "/health"), 503)
    never_ready.at_disturbance = hang
    result = await result_of("chaos.stopped_is_noticed", never_ready)
    assert result.status is Status.FAILED and "no answer" in result.got


async def test_a_stopped_process_that_gets_every_second_request_is_not_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when one answer is enough, which another process may have given."""
    monkeypatch.setattr(stops, "NOTICE_S", 0.3)

    def hang(server: ScriptedOpenAI, action: str) -> None:
        server.broken, server.num_generating = ("hang_second", 0) if action == "stop" else ("", 0)

    result = await result_of("chaos.stopped_is_noticed", Fault(at_disturbance=hang))
    assert result.status is Status.FAILED and "no answer" in result.got


async def test_gauges_that_are_gone_after_the_aborts_are_not_at_their_baseline() -> None:
    left: list[bool] = []

    def edit(call: Call, answer: Reply) -> None:
        if call.path == "/metrics" and left:
            answer.status, answer.body = 500, b""
        elif isinstance(call.body, dict) and call.body.get("max_tokens", 0) > 100:
            left.append(True)

    result = await result_of("cancel.kv_returns", Fault(reply=edit))
    assert result.status is Status.FAILED and "/metrics" in result.got


async def test_a_leak_is_found_where_extensions_are_refused() -> None:
    """Red when each request to be aborted is refused, and nothing is left behind for that reason."""

    def refuse(call: Call, answer: Reply) -> None:
        if b"ignore_eos" in call.raw:
            answer.status, answer.chunks, answer.body = 400, None, error(400, "unknown field").body

    async with context_on(Fault(reply=refuse, leaks_kv=True)) as (context, _):
        context.facts = await find_facts(context.server, None, has_oracle=True, has_processes=True)
        assert (await run_one(BY_ID["sampling.min_tokens"], context, 60.0)).status is Status.SKIPPED
        assert (await run_one(BY_ID["cancel.kv_returns"], context, 60.0)).status is Status.FAILED


async def test_a_check_that_runs_out_of_time_leaves_no_stream_to_the_next() -> None:
    """Red when streams of which nothing has come yet stay open."""

    def hang(call: Call) -> None:
        server.broken = "hang" if isinstance(call.body, dict) and call.body.get("stream") else ""

    async with context_on(Fault(request=hang)) as (context, server):
        opening = asyncio.create_task(recovery.open_streams(context, await recovery.watched_requests(context, 1)))
        while server.broken != "hang":  # noqa: ASYNC110  # the server sets no event
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        names = [getattr(task.get_coro(), "__name__", "") for task in asyncio.all_tasks()]
    assert "_stream" not in names


# ---- odd answers -----------------------------------------------------------------------------------------------------


def _entry(**members: Any) -> Fault:
    return whole(first_entry(lambda entry: entry.update(members)))


def _both_prompts(**members: Any) -> Fault:
    """The first of two prompts in a list is answered otherwise than alone, with log probabilities of this form."""
    told = {"tokens": ["x"], "token_logprobs": [-1.0], "top_logprobs": [{}]} | members
    return whole(
        lambda body: body["choices"][0].update(text="x", logprobs=told),
        when=lambda body: isinstance(body.get("prompt"), list),
    )


ODD: dict[str, tuple[str, Fault]] = {
    "a delta is text": ("stream.role", chunks(lambda found: found[1]["choices"][0].update(delta="text"))),
    "choices are a number": ("stream.length", chunks(lambda found: found[1].update(choices=7))),
    "an id is a list": ("stream.chunks", chunks(lambda found: found[1].update(id=[]))),
    "a byte is too large": ("logprobs.bytes", _entry(bytes=[256])),
    "an alternative has no number": ("logprobs.entries", _entry(top_logprobs=3 * [{"token": "a", "logprob": None}])),
    "a number is infinite, which JSON cannot say": ("logprobs.count", _entry(logprob=float("-inf"))),
    "alternatives are a number": ("shape.completion_prompts", _both_prompts(top_logprobs=7)),
}


@pytest.mark.parametrize("name", ODD)
async def test_an_odd_answer_fails_its_check_and_does_not_end_the_run(name: str) -> None:
    id, fault = ODD[name]
    assert (await result_of(id, fault)).status is Status.FAILED


async def test_cards_and_tokens_of_another_form_say_nothing() -> None:
    edits: list[Callable[[Any], None]] = [put("text", "data", 0, "meta"), put(..., "data", 0, "max_model_len")]

    def edit(call: Call, answer: Reply) -> None:
        if call.path == "/v1/models":
            for one in edits:
                one(answer.body)
        if call.path == "/tokenize":
            answer.body = {"tokens": []}

    async with context_on(Fault(reply=edit)) as (context, _):
        facts = await find_facts(context.server, None, has_oracle=True, has_processes=True)
    assert {need.name for need in facts.lacking} >= {"CONTEXT_LENGTH", "TOKENIZE"}


@pytest.mark.parametrize("text", ["NaN", '{"a": -Infinity}', "[" * 100_000 + "]" * 100_000])
def test_what_json_parsers_of_clients_refuse_is_no_json(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_a_message_can_be_printed_whatever_it_says() -> None:
    exchange = Exchange(request=Request(method="POST", url="http://h/v1/completions", headers={}, body=b"{}"))
    raw = b'{"error": {"message": "half \\ud83c of it"}}'
    answer = Answer(exchange=exchange, status=400, headers={}, raw=raw, duration_s=0.1)
    assert answer.error_message == "half \\ud83c of it"
