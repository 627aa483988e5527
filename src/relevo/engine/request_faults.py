"""Code of Relevo's own raised while the loop handled one request: with what that request ends.

Owns the words for it. It does not know how a request is let go. What raises while many are handled at once (a plan, a
commit) belongs to no single one and ends the worker: its state may be half changed.
"""

from __future__ import annotations

from relevo.core.errors import InternalError, RelevoError, WorkerError


def failure_of(error: Exception) -> tuple[str, str]:
    """(code, reason) for the gateway. Only what the machine lacks may be better on another worker; the exception's own
    text stays in the log."""
    if isinstance(error, RelevoError):
        return error.code, error.message
    code = WorkerError.code if isinstance(error, MemoryError | OSError) else InternalError.code
    return code, f"the worker failed over this request ({type(error).__name__}); its log says where"
