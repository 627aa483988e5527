"""Every way out of a request and the row it leaves; what waits for the ledger; what happens when it cannot be written.

Red when a path forgets or doubles a row, when a token that `usage` tells is not billed as told, when anything that
makes an answer complete is sent before its row is kept, and when a full disk loses a row without a word.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from metered_gateway import NOW_MS, Metered, metered, until
from scripted_gateway import MODEL, Hang, Step, events, ids, raw_call, says

from relevo.core.errors import DeadlineExceeded, NoWorker, Overloaded, WorkerLost
from relevo.core.request import FinishReason
from relevo.gateway.generation import reply
from relevo.gateway.generation.kept_answer import KeptAnswer
from relevo.gateway.http import sse
from relevo.gateway.metering.journal import Journal
from relevo.gateway.metering.keys import revoke_key
from relevo.gateway.metering.ledger import LedgerRow
from relevo.policy.admission.key_limits import KeyLimits

PROMPT = "hi"  # 2 tokens
LENGTH = FinishReason.LENGTH


def tokens(row: LedgerRow) -> tuple[int, int, int, int, int]:
    return (
        *(row.prompt_tokens, row.cached_tokens, row.completion_tokens),
        *(row.unbilled_prompt_tokens, row.unbilled_completion_tokens),
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_a_finished_request_is_billed_as_usage_says(stream: bool) -> None:
    async with metered(says("abc"), num_cached=1) as m:
        response = await m.rig.complete(prompt="hello", stream=stream, stream_options={"include_usage": True})
        (row,) = m.rows()  # there already when the answer is
        usage = events(response)[-2]["usage"] if stream else response.json()["usage"]
        assert tokens(row) == (5, 1, 4, 0, 0)
        assert usage["prompt_tokens"] == 5 and usage["completion_tokens"] == 4
        assert usage["prompt_tokens_details"]["cached_tokens"] == 1
        assert Decimal(row.cost) == Decimal("0.003") * 4 + Decimal("0.0007") + Decimal("0.02") * 4
        assert (row.outcome, row.model, row.ended_at_ms) == ("finished", MODEL, NOW_MS)
        assert row.response_id == (events(response)[0]["id"] if stream else response.json()["id"])
        assert m.metrics.outcomes == ["finished"]


async def test_choices_and_prompts_are_one_row() -> None:
    script = [*says("ab", sample=0), *says("c", sample=1, end=LENGTH)]
    async with metered(script, num_cached=1) as m:
        response = await m.rig.complete(prompt=["hello", "you"], n=2)
        (row,) = m.rows()
        assert tokens(row) == (8, 2, 8, 0, 0)
        assert response.json()["usage"]["completion_tokens"] == 8


async def test_a_stop_string_ends_the_bill_where_it_ends_the_usage() -> None:
    async with metered(says("abcdef")) as m:
        response = await m.rig.complete(stop=["c"], stream=False)
        assert response.json()["usage"]["completion_tokens"] == m.rows()[0].completion_tokens == 3


async def test_requests_with_the_same_id_have_a_row_each() -> None:
    async with metered(says("a")) as m:
        for _ in range(2):
            await m.rig.post("/v1/completions", {"model": MODEL, "prompt": PROMPT}, **{"x-request-id": "twice"})
        rows = m.rows()
        assert len({row.request_id for row in rows}) == 2 and {row.response_id for row in rows} == {"cmpl-twice"}


async def leave_while_it_hangs(m: Metered, **fields: Any) -> list[dict[str, Any]]:
    async def leave() -> dict[str, Any]:
        await m.rig.generator.hanging.wait()
        return {"type": "http.disconnect"}

    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 50} | fields
    return await raw_call(m.rig.app, body, leave, path="/v1/completions")


@pytest.mark.parametrize(
    ("fields", "billed"),
    [({"stream": True}, (2, 1, 3, 0, 0)), ({"stream": False}, (2, 1, 3, 0, 0))],
    ids=["a stream", "a whole answer"],
)
async def test_a_client_that_leaves_is_billed_its_prompt_and_what_was_computed_for_it(
    fields: dict[str, Any], billed: tuple[int, ...]
) -> None:
    async with metered([*says("abc", end=LENGTH)[:2], (0, ids("c"), None), Hang()], num_cached=1) as m:
        await leave_while_it_hangs(m, **fields)
        (row,) = await m.written()
        assert (row.outcome, row.cause, tokens(row)) == ("aborted", "client_gone", billed)


async def test_a_client_that_leaves_before_its_prompt_was_computed_pays_nothing() -> None:
    async with metered([Hang()]) as m:
        await leave_while_it_hangs(m, stream=True)
        (row,) = await m.written()
        assert (row.outcome, tokens(row), row.cost) == ("aborted", (0, 0, 0, 0, 0), "0")


@pytest.mark.parametrize(
    ("error", "outcome", "cause"),
    [
        (DeadlineExceeded("over"), "aborted", "client_timeout"),
        (WorkerLost("gone"), "failed", "worker_failed"),
        (RuntimeError("a bug"), "failed", "internal"),
    ],
)
async def test_what_was_delivered_is_billed_whatever_ended_it(error: Exception, outcome: str, cause: str) -> None:
    async with metered([(0, ids("ab"), None), error], num_cached=1) as m:
        response = await m.rig.complete(stream=True)
        *_, last = events(response)
        assert "error" in last
        (row,) = await m.written()
        assert (row.outcome, row.cause, tokens(row)) == (outcome, cause, (2, 1, 2, 0, 0))
        assert Decimal(row.cost) > 0


async def test_a_whole_answer_that_its_client_ran_out_of_time_for_is_billed_as_computed() -> None:
    async with metered([(0, ids("ab"), None), DeadlineExceeded("over")], num_cached=1) as m:
        assert (await m.rig.complete(stream=False)).status_code == 504
        (row,) = await m.written()
        assert (row.outcome, tokens(row)) == ("aborted", (2, 1, 2, 0, 0))


async def test_a_client_that_runs_out_of_time_before_its_first_token_pays_nothing_and_has_a_row() -> None:
    async with metered([DeadlineExceeded("over")]) as m:
        key, _ = await m.make_key(tokens_per_minute=3)
        answers = [
            await m.rig.post("/v1/completions", {"model": MODEL, "prompt": PROMPT}, authorization=f"Bearer {key}")
            for _ in range(2)
        ]
        assert [answer.status_code for answer in answers] == [504, 429], "its tokens of the minute are not given back"
        (row,) = await m.written()
        assert (row.outcome, row.cause, tokens(row)) == ("aborted", "client_timeout", (0, 0, 0, 0, 0))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_budget_ends_what_runs_one_step_behind_it(stream: bool) -> None:
    """2 prompt tokens of 0.003, then 0.02 a token: 0.05 is used up by the third."""
    async with metered(says("abcdef")) as m:
        key, record = await m.make_key(budget=Decimal("0.05"))
        body = {"model": MODEL, "prompt": PROMPT, "stream": stream}
        response = await m.rig.post("/v1/completions", body, authorization=f"Bearer {key}")
        error = events(response)[-1]["error"] if stream else response.json()["error"]
        assert error["code"] == "insufficient_quota"
        assert response.status_code == (200 if stream else 429)
        (row,) = await m.written()
        assert (row.outcome, row.cause, row.completion_tokens, row.cost) == ("aborted", "budget_spent", 3, "0.066")
        assert m.meter.accounts._by_key[record.key_id].account.committed == Decimal("0.066")


async def test_a_budget_ends_streams_that_run_together_one_step_each_behind_it() -> None:
    def script(request: Any) -> Sequence[Step]:
        return says("x" * 150, end=LENGTH)

    async with metered(script) as m:
        key, _ = await m.make_key(budget=Decimal("1"))
        body = {"model": MODEL, "prompt": PROMPT, "stream": True, "max_tokens": 150}
        async with m.rig.client(authorization=f"Bearer {key}") as client:
            answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(7)))
        assert {answer.status_code for answer in answers} <= {200, 429}
        rows = await m.written()
        total = sum(Decimal(row.cost) for row in rows)
        assert Decimal(1) < total <= Decimal(1) + Decimal("0.02") * len(rows)


async def test_an_answer_that_completes_with_its_last_token_is_not_refused() -> None:
    async with metered(says("a", end=LENGTH)) as m:
        key, _ = await m.make_key(budget=Decimal("0.01"))
        body = {"model": MODEL, "prompt": PROMPT}
        assert (await m.rig.post("/v1/completions", body, authorization=f"Bearer {key}")).status_code == 200
        assert (await m.rig.post("/v1/completions", body, authorization=f"Bearer {key}")).status_code == 429


async def test_a_revoked_key_ends_what_runs_at_its_next_step() -> None:
    step = asyncio.Event()
    async with metered([(0, ids("a"), None), Hang(), (0, ids("b"), None), Hang()]) as m:
        m.rig.generator.resume = step
        key, record = await m.make_key()
        body = {"model": MODEL, "prompt": PROMPT, "stream": True}
        answering = asyncio.create_task(m.rig.post("/v1/completions", body, authorization=f"Bearer {key}"))
        await m.rig.generator.hanging.wait()
        revoke_key(m.connection.inner, record.key_id, NOW_MS)
        await m.refresh.refresh(only_new=True)
        step.set()
        *_, last = events(await answering)
        assert last["error"]["code"] == "invalid_api_key" and "revoked" in last["error"]["message"]
        (row,) = await m.written()
        assert (row.outcome, row.cause, row.completion_tokens) == ("aborted", "key_ended", 2)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_too_large_to_be_kept_is_billed(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if asking for one, or leaving one unread, has prompts and tokens computed for nothing."""
    monkeypatch.setattr(reply, "KeptAnswer", partial(KeptAnswer, max_bytes=10))
    monkeypatch.setattr(sse, "MAX_UNREAD_BYTES", 100)
    async with metered(says("abcdef", tokens_per_step=3)) as m:
        response = await m.rig.complete(prompt=PROMPT, stream=stream)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "answer_too_large")
        (row,) = await m.written()
        assert (row.outcome, row.cause) == ("aborted", "answer_too_large")
        assert tokens(row) == (2, 0, 3, 0, 0)


