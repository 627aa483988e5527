"""What the errors of every API have in common: a status for each code of `core.errors`, and the headers.

How an error is worded in JSON is an API's own, its `ErrorFormat`; each route names one. Wording note: messages of
capacity errors never speak of rates or of too many requests, because agents match those words and give up where they
should wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from starlette.responses import Response

from relevo.core import errors
from relevo.core.errors import BudgetSpent, CapacityError, DeadlineExceeded, RelevoError, RequestError

DROPPED_HEADERS = ("x-relevo-dropped-reason", "x-llm-d-request-dropped-reason")  # which limit kept a request out

MAX_MESSAGE_CHARS = 1000  # arbitrary; of what an error says


@dataclass(frozen=True, slots=True)
class HttpStatus:
    status: int
    retry_after_s: float | None = None  # default of the Retry-After header; None: no such header


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """A whole response."""

    status: int
    headers: dict[str, str]  # its media type among them, its length not
    body: bytes


class ErrorFormat(Protocol):
    """How one API says what went wrong. `request_id`: of the HTTP request, empty before there is one."""

    def reply(self, error: RelevoError, request_id: str) -> ErrorReply:
        """For an error that is known before anything was sent."""
        ...

    def stream_event(self, error: RelevoError, request_id: str) -> bytes:
        """For an error in the middle of a stream; it is the stream's last event."""
        ...


ErrorFormats = Callable[[str], ErrorFormat]  # by path; also of a path that nothing is at


class UnknownPath(RequestError):
    code = "unknown_path"


class NotFound(RequestError):
    """The path is known, and what it names is not there."""

    code = "not_found"


class MethodNotAllowed(RequestError):
    code = "method_not_allowed"

    def __init__(self, message: str, allowed: tuple[str, ...]) -> None:
        super().__init__(message)
        self.allowed = allowed


class TooManyConnections(CapacityError):
    code = "too_many_connections"


class BadHttp(RequestError):
    """The bytes are not a request that this server takes. The connection ends with the answer."""

    code = "invalid_http_request"

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status
        self.path = ""  # as far as it is known


class BadPath(BadHttp):
    """Another server could read the path differently."""

    code = "invalid_path"


HTTP_STATUSES: dict[str, HttpStatus] = {
    "invalid_http_request": HttpStatus(400),
    "invalid_path": HttpStatus(400),
    errors.InvalidRequest.code: HttpStatus(400),
    errors.ContextLengthExceeded.code: HttpStatus(400),
    errors.InvalidGrammar.code: HttpStatus(400),
    errors.GrammarFailed.code: HttpStatus(400),
    errors.AnswerTooLarge.code: HttpStatus(400),
    errors.UnsupportedMediaType.code: HttpStatus(400),
    errors.Unauthorized.code: HttpStatus(401),
    "foreign_site": HttpStatus(403),
    errors.Forbidden.code: HttpStatus(403),
    errors.ModelNotFound.code: HttpStatus(404),
    "unknown_path": HttpStatus(404),
    "not_found": HttpStatus(404),
    "previous_response_not_found": HttpStatus(400),
    "method_not_allowed": HttpStatus(405),
    errors.RequestTooLarge.code: HttpStatus(413),
    errors.BudgetSpent.code: HttpStatus(429),
    errors.KeyLimitReached.code: HttpStatus(429, retry_after_s=1.0),
    errors.Overloaded.code: HttpStatus(429, retry_after_s=1.0),
    errors.DeadlineExceeded.code: HttpStatus(504),
    errors.InternalError.code: HttpStatus(500),
    errors.StepFailed.code: HttpStatus(500, retry_after_s=1.0),
    errors.ProtocolError.code: HttpStatus(502),
    "too_many_connections": HttpStatus(503, retry_after_s=5.0),
    errors.WorkerError.code: HttpStatus(503, retry_after_s=1.0),
    errors.WorkerLost.code: HttpStatus(503, retry_after_s=1.0),
    errors.HandoffFailed.code: HttpStatus(503, retry_after_s=1.0),
    errors.NoWorker.code: HttpStatus(503, retry_after_s=1.0),
    errors.LedgerUnavailable.code: HttpStatus(503, retry_after_s=1.0),
    errors.ServerStopping.code: HttpStatus(503, retry_after_s=1.0),
    errors.StartError.code: HttpStatus(503),
}


def http_status(error: RelevoError) -> HttpStatus:
    return HTTP_STATUSES.get(error.code, HTTP_STATUSES[errors.InternalError.code])


def status_of(error: RelevoError) -> int:
    return error.status if isinstance(error, BadHttp) else http_status(error).status


def shortened(text: str) -> str:
    """A message may repeat what the client sent, but not megabytes of it; how it begins and ends is said."""
    if len(text) <= MAX_MESSAGE_CHARS:
        return text
    half = MAX_MESSAGE_CHARS // 2
    return f"{text[:half]}... ({len(text) - 2 * half} characters) ...{text[-half:]}"


def error_headers(error: RelevoError) -> dict[str, str]:
    """When to come back (`Retry-After` in whole seconds, `retry-after-ms`), or that it is of no use."""
    listed = http_status(error)
    headers: dict[str, str] = {}
    if listed.status == 401:
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
    retry_after_s = error.retry_after_s if isinstance(error, CapacityError) else listed.retry_after_s
    if retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
        headers["retry-after-ms"] = str(max(1, math.ceil(retry_after_s * 1000)))
    return headers


def error_response(error_format: ErrorFormat, error: RelevoError, request_id: str = "") -> Response:
    reply = error_format.reply(error, request_id)
    return Response(reply.body, reply.status, reply.headers)
