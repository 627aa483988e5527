"""GET /v1/requests over real dispatchers and step loops: what is told of a request, and to whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from in_process_stack import InProcessStack, in_process_stack, until
from scripted_gateway import (
    MODEL,
    Hang,
    RecordingMetrics,
    Rig,
    byte_tokenizer,
    raw_call,
    rig,
    says,
    scripted_app,
    served_model,
)

from relevo.build.clock import MonotonicClock
from relevo.core.errors import Overloaded
from relevo.gateway.http.auth import Caller
from relevo.gateway.metering.database import SqliteDatabase
from relevo.gateway.metering.schema import prepare
from relevo.gateway.requests.history import RequestHistory
from relevo.gateway.requests.report import report_of as report_of_kept
from relevo.gateway.requests.store import DatabaseReports
from relevo.gateway.text.served_models import ServedModels

SPLIT = {"prefill-0": "prefill", "decode-0": "decode"}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6}),
    "completions": ("/v1/completions", {"prompt": "hello there", "max_tokens": 6}),
    "responses": ("/v1/responses", {"input": "hi", "max_output_tokens": 16}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6}),
}


class TenantKeys:
    """A key is `TENANT` or `admin`."""

    is_open = False

    def identify(self, headers: Any) -> Caller:
        key = headers["authorization"].removeprefix("Bearer ")
        return Caller(tenant=key, key_id=f"key of {key}", is_admin=key == "admin")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def live_rig(stack: InProcessStack, number: int = 0, **context: Any) -> Rig:
    generator: Any = stack.gateways[number].dispatcher
    metrics = RecordingMetrics()
    models = ServedModels([served_model(generator, tokenizer=byte_tokenizer(), eos_token_ids=(256,))])
    return Rig(generator, metrics, scripted_app(models, metrics, **({"clock": MonotonicClock()} | context)))


@asynccontextmanager
async def served(roles: dict[str, str] = SPLIT, **context: Any) -> AsyncIterator[tuple[InProcessStack, Rig]]:
    async with in_process_stack(roles, num_gateways=1) as stack:
        yield stack, live_rig(stack, **context)


async def report_of(one: Rig, response: httpx.Response, **headers: str) -> dict[str, Any]:
    found = await one.get(f"/v1/requests/{response.headers['x-request-id']}", **headers)
    assert found.status_code == 200, found.text
    report: dict[str, Any] = found.json()
    return report


def check_sums(report: dict[str, Any]) -> None:
    """Phases are consecutive, and sum to what the report says of the request's times."""
    at_s = 0.0
    for phase in report["phases"]:
        assert phase["begins_s"] == pytest.approx(at_s, abs=1e-5)
        at_s += phase["took_s"]
    assert at_s == pytest.approx(report["e2e_s"], abs=1e-5)
    first = sum(phase["took_s"] for phase in report["phases"] if phase["before_first_token"])
    if report["ttft_s"] is not None:
        assert first == pytest.approx(report["ttft_s"], abs=1e-5)


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", CALLS)
async def test_phases_sum_to_the_times_of_the_record(api: str, is_streamed: bool) -> None:
    """Red when a mark is read from another clock, or the record and the marks end at different moments."""
    path, body = CALLS[api]
    async with served() as (_, one):
        response = await one.post(path, {"model": MODEL, "stream": is_streamed} | body)
        assert response.status_code == 200, response.text
        report = await report_of(one, response)
        (record,) = one.metrics.records
        check_sums(report)
        assert report["ttft_s"] == pytest.approx(record.times.ttft_s, abs=1e-6)
        assert report["e2e_s"] == pytest.approx(record.times.e2e_s, abs=1e-6)
        assert (report["state"], report["status"], report["outcome"]) == ("ended", 200, "finished")
        assert (report["num_prompt_tokens"], report["num_output_tokens"]) == (
            record.num_prompt_tokens,
            record.num_output_tokens,
        )
        names = {phase["name"] for phase in report["phases"]}
        assert {"prepare", "prefill", "decode"} <= names
        by_answer = await one.get(f"/v1/requests/{report['response_id']}")
        by_engine = await one.get(f"/v1/requests/{report['engine_request_ids'][0]}")
        assert by_answer.json() == by_engine.json() == report