async def test_a_limit_that_a_key_gets_while_it_runs_counts_what_runs() -> None:
    step = asyncio.Event()
    async with metered([(0, ids("a"), None), Hang(), (0, ids("b"), None), Hang()]) as m:
        m.rig.generator.resume = step
        key, record = await m.make_key()
        body = {"model": MODEL, "prompt": PROMPT, "stream": True}
        answering = asyncio.create_task(m.rig.post("/v1/completions", body, authorization=f"Bearer {key}"))
        await m.rig.generator.hanging.wait()
        limited = replace(record, limits=KeyLimits(budget=Decimal("0.01")))
        m.meter.accounts.load([limited], m.meter.clock.now_ns(), NOW_MS)
        step.set()
        *_, last = events(await answering)
        assert last["error"]["code"] == "insufficient_quota"


@pytest.mark.parametrize("stream", [False, True])
async def test_our_own_failure_before_anything_was_delivered_is_not_billed(stream: bool) -> None:
    script: Sequence[Step] = [WorkerLost("gone")] if stream else [(0, ids("ab"), None), WorkerLost("gone")]
    async with metered(script, num_cached=1) as m:
        assert (await m.rig.complete(stream=stream)).status_code == 503
        (row,) = await m.written()
        unbilled = (0, 0) if stream else (2, 2)
        assert (row.outcome, tokens(row), row.cost) == ("failed", (0, 0, 0, *unbilled), "0")


