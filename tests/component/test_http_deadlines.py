"""Connections that keep the server waiting, and more of them than it may hold: on a clock that the test moves."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from http_wire import LIMITS, Echo, Rig, statuses
from starlette.types import Receive, Scope, Send

from relevo.gateway.http.connection import HttpConnection
from relevo.gateway.http.connection_limiter import FULL
from relevo.gateway.openai.errors import OPENAI_ERRORS
from relevo.policy.http.connections import LINGER_S, MIN_BYTES_PER_S, NUM_RESERVED, Refusal

GET = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n"
ENOUGH = int(MIN_BYTES_PER_S * LIMITS.stall_timeout_s)


async def test_a_silent_connection_is_closed_without_a_word() -> None:
    rig = Rig(Echo())
    _, wire = rig.open()
    rig.pass_s(LIMITS.header_timeout_s - 1)
    assert not wire.ended
    rig.pass_s(1)
    assert wire.ended == "close" and not wire.written and rig.counts.timed_out == ["headers"]


async def test_a_head_in_drops_is_ended_however_often_a_byte_comes() -> None:
    """Red if each byte began the time anew (slow loris)."""
    rig = Rig(Echo())
    connection, wire = rig.open()
    for byte in GET[: int(LIMITS.header_timeout_s)]:
        connection.data_received(bytes([byte]))
        rig.pass_s(1)
    assert statuses(wire.written) == [408] and wire.half_closed
    rig.pass_s(LINGER_S)
    rig.pass_s(LIMITS.stall_timeout_s)
    assert wire.ended == "abort"


async def test_a_second_request_in_drops_is_ended_too() -> None:
    rig = Rig(Echo())
    connection, wire = rig.open()
    connection.data_received(GET)
    await rig.settle()
    rig.pass_s(LIMITS.keep_alive_timeout_s - 1)
    connection.data_received(b"GET /b")
    rig.pass_s(LIMITS.header_timeout_s)
    assert statuses(wire.written) == [200, 408]


async def test_an_idle_connection_is_kept_for_its_time_after_each_answer() -> None:
    rig = Rig(Echo())
    connection, wire = rig.open()
    for _ in range(3):
        connection.data_received(GET)
        await rig.settle()
        rig.pass_s(LIMITS.keep_alive_timeout_s - 1)
        assert not wire.ended
    rig.pass_s(1)
    assert wire.ended == "close" and statuses(wire.written) == [200] * 3 and rig.counts.timed_out == []


async def test_a_body_in_drops_is_ended_and_a_steady_one_is_not() -> None:
    """Red if the whole body had to come within one time, or if a byte now and then were enough."""
    rig = Rig(Echo())
    connection, wire = rig.open()
    slow, slow_wire = rig.open()
    for each in (connection, slow):
        each.data_received(POST)
    await rig.settle()
    for _ in range(3):
        connection.data_received(b"x" * ENOUGH)
        slow.data_received(b"x")
        await rig.settle()
        rig.pass_s(LIMITS.stall_timeout_s)
    await rig.settle()
    assert not wire.written and not wire.ended
    assert statuses(slow_wire.written) == [408] and rig.counts.timed_out == ["slow_body"]


async def test_time_in_which_the_server_does_not_read_is_not_the_clients() -> None:
    """Red if a handler that lets a large body wait cost its client the connection."""
    goes_on = asyncio.Event()

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await goes_on.wait()
        await Echo()(scope, receive, send)

    rig = Rig(late)
    connection, wire = rig.open()
    connection.data_received(POST)
    connection.data_received(b"x" * 70_000)
    await rig.settle()
    rig.pass_s(10 * LIMITS.stall_timeout_s)
    assert not wire.is_read and not wire.ended and not wire.written
    goes_on.set()
    await rig.settle()
    rig.pass_s(LIMITS.stall_timeout_s)
    assert statuses(wire.written) == [408]


async def flood(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
        await asyncio.sleep(0)


async def test_a_client_that_does_not_read_its_answer_is_cut_off_and_what_it_costs_is_bounded() -> None:
    """Red if the server kept what is not read, or waited for ever."""
    rig = Rig(flood)
    connection, wire = rig.open()
    wire.is_stuck = True
    connection.data_received(GET)
    for _ in range(100):
        await rig.settle()
    assert 2**16 < wire.unread < 2**16 + 2000
    rig.pass_s(LIMITS.stall_timeout_s - 1)
    assert not wire.ended
    wire.unread -= ENOUGH
    rig.pass_s(1)
    assert not wire.ended  # it reads, slowly
    rig.pass_s(LIMITS.stall_timeout_s)
    assert wire.ended == "abort" and rig.counts.timed_out == ["slow_reader"]
    connection.connection_lost(None)
    for task in rig.limiter.tasks:
        task.cancel()
    await rig.settle()
    assert not rig.limiter.tasks and len(rig.limiter.table) == 0 and rig.counts.num_open == 0


async def test_a_client_that_reads_its_last_answer_slowly_gets_all_of_it() -> None:
    """Red if the time for leaving cut an answer that is being read."""
    rig = Rig(Echo())
    connection, wire = rig.open()
    connection.data_received(GET.replace(b"Host", b"Connection: close\r\nHost"))
    wire.unread = 3 * ENOUGH  # it has been closed; the system still sends
    await rig.settle()
    assert wire.ended == "close"
    rig.pass_s(LINGER_S)
    for _ in range(2):
        wire.unread -= ENOUGH
        rig.pass_s(LIMITS.stall_timeout_s)
        assert wire.ended == "close"
    rig.pass_s(LIMITS.stall_timeout_s)
    assert wire.ended == "abort"


async def test_what_is_left_of_a_refused_body_is_read_for_a_while() -> None:
    """Red if the answer were lost by a reset, or an endless body kept the connection."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    rig = Rig(refuse)
    connection, wire = rig.open()
    connection.data_received(POST)
    await rig.settle()
    connection.data_received(b"x" * 100_000 + GET)
    await rig.settle()
    assert statuses(wire.written) == [401, 401] and not wire.ended
    connection, wire = rig.open()
    connection.data_received(POST)
    await rig.settle()
    rig.pass_s(LINGER_S - 1)
    connection.data_received(b"x" * 1000)
    rig.pass_s(1)
    assert wire.ended == "abort"


