"""Every check passes on a server that does all right, and fails on one with exactly the fault it is there to find."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
from check_faults import FAULTS
from scripted_answers import MODEL, Call, Reply, error
from scripted_openai import MAX_MODEL_LEN, Fault, ScriptedDisturber, ScriptedOpenAI, scripted

from relevo.check import beside
from relevo.check.blackbox import cancel, hostile, stream, tenants
from relevo.check.catalogue import CHECKS, chosen
from relevo.check.chaos import aborts, recovery, stops
from relevo.check.context import CheckContext
from relevo.check.facts import Facts, find_facts
from relevo.check.run import run_one
from relevo.check.server import Server
from relevo.check.words import Check, Level, Need, Result, Status
from relevo.core.errors import SettingsError

KEY = "right-key"
OTHER_KEY = "other-key"
BY_ID = {one.id: one for one in CHECKS}


@asynccontextmanager
async def contexts(
    fault: Fault, *, timeout_s: float, settle_s: float, holds_long: bool = False
) -> AsyncIterator[CheckContext]:
    """A context against a server with `fault`, with a faultless oracle and processes to disturb."""
    broken, right = ScriptedOpenAI(api_key=KEY, other_key=OTHER_KEY), ScriptedOpenAI(api_key=KEY)
    broken.fault, broken.holds_long = fault, holds_long
    broken.token_delay_s = 0.0002 if fault.one_at_a_time else broken.token_delay_s
    async with (
        scripted(broken) as url,
        scripted(right) as oracle_url,
        Server(url, KEY, timeout_s) as server,
        Server(oracle_url, KEY, 60.0) as oracle,
        Server(url, OTHER_KEY, timeout_s) as other,
    ):
        yield CheckContext(
            server,
            Facts(MODEL, MAX_MODEL_LEN),
            Random(1),
            settle_s,
            oracle,
            MODEL,
            disturber=ScriptedDisturber(broken),
            other=other,
            pause_s=0.02,
        )


@pytest.fixture(autouse=True)
def small_storms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aborts, "_NUM_ABORTS", 64)
    monkeypatch.setattr(cancel, "_NUM_RANDOM", 8)
    monkeypatch.setattr(hostile, "_HUGE_TEXT", "word " * 4_000)
    for name in ("_NUM_STOP_IDS", "_NUM_BIASES", "_NUM_MESSAGES", "_NUM_FIELDS"):
        monkeypatch.setattr(hostile, name, 2_000)
    for name, num in (("_NUM_FLOOD", 16), ("_NUM_STREAMS", 16), ("_STREAM_TOKENS", 128), ("_NUM_CHOICES", 8)):
        monkeypatch.setattr(tenants, name, num)


def told(result: Result) -> str:
    return f"{result.status}: {result.got}{result.reason} {result.notes}"


@pytest.mark.parametrize("one", CHECKS, ids=lambda one: one.id)
async def test_passes_where_all_is_right(one: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a check demands more than a right server does."""
    monkeypatch.setattr(stream, "_SLOW_S", float("inf"))  # how busy this machine is says nothing about a server
    monkeypatch.setattr(beside, "LONGEST_GAP_S", float("inf"))
    async with contexts(Fault(), timeout_s=60.0, settle_s=30.0, holds_long=one.group == "tenants") as context:
        result = await run_one(one, context, 60.0)
    assert result.status is Status.PASSED, told(result)


