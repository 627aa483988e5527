"""How a request ended: one word for the bill, the handoff and the record, and one value that says why.

A failure is translated twice at most: a worker's or a policy's code into a `RequestEnd`, and that into the shape of the
API that answers. Does not know HTTP statuses, prices or workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from relevo.core import errors


class Outcome(StrEnum):
    """Every admitted request has exactly one."""

    FINISHED = "finished"
    ABORTED = "aborted"  # on its client's account
    FAILED = "failed"  # on ours


class Cause(StrEnum):
    """What ended a request."""

    COMPLETE = "complete"  # also: a stop string, the most tokens
    CLIENT_GONE = "client_gone"
    CLIENT_TIMEOUT = "client_timeout"  # the time that the client allowed was over
    BUDGET_SPENT = "budget_spent"
    KEY_ENDED = "key_ended"  # revoked, expired or removed while it ran
    ANSWER_TOO_LARGE = "answer_too_large"  # to be kept: it was sent whole, or its client did not read it
    GRAMMAR_FAILED = "grammar_failed"  # that the client wanted the output to be of
    WORKER_FAILED = "worker_failed"  # and no other could go on
    SERVER_STOPPED = "server_stopped"
    LEDGER_FAILED = "ledger_failed"  # its row could not be kept in time
    INTERNAL = "internal"

    @property
    def outcome(self) -> Outcome:
        return _OUTCOMES.get(self, Outcome.FAILED)


_OUTCOMES = {
    Cause.COMPLETE: Outcome.FINISHED,
    Cause.CLIENT_GONE: Outcome.ABORTED,
    Cause.CLIENT_TIMEOUT: Outcome.ABORTED,
    Cause.BUDGET_SPENT: Outcome.ABORTED,
    Cause.KEY_ENDED: Outcome.ABORTED,
    Cause.ANSWER_TOO_LARGE: Outcome.ABORTED,
    Cause.GRAMMAR_FAILED: Outcome.ABORTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEnd:
    """The last thing that is said of a request. Without a `code` there is nothing to tell the client."""

    cause: Cause
    code: str | None = None  # of core.errors
    reason: str = ""  # one sentence
    retry_after_s: float | None = None
    limit: str = ""  # a short name of what was used up, if that ended it

    @property
    def outcome(self) -> Outcome:
        return self.cause.outcome

    @classmethod
    def failed(cls, code: str, reason: str, retry_after_s: float | None = None, limit: str = "") -> RequestEnd:
        """The cause follows from the code; an unknown one is a worker's."""
        cause = cause_of(_error_class(code))
        return cls(cause=cause, code=code, reason=reason, retry_after_s=retry_after_s, limit=limit)

    @classmethod
    def of(cls, error: Exception) -> RequestEnd:
        """Of a request that ended with this error, one of Relevo's or not."""
        if not isinstance(error, errors.RelevoError):
            return cls(cause=Cause.INTERNAL, code=errors.InternalError.code, reason=str(error))
        retry_after_s = error.retry_after_s if isinstance(error, errors.CapacityError) else None
        limit = error.limit if isinstance(error, errors.CapacityError | errors.DeadlineExceeded) else ""
        return cls.failed(error.code, error.message, retry_after_s, limit)

    def error(self) -> errors.RelevoError:
        """What to raise where the end of a request is an exception. Only for an end with a code."""
        kind = _error_class(self.code or "")
        if issubclass(kind, errors.CapacityError):
            return kind(self.reason, retry_after_s=self.retry_after_s or 1.0, limit=self.limit)
        if issubclass(kind, errors.DeadlineExceeded):
            return kind(self.reason, limit=self.limit)
        return kind(self.reason)


COMPLETE = RequestEnd(cause=Cause.COMPLETE)


def cause_of(error: type[Exception]) -> Cause:
    """Of a request that ended with such an error."""
    return next((cause for kind, cause in _CAUSES if issubclass(error, kind)), Cause.INTERNAL)


_CAUSES: tuple[tuple[type[Exception], Cause], ...] = (  # the first that fits
    (errors.DeadlineExceeded, Cause.CLIENT_TIMEOUT),
    (errors.BudgetSpent, Cause.BUDGET_SPENT),
    (errors.Unauthorized, Cause.KEY_ENDED),
    (errors.AnswerTooLarge, Cause.ANSWER_TOO_LARGE),
    (errors.GrammarFailed, Cause.GRAMMAR_FAILED),
    (errors.LedgerUnavailable, Cause.LEDGER_FAILED),
    (errors.ServerStopping, Cause.SERVER_STOPPED),
    (errors.WorkerError, Cause.WORKER_FAILED),
    (errors.CapacityError, Cause.WORKER_FAILED),
    (errors.RequestError, Cause.WORKER_FAILED),
)


def _error_class(code: str) -> type[errors.RelevoError]:
    return errors.BY_CODE.get(code, errors.WorkerError)
