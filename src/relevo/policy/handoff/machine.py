"""One request between two workers: what to ask of which, and what to do when one fails. Pure.

Owns the order of things: room on the decode worker first, then the prompt, then decoding only once all KV is sealed
and all first tokens are here; and the rule that granted blocks are released only when no worker can write into them any
more. A timer asks (SendAbort) and, unanswered, kills (KillWorker); it never releases.

Does not know sockets, load, text, or which worker is a good choice. Source: docs/architecture.md, "Life of a request".

    WAITING ─► ROUTING ─► QUEUED ─► CHOOSING ─► PREFILLING ─► TRANSFERRING ─► DECODING ─► GONE
                  │                   ▲  │          └────┬─────────┘             ▲
                  │                   │  └─ local ───────┼──────► SUBMITTED ─────┘
                  └── not split ──────┼──────────────────┼───────────▲
                                      └── RECALLING ◄────┘ prefill worker failed
    a decode worker failed: REPLACING ─► ROUTING;  after its RequestEnd: DRAINING ─► GONE
"""

from __future__ import annotations

from dataclasses import replace

from relevo.core.baton import KVTicket, SampleState
from relevo.core.events import TokenOutput
from relevo.core.ids import RequestId, WorkerRef
from relevo.core.outcome import COMPLETE
from relevo.policy.handoff import recovery
from relevo.policy.handoff.effects import (
    ChoosePrefill,
    Effect,
    Emit,
    Route,
    SendPrefill,
    SendReserve,
    SendSeal,
    SendStartDecode,
    SendSubmit,
)
from relevo.policy.handoff.events import (
    Dropped,
    EndRequested,
    Event,
    Failed,
    Granted,
    LetIn,
    NoRoute,
    PrefillChosen,
    PrefillFinished,
    Routed,
    Sealed,
    Tick,
    Tokens,
    WorkerCut,
    WorkerDied,
)
from relevo.policy.handoff.state import Assignment, HandoffLimits, HandoffState, Phase, after_ns

_FRESH_FRACTION = 0.95  # of the limit for gaps between tokens: a deadline with more left is not moved; arbitrary


def start(
    request_id: RequestId,
    *,
    num_prompt_tokens: int,
    num_samples: int,
    limits: HandoffLimits,
) -> HandoffState:
    """State of a request that has just come in and waits for its turn."""
    return HandoffState(
        request_id=request_id,
        num_prompt_tokens=num_prompt_tokens,
        limits=limits,
        samples=tuple(SampleState(sample_index=i) for i in range(num_samples)),
    )


def advance(state: HandoffState, event: Event, now_ns: int) -> tuple[HandoffState, tuple[Effect, ...]]:
    """The state after `event`, and what to do, in that order. Events that no longer matter change nothing.

    The old state must not be used again: `samples` of both are the same objects and grow in place.
    """
    if isinstance(event, Tokens) and take_routine_tokens(state, event.worker, event.output, now_ns):
        return state, (Emit(event.output),)
    out: list[Effect] = []
    state = _apply(state, event, now_ns, out)
    return recovery.settle(state, now_ns, out), tuple(out)


def take_routine_tokens(state: HandoffState, worker: WorkerRef, output: TokenOutput, now_ns: int) -> bool:
    """The short way of tokens that change nothing but their sample, nearly all: then they are taken, and are to be
    emitted. A deadline is left alone while little of it is used. False: nothing was done, they are an event."""
    limit_s, deadline_at_ns = state.limits.decode_stall_s, state.deadline_at_ns
    if state.phase is not Phase.DECODING or output.finish_reason is not None:
        return False
    if state.decode is None or worker != state.decode.worker:
        return False
    index = output.sample_index
    if not 0 <= index < len(state.samples) or state.samples[index].finish_reason is not None:
        return False
    if deadline_at_ns is None or limit_s is None:
        is_fresh = deadline_at_ns is limit_s
    else:
        is_fresh = deadline_at_ns - now_ns > limit_s * _FRESH_FRACTION * 1e9
    if is_fresh:
        token_ids = state.samples[index].output_token_ids
        for token in output.tokens:  # nearly always one
            token_ids.append(token.token_id)
    return is_fresh


