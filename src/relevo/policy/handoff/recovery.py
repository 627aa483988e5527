"""The unhappy half of a handoff: ends, failures, aborts, leases. Driven by `policy.handoff.machine`, pure like it.

Owns the phases in which workers let go (RECALLING, REPLACING, DRAINING): which of them still have something of the
request, and what happens until none has. Two rules carry it: a worker is routed to again only when every earlier
assignment of the request is over, so no answer can be mistaken for that of an earlier one; and SendRelease follows the
writer's last word (Dropped, Failed, PrefillFinished) or its death, nothing else.

A prefill worker that does not answer within the lease is killed: it may write into another worker's blocks. A decode
worker writes only its own; it is killed when the request has to move on, otherwise its answer or its death is awaited
(its liveness is watched by membership).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from relevo.core.errors import HandoffFailed, InternalError, Overloaded, RequestError, WorkerError, WorkerLost
from relevo.core.ids import WorkerRef
from relevo.core.outcome import RequestEnd
from relevo.policy.handoff.effects import ChoosePrefill, Effect, KillWorker, Route, SendAbort, SendRelease, SendSubmit
from relevo.policy.handoff.events import Dropped, Failed, WorkerCut, WorkerDied
from relevo.policy.handoff.state import Assignment, HandoffState, Phase, after_ns

LETTING_GO = (Phase.RECALLING, Phase.REPLACING, Phase.DRAINING)


def _codes(root: type[RequestError]) -> set[str]:
    return {root.code}.union(*(_codes(child) for child in root.__subclasses__()))


FINAL_CODES = frozenset(_codes(RequestError)) | {InternalError.code}  # another worker would say the same


# ---- decisions -------------------------------------------------------------------------------------------------------


def end(state: HandoffState, terminal: RequestEnd, now_ns: int, out: list[Effect]) -> HandoffState:
    """The client's end, once; then every worker is asked to let go."""
    if state.has_ended:
        return state
    out.append(terminal)
    state = replace(state, has_ended=True, phase=Phase.DRAINING, deadline_at_ns=None)
    return _abort_all(state, now_ns, out, decode_lease_s=None)


def replace_decode(state: HandoffState, failure: RequestEnd, now_ns: int, out: list[Effect]) -> HandoffState:
    """The decode worker failed: every worker lets go, then the request is routed again, without that one."""
    state = _count_failure(state, failure)
    return end(state, failure, now_ns, out) if _is_final(state, failure) else leave_decode(state, now_ns, out)


def leave_decode(state: HandoffState, now_ns: int, out: list[Effect]) -> HandoffState:
    """The same, and it was no failure."""
    state = replace(state, phase=Phase.REPLACING, deadline_at_ns=None)
    return _abort_all(state, now_ns, out, decode_lease_s=state.limits.drain_lease_s)


def replace_prefill(state: HandoffState, failure: RequestEnd, now_ns: int, out: list[Effect]) -> HandoffState:
    """The prefill worker failed: once it has let go, prefill again into the same reservation."""
    state = _count_failure(state, failure)
    return end(state, failure, now_ns, out) if _is_final(state, failure) else leave_prefill(state, now_ns, out)


def leave_prefill(state: HandoffState, now_ns: int, out: list[Effect]) -> HandoffState:
    """The same, and it was no failure."""
    state = replace(state, phase=Phase.RECALLING, deadline_at_ns=None)
    return _abort_prefill(state, now_ns, out)


def submit_reserved(state: HandoffState, now_ns: int, out: list[Effect]) -> HandoffState:
    """The decode worker does the rest in the room it granted; sealed tokens count."""
    assert state.decode is not None
    out.append(SendSubmit(state.decode.worker, use_reservation=True, resume=state.has_emitted))
    deadline = after_ns(now_ns, state.limits.prefill_s)
    return replace(state, phase=Phase.SUBMITTED, prefill=None, deadline_at_ns=deadline)


# ---- events ----------------------------------------------------------------------------------------------------------


def on_dropped(state: HandoffState, event: Dropped) -> HandoffState:
    return _with(state, event.worker, lambda a: _answered(a) if a.is_aborting else a)


