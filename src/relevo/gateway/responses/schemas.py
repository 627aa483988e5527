"""The bodies of the Responses API: names, types and ranges. Source: OpenAI API reference, "Responses".

A member that is not listed is accepted and ignored, `null` means "not given". What items and tools hold is read where
they are used.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from relevo.gateway.generation.spec import MAX_INT, Count, SamplingWish

MAX_LOGPROBS = 20  # OpenAI's bound of top_logprobs


class TextFields(msgspec.Struct, kw_only=True):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ReasoningFields(msgspec.Struct, kw_only=True):
    effort: str | None = None
    summary: str | None = None  # asked for, and never made: the reasoning itself is shown
    generate_summary: str | None = None


class ResponseFields(SamplingWish, kw_only=True):
    """POST /v1/responses, and what of it /v1/responses/input_tokens takes."""

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool = False
    store: bool = True
    background: bool = False
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    max_tool_calls: int | None = None  # of tools that a server runs; none is run here
    max_output_tokens: Count | None = None
    text: TextFields = msgspec.field(default_factory=TextFields)
    reasoning: ReasoningFields = msgspec.field(default_factory=ReasoningFields)
    include: list[str] = msgspec.field(default_factory=list)
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] = 0
    truncation: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None  # "batch" and "flex" only use room that no other request wants
    prompt_cache_key: Any = None
    promptCacheKey: Any = None  # noqa: N815  # as some clients spell it
    session_id: Any = None
    client_metadata: Any = None
    safety_identifier: str | None = None
    user: str | None = None
    conversation: Any = None  # refused, as is the next
    prompt: Any = None
    priority: Annotated[int, Meta(ge=-MAX_INT, le=MAX_INT)] = 0
    cache_salt: Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^@/\\\x00]+\Z")] | None = None
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
