"""Decides what a worker does with the requests that gateways ask of it, beside what a step computes.

Calls go in, `policy.worker.effects` come out of `take_effects`, in order; a driver carries them out before the next
call. Owns, on top of the scheduler's requests: whose each is, the writers it lets into granted room, the progress of
prompts that it computes for other workers, and which peers were replaced. Knows no messages, no transport and no clock.

Why some things come in the order they do:
- Room is closed to its writer before the request that takes it over computes in it, or before it is given up.
- Writes of a dropped prefill are cancelled before its blocks can be used by others, which is the next step at the
  earliest.
- A peer's earlier incarnation is let go of before the fence is answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from relevo.core import errors
from relevo.core.baton import Baton, SampleState
from relevo.core.events import TransferEvent, TransferFailed, TransferSealed
from relevo.core.handoff import KVPath, Reach
from relevo.core.ids import PeerId, RequestId, WorkerId
from relevo.core.kv import Reservation
from relevo.core.plan import StepPlan, StepResult
from relevo.core.request import EngineRequest
from relevo.policy.worker import effects
from relevo.policy.worker.effects import Effect
from relevo.policy.worker.intake import NO_ROOM, Rejected
from relevo.policy.worker.remote_prefill import RemotePrefill
from relevo.policy.worker.scheduler import Scheduler
from relevo.policy.worker.step_outcome import StepOutcome


class WorkerCore:
    def __init__(self, scheduler: Scheduler, transports: Mapping[str, Reach] = MappingProxyType({})) -> None:
        """`transports`: those by which prompts can leave."""
        self.scheduler = scheduler
        self._transports = transports
        self.num_withdrawn = 0  # prompts whose receiver took back the room for them
        self.num_request_faults = 0
        self.num_handed_tokens = 0  # that other workers received from here
        self.transfer_s = 0.0
        self._remote_prefills: dict[RequestId, RemotePrefill] = {}  # of the requests that have a receiver
        self._sealed: list[RequestId] = []  # of these, the receiver has the whole prompt
        self._fenced_epochs: dict[WorkerId, int] = {}  # of peers: nothing older is written to
        self._effects: list[Effect] = []

    def take_effects(self) -> Sequence[Effect]:
        """What is to be carried out, in this order."""
        if not self._effects:  # as after nearly every step
            return ()
        taken, self._effects = self._effects, []
        return taken

    @property
    def num_requests(self) -> int:
        """Of which this worker holds something; rooms in quarantine are not counted."""
        return len(self.scheduler.requests)

    @property
    def remote_prefills(self) -> list[RemotePrefill]:
        """Of which a part is still to be computed, written or acknowledged."""
        return list(self._remote_prefills.values())

    # ---- what gateways ask: True if it was taken. Another gateway's request is none to them --------------------------

    def submit(
        self,
        gateway: PeerId,
        request: EngineRequest,
        samples: tuple[SampleState, ...],
        now_ns: int,
    ) -> bool:
        return self._accept(gateway, request.request_id, self.scheduler.submit(request, samples, now_ns))

    def reserve(self, gateway: PeerId, request: EngineRequest, now_ns: int) -> bool:
        return self._accept(gateway, request.request_id, self.scheduler.reserve(request, now_ns))

    def prefill(
        self,
        gateway: PeerId,
        request: EngineRequest,
        reservation: Reservation,
        path: KVPath,
        num_found_tokens: int,
        now_ns: int,
    ) -> bool:
        rejected = self._cannot_write(reservation, path)
        if rejected is None:
            rejected = self.scheduler.prefill_into(
                request, reservation, now_ns, path=path, num_found_tokens=num_found_tokens
            )
        if rejected is None:
            remote = self.scheduler.requests[request.request_id].remote
            assert remote is not None
            self._remote_prefills[request.request_id] = remote
        return self._accept(gateway, request.request_id, rejected)

    def start_decode(self, gateway: PeerId, baton: Baton, now_ns: int) -> bool:
        if self._is_of_another(gateway, baton.request_id):
            return self._accept(gateway, baton.request_id, NO_ROOM)
        self._close_room(baton.request_id)
        return self._accept(gateway, baton.request_id, self.scheduler.start_decode(baton, now_ns))

    def compute_reserved(
        self, gateway: PeerId, request_id: RequestId, samples: tuple[SampleState, ...], now_ns: int
    ) -> bool:
        if self._is_of_another(gateway, request_id):
            return self._accept(gateway, request_id, NO_ROOM)
        self._close_room(request_id)
        return self._accept(gateway, request_id, self.scheduler.submit_reserved(request_id, samples, now_ns))

    def seal(self, gateway: PeerId, request_id: RequestId, num_tokens: int) -> None:
        if not self._is_of_another(gateway, request_id):
            self.scheduler.seal(request_id, num_tokens)

    def abort(self, gateway: PeerId, request_id: RequestId, writer_active: bool) -> None:
        if not self._is_of_another(gateway, request_id):
            self._drop(request_id, writer_active, gateway)
        self._effects.append(effects.Dropped(gateway, request_id))

    def release(self, request_id: RequestId) -> None:
        """The writer into a room in quarantine has let go."""
        self.scheduler.release(request_id)

    def fence(self, worker_id: WorkerId, epoch: int) -> None:
        """Let go of all blocks that earlier incarnations of the peer reserved, and accept none of them any more."""
        newest = self._fenced_epochs[worker_id] = max(epoch, self._fenced_epochs.get(worker_id, 0))
        for request_id, remote in list(self._remote_prefills.items()):
            reservation = remote.reservation
            if reservation.worker_id == worker_id and reservation.epoch < newest:
                self.fail(request_id, errors.WorkerLost.code, f"{worker_id} was replaced")

    def lose_gateway(self, gateway: PeerId) -> None:
        """Its requests go; rooms into which a writer may still write are the other gateways' to release."""
        for request_id in [each for each, state in self.scheduler.requests.items() if state.owner == gateway]:
            self._drop(request_id, True, gateway)
        if self.scheduler.reservations.lose_keeper(gateway):
            self._effects.append(effects.Orphaned(self.scheduler.reservations.orphans))

    def _accept(self, gateway: PeerId, request_id: RequestId, rejected: Rejected | None) -> bool:
        if rejected is None:
            self.scheduler.requests[request_id].owner = gateway
        else:
            self._effects.append(effects.Refused(gateway, request_id, rejected.code, rejected.reason))
        return rejected is None

    def _is_of_another(self, gateway: PeerId, request_id: RequestId) -> bool:
        state = self.scheduler.requests.get(request_id)
        return state is not None and state.owner != gateway

    def _cannot_write(self, reservation: Reservation, path: KVPath) -> Rejected | None:
        """The gateway has not heard yet that the receiver was replaced, or names a way that is not here."""
        if reservation.epoch < self._fenced_epochs.get(reservation.worker_id, 0):
            return Rejected(errors.WorkerLost.code, f"{reservation.worker_id} was replaced")
        reach = self._transports.get(path.transport)
        if reach is None:
            return Rejected(errors.HandoffFailed.code, f"This worker has no KV transport {path.transport!r}.")
        if path.zero_copy and reach is not Reach.ARENA:
            reason = f"No memory is shared over {path.transport!r}; its path must not be of link 'memory'."
            return Rejected(errors.HandoffFailed.code, reason)
        if reach is not Reach.ARENA:
            return None
        num_blocks = self.scheduler.config.num_arena_blocks
        if not all(0 <= block_id < num_blocks for block_id in reservation.block_ids):
            reason = f"The reservation names blocks that are none of the {num_blocks} in shared memory."
            return Rejected(errors.HandoffFailed.code, reason)
        own_size = self.scheduler.config.block_size
        if reservation.block_size != own_size:
            reason = (
                f"Blocks of {own_size} tokens are not cut to those of {reservation.block_size} in shared memory "
                f"({path.transport})."
            )
            return Rejected(errors.HandoffFailed.code, reason)
        return None

    def refuse(self, gateway: PeerId, request_id: RequestId, rejected: Rejected) -> None:
        """A request that never came as far as any of the above."""
        self._accept(gateway, request_id, rejected)

    # ---- between messages and a step ---------------------------------------------------------------------------------

    def grant_room(self, now_ns: int) -> None:
        for reservation in self.scheduler.take_grants(now_ns):
            owner = self.scheduler.requests[reservation.request_id].owner
            self._effects += [effects.OpenRoom(reservation), effects.Granted(owner, reservation)]

    def take_transfer_event(self, event: TransferEvent) -> None:
        request_id = event.reservation.request_id
        remote = self._remote_prefills.get(request_id)
        if remote is None or remote.reservation != event.reservation:
            return
        match event:
            case TransferFailed():
                self.fail(request_id, errors.HandoffFailed.code, event.reason)
            case TransferSealed():
                self.num_handed_tokens += remote.seal(event.num_tokens)
                remote.transfer_s = event.transfer_s
                owner = self.scheduler.requests[request_id].owner
                self._effects.append(effects.Sealed(owner, request_id, event.num_tokens))
                self._note_sealed(request_id, remote)

    def withdraw(self, request_id: RequestId) -> None:
        """The receiver of a prompt computed here took back the room for it."""
        self.num_withdrawn += 1
        self.fail(request_id, errors.HandoffFailed.code, "the reserved blocks were withdrawn")

    def take_sealed(self) -> Sequence[RequestId]:
        """Requests for `hand_over`."""
        if not self._sealed:
            return ()
        taken, self._sealed = self._sealed, []
        return taken

    def hand_over(self, request_id: RequestId) -> None:
        """The receiver has the whole prompt: let go of it. Idempotent."""
        remote = self._remote_prefills.get(request_id)
        if remote is None or not remote.is_sealed:
            return
        del self._remote_prefills[request_id]
        owner = self.scheduler.requests[request_id].owner
        self.scheduler.finish_transfer(request_id)
        self.transfer_s += remote.transfer_s
        self._effects += [
            effects.CancelWrites(remote.reservation, remote.path),  # nothing is under way; its account is closed
            effects.HandedOver(
                owner,
                request_id,
                remote.num_sealed_tokens,
                remote.num_handed_tokens,
                remote.transfer_s,
                remote.reservation.num_found_tokens,
            ),
        ]

    def _note_sealed(self, request_id: RequestId, remote: RemotePrefill) -> None:
        if remote.is_sealed:
            self._sealed.append(request_id)

    # ---- after a step ------------------------------------------------------------------------------------------------

    def commit(self, plan: StepPlan, result: StepResult, now_ns: int) -> StepOutcome:
        """Take in what the step brought. Finished blocks of remote prefills travel while later chunks compute."""
        outcome = self.scheduler.commit(plan, result, now_ns)
        for prefix in outcome.prefixes:
            self._effects.append(effects.SendPrefix(prefix))
            self._note_sealed(prefix.request_id, self._remote_prefills[prefix.request_id])
        return outcome

    # ---- ends --------------------------------------------------------------------------------------------------------

    def fail(self, request_id: RequestId, code: str, reason: str) -> None:
        """End a request that has no writer; its gateway is told."""
        state = self.scheduler.requests.get(request_id)
        self._drop(request_id, False, None)
        if state is not None:
            self._effects.append(effects.Failed(state.owner, request_id, code, reason))

    def fault(self, request_id: RequestId, asker: PeerId | None, code: str, reason: str) -> None:
        """End a request because handling it raised. `asker`: the gateway that asked; None: its owner. A writer may be
        at work: the gateway knows, and says when it has let go."""
        self.num_request_faults += 1
        state = self.scheduler.requests.get(request_id)
        gateway = asker if asker is not None or state is None else state.owner
        self._drop(request_id, True, gateway)
        if gateway is not None:
            self._effects.append(effects.Failed(gateway, request_id, code, reason))

    def _drop(self, request_id: RequestId, writer_active: bool, keeper: PeerId | None) -> None:
        """Let go of a request in whatever phase it is. Idempotent."""
        remote = self._remote_prefills.pop(request_id, None)
        if remote is not None:
            self._effects.append(effects.CancelWrites(remote.reservation, remote.path))
        self._close_room(request_id)
        self.scheduler.abort(request_id, writer_active, keeper)

    def _close_room(self, request_id: RequestId) -> None:
        reservation = self.scheduler.reservations.room_of(request_id)
        if reservation is not None:
            self._effects.append(effects.CloseRoom(reservation))
