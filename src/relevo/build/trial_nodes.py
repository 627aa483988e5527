"""Two nodes of a cluster that lasts as long as a measurement: what is between boxes can be measured on one."""

from __future__ import annotations

import secrets
from functools import partial
from pathlib import Path

from relevo.bench.transport.run import Doors
from relevo.build.kv_door import IdentityKeys
from relevo.cluster.identity import NodeIdentity
from relevo.cluster.identity_authority import make_ca
from relevo.cluster.identity_request import keep_identity, new_request
from relevo.cluster.peer import NodeRole
from relevo.kv.door import KVDoor

_LIFE_S = 86_400.0  # arbitrary; longer than any measurement
_LOOPBACK = "127.0.0.1"


def trial_doors(folder: Path, *, encrypts: bool, num_streams: int) -> Doors:
    """`folder`: where their keys lie meanwhile, of this user alone."""
    authority = make_ca(folder / "ca")
    for name in ("sender", "receiver"):
        made = new_request(name)
        certificate = authority.sign(
            made.request_pem, name=name, role=NodeRole.NODE, enrolment_id=secrets.token_hex(16), life_s=_LIFE_S
        )
        keep_identity(folder / name, made.key_pem, certificate, authority.certificate_pem)
    senders, receivers = (partial(_open_door, folder / name, encrypts, num_streams) for name in ("sender", "receiver"))
    return Doors(senders, receivers, f"{'encrypted' if encrypts else 'certificates'} x{num_streams}")


def _open_door(folder: Path, encrypts: bool, num_streams: int) -> KVDoor:
    return KVDoor(
        keys=IdentityKeys(NodeIdentity.load(folder)),
        host=_LOOPBACK,
        ports=range(1),
        advertised_host=_LOOPBACK,
        encrypts=encrypts,
        num_streams=num_streams,
    )
