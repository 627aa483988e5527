"""Keys that are made while the gateway runs, their limits in HTTP, and who sees which usage."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from metered_gateway import NOW_MS, metered, until
from scripted_gateway import MODEL, says

from relevo.core.errors import Unauthorized
from relevo.gateway.http.auth import ApiKeys, Caller
from relevo.gateway.metering.key_ring import KeyRing
from relevo.gateway.metering.keys import KeyRecord, revoke_key
from relevo.policy.admission.key_limits import KeyLimits, Period

BODY = {"model": MODEL, "prompt": "hi", "max_tokens": 50}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def record(key: str, **fields: Any) -> KeyRecord:
    digest = ApiKeys.of([key]).digests[0]
    values = {"key_id": "key-1", "prefix": key[:6], "name": "", "tenant": "acme", "is_admin": False}
    return KeyRecord(**(values | {"digest": digest, "limits": KeyLimits(), "created_at_ms": 0} | fields))


def test_the_ring_knows_fixed_keys_and_loaded_ones() -> None:
    ring = KeyRing(ApiKeys.of(["sk-fixed"]), lambda: NOW_MS)
    ring.load([record("rv-one", is_admin=True)])
    fixed = ring.identify(bearer("sk-fixed"))
    assert fixed.tenant == fixed.key_id == ApiKeys.of(["sk-fixed"]).digests[0][:16] and not fixed.is_admin
    assert ring.identify({"x-api-key": "rv-one"}) == Caller(tenant="acme", key_id="key-1", is_admin=True)


@pytest.mark.parametrize(
    "fields", [{"revoked_at_ms": 1}, {"expires_at_ms": NOW_MS}], ids=["revoked", "expires at this moment"]
)
def test_the_last_key_that_ends_does_not_open_the_server(fields: dict[str, int]) -> None:
    ring = KeyRing(ApiKeys(), lambda: NOW_MS)
    assert ring.identify({}) == Caller()
    ring.load([record("rv-one", **fields)])
    for headers in ({}, bearer("rv-one"), bearer("rv-other")):
        with pytest.raises(Unauthorized):
            ring.identify(headers)


async def test_a_priority_before_others_is_an_operators_grant_to_a_key() -> None:
    """Red if a key could put its requests before those of every other key."""
    async with metered(says("a")) as m:
        plain, _ = await m.make_key()
        granted, _ = await m.make_key(best_priority=-2)
        for asked, key, status in (
            (-1, plain, 400),
            (0, plain, 200),
            (3, plain, 200),
            (-2, granted, 200),
            (-3, granted, 400),
        ):
            for body, headers in ((BODY | {"priority": asked}, {}), (BODY, {"x-relevo-priority": str(asked)})):
                answer = await m.rig.post("/v1/completions", body, **bearer(key), **headers)
                assert answer.status_code == status, answer.text
                if status == 200:
                    assert m.rig.generator.requests[-1].priority == asked
                else:
                    assert answer.json()["error"]["param"] == "priority" and "granted" in answer.text
        assert all(row.outcome == "finished" for row in await m.written())


async def test_two_keys_of_a_tenant_share_prefixes_and_other_tenants_do_not() -> None:
    async with metered(says("a")) as m:
        keys = [(await m.make_key(tenant=tenant))[0] for tenant in ("acme", "acme", "other")]
        for key in keys:
            await m.rig.post("/v1/completions", BODY, **bearer(key))
        salts = [request.salt for request in m.rig.generator.requests]
        assert salts[0] == salts[1] != salts[2] and b"" not in salts


async def test_tokens_per_minute_in_http() -> None:
    async with metered(says("abc")) as m:
        key, _ = await m.make_key(tokens_per_minute=5)
        first = await m.rig.post("/v1/completions", BODY, **bearer(key))
        assert first.status_code == 200
        assert first.headers["x-ratelimit-limit-tokens"] == "5"
        assert first.headers["x-ratelimit-remaining-tokens"] == "3", "the prompt is charged before the answer begins"
        assert first.headers["x-ratelimit-reset-tokens"].endswith("s")
        second = await m.rig.post("/v1/completions", BODY | {"stream": True}, **bearer(key))
        assert second.status_code == 429
        error = second.json()["error"]
        assert error["code"] == "key_limit_reached" and "5 tokens a minute" in error["message"]
        assert int(second.headers["Retry-After"]) == 36  # 2 + 4 of 5 used: 3 tokens until there are 2, 12 s each
        assert second.headers["x-ratelimit-remaining-tokens"] == "0"
        assert m.metrics.rejections == ["tokens_per_minute"]
        assert len(m.rows()) == 1


async def test_a_stream_tells_its_limits_too() -> None:
    async with metered(says("a")) as m:
        key, _ = await m.make_key(tokens_per_minute=50)
        response = await m.rig.post("/v1/completions", BODY | {"stream": True}, **bearer(key))
        assert response.headers["x-ratelimit-remaining-tokens"] == "48"


@pytest.mark.parametrize(
    ("period", "retry_after"), [(Period.TOTAL, None), (Period.DAY, str(23 * 3600))], ids=["for ever", "a day"]
)
async def test_a_budget_in_http(period: Period, retry_after: str | None) -> None:
    async with metered(says("abc")) as m:
        key, _ = await m.make_key(budget=Decimal("0.09"), budget_period=period)
        # 2 x 0.003 + 4 x 0.02 are 0.086; a second prompt would be 0.092
        responses = [await m.rig.post("/v1/completions", BODY, **bearer(key)) for _ in range(2)]
        assert [response.status_code for response in responses] == [200, 429]
        refused = responses[1]
        assert refused.json()["error"]["code"] == "insufficient_quota"
        assert "0.09" in refused.json()["error"]["message"]
        assert refused.headers.get("Retry-After") == retry_after
        assert refused.headers["x-should-retry"] == "false"
        assert m.metrics.rejections == ["budget"]


async def test_what_was_spent_outlives_the_gateway_and_is_shared_between_gateways() -> None:
    """The account is made from the ledger, and rows of others are added to our own, each counted once."""
    async with metered(says("abc")) as m:
        key, record = await m.make_key(budget=Decimal("1"))
        for _ in range(2):
            await m.rig.post("/v1/completions", BODY, **bearer(key))
        account = m.meter.accounts._by_key[record.key_id].account
        assert account.committed == Decimal("0.172")
        await m.refresh.refresh(only_new=False)
        assert account.committed == Decimal("0.172"), "our own rows were counted twice or lost"
        theirs = "INSERT INTO usage_ledger SELECT {} FROM usage_ledger WHERE response_id = :one"
        columns = [name for (name,) in m.connection.read("SELECT name FROM pragma_table_info('usage_ledger')")]
        moved = ", ".join(
            {"request_id": "'x'", "ended_at_ms": str(NOW_MS - 60_000)}.get(str(c), str(c)) for c in columns
        )
        ((one,), *_) = m.connection.read("SELECT response_id FROM usage_ledger")
        m.connection.write([(theirs.format(moved), ({"one": one},))])
        await m.rig.post("/v1/completions", BODY, **bearer(key))
        await m.refresh.refresh(only_new=False)
        assert account.committed == Decimal("0.344"), "three of ours and one of theirs"

        m.meter.accounts.load([], 0, NOW_MS)  # as a gateway that starts anew
        m.meter.accounts.load([record], 0, NOW_MS + 1)
        m.meter.now_ms = lambda: NOW_MS + 1
        await m.refresh.refresh(only_new=True)
        assert m.meter.accounts._by_key[record.key_id].account.committed == Decimal("0.344")


async def test_a_revoked_key_ends_at_the_next_refresh_and_running_requests_go_on() -> None:
    async with metered(says("a")) as m:
        key, record = await m.make_key()
        assert (await m.rig.post("/v1/completions", BODY, **bearer(key))).status_code == 200
        revoke_key(m.connection.inner, record.key_id, NOW_MS)
        await m.refresh.refresh(only_new=True)
        refused = await m.rig.post("/v1/completions", BODY, **bearer(key))
        assert refused.status_code == 401 and "revoked" in refused.json()["error"]["message"]
        assert key not in refused.text


async def test_no_request_is_taken_while_keys_cannot_be_read() -> None:
    """A revocation must not wait for the end of an outage."""
    async with metered(says("a")) as m:
        m.meter.keys_failure = "the API keys cannot be read"
        assert (await m.rig.complete()).status_code == 503
        assert "keys" in (await m.rig.get("/ready")).json()["reason"]


async def test_a_key_sees_its_own_usage_and_an_admin_everybodys() -> None:
    async with metered(says("abc"), num_cached=1) as m:
        (one, first), (two, second), (boss, _) = [await m.make_key(is_admin=admin) for admin in (False, False, True)]
        for key in (one, two, two):
            await m.rig.post("/v1/completions", BODY, **bearer(key))
        mine = (await m.rig.get("/v1/usage", **bearer(one))).json()
        assert mine["data"] == [
            {
                **{"key": first.key_id, "model": MODEL, "day": "2026-11-30", "requests": 1},
                **{"prompt_tokens": 2, "cached_tokens": 1, "completion_tokens": 4},
                **{"unbilled_prompt_tokens": 0, "unbilled_completion_tokens": 0, "cost": "0.0837"},
            }
        ]
        asking_for_others = (await m.rig.get(f"/v1/usage?key={second.key_id}", **bearer(one))).json()
        assert asking_for_others["data"] == mine["data"]
        everybody = (await m.rig.get("/v1/usage?group_by=key", **bearer(boss))).json()
        assert {row["key"]: row["requests"] for row in everybody["data"]} == {first.key_id: 1, second.key_id: 2}
        assert everybody["total"]["cost"] == "0.2511"
        other = (await m.rig.get(f"/v1/usage?key={second.key_id}&group_by=", **bearer(boss))).json()
        assert other["total"]["requests"] == 2
        assert (await m.rig.get("/v1/usage")).status_code == 401


@pytest.mark.parametrize("query", ["group_by=nothing", "since=yesterday", "until=x"])
async def test_a_wrong_usage_query_is_a_400_that_names_the_field(query: str) -> None:
    async with metered() as m:
        response = await m.rig.get(f"/v1/usage?{query}")
        assert response.status_code == 400
        assert response.json()["error"]["param"] == query.partition("=")[0]


async def test_usage_is_bounded_by_time() -> None:
    async with metered(says("a")) as m:
        await m.rig.complete()
        for query, num_requests in (
            ("since=2026-11-30", 1),
            ("since=2026-12-01", 0),
            ("until=2026-11-30T01:00:00Z", 0),
            (f"since={NOW_MS // 1000}", 1),
        ):
            assert (await m.rig.get(f"/v1/usage?{query}")).json()["total"]["requests"] == num_requests, query


async def test_many_requests_at_once_cannot_pass_a_budget_together() -> None:
    """Each prompt is charged when it enters. Red when the check and the charge come apart."""
    async with metered(says("a")) as m:
        key, _ = await m.make_key(budget=Decimal("0.02"))  # three prompts of 0.006
        m.connection.gate.clear()
        answers = [asyncio.create_task(m.rig.post("/v1/completions", BODY, **bearer(key))) for _ in range(10)]
        await until(lambda: sum(answer.done() for answer in answers) >= 7)
        m.connection.gate.set()
        statuses = sorted([(await answer).status_code for answer in answers])
        assert statuses.count(429) >= 7


async def test_what_was_spent_is_counted_once_as_time_goes_by_and_not_in_the_next_period() -> None:
    """Rows move from "ended here lately" to "in the ledger"; at midnight of UTC neither counts any more."""
    async with metered(says("abc")) as m:
        midnight_ms = NOW_MS + 23 * 3_600_000
        m.meter.now_ms = lambda: midnight_ms - 5_000
        key, record = await m.make_key(budget=Decimal(1), budget_period=Period.DAY)
        await m.rig.post("/v1/completions", BODY, **bearer(key))
        account = m.meter.accounts._by_key[record.key_id].account
        for later_ms, expected in ((0, "0.086"), (4_000, "0.086"), (6_000, "0"), (60_000, "0")):
            m.meter.now_ms = lambda later_ms=later_ms: midnight_ms - 5_000 + later_ms
            m.meter.accounts._by_key[record.key_id].was_used = True
            await m.refresh.refresh(only_new=False)
            assert account.committed == Decimal(expected), later_ms


async def test_a_row_that_leaves_the_recent_ones_is_still_counted_once() -> None:
    async with metered(says("abc")) as m:
        key, record = await m.make_key(budget=Decimal(1))
        account = m.meter.accounts._by_key[record.key_id].account
        for seconds in range(0, 61, 5):
            m.meter.now_ms = lambda seconds=seconds: NOW_MS + seconds * 1000
            if seconds in (0, 20):
                await m.rig.post("/v1/completions", BODY, **bearer(key))
            m.meter.accounts._by_key[record.key_id].was_used = True
            await m.refresh.refresh(only_new=False)
            assert account.committed == (Decimal("0.086") if seconds < 20 else Decimal("0.172")), seconds


async def test_a_row_that_waits_to_be_written_is_counted() -> None:
    async with metered(says("abc")) as m:
        key, record = await m.make_key(budget=Decimal(1))
        await m.refresh.refresh(only_new=False)
        m.connection.gate.clear()
        answering = asyncio.create_task(m.rig.post("/v1/completions", BODY, **bearer(key)))
        await until(lambda: m.meter.writer.num_pending == 1)
        for seconds in (1, 20):
            m.meter.now_ms = lambda seconds=seconds: NOW_MS + seconds * 1000
            m.meter.accounts._by_key[record.key_id].was_used = True
            await m.refresh.refresh(only_new=False)
            assert m.meter.accounts._by_key[record.key_id].account.committed == Decimal("0.086")
        m.connection.gate.set()
        assert (await answering).status_code == 200
