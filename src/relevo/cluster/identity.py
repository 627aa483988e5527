"""The identity of this node: its key, its certificate, the authority it trusts, and whom it does not let in any more.

Every process of a node that opens or takes connections loads it from the node's folder. Files are looked at at each
handshake, so that what was renewed or revoked on the disk counts from the next connection on. Needs OpenSSL as Python
has it and nothing else: making keys and certificates is `identity_authority` and `identity_request`.
"""

from __future__ import annotations

import hashlib
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from relevo.cluster.identity_folder import CA_CERTIFICATE, NODE, FileState, check_folder, file_state, read_private
from relevo.cluster.identity_revoked import RevokedList
from relevo.cluster.peer import NodeRole, Peer, PeerRefused, Refusal, peer_of, peer_of_certificate
from relevo.cluster.tls_errors import OUT_OF_DATE
from relevo.core.errors import StartError

log = logging.getLogger("relevo.cluster")


class NodeIdentity:
    """Made by `load`. For one thread."""

    def __init__(self, folder: Path, now_s: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self.revoked = RevokedList(folder)
        self._now_s = now_s
        self._state = self._files()
        self._contexts, self.own = _loaded(folder)
        self.fingerprint = fingerprint_of(read_private(folder / CA_CERTIFICATE).decode("ascii", "replace"))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Raises StartError in one sentence: not there, open to others, expired, or of another authority."""
        check_folder(folder)
        return cls(folder)

    @property
    def name(self) -> str:
        return self.own.name

    @property
    def role(self) -> NodeRole:
        return self.own.role

    def server_context(self, *, strangers_may_enrol: bool = False) -> ssl.SSLContext:
        """For the next connection that is taken. `strangers_may_enrol`: a client without certificate comes through the
        handshake, and `peer_of` it is None; one with a bad certificate does not."""
        self.refresh()
        return self._contexts.enrolling if strangers_may_enrol else self._contexts.server

    def client_context(self) -> ssl.SSLContext:
        """For the next connection that is opened. Give `admit` what it connected to: names are not looked at here."""
        self.refresh()
        return self._contexts.client

    def admit(
        self, ssl_object: ssl.SSLObject | ssl.SSLSocket, *, name: str | None = None, role: NodeRole | None = None
    ) -> Peer:
        """Who is there, after the handshake. Raises PeerRefused: none, not the node or the role that is needed,
        expired, revoked."""
        peer = peer_of(ssl_object)
        if peer is None:
            raise PeerRefused(Refusal.CERTIFICATE, "it has shown no certificate; join the cluster first")
        return self.check(peer, name=name, role=role)

    def check(self, peer: Peer, *, name: str | None = None, role: NodeRole | None = None) -> Peer:
        """As `admit`, now. For connections that last."""
        if self.revoked.has(peer.enrolment_id):
            raise PeerRefused(Refusal.REVOKED, f"node {peer.name} was revoked; it may join again with a new token")
        if peer.validity.has_expired(self._now_s()):
            raise PeerRefused(Refusal.EXPIRED, f"the certificate of node {peer.name} has expired")
        if name is not None and peer.name != name:
            raise PeerRefused(Refusal.NAME, f"node {peer.name} answers where node {name} was meant")
        if role is not None and peer.role is not role:
            raise PeerRefused(Refusal.ROLE, f"node {peer.name} is a {peer.role}, and this needs a {role}")
        return peer

    def refresh(self) -> bool:
        """Look at the disk; true if something has changed. What cannot be used is said once, and what was there before
        stays in use."""
        has_changed = self.revoked.refresh()
        state = self._files()
        if state == self._state:
            return has_changed
        self._state = state
        try:
            self._contexts, self.own = _loaded(self.folder)
        except StartError as error:
            log.error("the certificate of this node was not renewed, the one before it stays in use: %s", error)
            return has_changed
        return True

    def _files(self) -> tuple[FileState, FileState]:
        return file_state(self.folder / NODE), file_state(self.folder / CA_CERTIFICATE)


class _Contexts:
    """Of one certificate and authority."""

    def __init__(self, folder: Path) -> None:
        self.server = _context(folder, ssl.PROTOCOL_TLS_SERVER)
        self.enrolling = _context(folder, ssl.PROTOCOL_TLS_SERVER)
        self.enrolling.verify_mode = ssl.CERT_OPTIONAL
        self.client = _context(folder, ssl.PROTOCOL_TLS_CLIENT)


def fingerprint_of(certificate_pem: str) -> str:
    """SHA-256 of the certificate, in hexadecimal. StartError if it is none."""
    try:
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate_pem.strip())).hexdigest()
    except ValueError:
        raise StartError("the certificate of the authority is not PEM; join again with a new token") from None


def joining_context(authority_pem: str) -> ssl.SSLContext:
    """Of a node that has no certificate yet and knows the authority by its fingerprint."""
    context = _strict(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority_pem)
    return context


def blind_context() -> ssl.SSLContext:
    """To ask for the authority's certificate, which is compared with its fingerprint then. Nothing is told over it."""
    context = _strict(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_mode = ssl.CERT_NONE
    return context


def _strict(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # nodes have names of their own, which `admit` compares
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _context(folder: Path, protocol: int) -> ssl.SSLContext:
    context = _strict(protocol)
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # a session that is resumed would not be looked at again
    context.load_cert_chain(folder / NODE)
    context.load_verify_locations(folder / CA_CERTIFICATE)
    return context


def _loaded(folder: Path) -> tuple[_Contexts, Peer]:
    """Tried against each other, so that what does not fit or has expired is an error here and no surprise of peers."""
    for name in (NODE, CA_CERTIFICATE):
        try:
            read_private(folder / name)
        except FileNotFoundError:
            raise StartError(
                f"{folder} has no {name}; make a cluster there with `relevo cluster init`, or join one"
            ) from None
    try:
        contexts = _Contexts(folder)
        return contexts, peer_of_certificate(_own_certificate(contexts))
    except ssl.SSLCertVerificationError as error:
        why = OUT_OF_DATE.get(error.verify_code, f"does not fit {CA_CERTIFICATE} ({error.verify_message})")
        raise StartError(
            f"the certificate in {folder / NODE} {why}; see to the clock, or join again with a new token"
        ) from None
    except ssl.SSLError as error:
        raise StartError(
            f"{folder / NODE} is not a key with its certificate ({error.reason}); join again with a new token"
        ) from error
    except PeerRefused:
        raise StartError(f"the certificate in {folder / NODE} is not that of a node; join with a token") from None


def _own_certificate(contexts: _Contexts) -> Mapping[str, Any]:
    """A handshake in memory of this node with itself. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = contexts.client.wrap_bio(to_client, to_server)
    server = contexts.server.wrap_bio(to_server, to_client, server_side=True)
    for end in (client, server, client, server):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return server.getpeercert() or {}