async def test_several_prompts_and_choices_are_told_apart() -> None:
    body = {"model": MODEL, "prompt": ["one", "another"], "n": 2, "max_tokens": 4}
    async with served() as (_, one):
        report = await report_of(one, await one.post("/v1/completions", body))
        assert len(report["engine_request_ids"]) == len(report["prompts"]) == 2 and report["num_choices"] == 4
        for prompt in report["prompts"]:
            check_sums(prompt)
        assert report["e2e_s"] == max(prompt["e2e_s"] for prompt in report["prompts"])
        (shown,) = (await one.get("/v1/state")).json()["requests"]["slowest"]
        of_all = [report[name] for name in ("ttft_s", "e2e_s", "cause", "sentence", "num_output_tokens")]
        assert [shown[name] for name in ("ttft_s", "e2e_s", "cause", "sentence", "num_output_tokens")] == of_all


async def test_the_text_is_nowhere() -> None:
    """Red when an error, an id or a fact carries what the client wrote."""
    secret = "quetzalcoatl"
    async with served() as (_, one):
        for path, body in (
            ("/v1/completions", {"prompt": secret, "max_tokens": 3, "stop": [secret]}),
            ("/v1/chat/completions", {"messages": [{"role": secret, "content": secret}]}),
            ("/v1/chat/completions", {"messages": [], "n": secret, secret: 1}),
        ):
            response = await one.post(path, {"model": MODEL} | body)
            assert secret not in str(await report_of(one, response))


async def test_a_request_that_runs_is_told_as_running() -> None:
    async with served() as (stack, one):
        stack.workers["decode-0"].hold()
        asked = asyncio.create_task(
            one.post("/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 3}, **{"x-request-id": "mine"})
        )
        await until(lambda: bool(stack.gateways[0].dispatcher.num_in_flight))
        found = (await one.get("/v1/requests/mine")).json()
        assert (found["state"], found["status"], found["outcome"]) == ("running", None, None)
        listed = (await one.get("/v1/requests?slowest=3")).json()["data"]
        assert [each["id"] for each in listed] == [found["id"]]
        stack.workers["decode-0"].go_on()
        assert (await asked).status_code == 200
        assert (await one.get("/v1/requests/mine")).json()["state"] == "ended"


async def test_what_was_refused_or_never_read_is_kept() -> None:
    """Red when only what an engine saw can be found."""
    one = rig([Overloaded("full", retry_after_s=1.0, limit="max_running")])
    refused = await report_of(one, await one.chat())
    assert (refused["outcome"], refused["code"], refused["limit"]) == ("refused", "overloaded", "max_running")
    assert (refused["cause"], refused["status"], refused["model"]) == ("refused", 429, MODEL)
    unread = await report_of(one, await one.chat(temperature="hot"))
    assert (unread["outcome"], unread["status"], unread["code"]) == ("refused", 400, "invalid_request")
    assert unread["engine_request_ids"] == [] and "400" in unread["sentence"]


async def test_a_client_that_went_away_is_told() -> None:
    one = rig([*says("ab")[:1], Hang()])

    async def goes_away() -> dict[str, Any]:
        await one.generator.hanging.wait()
        return {"type": "http.disconnect"}

    await raw_call(one.app, {"model": MODEL, "prompt": "x"}, goes_away, "/v1/completions")
    (found,) = (await one.get("/v1/requests")).json()["data"]
    assert (found["outcome"], found["ended_by"], found["status"]) == ("aborted", "client_gone", 499)


async def test_a_tenant_finds_its_own_requests_and_an_admin_all() -> None:
    """Red when a name, a list or an error tells a tenant of another's request."""
    one = rig(says("ab"), api_keys=TenantKeys())
    responses = {
        name: await one.post(
            "/v1/completions", {"model": MODEL, "prompt": "x"}, **bearer(name), **{"x-request-id": "same"}
        )
        for name in ("acme", "other", "admin")
    }
    for name, response in responses.items():
        assert response.status_code == 200
        report = (await one.get("/v1/requests/same", **bearer(name))).json()
        assert report["tenant"] == name
    theirs = await one.post("/v1/completions", {"model": MODEL, "prompt": "x"}, **bearer("acme"))
    answer_id = theirs.json()["id"]
    foreign = await one.get(f"/v1/requests/{answer_id}", **bearer("other"))
    unknown = await one.get("/v1/requests/cmpl-none", **bearer("other"))
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.json()["error"]["code"] == unknown.json()["error"]["code"]
    assert "acme" not in foreign.text
    assert (await one.get(f"/v1/requests/{answer_id}", **bearer("admin"))).json()["tenant"] == "acme"
    listed = (await one.get("/v1/requests?slowest=50", **bearer("other"))).json()
    assert {each["tenant"] for each in listed["data"]} == {"other"} and "acme" not in str(listed)
    everyones = (await one.get("/v1/requests?slowest=50", **bearer("admin"))).json()["data"]
    assert {each["tenant"] for each in everyones} == {"acme", "other", "admin"}
    unkeyed = rig(says("ab"), api_keys=TenantKeys())
    assert (await unkeyed.get("/v1/requests", **bearer("acme"))).json()["data"] == []


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("slowest=0", "slowest"),
        ("slowest=101", "slowest"),
        ("slowest=٣", "slowest"),
        ("slowest=" + "9" * 5000, "slowest"),
        ("by=itl", "by"),
        ("since=yesterday", "since"),
        ("since=", "since"),
        ("model=none", "model"),
        ("model=", "model"),
    ],
)
async def test_a_question_that_makes_no_sense_is_told_what_does(query: str, param: str) -> None:
    response = await rig().get(f"/v1/requests?{query}")
    assert response.status_code == 400 and response.json()["error"]["param"] == param


