"""A worker's door to other boxes: the identity of its node, where it listens for KV, and whether bytes are encrypted.

Brings `relevo.cluster`, which has identities, and `relevo.kv`, which needs some, together.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from relevo.build.configs import NodeConfig, WorkerConfig
from relevo.cluster.identity import NodeIdentity
from relevo.cluster.peer import Peer
from relevo.core.errors import SettingsError
from relevo.kv.door import KVDoor
from relevo.policy.host.kv_encryption import KVEncryption, SendingRates, choose_encryption

if TYPE_CHECKING:  # a worker opens its door through this module and reads no settings
    from relevo.settings import Settings

log = logging.getLogger("relevo.kv")

_MORE_MEASUREMENTS = 4  # arbitrary: of a tenth of a second each


class IdentityKeys:
    """kv.door.NodeKeys: an identity that all threads of the transports share."""

    def __init__(self, identity: NodeIdentity) -> None:
        self._identity = identity
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self._identity.name

    def server_context(self) -> ssl.SSLContext:
        with self._lock:
            return self._identity.server_context()

    def client_context(self) -> ssl.SSLContext:
        with self._lock:
            return self._identity.client_context()

    def admit(self, tls: ssl.SSLObject, name: str | None) -> Peer:
        with self._lock:
            return self._identity.admit(tls, name=name)

    def check(self, peer: Peer) -> None:
        with self._lock:
            self._identity.refresh()
            self._identity.check(peer)


def kv_door(config: WorkerConfig) -> KVDoor:
    """`config`: with a folder of a node. Raises StartError."""
    first, last = config.kv_ports
    return KVDoor(
        keys=IdentityKeys(NodeIdentity.load(Path(config.node_folder))),
        host=config.kv_host,
        ports=range(first, last + 1),
        advertised_host=config.kv_advertised_host or config.kv_host,
        encrypts=config.kv_encrypts,
        num_streams=config.kv_streams,
    )


def node_door(config: NodeConfig) -> KVDoor:
    """Of the node process, which measures the ways that its workers' KV takes. Raises StartError."""
    return KVDoor(
        keys=IdentityKeys(NodeIdentity.load(Path(config.folder))),
        host="",
        ports=range(0, 1),
        advertised_host="",
        encrypts=config.kv_encrypts,
        num_streams=1,
    )


def with_doors(
    workers: Sequence[WorkerConfig], settings: Settings, *, node_folder: Path, host: str, advertised_host: str
) -> tuple[WorkerConfig, ...]:
    """Workers that other boxes hand KV to. Measures how fast this box encrypts, and says what was chosen. SettingsError
    for ports that do not suffice, or where encryption is slow and nothing was asked for."""
    if not workers:
        return ()
    if advertised_host in ("", "::", "0.0.0.0"):
        raise SettingsError(
            "workers of this box have to be found by those of others; say with --advertise HOST where others reach it"
        )
    ports = parse_ports(settings.kv_port, len(workers))
    num_cores = max(1, min(settings.kv_streams, *(len(worker.cores) for worker in workers)))
    asked = KVEncryption(settings.kv_encryption)
    rates = SendingRates(plain=0.0, encrypted=0.0)
    if asked is not KVEncryption.OFF:
        rates = _measured(advertised_host, num_cores)
    choice = choose_encryption(asked, rates, num_cores)
    log.log(logging.INFO if choice.encrypts else logging.WARNING, "%s", choice.told)
    return tuple(
        msgspec.structs.replace(
            worker,
            node_folder=os.fspath(node_folder),
            kv_host=host,
            kv_advertised_host=advertised_host,
            kv_ports=ports,
            kv_encrypts=choice.encrypts,
            kv_streams=settings.kv_streams,
        )
        for worker in workers
    )


def _measured(host: str, num_cores: int) -> SendingRates:
    """Again, a few times, where it does not suffice: a neighbour's moment must not refuse a start."""
    from relevo.kv.encryption_rate import measure_sending  # its ciphers are between boxes only

    rates = measure_sending(host)
    for _ in range(_MORE_MEASUREMENTS):
        if rates.suffice(num_cores):
            break
        rates = rates.best_with(measure_sending(host))
    return rates


def parse_ports(text: str, num_workers: int) -> tuple[int, int]:
    """(first, last) of `--kv-port`: "7100", "7100-7107", or "0" for any. SettingsError."""
    match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if not first <= last <= 65535 or (first == 0 and last):
        raise SettingsError(
            f"--kv-port {text!r} is neither a port nor a range of ports; write it like 7100 or 7100-7107"
        )
    if first and last - first + 1 < num_workers:
        raise SettingsError(
            f"--kv-port {text} has fewer ports than this box has workers ({num_workers}), and each listens at its own; "
            f"give a range like {first}-{first + num_workers - 1}"
        )
    return first, last
