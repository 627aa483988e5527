"""From the `code` a worker or policy reported to the exception the HTTP side answers with."""

from __future__ import annotations

from relevo.core import errors

_BY_CODE: dict[str, type[errors.RelevoError]] = {
    cls.code: cls
    for cls in (
        errors.InvalidRequest,
        errors.ContextLengthExceeded,
        errors.WorkerError,
        errors.WorkerLost,
        errors.StepFailed,
        errors.HandoffFailed,
        errors.ProtocolError,
    )
}


def error_for(code: str | None, reason: str, retry_after_s: float | None) -> errors.RelevoError:
    """An unknown code is a worker error."""
    if code in (errors.Overloaded.code, errors.NoWorker.code):
        capacity_error = errors.NoWorker if code == errors.NoWorker.code else errors.Overloaded
        return capacity_error(reason, retry_after_s=retry_after_s or 1.0)
    return _BY_CODE.get(code or "", errors.WorkerError)(reason)
