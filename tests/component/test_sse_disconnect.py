"""A client that goes, at any point, and a stream that is kept alive."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import orjson
import pytest
from scripted_gateway import Hang, ids, raw_call, rig, says

from relevo.core.errors import StepFailed
from relevo.gateway.http import sse
from relevo.gateway.http.sse import KEEPALIVE_COMMENT, WRITE_NOW, EventStream

BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
DISCONNECT = {"type": "http.disconnect"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_tokens_before", [0, 2])
async def test_a_client_that_goes_closes_the_generator(stream: bool, num_tokens_before: int) -> None:
    """Red if the gateway notices only at its next write: the engine below never gives it one."""
    r = rig([*[(0, ids("a"), None)] * num_tokens_before, Hang()])

    async def leave_once_it_hangs() -> dict[str, Any]:
        await r.generator.hanging.wait()
        return DISCONNECT

    async with asyncio.timeout(10):
        sent = await raw_call(r.app, BODY | {"stream": stream}, leave_once_it_hangs)
    assert r.generator.num_open == 0 and r.generator.num_closed_early == 1
    assert [record.outcome for record in r.metrics.records] == ["aborted"]
    assert r.metrics.records[0].num_output_tokens == num_tokens_before
    assert bool(sent) is (stream and num_tokens_before > 0)
    assert r.metrics.responses[0][2] == 499


async def test_all_prompts_of_a_request_end_when_the_client_goes() -> None:
    r = rig([(0, ids("a"), None), Hang()])

    r.generator.num_to_hang = 3

    async def leave_once_all_hang() -> dict[str, Any]:
        await r.generator.hanging.wait()
        return DISCONNECT

    async with asyncio.timeout(10):
        await raw_call(r.app, {"prompt": ["a", "b", "c"]}, leave_once_all_hang, "/v1/completions")
    assert r.generator.num_open == 0 and r.generator.num_closed_early == 3


async def test_a_client_that_goes_while_the_gateway_waits_to_write() -> None:
    """A slow reader blocks `send`; its going must still end the request."""
    r = rig([*says("abc")[:2], Hang()])
    blocked = asyncio.Event()
    pending: list[dict[str, Any]] = [{"type": "http.request", "body": b'{"prompt":"hi","stream":true}'}]

    async def receive() -> dict[str, Any]:
        if pending:
            return pending.pop()
        await blocked.wait()
        return DISCONNECT

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            blocked.set()
            await asyncio.Event().wait()

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "query_string": b""}
    async with asyncio.timeout(10):
        await r.app(scope, receive, send)
    assert r.generator.num_open == 0 and r.generator.num_closed_early == 1


async def test_shutdown_ends_running_requests() -> None:
    r = rig([Hang()])
    never = asyncio.Event()

    async def stay() -> dict[str, Any]:
        await never.wait()
        return DISCONNECT

    call = asyncio.create_task(raw_call(r.app, BODY, stay))
    await r.generator.hanging.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert r.generator.num_open == 0


async def test_a_kept_alive_stream_sends_comments_between_events_and_none_after() -> None:
    sent: list[bytes] = []
    commented = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if sent[-1].startswith(b":"):
            commented.set()

    stream = EventStream({}, send, 0.001, KEEPALIVE_COMMENT)
    stream.put(b"data: 1\n\n")
    pumping = asyncio.create_task(stream.pump())
    async with asyncio.timeout(10):
        await commented.wait()
    stream.end_pump()
    await pumping
    await stream.finish(b"data: 2\n\n")
    num_sent = len(sent)
    assert sent[:3] == [b"", b"data: 1\n\n", b": keep-alive\n\n"] and sent[-1] == b"data: 2\n\n"
    await asyncio.sleep(0.01)
    assert len(sent) == num_sent


@pytest.mark.parametrize("ends_well", [True, False])
async def test_a_stream_that_waits_for_its_first_token_says_so_and_is_whole_afterwards(ends_well: bool) -> None:
    """Red if a comment took the place of the opening chunk, or a late error were a second status."""
    r = rig([Hang(), *(says("x") if ends_well else [StepFailed("it broke")])], sse_keepalive_s=0.001)
    sent: list[Any] = []
    pending = [{"type": "http.request", "body": orjson.dumps(BODY | {"stream": True}), "more_body": False}]

    async def send(message: Any) -> None:
        sent.append(message)
        if message.get("body", b"").startswith(b":"):
            r.generator.resume.set()

    async def receive() -> Any:
        return pending.pop() if pending else await asyncio.Event().wait()

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers, "query_string": b""}
    async with asyncio.timeout(10):
        await r.app(scope, receive, send)
    assert [message["status"] for message in sent if message["type"] == "http.response.start"] == [200]
    text = b"".join(message.get("body", b"") for message in sent).decode()
    payloads = [line for line in text.split("\n\n") if line.startswith("data: ")]
    assert text.startswith(": keep-alive\n\n")
    if ends_well:
        assert '"role":"assistant"' in payloads[0] and payloads[-1] == "data: [DONE]"
    else:
        assert len(payloads) == 1 and '"error"' in payloads[0] and "it broke" in payloads[0]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_no_comments_by_default() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    stream = EventStream({}, send, None, KEEPALIVE_COMMENT)
    stream.end_pump()
    await stream.pump()
    assert not sent and asyncio.all_tasks() == {asyncio.current_task()}


class SlowConnection:
    """Takes bytes at once while it `is_writable`, and waits in `send` otherwise."""

    def __init__(self) -> None:
        self.is_writable = True
        self.writable = asyncio.Event()
        self.sent: list[bytes] = []
        self.scope = {"extensions": {WRITE_NOW: self.write_now}}

    def write_now(self, data: bytes) -> bool:
        if self.is_writable:
            self.sent.append(data)
        return self.is_writable

    async def send(self, message: Any) -> None:
        if not self.is_writable:
            await self.writable.wait()
        self.sent.append(message.get("body", b""))


async def test_bytes_leave_in_order_whatever_the_reader_takes() -> None:
    """Red if a write that need not wait overtook one that does, or if more were said to be out than is."""
    connection, out = SlowConnection(), []
    stream = EventStream(connection.scope, connection.send)
    stream.open(iter([b"a", b"b"]))
    assert not stream.put(b"c")
    stream.when_sent(lambda: out.append("c"))
    pumping = asyncio.create_task(stream.pump())
    await asyncio.sleep(0)
    assert b"".join(connection.sent) == b"abc" and out == ["c"]
    assert stream.put(b"d") and b"".join(connection.sent) == b"abcd"
    connection.is_writable = False
    assert not stream.put(b"e")
    stream.when_sent(lambda: out.append("e"))
    await asyncio.sleep(0)
    assert not stream.put(b"f")
    stream.when_sent(lambda: out.append("f"))
    connection.is_writable = True
    assert not stream.put(b"g") and out == ["c"]
    connection.writable.set()
    for _ in range(4):
        await asyncio.sleep(0)
    assert b"".join(connection.sent) == b"abcdefg" and out == ["c", "e", "f"]
    assert stream.put(b"h")
    stream.end_pump()
    await pumping
    await stream.finish(b"i")
    assert b"".join(connection.sent) == b"abcdefghi"


async def test_what_a_client_leaves_unread_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if the bytes of a slow reader's stream pile up, or if what it had to get first is lost with the error."""
    monkeypatch.setattr(sse, "MAX_UNREAD_BYTES", 4000)
    r = rig(says("x" * 100))
    connection = SlowConnection()
    pending = [{"type": "http.request", "body": b'{"prompt":"hi","stream":true}', "more_body": False}]

    async def receive() -> Any:
        return pending.pop() if pending else await asyncio.Event().wait()

    async def read_again() -> None:
        await r.generator.idle.wait()
        connection.is_writable = True
        connection.writable.set()

    connection.is_writable = False
    reading = asyncio.create_task(read_again())
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "query_string": b""}
    async with asyncio.timeout(10):
        await r.app(scope | connection.scope, receive, connection.send)
        await reading
    *chunks, error = b"".join(connection.sent).split(b"\n\n")[:-1]
    assert r.generator.num_closed_early == 1 and 0 < len(chunks) < 100
    assert all(b'"text":"x"' in chunk for chunk in chunks) and sum(map(len, chunks)) <= 4000
    assert b"More than 4000 bytes of this stream wait" in error and b"[DONE]" not in error


async def test_what_waits_is_written_in_whole_events_of_some_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if all that waits were given to a connection at once, which then holds it though its client reads slowly."""
    monkeypatch.setattr(sse, "WRITE_BYTES", 5)
    connection = SlowConnection()
    stream = EventStream(connection.scope, connection.send)
    out: list[int] = []
    for number in range(4):
        stream.put(b"abc")
        stream.when_sent(partial(out.append, number))
    stream.end_pump()
    await stream.pump()
    assert connection.sent == [b"", b"abcabc", b"abcabc"] and out == [0, 1, 2, 3]