async def test_one_address_cannot_take_all_connections() -> None:
    async def busy(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    rig = Rig(busy)
    opened = [rig.open() for _ in range(LIMITS.max_per_address)]
    other, other_wire = rig.open("192.0.2.2")
    newest = rig.open()  # its own longest idle one makes room, nobody else's
    assert opened[0][1].ended == "abort" and not other_wire.ended
    other.connection_lost(None)
    opened = [*opened[1:], newest]
    for connection, _ in opened:
        connection.data_received(GET)
        await rig.settle()
    assert rig.limiter.admit("192.0.2.1") is Refusal.ADDRESS
    assert rig.limiter.admit("::ffff:192.0.2.1") is Refusal.ADDRESS
    rig.open("192.0.2.2")
    opened[0][0].connection_lost(None)
    rig.open()
    assert rig.counts.refused == ["per_address"] * 3


@pytest.mark.parametrize("is_idle_after_request", [False, True])
async def test_a_full_server_gives_up_what_has_been_idle_longest(is_idle_after_request: bool) -> None:
    """Red if silent connections kept a client out that has something to ask."""
    rig = Rig(Echo(), replace(LIMITS, max_per_address=100))
    opened = [rig.open() for _ in range(LIMITS.max_connections)]
    if is_idle_after_request:
        for connection, _ in opened:
            connection.data_received(GET)
            await rig.settle()
    connection, wire = rig.open()
    assert opened[0][1].ended == "abort" and not opened[1][1].ended
    connection.data_received(GET)
    await rig.settle()
    assert statuses(wire.written) == [200] and len(rig.limiter.table) == LIMITS.max_connections


async def test_a_busy_server_still_says_how_it_is_and_refuses_the_rest_with_a_status() -> None:
    """Red if running streams left no connection for the one that asks whether the server lives."""

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/a":
            while (await receive())["type"] != "http.disconnect":
                pass
        else:
            await Echo()(scope, receive, send)

    rig = Rig(endless, replace(LIMITS, max_per_address=1000))
    opened = []
    for _ in range(LIMITS.max_connections):
        opened.append(rig.open())
        opened[-1][0].data_received(GET)
        await rig.settle()
    for path, status in ((b"/health", 200), (b"/v1/models", 503)):
        connection, wire = rig.open()
        connection.data_received(b"GET " + path + b" HTTP/1.1\r\nHost: h\r\n\r\n")
        await rig.settle()
        assert statuses(wire.written) == [status] and wire.ended, wire.written
        if status == 503:
            assert FULL.message.encode() in wire.written and b"retry-after" in wire.written.lower()
        connection.connection_lost(None)
    silent = [rig.open() for _ in range(NUM_RESERVED)]
    rig.open()
    assert silent[0][1].ended == "abort"  # the reserve is no place to wait either
    assert not any(wire.ended for _, wire in opened)


async def test_a_handshake_counts_and_is_given_up_like_a_silent_connection() -> None:
    """Red if a connection only counted once its TLS handshake were complete."""
    rig = Rig(Echo(), replace(LIMITS, max_connections=1))
    silent = rig.limiter.admit("192.0.2.1")
    assert isinstance(silent, HttpConnection)
    silent.opening = asyncio.create_task(asyncio.sleep(60))
    rig.pass_s(LIMITS.header_timeout_s)
    await rig.settle()
    assert silent.opening.cancelled()


async def test_many_refusals_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Red if clients could fill the log."""
    rig = Rig(Echo(), replace(LIMITS, max_per_address=1))
    connection, _ = rig.open()
    connection.data_received(POST)
    await rig.settle()
    for _ in range(100):
        rig.limiter.admit("192.0.2.1")
    assert len(caplog.records) == 1 and len(rig.counts.refused) == 100


async def test_a_server_that_stops_closes_what_is_idle_and_ends_what_runs_after_its_answer() -> None:
    goes_on = asyncio.Event()

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await goes_on.wait()
        await Echo()(scope, receive, send)

    rig = Rig(late)
    (_, idle_wire), (busy, busy_wire) = rig.open(), rig.open()
    busy.data_received(GET)
    await rig.settle()
    for connection in list(rig.limiter.connections):
        connection.shutdown()
    assert idle_wire.ended == "close" and not busy_wire.ended
    goes_on.set()
    await rig.settle()
    assert statuses(busy_wire.written) == [200] and busy_wire.ended == "close"


@pytest.mark.parametrize(
    ("sent", "late", "path"),
    [
        (b"POST /v9/plain?x=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nx", 408, "/v9/plain"),
        (b"POST /v9/plain?x=1 HTTP/1.1\r\nHost: h\r\n", 408, "/v9/plain"),
        (b"POST /v9/plain HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "/v9/plain"),
        (b"nonsense\r\n\r\n", 400, ""),
    ],
)
async def test_what_a_connection_answers_itself_looks_as_its_path_says(sent: bytes, late: int, path: str) -> None:
    """Red if clients of one API could get another API's errors where no handler was reached."""
    asked: list[str] = []
    rig = Rig(Echo(), error_formats=lambda path: asked.append(path) or OPENAI_ERRORS)  # type: ignore[func-returns-value]
    connection, wire = rig.open()
    connection.data_received(sent)
    await rig.settle()
    rig.pass_s(LIMITS.stall_timeout_s + LIMITS.header_timeout_s)
    await rig.settle()
    assert statuses(wire.written) == [late] and asked == [path]
