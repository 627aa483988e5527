"""Enrols nodes, renews their certificates and revokes them, on a box that has the authority's key.

Owns the order: judge, write down, sign. The clock of this box alone decides about life times.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from relevo.cluster.identity import fingerprint_of
from relevo.cluster.identity_authority import Authority, is_genuine, key_digest, make_ca, new_enrolment_id
from relevo.cluster.identity_folder import NODE
from relevo.cluster.identity_records import (
    AuthorityTerms,
    Enrolled,
    Records,
    changing_records,
    keep_terms,
    read_records,
    read_terms,
)
from relevo.cluster.identity_request import keep_identity, new_request
from relevo.cluster.identity_revoked import Revocation, RevokedList
from relevo.cluster.join_token import SECRET_BYTES, JoinToken
from relevo.cluster.peer import NAME_RULE, NodeRole, Peer, PeerRefused, Refusal, is_node_name
from relevo.core.errors import SettingsError, StartError
from relevo.policy.cluster.lifetimes import DEFAULT_LIFE_S
from relevo.policy.cluster.tokens import DEFAULT_TTL_S, TokenTerms, why_not


class Enroller:
    """May be called from any thread; other processes may have one for the same folder."""

    def __init__(
        self,
        folder: Path,
        authority: Authority,
        *,
        life_s: float = DEFAULT_LIFE_S,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self.authority = authority
        self._life_s = life_s
        self._now_s = now_s

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """None: this box has no key of the authority. Raises StartError."""
        authority = Authority.load(folder)
        return None if authority is None else cls(folder, authority, life_s=read_terms(folder).certificate_life_s)

    def new_token(
        self,
        *,
        ttl_s: float = DEFAULT_TTL_S,
        is_reusable: bool = False,
        name: str = "",
        role: NodeRole = NodeRole.NODE,
    ) -> JoinToken:
        """Raises SettingsError, StartError."""
        if name:
            check_node_name(name, "--name")
        if name and is_reusable:
            raise SettingsError("a token for one --name is used once; leave --reusable or --name out")
        fingerprint = bytes.fromhex(fingerprint_of(self.authority.certificate_pem))
        token = JoinToken(fingerprint, secrets.token_bytes(SECRET_BYTES), name)
        now_s = self._now_s()
        terms = TokenTerms(made_at_s=now_s, expires_at_s=now_s + ttl_s, role=role, name=name, is_reusable=is_reusable)
        with changing_records(self.folder, now_s) as records:
            records.tokens[token.digest] = terms
        return token

    def enrol(self, token: JoinToken, request_pem: str, name: str, role: str) -> str:
        """The certificate, in PEM. Raises PeerRefused with one sentence for the node; StartError for this box."""
        if not is_node_name(name):
            raise PeerRefused(Refusal.NAME, f"{name[:40]!r} is no name of a node: {NAME_RULE}")
        digest, now_s = key_digest(request_pem), self._now_s()
        with changing_records(self.folder, now_s) as records:
            terms = records.token(token.digest)
            if terms is None:
                raise PeerRefused(
                    Refusal.TOKEN,
                    "the join token is not known here: it expired long ago, or another box made it; make one with "
                    "`relevo cluster token` on the box that this one joins",
                )
            reason = why_not(terms, name=name, role=role, key_digest=digest, now_s=now_s)
            if reason is not None:
                raise PeerRefused(Refusal.TOKEN, reason)
            enrolment_id = terms.enrolment_id or new_enrolment_id()
            self._take_name(records, terms, name, enrolment_id)
            certificate = self._sign(records, request_pem, name, NodeRole(role), enrolment_id)
            records.tokens[token.digest] = terms.used(digest, enrolment_id)
        return certificate

    def renew(self, peer: Peer, request_pem: str) -> str:
        """The next certificate of a node that has shown one, for a new key. Raises PeerRefused, StartError."""
        with changing_records(self.folder, self._now_s()) as records:
            if RevokedList(self.folder).has(peer.enrolment_id):
                raise PeerRefused(Refusal.REVOKED, f"node {peer.name} was revoked; it may join again with a new token")
            return self._sign(records, request_pem, peer.name, peer.role, peer.enrolment_id)

    def enrol_self(self, request_pem: str, name: str) -> str:
        """The first head's own certificate; it needs no token, since it has the authority's key."""
        with changing_records(self.folder, self._now_s()) as records:
            return self._sign(records, request_pem, name, NodeRole.HEAD, new_enrolment_id())

    def note(self, peer: Peer) -> None:
        """A node that was let in: it can be revoked here from now on, whichever box has enrolled it."""
        known = read_records(self.folder).nodes.get(peer.enrolment_id)
        if known is not None and known.expires_at_s >= peer.validity.expires_at_s:
            return
        with changing_records(self.folder, self._now_s()) as records:
            before = records.nodes.get(peer.enrolment_id)
            records.nodes[peer.enrolment_id] = Enrolled(
                name=peer.name,
                role=peer.role,
                enrolment_id=peer.enrolment_id,
                enrolled_at_s=before.enrolled_at_s if before else peer.validity.issued_at_s,
                issued_at_s=peer.validity.issued_at_s,
                expires_at_s=peer.validity.expires_at_s,
                num_certificates=before.num_certificates + 1 if before else 1,
            )

    def revoke(self, name: str) -> tuple[Revocation, ...]:
        """Every enrolment of that name that is in force. Raises SettingsError if there is none; StartError."""
        nodes = [node for node in read_records(self.folder).nodes.values() if node.name == name]
        revoked = RevokedList(self.folder)
        in_force = [node for node in nodes if not revoked.has(node.enrolment_id)]
        if not in_force:
            known = ", ".join(sorted({node.name for node in read_records(self.folder).nodes.values()})) or "none"
            what = "was revoked already" if nodes else "is not known"
            raise SettingsError(f"node {name} {what}; the nodes of this cluster are: {known}")
        return self._revoke(revoked, in_force)

    def nodes(self) -> tuple[Enrolled, ...]:
        """Known here, those enrolled first first. Raises StartError."""
        return tuple(sorted(read_records(self.folder).nodes.values(), key=lambda node: node.enrolled_at_s))

    def num_open_tokens(self) -> int:
        """That a node may join with now. Raises StartError."""
        now_s = self._now_s()
        return sum(
            not terms.used_by_key and not terms.is_spent(now_s) for terms in read_records(self.folder).tokens.values()
        )

    # ---- under the lock ----------------------------------------------------------------------------------------------

    def _take_name(self, records: Records, terms: TokenTerms, name: str, enrolment_id: str) -> None:
        """One name is one node: who has it keeps it, unless an operator has made the token for this name."""
        revoked = RevokedList(self.folder)
        if revoked.has(enrolment_id):
            raise PeerRefused(Refusal.REVOKED, f"node {name} was revoked; it may join again with a new token")
        now_s = self._now_s()
        others = [
            node
            for node in records.nodes.values()
            if node.name == name and node.enrolment_id != enrolment_id and node.expires_at_s > now_s
        ]
        in_force = [node for node in others if not revoked.has(node.enrolment_id)]
        if not in_force:
            return
        if terms.name != name:
            raise PeerRefused(
                Refusal.NAME,
                f"a node named {name} is in the cluster already; join with another --name, revoke it, or make a token "
                f"for it with `relevo cluster token --name {name}`",
            )
        self._revoke(revoked, in_force, is_locked=True)

    def _revoke(
        self, revoked: RevokedList, nodes: list[Enrolled], *, is_locked: bool = False
    ) -> tuple[Revocation, ...]:
        made = [self.authority.revoke(node.enrolment_id, node.name, self._now_s()) for node in nodes]
        authority_pem = self.authority.certificate_pem
        return revoked.learn(made, lambda each: is_genuine(each, authority_pem), is_locked=is_locked)

    def _sign(self, records: Records, request_pem: str, name: str, role: NodeRole, enrolment_id: str) -> str:
        now_s = self._now_s()
        certificate = self.authority.sign(
            request_pem,
            name=name,
            role=role,
            enrolment_id=enrolment_id,
            life_s=self._life_s,
            now_s=lambda: now_s,
        )
        before = records.nodes.get(enrolment_id)
        records.nodes[enrolment_id] = Enrolled(
            name=name,
            role=role,
            enrolment_id=enrolment_id,
            enrolled_at_s=before.enrolled_at_s if before else now_s,
            issued_at_s=now_s,
            expires_at_s=now_s + self._life_s,
            num_certificates=before.num_certificates + 1 if before else 1,
        )
        return certificate


def check_node_name(name: str, flag: str) -> None:
    """Raises SettingsError."""
    if not is_node_name(name):
        raise SettingsError(f"{flag} {name[:40]!r}: {NAME_RULE}")


def found_cluster(folder: Path, name: str, *, life_s: float = DEFAULT_LIFE_S) -> Enroller:
    """A new authority, and this box as its first head. Raises StartError, SettingsError."""
    check_node_name(name, "--name")
    enroller = Enroller(folder, make_ca(folder), life_s=life_s)
    keep_terms(folder, AuthorityTerms(certificate_life_s=life_s))
    _become_head(enroller, name)
    return enroller


def another_head(folder: Path, name: str) -> Enroller:
    """This box as one more head of the cluster whose authority was brought here. Raises StartError, SettingsError."""
    check_node_name(name, "--name")
    enroller = enroller_of(folder)
    if (folder / NODE).exists():
        raise SettingsError(f"{folder} has the certificate of a node already ({NODE}); it needs no other")
    _become_head(enroller, name)
    return enroller


def _become_head(enroller: Enroller, name: str) -> None:
    made, authority_pem = new_request(name), enroller.authority.certificate_pem
    keep_identity(enroller.folder, made.key_pem, enroller.enrol_self(made.request_pem, name), authority_pem)


def enroller_of(folder: Path) -> Enroller:
    """Raises StartError where the box has no key to sign with."""
    found = Enroller.load(folder)
    if found is None:
        raise StartError(
            f"{folder} has no key of the authority (ca.key); run this on the box where `relevo cluster init` was run"
        )
    return found
