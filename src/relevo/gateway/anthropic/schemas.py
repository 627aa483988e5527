"""The request bodies that Anthropic's clients send: names, types and ranges.

A member that is not listed is accepted and ignored, `null` means "not given". What a message, a tool or a choice may
hold is read elsewhere. Source: Anthropic API reference, "Create a Message" and "Count tokens".
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from relevo.gateway.generation.spec import Count, SamplingWish

# Accepted without effect; each is named once in the log, so that it is not taken to work.
FIELDS_WITHOUT_EFFECT = frozenset(
    ("container", "context_management", "diagnostics", "inference_geo", "mcp_servers", "speed")
)

StopString = Annotated[str, Meta(min_length=1)]


class ConversationFields(SamplingWish, kw_only=True):
    """POST /v1/messages/count_tokens, and what both have in common."""

    model: str | None = None
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None  # where clients sent it before there was `output_config.format`
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None


class MessagesFields(ConversationFields, kw_only=True):
    """POST /v1/messages."""

    max_tokens: Count
    stop_sequences: list[StopString] = msgspec.field(default_factory=list)
    stream: bool = False
    metadata: dict[str, Any] | None = None  # its `user_id` may name a session, see policy.routing.affinity
    service_tier: str | None = None
