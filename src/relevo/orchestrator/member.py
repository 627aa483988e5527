"""One worker as a gateway knows it, and what is told of it to the owner of the requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from relevo.core.events import NO_EXPERTS, UNKNOWN_LIMITS, ExpertLoads, StepCounters, WorkerLimits, WorkerLoad
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.role import Role, RoleChange, parse_role
from relevo.orchestrator.ports import WorkerLink
from relevo.policy.http.liveness import Liveness
from relevo.wire import messages as wire


class MessageSink(Protocol):
    """What owns the requests."""

    def on_message(self, worker: WorkerRef, message: wire.ToGateway) -> None: ...

    def on_worker_ready(self, worker: WorkerRef) -> None: ...

    def on_worker_gone(self, worker: WorkerRef) -> None:
        """Said once more of one that is then removed."""
        ...

    def on_worker_cut(self, worker: WorkerRef) -> None:
        """Its link has ended, and its process may live. `on_worker_gone` follows when nothing is written any more."""
        ...

    def on_worker_leaving(self, worker: WorkerRef) -> None:
        """It finishes what it has, as it was asked to, and takes nothing new."""
        ...

    def on_worker_silent(self, worker: WorkerRef, reason: str) -> None:
        """It must be ended; `on_worker_gone` follows when it is."""
        ...


@dataclass(slots=True)
class Member:
    """One worker that belongs to this cluster, whether or not it is there."""

    worker_id: WorkerId
    role: str
    address: str
    is_remote: bool = False  # on another box: the end of its link is not that of its process
    compute: str = ""  # class of its bits: workers of two classes may give two continuations; empty: not known
    is_away: bool = False  # its node is gone: there is no use in connecting
    link: WorkerLink | None = None
    hello: wire.Hello | None = None  # of the present or last incarnation
    load: WorkerLoad = field(default_factory=WorkerLoad)
    counters: StepCounters = field(default_factory=StepCounters)
    expert_loads: ExpertLoads = NO_EXPERTS  # as it said last
    is_ready: bool = False
    why_not_ready: str = "starting"
    unfenced: set[WorkerId] = field(default_factory=set)  # workers that may still write into its former blocks
    unheard: set[WorkerId] = field(default_factory=set)  # since it was cut: of whose blocks it has yet to let go
    is_cut: bool = False  # its link has ended, and it may still write
    fence_nonce: int = 0  # of the fences that `unfenced` waits for
    orphans: set[RequestId] = field(default_factory=set)  # rooms to release when none is unfenced
    liveness: Liveness = field(default_factory=lambda: Liveness(2))
    is_silent: bool = False
    is_leaving: bool = False  # finishes what it has, takes nothing new
    is_removed: bool = False  # is forgotten once its link has ended
    writes_to_others: bool = True  # False: an engine that is not ours, which has nothing to do with blocks of ours
    may_have_room: bool = True  # its last report shows less work than the one before
    wanted: RoleChange | None = None  # the last role that it was given, which a new incarnation gets, too
    ref: WorkerRef = field(init=False)  # the present or last incarnation

    def __post_init__(self) -> None:
        self.ref = WorkerRef(self.worker_id, self.hello.epoch if self.hello is not None else 0)

    @property
    def role_now(self) -> Role:
        """It was given another one than it began with, or not."""
        change = self.load.role or self.wanted  # an incarnation that has said nothing yet is told before all else
        return change.role if change is not None else _role_named(self.role)

    @property
    def cores_now(self) -> tuple[int, ...]:
        """That it computes on; none: unknown."""
        change = self.load.role or self.wanted
        told = change.cores if change is not None else ()
        return told or (self.hello.cores if self.hello is not None else ())

    @property
    def limits_now(self) -> WorkerLimits:
        """Of the cores that it computes on, by those of the cores that it was started on."""
        if self.hello is None:
            return UNKNOWN_LIMITS
        started_on = len(self.hello.cores)
        return self.hello.limits.on_cores(len(self.cores_now) / started_on if started_on else 1.0)

    @property
    def role_next(self) -> Role:
        """That it was given last, whether it has said by now that it has it or not."""
        return self.wanted.role if self.wanted is not None else self.role_now

    @property
    def cores_next(self) -> tuple[int, ...]:
        return (self.wanted.cores if self.wanted is not None else ()) or self.cores_now

    @property
    def is_gone(self) -> bool:
        """It was there, and its process has ended since, or has let go of all."""
        return self.hello is not None and self.link is None and not self.is_cut


@lru_cache
def _role_named(name: str) -> Role:
    return parse_role(name)
