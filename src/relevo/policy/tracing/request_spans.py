"""The spans of an HTTP request that has ended: its own, one per prompt where there are several, per leg and per phase;
at an edge one per region that was asked.

Owns their names and attributes, and that every one lies within its parent. Phases are those that `relevo why` tells
(`policy.slowness`); one that a worker spent is the worker's. Pure. Nothing of a text, a key or a tenant is known here.

Source: OpenTelemetry's semantic conventions for HTTP and for generative AI (1.40, in development); what has no
convention begins with `relevo.`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relevo.core.ids import WorkerRef
from relevo.core.timeline import Leg
from relevo.policy.slowness.explain import explain
from relevo.policy.slowness.words import Explanation, Phase, PhaseName
from relevo.policy.tracing.words import AttemptTrace, Attribute, CallTrace, PlannedSpan, PromptTrace, SpanKind

MAX_FAILURE_CHARS = 200  # arbitrary
PROVIDER = "relevo"

_OF_WORKERS = frozenset(
    (
        *(PhaseName.ROOM, PhaseName.QUEUE, PhaseName.PREFILL),
        *(PhaseName.HANDOFF, PhaseName.DECODE, PhaseName.PREEMPTED),
    )
)


@dataclass(frozen=True, slots=True)
class _Told:
    prompt: PromptTrace
    explanation: Explanation


def spans_of(call: CallTrace) -> list[PlannedSpan]:
    """The first one is the call's; a parent comes before its children."""
    told = [_Told(prompt, _explained(prompt)) for prompt in call.prompts]
    spans = [
        PlannedSpan(
            name=f"{call.method} {call.route}",
            kind=SpanKind.SERVER,
            begins_ns=call.begins_ns,
            ends_ns=max(call.begins_ns, call.ends_ns),
            parent=None,
            attributes=_call_attributes(call, told),
            failure="" if call.has_failed else None,
        )
    ]
    for number, each in enumerate(told):
        parent = 0 if call.num_prompts == 1 else _add_prompt(spans, number, each)
        _add_legs(spans, parent, each)
    for attempt in call.attempts:
        _add_attempt(spans, call, attempt)
    return spans


def _explained(prompt: PromptTrace) -> Explanation:
    return explain(
        prompt.timeline,
        num_prompt_tokens=prompt.num_prompt_tokens,
        num_cached_tokens=prompt.num_cached_tokens,
        num_output_tokens=prompt.num_output_tokens,
        num_samples=max(1, len(prompt.finish_reasons)),
        end=prompt.end,
    )


def _add(spans: list[PlannedSpan], parent: int, span: PlannedSpan) -> int:
    """Its place. What reaches out of the parent is cut off."""
    around = spans[parent]
    span.parent = parent
    span.begins_ns = min(max(span.begins_ns, around.begins_ns), around.ends_ns)
    span.ends_ns = min(max(span.ends_ns, span.begins_ns), around.ends_ns)
    spans.append(span)
    return len(spans) - 1


def _add_attempt(spans: list[PlannedSpan], call: CallTrace, attempt: AttemptTrace) -> None:
    attributes: dict[str, Attribute] = {"http.request.method": call.method, "relevo.region": attempt.region}
    if attempt.status:
        attributes["http.response.status_code"] = attempt.status
    if attempt.failure is not None:
        attributes["error.type"] = str(attempt.status) if attempt.status >= 400 else "region_failed"
    span = PlannedSpan(
        name=call.method,
        kind=SpanKind.CLIENT,
        begins_ns=attempt.begins_ns,
        ends_ns=attempt.ends_ns or call.ends_ns,
        parent=0,
        attributes=attributes,
        failure=None if attempt.failure is None else attempt.failure[:MAX_FAILURE_CHARS],
        own_id=attempt.context.span_id,
    )
    _add(spans, 0, span)


def _add_prompt(spans: list[PlannedSpan], number: int, told: _Told) -> int:
    timeline = told.prompt.timeline
    attributes: dict[str, Attribute] = {"relevo.prompt": number, **_usage(told.prompt), **_told_of(told)}
    reasons = [reason for reason in told.prompt.finish_reasons if reason]
    if reasons:
        attributes["gen_ai.response.finish_reasons"] = reasons
    return _add(
        spans, 0, _inner("prompt", timeline.accepted_at_ns, _end_ns(spans[0], timeline.ended_at_ns), attributes)
    )


def _add_legs(spans: list[PlannedSpan], parent: int, told: _Told) -> None:
    prompt, accepted_ns = told.prompt, told.prompt.timeline.accepted_at_ns
    legs = prompt.timeline.legs
    places: list[tuple[Leg, int]] = []
    for number, leg in enumerate(legs, start=1):
        span = PlannedSpan(
            name="leg",
            kind=SpanKind.CLIENT,
            begins_ns=leg.routed_at_ns,
            ends_ns=_end_ns(spans[parent], leg.ended_at_ns),
            parent=parent,
            attributes=_leg_attributes(number, leg),
            failure=leg.failure[:MAX_FAILURE_CHARS] or None,
        )
        places.append((leg, _add(spans, parent, span)))
    for phase in told.explanation.phases:
        begins_ns = accepted_ns + round(phase.begins_s * 1e9)
        ends_ns = accepted_ns + round((phase.begins_s + phase.took_s) * 1e9)
        around, place = _leg_around(spans, places, begins_ns, ends_ns, parent)
        worker = _worker_of(phase, around, prompt)
        kind = SpanKind.INTERNAL if worker is None or around is None else SpanKind.SERVER
        attributes = _phase_attributes(phase, around, worker)
        span = _inner(str(phase.name), begins_ns, ends_ns, attributes)
        span.kind, span.worker = kind, worker
        _add(spans, place, span)


