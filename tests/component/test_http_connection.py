"""Bytes of a connection: what is taken for a request, what for its body, and what is refused."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from http_wire import Echo, Rig, Wire, statuses
from scripted_gateway import rig, says
from starlette.types import Receive, Scope, Send

from relevo.gateway.http.connection import MAX_PIPELINED
from relevo.gateway.http.head import MAX_FIELDS, MAX_HEAD_BYTES, MAX_TARGET_BYTES

POST = b"POST /a HTTP/1.1\r\nHost: h\r\n"
GET_B = b"GET /b HTTP/1.1\r\nHost: h\r\n\r\n"
CHUNKS = b"3\r\nabc\r\n4;note=1\r\ndefg\r\n0\r\n"
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"


async def told(data: bytes, *cuts: int) -> list[tuple[str, str, bytes]]:
    """What the application sees when `data` comes in segments."""
    echo = Echo()
    bounds = (0, *cuts, len(data))
    await Rig(echo).say(*(data[a:b] for a, b in itertools.pairwise(bounds)))
    return [(each.method, each.path, each.body) for each in echo.told]


@pytest.mark.parametrize("offer", [OFFER, OFFER.replace(b"h2c", b"websocket"), OFFER.upper(), b""])
@pytest.mark.parametrize(
    ("framing", "body", "meant"),
    [
        (b"Content-Length: 7\r\n", b"abcdefg", b"abcdefg"),
        (b"Transfer-Encoding: chunked\r\n", CHUNKS + b"\r\n", b"abcdefg"),
        (b"", b"", b""),
    ],
)
async def test_an_offer_of_another_protocol_changes_nothing_wherever_the_network_cuts(
    offer: bytes, framing: bytes, body: bytes, meant: bytes
) -> None:
    """Red if bytes were rewritten to hide the offer, or if the parser's own idea of it lost the body."""
    data = POST + framing + offer + b"\r\n" + body + GET_B
    expected = [("POST", "/a", meant), ("GET", "/b", b"")]
    assert await told(data) == expected
    for cut in range(1, len(data)):
        assert await told(data, cut) == expected, data[:cut]
    assert await told(data, *range(1, len(data))) == expected


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(
    "second", [b"GET / HTTP/1.1\r\n\r\n", b"GET /" + b"a" * MAX_TARGET_BYTES + b" HTTP/1.1\r\n\r\n"]
)
async def test_what_is_refused_behind_a_declined_offer_has_its_own_words(second: bytes, cut: bool) -> None:
    """Red if the reason were lost because the offer was still being handled."""
    first = POST + OFFER + b"\r\n"
    wire = await (Rig(Echo()).say(first, second) if cut else Rig(Echo()).say(first + second))
    assert statuses(wire.written) == [200, 414 if len(second) > MAX_TARGET_BYTES else 400]


@pytest.mark.parametrize("line", [b"Upgrade: x", b"upgrade: y", b"Content-Length: 0", b"GET /c HTTP/1.1"])
async def test_a_body_that_looks_like_a_head_is_a_body(line: bytes) -> None:
    """Red if anything but the framing decided where a body is."""
    body = b'{"a":\r\n' + line + b'\r\n\r\n"}'
    chunked = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (6, body[:6], len(body) - 6, body[6:])
    plain = POST + b"Content-Length: %d\r\n\r\n" % len(body) + body
    assert await told(plain + GET_B) == [("POST", "/a", body), ("GET", "/b", b"")]
    data = POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunked
    for cut in range(1, len(data)):
        assert await told(data, cut) == [("POST", "/a", body)]


async def test_fields_after_a_chunked_body_are_not_headers() -> None:
    """Red if a trailer could name a key, a type or a length."""
    echo = Echo()
    trailers = b"Authorization: Bearer k\r\nX-Api-Key: k\r\nContent-Type: text/plain\r\nx-request-id: q\r\n\r\n"
    data = POST + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS + trailers + GET_B
    await Rig(echo).say(data)
    assert [each.path for each in echo.told] == ["/a", "/b"]
    assert dict(echo.told[0].headers) == {b"host": b"h", b"transfer-encoding": b"chunked"}
    assert dict(echo.told[1].headers) == {b"host": b"h"}


