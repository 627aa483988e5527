"""OpenAI's errors: `{"error": {"message", "type", "param", "code"}}`, also as the last event of a stream.

Source: OpenAI API reference, "Error codes". `x-should-retry` and `retry-after-ms` are what its clients look at.
"""

from __future__ import annotations

from typing import Any

import orjson

from relevo.core import errors
from relevo.core.errors import RelevoError
from relevo.gateway.http.errors import ErrorReply, error_headers, http_status, shortened, status_of
from relevo.gateway.http.sse import encode_event

_TYPE_OF_CODE = {
    errors.BudgetSpent.code: "insufficient_quota",
    errors.KeyLimitReached.code: "key_limit_error",
    errors.Overloaded.code: "overloaded_error",
}
_TYPE_OF_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    500: "server_error",
    502: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


def error_body(error: RelevoError) -> dict[str, Any]:
    kind = _TYPE_OF_CODE.get(error.code) or _TYPE_OF_STATUS.get(http_status(error).status, "invalid_request_error")
    message, param = shortened(error.message), error.param and shortened(error.param)
    return {"error": {"message": message, "type": kind, "param": param, "code": error.code}}


class OpenAIErrors:
    """The `ErrorFormat` of OpenAI's paths, and of those that belong to no API."""

    def reply(self, error: RelevoError, request_id: str) -> ErrorReply:
        headers = {"content-type": "application/json", **error_headers(error)}
        return ErrorReply(status_of(error), headers, orjson.dumps(error_body(error)))

    def stream_event(self, error: RelevoError, request_id: str) -> bytes:
        return encode_event(error_body(error))


OPENAI_ERRORS = OpenAIErrors()