def _apply(state: HandoffState, event: Event, now_ns: int, out: list[Effect]) -> HandoffState:
    match event:
        case Tokens():
            return _on_tokens(state, event, now_ns, out)
        case Sealed():
            return _on_sealed(state, event.worker, event.num_tokens, now_ns, out)
        case PrefillFinished():
            return _on_prefill_finished(state, event, now_ns, out)
        case LetIn() if state.phase is Phase.WAITING:
            out.append(Route("new", (), resume=False))
            return replace(state, phase=Phase.ROUTING)
        case Routed() if state.phase is Phase.ROUTING:
            return _on_routed(state, event, now_ns, out)
        case NoRoute() if state.phase is Phase.ROUTING:
            return _on_no_route(state, event, now_ns, out)
        case Granted() if state.phase is Phase.QUEUED:
            return _on_granted(state, event, out)
        case PrefillChosen() if state.phase is Phase.CHOOSING:
            return _on_prefill_chosen(state, event, now_ns, out)
        case Dropped():
            return recovery.on_dropped(state, event)
        case Failed():
            return recovery.on_failed(state, event, now_ns, out)
        case WorkerDied():
            return recovery.on_worker_died(state, event, now_ns, out)
        case WorkerCut():
            return recovery.on_worker_cut(state, event, now_ns, out)
        case EndRequested(end):
            return recovery.end(state, end, now_ns, out)
        case Tick():
            return recovery.on_tick(state, now_ns, out)
        case _:
            return state


def _on_routed(state: HandoffState, event: Routed, now_ns: int, out: list[Effect]) -> HandoffState:
    state = replace(state, decode=Assignment(worker=event.decode))
    limits = state.limits
    if event.split and not state.has_emitted:
        out.append(SendReserve(event.decode))
        return replace(state, phase=Phase.QUEUED, deadline_at_ns=after_ns(now_ns, limits.queue_s))
    out.append(SendSubmit(event.decode, use_reservation=False, resume=state.has_emitted))
    has_limit = limits.queue_s is not None and limits.prefill_s is not None
    limit_s = (limits.queue_s or 0.0) + (limits.prefill_s or 0.0) if has_limit else None
    return replace(state, phase=Phase.SUBMITTED, deadline_at_ns=after_ns(now_ns, limit_s))


def _on_no_route(state: HandoffState, event: NoRoute, now_ns: int, out: list[Effect]) -> HandoffState:
    terminal = event.end
    if state.failure is not None:  # what went wrong first says more
        terminal = replace(state.failure, retry_after_s=event.end.retry_after_s)
    return recovery.end(state, terminal, now_ns, out)


def _on_granted(state: HandoffState, event: Granted, out: list[Effect]) -> HandoffState:
    reservation = event.reservation
    if state.decode is None or state.decode.worker != reservation.worker:
        return state
    out.append(ChoosePrefill(reservation, state.num_prompt_tokens - reservation.num_hit_tokens, state.excluded))
    return replace(
        state,
        phase=Phase.CHOOSING,
        reservation=reservation,
        num_sealed_tokens=reservation.num_hit_tokens,
        num_found_tokens=reservation.num_hit_tokens,
        deadline_at_ns=None,
    )


def _on_prefill_chosen(state: HandoffState, event: PrefillChosen, now_ns: int, out: list[Effect]) -> HandoffState:
    assert state.decode is not None
    assert state.reservation is not None
    if event.worker is None or event.worker == state.decode.worker:
        return recovery.submit_reserved(state, now_ns, out)
    out.append(SendPrefill(event.worker, state.reservation))
    deadline = after_ns(now_ns, state.limits.prefill_s)
    return replace(state, phase=Phase.PREFILLING, prefill=Assignment(worker=event.worker), deadline_at_ns=deadline)


def _on_sealed(state: HandoffState, worker: WorkerRef, num_tokens: int, now_ns: int, out: list[Effect]) -> HandoffState:
    """Relay what is newly complete. While the prefill worker is being recalled this still holds.

    The decode worker, which shares sealed blocks with other requests, is told from here even where its own receiver
    saw them arrive: had it known first, the prompt's next writer could be sent to write them again.
    """
    is_writer = state.prefill is not None and state.prefill.worker == worker
    if not is_writer or state.phase not in (Phase.PREFILLING, Phase.TRANSFERRING, Phase.RECALLING):
        return state
    assert state.decode is not None
    num_tokens = min(num_tokens, state.num_prompt_tokens)  # whatever it says, there are no more
    if num_tokens > state.num_sealed_tokens:
        out.append(SendSeal(state.decode.worker, num_tokens))
        state = replace(state, num_sealed_tokens=num_tokens)
    return _progress(state, now_ns)


