"""Which workers there are: who is ready, what their load is, and over which link each is reached.

Owns the table of members, which are added and removed at run time, and the rule by which a worker is let in. A worker
that joins may be a new incarnation of one that died while another worker was still writing into its blocks. It gets
traffic only when every other worker has acknowledged a fence, or is gone: then none writes under the old incarnation
any more (docs/guides/failures.md). The same fence frees the rooms that a gateway left behind when it died: every
gateway that lives asks, and one that all have answered releases them.

The end of a link to a worker of this box is the end of its process. That to a worker of another box (`is_remote`) may
only be cut: requests go on elsewhere, but what it may write over memory that it shares counts as written until it has
answered a fence over a new link, has another epoch, or its node is gone (`gone`), which has fenced itself by then.

A worker is alive while its step loop answers. One that is stopped or wedged keeps its connection but says nothing: it
is out of rotation then, and the supervisor is asked to end it. Its requests move on when it is gone, not before: until
then it might still write.

Nothing here waits: `connected`, `heard`, `lost` and `ping` are called by what has the links
(`orchestrator.connections`, a simulated world). Does not know requests: messages about them go to the `MessageSink`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from relevo.core.errors import WorkerLost
from relevo.core.events import NO_EXPERTS, StepCounters, WorkerLoad
from relevo.core.handoff import KVPath
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.role import RoleChange
from relevo.orchestrator.member import Member, MessageSink
from relevo.orchestrator.ports import WorkerLink, WorkerStatus
from relevo.policy.admission.room import may_make_room
from relevo.policy.http.liveness import INTERVAL_S, Liveness
from relevo.policy.routing.kv_path import kv_path
from relevo.wire import messages as wire

log = logging.getLogger("relevo.gateway")


class Membership:
    def __init__(self, members: Iterable[Member] = (), *, heartbeat_timeout_s: float = 8.0) -> None:
        """`heartbeat_timeout_s` is counted in whole intervals in which this process was awake and heard nothing."""
        self._members = {member.worker_id: member for member in members}
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._sink: MessageSink
        self.is_complete = False  # once every member has been there, one of them ready

    def report_to(self, sink: MessageSink) -> None:
        """To be called before anything is heard."""
        self._sink = sink

    @property
    def members(self) -> tuple[Member, ...]:
        """Of which more may be expected: without those that were removed and finish what they have."""
        return tuple(member for member in self._members.values() if not member.is_removed)

    def __contains__(self, member: Member) -> bool:
        return self._members.get(member.worker_id) is member

    def add(self, member: Member) -> None:
        """It gets work as soon as it is connected and let in."""
        assert member.worker_id not in self._members, "added twice"
        self._members[member.worker_id] = member

    def remove(self, worker_id: WorkerId) -> None:
        """It takes nothing new, finishes what it has within its drain time, and is forgotten when its link ends; what
        then still runs there is continued elsewhere. One that is not there is forgotten at once. Idempotent."""
        member = self._members.get(worker_id)
        if member is None or member.is_removed:
            return
        member.is_removed = member.is_leaving = True
        member.is_ready, member.why_not_ready = False, "removed"
        if member.link is None:
            self._sink.on_worker_gone(member.ref)  # now for good
            self._forget(member)
        else:
            self.send(member.ref, wire.Drain())

    def get(self, worker: WorkerRef) -> Member | None:
        """The member, if that incarnation is connected."""
        member = self._members.get(worker.worker_id)
        if member is None or member.link is None or member.ref != worker:
            return None
        return member

    @property
    def block_sizes(self) -> set[int]:
        """Of KV caches. Of nearly every model there is one."""
        return {member.hello.layout.block_size for member in self._members.values() if member.hello is not None}

    def kv_path(self, sender: WorkerRef, receiver: WorkerRef) -> KVPath | None:
        """How KV gets from one to the other; None if one of them is gone."""
        one, other = self.get(sender), self.get(receiver)
        if one is None or one.hello is None or other is None or other.hello is None:
            return None
        return kv_path(one.hello.kv_site, other.hello.kv_site)

    def may_have_room(self, worker: WorkerRef) -> bool:
        """Its last report shows less work than the one before."""
        member = self._members.get(worker.worker_id)
        return member is None or member.may_have_room

    def is_cut(self, worker: WorkerRef) -> bool:
        """The link to that incarnation has ended, and it may still write."""
        member = self._members.get(worker.worker_id)
        return member is not None and member.ref == worker and member.is_cut

    def share_memory(self, one: WorkerRef, other: WorkerRef) -> bool:
        """As both said of themselves: one writes straight into the other's blocks."""
        sites = [
            member.hello.kv_site
            for ref in (one, other)
            if (member := self._members.get(ref.worker_id)) is not None and member.hello is not None
        ]
        path = kv_path(*sites) if len(sites) == 2 else None
        return path is not None and path.zero_copy

    def has_left(self, worker: WorkerRef) -> bool:
        """That incarnation has said that it leaves: it goes, or went, because it was asked to."""
        member = self._members.get(worker.worker_id)
        return member is not None and member.ref == worker and member.is_leaving

    def send(self, worker: WorkerRef, message: wire.ToWorker) -> bool:
        """False if that incarnation is gone (or its connection just broke): nothing was sent."""
        member = self.get(worker)
        if member is None or member.link is None:
            return False
        try:
            member.link.send(message)
        except WorkerLost:
            member.is_ready = False  # `on_worker_gone` follows
            return False
        return True

    def drain(self, worker_id: WorkerId) -> bool:
        """Ask it to leave; it says `Leaving` to every gateway. False if it is not there, or not ready."""
        member = self._members.get(worker_id)
        return member is not None and member.is_ready and self.send(member.ref, wire.Drain())

    def set_role(self, worker_id: WorkerId, change: RoleChange) -> bool:
        """It takes effect with the worker's next step, and is given to every later incarnation. False: the worker is
        not there, and gets it once it is."""
        member = self._members.get(worker_id)
        if member is None or member.hello is None:
            return False
        member.wanted = change
        return member.link is not None and self.send(member.ref, wire.SetRole(change))

    def statuses(self) -> tuple[WorkerStatus, ...]:
        return tuple(
            WorkerStatus(
                worker_id=member.worker_id,
                role=str(member.role_now),
                ready=member.is_ready,
                epoch=member.ref.epoch,
                pid=member.hello.pid if member.hello is not None else 0,
                load=member.load,
                counters=member.counters,
                expert_loads=member.expert_loads,
                layout=member.hello.layout if member.hello is not None else None,
                address=member.address,
                box_id=member.hello.kv_site.box_id if member.hello is not None else "",
                started_on=member.hello.cores if member.hello is not None else (),
                cores=member.cores_now,
                num_ranks=member.hello.num_ranks if member.hello is not None else 1,
                why_not_ready="" if member.is_ready else member.why_not_ready,
                is_leaving=member.is_leaving,
                limits=member.limits_now,
            )
            for member in self._members.values()
        )

    # ---- what happens to a link --------------------------------------------------------------------------------------

    def connected(self, worker_id: WorkerId, link: WorkerLink) -> bool:
        """An incarnation of the worker has said Hello. False: it is not let in, `why_not_ready` says why."""
        member, hello = self._members.get(worker_id), link.hello
        if member is None:
            return False
        if hello.worker_id != worker_id:
            self.refused(worker_id, f"{hello.worker_id} answers at the address of {worker_id}; give each its own")
            return False
        if (fault := hello.fault) is not None:
            self.refused(worker_id, f"{worker_id} says what cannot be: {fault}")
            return False
        for other in self._others(member):
            mismatch = hello.layout.mismatch(other.hello.layout) if other.hello is not None else None
            if mismatch is not None:
                self.refused(worker_id, f"{worker_id} does not fit {other.worker_id}: {mismatch}")
                return False
        if member.is_cut and member.ref.epoch != hello.epoch:
            self._let_go(member)  # it drops everything before it has another epoch
        member.hello, member.link, member.load = hello, link, hello.load
        member.ref = WorkerRef(worker_id, hello.epoch)
        member.counters, member.expert_loads = StepCounters(), NO_EXPERTS
        member.liveness = Liveness.within(self._heartbeat_timeout_s)
        member.is_silent = member.is_leaving = False
        member.why_not_ready = "waiting for the other workers to let go of its former blocks"
        member.orphans = set()
        log.info("%s joined (epoch %d, pid %d, %s)", worker_id, hello.epoch, hello.pid, hello.role)
        if member.wanted is not None:
            self.send(member.ref, wire.SetRole(member.wanted))
        member.unheard = {other.worker_id for other in self._others(member)} if member.is_cut else set()
        for other in self._others(member):
            self.send(member.ref, wire.Fence(other.worker_id, other.ref.epoch, other.fence_nonce))
        self._fence(member, hello.orphans)
        self._all_fenced(member)
        return True

    def refused(self, worker_id: WorkerId, reason: str) -> None:
        """What was reached at its address is none of ours. Said once, however often it is tried again."""
        member = self._members.get(worker_id)
        if member is not None and member.why_not_ready != reason:
            member.why_not_ready = reason
            log.error("%s refused: %s", worker_id, reason)

    def heard(self, worker_id: WorkerId, message: wire.ToGateway) -> None:
        """A message that cannot be handled ends no link: the link is that of every request on the worker."""
        try:
            self._receive(self._members[worker_id], message)
        except Exception:
            log.exception("%s: a %s could not be handled", worker_id, type(message).__name__)

    def ping(self, worker_id: WorkerId) -> bool:
        """Once per `liveness.INTERVAL_S`: does its step loop answer? False: it is silent or gone, so ask no more."""
        member = self._members.get(worker_id)
        if member is None or member.link is None or member.is_silent:
            return False
        if not member.liveness.ask():
            self._silent(member)
            return False
        return self.send(member.ref, wire.Ping(member.liveness.num_unanswered))

    def lost(self, worker_id: WorkerId, reason: str) -> None:
        """Its link has ended, and with it the process. Without effect if it had none."""
        member = self._members.get(worker_id)
        if member is None or member.link is None:
            return
        gone = member.ref
        log.warning("%s (epoch %d) is %s: %s", worker_id, gone.epoch, "cut off" if member.is_remote else "gone", reason)
        member.link, member.is_ready, member.why_not_ready = None, False, "restarting"
        member.load = WorkerLoad()
        if member.is_remote:
            member.is_cut, member.why_not_ready = True, "its link was cut"
            self._sink.on_worker_cut(gone)
            return
        self._sink.on_worker_gone(gone)
        if member.is_removed:
            self._forget(member)
        else:
            self._writes_no_more(member)

    def gone(self, worker_id: WorkerId, reason: str, *, for_good: bool = False) -> None:
        """Its node is gone, and has fenced itself by now: it writes nothing any more. `for_good`: it is forgotten."""
        member = self._members.get(worker_id)
        if member is None:
            return
        member.is_removed = member.is_removed or for_good  # nothing waits for it from here on
        if member.link is not None:
            member.link.close()
            self.lost(worker_id, reason)
        member.is_away, member.why_not_ready = True, reason
        if member.is_cut:
            self._let_go(member)
        if for_good and member in self:
            self._sink.on_worker_gone(member.ref)
            self._forget(member)

    def is_at(self, worker_id: WorkerId, address: str) -> None:
        """Its node is there (again), and the worker is to be reached there."""
        member = self._members.get(worker_id)
        if member is not None:
            member.address, member.is_away = address, False

    def _let_go(self, member: Member) -> None:
        member.is_cut = False
        member.unheard.clear()
        self._sink.on_worker_gone(member.ref)
        if member.is_removed and member.link is None:
            self._forget(member)
        else:
            self._writes_no_more(member)

    def _others(self, member: Member) -> list[Member]:
        """That are there."""
        return [other for other in self._members.values() if other is not member and other.link is not None]

    def _forget(self, member: Member) -> None:
        del self._members[member.worker_id]
        self._writes_no_more(member)

    def _writes_no_more(self, member: Member) -> None:
        """Into any worker's blocks: none waits for it any more."""
        for other in self._members.values():
            if member.worker_id in other.unfenced:
                other.unfenced.discard(member.worker_id)
                self._all_fenced(other)
            if member.worker_id in other.unheard:
                other.unheard.discard(member.worker_id)
                self._all_fenced(other)

    def _silent(self, member: Member) -> None:
        silent_s = member.liveness.num_unanswered * INTERVAL_S
        member.is_silent, member.is_ready = True, False
        member.why_not_ready = f"its step loop has not answered for {silent_s:.0f} s"
        log.error("%s (epoch %d): %s", member.worker_id, member.ref.epoch, member.why_not_ready)
        self._sink.on_worker_silent(member.ref, member.why_not_ready)

    def _fence(self, member: Member, orphans: Iterable[RequestId]) -> None:
        """Every other worker has to answer once more, unless its process is gone. Those that never were there are
        asked when they join."""
        member.fence_nonce += 1
        member.orphans.update(orphans)
        member.unfenced = {
            other.worker_id
            for other in self._members.values()
            if other is not member and other.writes_to_others and not other.is_gone
        }
        for other in self._others(member):
            self.send(other.ref, wire.Fence(member.worker_id, member.ref.epoch, member.fence_nonce))

    def _receive(self, member: Member, message: wire.ToGateway) -> None:
        member.liveness.heard()
        match message:
            case wire.Pong():
                return
            case wire.Leaving():
                log.info("%s (epoch %d) is leaving", member.worker_id, member.ref.epoch)
                member.is_leaving, member.is_ready, member.why_not_ready = True, False, "draining"
                self._sink.on_worker_leaving(member.ref)
                return
            case wire.Fenced():
                member.unheard.discard(message.worker_id)
                if member.is_cut and not member.unheard:
                    self._let_go(member)
                    self._all_fenced(member)
                owner = self._members.get(message.worker_id)
                if owner is None or owner.link is None or owner.ref.epoch != message.epoch:
                    return
                if owner.fence_nonce == message.nonce:
                    owner.unfenced.discard(member.worker_id)
                    self._all_fenced(owner)
                return
            case wire.Orphans():
                self._fence(member, message.request_ids)
                self._all_fenced(member)
                return
            case wire.ExpertReport():
                member.expert_loads = message.loads
                return
            case wire.StepOutputs() | wire.LoadReport():
                member.may_have_room = may_make_room(member.load, message.load)
                member.load, member.counters = message.load, message.counters
                if message.load.role is not None:
                    self._note_role(member, message.load.role)
        self._sink.on_message(member.ref, message)

    def _note_role(self, member: Member, told: RoleChange) -> None:
        """Another gateway may have given it; of two with one version the worker kept what came first."""
        if member.wanted is None or member.wanted.version <= told.version:
            member.wanted = told

    def _all_fenced(self, member: Member) -> None:
        """If so, what was left in its quarantine goes back, and it gets traffic."""
        if member.is_cut and member.link is not None and not member.unheard:
            self._let_go(member)
        if member.unfenced or member.link is None or member.is_cut:
            return
        for request_id in member.orphans:
            self.send(member.ref, wire.Release(request_id))
        member.orphans.clear()
        if member.is_ready or member.is_silent or member.is_leaving:
            return
        member.is_ready, member.why_not_ready = True, ""
        self.is_complete = self.is_complete or all(
            each.hello is not None or not each.writes_to_others for each in self.members
        )
        self._sink.on_worker_ready(member.ref)
