"""The paths of the Responses API."""

from __future__ import annotations

from relevo.gateway.http.route import Route
from relevo.gateway.openai.errors import OPENAI_ERRORS
from relevo.gateway.responses.create import count_input_tokens, create_response
from relevo.gateway.responses.schemas import ResponseFields
from relevo.gateway.responses.stored import cancel, compact, delete, show

RESPONSES_ROUTES = (
    Route("POST", "/v1/responses", create_response, OPENAI_ERRORS, is_generation=True, request=ResponseFields),
    Route("POST", "/v1/responses/input_tokens", count_input_tokens, OPENAI_ERRORS, request=ResponseFields),
    Route("POST", "/v1/responses/compact", compact, OPENAI_ERRORS),
    Route("GET", "/v1/responses/*", show, OPENAI_ERRORS),
    Route("DELETE", "/v1/responses/*", delete, OPENAI_ERRORS),
    Route("POST", "/v1/responses/*", cancel, OPENAI_ERRORS),
)
