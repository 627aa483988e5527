"""Every message between the gateway and a worker. msgpack through msgspec, one tagged struct each.

A worker has at most one gateway connection per gateway; a connection that ends aborts everything that was asked for on
it. Requests are named by `request_id`, unique over all gateways: what is said of another connection's request says
nothing, `Release` excepted. Order on a connection is the order of sending.

The life of a split request (D = decode worker, P = prefill worker):

    gateway → D  Reserve            D → gateway  Reserved            (as soon as D has room; FIFO)
    gateway → P  Prefill            P → gateway  Sealed …            (per chunk; relayed to D as SealBlocks)
                                    P → gateway  StepOutputs         (first token, facts)
                                    P → gateway  PrefillDone         (all KV sealed; P holds nothing of it)
    gateway → D  StartDecode        D → gateway  StepOutputs …       (last one carries finish_reason)

D has the request since Reserve: what follows names it. Where D itself computes what is left of the prompt, it is sent
ComputeReserved. Unified and replayed requests are one message: Submit. Everything can be ended with Abort, which is
answered with Dropped once the worker neither holds nor writes anything of the request.
"""

from __future__ import annotations

import msgspec

from relevo.core.baton import Baton, KVTicket, SampleState
from relevo.core.events import UNKNOWN_LIMITS, ExpertLoads, StepCounters, TokenOutput, WorkerLimits, WorkerLoad
from relevo.core.handoff import ALL_ABILITIES, Ability, KVPath, KVSite
from relevo.core.ids import BlockHash, RequestId, WorkerId
from relevo.core.kv import KVLayout, Reservation
from relevo.core.request import EngineRequest
from relevo.core.role import RoleChange

PROTOCOL_VERSION = 8


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all messages; the tag is the class name."""


# ---- gateway → worker ------------------------------------------------------------------------------------------------


class Submit(Message, frozen=True, tag=True):
    """Compute prompt and continuations on this worker.

    `samples` is empty for a new request, or holds tokens already emitted (replay after a lost worker).
    """

    request: EngineRequest
    samples: tuple[SampleState, ...] = ()


class Reserve(Message, frozen=True, tag=True):
    """Queue for room for the whole prompt (and the copies that n > 1 needs)."""

    request: EngineRequest


class Prefill(Message, frozen=True, tag=True):
    """Compute the prompt into `reservation`, sample the first token(s), keep nothing (but reusable blocks)."""

    request: EngineRequest
    reservation: Reservation
    path: KVPath  # to the receiver
    num_found_tokens: int = 0  # of the reservation's hits, those that no worker had to compute for this request


class SealBlocks(Message, frozen=True, tag=True):
    """To D: the first `num_tokens` tokens of the reservation are complete."""

    request_id: RequestId
    num_tokens: int


class StartDecode(Message, frozen=True, tag=True):
    """To D: the prompt is sealed and the writer has let go."""

    baton: Baton


class ComputeReserved(Message, frozen=True, tag=True):
    """To D: compute in the granted room what is not sealed of the prompt, then go on. No writer is at work.
    `samples`: as in Submit."""

    request_id: RequestId
    samples: tuple[SampleState, ...] = ()


class Abort(Message, frozen=True, tag=True):
    """Idempotent. Answered with Dropped. On D with a granted reservation: blocks that a prefill worker may still
    write stay quarantined until `Release` says that the writer has let go (`writer_active`)."""

    request_id: RequestId
    writer_active: bool = False


class Release(Message, frozen=True, tag=True):
    """To D: the writer of this request has let go; quarantined blocks may be reused."""

    request_id: RequestId


class Fence(Message, frozen=True, tag=True):
    """Let go of every block of that peer that an earlier incarnation of it reserved, or that it has withdrawn; answered
    with Fenced before the next step. What other gateways have under way into the present incarnation goes on."""

    worker_id: WorkerId
    epoch: int
    nonce: int = 0  # comes back with the answer


class Drain(Message, frozen=True, tag=True):
    """Finish what runs, for as long as the worker's drain time, then exit with status 0. Answered with Leaving."""


class SetRole(Message, frozen=True, tag=True):
    """From the next step on. The worker's next load report says so; without effect if it was told a version as high."""

    change: RoleChange


class SetEpoch(Message, frozen=True, tag=True):
    """Be another incarnation from here on, with process, weights and cached content as they are: every request of every
    gateway is dropped, every room withdrawn, every other connection ended. Answered with a new Hello. An epoch below
    the worker's own changes nothing. From the node process of its box only."""

    epoch: int


class FollowCache(Message, frozen=True, tag=True):
    """Answered with CacheSnapshot; CacheEvents follow. Sent again when events are missing."""


class Ping(Message, frozen=True, tag=True):
    """Answered with Pong from the step loop itself."""

    nonce: int


# ---- worker → gateway ------------------------------------------------------------------------------------------------


