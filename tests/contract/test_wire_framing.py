"""Every message survives the wire, cut anywhere; nonsense is a ProtocolError and nothing else."""

from __future__ import annotations

import struct
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_samples import SAMPLES

from relevo.core.errors import ProtocolError, SettingsError
from relevo.wire import framing
from relevo.wire import messages as wire
from relevo.wire.address import unix_path

TO_WORKER = [m for m in SAMPLES if isinstance(m, get_args(wire.ToWorker))]
TO_GATEWAY = [m for m in SAMPLES if isinstance(m, get_args(wire.ToGateway))]


def test_the_samples_cover_every_message() -> None:
    """Red when a message is added without a sample here."""
    assert {type(m) for m in SAMPLES} == {*get_args(wire.ToWorker), *get_args(wire.ToGateway)}


@given(st.lists(st.sampled_from(TO_WORKER), max_size=4), st.data())
def test_messages_arrive_whole_however_the_stream_is_cut(sent: list[wire.ToWorker], data: st.DataObject) -> None:
    stream = b"".join(map(framing.encode_frame, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    decoder = framing.worker_side_decoder()
    got: list[wire.ToWorker] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += decoder.feed(stream[start:end])
    assert got == sent


@pytest.mark.parametrize("message", TO_GATEWAY, ids=lambda m: type(m).__name__)
def test_messages_to_the_gateway_arrive_as_they_were(message: wire.ToGateway) -> None:
    """Red if a field loses its type on the way (tuple, enum, bytes, integer keys)."""
    assert framing.gateway_side_decoder().feed(framing.encode_frame(message)) == [message]


def frame(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(
    "stream",
    [
        struct.pack("<I", framing.MAX_FRAME_BYTES + 1),
        frame(b""),
        frame(b"\xc1"),
        frame(msgspec.msgpack.encode(["NoSuchMessage", 1])),
        frame(msgspec.msgpack.encode(["Ping", "not a number"])),
        frame(msgspec.msgpack.encode(["Pong", 1])),  # the other direction
        frame(b"\x93\xa4Ping\x01" + b"\x91" * 10_000 + b"\xc0"),  # a field nobody asked for, nested without end
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_nonsense_is_a_protocol_error(stream: bytes) -> None:
    with pytest.raises(ProtocolError):
        framing.worker_side_decoder().feed(stream)


@given(st.binary(max_size=64))
def test_no_bytes_raise_anything_but_a_protocol_error(body: bytes) -> None:
    try:
        framing.gateway_side_decoder().feed(frame(body))
    except ProtocolError:
        return


def test_a_message_beyond_the_limit_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MAX_FRAME_BYTES", 3)
    with pytest.raises(ProtocolError, match="limit of 3"):
        framing.encode_frame(wire.Abort(wire.RequestId("a request")))


def test_addresses() -> None:
    assert unix_path("unix:/run/w0") == "/run/w0"
    for wrong in ("", "unix:", "tcp:127.0.0.1:80", "http://h", "unix:/" + 100 * "x"):
        with pytest.raises(SettingsError):
            unix_path(wrong)
