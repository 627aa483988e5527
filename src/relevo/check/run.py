"""Runs chosen checks one after the other against one server and gathers results.

Owns the rule what an exception means: `Mismatch` is a failure, `Skip` a skip, a broken connection or a missed deadline
a failure of the check that was waiting. A fault in a check itself is not caught: it ends the run with a traceback.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from random import Random

from relevo.check.context import CheckContext
from relevo.check.disturber import Disturber
from relevo.check.exchange import OTHER_KEY_PLACEHOLDER, Exchange, shortened
from relevo.check.facts import Facts, find_facts
from relevo.check.server import Server
from relevo.check.words import Check, Level, Mismatch, Need, Result, Skip, Status
from relevo.client.http import CLIENT_ERRORS
from relevo.core.errors import SettingsError

SHOWN_ANSWER_CHARS = 2_000
MIN_CHECK_TIMEOUT_S = 600.0  # arbitrary
NUM_LONG_ANSWERS = 5  # that a check may wait for, each as long as an answer may take; arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    url: str
    model: str | None = None
    api_key: str | None = None
    other_api_key: str | None = None  # of another tenant
    oracle: str | None = None
    oracle_model: str | None = None
    timeout_s: float = 120.0  # per request
    settle_s: float = 5.0  # how long abandoned requests may stay
    pause_s: float = 12.0
    seed: int = 0
    disturber: Disturber | None = None

    @property
    def check_timeout_s(self) -> float:
        """Per check: none waits longer, whatever the server does; a server that is slow gets more."""
        return self.pause_s + max(MIN_CHECK_TIMEOUT_S, NUM_LONG_ANSWERS * self.timeout_s)


@dataclass(slots=True)
class CheckRun:
    """Iterate `results` once. `facts` are there from the first result on."""

    options: CheckOptions
    checks: Sequence[Check]
    facts: Facts | None = field(default=None, init=False)

    async def results(self) -> AsyncIterator[Result]:
        """One per check. Raises RelevoError for what the person at the terminal can mend."""
        options = self.options
        async with (
            Server(options.url, options.api_key, options.timeout_s) as server,
            Server(options.oracle or options.url, options.api_key, options.timeout_s) as oracle,
            Server(options.url, options.other_api_key, options.timeout_s, OTHER_KEY_PLACEHOLDER) as other_server,
        ):
            other = other_server if options.other_api_key is not None else None
            self.facts = facts = await find_facts(
                server,
                options.model,
                has_oracle=options.oracle is not None,
                has_processes=options.disturber is not None,
                other=other,
            )
            oracle_model = ""
            if options.oracle is not None:
                oracle_model = await oracle.pick_model(options.oracle_model)
            if options.disturber is not None and any(Need.PROCESSES in one.needs for one in self.checks):
                await _need_targets(options.disturber)
            for one in self.checks:
                context = CheckContext(
                    server,
                    facts,
                    Random(f"{options.seed} {one.id}"),
                    options.settle_s,
                    oracle if options.oracle is not None else None,
                    oracle_model,
                    disturber=options.disturber,
                    other=other,
                    pause_s=options.pause_s,
                )
                yield await run_one(one, context, options.check_timeout_s)


async def _need_targets(disturber: Disturber) -> None:
    """Raises SettingsError if there is nothing to disturb: a mistyped name would pass for a stack that survives."""
    if not await disturber.targets():
        raise SettingsError(
            "no process fits --processes, or 'list' of the --chaos-command names none; "
            "this command and what it was started from are never meant"
        )


async def run_one(one: Check, context: CheckContext, check_timeout_s: float) -> Result:
    lacking = [need for need in one.needs if not context.facts.has(need)]
    if lacking:
        reason = "; ".join(f"needs {need}: {context.facts.lacking[need]}" for need in lacking)
        return Result(check=one, status=Status.SKIPPED, duration_s=0.0, reason=reason)
    started_s = time.monotonic()
    try:
        async with asyncio.timeout(check_timeout_s) as limit:
            await one.run(context)
    except Skip as skip:
        return Result(
            check=one, status=Status.SKIPPED, duration_s=time.monotonic() - started_s, reason=str(skip),
            notes=tuple(context.notes),
        )  # fmt: skip
    except Mismatch as mismatch:
        told = mismatch
    except CLIENT_ERRORS as error:
        if limit.expired():
            told = Mismatch(f"the check was not over within {check_timeout_s:g} s", exchange=context.last)
        else:
            told = Mismatch(_no_answer(error, context.server.timeout_s), expected="an answer", exchange=context.last)
    else:
        duration_s = time.monotonic() - started_s
        return Result(check=one, status=Status.PASSED, duration_s=duration_s, notes=tuple(context.notes))
    return _failed(one, context, told, time.monotonic() - started_s)


def _no_answer(error: BaseException, waited_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {waited_s:g} s"
    return f"the connection broke: {str(error) or type(error).__name__}"


def _failed(one: Check, context: CheckContext, told: Mismatch, duration_s: float) -> Result:
    exchange: Exchange | None = told.exchange
    status = Status.FAILED if one.level is Level.MUST else Status.ADVICE
    return Result(
        check=one,
        status=status,
        duration_s=duration_s,
        notes=tuple(context.notes),
        expected=told.expected or one.expects,
        sent=exchange.sent if exchange else "",
        got=told.got,
        answer=shortened(told.answer, SHOWN_ANSWER_CHARS),
        curl=exchange.curl if exchange else "",
    )
