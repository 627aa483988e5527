"""The phases of one leg: one attempt at a request, from where it was routed to where it failed or the request ended.

What the gateway saw gives the borders; what only the worker saw (its queue, its chunks) came as durations, and is laid
between them: what is left over was on the way. Clocks of two processes are never subtracted from each other.
"""

from __future__ import annotations

from relevo.core.baton import PrefillFacts
from relevo.core.handoff import Link
from relevo.core.timeline import Leg
from relevo.policy.slowness.spans import Facts, SpanLine
from relevo.policy.slowness.words import PhaseName

_BUSY_FRACTION = 0.5  # of the time in which it did not answer
_LONG_QUEUE_S = 0.1  # longer than steps are; arbitrary
_FEW_PROMPTS_FRACTION = 0.25  # of the time in a queue; arbitrary


def lay_leg(line: SpanLine, leg: Leg, next_routed_ns: int | None, last_ns: int) -> None:
    """`next_routed_ns`: of the leg that had to follow. `last_ns`: from then on nothing is a leg's."""
    has_failed = next_routed_ns is not None or bool(leg.failure)
    ends_ns = min([at_ns for at_ns in (leg.ended_at_ns, next_routed_ns, last_ns) if at_ns is not None])
    if has_failed and leg.last_output_at_ns is not None:
        ends_ns = min(ends_ns, leg.last_output_at_ns)
    decode_id = leg.decode.worker_id
    prompt_id = leg.prefill.worker_id if leg.prefill is not None else decode_id
    if leg.first_output_at_ns is None:
        _lay_unanswered(line, leg, ends_ns, prompt_id, has_failed or leg.is_resumed)
        return
    if leg.is_split:
        line.until(PhaseName.ROOM, _before(leg.granted_at_ns, ends_ns), decode_id, _room_facts(leg), leg.is_resumed)
    _lay_prompt(line, leg, min(leg.first_output_at_ns, ends_ns), prompt_id)
    if prompt_id == decode_id:
        line.until(PhaseName.DECODE, ends_ns, decode_id, decode_facts(leg))
    elif leg.decode_output_at_ns is None:
        line.until(PhaseName.HANDOFF, ends_ns, decode_id, handoff_facts(leg), has_failed)
    else:
        line.until(PhaseName.HANDOFF, min(leg.decode_output_at_ns, ends_ns), decode_id, handoff_facts(leg))
        line.until(PhaseName.DECODE, ends_ns, decode_id, decode_facts(leg))


def _lay_unanswered(line: SpanLine, leg: Leg, ends_ns: int, prompt_id: str, is_lost: bool) -> None:
    """It ended before its first token: how far the worker was, only that knew."""
    decode_id = leg.decode.worker_id
    if leg.is_split and leg.granted_at_ns is None:
        line.until(PhaseName.ROOM, ends_ns, decode_id, _room_facts(leg), is_lost)
        return
    if leg.is_split:
        line.until(PhaseName.ROOM, _before(leg.granted_at_ns, ends_ns), decode_id, _room_facts(leg), is_lost)
    load = leg.prefill_load if leg.prefill_load is not None else leg.decode_load
    has_queue = load is not None and (load.num_waiting > 0 or load.num_waiting_prefill_tokens > 0)
    if has_queue:
        line.until(PhaseName.QUEUE, ends_ns, prompt_id, queue_facts(leg), is_lost)
    else:
        line.until(PhaseName.PREFILL, ends_ns, prompt_id, prefill_facts(leg), is_lost)


def _lay_prompt(line: SpanLine, leg: Leg, output_ns: int, worker_id: str) -> None:
    is_lost = leg.is_resumed
    if leg.facts is None:
        line.until(PhaseName.PREFILL, output_ns, worker_id, prefill_facts(leg), is_lost)
        return
    span_ns = max(output_ns - line.cursor_ns, 0)
    queue_ns, prefill_ns = _fitted(leg.facts, span_ns)
    unheard_ns = span_ns - queue_ns - prefill_ns
    if _was_busy(leg, leg.facts, unheard_ns / 1e9):
        queue_ns += unheard_ns
    else:
        line.until(PhaseName.MESSAGES, line.cursor_ns + unheard_ns, worker_id, {}, is_lost)
    name = PhaseName.ROOM if _waited_for_room(leg, leg.facts.queue_s) else PhaseName.QUEUE
    line.until(name, line.cursor_ns + queue_ns, worker_id, queue_facts(leg), is_lost)
    line.until(PhaseName.PREFILL, output_ns, worker_id, prefill_facts(leg), is_lost)


