"""The paths of Anthropic's API."""

from __future__ import annotations

from relevo.gateway.anthropic.errors import ANTHROPIC_ERRORS
from relevo.gateway.anthropic.messages import count_message_tokens, create_message
from relevo.gateway.anthropic.models import list_models, show_model
from relevo.gateway.anthropic.schemas import ConversationFields, MessagesFields
from relevo.gateway.http.route import Route

VERSION_HEADER = "anthropic-version"  # every client of this API sends it

ANTHROPIC_ROUTES = (
    Route("POST", "/v1/messages", create_message, ANTHROPIC_ERRORS, is_generation=True, request=MessagesFields),
    Route("POST", "/v1/messages/count_tokens", count_message_tokens, ANTHROPIC_ERRORS, request=ConversationFields),
    Route("GET", "/v1/models", list_models, ANTHROPIC_ERRORS, header=VERSION_HEADER),
    Route("GET", "/v1/models/*", show_model, ANTHROPIC_ERRORS, header=VERSION_HEADER),
)