SMUGGLED = {
    "length and chunks": POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "a list of lengths": POST + b"Content-Length: 3, 3\r\n\r\nabc",
    "a signed length": POST + b"Content-Length: +3\r\n\r\nabc",
    "a length too large": POST + b"Content-Length: 99999999999999999999\r\n\r\nabc",
    "a folded line": POST + b"X: a\r\n b\r\n\r\n",
    "bare line feeds": b"GET / HTTP/1.1\nHost: h\n\n",
    "a bare line feed": POST + b"X: a\nY: b\r\n\r\n",
    "a bare carriage return": POST + b"X: a\rY: b\r\n\r\n",
    "a NUL": POST + b"X: a\0b\r\n\r\n",
    "a space in a name": POST + b"X y: a\r\n\r\n",
    "a space before the colon": POST + b"Content-Length : 3\r\n\r\nabc",
    "an empty name": POST + b": x\r\n\r\n",
    "another coding": POST + b"Transfer-Encoding: gzip\r\n\r\nabc",
    "two codings": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a coding twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a coding in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a chunk's size with a sign": POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n0\r\n\r\n",
    "a chunk's size with 0x": POST + b"Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
    "a chunk's size too large": POST + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    "a chunk that is longer": POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
    "a line feed after a chunk's size": POST + b"Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": POST + b"Host: i\r\n\r\n",
    "a host with a path": b"GET / HTTP/1.1\r\nHost: h/x\r\n\r\n",
    "a host with a user": b"GET / HTTP/1.1\r\nHost: u@h\r\n\r\n",
    "two hosts in one": b"GET / HTTP/1.1\r\nHost: h, i\r\n\r\n",
    "two keys": POST + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
    "two other keys": POST + b"x-api-key: a\r\nx-api-key: b\r\n\r\n",
    "two types": POST + b"Content-Type: application/json\r\nContent-Type: text/plain\r\n\r\n",
    "another version": b"GET / HTTP/1.2\r\nHost: h\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/2 by its version": b"GET / HTTP/2.0\r\nHost: h\r\n\r\n",
    "HTTP/2 by its preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a tunnel": b"CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n\x16\x03\x01",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "another method": b"FOO / HTTP/1.1\r\nHost: h\r\n\r\n",
    "a target without a slash": b"GET foo HTTP/1.1\r\nHost: h\r\n\r\n",
    "a target of another scheme": b"GET file://h/x HTTP/1.1\r\nHost: h\r\n\r\n",
    "a target with bytes": "GET /é HTTP/1.1\r\nHost: h\r\n\r\n".encode(),
    "a fragment": b"GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n",
    "dot segments": b"GET /v1/../metrics HTTP/1.1\r\nHost: h\r\n\r\n",
    "encoded dot segments": b"GET /v1/%2e%2e/metrics HTTP/1.1\r\nHost: h\r\n\r\n",
    "half encoded dot segments": b"GET /v1/.%2E/metrics HTTP/1.1\r\nHost: h\r\n\r\n",
    "encoded slashes around dots": b"GET /v1%2f..%2Fmetrics HTTP/1.1\r\nHost: h\r\n\r\n",
    "a dot": b"GET /./metrics HTTP/1.1\r\nHost: h\r\n\r\n",
    "two slashes": b"GET //metrics HTTP/1.1\r\nHost: h\r\n\r\n",
    "a slash and an encoded one": b"GET /%2fmetrics HTTP/1.1\r\nHost: h\r\n\r\n",
    "a backslash": b"GET /v1%5c..%5cmetrics HTTP/1.1\r\nHost: h\r\n\r\n",
    "an encoded NUL": b"GET /metrics%00 HTTP/1.1\r\nHost: h\r\n\r\n",
    "an encoded line": b"GET /metrics%0d%0a HTTP/1.1\r\nHost: h\r\n\r\n",
    "a broken escape": b"GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n",
    "half an escape": b"GET /%2 HTTP/1.1\r\nHost: h\r\n\r\n",
    "a path that is not UTF-8": b"GET /%ff HTTP/1.1\r\nHost: h\r\n\r\n",
    "dot segments in a whole URL": b"GET http://h/v1/../metrics HTTP/1.1\r\nHost: h\r\n\r\n",
}


