"""The control port and those who do not belong there. Red when one gets in, stays, or keeps a node out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cluster_rigs import WORD, Head, Word, client_with, running_head, until
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from relevo.cluster.enroller import found_cluster
from relevo.cluster.identity import NodeIdentity, blind_context
from relevo.cluster.identity_authority import Authority
from relevo.cluster.identity_request import keep_identity, new_request
from relevo.cluster.opening import MAX_OPENING_BYTES, Opening, Purpose, Refused
from relevo.cluster.peer import NodeRole, PeerRefused, Refusal
from relevo.cluster.sockets import SILENT_S, close_all, listening_sockets, watch_silence
from relevo.cluster.stream import open_stream, open_with_context
from relevo.cluster.stream_guard import StreamGuard
from relevo.cluster.stream_server import MAX_STRANGERS, StreamServer
from relevo.core.errors import StartError, WorkerLost
from relevo.core.host_port import HostPort
from relevo.policy.cluster.lifetimes import BACKDATED_S
from relevo.wire.framing import encode_frame


@pytest.fixture
async def head(tmp_path: Path) -> AsyncIterator[Head]:
    async with running_head(tmp_path / "head", stranger_timeout_s=2.0) as running:
        yield running


@pytest.fixture
async def node(head: Head, tmp_path: Path) -> NodeIdentity:
    return await head.join(tmp_path / "node-b", "b")


async def is_served(head: Head, node: NodeIdentity) -> bool:
    stream = await open_stream(head.place, Purpose.PROBE, identity=node)
    stream.send(Word(5))
    answer = await stream.receive(WORD)
    stream.close()
    return answer == Word(5)


async def what_comes_back(head: Head, context: ssl.SSLContext | None, *sent: bytes) -> bytes:
    """To one who speaks what it wants. The connection ends by the head's will, or this raises TimeoutError."""
    async with asyncio.timeout(8):
        reader, writer = await asyncio.open_connection(head.place.host, head.place.port, ssl=context)
        received = b""
        with contextlib.suppress(OSError, ssl.SSLError):
            for data in sent:
                writer.write(data)
                await writer.drain()
            while data := await reader.read(65536):
                received += data
        writer.close()
        return received


# ---- certificates ----------------------------------------------------------------------------------------------------


async def test_without_a_certificate_nothing_but_enrolment_is_open(head: Head) -> None:
    for purpose in set(Purpose) - {Purpose.AUTHORITY, Purpose.ENROL}:
        with pytest.raises(PeerRefused, match=r"needs a certificate|not served here"):
            await open_with_context(head.place, purpose, context=blind_context(), check=False)
    assert head.refused(Refusal.CERTIFICATE) == 3  # renew, probe, admin; the others are not served by this one


async def test_a_port_without_enrolment_takes_no_handshake_without_a_certificate(
    head: Head, node: NodeIdentity
) -> None:
    async def never(_stream: object, _about: bytes) -> None:
        raise AssertionError

    server = StreamServer(node, StreamGuard(node), {Purpose.PROBE: never})
    server.listen(HostPort("127.0.0.1", 0))
    with pytest.raises((PeerRefused, OSError)):
        await open_with_context(HostPort("127.0.0.1", server.port), Purpose.PROBE, context=blind_context(), check=False)
    await until(lambda: server.num_refused == {Refusal.CERTIFICATE: 1})
    await server.close()


async def test_a_certificate_of_another_authority_is_refused_by_both_ends(
    head: Head, node: NodeIdentity, tmp_path: Path
) -> None:
    found_cluster(tmp_path / "foreign", "b")
    foreign = NodeIdentity.load(tmp_path / "foreign")
    with pytest.raises(PeerRefused, match="not of this cluster"):
        await open_stream(head.place, Purpose.PROBE, identity=foreign)
    with pytest.raises((PeerRefused, OSError)):  # it would not mind who the head is
        await open_with_context(head.place, Purpose.PROBE, context=client_with(foreign.folder), check=False)
    await until(lambda: head.refused(Refusal.CERTIFICATE) + head.refused(Refusal.PROTOCOL) == 2)
    assert head.refused(Refusal.CERTIFICATE) >= 1
    assert await is_served(head, node)


