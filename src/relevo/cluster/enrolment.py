"""How a node gets its first certificate and the next ones, over the control port of a head.

A node that joins asks for the authority's certificate without trusting the answer, compares it with the fingerprint in
its token, connects again to what this authority has signed as a head, and only then tells the token. Heads that do not
sign say which do.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from relevo.cluster.enroller import Enroller
from relevo.cluster.identity import NodeIdentity, blind_context, fingerprint_of, joining_context
from relevo.cluster.identity_folder import CA_CERTIFICATE, locked, make_folder, read_private, write_private
from relevo.cluster.join_token import JoinToken
from relevo.cluster.opening import Purpose, Refused, refusal_of
from relevo.cluster.peer import NodeRole, PeerRefused, Refusal
from relevo.cluster.stream import FramedStream, open_stream, open_with_context
from relevo.cluster.stream_server import Handler
from relevo.core.errors import SettingsError, StartError, WorkerLost
from relevo.core.host_port import HostPort

log = logging.getLogger("relevo.cluster")

ANSWER_TIMEOUT_S = 10.0  # arbitrary; two files are written and synced
_Asked = TypeVar("_Asked")
_PENDING = "joining.json"  # key and request of an enrolment whose answer has not come


class AuthorityIs(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`signs`: nodes can be enrolled here; else at one of `heads`, if any is known."""

    certificate_pem: str
    signs: bool
    heads: tuple[str, ...] = ()


class Enrol(msgspec.Struct, frozen=True, tag=True, array_like=True):
    token: str
    request_pem: str
    name: str
    role: str


