"""Nodes of one cluster, made in a moment: an authority, and folders with certificates that it signed."""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec

from relevo.build.kv_door import IdentityKeys
from relevo.cluster.identity import NodeIdentity
from relevo.cluster.identity_authority import Authority, make_ca
from relevo.cluster.identity_folder import REVOKED
from relevo.cluster.identity_request import keep_identity, new_request
from relevo.cluster.peer import NodeRole
from relevo.kv.door import KVDoor


class TestCluster:
    """`folder` holds the authority and a folder per node."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority: Authority = make_ca(folder / "ca")

    def node_folder(self, name: str, life_s: float = 3600.0) -> Path:
        folder = self.folder / name
        made = new_request(name)
        enrolment_id = secrets.token_hex(16)
        role = NodeRole.NODE
        certificate = self.authority.sign(
            made.request_pem, name=name, role=role, enrolment_id=enrolment_id, life_s=life_s
        )
        keep_identity(folder, made.key_pem, certificate, self.authority.certificate_pem)
        return folder

    def door(
        self, name: str, *, host: str = "127.0.0.1", encrypts: bool = True, num_streams: int = 3, life_s: float = 3600.0
    ) -> KVDoor:
        folder = self.node_folder(name, life_s)
        return KVDoor(
            keys=IdentityKeys(NodeIdentity.load(folder)),
            host=host,
            ports=range(1),
            advertised_host=host,
            encrypts=encrypts,
            num_streams=num_streams,
        )

    def revoke(self, name: str, at: str) -> None:
        """On the disk of node `at`."""

        own = NodeIdentity.load(self.folder / name).own
        entry = self.authority.revoke(own.enrolment_id, name, 0)
        path = self.folder / at / REVOKED
        path.write_bytes(msgspec.json.encode([entry]))
        path.chmod(0o600)