async def test_one_failed_prompt_of_several_makes_the_answer_a_failure() -> None:
    def script(request: Any) -> Sequence[Step]:
        return [WorkerLost("gone")] if len(request.prompt_token_ids) == 3 else [(0, ids("a"), None), Hang()]

    async with metered(script) as m:
        response = await m.rig.complete(prompt=["hello", "you"])
        (row,) = await m.written()
        assert response.status_code == 503
        assert row.outcome == "failed" and row.prompt_tokens == row.completion_tokens == 0


@pytest.mark.parametrize(
    ("script", "fields", "status"),
    [
        ([Overloaded("full")], {}, 429),
        ([NoWorker("none")], {"stream": True}, 503),
        (says("a"), {"temperature": -1}, 400),
        (says("a"), {"model": "nobody"}, 404),
        (says("a"), {"prompt": [1] * 500}, 400),
    ],
)
async def test_what_was_never_admitted_has_no_row(script: Sequence[Step], fields: dict[str, Any], status: int) -> None:
    async with metered(script) as m:
        assert (await m.rig.complete(**fields)).status_code == status
        assert await m.written() == []


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_that_completes_an_answer_goes_out_before_its_row_is_kept(stream: bool) -> None:
    async with metered(says("ab")) as m:
        m.connection.gate.clear()
        sent: list[Any] = []
        sending = asyncio.create_task(_call_into(m, sent, stream=stream))
        await until(lambda: m.connection.num_writes > 0)
        body = b"".join(message.get("body", b"") for message in sent)
        assert b'finish_reason":"stop"' not in body and b"[DONE]" not in body and b"usage" not in body
        assert (b'"text":"b"' in body) == stream, "text does not wait"
        m.connection.gate.set()
        await sending
        body = b"".join(message.get("body", b"") for message in sent)
        assert b'finish_reason":"stop"' in body
        assert len(m.rows()) == 1


async def _call_into(m: Metered, sent: list[Any], *, stream: bool) -> None:
    import orjson

    body = orjson.dumps({"model": MODEL, "prompt": PROMPT, "max_tokens": 50, "stream": stream})
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return pending.pop() if pending else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b""}
    await m.rig.app(scope, receive, send)


async def test_a_client_that_leaves_while_its_row_is_written_has_finished() -> None:
    async with metered(says("ab")) as m:
        m.connection.gate.clear()

        async def leave() -> dict[str, Any]:
            await until(lambda: m.connection.num_writes > 0)
            return {"type": "http.disconnect"}

        await raw_call(m.rig.app, {"model": MODEL, "prompt": PROMPT, "stream": True}, leave, path="/v1/completions")
        m.connection.gate.set()
        (row,) = await m.written()
        assert (row.outcome, row.completion_tokens) == ("finished", 3)


