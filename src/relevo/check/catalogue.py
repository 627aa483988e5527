"""All checks, in the order in which they run, and the choice among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from types import ModuleType

from relevo.check.blackbox import (
    call_histories,
    cancel,
    choices,
    completions,
    concurrency,
    errors,
    forced_calls,
    hostile,
    limits,
    logprobs,
    message_streams,
    messages,
    oracle,
    reasoning,
    response_streams,
    responses,
    sampling,
    shape,
    sse,
    stop,
    stream,
    structured,
    tenants,
    tools,
    unicode,
    usage,
)
from relevo.check.chaos import aborts, links, stops, workers
from relevo.check.words import Check
from relevo.core.errors import SettingsError

_MODULES: tuple[ModuleType, ...] = (
    *(
        shape,
        completions,
        tools,
        forced_calls,
        call_histories,
        structured,
        reasoning,
        stream,
        sse,
        stop,
        logprobs,
        choices,
        sampling,
        usage,
        limits,
        errors,
        unicode,
    ),
    *(responses, response_streams, messages, message_streams),
    *(concurrency, hostile, tenants, oracle, cancel, aborts, workers, stops, links),
)

CHECKS: tuple[Check, ...] = tuple(
    member for module in _MODULES for member in vars(module).values() if isinstance(member, Check)
)
assert len({one.id for one in CHECKS}) == len(CHECKS), "two checks have the same id"


def chosen(only: Sequence[str], skip: Sequence[str]) -> tuple[Check, ...]:
    """The checks that a pattern of `only` names (all, if there is none) and none of `skip` does.

    A pattern is an id, a group or a glob such as `stream.*`. Raises SettingsError for one that names nothing.
    """
    for pattern in (*only, *skip):
        if not any(_matches(one, (pattern,)) for one in CHECKS):
            raise SettingsError(f"{pattern!r} names no check; `relevo check --list` shows all of them")
    return tuple(one for one in CHECKS if (not only or _matches(one, only)) and not _matches(one, skip))


def _matches(one: Check, patterns: Iterable[str]) -> bool:
    return any(pattern == str(one.group) or fnmatchcase(one.id, pattern) for pattern in patterns)
