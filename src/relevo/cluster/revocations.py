"""What a node hears of revocations: verified, kept on its disk, and passed on."""

from __future__ import annotations

import logging

from relevo.cluster.identity import NodeIdentity
from relevo.cluster.identity_authority import is_genuine
from relevo.cluster.identity_folder import CA_CERTIFICATE, read_private
from relevo.cluster.identity_revoked import Revocation
from relevo.core.errors import StartError

log = logging.getLogger("relevo.cluster")


def learn(identity: NodeIdentity, told: tuple[Revocation, ...]) -> bool:
    """True if one was new. One that the authority has not signed is nothing."""
    unknown = tuple(each for each in told if not identity.revoked.has(each.enrolment_id))
    if not unknown:
        return False
    try:
        authority_pem = read_private(identity.folder / CA_CERTIFICATE).decode("ascii")
        new = identity.revoked.learn(unknown, lambda each: is_genuine(each, authority_pem))
    except (StartError, FileNotFoundError) as error:
        log.error("revocations that were told could not be kept: %s", error)
        return False
    for each in new:
        log.warning("node %s was revoked", each.name)
    return bool(new)
