"""Renews this node's certificate at half of its life, again and again until it works.

A box that has the authority's key signs for itself. What cannot be renewed is said in the log, louder once the end is
near. When to renew is `policy.cluster.lifetimes`'s to say.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence

from relevo.cluster.enroller import Enroller
from relevo.cluster.enrolment import renew
from relevo.cluster.identity import NodeIdentity
from relevo.cluster.identity_request import keep_identity, new_request
from relevo.cluster.peer import PeerRefused
from relevo.core.errors import StartError
from relevo.core.host_port import HostPort
from relevo.policy.cluster.lifetimes import Validity
from relevo.policy.cluster.tokens import utc

log = logging.getLogger("relevo.cluster")

_MOST_S = 600.0  # between attempts; arbitrary
_LOOK_S = 30.0  # the wall clock may be set
_LOUD_FROM = 0.25  # of the life is left


async def keep_renewed(
    identity: NodeIdentity, enroller: Enroller | None, heads: Callable[[], Sequence[HostPort]] = lambda: ()
) -> None:
    """Until cancelled. `enroller`: of this box, if it signs. `heads`: to ask otherwise, in any order."""
    while True:
        validity = identity.own.validity
        await _until(validity.renew_at_s(random.random()), identity)
        if identity.own.validity != validity:
            continue  # another process of this box has renewed it
        try:
            if enroller is not None:
                await asyncio.to_thread(_renew_self, identity, enroller)
            else:
                await renew(identity, _shuffled(heads()))
            log.info(
                "the certificate of node %s was renewed until %s",
                identity.name,
                utc(identity.own.validity.expires_at_s),
            )
        except (OSError, PeerRefused, StartError) as error:
            _say(identity.own.validity, error)
            await asyncio.sleep(min(_MOST_S, validity.life_s / 20) * (0.5 + random.random()))


def _renew_self(identity: NodeIdentity, enroller: Enroller) -> None:
    made = new_request(identity.name)
    certificate = enroller.renew(identity.own, made.request_pem)
    keep_identity(identity.folder, made.key_pem, certificate, enroller.authority.certificate_pem)
    identity.refresh()


def _shuffled(places: Sequence[HostPort]) -> list[HostPort]:
    return random.sample(list(places), len(places))


async def _until(moment_s: float, identity: NodeIdentity) -> None:
    while (left_s := moment_s - time.time()) > 0:
        await asyncio.sleep(min(left_s, _LOOK_S))
        identity.refresh()


def _say(validity: Validity, error: Exception) -> None:
    left_s = validity.expires_at_s - time.time()
    is_loud = left_s < validity.life_s * _LOUD_FROM
    log.log(
        logging.ERROR if is_loud else logging.WARNING,
        "the certificate of this node could not be renewed and ends at %s: %s",
        utc(validity.expires_at_s),
        error,
    )
