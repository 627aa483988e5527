"""A node among its heads: with whom it has a lease, when it must let go, and under which epoch it comes back.

A head that has not acknowledged in time loses what its gateways have here (`CloseLinks`), for it may have given the
node up. When no head is left the node fences itself (`Fence`): a new epoch, under which its workers drop everything and
keep processes and weights. Nothing here has a final state: it rejoins for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from relevo.policy.cluster.epochs import Session, next_epoch
from relevo.policy.cluster.leases import FENCE_NS


class NodeState(StrEnum):
    JOINING = "joining"  # no head has taken it in since its process began
    JOINED = "joined"
    UNACKNOWLEDGED = "unacknowledged"  # the newest heartbeat of every head is without an answer; its lease runs
    FENCED = "fenced"  # no head: nothing is accepted from it, nothing runs on it
    REJOINING = "rejoining"  # fenced, and a head has begun to take it in again


@dataclass(frozen=True, slots=True)
class CloseLinks:
    """End every link of the gateways of that head, before anything else is sent."""

    head: str


@dataclass(frozen=True, slots=True)
class Fence:
    """No head is left: the workers are to drop everything and be of that epoch, which is on disk first."""

    epoch: int


Effect = CloseLinks | Fence


@dataclass(slots=True)
class Lease:
    """What one head has promised: not to give the node up before GONE_S after `from_ns`."""

    session: Session
    from_ns: int  # when the newest acknowledged heartbeat was sent
    newest_sent_ns: int
    sent_ns: dict[int, int]  # of heartbeats without an answer, by number
    num_sent: int = 0

    def is_over(self, now_ns: int) -> bool:
        return now_ns - self.from_ns >= FENCE_NS


class NodeMembership:
    def __init__(self, epoch: int, first_session: int = 0, *, is_head: bool = False) -> None:
        """`epoch`: that the workers have, and that is on disk; 0: none yet. `first_session`: above those of every
        earlier process of this node. A head serves its own gateways, whichever other one is silent."""
        self._is_head = is_head
        self.epoch = epoch
        self.num_fences = 0
        self._num_sessions = first_session
        self._leases: dict[str, Lease] = {}
        self._asking: dict[str, tuple[Session, int]] = {}  # heads that were told a session: it, and when
        self._was_joined = False

    @property
    def heads(self) -> tuple[str, ...]:
        """That have taken it in."""
        return tuple(self._leases)

    @property
    def state(self) -> NodeState:
        if self._leases:
            is_heard = any(lease.from_ns == lease.newest_sent_ns for lease in self._leases.values())
            return NodeState.JOINED if is_heard else NodeState.UNACKNOWLEDGED
        if not self._was_joined:
            return NodeState.JOINING
        return NodeState.REJOINING if self._asking else NodeState.FENCED

    def may_serve(self, head: str, session: Session, now_ns: int) -> bool:
        """Is what comes over that session's links to be passed on? Asked before every word, first of all after a
        thaw."""
        lease = self._leases.get(head)
        return lease is not None and lease.session == session and not lease.is_over(now_ns)

    # ---- joining -----------------------------------------------------------------------------------------------------

    def needs_epoch(self, known: Iterable[int]) -> bool:
        """A head knows a later incarnation of this name, or there is none yet: what runs here must go first."""
        return self.epoch == 0 or any(epoch > self.epoch for epoch in known)

    def new_epoch(self, known: Iterable[int], unix_s: float) -> Fence:
        """All leases are over. The effect is carried out before `ask` is called."""
        self.epoch = next_epoch((self.epoch, *known), unix_s)
        self._leases.clear()
        self._asking.clear()
        return Fence(self.epoch)

    def ask(self, head: str, now_ns: int) -> Session:
        """The session under which the head is asked to take the node in. Links of an earlier one have been closed."""
        self._leases.pop(head, None)
        self._num_sessions += 1
        session = Session(self.epoch, self._num_sessions)
        self._asking[head] = (session, now_ns)
        return session

    def welcomed(self, head: str, session: Session, now_ns: int) -> bool:
        """False: meanwhile it has fenced itself, or the answer took longer than a lease."""
        asked = self._asking.pop(head, None)
        if asked is None or asked[0] != session or now_ns - asked[1] >= FENCE_NS:
            return False
        self._leases[head] = Lease(session, asked[1], asked[1], {})
        self._was_joined = True
        return True

    def refused(self, head: str) -> None:
        """Or the question was lost."""
        self._asking.pop(head, None)

    # ---- heartbeats --------------------------------------------------------------------------------------------------

    def beat(self, head: str, now_ns: int) -> int | None:
        """The number of a heartbeat that is sent now; None: there is no lease."""
        lease = self._leases.get(head)
        if lease is None:
            return None
        lease.num_sent += 1
        lease.sent_ns[lease.num_sent] = lease.newest_sent_ns = now_ns
        return lease.num_sent

    def acknowledged(self, head: str, session: Session, number: int, now_ns: int) -> float | None:
        """Seconds that it took; None: it says nothing. A lease that is over is not revived."""
        lease = self._leases.get(head)
        if lease is None or lease.session != session or lease.is_over(now_ns):
            return None
        sent_ns = lease.sent_ns.pop(number, None)
        if sent_ns is None:
            return None
        lease.from_ns = max(lease.from_ns, sent_ns)
        lease.sent_ns = {each: at_ns for each, at_ns in lease.sent_ns.items() if each > number}
        return (now_ns - sent_ns) / 1e9

    # ---- ends --------------------------------------------------------------------------------------------------------

    def tick(self, now_ns: int, unix_s: float) -> list[Effect]:
        """What is over by now. To be called at `due_ns`, and before anything is passed on."""
        over = [head for head, lease in self._leases.items() if lease.is_over(now_ns)]
        return self._end(over, unix_s)

    def given_up(self, head: str, unix_s: float) -> list[Effect]:
        """The head has said that it has ended this session, or the node leaves it."""
        return self._end([head] if head in self._leases else [], unix_s)

    def _end(self, heads: list[str], unix_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for head in heads:
            del self._leases[head]
            effects.append(CloseLinks(head))
        if heads and not self._leases and not self._is_head:
            self.num_fences += 1
            effects.append(self.new_epoch((), unix_s))
        return effects

    @property
    def due_ns(self) -> int | None:
        """When the next lease is over."""
        return min((lease.from_ns + FENCE_NS for lease in self._leases.values()), default=None)
