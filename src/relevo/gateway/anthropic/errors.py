"""Anthropic's errors: `{"type": "error", "error": {"type", "message"}, "request_id"}`, also as a stream's last event.

Owns the type of each status, the status 529, and the sentence by which agents know that a conversation must be
compacted. Source: Anthropic API reference, "Errors".
"""

from __future__ import annotations

from typing import Any

import orjson

from relevo.core.errors import ContextLengthExceeded, Overloaded, RelevoError, RequestTooLarge
from relevo.gateway.anthropic.events import encode_event
from relevo.gateway.http.errors import ErrorReply, error_headers, shortened, status_of

REQUEST_ID_HEADER = "request-id"  # where Anthropic's SDKs look for it
OVERLOADED = 529
_TYPE_OF_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: RequestTooLarge.code,  # a type of Anthropic's, too
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}


def error_body(error: RelevoError, request_id: str) -> dict[str, Any]:
    status = anthropic_status(error)
    kind = _TYPE_OF_STATUS.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": shortened(_message(error))},
        "request_id": request_id or None,
    }


def anthropic_status(error: RelevoError) -> int:
    """A full queue is not a limit of the client's own: clients of this API wait longer after a 429."""
    return OVERLOADED if isinstance(error, Overloaded) else status_of(error)


def _message(error: RelevoError) -> str:
    """Agents match the sentence about prompts, and read both numbers in it; change not one word."""
    if isinstance(error, ContextLengthExceeded) and error.num_tokens:
        most = min(error.max_tokens, error.num_tokens - 1)  # a prompt of exactly that many leaves no room to answer
        return f"prompt is too long: {error.num_tokens} tokens > {most} maximum"
    return error.message


class AnthropicErrors:
    """The `ErrorFormat` of Anthropic's paths."""

    def reply(self, error: RelevoError, request_id: str) -> ErrorReply:
        headers = {"content-type": "application/json", **error_headers(error)}
        if request_id:
            headers[REQUEST_ID_HEADER] = request_id
        return ErrorReply(anthropic_status(error), headers, orjson.dumps(error_body(error, request_id)))

    def stream_event(self, error: RelevoError, request_id: str) -> bytes:
        return encode_event(error_body(error, request_id))


ANTHROPIC_ERRORS = AnthropicErrors()