def _inner(name: str, begins_ns: int, ends_ns: int, attributes: dict[str, Attribute]) -> PlannedSpan:
    return PlannedSpan(
        name=name, kind=SpanKind.INTERNAL, begins_ns=begins_ns, ends_ns=ends_ns, parent=0, attributes=attributes
    )


def _end_ns(parent: PlannedSpan, at_ns: int | None) -> int:
    return parent.ends_ns if at_ns is None else at_ns


_ROUNDING_NS = 1_000  # phases are seconds, as a float


def _leg_around(
    spans: Sequence[PlannedSpan], places: Sequence[tuple[Leg, int]], begins_ns: int, ends_ns: int, outside: int
) -> tuple[Leg | None, int]:
    """The leg that a phase lies in, and the leg's place; `outside` for what lies in none."""
    for leg, place in places:
        around = spans[place]
        if around.begins_ns - _ROUNDING_NS <= begins_ns and ends_ns <= around.ends_ns + _ROUNDING_NS:
            return leg, place
    return None, outside


def _worker_of(phase: Phase, leg: Leg | None, prompt: PromptTrace) -> WorkerRef | None:
    """The incarnation whose time it was; None: the gateway's."""
    if phase.name not in _OF_WORKERS or not phase.worker_id:
        return None
    legs = prompt.timeline.legs if leg is None else [leg]
    known = [worker for each in legs for worker in (each.decode, each.prefill) if worker is not None]
    known += [preemption.worker for preemption in prompt.timeline.preemptions]
    return next((worker for worker in known if worker.worker_id == phase.worker_id), None)


# ---- attributes ------------------------------------------------------------------------------------------------------


def _call_attributes(call: CallTrace, told: Sequence[_Told]) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        "http.request.method": call.method,
        "http.route": call.route,
        "http.response.status_code": call.status,
    }
    if call.error:
        attributes["error.type"] = call.error
    asked = call.generation
    if asked is not None:
        attributes |= {
            "gen_ai.operation.name": asked.operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": asked.model,
            "gen_ai.request.stream": asked.is_streamed,
            "gen_ai.request.choice.count": asked.num_choices,
            "gen_ai.response.id": asked.response_id,
            "gen_ai.response.model": asked.model,
            "relevo.num_prompts": call.num_prompts,
            **_usage(call),
        }
        if asked.max_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = asked.max_tokens
        if asked.conversation:
            attributes["gen_ai.conversation.id"] = asked.conversation
        reasons = [reason for prompt in call.prompts for reason in prompt.finish_reasons if reason]
        if reasons:
            attributes["gen_ai.response.finish_reasons"] = reasons
    if call.num_prompts == 1:
        attributes |= _told_of(told[0])
        if asked is not None and asked.is_streamed and told[0].explanation.ttft_s is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = told[0].explanation.ttft_s
    return attributes


def _usage(of: CallTrace | PromptTrace) -> dict[str, Attribute]:
    return {
        "gen_ai.usage.input_tokens": of.num_prompt_tokens,
        "gen_ai.usage.output_tokens": of.num_output_tokens,
        "gen_ai.usage.cache_read.input_tokens": of.num_cached_tokens,
    }


def _told_of(told: _Told) -> dict[str, Attribute]:
    explanation, timeline = told.explanation, told.prompt.timeline
    attributes: dict[str, Attribute] = {
        "relevo.request_id": told.prompt.request_id,
        "relevo.cause": str(explanation.cause),
        "relevo.explanation": explanation.sentence,
        "relevo.num_legs": len(timeline.legs),
        "relevo.num_preemptions": timeline.num_preemptions,
    }
    if explanation.ttft_s is not None:
        attributes["relevo.ttft_s"] = explanation.ttft_s
    if explanation.worst_gap_s is not None:
        attributes["relevo.worst_gap_s"] = explanation.worst_gap_s
    return attributes


def _leg_attributes(number: int, leg: Leg) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        "relevo.leg": number,
        "relevo.decode.worker": leg.decode.worker_id,
        "relevo.route.reason": leg.reason,
        "relevo.is_split": leg.is_split,
        "relevo.is_resumed": leg.is_resumed,
        "relevo.num_hit_tokens": leg.num_hit_tokens,
    }
    if leg.prefill is not None:
        attributes["relevo.prefill.worker"] = leg.prefill.worker_id
    if leg.failure:
        attributes["error.type"] = "leg_failed"
    return attributes


def _phase_attributes(phase: Phase, leg: Leg | None, worker: WorkerRef | None) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {f"relevo.{name}": value for name, value in phase.facts.items()}
    if worker is not None:
        attributes["relevo.worker.epoch"] = worker.epoch
    elif phase.worker_id:
        attributes["relevo.worker.id"] = phase.worker_id
    facts = leg.facts if leg is not None else None
    if phase.name is PhaseName.PREFILL and facts is not None:
        attributes["relevo.num_chunks"] = facts.num_chunks
    if phase.name is PhaseName.HANDOFF and leg is not None:
        attributes["relevo.transferred_bytes"] = leg.transferred_bytes
        if leg.prefill is not None:
            attributes["relevo.prefill.worker"] = leg.prefill.worker_id
    return attributes