def _was_busy(leg: Leg, facts: PrefillFacts, unheard_s: float) -> bool:
    """It had steps to compute before it heard of the request: messages are heard between steps."""
    if leg.asked_counters is None or leg.prompt_counters is None:
        return False
    busy_s = leg.prompt_counters.busy_s - leg.asked_counters.busy_s
    return busy_s - facts.queue_s - facts.prefill_s >= _BUSY_FRACTION * unheard_s


def _waited_for_room(leg: Leg, queue_s: float) -> bool:
    """Of a whole request: its worker decoded others meanwhile, and computed hardly any prompt that was before it."""
    load, costs = leg.decode_load, leg.prompt_costs
    if leg.is_split or load is None or load.num_running == 0 or leg.prompt_counters is None or costs is None:
        return False
    others_s = costs.per_token_s * neighbour_prompt_tokens(leg)
    return queue_s >= _LONG_QUEUE_S and others_s < _FEW_PROMPTS_FRACTION * queue_s


def _fitted(facts: PrefillFacts, span_ns: int) -> tuple[int, int]:
    """Durations of the worker's clock, made to fit where the gateway's says less."""
    queue_ns, prefill_ns = max(round(facts.queue_s * 1e9), 0), max(round(facts.prefill_s * 1e9), 0)
    total_ns = queue_ns + prefill_ns
    if total_ns <= span_ns:
        return queue_ns, prefill_ns
    queue_ns = queue_ns * span_ns // total_ns
    return queue_ns, span_ns - queue_ns


def _before(at_ns: int | None, ends_ns: int) -> int | None:
    return None if at_ns is None else min(at_ns, ends_ns)


def _room_facts(leg: Leg) -> Facts:
    load = leg.decode_load
    if load is None:
        return {}
    return {
        "num_waiting": load.num_waiting,
        "num_running": load.num_running,
        "num_free_blocks": load.num_free_blocks + load.num_reusable_blocks,
        "num_total_blocks": load.num_total_blocks,
    }


def queue_facts(leg: Leg) -> Facts:
    load = leg.prefill_load if leg.prefill is not None and leg.prefill_load is not None else leg.decode_load
    if load is None:
        return {}
    facts: Facts = {
        "num_waiting": load.num_waiting,
        "num_running": load.num_running,
        "num_waiting_prefill_tokens": load.num_waiting_prefill_tokens,
    }
    others = neighbour_prompt_tokens(leg)
    if others:
        facts["num_neighbour_prompt_tokens"] = others
    return facts if leg.is_split else facts | _room_facts(leg)


def prefill_facts(leg: Leg) -> Facts:
    facts: Facts = {}
    if leg.facts is not None:
        facts |= {
            "num_prompt_tokens": leg.facts.num_prompt_tokens,
            "num_cached_tokens": leg.facts.num_cached_tokens,
            "num_chunks": leg.facts.num_chunks,
        }
    if leg.num_lost_hit_tokens:
        facts["num_lost_hit_tokens"] = leg.num_lost_hit_tokens
        if leg.hits_lost is not None:
            facts["hits_lost"] = leg.hits_lost.value
    others = neighbour_prompt_tokens(leg)
    if others:
        facts["num_neighbour_prompt_tokens"] = others
    return facts


def neighbour_prompt_tokens(leg: Leg) -> int:
    """Prompt tokens of others that the worker computed from when it was asked until the first token."""
    if leg.asked_counters is None or leg.prompt_counters is None or leg.facts is None:
        return 0
    computed = leg.prompt_counters.num_prefill_tokens - leg.asked_counters.num_prefill_tokens
    return max(computed - (leg.facts.num_prompt_tokens - leg.facts.num_cached_tokens), 0)


def handoff_facts(leg: Leg) -> Facts:
    return {
        "link": (leg.link if leg.link is not None else Link.MEMORY).name.lower(),
        "transferred_bytes": leg.transferred_bytes,
        "transfer_s": leg.transfer_s,
    }


def decode_facts(leg: Leg) -> Facts:
    """What its worker did from its first to its last output, this request's tokens included."""
    if leg.first_counters is None or leg.last_counters is None:
        return {}
    before, after = leg.first_counters, leg.last_counters
    num_steps = after.num_steps - before.num_steps
    if num_steps <= 0:
        return {}
    return {
        "num_steps": num_steps,
        "num_generation_tokens": after.num_generation_tokens - before.num_generation_tokens,
        "num_neighbour_prompt_tokens": after.num_prefill_tokens - before.num_prefill_tokens,
    }
