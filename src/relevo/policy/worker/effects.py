"""What `policy.worker.core` decides beside steps: plain data, for a driver to carry out in order.

Either something for the KV transport to do, or something to tell a gateway. Each is about one request, `Orphaned`
excepted.
"""

from __future__ import annotations

from dataclasses import dataclass

from relevo.core.handoff import KVPath
from relevo.core.ids import PeerId, RequestId
from relevo.core.kv import Reservation
from relevo.policy.worker.remote_prefill import ComputedPrefix

# ---- for the KV transport --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenRoom:
    """Let the writer of a granted reservation in, whichever it will be."""

    reservation: Reservation

    @property
    def request_id(self) -> RequestId:
        return self.reservation.request_id


@dataclass(frozen=True, slots=True)
class CloseRoom:
    """No writer may touch these blocks from here on."""

    reservation: Reservation


@dataclass(frozen=True, slots=True)
class SendPrefix:
    """Write the blocks that the receiver lacks, and ask it to acknowledge the whole prefix."""

    prefix: ComputedPrefix

    @property
    def request_id(self) -> RequestId:
        return self.prefix.request_id


@dataclass(frozen=True, slots=True)
class CancelWrites:
    """Nothing of the reservation may be under way any more."""

    reservation: Reservation
    path: KVPath


# ---- for gateways ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Granted:
    gateway: PeerId
    reservation: Reservation

    @property
    def request_id(self) -> RequestId:
        return self.reservation.request_id


@dataclass(frozen=True, slots=True)
class Refused:
    """It can never run here, or its reservation is unknown."""

    gateway: PeerId
    request_id: RequestId
    code: str  # of core.errors
    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """This worker holds nothing of it any more."""

    gateway: PeerId
    request_id: RequestId
    code: str  # of core.errors
    reason: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """The answer to an abort."""

    gateway: PeerId
    request_id: RequestId


@dataclass(frozen=True, slots=True)
class Sealed:
    """The receiver has the first tokens of the prompt."""

    gateway: PeerId
    request_id: RequestId
    num_tokens: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The receiver has the whole prompt, and this worker holds nothing of it any more."""

    gateway: PeerId
    request_id: RequestId
    num_sealed_tokens: int
    num_handed_tokens: int  # the receiver's own hits excluded
    transfer_s: float
    num_found_tokens: int = 0  # that the receiver had in windows and chunks, too


@dataclass(frozen=True, slots=True)
class Orphaned:
    """To all gateways: these rooms wait for any of them."""

    request_ids: tuple[RequestId, ...]


LettingGo = CloseRoom | CancelWrites  # must succeed: blocks would change hands under a writer
OfOneRequest = OpenRoom | SendPrefix | Granted | Refused | Failed | Dropped | Sealed | HandedOver
Effect = LettingGo | OfOneRequest | Orphaned
