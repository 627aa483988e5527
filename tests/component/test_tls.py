"""TLS: files that cannot be used, files that are renewed, and connections that never shake hands."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from http_wire import LIMITS, Echo, Rig

from relevo.build.configs import HttpConfig
from relevo.build.tls import build_tls
from relevo.core.errors import StartError
from relevo.gateway.http.listener import Listener
from relevo.gateway.http.tls import LOOK_S, RenewingContext, TlsContext, TlsError, TlsFiles, server_context

AUTHORITY = trustme.CA()
ONE, TWO = AUTHORITY.issue_cert("localhost", common_name="one"), AUTHORITY.issue_cert("localhost", common_name="two")
NOW = datetime.datetime.now(datetime.UTC)
OLD = AUTHORITY.issue_cert("localhost", not_before=NOW - datetime.timedelta(9), not_after=NOW - datetime.timedelta(1))
EARLY = AUTHORITY.issue_cert("localhost", not_before=NOW + datetime.timedelta(1), not_after=NOW + datetime.timedelta(9))


def put(folder: Path, certificate: trustme.LeafCert, key: trustme.LeafCert | None = None) -> TlsFiles:
    chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    (folder / "new").write_bytes(chain)
    (folder / "new").rename(folder / "cert.pem")
    (folder / "key.pem").write_bytes((key or certificate).private_key_pem.bytes())
    return TlsFiles(certfile=str(folder / "cert.pem"), keyfile=str(folder / "key.pem"))


def client_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    return context


@asynccontextmanager
async def listening(rig: Rig, tls: TlsContext) -> AsyncIterator[int]:
    listening_socket = socket.create_server(("127.0.0.1", 0))
    listener = Listener(listening_socket, rig.limiter, tls)
    listener.start()
    try:
        yield listening_socket.getsockname()[1]
    finally:
        listener.close()
        listening_socket.close()


async def ask(port: int) -> tuple[bytes, str]:
    """The answer, and whom the certificate names."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context(), server_hostname="localhost")
    writer.write(b"GET /a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    subject = dict(pair[0] for pair in writer.get_extra_info("peercert")["subject"])
    writer.close()
    return answer, subject["commonName"]


@pytest.mark.parametrize(
    ("certificate", "key", "why"),
    [(ONE, TWO, "is not that of"), (OLD, OLD, "has expired"), (EARLY, EARLY, "is not valid yet")],
)
def test_a_certificate_that_clients_would_refuse_is_refused_at_start(
    tmp_path: Path, certificate: trustme.LeafCert, key: trustme.LeafCert, why: str
) -> None:
    with pytest.raises(TlsError, match=why):
        server_context(put(tmp_path, certificate, key))


def test_files_that_are_none_are_refused_by_name(tmp_path: Path) -> None:
    good = put(tmp_path, ONE)
    server_context(good)
    (tmp_path / "text").write_text("hello")
    for field in ("certfile", "keyfile", "ca_certs"):
        with pytest.raises(TlsError, match=r"absent.*No such file"):
            server_context(replace(good, **{field: str(tmp_path / "absent")}))
        with pytest.raises(TlsError, match="text"):
            server_context(replace(good, **{field: str(tmp_path / "text")}))
        with pytest.raises(TlsError, match="cannot be read"):
            server_context(replace(good, **{field: str(tmp_path)}))


def test_a_locked_key_asks_for_its_password_and_never_the_terminal(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    files = put(tmp_path, ONE)
    key = serialization.load_pem_private_key(ONE.private_key_pem.bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    (tmp_path / "key.pem").write_bytes(pem)
    with pytest.raises(TlsError, match="is encrypted"):
        server_context(files)
    with pytest.raises(TlsError, match="does not open"):
        server_context(replace(files, keyfile_password="wrong"))
    server_context(replace(files, keyfile_password="secret"))


@pytest.mark.parametrize(
    "config",
    [HttpConfig(ssl_keyfile="k"), HttpConfig(ssl_cert_reqs=2), HttpConfig(ssl_certfile="c", ssl_cert_reqs=1),
     HttpConfig(ssl_certfile="c", ssl_ca_certs="a")],
)  # fmt: skip
def test_settings_that_would_be_without_effect_are_refused(config: HttpConfig) -> None:
    with pytest.raises(StartError, match="--ssl-"):
        build_tls(config)


async def test_a_renewed_certificate_is_taken_while_it_runs_and_a_broken_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Red if a renewal needed a restart, or half a renewal ended HTTPS."""
    now_s = 0.0
    tls = RenewingContext(put(tmp_path, ONE), lambda: now_s)
    async with listening(Rig(Echo()), tls) as port:
        answer, name = await ask(port)
        assert answer.endswith(b"/a") and name == "one"
        put(tmp_path, TWO, ONE)  # the certificate is there, its key not yet
        now_s += LOOK_S
        assert (await ask(port))[1] == "one" and "stays in use" in caplog.text
        put(tmp_path, TWO)
        now_s += LOOK_S
        assert (await ask(port))[1] == "two"


async def test_a_client_without_the_certificate_that_is_needed_gets_no_answer(tmp_path: Path) -> None:
    files = put(tmp_path, ONE)
    (tmp_path / "ca.pem").write_bytes(AUTHORITY.cert_pem.bytes())
    echo = Echo()
    tls = RenewingContext(replace(files, ca_certs=str(tmp_path / "ca.pem"), cert_reqs=2))
    async with listening(Rig(echo), tls) as port:
        with pytest.raises((ssl.SSLError, ConnectionError, IndexError)):
            answer, _ = await ask(port)
            answer[0]
        assert not echo.told


async def test_what_never_shakes_hands_counts_and_is_ended(tmp_path: Path) -> None:
    """Red if a silent connection were not counted before its handshake, or had no end."""
    rig = Rig(Echo(), replace(LIMITS, max_per_address=2))
    async with listening(rig, RenewingContext(put(tmp_path, ONE))) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        assert await silent[0][0].read() == b""  # made room for the third of its address
        assert len(rig.limiter.table) == 2 and rig.counts.refused == ["per_address"]
        rig.pass_s(LIMITS.header_timeout_s)
        for reader, writer in silent[1:]:
            assert await reader.read() == b""
            writer.close()
        await rig.settle()
        assert len(rig.limiter.table) == 0