async def test_a_certificate_that_a_node_has_signed_is_refused(head: Head, node: NodeIdentity, tmp_path: Path) -> None:
    """A node's key is no authority's, whatever it signs."""
    pem = (node.folder / "node.pem").read_bytes()
    key = serialization.load_pem_private_key(pem, None)
    issuer = x509.load_pem_x509_certificate(pem[pem.index(b"-----BEGIN CERT") :])
    made = new_request("head-a")
    forged = Authority(key, issuer).sign(  # type: ignore[arg-type]
        made.request_pem, name="head-a", role=NodeRole.HEAD, enrolment_id="a" * 32, life_s=600
    )
    keep_identity(tmp_path / "forged", made.key_pem, forged + issuer.public_bytes(serialization.Encoding.PEM).decode(),
                  head.enroller.authority.certificate_pem)  # fmt: skip
    with pytest.raises((PeerRefused, OSError)):
        await open_with_context(head.place, Purpose.ADMIN, context=client_with(tmp_path / "forged"), check=False)
    await until(lambda: head.refused(Refusal.CERTIFICATE) == 1)
    with pytest.raises(StartError):
        NodeIdentity.load(tmp_path / "forged")


async def test_a_node_may_not_do_what_a_head_may(head: Head, node: NodeIdentity, tmp_path: Path) -> None:
    with pytest.raises(PeerRefused, match="is a node, and this needs a head"):
        await open_stream(head.place, Purpose.ADMIN, identity=node)
    assert head.refused(Refusal.ROLE) == 1
    other = await head.join(tmp_path / "c", "c", NodeRole.HEAD)
    (await open_stream(head.place, Purpose.ADMIN, identity=other)).close()


async def test_node_a_is_not_taken_for_node_b(head: Head, node: NodeIdentity) -> None:
    """The address of a node that is gone may be another's by now."""
    with pytest.raises(PeerRefused, match="node head-a answers where node b was meant"):
        await open_stream(head.place, Purpose.PROBE, identity=node, name="b")
    with pytest.raises(PeerRefused, match="needs a node"):
        await open_stream(head.place, Purpose.PROBE, identity=node, role=NodeRole.NODE)


async def test_an_expired_certificate_is_no_certificate(head: Head, tmp_path: Path) -> None:
    made = new_request("b")
    expired = head.enroller.authority.sign(
        made.request_pem, name="b", role=NodeRole.NODE, enrolment_id="b" * 32, life_s=60, now_s=lambda: time.time() - 90
    )
    keep_identity(tmp_path / "b", made.key_pem, expired, head.enroller.authority.certificate_pem)
    with pytest.raises(StartError, match="has expired"):
        NodeIdentity.load(tmp_path / "b")
    with pytest.raises((PeerRefused, OSError)):
        await open_with_context(head.place, Purpose.PROBE, context=client_with(tmp_path / "b"), check=False)
    await until(lambda: head.refused(Refusal.EXPIRED) == 1)


@pytest.mark.parametrize(("ahead_s", "is_taken"), [(BACKDATED_S - 60, True), (BACKDATED_S + 60, False)])
async def test_a_certificate_of_a_clock_that_is_ahead_is_taken_within_a_tolerance(
    head: Head, tmp_path: Path, ahead_s: float, is_taken: bool
) -> None:
    made = new_request("b")
    early = head.enroller.authority.sign(
        made.request_pem, name="b", role=NodeRole.NODE, enrolment_id="b" * 32, life_s=600,
        now_s=lambda: time.time() + ahead_s,
    )  # fmt: skip
    keep_identity(tmp_path / "b", made.key_pem, early, head.enroller.authority.certificate_pem)
    if is_taken:
        assert await is_served(head, NodeIdentity.load(tmp_path / "b"))
    else:
        with pytest.raises(StartError, match="not valid yet"):
            NodeIdentity.load(tmp_path / "b")


async def test_what_expires_while_it_is_connected_does_not_stay(head: Head, node: NodeIdentity) -> None:
    stream = await open_stream(head.place, Purpose.PROBE, identity=node)
    await until(lambda: head.server.num_streams == 1)
    head.identity._now_s = lambda: node.own.validity.expires_at_s + 1
    head.guard.look()
    with pytest.raises(WorkerLost):
        await stream.receive(WORD)
    assert head.refused(Refusal.EXPIRED) == 1


async def test_no_session_is_resumed(head: Head, node: NodeIdentity) -> None:
    """A ticket would let in again what has been revoked since, without a look at its certificate."""

    def connect(session: ssl.SSLSession | None) -> ssl.SSLSession | None:
        plain = socket.create_connection((head.place.host, head.place.port))
        with node.client_context().wrap_socket(plain, session=session) as secured:
            secured.sendall(encode_frame(Opening(Purpose.PROBE)))
            secured.recv(100)
            assert not secured.session_reused
            return secured.session

    session = await asyncio.to_thread(connect, None)
    assert session is None or not session.has_ticket