def on_worker_died(state: HandoffState, event: WorkerDied, now_ns: int, out: list[Effect]) -> HandoffState:
    was_decode = state.decode is not None and state.decode.worker == event.worker
    was_prefill = state.prefill is not None and state.prefill.worker == event.worker
    if not (was_decode or was_prefill):
        return state
    state = _exclude(state, event.worker)
    reason = f"worker {event.worker.worker_id} (epoch {event.worker.epoch}) went away"
    code = WorkerLost.code
    if state.in_charge == event.worker and not (event.has_left or event.is_unsent):
        state = _count_death(state)
        if state.num_deaths >= state.limits.max_deaths:
            code, reason = InternalError.code, f"{state.num_deaths} workers ended over the request's next token"
    if was_decode:
        state = replace(state, decode=None)
        if state.phase in (Phase.REPLACING, Phase.DRAINING):
            return state
        if event.has_left:
            return leave_decode(state, now_ns, out)
        return replace_decode(state, RequestEnd.failed(code, reason), now_ns, out)
    state = replace(state, prefill=None)
    if state.phase in LETTING_GO:
        return state
    if event.has_left:
        return leave_prefill(state, now_ns, out)
    return replace_prefill(state, RequestEnd.failed(code, reason), now_ns, out)


def on_worker_cut(state: HandoffState, event: WorkerCut, now_ns: int, out: list[Effect]) -> HandoffState:
    """The request goes on elsewhere at once, in room that was never promised to this writer: a decode worker on another
    box refuses what still comes for the old room. One that shares memory with the writer cannot: then its end, or its
    word, is waited for."""
    was_decode = state.decode is not None and state.decode.worker == event.worker
    was_prefill = state.prefill is not None and state.prefill.worker == event.worker
    if not (was_decode or was_prefill):
        return state
    state = _exclude(state, event.worker)
    failure = RequestEnd.failed(WorkerLost.code, f"the link to worker {event.worker.worker_id} was cut")
    if was_prefill and event.may_write:
        state = _with(state, event.worker, lambda a: replace(a, holds=True, is_aborting=True, let_go_by_ns=None))
        if state.phase in LETTING_GO:
            return state
        state = state if event.has_left else _count_failure(state, failure)
        if _is_final(state, failure):
            return end(state, failure, now_ns, out)
        return replace(state, phase=Phase.RECALLING, deadline_at_ns=None)
    state = replace(state, decode=None) if was_decode else replace(state, prefill=None)
    if state.phase in (Phase.REPLACING, Phase.DRAINING):
        return state
    if event.has_left:
        return leave_decode(state, now_ns, out)
    return replace_decode(state, failure, now_ns, out)


def _count_death(state: HandoffState) -> HandoffState:
    """A request that gets on is not what ends its workers."""
    num_tokens = sum(len(sample.output_token_ids) for sample in state.samples)
    num_before = state.num_deaths if num_tokens == state.num_tokens_at_death else -1
    return replace(state, num_deaths=num_before + 1, num_tokens_at_death=num_tokens)


def on_failed(state: HandoffState, event: Failed, now_ns: int, out: list[Effect]) -> HandoffState:
    was_decode = state.decode is not None and state.decode.worker == event.worker
    was_prefill = state.prefill is not None and state.prefill.worker == event.worker
    if not (was_decode or was_prefill):
        return state
    state = _exclude(state, event.worker)
    if was_decode:
        # What it granted it may keep in quarantine, for it cannot know who writes; a needless Release is harmless.
        state = _with(state, event.worker, lambda a: replace(a, holds=False, owes_release=True))
        if state.phase in (Phase.REPLACING, Phase.DRAINING):
            return state
        return replace_decode(state, RequestEnd.failed(event.code, event.reason), now_ns, out)
    state = _with(state, event.worker, lambda a: replace(a, holds=False))
    if state.phase in LETTING_GO:
        return state
    return replace_prefill(state, RequestEnd.failed(event.code, event.reason), now_ns, out)


def on_tick(state: HandoffState, now_ns: int, out: list[Effect]) -> HandoffState:
    state = _expire_leases(state, now_ns, out)
    if state.deadline_at_ns is None or now_ns < state.deadline_at_ns:
        return state
    state = replace(state, deadline_at_ns=None)
    if state.phase is Phase.QUEUED:
        reason = f"no room on a decode worker within {state.limits.queue_s} s"
        return end(state, RequestEnd.failed(Overloaded.code, reason, state.limits.queue_s), now_ns, out)
    if state.prefill is not None:
        worker = state.prefill.worker
        reason = f"prefill worker {worker.worker_id} made no progress while {state.phase}"
        return replace_prefill(_exclude(state, worker), RequestEnd.failed(HandoffFailed.code, reason), now_ns, out)
    assert state.decode is not None
    worker = state.decode.worker
    reason = f"worker {worker.worker_id} produced no token in time while {state.phase}"
    return replace_decode(_exclude(state, worker), RequestEnd.failed(WorkerError.code, reason), now_ns, out)


