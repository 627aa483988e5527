"""From the `code` a worker or policy reported to the exception the HTTP side answers with."""

from __future__ import annotations

from relevo.core import errors

_BY_CODE: dict[str, type[errors.RelevoError]] = {
    cls.code: cls
    for cls in (
        errors.InvalidRequest,
        errors.ContextLengthExceeded,
        errors.InternalError,
        errors.WorkerError,
        errors.WorkerLost,
        errors.StepFailed,
        errors.HandoffFailed,
        errors.ProtocolError,
    )
}


def error_for(code: str | None, reason: str, retry_after_s: float | None, limit: str = "") -> errors.RelevoError:
    """An unknown code is a worker error. `limit`: what was used up, for errors that tell it."""
    if code == errors.DeadlineExceeded.code:
        return errors.DeadlineExceeded(reason, limit=limit)
    if code in (errors.Overloaded.code, errors.NoWorker.code):
        capacity_error = errors.NoWorker if code == errors.NoWorker.code else errors.Overloaded
        return capacity_error(reason, retry_after_s=retry_after_s or 1.0, limit=limit)
    return _BY_CODE.get(code or "", errors.WorkerError)(reason)
