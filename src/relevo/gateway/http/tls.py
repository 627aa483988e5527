"""The server's side of TLS: a context from files, and a new one when the files are renewed.

Owns the sentences about files that cannot be used. A context is tried against itself before it serves, so that a
certificate that has expired is an error at start and not a surprise of every client. Does not know settings.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from relevo.core.errors import StartError

log = logging.getLogger("relevo.http")

LOOK_S = 1.0  # arbitrary: how often the files are looked at, when connections come
_OUT_OF_DATE = {9: "is not valid yet", 10: "has expired"}  # OpenSSL's X509_V_ERR codes


TlsContext = Callable[[], ssl.SSLContext | None]  # for the next connection


def no_tls() -> None:
    return None


class TlsError(StartError):
    """A file cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """`keyfile` empty: the key is in `certfile`. `cert_reqs`: 0 asks clients for no certificate, 1 takes one, 2 needs
    one."""

    certfile: str
    keyfile: str = ""
    keyfile_password: str = ""
    ca_certs: str = ""
    cert_reqs: int = 0

    def paths(self) -> list[Path]:
        return [Path(name) for name in (self.certfile, self.keyfile, self.ca_certs) if name]

    def state(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Changes when a file is replaced or written to."""
        found: list[tuple[int, int, int] | None] = []
        for path in self.paths():
            try:
                stat = path.stat()
                found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
            except OSError:
                found.append(None)
        return tuple(found)


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Raises TlsError."""
    for flag, name in (("certfile", files.certfile), ("keyfile", files.keyfile), ("ca-certs", files.ca_certs)):
        _check_readable(f"--ssl-{flag}", name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    was_locked = False

    def password() -> str:
        nonlocal was_locked
        was_locked = True
        return _password(files)

    try:
        context.load_cert_chain(files.certfile, files.keyfile or None, password=password)
    except ssl.SSLError as error:
        raise TlsError(_why_not_loaded(files, error, was_locked=was_locked)) from error
    if files.ca_certs:
        try:
            context.load_verify_locations(files.ca_certs)
        except ssl.SSLError as error:
            raise TlsError(f"--ssl-ca-certs {files.ca_certs} has no PEM certificates ({error.reason})") from error
    context.verify_mode = ssl.VerifyMode(files.cert_reqs)
    _check_date(files)
    return context


class RenewingContext:
    """The context for the next connection."""

    def __init__(self, files: TlsFiles, now_s: Callable[[], float] = time.monotonic) -> None:
        """Raises TlsError."""
        self._files = files
        self._now_s = now_s
        self._state = files.state()
        self._context = server_context(files)
        self._looked_at_s = now_s()

    def __call__(self) -> ssl.SSLContext:
        now_s = self._now_s()
        if now_s - self._looked_at_s >= LOOK_S:
            self._looked_at_s = now_s
            self._look()
        return self._context

    def _look(self) -> None:
        state = self._files.state()
        if state == self._state:
            return
        self._state = state
        try:
            self._context = server_context(self._files)
        except TlsError as error:
            log.error("the certificate was not renewed, the one before it stays in use: %s", error)
        else:
            log.info("the certificate in %s was renewed", self._files.certfile)


def _check_readable(flag: str, name: str) -> None:
    if name:
        try:
            with Path(name).open("rb"):
                pass
        except OSError as error:
            raise TlsError(f"{flag} {name} cannot be read: {error.strerror}") from error


def _password(files: TlsFiles) -> str:
    if not files.keyfile_password:
        raise TlsError(f"the key in {files.keyfile or files.certfile} is encrypted; give --ssl-keyfile-password")
    return files.keyfile_password


def _why_not_loaded(files: TlsFiles, error: ssl.SSLError, *, was_locked: bool) -> str:
    key = files.keyfile or files.certfile
    reason = error.reason or str(error)
    if reason == "KEY_VALUES_MISMATCH":
        return f"the key in {key} is not that of the certificate in --ssl-certfile {files.certfile}; give the pair"
    if was_locked:
        return f"--ssl-keyfile-password does not open the key in {key}"
    return (
        f"--ssl-certfile {files.certfile} and the key in {key} are not a PEM certificate with its key ({reason}); "
        "give the certificate first, then its chain, and --ssl-keyfile if the key is in a file of its own"
    )


def _check_date(files: TlsFiles) -> None:
    """A handshake in memory, with the certificate itself as what the client trusts."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certfile, files.keyfile or None, password=lambda: _password(files))
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(files.certfile)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True))
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                if error.verify_code in _OUT_OF_DATE:
                    why = _OUT_OF_DATE[error.verify_code]
                    raise TlsError(f"the certificate in --ssl-certfile {files.certfile} {why}; renew it") from None
                return  # what else is wrong with it is for its clients to judge
            except ssl.SSLError:
                return
