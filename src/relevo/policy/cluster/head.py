"""A head's members: which incarnation of each node it accepts, and when a node is gone.

Of one name one session is accepted at a time, and none that is not later than every one before it. What a head has
accepted it remembers on disk (`highest`), so that a node that lost its own does not come back under an old number.
Expiry is the head's alone, on its own monotonic clock. Addresses say nothing about who is who.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from relevo.policy.cluster.epochs import NO_SESSION, Session
from relevo.policy.cluster.leases import GONE_NS


class MemberState(StrEnum):
    JOINED = "joined"
    UNHEARD = "unheard"  # its connection has ended, or heartbeats are missing; it is not gone yet
    GONE = "gone"
    LEFT = "left"  # for good, as it was asked to


@dataclass(slots=True)
class NodeMember:
    name: str
    session: Session = NO_SESSION  # the last that was accepted
    state: MemberState = MemberState.GONE
    since_ns: int = 0  # of the state
    heard_ns: int = 0

    @property
    def is_here(self) -> bool:
        """Its word counts."""
        return self.state in (MemberState.JOINED, MemberState.UNHEARD)


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing of that session is accepted any more."""

    name: str
    session: Session
    reason: str


class HeadMembers:
    def __init__(self, highest: Mapping[str, int] | None = None) -> None:
        """`highest`: epochs that were accepted before this process, from disk."""
        self._highest = dict(highest or {})
        self._members: dict[str, NodeMember] = {}

    @property
    def members(self) -> tuple[NodeMember, ...]:
        return tuple(self._members.values())

    def get(self, name: str) -> NodeMember | None:
        return self._members.get(name)

    @property
    def highest(self) -> dict[str, int]:
        """To be on disk before an `accept` is answered."""
        return dict(self._highest)

    def highest_of(self, name: str) -> int:
        return self._highest.get(name, 0)

    def learned(self, name: str, epoch: int) -> None:
        """From another head: what it has accepted, this one does not accept again."""
        if epoch > self.highest_of(name):
            self._highest[name] = epoch

    def accept(self, name: str, session: Session, now_ns: int) -> list[Ended] | None:
        """None: it is not later than what was accepted before, so the node must take a higher epoch. An incarnation
        that is still here ends: of two of one name the second fences the first."""
        member = self._members.setdefault(name, NodeMember(name))
        if session.epoch < self.highest_of(name) or session <= member.session:
            return None
        ended = [Ended(name, member.session, "another incarnation has joined")] if member.is_here else []
        self._highest[name] = session.epoch
        member.session, member.heard_ns = session, now_ns
        _become(member, MemberState.JOINED, now_ns)
        return ended

    def heard(self, name: str, session: Session, now_ns: int) -> bool:
        """A heartbeat. False: that session is not the accepted one, and gets no acknowledgement."""
        member = self._members.get(name)
        if member is None or member.session != session or not member.is_here:
            return False
        if now_ns - member.heard_ns >= GONE_NS:  # `tick` is late: it has been given up by now
            return False
        member.heard_ns = now_ns
        _become(member, MemberState.JOINED, now_ns)
        return True

    def accepts(self, name: str, session: Session, now_ns: int) -> bool:
        """Does what comes under that session count?"""
        member = self._members.get(name)
        is_it = member is not None and member.session == session and member.is_here
        return member is not None and is_it and now_ns - member.heard_ns < GONE_NS

    def unheard(self, name: str, session: Session, now_ns: int) -> None:
        """Its connection has ended. It may come back, or be gone when its time is over."""
        member = self._members.get(name)
        if member is not None and member.session == session and member.is_here:
            _become(member, MemberState.UNHEARD, now_ns)

    def left(self, name: str, session: Session, now_ns: int) -> list[Ended]:
        """It has drained and says good-bye: no need to wait."""
        member = self._members.get(name)
        if member is None or member.session != session or not member.is_here:
            return []
        _become(member, MemberState.LEFT, now_ns)
        return [Ended(name, session, "it has left")]

    def tick(self, now_ns: int) -> list[Ended]:
        """Who is gone by now."""
        ended = []
        for member in self._members.values():
            if member.is_here and now_ns - member.heard_ns >= GONE_NS:
                _become(member, MemberState.GONE, now_ns)
                seconds = (now_ns - member.heard_ns) / 1e9
                ended.append(Ended(member.name, member.session, f"no heartbeat for {seconds:.1f} s"))
            elif member.state is MemberState.JOINED and now_ns - member.heard_ns >= GONE_NS // 2:
                _become(member, MemberState.UNHEARD, now_ns)
        return ended


def _become(member: NodeMember, state: MemberState, now_ns: int) -> None:
    if member.state is not state:
        member.state, member.since_ns = state, now_ns