# ---- what is no protocol of ours -------------------------------------------------------------------------------------


async def test_http_and_noise_are_sent_away_and_counted(head: Head, node: NodeIdentity) -> None:
    for noise in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\0" * 300,
        bytes(range(256)) * 20,
        b"\x16\x03\x01\xff\xff" + b"A" * 500,
    ):
        await what_comes_back(head, None, noise)
    await until(lambda: head.refused(Refusal.PROTOCOL) == 4)
    assert await is_served(head, node)


async def test_tls_1_2_is_not_spoken(head: Head, node: NodeIdentity) -> None:
    old = client_with(node.folder)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, OSError)):
        await what_comes_back(head, old, b"x")
    await until(lambda: head.refused(Refusal.PROTOCOL) == 1)


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack("<I", MAX_OPENING_BYTES + 1),
        struct.pack("<I", 0xFFFFFFFF) + b"x" * 100,
        struct.pack("<I", 3) + b"\xc1\xc1\xc1",
        encode_frame(Word(1)),
        encode_frame(Opening("nonsense" * 20)),
        encode_frame(Opening(Purpose.LINK)),
        encode_frame(Opening(Purpose.PROBE, version=99)),
        struct.pack("<I", 2) + b"\x91\x91" * 1,
    ],
)
async def test_first_words_that_are_none_end_the_connection(head: Head, node: NodeIdentity, sent: bytes) -> None:
    before = head.server.num_streams
    await what_comes_back(head, client_with(node.folder), sent)
    await until(lambda: head.refused(Refusal.PROTOCOL) == 1)
    assert head.server.num_streams == before and head.server.num_strangers == 0
    assert await is_served(head, node)


async def test_a_frame_that_is_too_large_or_broken_later_ends_its_connection_alone(
    head: Head, node: NodeIdentity
) -> None:
    kept = await open_stream(head.place, Purpose.PROBE, identity=node)
    opening = encode_frame(Opening(Purpose.PROBE))
    for bad in (struct.pack("<I", 5 * 1024 * 1024), struct.pack("<I", 1) + b"\xc1", encode_frame(Refused("x", "y"))):
        await what_comes_back(head, client_with(node.folder), opening, bad)
    await until(lambda: head.refused(Refusal.PROTOCOL) == 3)
    kept.send(Word(2))
    assert await kept.receive(WORD) == Word(2)


async def test_a_connection_that_is_cut_in_a_frame_is_nothing_to_its_purpose(head: Head, node: NodeIdentity) -> None:
    opening, half = encode_frame(Opening(Purpose.PROBE)), encode_frame(Word(1, b"x" * 1000))[:500]
    async with asyncio.timeout(5):
        reader, writer = await asyncio.open_connection(head.place.host, head.place.port, ssl=client_with(node.folder))
        writer.write(opening + half)
        assert await reader.read(100)
        writer.transport.abort()
    await until(lambda: head.server.num_streams == 0)
    assert await is_served(head, node)


async def test_what_was_recorded_cannot_be_played_again(head: Head, node: NodeIdentity) -> None:
    """The bytes of a node's whole connection, as a machine on the way sees them."""
    sent = bytearray()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_kept: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if is_kept:
                    sent.extend(data)
                writer.write(data)
        writer.close()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward = await asyncio.open_connection(head.place.host, head.place.port)
        await asyncio.gather(pump(reader, onward[1], is_kept=True), pump(onward[0], writer, is_kept=False))

    between = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    stream = await open_stream(HostPort("127.0.0.1", between.sockets[0].getsockname()[1]), Purpose.PROBE, identity=node)
    stream.send(Word(9))
    assert await stream.receive(WORD) == Word(9)
    stream.close()
    between.close()
    recorded = bytes(sent)
    assert len(recorded) > 500 and b"relevo" not in recorded, "who connects is not told to those on the way"
    reached = head.server.num_streams
    await what_comes_back(head, None, recorded)
    await until(lambda: head.refused(Refusal.PROTOCOL) == 1)
    assert head.server.num_streams <= reached


# ---- floods ----------------------------------------------------------------------------------------------------------


async def test_silent_strangers_keep_no_node_out_and_do_not_stay(head: Head, node: NodeIdentity) -> None:
    plain = [socket.create_connection((head.place.host, head.place.port)) for _ in range(3 * MAX_STRANGERS)]
    try:
        assert await is_served(head, node)
        assert head.server.num_strangers <= MAX_STRANGERS
        await until(lambda: head.server.num_strangers == 0)
        assert head.refused(Refusal.LIMIT) >= 2 * MAX_STRANGERS
        assert head.refused(Refusal.TIMEOUT) + head.refused(Refusal.LIMIT) == len(plain)
    finally:
        for each in plain:
            each.close()