async def test_a_full_disk_takes_no_new_request_shows_it_and_loses_no_row() -> None:
    async with metered(says("ab")) as m:
        m.connection.full = True
        answering = asyncio.create_task(m.rig.complete())
        await until(lambda: bool(m.meter.failure))
        refused = await m.rig.complete()
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "ledger_unavailable"
        assert "Retry-After" in refused.headers and m.metrics.rejections == ["ledger"]
        ready = await m.rig.get("/ready")
        assert ready.status_code == 503 and "ledger" in ready.json()["reason"]
        health = await m.rig.get("/health")
        assert health.status_code == 200 and health.json()["status"] == "degraded"
        assert m.metrics.num_failures and not m.metrics.is_up
        m.connection.full = False
        assert (await answering).status_code == 200
        assert not m.meter.failure and m.metrics.is_up
        assert (await m.rig.get("/health")).json()["status"] == "ok"
        assert [row.outcome for row in m.rows()] == ["finished"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_whose_row_nothing_keeps_in_time_fails_and_is_billed_what_was_delivered(stream: bool) -> None:
    async with metered(says("ab"), commit_timeout_s=0.01) as m:
        key, record = await m.make_key(budget=Decimal(1))
        m.connection.full = True
        response = await m.rig.post(
            "/v1/completions", {"model": MODEL, "prompt": PROMPT, "stream": stream}, authorization=f"Bearer {key}"
        )
        if stream:
            assert [event["error"]["code"] for event in events(response) if "error" in event] == ["ledger_unavailable"]
            assert "[DONE]" not in events(response)
        else:
            assert response.status_code == 503
        m.connection.full = False
        (row,) = await m.written()
        billed = (2, 0, 3, 0, 0) if stream else (0, 0, 0, 2, 3)
        assert (row.outcome, row.cause, tokens(row)) == ("failed", "ledger_failed", billed)
        account = m.meter.accounts._by_key[record.key_id].account
        assert account.committed == Decimal(row.cost) == (Decimal("0.066") if stream else 0)


async def test_rows_that_cannot_be_written_before_the_end_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with metered([*says("ab")[:1], Hang()]) as m:
        m.connection.full = True
        await leave_while_it_hangs(m, stream=True)
        with caplog.at_level(logging.ERROR):
            await m.meter.writer.close(0.0)
        (line,) = [record.getMessage() for record in caplog.records if "was not written" in record.getMessage()]
        assert '"outcome": "aborted"' in line and '"completion_tokens": 1' in line


async def test_rows_of_a_journal_that_was_taken_away_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By another process, with the folder in which it could be written again."""
    folder = tmp_path / "journal"
    async with metered([*says("ab")[:1], Hang()], journal=Journal(folder, "name")) as m:
        m.connection.full = True
        await leave_while_it_hangs(m, stream=True)
        await m.meter.writer.spill()
        shutil.rmtree(folder)
        folder.write_text("")
        with caplog.at_level(logging.ERROR):
            await m.meter.writer.close(0.0)
        (line,) = [record.getMessage() for record in caplog.records if "was not written" in record.getMessage()]
        assert '"outcome": "aborted"' in line


async def test_rows_that_wait_are_one_transaction() -> None:
    async with metered(says("a")) as m:
        m.connection.gate.clear()
        first = asyncio.create_task(m.rig.complete())
        await until(lambda: m.connection.num_writes == 1)
        answers = [asyncio.create_task(m.rig.complete()) for _ in range(20)]
        await until(lambda: m.meter.writer.num_pending == 21)
        m.connection.gate.set()
        await asyncio.gather(first, *answers)
        assert len(m.rows()) == 21
        assert m.connection.num_writes == 2  # the first row, and everything that came while it was written


async def test_a_request_that_is_cut_off_at_the_end_is_not_lost_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    async with metered([*says("ab")[:1], Hang()]) as m:
        answering = asyncio.create_task(m.rig.complete(stream=True))
        await m.rig.generator.hanging.wait()
        await m.meter.writer.close(30.0)
        with caplog.at_level(logging.ERROR):
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            await m.meter.all_closed.wait()
        assert any("was not written" in record.getMessage() for record in caplog.records)


async def test_the_meter_knows_when_every_tab_is_closed() -> None:
    async with metered([*says("ab")[:1], Hang()]) as m:
        assert m.meter.all_closed.is_set()
        answering = asyncio.create_task(m.rig.complete())
        await m.rig.generator.hanging.wait()
        assert not m.meter.all_closed.is_set()
        answering.cancel()
        await m.meter.all_closed.wait()
        (row,) = await m.written()
        assert row.outcome == "failed", "the client did not leave: the server was stopped"
