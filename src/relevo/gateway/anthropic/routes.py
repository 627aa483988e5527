"""The paths of Anthropic's API."""

from __future__ import annotations

from relevo.gateway.anthropic.errors import ANTHROPIC_ERRORS
from relevo.gateway.anthropic.messages import count_message_tokens, create_message
from relevo.gateway.http.route import Route

ANTHROPIC_ROUTES = (
    Route("POST", "/v1/messages", create_message, ANTHROPIC_ERRORS, is_generation=True),
    Route("POST", "/v1/messages/count_tokens", count_message_tokens, ANTHROPIC_ERRORS),
)
