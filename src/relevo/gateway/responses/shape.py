"""The response object: what it repeats of its request, and what it says of how the answer ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relevo.core import errors
from relevo.core.errors import RelevoError
from relevo.core.request import SamplingParams
from relevo.gateway.generation.reply_writer import Usage
from relevo.gateway.generation.terms import BATCH_TIERS
from relevo.gateway.http.errors import shortened
from relevo.gateway.responses.json_text import fragment
from relevo.gateway.responses.schemas import ResponseFields
from relevo.gateway.responses.tools import echoed

_CAPACITY_CODES = frozenset((errors.BudgetSpent.code, errors.KeyLimitReached.code, errors.Overloaded.code))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseShape:
    """`repeated`: the members that are the same however the answer ends."""

    id: str
    repeated: Mapping[str, Any]

    def in_progress(self) -> dict[str, Any]:
        return self._response("in_progress", [])

    def ended(
        self, output: Sequence[Mapping[str, Any]], usage: Usage, completed_at: int, *, is_cut: bool
    ) -> dict[str, Any]:
        """`is_cut`: by a limit of tokens."""
        ended = {"usage": usage_json(usage)}
        if is_cut:
            details = {"incomplete_details": {"reason": "max_output_tokens"}}
            return self._response("incomplete", output, ended | details)
        return self._response("completed", output, ended | {"completed_at": completed_at})

    def failed(self, output: Sequence[Mapping[str, Any]], usage: Usage, error: RelevoError) -> dict[str, Any]:
        code = "rate_limit_exceeded" if error.code in _CAPACITY_CODES else "server_error"
        told = {"code": code, "message": shortened(error.message)}
        return self._response("failed", output, {"usage": usage_json(usage), "error": told})

    def _response(
        self, status: str, output: Sequence[Mapping[str, Any]], ended: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "status": status,
            "error": None,
            "incomplete_details": None,
            "completed_at": None,
            "output": list(output),
            "usage": None,
            **self.repeated,
            **(ended or {}),
        }


def repeated(fields: ResponseFields, model: str, sampling: SamplingParams, created_at: int) -> dict[str, Any]:
    """Every member that the official schema requires is there; sampling is what was used. Raises InvalidRequest."""
    text: dict[str, Any] = {"format": fields.text.format or {"type": "text"}}
    if fields.text.verbosity:
        text["verbosity"] = fields.text.verbosity
    return {
        "created_at": created_at,
        "model": model,
        "background": False,
        "frequency_penalty": sampling.frequency_penalty,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "max_tool_calls": fields.max_tool_calls,
        "metadata": fragment(fields.metadata or {}, "metadata"),
        "parallel_tool_calls": fields.parallel_tool_calls,
        "presence_penalty": sampling.presence_penalty,
        "previous_response_id": fields.previous_response_id,
        "prompt_cache_key": fragment(fields.prompt_cache_key, "prompt_cache_key"),
        "reasoning": {"effort": fields.reasoning.effort, "summary": fields.reasoning.summary},
        "safety_identifier": fields.safety_identifier,
        "service_tier": "flex" if fields.service_tier in BATCH_TIERS else "default",
        "store": fields.store,
        "temperature": sampling.temperature,
        "text": fragment(text, "text"),
        "tool_choice": fragment(fields.tool_choice or "auto", "tool_choice"),
        "tools": fragment(echoed(fields.tools), "tools"),
        "top_logprobs": fields.top_logprobs,
        "top_p": sampling.top_p,
        "truncation": "disabled",  # no prompt is shortened here
        "user": fields.user,
    }


def usage_json(usage: Usage) -> dict[str, Any]:
    """Cached tokens are part of the input, reasoning of the output. Writing to the cache costs nothing."""
    return {
        "input_tokens": usage.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.num_output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.num_reasoning_tokens},
        "total_tokens": usage.num_prompt_tokens + usage.num_output_tokens,
    }