def _on_prefill_finished(state: HandoffState, event: PrefillFinished, now_ns: int, out: list[Effect]) -> HandoffState:
    if state.prefill is None or state.prefill.worker != event.worker or not state.prefill.holds:
        return state
    if event.ticket is not None:
        state = replace(state, prefill=replace(state.prefill, holds=False))
        return _on_ticket(state, event.ticket, event.num_sealed_tokens, now_ns, out)
    state = _on_sealed(state, event.worker, event.num_sealed_tokens, now_ns, out)
    state = replace(
        state,
        prefill=replace(state.prefill, holds=False) if state.prefill is not None else None,
        transferred_bytes=state.transferred_bytes + event.transferred_bytes,
        transfer_s=state.transfer_s + event.transfer_s,
    )
    return _start_decode(state, now_ns, out) if state.phase is Phase.TRANSFERRING else state


def _on_ticket(
    state: HandoffState, ticket: KVTicket, num_sealed_tokens: int, now_ns: int, out: list[Effect]
) -> HandoffState:
    """The decode worker fetches the KV, if it still may; otherwise it computes the prompt itself."""
    if state.phase is not Phase.PREFILLING:
        return state
    assert state.decode is not None
    if not ticket.is_good(now_ns):
        return recovery.submit_reserved(state, now_ns, out)
    out.append(SendStartDecode(state.decode.worker, num_sealed_tokens, ticket))
    deadline = after_ns(now_ns, state.limits.decode_stall_s)
    return replace(state, phase=Phase.DECODING, prefill=None, deadline_at_ns=deadline)


def _on_tokens(state: HandoffState, event: Tokens, now_ns: int, out: list[Effect]) -> HandoffState:
    output = event.output
    if event.worker != state.in_charge or not 0 <= output.sample_index < len(state.samples):
        return state
    sample = state.samples[output.sample_index]
    if sample.finish_reason is not None:
        return state
    sample.output_token_ids.extend(token.token_id for token in output.tokens)
    sample.finish_reason = output.finish_reason
    out.append(Emit(output))
    if output.finish_reason is not None and all(s.finish_reason is not None for s in state.samples):
        return _on_all_finished(state, now_ns, out)
    if state.phase in (Phase.SUBMITTED, Phase.DECODING):
        deadline = after_ns(now_ns, state.limits.decode_stall_s)
        return replace(state, phase=Phase.DECODING, deadline_at_ns=deadline)
    if not all(s.output_token_ids or s.finish_reason is not None for s in state.samples):
        return _progress(state, now_ns)
    state = _progress(replace(state, phase=Phase.TRANSFERRING), now_ns)
    return _start_decode(state, now_ns, out)


def _on_all_finished(state: HandoffState, now_ns: int, out: list[Effect]) -> HandoffState:
    """A worker that reported the last token of all has let go by itself; the others are asked to."""
    if state.phase in (Phase.SUBMITTED, Phase.DECODING):
        state = replace(state, decode=None)
    return recovery.end(state, COMPLETE, now_ns, out)


def _start_decode(state: HandoffState, now_ns: int, out: list[Effect]) -> HandoffState:
    """Once the writer is done too: the decode worker takes over."""
    if state.is_writer_active:
        return state
    assert state.decode is not None
    out.append(SendStartDecode(state.decode.worker, state.num_sealed_tokens))
    deadline = after_ns(now_ns, state.limits.decode_stall_s)
    return replace(state, phase=Phase.DECODING, prefill=None, deadline_at_ns=deadline)


def _progress(state: HandoffState, now_ns: int) -> HandoffState:
    """Restart the clock of the phase."""
    if state.phase is Phase.PREFILLING:
        return replace(state, deadline_at_ns=after_ns(now_ns, state.limits.prefill_s))
    if state.phase is Phase.TRANSFERRING:
        return replace(state, deadline_at_ns=after_ns(now_ns, state.limits.transfer_s))
    return state
