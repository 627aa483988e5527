"""An API of its own folder and one line of the table, docs/developers/api.md's: everything else serves it as it is.

Red when something behind the parser or before the writer learns one API's shape: its bodies, errors, events or ids.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from guide_api import ROUTES_WITH_THE_GUIDES
from scripted_gateway import Hang, Rig, ids, raw_call, rig, says

from relevo.core.errors import LedgerUnavailable, Overloaded, StepFailed
from relevo.core.outcome import Cause, RequestEnd
from relevo.gateway.http.auth import ApiKeys
from relevo.gateway.http.route import RouteTable
from relevo.gateway.http.stopping import Stopping
from relevo.gateway.openai.errors import OPENAI_ERRORS

SAY = "/tiny/say"


def tiny(script: Any = (), **context: Any) -> Rig:
    return rig(script, routes=RouteTable(ROUTES_WITH_THE_GUIDES, OPENAI_ERRORS), **context)


def told(text: str) -> list[tuple[str, Any]]:
    """The events of a stream: name and value."""
    lines = [event.split("\n") for event in text.split("\n\n") if event]
    return [(name.removeprefix("event: "), orjson.loads(data.removeprefix("data: "))) for name, data in lines]


def test_an_edge_knows_which_paths_have_sessions() -> None:
    """Red if an edge has a list of its own of the paths that generate."""
    table = RouteTable(ROUTES_WITH_THE_GUIDES, OPENAI_ERRORS)
    assert all(map(table.is_generation, (SAY, "/v1/chat/completions", "/v1/completions")))
    assert not any(map(table.is_generation, ("/tokenize", "/v1/models", "/health", "/nothing")))


async def test_a_whole_answer_in_its_own_words() -> None:
    response = await tiny(says("hello")).post(SAY, {"ask": "hi"})
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert response.json() == {"said": "hello", "why": "stop", "read": len(ids("user:hi\nassistant:")), "written": 6}


async def test_a_stream_in_its_own_events_and_no_others() -> None:
    events = told((await tiny(says("hello")).post(SAY, {"ask": "hi", "live": True})).text)
    assert [name for name, _ in events if name != "said"] == ["read", "why", "written"]
    assert "".join(value for name, value in events if name == "said") == "hello" and events[-1] == ("written", 6)


@pytest.mark.parametrize(
    ("method", "body", "script", "context", "status"),
    [
        ("POST", {"ask": 1}, (), {}, 400),
        ("POST", {"ask": "x" * 300}, (), {}, 400),
        ("GET", None, (), {}, 405),
        ("POST", {"ask": "hi"}, [Overloaded("full")], {}, 429),
        ("POST", {"ask": "hi"}, (), {"max_body_bytes": 4}, 413),
        ("POST", {"ask": "hi"}, (), {"api_keys": ApiKeys.of(["secret"])}, 401),
        ("POST", {"ask": "hi"}, [StepFailed("it broke")], {}, 500),
    ],
)
async def test_every_error_on_its_path_is_its_own(
    method: str, body: Any, script: Any, context: dict[str, Any], status: int
) -> None:
    r = tiny(script or says("x"), **context)
    async with r.client(**{"x-request-id": "r1"}) as client:
        response = await client.request(method, SAY, json=body)
    assert response.status_code == status, response.text
    assert response.json().keys() == {"oops", "id"} and response.json()["id"] == "r1"


async def test_an_error_in_the_middle_is_its_last_event() -> None:
    r = tiny([(0, ids("ab"), None), StepFailed("it broke")])
    events = told((await r.post(SAY, {"ask": "hi", "live": True})).text)
    assert [name for name, _ in events] == ["read", "said", "oops"] and events[-1][1]["oops"] == "it broke"
    assert [record.outcome for record in r.metrics.records] == ["failed"]


async def test_a_server_that_stops_ends_it_in_its_words() -> None:
    stopping = Stopping()
    r = tiny([(0, ids("ab"), None), Hang()], stopping=stopping)

    async def stay() -> dict[str, Any]:
        await r.generator.hanging.wait()
        stopping.cut()
        await asyncio.Event().wait()
        return {}

    async with asyncio.timeout(10):
        sent = await raw_call(r.app, {"ask": "hi", "live": True}, stay, SAY)
    events = told(b"".join(message.get("body", b"") for message in sent).decode())
    assert [name for name, _ in events] == ["read", "said", "oops"] and r.generator.num_open == 0


class Books:
    """A meter that notes when an answer is settled, and may refuse to."""

    failure = ""

    def __init__(self, sent: list[Any], error: Exception | None = None) -> None:
        self.sent, self.error = sent, error
        self.settled: list[tuple[Cause, int]] = []  # and how many messages had been sent then

    def open(self, *args: Any) -> Books:
        return self

    def progress(self) -> None:
        return

    async def settle(self, end: RequestEnd) -> None:
        await asyncio.sleep(0)
        self.settled.append((end.cause, len(self.sent)))
        if self.error is not None:
            raise self.error

    def close(self, end: RequestEnd) -> None:
        return


@pytest.mark.parametrize("fails", [False, True])
async def test_nothing_makes_it_complete_before_it_is_in_the_books(fails: bool) -> None:
    """Red if the end of the last choice, or what follows it, left before the ledger has kept the row."""
    sent: list[dict[str, Any]] = []
    books = Books(sent, LedgerUnavailable("no disk") if fails else None)
    r = tiny(says("hello"), meter=books)
    pending = [{"type": "http.request", "body": orjson.dumps({"ask": "hi", "live": True}), "more_body": False}]

    async def receive() -> Any:
        return pending.pop() if pending else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": SAY, "headers": [], "query_string": b""}
    await r.app(scope, receive, send)
    (cause, num_sent), *later = books.settled
    before = told(b"".join(message.get("body", b"") for message in sent[:num_sent]).decode())
    after = told(b"".join(message.get("body", b"") for message in sent[num_sent:]).decode())
    assert cause is Cause.COMPLETE and {name for name, _ in before} == {"read", "said"}
    assert [name for name, _ in after] == (["oops"] if fails else ["why", "written"])
    assert len(later) == fails