class Renew(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Of the node whose certificate was shown."""

    request_pem: str


class Certified(msgspec.Struct, frozen=True, tag=True, array_like=True):
    certificate_pem: str
    authority_pem: str


_AUTHORITY = msgspec.msgpack.Decoder(AuthorityIs)
_ENROL = msgspec.msgpack.Decoder(Enrol)
_RENEW = msgspec.msgpack.Decoder(Renew)
_CERTIFIED: msgspec.msgpack.Decoder[Certified | Refused] = msgspec.msgpack.Decoder(Certified | Refused)


# ---- the head's side -------------------------------------------------------------------------------------------------


def enrolment_handlers(
    identity: NodeIdentity, enroller: Enroller | None, other_heads: Callable[[], Sequence[HostPort]] = lambda: ()
) -> dict[Purpose, Handler]:
    """For the control port of a head. `enroller`: None where this box has no key of the authority."""

    async def tell_authority(stream: FramedStream, _about: bytes) -> None:
        certificate = read_private(identity.folder / CA_CERTIFICATE).decode("ascii")
        stream.send(AuthorityIs(certificate, enroller is not None, tuple(map(str, other_heads()))))

    async def enrol_one(stream: FramedStream, _about: bytes) -> None:
        asked = await _within(stream, _ENROL)
        await _answer(stream, enroller, lambda signer: signer.enrol(
            JoinToken.parse(asked.token, "what was sent"), asked.request_pem, asked.name, asked.role
        ))  # fmt: skip

    async def renew_one(stream: FramedStream, _about: bytes) -> None:
        asked, peer = await _within(stream, _RENEW), stream.peer
        assert peer is not None, "RENEW is not for strangers"
        await _answer(stream, enroller, lambda signer: signer.renew(peer, asked.request_pem))

    return {Purpose.AUTHORITY: tell_authority, Purpose.ENROL: enrol_one, Purpose.RENEW: renew_one}


async def _answer(stream: FramedStream, enroller: Enroller | None, sign: Callable[[Enroller], str]) -> None:
    """Raises PeerRefused, so that it is counted, after it was told."""
    try:
        if enroller is None:
            raise PeerRefused(Refusal.TOKEN, "this head has no key of the authority; ask another head")
        signer = enroller
        certificate = await asyncio.to_thread(lambda: sign(signer))
    except SettingsError as error:
        refused = PeerRefused(Refusal.TOKEN, error.message)
    except PeerRefused as error:
        refused = error
    except StartError as error:
        log.error("a certificate could not be made: %s", error.message)
        refused = PeerRefused(Refusal.TOKEN, "the head cannot sign at present; see its log")
    else:
        stream.send(Certified(certificate, signer.authority.certificate_pem))
        return
    stream.send(Refused(refused.reason, refused.message))
    raise refused


async def _within(stream: FramedStream, decoder: msgspec.msgpack.Decoder[_Asked]) -> _Asked:
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        return await stream.receive(decoder)


# ---- the node's side -------------------------------------------------------------------------------------------------


async def enrol(
    places: Sequence[HostPort], token: JoinToken, *, folder: Path, name: str, role: NodeRole
) -> NodeIdentity:
    """Become a node: key, certificate and authority are in `folder` when this returns. May be called again after any
    error: the same key is used, so that an answer that was lost costs no other token.

    OSError if no head answers, PeerRefused if none takes this node; StartError.
    """
    make_folder(folder)
    errors: list[OSError | PeerRefused] = []
    waiting, tried = list(places), set[HostPort]()
    while waiting:
        place = waiting.pop(0)
        if place in tried:
            continue
        tried.add(place)
        try:
            authority = await _authority_at(place, token)
            if authority.signs:
                return await _enrol_at(place, token, authority, folder, name, role)
            waiting += [HostPort.parse(each) for each in authority.heads]
            errors.append(
                PeerRefused(Refusal.TOKEN, f"the head at {place} has no key of the authority; join at one that has")
            )
        except (OSError, PeerRefused) as error:
            errors.append(error)
        except (WorkerLost, SettingsError) as error:
            errors.append(OSError(error.message))
    raise next((error for error in errors if isinstance(error, PeerRefused)), errors[0])


async def renew(identity: NodeIdentity, places: Sequence[HostPort]) -> None:
    """Get the next certificate from one of these heads, for a new key. OSError, PeerRefused; StartError."""
    from relevo.cluster.identity_request import keep_identity, new_request

    made = new_request(identity.name)
    errors: list[OSError | PeerRefused] = []
    for place in places:
        try:
            stream = await open_stream(place, Purpose.RENEW, identity=identity, role=NodeRole.HEAD)
            certified = await _certified(stream, Renew(made.request_pem))
        except (OSError, PeerRefused) as error:
            errors.append(error)
        except WorkerLost as error:
            errors.append(OSError(error.message))
        else:
            if fingerprint_of(certified.authority_pem) != identity.fingerprint:
                raise PeerRefused(Refusal.CERTIFICATE, f"the head at {place} has sent another authority's certificate")
            keep_identity(identity.folder, made.key_pem, certified.certificate_pem, certified.authority_pem)
            identity.refresh()
            return
    raise errors[0] if errors else OSError("no head is known to renew the certificate at")


async def _authority_at(place: HostPort, token: JoinToken) -> AuthorityIs:
    stream = await open_with_context(place, Purpose.AUTHORITY, context=blind_context(), check=False)
    try:
        authority = await _within(stream, _AUTHORITY)
    finally:
        stream.close()
    found = bytes.fromhex(fingerprint_of(authority.certificate_pem))
    if not hmac.compare_digest(found, token.fingerprint):
        raise PeerRefused(
            Refusal.CERTIFICATE,
            f"{place} is of another cluster than the join token (authority {found.hex()[:16]}... there, "
            f"{token.fingerprint.hex()[:16]}... in the token); nothing was told to it",
        )
    return authority


async def _enrol_at(
    place: HostPort, token: JoinToken, authority: AuthorityIs, folder: Path, name: str, role: NodeRole
) -> NodeIdentity:
    from relevo.cluster.identity_request import KeyAndRequest, keep_identity, new_request

    with locked(folder):
        try:
            made = msgspec.json.decode(read_private(folder / _PENDING), type=KeyAndRequest)
        except (FileNotFoundError, msgspec.MsgspecError):
            made = new_request(name)
            write_private(folder / _PENDING, msgspec.json.encode(made))
    stream = await open_with_context(
        place, Purpose.ENROL, context=joining_context(authority.certificate_pem), role=NodeRole.HEAD
    )
    certified = await _certified(stream, Enrol(token.text(), made.request_pem, name, role))
    keep_identity(folder, made.key_pem, certified.certificate_pem, authority.certificate_pem)
    with contextlib.suppress(FileNotFoundError):
        (folder / _PENDING).unlink()
    return NodeIdentity.load(folder)


async def _certified(stream: FramedStream, question: Enrol | Renew) -> Certified:
    try:
        stream.send(question)
        answer = await _within(stream, _CERTIFIED)
    finally:
        stream.close()
    if isinstance(answer, Refused):
        raise PeerRefused(refusal_of(answer.reason), answer.message)
    return answer