@pytest.mark.parametrize("data", SMUGGLED.values(), ids=SMUGGLED.keys())
async def test_what_two_servers_could_read_differently_is_refused_and_nothing_after_it_is_read(data: bytes) -> None:
    """Red if any of it were interpreted: the request behind it must not reach the application either."""
    echo = Echo()
    connection_rig = Rig(echo)
    wire = await connection_rig.say(data + GET_B)
    assert [each.path for each in echo.told if each.path != "/a"] == []
    assert len(statuses(wire.written)) == 1 and statuses(wire.written)[0] in (400, 501, 505), wire.written
    assert b"connection: close" in wire.written and b'"message"' in wire.written
    assert wire.half_closed or wire.ended
    by_byte = await Rig(Echo()).say(*(bytes([byte]) for byte in data), GET_B)
    assert statuses(by_byte.written) == statuses(wire.written)


@pytest.mark.parametrize("host", [b"[fe80::1%eth0]:80", b"[fe80::1%25eth0]:80", b"[::1]", b"127.0.0.1:80", b"h."])
async def test_the_host_of_every_address_is_taken(host: bytes) -> None:
    """Red when a link-local address is refused as httpx and aiohttp write it, with its interface."""
    assert await Rig(Echo()).statuses(b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n") == [200]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"a" * MAX_TARGET_BYTES + b" HTTP/1.1\r\nHost: h\r\n\r\n", 414),
        (POST + b"X: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n", 431),
        (POST + b"X: " + b"a" * (MAX_HEAD_BYTES * 2), 431),
        (POST + b"X: y\r\n" * MAX_FIELDS + b"\r\n", 431),
        (b"\r\n" * MAX_HEAD_BYTES, 431),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: " + b"a" * (MAX_HEAD_BYTES * 2), 431),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1;x=" + b"a" * (MAX_HEAD_BYTES * 2), 431),
    ],
    ids=["target", "field", "endless field", "number of fields", "empty lines", "trailers", "chunk extension"],
)
async def test_what_is_not_a_body_is_bounded(data: bytes, status: int) -> None:
    """Red if a client could make the server keep whatever it sends."""
    pieces = [data[i : i + 4096] for i in range(0, len(data), 4096)]
    assert await Rig(Echo()).statuses(*pieces) == [status]


async def test_large_bodies_are_read_in_parts_and_reading_waits_for_the_handler() -> None:
    taken = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await taken.wait()
        await Echo()(scope, receive, send)

    connection_rig = Rig(slow)
    connection, wire = connection_rig.open()
    connection.data_received(POST + b"Content-Length: 200000\r\n\r\n")
    connection.data_received(b"x" * 100_000)
    await connection_rig.settle()
    assert not wire.is_read
    taken.set()
    await connection_rig.settle()
    assert wire.is_read and not wire.written
    connection.data_received(b"x" * 100_000)
    await connection_rig.settle()
    assert statuses(wire.written) == [200]


@pytest.mark.parametrize("target", [b"http://o.example:81/b?q", b"HTTPS://o.example:81/b?q"])
async def test_a_whole_url_as_target_is_taken_and_its_host_wins(target: bytes) -> None:
    echo = Echo()
    await Rig(echo).say(b"GET " + target + b" HTTP/1.1\r\nHost: h\r\n\r\n")
    assert echo.told[0].path == "/b" and dict(echo.told[0].headers)[b"host"] == b"o.example:81"


async def test_names_with_slashes_and_spaces_stay_reachable() -> None:
    """Red if the check of paths refused what clients send for a model's name."""
    expected = [("GET", "/v1/models/a/b c%2f", b""), ("GET", "/v1/models/é..x/", b"")]
    data = b"GET /v1/models/a%2Fb%20c%252f HTTP/1.1\r\nHost: h\r\n\r\n"
    assert await told(data + b"GET /v1/models/%C3%A9..x/ HTTP/1.1\r\nHost: \r\n\r\n") == expected