def settle(state: HandoffState, now_ns: int, out: list[Effect]) -> HandoffState:
    """What follows once workers have let go: release, prefill again, route again, forget."""
    if state.phase not in LETTING_GO:
        return state
    if state.decode is not None and state.decode.owes_release and not state.is_writer_active:
        out.append(SendRelease(state.decode.worker))
        state = replace(state, decode=replace(state.decode, owes_release=False))
    if state.prefill is not None and state.prefill.is_over:
        state = replace(state, prefill=None)
    if state.decode is not None and state.decode.is_over:
        state = replace(state, decode=None)
    if state.prefill is not None:
        return state
    if state.phase is Phase.RECALLING:
        return _prefill_again(state, now_ns, out)
    if state.decode is not None:
        return state
    if state.phase is Phase.DRAINING:
        return replace(state, phase=Phase.GONE)
    out.append(Route(state.failure.reason if state.failure else "", state.excluded, resume=state.has_emitted))
    return replace(state, phase=Phase.ROUTING, reservation=None, num_sealed_tokens=0)


# ---- parts -----------------------------------------------------------------------------------------------------------


def _prefill_again(state: HandoffState, now_ns: int, out: list[Effect]) -> HandoffState:
    """Elsewhere, if something is left to compute and nothing was emitted yet; otherwise on the decode worker.

    Whole blocks that are sealed may be shared by then, so they become hits: the next writer leaves them alone.
    """
    assert state.reservation is not None
    if state.has_emitted or state.num_sealed_tokens >= state.num_prompt_tokens:
        return submit_reserved(state, now_ns, out)
    block_size = state.reservation.block_size
    num_hit_tokens = state.num_sealed_tokens // block_size * block_size
    reservation = replace(state.reservation, num_hit_tokens=max(num_hit_tokens, state.reservation.num_hit_tokens))
    num_uncached_tokens = state.num_prompt_tokens - reservation.num_hit_tokens
    out.append(ChoosePrefill(reservation, num_uncached_tokens, state.excluded))
    return replace(state, phase=Phase.CHOOSING, reservation=reservation)


def _abort_all(state: HandoffState, now_ns: int, out: list[Effect], decode_lease_s: float | None) -> HandoffState:
    state = _abort_prefill(state, now_ns, out)
    assignment = state.decode
    if assignment is None or assignment.is_aborting or not assignment.holds:
        return state
    owes = state.is_writer_active
    out.append(SendAbort(assignment.worker, writer_active=owes))
    let_go_by_ns = after_ns(now_ns, decode_lease_s)
    return replace(state, decode=replace(assignment, is_aborting=True, let_go_by_ns=let_go_by_ns, owes_release=owes))


def _abort_prefill(state: HandoffState, now_ns: int, out: list[Effect]) -> HandoffState:
    assignment = state.prefill
    if assignment is None or assignment.is_aborting or not assignment.holds:
        return state
    out.append(SendAbort(assignment.worker, writer_active=False))
    let_go_by_ns = after_ns(now_ns, state.limits.drain_lease_s)
    return replace(state, prefill=replace(assignment, is_aborting=True, let_go_by_ns=let_go_by_ns))


def _expire_leases(state: HandoffState, now_ns: int, out: list[Effect]) -> HandoffState:
    again_ns = after_ns(now_ns, state.limits.drain_lease_s)
    for assignment in (state.prefill, state.decode):
        if assignment is None or assignment.let_go_by_ns is None or now_ns < assignment.let_go_by_ns:
            continue
        state = _exclude(state, assignment.worker)
        if not assignment.holds:  # it said so before SendAbort reached it; an answer that comes too late does no harm
            state = _with(state, assignment.worker, _answered)
        elif assignment is state.decode and state.phase is not Phase.REPLACING:
            state = replace(state, decode=replace(assignment, let_go_by_ns=None))
        else:
            out.append(KillWorker(assignment.worker, f"no answer to abort within {state.limits.drain_lease_s} s"))
            killed = replace(assignment, let_go_by_ns=again_ns)
            state = replace(state, decode=killed) if assignment is state.decode else replace(state, prefill=killed)
    return state


def _answered(assignment: Assignment) -> Assignment:
    return replace(assignment, holds=False, is_aborting=False, let_go_by_ns=None)


def _with(state: HandoffState, worker: WorkerRef, change: Callable[[Assignment], Assignment]) -> HandoffState:
    if state.prefill is not None and state.prefill.worker == worker:
        return replace(state, prefill=change(state.prefill))
    if state.decode is not None and state.decode.worker == worker:
        return replace(state, decode=change(state.decode))
    return state


def _is_final(state: HandoffState, failure: RequestEnd) -> bool:
    return failure.code in FINAL_CODES or state.num_failures >= state.limits.max_attempts


def _exclude(state: HandoffState, worker: WorkerRef) -> HandoffState:
    return state if worker in state.excluded else replace(state, excluded=(*state.excluded, worker))


def _count_failure(state: HandoffState, failure: RequestEnd) -> HandoffState:
    return replace(state, num_failures=state.num_failures + 1, failure=failure)
