"""GET /v1/state/stream: what comes when, what a slow or a dead client costs, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from scripted_gateway import MODEL, ScriptedGenerator, scripted_app, served_model
from starlette.types import ASGIApp
from state_streams import Seconds, StreamClient, until

from relevo.core.decisions import Decision
from relevo.gateway.console.audience import MAX_MISSED, Audience
from relevo.gateway.console.watch import Watch
from relevo.gateway.http.auth import ApiKeys, Caller
from relevo.gateway.http.stopping import Stopping
from relevo.gateway.text.served_models import ServedModels
from relevo.orchestrator.insight import Insight
from relevo.telemetry.metrics import GatewayMetrics


@dataclass
class ChangingKeys:
    """Implements gateway.http.auth.Authenticator."""

    keys: ApiKeys

    @property
    def is_open(self) -> bool:
        return self.keys.is_open

    def identify(self, headers: Mapping[str, str]) -> Caller:
        return self.keys.identify(headers)


@dataclass
class Watched:
    """An application whose seconds pass when they are told to."""

    keys: tuple[str, ...] = ()
    max_streams: int = 1000
    seconds: Seconds = field(default_factory=Seconds)
    now_s: float = 1_000.0
    insight: Insight = field(default_factory=Insight)
    stopping: Stopping = field(default_factory=Stopping)
    app: ASGIApp = field(init=False)
    audience: Audience = field(init=False)
    authenticator: ChangingKeys = field(init=False)

    def __post_init__(self) -> None:
        self.authenticator = ChangingKeys(ApiKeys.of(self.keys))
        self.audience = Audience(max_streams=self.max_streams, pause=self.seconds.pause)
        watch = Watch(monotonic_s=lambda: self.now_s, unix_s=lambda: 1_800_000_000.0, audience=self.audience)
        models = ServedModels([served_model(ScriptedGenerator(), insight=self.insight)])
        self.app = scripted_app(
            models,
            GatewayMetrics([MODEL]),
            watch=watch,
            stopping=self.stopping,
            api_keys=self.authenticator,
        )

    async def client(self, key: str = "", **parts: Any) -> StreamClient:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        client = await StreamClient(self.app, headers, **parts).open()
        if client.status == 200 and client.method == "GET":
            await self.seconds.until_paused()
        return client

    async def second(self, num: int = 1) -> None:
        for _ in range(num):
            self.now_s += 1.0
            await self.seconds.pass_one()


@asynccontextmanager
async def gone_in_the_end(*clients: StreamClient) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for client in clients:
            await client.go()


async def test_the_first_event_comes_at_once_and_one_a_second_after_it() -> None:
    """Red if a viewer waits for the next second, if ids do not rise, or if it is not said when to come back."""
    watched = Watched()
    client = await watched.client()
    async with gone_in_the_end(client):
        assert client.events[0] == {"retry": "1000"}
        assert len(client.states) == 1
        await watched.second(2)
        assert [event["id"] for event in client.events[1:]] == ["1", "2", "3"]
        assert client.response_headers["content-type"].startswith("text/event-stream")


async def test_what_has_not_changed_is_not_told_again() -> None:
    """Red if every event brings ten minutes of history, or decisions that were told before."""
    watched = Watched()
    watched.insight.decisions(Decision.READY, worker="w0", epoch=1)
    client = await watched.client()
    async with gone_in_the_end(client):
        watched.insight.decisions(Decision.LOST, worker="w0", epoch=1)
        await watched.second(2)
        first, second, third = client.states
        assert first.history is not None
        assert [each.kind for each in first.decisions] == ["ready"]
        assert (second.history, third.history) == (None, None)
        assert ([each.kind for each in second.decisions], third.decisions) == (["lost"], ())
        await watched.second(5)
        later = [state.history for state in client.states[3:] if state.history is not None]
        assert len(later) == 1, "an interval of five seconds has ended"
        assert later[0].at_unix_s != first.history.at_unix_s


async def test_a_viewer_who_comes_later_is_told_everything() -> None:
    """Red if it got the events of those who were there: without history and with few decisions."""
    watched = Watched()
    watched.insight.decisions(Decision.READY, worker="w0", epoch=1)
    first = await watched.client()
    await watched.second(2)
    second = await watched.client()
    async with gone_in_the_end(first, second):
        assert second.states[0].history is not None
        assert [each.kind for each in second.states[0].decisions] == ["ready"]
        assert second.events[1]["id"] == first.events[-1]["id"], "one state is made for both"


async def test_nothing_is_made_while_nothing_is_open() -> None:
    """Red if the task outlives the last stream."""
    watched = Watched()
    client = await watched.client()
    await client.go()
    await asyncio.sleep(0)
    assert watched.audience.num_streams == 0
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "state"]
    again = await watched.client()
    async with gone_in_the_end(again):
        assert again.states[0].history is not None


async def test_a_stream_beyond_the_bound_is_refused_and_the_others_go_on() -> None:
    """Red if the number of streams is not bounded."""
    watched = Watched(max_streams=2)
    clients = [await watched.client() for _ in range(2)]
    async with gone_in_the_end(*clients):
        refused = await watched.client()
        assert refused.status == 503
        assert b"2 streams of the state are open, which is the limit" in refused.data
        assert "retry-after" in refused.response_headers
        await clients.pop().go()
        taken = await watched.client()
        assert taken.status == 200
        await taken.go()


async def test_a_client_that_does_not_read_is_dropped_and_holds_one_event_meanwhile() -> None:
    """Red if events pile up for it, or if it is kept for ever."""
    watched = Watched()
    client, reader = await watched.client(), await watched.client()
    async with gone_in_the_end(reader):
        client.reads.clear()
        read = client.data
        await watched.second(MAX_MISSED)
        (unread,) = [each for each in watched.audience.listeners if each.waiting is not None]
        assert len(unread.waiting or b"") < 100_000
        await watched.second(1)
        await client.ended()
        assert client.data == read and not client.is_complete, "its connection is broken off"
        assert len(reader.states) == MAX_MISSED + 2


async def test_a_client_that_was_slow_gets_whole_what_it_missed() -> None:
    """Red if its next event only has what is new since one that it never got."""
    watched = Watched()
    client = await watched.client()
    async with gone_in_the_end(client):
        client.reads.clear()
        await watched.second()
        watched.insight.decisions(Decision.READY, worker="w0", epoch=1)
        await watched.second()
        client.reads.set()
        await until(lambda: not any_waits(watched))
        await watched.second()
        whole = client.states[-1]
        assert whole.history is not None
        assert [each.kind for each in whole.decisions] == ["ready"]


async def test_a_connection_that_takes_nothing_at_once_gets_every_event() -> None:
    """Red if events only leave where they can be written without waiting, as under TLS of another server."""
    watched = Watched()
    client = await watched.client(can_write_now=False)
    async with gone_in_the_end(client):
        for num in range(1, 4):
            await until(lambda num=num: len(client.states) == num and not any_waits(watched))
            await watched.second()


def any_waits(watched: Watched) -> bool:
    return any(listener.waiting is not None for listener in watched.audience.listeners)


async def test_a_server_that_stops_ends_its_streams_at_once_and_begins_none() -> None:
    """Red if Ctrl-C waits for pages that are open."""
    watched = Watched()
    client = await watched.client()
    watched.stopping.drain()
    await client.ended()
    assert client.is_complete, "in good order: its client comes back"
    refused = await watched.client()
    assert refused.status == 503 and b"being stopped" in refused.data


async def test_head_is_answered_and_over() -> None:
    """Red if it is a stream without a body."""
    watched = Watched()
    client = await watched.client(method="HEAD")
    await client.ended()
    assert (client.status, client.data, watched.audience.num_streams) == (200, b"", 0)


async def test_a_state_is_encoded_once_for_each_kind_of_viewer() -> None:
    """Red if the work grows with the number of streams."""
    watched = Watched(keys=("one", "two"))
    clients = [await watched.client(key) for key in ("one", "one", "one", "two")]
    async with gone_in_the_end(*clients):
        await watched.second()
        latest = watched.audience.latest
        assert latest is not None and latest.num_encoded == 2
        assert clients[0].data.endswith(clients[1].data[-200:])
        tenants = [client.states[-1].viewer.tenant for client in clients]
        assert tenants[0] == tenants[2] != tenants[3]


async def test_without_a_key_there_is_no_stream_where_there_are_keys() -> None:
    watched = Watched(keys=("one",))
    assert (await watched.client()).status == 401
    assert (await watched.client("another")).status == 401
    assert watched.audience.num_streams == 0


async def test_a_stream_ends_with_the_key_it_was_opened_with() -> None:
    """Red if a key that was revoked goes on watching, or a stranger after the server got its first key."""
    watched = Watched(keys=("one", "two"))
    first, second = await watched.client("one"), await watched.client("two")
    async with gone_in_the_end(second):
        watched.authenticator.keys = ApiKeys.of(["two"])
        await watched.second()
        await first.ended()
        assert (len(first.states), len(second.states)) == (1, 2)
    opened = Watched()
    stranger = await opened.client()
    opened.authenticator.keys = ApiKeys.of(["one"])
    await opened.second()
    await stranger.ended()
    assert len(stranger.states) == 1