async def test_requests_without_waiting_are_answered_in_order_and_bounded() -> None:
    """Red if one segment of small requests could queue thousands, or an error overtook an answer."""
    requests = b"".join(b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % i for i in range(100))
    wire = await Rig(Echo()).say(requests)
    assert statuses(wire.written) == [200] * (MAX_PIPELINED + 1)
    bodies = [part.rpartition(b"\r\n\r\n")[2] for part in wire.written.split(b"HTTP/1.1")[1:]]
    assert bodies == [b"/%d" % i for i in range(MAX_PIPELINED + 1)]
    assert wire.written.count(b"connection: close") == 1 and wire.half_closed
    wire = await Rig(Echo()).say(GET_B + b"GET / HTTP/1.1\r\n\r\n" + GET_B)
    assert statuses(wire.written) == [200, 400] and wire.written.index(b"/b") < wire.written.index(b" 400 ")


async def test_what_follows_a_last_request_is_not_read() -> None:
    echo = Echo()
    wire = await Rig(echo).say(b"GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n" + GET_B)
    assert statuses(wire.written) == [200] and len(echo.told) == 1 and wire.ended == "close"


async def stream(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for part in (b"one", b"two"):
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def test_a_stream_to_an_old_client_is_not_chunked_and_ends_with_the_connection() -> None:
    wire = await Rig(stream).say(b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    head, _, body = wire.written.partition(b"\r\n\r\n")
    assert body == b"onetwo" and b"transfer-encoding" not in head and b"connection: close" in head
    assert wire.ended == "close"
    wire = await Rig(stream).say(GET_B)
    assert wire.written.endswith(b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n") and not wire.ended


async def test_a_stream_that_breaks_off_does_not_look_complete() -> None:
    """Red if the connection were closed in order: an old client takes that for the end of the answer."""

    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        raise RuntimeError

    for version in (b"1.0", b"1.1"):
        wire = await Rig(broken).say(b"GET /a HTTP/%b\r\nHost: h\r\n\r\n" % version)
        assert wire.ended == "abort" and not wire.written.endswith(b"0\r\n\r\n")


async def test_a_head_request_gets_headers_alone() -> None:
    wire = await Rig(Echo()).say(b"HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n" + GET_B)
    assert wire.written.count(b"/a") == 0 and wire.written.endswith(b"/b")
    assert b"content-length: 2" in wire.written.partition(b"\r\n\r\n")[0]


async def test_a_body_that_is_announced_is_asked_for_once_it_is_wanted() -> None:
    """Red if the answer came first and the connection stayed: its client may or may not send the body then."""
    head = POST + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    connection_rig = Rig(Echo())
    connection, wire = connection_rig.open()
    connection.data_received(head)
    await connection_rig.settle()
    assert wire.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.data_received(b"abc")
    await connection_rig.settle()
    assert statuses(wire.written) == [100, 200] and not wire.ended
    wire = await Rig(stream).say(head)
    assert statuses(wire.written) == [200] and b"connection: close" in wire.written and wire.ended == "close"


async def test_a_body_that_breaks_ends_the_request_it_belongs_to() -> None:
    """Red if a handler that waits for the rest were left waiting, or answered as if it had come."""
    seen: list[str] = []

    async def reader(scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] != "http.disconnect":
            seen.append(message["body"].decode())
        seen.append("gone")

    connection_rig = Rig(reader)
    connection, wire = connection_rig.open()
    connection.data_received(POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
    await connection_rig.settle()
    connection.data_received(b"zz\r\n")
    await connection_rig.settle()
    assert seen == ["abc", "gone"] and statuses(wire.written) == [400]


async def test_the_gateway_answers_through_it() -> None:
    """The whole way once: a completion over bytes."""
    body = b'{"prompt": "a\\r\\nUpgrade: b",\r\n"user": "x"}'
    data = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\ncontent-length: %d\r\n%b\r\n" % (len(body), OFFER) + body
    wire: Wire = await Rig(rig(says("x")).app).say(data)
    assert wire.written.startswith(b"HTTP/1.1 200") and b'"prompt_tokens":13' in wire.written