async def test_one_that_speaks_a_byte_at_a_time_has_the_same_time_as_all(head: Head, node: NodeIdentity) -> None:
    """Before TLS, and after it."""

    async def drip(context: ssl.SSLContext | None, data: bytes) -> float:
        started_s = time.monotonic()
        _, writer = await asyncio.open_connection(head.place.host, head.place.port, ssl=context)
        with contextlib.suppress(OSError, ssl.SSLError):
            for byte in data:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()
        return time.monotonic() - started_s

    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
    took = asyncio.gather(drip(None, hello), drip(client_with(node.folder), struct.pack("<I", 4000) + bytes(4000)))
    await until(lambda: head.refused(Refusal.TIMEOUT) == 2)
    assert await is_served(head, node)
    took.cancel()


async def test_refusals_are_told_to_the_log_rarely(head: Head, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "relevo.cluster"):
        for _ in range(30):
            await what_comes_back(head, None, b"GET / HTTP/1.0\r\n\r\n")
        await until(lambda: head.refused(Refusal.PROTOCOL) == 30)
    assert sum("was refused" in record.message for record in caplog.records) == 1


async def test_connections_end_with_the_port(head: Head, node: NodeIdentity) -> None:
    stream = await open_stream(head.place, Purpose.PROBE, identity=node)
    silent = socket.create_connection((head.place.host, head.place.port))
    await until(lambda: head.server.num_strangers == 1)
    await head.server.close()
    await head.server.close()
    with pytest.raises(WorkerLost):
        await stream.receive(WORD)
    with pytest.raises(OSError, match="cannot be reached"):
        await open_stream(head.place, Purpose.PROBE, identity=node)
    silent.close()


# ---- addresses -------------------------------------------------------------------------------------------------------


async def test_names_are_looked_up_at_each_attempt_and_every_address_is_tried(
    head: Head, node: NodeIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    known = {"old": ["127.0.0.2"], "new": ["127.0.0.3", head.place.host]}
    at = "old"
    asked: list[str] = []

    async def look_up(host: str, port: int, **_options: object) -> list[tuple[object, ...]]:
        asked.append(host)
        if host != "box-a":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in known[at]]

    monkeypatch.setattr(loop, "getaddrinfo", look_up)
    place = HostPort("box-a", head.place.port)
    with pytest.raises(OSError, match="cannot be reached"):
        await open_stream(place, Purpose.PROBE, identity=node)
    at = "new"
    (await open_stream(place, Purpose.PROBE, identity=node)).close()
    assert asked == ["box-a", "box-a"]
    with pytest.raises(OSError, match="box-z is not known"):
        await open_stream(HostPort("box-z", 1), Purpose.PROBE, identity=node)


async def test_an_address_where_nothing_answers_costs_a_short_while(head: Head, node: NodeIdentity) -> None:
    listening = socket.create_server(("127.0.0.1", 0))  # takes connections, says nothing
    place = HostPort("127.0.0.1", listening.getsockname()[1])
    with pytest.raises(TimeoutError, match=r"within 0\.5 s"):
        await open_stream(place, Purpose.PROBE, identity=node, timeout_s=0.5)
    listening.close()


async def test_ipv6_alone_will_do(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with running_head(tmp_path / "head", host="::1") as head:
        node = await head.join(tmp_path / "b", "b")
        stream = await open_stream(HostPort.parse(f"[::1]:{head.server.port}"), Purpose.PROBE, identity=node)
        assert stream.local_address.host == "::1" and str(stream.remote_address) == f"[::1]:{head.server.port}"
        stream.close()


def test_a_port_that_is_taken_is_said_in_a_sentence(tmp_path: Path) -> None:
    sockets = listening_sockets(HostPort("127.0.0.1", 0))
    with pytest.raises(StartError, match="choose another"):
        listening_sockets(HostPort("127.0.0.1", sockets[0].getsockname()[1]))
    close_all(sockets)


def test_a_peer_that_has_gone_without_a_word_is_noticed_by_the_kernel() -> None:
    """Idle, and with bytes on their way: TCP alone would try for a quarter of an hour."""
    with socket.socket() as sock:
        watch_silence(sock)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == SILENT_S * 1000
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        probes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) + sock.getsockopt(
            socket.IPPROTO_TCP, socket.TCP_KEEPINTVL
        ) * sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
        assert probes == SILENT_S