async def test_the_list_is_of_the_model_and_the_time_that_are_asked_for() -> None:
    one = rig(says("ab"))
    await one.complete(model="alias/of-tiny")
    for query, num in (("model=tiny", 1), ("model=alias/of-tiny", 1), ("since=10m", 1), ("since=2099-01-01", 0)):
        found = await one.get(f"/v1/requests?{query}&by=ttft")
        assert len(found.json()["data"]) == num, query


@pytest.mark.parametrize("name", ["", "x" * 5000, "%00", "a/b/c", "..%2f..%2fadmin", "%F0%9F%92%A9"])
async def test_strange_names_are_not_found(name: str) -> None:
    response = await rig().get(f"/v1/requests/{name}")
    assert response.status_code in (400, 404) and len(response.text) < 1000


class OtherGateway:
    """The other one on the port; None: it does not answer."""

    gateway_id = "gateway-0"

    def __init__(self, found: list[dict[str, Any]] | None) -> None:
        self.found = found
        self.asked: list[Any] = []

    async def request_report(self, name: str, tenant: str, *, is_admin: bool) -> dict[str, dict[str, Any] | None]:
        self.asked.append((name, tenant, is_admin))
        reports = [each for each in self.found or () if name == each["id"]]
        return {"gateway-1": reports[0] if reports else None}

    async def slowest_requests(self, query: Any) -> dict[str, list[dict[str, Any]] | None]:
        self.asked.append(query)
        return {"gateway-1": self.found}


async def test_other_gateways_are_asked_and_lists_are_merged() -> None:
    """Red when only the gateway that is asked tells, or the other one is not told whose requests they may be."""
    theirs = [{"id": "slow", "e2e_s": 1e9, "ttft_s": None, "worst_gap_s": None}, {"id": "fast", "e2e_s": -1.0}]
    others = OtherGateway(theirs)
    one = rig(says("ab"), others=others, gateway_id="gateway-0", api_keys=TenantKeys())
    await one.post("/v1/completions", {"model": MODEL, "prompt": "x"}, **bearer("acme"))
    listed = (await one.get("/v1/requests", **bearer("acme"))).json()
    assert [each.get("gateway_id") for each in listed["data"]] == [None, "gateway-0", None]
    assert others.asked[-1].tenant == "acme"
    assert (await one.get("/v1/requests/slow", **bearer("acme"))).json() == theirs[0]
    assert others.asked[-1] == ("slow", "acme", False)
    others.found = None
    assert (await one.get("/v1/requests", **bearer("acme"))).json()["gateways_without_answer"] == ["gateway-1"]


class HandClock:
    """Stands until a test moves it."""

    def __init__(self) -> None:
        self.at_ns = 10**9

    def now_ns(self) -> int:
        return self.at_ns


