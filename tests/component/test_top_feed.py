"""How `relevo top` reads a server: one event stream, opened anew when it ends; what is none of ours is one sentence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import pytest
import told_states as told

from relevo.client.server import OpenAIServer
from relevo.core.errors import RelevoError
from relevo.top import feed as module
from relevo.top.feed import Lost, StateFeed
from relevo.top.state import State


@dataclass
class ScriptedServer:
    """Answers every connection with the next of its scripts; the last one for ever."""

    scripts: list[bytes]
    asked: list[bytes] = field(default_factory=list)
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0])
        await writer.drain()
        writer.close()


@asynccontextmanager
async def server(*scripts: bytes) -> AsyncIterator[ScriptedServer]:
    scripted = ScriptedServer(list(scripts))
    listening = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    async with listening:
        host, port = listening.sockets[0].getsockname()
        scripted.url = f"http://{host}:{port}"
        yield scripted


@asynccontextmanager
async def feed(url: str, interval_s: float = 0.5, key: str | None = None) -> AsyncIterator[StateFeed]:
    async with OpenAIServer(url, api_key=key) as client:
        yield StateFeed(client, interval_s)


def answer(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body


def stream(*states: object) -> bytes:
    events = b"".join(b"data: %s\n\n" % msgspec.json.encode(state) for state in states)
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\nretry: 1000\n\n" + events


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries again without a wait."""
    monkeypatch.setattr(module, "_RETRY_S", (0.0,))


async def some(of: StateFeed, number: int) -> list[State | Lost]:
    found: list[State | Lost] = []
    async for update in of.updates():
        found.append(update)
        if len(found) == number:
            return found
    return found


async def test_everything_that_is_read_means_what_the_server_says() -> None:
    """Red when a field that is shown is renamed in the server's state: here it would get its default."""
    body = msgspec.json.encode(told.state())
    async with server(answer(body)) as scripted, feed(scripted.url) as states:
        state = await states.first()
    said = msgspec.json.decode(body)

    def same(read: object, said: object, where: str) -> None:
        if isinstance(read, msgspec.Struct):
            assert isinstance(said, dict)
            for name in read.__struct_fields__:
                assert name in said, f"{where}.{name} is nothing that the server says"
                same(getattr(read, name), said[name], f"{where}.{name}")
        elif isinstance(read, tuple):
            assert isinstance(said, list)
            for each, other in zip(read, said, strict=True):
                same(each, other, where)
        else:
            assert read == said, where

    same(state, said, "state")


async def test_a_stream_that_ends_is_told_once_and_opened_anew() -> None:
    first, second = told.state(at_unix_s=1.0), told.state(at_unix_s=2.0)
    async with server(stream(first), stream(second)) as scripted, feed(scripted.url) as states:
        updates = await some(states, 3)
        assert [getattr(each, "at_unix_s", each) for each in updates] == [1.0, Lost("the server ended the stream"), 2.0]
        assert all(b"GET /v1/state/stream " in asked for asked in scripted.asked)


async def test_a_server_that_is_gone_is_tried_until_it_is_back() -> None:
    async with server(stream(told.state(at_unix_s=1.0))) as scripted, feed(scripted.url) as states:
        pass
    updates: list[State | Lost] = []
    async with feed(scripted.url) as states:
        async for update in states.updates():
            updates.append(update)
            if len(updates) == 2:
                port = int(scripted.url.rpartition(":")[2])
                listening = await asyncio.start_server(scripted.serve, "127.0.0.1", port)
            if isinstance(update, State):
                listening.close()
                break
    assert updates[:2] == [Lost("no server answers")] * 2


async def test_decisions_of_a_stream_are_gathered_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later events bring only what is new; a stream opened anew brings all of them again."""
    monkeypatch.setattr(module, "MAX_DECISIONS", 6)
    parts = [told.state(decisions=told.decisions(first)) for first in (1, 5)]
    async with server(stream(parts[0]), stream(parts[0]), stream(parts[1])) as scripted, feed(scripted.url) as states:
        found = [each for each in await some(states, 5) if isinstance(each, State)]
    assert [[each.number for each in state.decisions] for state in found] == [
        [1, 2, 3, 4],
        [1, 2, 3, 4],
        [3, 4, 5, 6, 7, 8],
    ]


async def test_states_come_no_oftener_than_they_are_wanted() -> None:
    events = [told.state(at_unix_s=float(number)) for number in range(5)]
    async with server(stream(*events)) as scripted, feed(scripted.url, interval_s=60.0) as states:
        updates = await some(states, 2)
    assert [type(each).__name__ for each in updates] == ["State", "Lost"]


async def test_a_key_is_sent_as_a_bearer_token() -> None:
    async with server(answer(msgspec.json.encode(told.state()))) as scripted, feed(scripted.url, key="sk-1") as states:
        await states.first()
        assert b"Authorization: Bearer sk-1" in scripted.asked[0]


NOT_OURS = [
    (answer(b"<h1>no</h1>", "404 Not Found"), "has no /v1/state: it is not a Relevo server"),
    (answer(b"<h1>hello</h1>"), "not as a Relevo server"),
    (answer(b'{"at_unix_s": 1}'), "not as a Relevo server of this release does: Object missing required field"),
    (answer(b'{"at_unix_s": "\x1b[31m"}'), "not as a Relevo server"),
    (answer(b"{}", "401 Unauthorized"), "wants an API key that it knows: give it with --api-key"),
    (answer(b'{"error":{"message":"It\x1b stops."}}', "503 Service Unavailable"), "answered HTTP 503"),
    (b"SSH-2.0-OpenSSH_9.2\r\n", "is the server running there?"),
    (b"", "is the server running there?"),
]


@pytest.mark.parametrize(("script", "words"), NOT_OURS, ids=[words for _, words in NOT_OURS])
async def test_what_is_none_of_ours_is_one_sentence(script: bytes, words: str) -> None:
    async with server(script) as scripted, feed(scripted.url) as states:
        with pytest.raises(RelevoError) as raised:
            await states.first()
    assert words in raised.value.message
    assert "\n" not in raised.value.message
    assert "\x1b" not in raised.value.message


async def test_an_answer_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_BODY_BYTES", 1000)
    async with server(answer(b"[" * 100_000)) as scripted, feed(scripted.url) as states:
        with pytest.raises(RelevoError, match="does not end"):
            await states.first()


async def test_an_event_without_end_and_an_endless_refusal_are_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when the stream's event, or the words of a refusal, are gathered for as long as they come."""
    monkeypatch.setattr(module, "_MAX_EVENT_BYTES", 1000)
    monkeypatch.setattr(module, "_MAX_BODY_BYTES", 1000)
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    refused = b"HTTP/1.1 500 X\r\n\r\n" + b" " * 2000
    async with server(head + b"data: " + b"x" * 2000, refused) as scripted, feed(scripted.url) as states:
        first, second = await some(states, 2)
        assert isinstance(first, Lost) and "an event without end" in first.reason
        assert isinstance(second, Lost) and "does not end" in second.reason
        with pytest.raises(RelevoError, match="does not end"):
            await states.first()


async def test_what_refuses_while_it_is_watched_is_told_and_tried_again() -> None:
    async with (
        server(answer(b"{}", "401 Unauthorized"), stream(told.state())) as scripted,
        feed(scripted.url) as states,
    ):
        lost, state = await some(states, 2)
    assert isinstance(lost, Lost)
    assert "wants an API key" in lost.reason
    assert isinstance(state, State)
