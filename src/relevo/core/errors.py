"""One tree of errors. The HTTP status of each `code` is decided once, in `gateway.http.errors`.

RelevoError
├── RequestError              the client can mend it
│   ├── InvalidRequest
│   ├── InvalidGrammar
│   ├── GrammarFailed
│   ├── ContextLengthExceeded
│   ├── ModelNotFound
│   ├── Unauthorized
│   ├── RequestTooLarge
│   ├── AnswerTooLarge
│   ├── BudgetSpent
│   ├── UnsupportedMediaType
│   └── DeadlineExceeded
├── InternalError             Relevo's own code raised over one request
├── CapacityError             try again later
│   ├── Overloaded
│   ├── NoWorker
│   ├── KeyLimitReached
│   ├── LedgerUnavailable
│   └── ServerStopping
├── WorkerError               a worker or the way to it failed
│   ├── WorkerLost
│   ├── StepFailed
│   ├── HandoffFailed
│   └── ProtocolError
└── StartError                the operator can mend it; raised before anything is served
    ├── SettingsError
    ├── ModelFileError
    ├── UnsupportedModel
    ├── HubUnavailable
    │   └── HubUnreachable    the same command may work later, as all that is retryable here
    ├── DatabaseUnreachable
    ├── ProcessesKeepEnding
    └── LayoutMismatch

Expected outcomes ("does not fit", "rejected") are values, not exceptions.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar


class RelevoError(Exception):
    """Base of the tree. `message` is one sentence that says what to change."""

    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class RequestError(RelevoError):
    code = "invalid_request"


class InvalidRequest(RequestError):
    """A field has a wrong type or value; `param` names it."""


class InvalidGrammar(RequestError):
    """The grammar that the output is to be of cannot be compiled, or nothing is of it."""

    code = "invalid_grammar"


class GrammarFailed(RequestError):
    """While it runs: the output cannot go on in the grammar that it is held to."""

    code = "grammar_failed"


class ContextLengthExceeded(RequestError):
    """`num_tokens`: the prompt's, or that it has at least; 0: unknown. `max_tokens`: of prompt and answer together."""

    code = "context_length_exceeded"

    def __init__(self, message: str, *, param: str | None = None, num_tokens: int = 0, max_tokens: int = 0) -> None:
        super().__init__(message, param=param)
        self.num_tokens = num_tokens
        self.max_tokens = max_tokens


class ModelNotFound(RequestError):
    code = "model_not_found"


class Unauthorized(RequestError):
    code = "invalid_api_key"


class Forbidden(RequestError):
    """The key is valid, and not for this."""

    code = "forbidden"


class RequestTooLarge(RequestError):
    code = "request_too_large"


class AnswerTooLarge(RequestError):
    """While it runs: more of it has to be kept than one answer may, because of what was asked for or a slow reader."""

    code = "answer_too_large"


class UnsupportedMediaType(RequestError):
    code = "unsupported_media_type"


class BudgetSpent(RequestError):
    """The API key has used its budget. `retry_after_s`: until the next budget period begins; None: there is none."""

    code = "insufficient_quota"

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(RequestError):
    """The time that the client allowed is over. `limit` says which: one of policy.admission.LIMITS."""

    code = "deadline_exceeded"

    def __init__(self, message: str, *, limit: str = "client_timeout") -> None:
        super().__init__(message)
        self.limit = limit


class InternalError(RelevoError):
    """Relevo's own code raised while it handled the request: it would do so again, on every worker."""

    code = "internal_error"


class CapacityError(RelevoError):
    """`limit`: a short name of what is used up, the same for all such errors; empty where there is only one."""

    code = "overloaded"
    retryable = True

    def __init__(self, message: str, *, retry_after_s: float = 1.0, limit: str = "") -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.limit = limit


class Overloaded(CapacityError):
    """Every bounded queue that the request could wait in is full."""


class NoWorker(CapacityError):
    """No worker is ready at present."""

    code = "no_worker"


class KeyLimitReached(CapacityError):
    """The API key has used the tokens that it may use per minute."""

    code = "key_limit_reached"


class LedgerUnavailable(CapacityError):
    """What requests use cannot be recorded, so none is taken."""

    code = "ledger_unavailable"


class ServerStopping(CapacityError):
    """The server is being stopped: it takes no new request, or has cut off one that ran."""

    code = "server_stopping"


class WorkerError(RelevoError):
    code = "worker_failed"
    retryable = True


class WorkerLost(WorkerError):
    """The connection to a worker ended while it held something of the request."""

    code = "worker_lost"


class StepFailed(WorkerError):
    """The engine raised while it computed a step that contained the request. `request_ids`: whose rows were the
    reason; empty: that is unknown, so every request of the step has failed."""

    code = "step_failed"

    def __init__(self, message: str, *, request_ids: Collection[str] = ()) -> None:
        super().__init__(message)
        self.request_ids = frozenset(request_ids)


class HandoffFailed(WorkerError):
    code = "handoff_failed"


class ProtocolError(WorkerError):
    """A peer sent something that the wire protocol does not allow."""

    code = "protocol_error"
    retryable = False


class StartError(RelevoError):
    code = "start_failed"


class SettingsError(StartError):
    """Settings that cannot work together; the message names both values, the rule and the fix."""


class ModelFileError(StartError):
    """A model file is missing, broken or incomplete."""


class UnsupportedModel(StartError):
    """The architecture, a rope scaling or a quantisation is not implemented."""


class HubUnavailable(StartError):
    """A hub id was given, the files are not in the cache and the hub cannot be reached."""


class HubUnreachable(HubUnavailable):
    """The network between here and the hub is away, or the hub is."""

    retryable = True


class DatabaseUnreachable(StartError):
    """The usage database is another machine's, and does not answer as it should."""

    retryable = True


class ProcessesKeepEnding(StartError):
    """A process ended again and again before it was ready, and did not say why."""

    retryable = True


class LayoutMismatch(StartError):
    """A peer's KV layout does not fit; it is refused at join."""


def _by_code(root: type[RelevoError]) -> dict[str, type[RelevoError]]:
    """The first class with each code, children before their parents."""
    table: dict[str, type[RelevoError]] = {}
    for child in root.__subclasses__():
        table = _by_code(child) | table
    table.setdefault(root.code, root)
    return table


BY_CODE = _by_code(RelevoError)