class Hello(Message, frozen=True, tag=True):
    """First message on every connection, and the answer to SetEpoch."""

    protocol_version: int
    worker_id: WorkerId
    epoch: int
    pid: int
    role: str  # "prefill", "decode" or "unified": a preference of the topology, every worker can do everything
    layout: KVLayout
    model_name: str
    vocab_size: int
    max_model_len: int
    kv_site: KVSite
    load: WorkerLoad
    abilities: frozenset[Ability] = ALL_ABILITIES  # without one of them it is sent Submit only
    orphans: tuple[RequestId, ...] = ()  # see Orphans
    limits: WorkerLimits = UNKNOWN_LIMITS
    cores: tuple[int, ...] = ()  # that it was started on
    num_ranks: int = 1  # processes that compute its steps

    @property
    def fault(self) -> str | None:
        """One sentence that says why no worker is like that, whichever says that it is; None: one may be."""
        if (fault := self.layout.fault) is not None:
            return fault
        counts = {
            "tokens of context": (self.max_model_len, 1),
            "ranks": (self.num_ranks, 1),
            "tokens in its vocabulary": (self.vocab_size, 0),
            "blocks": (self.load.num_total_blocks, 0),
        }
        wrong = next(((what, count, least) for what, (count, least) in counts.items() if count < least), None)
        return None if wrong is None else "it has {1} {0}, at least {2} are possible".format(*wrong)


class Reserved(Message, frozen=True, tag=True):
    reservation: Reservation


class Refused(Message, frozen=True, tag=True):
    """The request can never run here (does not fit the pool), or its reservation is unknown. Nothing is held."""

    request_id: RequestId
    code: str  # of core.errors
    reason: str


class Sealed(Message, frozen=True, tag=True):
    """From P: the receiver's blocks are complete up to `num_tokens`."""

    request_id: RequestId
    num_tokens: int


class PrefillDone(Message, frozen=True, tag=True):
    """From P: all KV is sealed on D and P holds and writes nothing of the request."""

    request_id: RequestId
    num_sealed_tokens: int
    transferred_bytes: int
    transfer_s: float
    ticket: KVTicket | None = None  # instead of a first token: the KV is here, for D to fetch


class StepOutputs(Message, frozen=True, tag=True):
    """Everything one engine step brought, for all requests of this gateway: one message per step."""

    outputs: tuple[TokenOutput, ...]
    load: WorkerLoad
    counters: StepCounters


class RequestFailed(Message, frozen=True, tag=True):
    """Terminal for this worker's part; it holds nothing any more."""

    request_id: RequestId
    code: str
    reason: str


class Dropped(Message, frozen=True, tag=True):
    """Answer to Abort: nothing of the request is held or being written by this worker (a quarantine that waits for
    `Release` excepted)."""

    request_id: RequestId


class Preempted(Message, frozen=True, tag=True):
    """Continuations of these requests gave their blocks to others and compute again what was in them: a request is
    named once for each. Nothing follows from it."""

    request_ids: tuple[RequestId, ...]


class Fenced(Message, frozen=True, tag=True):
    worker_id: WorkerId
    epoch: int
    nonce: int = 0


class Orphans(Message, frozen=True, tag=True):
    """To every gateway (one that joins has them from Hello): rooms here whose gateway is gone, withdrawn and in
    quarantine. A gateway that has an answer to a Fence from every other worker, sent after this came, says Release
    for each.
    """

    request_ids: tuple[RequestId, ...]


class LoadReport(Message, frozen=True, tag=True):
    """Sent when load changed and no StepOutputs says so: to every gateway, also of other gateways' requests."""

    load: WorkerLoad
    counters: StepCounters


class ExpertReport(Message, frozen=True, tag=True):
    """Of a model with experts, to every gateway: when nothing runs after steps that did, and from time to time between.
    Nothing follows from it but what operators see."""

    loads: ExpertLoads


class CacheEvents(Message, frozen=True, tag=True):
    """What became reusable by its content, and what was forgotten, since the batch numbered one less."""

    sequence: int
    stored: tuple[BlockHash, ...]
    evicted: tuple[BlockHash, ...]


class CacheSnapshot(Message, frozen=True, tag=True):
    """All content that can be reused after batch `sequence`."""

    sequence: int
    hashes: tuple[BlockHash, ...]


class Leaving(Message, frozen=True, tag=True):
    """To every gateway: send nothing new. The connection ends when the worker has finished or its drain time is over;
    what then still runs is continued elsewhere."""


class Pong(Message, frozen=True, tag=True):
    nonce: int


ToWorker = (
    Submit
    | Reserve
    | Prefill
    | SealBlocks
    | StartDecode
    | ComputeReserved
    | Abort
    | Release
    | Fence
    | Drain
    | SetRole
    | SetEpoch
    | FollowCache
    | Ping
)
ToGateway = (
    Hello
    | Reserved
    | Refused
    | Sealed
    | PrefillDone
    | StepOutputs
    | RequestFailed
    | Dropped
    | Preempted
    | Fenced
    | Orphans
    | LoadReport
    | ExpertReport
    | CacheEvents
    | CacheSnapshot
    | Leaving
    | Pong
)