@pytest.mark.parametrize("one", CHECKS, ids=lambda one: one.id)
async def test_fails_on_its_fault(one: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a check stops seeing what it is there for."""
    monkeypatch.setattr(recovery, "RECOVERY_S", 0.2)
    monkeypatch.setattr(stops, "NOTICE_S", 1.0)
    fault = FAULTS[one.id]
    timeout_s = 60.0 if fault.one_at_a_time else 1.0
    async with contexts(fault, timeout_s=timeout_s, settle_s=0.1) as context:
        result = await run_one(one, context, 60.0)
    wanted = Status.FAILED if one.level is Level.MUST else Status.ADVICE
    assert result.status is wanted, told(result)
    assert result.expected and result.got


async def test_a_stream_that_comes_all_at_once_at_the_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when arrival times are no longer those of the text."""
    monkeypatch.setattr(stream, "_SLOW_S", 0.0)

    def hold_back(call: Call, answer: Reply) -> None:
        answer.burst = True

    async with contexts(Fault(reply=hold_back), timeout_s=60.0, settle_s=1.0) as context:
        result = await run_one(BY_ID["stream.incremental"], context, 60.0)
    assert result.status is Status.FAILED and "had come only after" in result.got


def test_there_are_enough_and_each_has_its_fault() -> None:
    assert set(FAULTS) == set(BY_ID)
    blackbox = [one for one in CHECKS if Need.PROCESSES not in one.needs]
    assert len(blackbox) >= 60
    for one in CHECKS:
        assert one.expects.endswith(".") and one.why.endswith(".") and one.source


def test_patterns_choose_by_id_group_and_glob() -> None:
    assert [one.id for one in chosen(["stop.string"], [])] == ["stop.string"]
    assert {str(one.group) for one in chosen(["sse", "stop.*"], [])} == {"sse", "stop"}
    assert chosen([], ["*"]) == ()
    with pytest.raises(SettingsError, match="names no check"):
        chosen(["no.such"], [])


async def test_a_server_that_offers_everything_lacks_nothing() -> None:
    async with scripted(ScriptedOpenAI(api_key=KEY)) as url, Server(url, KEY, 60.0) as server:
        facts = await find_facts(server, None, has_oracle=True, has_processes=True, other=server)
    assert (facts.model, facts.max_model_len, facts.lacking) == (MODEL, MAX_MODEL_LEN, {})


REFUSALS = {
    Need.COMPLETIONS: lambda call: call.path == "/v1/completions",
    Need.CHAT_LOGPROBS: lambda call: b"top_logprobs" in call.raw,
    Need.COMPLETION_LOGPROBS: lambda call: b'"logprobs":2' in call.raw and b"prompt" in call.raw,
    Need.CHOICES: lambda call: b'"n":2' in call.raw,
    Need.ECHO: lambda call: b'"echo"' in call.raw,
    Need.TOOLS: lambda call: b'"tools"' in call.raw,
    Need.FORCED_TOOL: lambda call: b'"tool_choice":{' in call.raw,
    Need.JSON_OBJECT: lambda call: b"json_object" in call.raw,
    Need.JSON_SCHEMA: lambda call: b"json_schema" in call.raw,
    Need.REQUIRED_TOOL: lambda call: b'"tool_choice":"required"' in call.raw,
    Need.STRUCTURED_OUTPUTS: lambda call: b"structured_outputs" in call.raw,
    Need.RESPONSES: lambda call: call.path == "/v1/responses",
    Need.RESPONSES_CALL: lambda call: call.path == "/v1/responses" and b"tool_choice" in call.raw,
    Need.STORED_RESPONSES: lambda call: b'"store":true' in call.raw,
    Need.INPUT_TOKENS: lambda call: call.path == "/v1/responses/input_tokens",
    Need.MESSAGES: lambda call: call.path == "/v1/messages",
    Need.MESSAGES_CALL: lambda call: call.path == "/v1/messages" and b"tool_choice" in call.raw,
    Need.COUNT_TOKENS: lambda call: call.path == "/v1/messages/count_tokens",
    Need.LOGIT_BIAS: lambda call: b"logit_bias" in call.raw,
    Need.TOKENIZE: lambda call: call.path == "/tokenize",
    Need.RUNNING_METRIC: lambda call: call.path == "/metrics",
}


@pytest.mark.parametrize("need", REFUSALS, ids=lambda need: need.name)
async def test_what_a_server_refuses_is_skipped_with_its_reason(need: Need) -> None:
    """Red when a refusal counts as a failure, or an ignored field as a refusal."""

    def refuse(call: Call, answer: Reply) -> None:
        if REFUSALS[need](call):
            answer.status, answer.chunks, answer.body = 400, None, error(400, "not offered here").body

    one = next(one for one in CHECKS if need in one.needs)
    async with scripted(ScriptedOpenAI(Fault(reply=refuse))) as url, Server(url, None, 60.0) as server:
        facts = await find_facts(server, None, has_oracle=True, has_processes=True)
        assert need in facts.lacking
        result = await run_one(one, CheckContext(server, facts, Random(1), 1.0), 60.0)
    assert result.status is Status.SKIPPED
    if need not in (Need.TOKENIZE, Need.RUNNING_METRIC):
        assert "not offered here" in result.reason
