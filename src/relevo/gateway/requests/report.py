"""A request's explanation as JSON, for `GET /v1/requests` and those who read it back.

Numbers are seconds and counts. Of other requests there are only numbers in it; a text of the request is nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from relevo.core.errors import BudgetSpent, KeyLimitReached, LedgerUnavailable, ServerStopping
from relevo.core.outcome import Cause, RequestEnd
from relevo.core.timeline import Timeline
from relevo.gateway.requests.kept import KeptRequest, PromptFacts
from relevo.policy.slowness.words import Explanation, Phase, PhaseName, SlowCause

_PLACES = 6  # microseconds
STATUS_CLIENT_GONE = 499  # its client is not there to read it
REFUSED = "refused"  # as an outcome: nothing was computed for it


def explanation_json(explanation: Explanation) -> dict[str, Any]:
    return {
        "ttft_s": _rounded(explanation.ttft_s),
        "e2e_s": _rounded(explanation.e2e_s),
        "worst_gap_s": _rounded(explanation.worst_gap_s),
        "cause": explanation.cause.value,
        "sentence": explanation.sentence,
        "advice": explanation.advice,
        "phases": [
            {
                "name": phase.name.value,
                "begins_s": _rounded(phase.begins_s),
                "took_s": _rounded(phase.took_s),
                "worker_id": phase.worker_id or None,
                "before_first_token": phase.is_before_first_token,
                "facts": phase.facts,
            }
            for phase in explanation.phases
        ],
    }


def report_of(kept: KeptRequest, gateway_id: str = "", *, is_brief: bool = False) -> dict[str, Any]:
    """One request, with the explanation of its prompt; of several prompts: of the one that took longest, and, unless
    `is_brief`, of each under `prompts`."""
    told = list(zip(kept.prompts, kept.timelines, strict=True))
    if is_brief and told:
        told = [max(told, key=lambda each: each[1].ended_at_ns or 0)]
    prompts = [
        {"engine_request_id": facts.engine_request_id} | explanation_json(_explained(kept, facts, timeline))
        for facts, timeline in told
    ]
    if prompts:
        slowest = dict(max(prompts, key=lambda prompt: prompt["e2e_s"]))
        del slowest["engine_request_id"]
    else:
        slowest = explanation_json(_unread(kept))
    report = _about(kept, gateway_id) | slowest
    return report | {"prompts": prompts} if len(prompts) > 1 else report


def _about(kept: KeptRequest, gateway_id: str) -> dict[str, Any]:
    ends = [prompt.end for prompt in kept.prompts if prompt.end is not None]
    end = next((each for each in ends if each.cause is not Cause.COMPLETE), ends[0] if ends else None)
    outcome = _outcome(kept, end)
    return {
        "object": "request",
        "id": kept.response_id or kept.x_request_id,
        "x_request_id": kept.x_request_id,
        "response_id": kept.response_id or None,
        "engine_request_ids": [prompt.engine_request_id for prompt in kept.prompts],
        "gateway_id": gateway_id or None,
        "tenant": kept.tenant,
        "key_id": kept.key_id,
        "model": kept.model or None,
        "path": kept.path,
        "state": "running" if kept.status is None else "ended",
        "status": kept.status,
        "outcome": outcome,
        "ended_by": None if outcome in (None, REFUSED) else (end or _end_of(kept)).cause.value,
        "code": kept.code or (end.code if end is not None else None),
        "limit": (end.limit if end is not None else "") or None,
        "arrived_at_unix_s": kept.arrived_at_unix_ms / 1e3,
        "is_streamed": kept.is_streamed,
        "num_choices": kept.num_choices,
        "num_prompt_tokens": sum(prompt.num_prompt_tokens for prompt in kept.prompts),
        "num_cached_tokens": sum(prompt.num_cached_tokens for prompt in kept.prompts),
        "num_output_tokens": sum(prompt.num_output_tokens for prompt in kept.prompts),
    }


def _outcome(kept: KeptRequest, end: RequestEnd | None) -> str | None:
    if kept.status is None:
        return None
    end = end or _end_of(kept)
    was_routed = any(timeline.legs for timeline in kept.timelines)
    was_in = was_routed or end.cause in (Cause.COMPLETE, Cause.CLIENT_GONE) or kept.ttft_s is not None
    return str(end.outcome) if was_in else REFUSED


def _explain(timeline: Timeline, **facts: Any) -> Explanation:
    """Imported with the first request that is explained: no answer of a model needs it."""
    from relevo.policy.slowness.explain import explain

    return explain(timeline, **facts)


def _explained(kept: KeptRequest, facts: PromptFacts, timeline: Timeline) -> Explanation:
    if kept.status is not None and facts.end is None:
        return _never_run(kept, facts.num_prompt_tokens, timeline)
    return _explain(
        timeline,
        num_prompt_tokens=facts.num_prompt_tokens,
        num_cached_tokens=facts.num_cached_tokens,
        num_output_tokens=facts.num_output_tokens,
        num_samples=facts.num_samples,
        end=None if kept.status is None else facts.end,
        now_ns=_end_at_ns(kept),
    )


def _unread(kept: KeptRequest) -> Explanation:
    """It has not been read so far, or never was."""
    timeline = Timeline(accepted_at_ns=kept.accepted_at_ns)
    if kept.status is not None:
        return _never_run(kept, 0, timeline)
    return _explain(timeline, num_prompt_tokens=0, num_cached_tokens=0, num_output_tokens=0, now_ns=_end_at_ns(kept))


def _never_run(kept: KeptRequest, num_prompt_tokens: int, timeline: Timeline) -> Explanation:
    """No dispatcher was asked: it ended at the door of the gateway."""
    explanation = _explain(
        timeline,
        num_prompt_tokens=num_prompt_tokens,
        num_cached_tokens=0,
        num_output_tokens=0,
        end=_end_of(kept),
        now_ns=_end_at_ns(kept),
    )
    if not kept.code:
        return explanation
    sentence, advice = _AT_THE_DOOR.get(
        kept.code, (f"It was not served as it was asked: HTTP {kept.status}, {kept.code}.", _READ_THE_ERROR)
    )
    return replace(explanation, cause=SlowCause.REFUSED, sentence=sentence, advice=advice)


_READ_THE_ERROR = "The error that its client was sent says what to change."
_AT_THE_DOOR = {
    BudgetSpent.code: (
        "The budget of its key is spent.",
        "The key goes on with its next period, or with a larger budget: relevo keys.",
    ),
    KeyLimitReached.code: (
        "Its key had no tokens left for this minute.",
        "Ask again after the answer's Retry-After; relevo keys sets how many tokens a minute the key may use.",
    ),
    LedgerUnavailable.code: (
        "What it would have used could not be recorded.",
        "The gateway's log says why the usage ledger cannot be written.",
    ),
    ServerStopping.code: ("The server was being stopped.", "Ask again once it is back."),
}


def _end_at_ns(kept: KeptRequest) -> int:
    return kept.accepted_at_ns + round(kept.e2e_s * 1e9)


def _end_of(kept: KeptRequest) -> RequestEnd:
    """Of a prompt that never ran: what its client was told."""
    if kept.code:
        return RequestEnd.failed(kept.code, "")
    return RequestEnd(cause=Cause.CLIENT_GONE if kept.status == STATUS_CLIENT_GONE else Cause.INTERNAL)


def explanation_of(told: Mapping[str, Any]) -> Explanation:
    """The same, read back. Raises KeyError, TypeError or ValueError for what is not of this form."""
    return Explanation(
        cause=SlowCause(told["cause"]),
        sentence=_text(told["sentence"]),
        advice=_text(told["advice"]),
        phases=tuple(
            Phase(
                name=PhaseName(phase["name"]),
                begins_s=float(phase["begins_s"]),
                took_s=float(phase["took_s"]),
                worker_id=_text(phase["worker_id"] or ""),
                facts=dict(phase["facts"]),
                is_before_first_token=bool(phase["before_first_token"]),
            )
            for phase in told["phases"]
        ),
        ttft_s=_number(told["ttft_s"]),
        e2e_s=float(told["e2e_s"]),
        worst_gap_s=_number(told["worst_gap_s"]),
    )


def _rounded(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s, _PLACES)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