@pytest.mark.parametrize("num_taken", [1, 2, 4], ids=["before the first token", "between two", "before the end"])
async def test_outputs_that_wait_for_a_client_that_does_not_read_are_told(num_taken: int) -> None:
    """Red when the time in which the connection takes nothing is the gateway's, counts twice for two outputs that wait
    together, or is forgotten at the end of the stream. The client takes so many messages, and then none for a while."""
    clock, reads, blocked, sent = HandClock(), asyncio.Event(), asyncio.Event(), list[Any]()
    history = RequestHistory()
    one = rig(says("abc"), clock=clock, requests=history)

    async def send(message: Any) -> None:
        if len(sent) == num_taken:
            blocked.set()
            await reads.wait()
        sent.append(message)

    async def receive() -> dict[str, Any]:
        if not asked:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": asked.pop(), "more_body": False}

    asked = [orjson.dumps({"model": MODEL, "prompt": "x", "stream": True, "max_tokens": 9})]
    headers = [(b"content-type", b"application/json"), (b"x-request-id", b"slow")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b""}
    call = asyncio.create_task(one.app(scope, receive, send))  # type: ignore[arg-type]
    await blocked.wait()
    await one.generator.idle.wait()  # all outputs are there
    clock.at_ns += 3 * 10**9
    reads.set()
    await call
    report = (await one.get("/v1/requests/slow")).json()
    assert report["e2e_s"] == 3.0 and report["state"] == "ended"
    assert report["ttft_s"] == (3.0 if num_taken == 1 else 0.0)
    kept = history.find("slow", "", 0)
    assert kept is not None
    (timeline,) = kept.timelines
    assert timeline.blocked_s == 3.0
    assert timeline.blocked_first_s == (3.0 if num_taken == 1 else 0.0)
    assert timeline.last_written_at_ns == clock.at_ns


async def test_what_the_database_keeps_is_found_after_a_start(tmp_path: Path) -> None:
    """Red when a report goes with its gateway although the database was to keep it, or is shown to another tenant."""
    database = SqliteDatabase(tmp_path / "relevo.db")
    writing = database.connect()
    prepare(writing)
    store = DatabaseReports(writing, database.connect(), 100, partial(report_of_kept, gateway_id="gateway"))
    before = rig(says("ab"), api_keys=TenantKeys(), requests=RequestHistory(on_kept=store.keep), reports=store)
    body = {"model": MODEL, "prompt": "x"}
    response = await before.post("/v1/completions", body, **bearer("acme"), **{"x-request-id": "mine"})
    assert response.status_code == 200
    told = (await before.get("/v1/requests/mine", **bearer("acme"))).json()
    store.close(10.0)
    after = rig(api_keys=TenantKeys(), reports=store)
    assert (await after.get("/v1/requests/mine", **bearer("acme"))).json() == told
    assert (await after.get("/v1/requests/mine", **bearer("admin"))).json() == told
    foreign = await after.get("/v1/requests/mine", **bearer("other"))
    assert foreign.status_code == 404 and "the last 100 of all" in foreign.text


async def test_a_worker_that_is_lost_is_in_the_phases() -> None:
    """Red when a leg is lost on its way from the marks to the report, or is told of the worker that went on."""
    async with served({"decode-0": "decode", "decode-1": "decode", "prefill-0": "prefill"}) as (stack, one):
        dispatcher = stack.gateways[0].dispatcher
        for worker in stack.workers.values():
            worker.hold()
        asked = asyncio.create_task(
            one.post("/v1/completions", {"model": MODEL, "prompt": "x" * 20, "max_tokens": 12}, **{"x-request-id": "r"})
        )
        await until(lambda: bool(dispatcher.num_in_flight) and bool(next(iter(dispatcher._requests.values())).leg))
        leg = next(iter(dispatcher._requests.values())).leg
        assert leg is not None
        lost = leg.decode.worker_id
        next(link for link in stack.gateways[0].links if link.hello.worker_id == lost).close()
        await until(lambda: len(next(iter(dispatcher._requests.values())).timeline.legs) == 2)
        for worker in stack.workers.values():
            worker.go_on()
        assert (await asked).status_code == 200
        report = (await one.get("/v1/requests/r")).json()
        check_sums(report)
        recovery = [phase for phase in report["phases"] if phase["name"] == "recover"]
        assert recovery and recovery[0]["worker_id"] == lost and lost in recovery[0]["facts"]["failure"]
        kept = report["phases"][-2]
        assert kept["name"] == "decode" and kept["worker_id"] != lost
