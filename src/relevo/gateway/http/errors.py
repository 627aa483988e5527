"""How errors look on the wire: one table from `core.errors` codes to HTTP, and OpenAI's error body.

Does not know any route. Wording note: messages of capacity errors never speak of rates or of too many requests,
because agents match those words and give up where they should wait.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.responses import Response

from relevo.core.errors import BudgetSpent, CapacityError, DeadlineExceeded, RelevoError, RequestError

DROPPED_HEADERS = ("x-relevo-dropped-reason", "x-llm-d-request-dropped-reason")  # which limit kept a request out

MAX_MESSAGE_CHARS = 1000  # arbitrary; of what an error says


@dataclass(frozen=True, slots=True)
class HttpShape:
    status: int
    type: str  # OpenAI's `error.type`
    retry_after_s: float | None = None  # default of the Retry-After header; None: no such header


class UnknownPath(RequestError):
    code = "unknown_path"


class MethodNotAllowed(RequestError):
    code = "method_not_allowed"

    def __init__(self, message: str, allowed: tuple[str, ...]) -> None:
        super().__init__(message)
        self.allowed = allowed


class TooManyConnections(CapacityError):
    code = "too_many_connections"


HTTP_SHAPES: dict[str, HttpShape] = {
    "invalid_http_request": HttpShape(400, "invalid_request_error"),
    "invalid_path": HttpShape(400, "invalid_request_error"),
    "invalid_request": HttpShape(400, "invalid_request_error"),
    "context_length_exceeded": HttpShape(400, "invalid_request_error"),
    "unsupported_media_type": HttpShape(400, "invalid_request_error"),
    "invalid_api_key": HttpShape(401, "authentication_error"),
    "foreign_site": HttpShape(403, "permission_error"),
    "forbidden": HttpShape(403, "permission_error"),
    "model_not_found": HttpShape(404, "not_found_error"),
    "unknown_path": HttpShape(404, "not_found_error"),
    "method_not_allowed": HttpShape(405, "invalid_request_error"),
    "request_too_large": HttpShape(413, "invalid_request_error"),
    "insufficient_quota": HttpShape(429, "insufficient_quota"),
    "key_limit_reached": HttpShape(429, "key_limit_error", retry_after_s=1.0),
    "overloaded": HttpShape(429, "overloaded_error", retry_after_s=1.0),
    "deadline_exceeded": HttpShape(504, "timeout_error"),
    "internal_error": HttpShape(500, "server_error"),
    "step_failed": HttpShape(500, "server_error", retry_after_s=1.0),
    "protocol_error": HttpShape(502, "server_error"),
    "too_many_connections": HttpShape(503, "service_unavailable_error", retry_after_s=5.0),
    "worker_failed": HttpShape(503, "service_unavailable_error", retry_after_s=1.0),
    "worker_lost": HttpShape(503, "service_unavailable_error", retry_after_s=1.0),
    "handoff_failed": HttpShape(503, "service_unavailable_error", retry_after_s=1.0),
    "no_worker": HttpShape(503, "service_unavailable_error", retry_after_s=1.0),
    "ledger_unavailable": HttpShape(503, "service_unavailable_error", retry_after_s=1.0),
    "server_stopping": HttpShape(503, "service_unavailable_error", retry_after_s=1.0),
    "start_failed": HttpShape(503, "service_unavailable_error"),
}


def shape_of(error: RelevoError) -> HttpShape:
    return HTTP_SHAPES.get(error.code, HTTP_SHAPES["internal_error"])


def error_body(error: RelevoError) -> dict[str, Any]:
    """OpenAI's error object, also used inside a stream."""
    shape = shape_of(error)
    message, param = _shortened(error.message), error.param and _shortened(error.param)
    return {"error": {"message": message, "type": shape.type, "param": param, "code": error.code}}


def _shortened(text: str) -> str:
    """A message may repeat what the client sent, but not megabytes of it; how it begins and ends is said."""
    if len(text) <= MAX_MESSAGE_CHARS:
        return text
    half = MAX_MESSAGE_CHARS // 2
    return f"{text[:half]}... ({len(text) - 2 * half} characters) ...{text[-half:]}"


def error_headers(error: RelevoError) -> dict[str, str]:
    """When to come back (`Retry-After` in whole seconds, `retry-after-ms`), or that it is of no use."""
    shape = shape_of(error)
    headers: dict[str, str] = {}
    if shape.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, CapacityError | DeadlineExceeded) and error.limit:
        headers |= dict.fromkeys(DROPPED_HEADERS, error.limit)
    if isinstance(error, MethodNotAllowed):
        headers["Allow"] = ", ".join(error.allowed)
    if not error.retryable:
        headers["x-should-retry"] = "false"
        if isinstance(error, BudgetSpent) and error.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
        return headers
    retry_after_s = error.retry_after_s if isinstance(error, CapacityError) else shape.retry_after_s
    if retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
        headers["retry-after-ms"] = str(max(1, math.ceil(retry_after_s * 1000)))
    return headers


def error_response(error: RelevoError) -> Response:
    """The whole response for an error that is known before anything was sent."""
    return Response(
        orjson.dumps(error_body(error)),
        status_code=shape_of(error).status,
        headers=error_headers(error),
        media_type="application/json",
    )


def context_overflow_message(max_model_len: int, num_prompt_tokens: int, *, is_lower_bound: bool = False) -> str:
    """Agents match this sentence to decide that a conversation must be compacted; change not one word.

    `is_lower_bound`: of a prompt that was not read to its end; said as vLLM says it.
    """
    at_least = "at least " if is_lower_bound else ""
    return (
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
        f"{at_least}{num_prompt_tokens} input tokens. Please reduce the length of the input messages."
    )
