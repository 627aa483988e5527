"""Bytes of a connection, fed to the protocol without a network."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from scripted_gateway import rig, says
from uvicorn.server import ServerState

from relevo.gateway.http_protocol import MAX_HEAD_BYTES, DoorProtocol

BODY = b'{"prompt": "hi"}'


class Wire(asyncio.Transport):
    """What the server writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.has_written = asyncio.Event()
        self._is_closing = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)
        self.has_written.set()

    def close(self) -> None:
        self._is_closing = True

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Connection:
    def __init__(self, app: Any) -> None:
        config = uvicorn.Config(app, lifespan="off", log_config=None)
        config.load()
        self.state = ServerState()
        self.wire = Wire()
        self.protocol = DoorProtocol(config, self.state, {})
        self.protocol.connection_made(self.wire)

    async def say(self, *parts: bytes) -> str:
        """What comes back once everything that was asked is answered."""
        for part in parts:
            self.protocol.data_received(part)
        await asyncio.gather(*self.state.tasks)
        self.protocol.connection_lost(None)
        return self.wire.written.decode()


def head(*lines: bytes) -> bytes:
    start = (b"POST /v1/completions HTTP/1.1", b"content-length: %d" % len(BODY))
    return b"\r\n".join((*start, *lines, b"", b""))


@pytest.mark.parametrize("offer", [b"h2c", b"websocket"])
@pytest.mark.parametrize("name", [b"Upgrade", b"UPGRADE"])
async def test_an_offer_of_another_protocol_is_declined_and_the_request_answered(offer: bytes, name: bytes) -> None:
    """Red if the body were dropped, as the parser does: Java's client makes such an offer with every request."""
    lines = (b"Connection: Upgrade, HTTP2-Settings", name + b": " + offer, b"HTTP2-Settings: AAMAAABkAAQAAP__")
    answered = await Connection(rig(says("x")).app).say(head(*lines), BODY)
    assert answered.startswith("HTTP/1.1 200") and '"prompt_tokens":2' in answered


async def test_a_body_that_speaks_of_upgrades_is_left_alone() -> None:
    text = b'{"prompt": "a\\r\\nUpgrade: b",\r\n"upgrade": 1}'
    start = b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(text)
    answered = await Connection(rig(says("x")).app).say(start + text)
    assert answered.startswith("HTTP/1.1 200") and '"prompt_tokens":13' in answered


async def test_a_head_without_end_is_refused_and_bodies_do_not_count() -> None:
    """Red if a client could make the gateway keep whatever it sends as headers."""
    piece = b"a" * 2**16
    many = [piece] * (MAX_HEAD_BYTES // len(piece) + 1)
    answered = await Connection(rig().app).say(b"GET /version HTTP/1.1\r\nx: ", *many)
    assert answered.startswith("HTTP/1.1 400") and "headers" in answered
    large = b'{"prompt": "hi", "user": "' + b"".join(many) + b'"}'
    start = b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(large)
    pieces = [large[i : i + 2**16] for i in range(0, len(large), 2**16)]
    answered = await Connection(rig(says("x")).app).say(start, *pieces)
    assert answered.startswith("HTTP/1.1 200"), answered
