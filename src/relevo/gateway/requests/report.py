"""A request's explanation as JSON, for `GET /v1/requests` and those who read it back.

Numbers are seconds and counts. Of other requests there are only numbers in it; a text of the request is nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relevo.policy.slowness.words import Explanation, Phase, PhaseName, SlowCause

_PLACES = 6  # microseconds


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
